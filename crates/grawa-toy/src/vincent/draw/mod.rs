//! The pictures of the Vincent experiment: the surface, where methods end, how they get there, and sweeps.
//!
//! All maps share one [`Backdrop`], computed once, so that they have the same axes and can be compared.

mod backdrop;
mod bounds;
mod ends;
mod ring;
mod sheet;
mod surface;
mod sweep;
mod trajectory;

pub(super) use backdrop::Backdrop;
pub(super) use ends::ends;
pub(super) use surface::surface;
pub(super) use sweep::sweep;
pub(super) use trajectory::trajectory;
