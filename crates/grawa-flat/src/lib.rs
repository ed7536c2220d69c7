#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! Operators and algorithms are separate. An operator is any function that writes H·v for a v; [`Hessian`] is that of a
//! network's mean loss on fixed [`Examples`], with exact products. Algorithms take any such function: [`lanczos()`] (and
//! with it Ritz values, the spectral [`density()`], trace and Frobenius norm), [`quadratic_forms`] (Hutchinson),
//! [`power`] iteration. [`Losses`] gives losses and gradients anywhere, for [`sharpness()`] and for slices of the
//! landscape: [`Line`] and [`Plane`]. [`measure`] combines all measurements of a checkpoint. An [`Engine`] says where passes
//! run, on the CPU or on a GPU.
//!
//! Every random direction comes from a [`Key`](grawa_core::Key); the same seed gives the same numbers on any number of
//! threads.
#![deny(missing_docs)]

mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
mod density;
mod direction;
mod engine;
mod error;
mod estimate;
mod examples;
mod hessian;
mod lanczos;
mod losses;
mod measure;
mod power;
mod quadratic_forms;
mod sharpness;
mod slices;
mod student;
mod tridiagonal;
mod vector;

pub use density::density;
pub use direction::direction;
pub use engine::Engine;
pub use error::Error;
pub use estimate::{Estimate, four_digits};
pub use examples::Examples;
pub use hessian::Hessian;
pub use lanczos::{Draw, lanczos};
pub use losses::{LossAndError, Losses};
pub use measure::{Figures, Settings, measure};
pub use power::{Power, power};
pub use quadratic_forms::{QuadraticForm, frobenius, quadratic_forms, trace};
pub use sharpness::sharpness;
pub use slices::{Line, Plane, Principal, filter_normalised, principal};
pub use student::student_quantile;
pub use tridiagonal::{Ritz, ritz};
