//! Loading a data set by its name.

use crate::error::Result;
use crate::{Dataset, DatasetKind, cifar, digits, folder, idx, md5};
use std::path::Path;

/// Whether files must be the official ones.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) enum Check {
    /// Files of a published set must have the published md5: this finds damage that no format shows.
    #[default]
    Official,
    /// Files may hold anything of the right format: for sets that were changed on purpose.
    Skip,
}

impl Check {
    /// Checks that `bytes`, read from `path`, are the official ones, where required.
    pub(crate) fn verify(self, path: &Path, what: &str, bytes: &[u8], expected: &str) -> Result<()> {
        match self {
            Check::Official => {
                md5::check(bytes, path, what, expected, "It is damaged or was changed; get it again")
            }
            Check::Skip => Ok(()),
        }
    }
}

/// Loads the data set called `spec` (digits, cifar10, cifar100, mnist, fashion-mnist, folder) from `dir`,
/// published sets only in their official form. The digits are inside the program and need no folder.
///
/// ```
/// let set = grawa_data::load("digits", ".".as_ref())?;
/// assert_eq!((set.train.len(), set.test.len(), set.classes), (1438, 359, 10));
/// let slip = grawa_data::load("digist", ".".as_ref()).unwrap_err();
/// assert!(slip.to_string().contains("did you mean 'digits'?"));
/// # Ok::<(), grawa_data::Error>(())
/// ```
pub fn load(spec: &str, dir: &Path) -> Result<Dataset> {
    load_with(spec, dir, Check::Official)
}

/// As [`load`], and files need not be the official ones.
pub(crate) fn load_with(spec: &str, dir: &Path, check: Check) -> Result<Dataset> {
    match spec.parse()? {
        DatasetKind::Digits => digits(),
        DatasetKind::Cifar10 => cifar::read(&cifar::CIFAR10, dir, check),
        DatasetKind::Cifar100 => cifar::read(&cifar::CIFAR100, dir, check),
        DatasetKind::Mnist => idx::read(&idx::MNIST, dir, check),
        DatasetKind::FashionMnist => idx::read(&idx::FASHION, dir, check),
        DatasetKind::Folder => folder(dir),
    }
}
