//! Loading a data set by its name.

use crate::error::Result;
use crate::{Dataset, DatasetKind, Reading, cifar, digits, folder, idx};
use std::path::Path;

/// Loads the data set called `spec` (digits, cifar10, cifar100, mnist, fashion-mnist, folder) from `dir`,
/// published sets only in their official form. The digits are inside the program and need no folder. Class folders are read by
/// [`Reading::default`]; [`folder`] has the choices.
///
/// ```
/// let set = grawa_data::load("digits", ".".as_ref())?;
/// assert_eq!((set.train.len(), set.test.len(), set.classes), (1438, 359, 10));
/// let slip = grawa_data::load("digist", ".".as_ref()).unwrap_err();
/// assert!(slip.to_string().contains("did you mean 'digits'?"));
/// # Ok::<(), grawa_data::Error>(())
/// ```
pub fn load(spec: &str, dir: &Path) -> Result<Dataset> {
    match spec.parse()? {
        DatasetKind::Digits => digits(),
        DatasetKind::Cifar10 => cifar::read(&cifar::CIFAR10, dir),
        DatasetKind::Cifar100 => cifar::read(&cifar::CIFAR100, dir),
        DatasetKind::Mnist => idx::read(&idx::MNIST, dir),
        DatasetKind::FashionMnist => idx::read(&idx::FASHION, dir),
        DatasetKind::Folder => folder(dir, &Reading::default(), &|_, _| ()),
    }
}
