//! Data sets, augmentation and shards: a pure function of (seed, epoch, worker, step).
//!
//! - [`load`] reads a data set by name: the digits inside the program, CIFAR-10 and CIFAR-100, MNIST and
//!   Fashion-MNIST, class folders of pictures. [`get`] downloads the CIFAR archives, [`info`] says what lies in a
//!   folder.
//! - [`Dataset`] is two [`Part`]s, images as bytes (or files) and labels.
//! - [`Order`] says which examples a worker sees in which step; each epoch is one permutation dealt to all.
//! - [`Augment`] is crops and flips as data; every draw has its documented place.
//! - [`Feed`] fills a batch of normalised floats; [`Prefetch`] does so in the background.
//!
//! Nothing here keeps random state: the same seed gives the same batches on any machine, after any resume, and
//! in a kernel that computes the same draws.
//!
//! ```
//! use grawa_data::{Feed, Kind, Order, Prefetch, Reader, load};
//!
//! let set = load("digits", ".".as_ref())?;
//! let feed = Feed::new(&set.train, &set.normalise, Kind::Digits.augment("cnn"))?;
//! let order = Order::new(36, feed.len(), 4, 32)?;
//! let mut batches = Prefetch::training(Reader::new(feed, order, 0)?, 0, 2)?;
//! for _step in 0..10 {
//!     let batch = batches.fetch()?;
//!     assert_eq!((batch.images.len(), batch.labels.len()), (32 * 64, 32));
//! }
//! # Ok::<(), grawa_data::Error>(())
//! ```
#![deny(missing_docs)]

pub mod archive;
mod augment;
mod cifar;
mod dataset;
mod digits;
mod error;
mod feed;
mod folder;
mod get;
mod idx;
mod info;
mod kind;
mod load;
mod normalise;
mod order;
mod picture;
mod place;
mod prefetch;
mod shape;
mod sum;

pub use augment::{Augment, Crop, Rectangle, View, Window};
pub use cifar::{cifar10, cifar100, parse_cifar10, parse_cifar100};
pub use dataset::{Dataset, Images, Part};
pub use digits::{digits, parse_digits};
pub use error::{Error, Result};
pub use feed::Feed;
pub use folder::{Files, folder};
pub use get::{Progress, get, get_from};
pub use idx::{fashion_mnist, mnist, parse_idx_images, parse_idx_labels, unzip};
pub use info::{Found, Info, info};
pub use kind::Kind;
pub use load::{Check, load, load_with};
pub use normalise::Normalise;
pub use order::{Cursor, Order};
pub use picture::{Picture, decode};
pub use prefetch::{Batch, Prefetch, Reader};
pub use shape::Shape;
