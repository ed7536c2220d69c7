#![doc = include_str!("../README.md")]
//!
//! ## Where things are
//!
//! - [`load`] reads a data set by name: the digits inside the program, CIFAR-10 and CIFAR-100, MNIST and
//!   Fashion-MNIST, class folders of pictures. [`download`] downloads the CIFAR archives, [`info`] describes a
//!   folder, [`survey`] its pictures.
//! - [`Dataset`] is two [`Split`]s, images as bytes (or files) and labels.
//! - [`Sampler`] selects the examples of each worker in each step; each epoch is one permutation, split among the workers.
//! - [`Skew`] gives workers examples that are not alike, or wrong labels.
//! - [`Augment`] is crops and flips as data; every draw has a documented key.
//! - [`unlabelled`] makes a split of any pictures, to ask a trained network about them.
//! - [`Feed`] fills a batch of normalised floats; [`Loader`] fills a worker's batches, [`PrefetchLoader`] in the background.
#![deny(missing_docs)]

mod any_picture;
mod augment;
mod cifar;
mod dataset;
mod dataset_kind;
mod digits;
mod download;
mod error;
mod feed;
mod find_folder;
mod folder;
mod idx;
mod info;
mod load;
mod loader;
mod md5;
mod normalise;
mod picture;
mod sampler;
mod shape;
mod skew;
mod survey;

pub use any_picture::{check_pictures, unlabelled};
pub use augment::{Augment, Crop, Rectangle, Window};
pub use dataset::{Dataset, Images, Split};
pub use dataset_kind::DatasetKind;
pub use digits::digits;
pub use download::download;
pub use error::{Error, Result};
pub use feed::Feed;
pub use folder::{Reading, folder, folder_warnings};
pub use info::{Info, info};
pub use load::load;
pub use loader::{Batch, Loader, PrefetchLoader};
pub use normalise::Normalise;
pub use picture::Picture;
pub use sampler::{Sampler, WorkerSampler};
pub use shape::Shape;
pub use skew::{Sharding, Skew};
pub use survey::{Survey, survey};

/// For the fuzz target.
#[doc(hidden)]
pub use picture::decode;
