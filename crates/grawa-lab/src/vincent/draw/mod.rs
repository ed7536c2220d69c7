//! The pictures of the Vincent experiment: the surface, where methods end, how they get there, and sweeps.
//!
//! All maps share one [`Backdrop`], computed once, so that they have the same axes and can be compared.

mod axis;
mod backdrop;
mod ends;
mod fan;
mod line;
mod place;
mod sheet;
mod surface;
mod sweep;
mod trajectory;

pub use backdrop::Backdrop;
pub use ends::ends;
pub use surface::surface;
pub use sweep::sweep;
pub use trajectory::trajectory;
