//! Describes a folder: which data sets it holds, how many images, and what is wrong with them.

use crate::error::{Error, Result};
use crate::{Check, Dataset, DatasetKind, Shape, cifar, idx, load_with};
use std::fmt;
use std::path::{Path, PathBuf};

/// What was found in a folder.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Info {
    /// The folder.
    pub dir: PathBuf,
    /// The data sets in it.
    pub found: Vec<Found>,
    /// Archives in it that [`download`](crate::download) would use, and the name to call it with.
    pub archives: Vec<(PathBuf, DatasetKind)>,
}

/// One data set that was found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Found {
    /// Which one.
    pub kind: DatasetKind,
    /// In which folder.
    pub at: PathBuf,
    /// Training images, as far as they could be read.
    pub train: usize,
    /// Test images.
    pub test: usize,
    /// The size of its images; of class folders, that of the first file.
    pub shape: Option<Shape>,
    /// How many classes there are.
    pub classes: u32,
    /// What is wrong, if anything.
    pub problem: Option<String>,
}

/// Finds the data sets in `dir`, and reads and checks them completely; class folders are only listed.
///
/// ```
/// let info = grawa_data::info(env!("CARGO_MANIFEST_DIR").as_ref())?;
/// assert!(info.to_string().contains("no data set"));
/// # Ok::<(), grawa_data::Error>(())
/// ```
pub fn info(dir: &Path) -> Result<Info> {
    if !dir.is_dir() {
        return Err(Error::Missing {
            path: dir.to_owned(),
            what: "data".to_owned(),
            expected: "a folder of this name".to_owned(),
            hint: "Give the folder in which the data sets lie".to_owned(),
        });
    }
    let mut found = Vec::new();
    for format in [&cifar::CIFAR10, &cifar::CIFAR100] {
        if let Some(at) = format.find(dir)? {
            found.push(look(format.kind, &at));
        }
    }
    let mut places = Vec::new();
    for format in [&idx::MNIST, &idx::FASHION] {
        // Files that lie in `dir` itself are found under both names.
        if let Some(at) = idx::find(format, dir)?.filter(|at| !places.contains(at)) {
            let kind = idx::which(&at).map_or(format.kind, |which| which.kind);
            found.push(look(kind, &at));
            places.push(at);
        }
    }
    if dir.join("train").is_dir() {
        found.push(look(DatasetKind::Folder, dir));
    }
    let archives =
        [&cifar::CIFAR10, &cifar::CIFAR100].map(|format| (dir.join(format.archive.0), format.kind));
    let archives = archives.into_iter().filter(|(path, _)| path.is_file()).collect();
    Ok(Info { dir: dir.to_owned(), found, archives })
}

fn look(kind: DatasetKind, at: &Path) -> Found {
    let say = |set: Option<&Dataset>, problem: Option<String>| Found {
        kind,
        at: at.to_owned(),
        train: set.map_or(0, |set| set.train.len()),
        test: set.map_or(0, |set| set.test.len()),
        shape: set.map(|set| set.train.shape()),
        classes: set.map_or(0, |set| set.classes),
        problem,
    };
    match load_with(kind.name(), at, Check::Official) {
        Ok(set) => say(Some(&set), None),
        // Not the official files, but perhaps files of their form.
        Err(error @ Error::WrongSum { .. }) => {
            say(load_with(kind.name(), at, Check::Skip).ok().as_ref(), Some(error.to_string()))
        }
        Err(error) => say(None, Some(error.to_string())),
    }
}

impl fmt::Display for Info {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let dir = self.dir.display();
        if self.found.is_empty() && self.archives.is_empty() {
            return write!(
                f,
                "{dir}: no data set found. Looked for {}, {}, the idx files of MNIST and Fashion-MNIST, and train/<class>/ with val/<class>/",
                cifar::CIFAR10.folder,
                cifar::CIFAR100.folder,
            );
        }
        let found = self.found.iter().map(ToString::to_string);
        let archives = self.archives.iter().map(|(path, kind)| {
            format!(
                "{}: the archive of {kind}; `grawa data get {kind} --dir {dir}` unpacks it",
                path.display()
            )
        });
        f.write_str(&found.chain(archives).collect::<Vec<_>>().join("\n"))
    }
}

impl fmt::Display for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} in {}", self.kind, self.at.display())?;
        if let Some(shape) = self.shape {
            let first = if self.kind == DatasetKind::Folder { " (the first; others may differ)" } else { "" };
            let (train, test, classes) = (self.train, self.test, self.classes);
            write!(f, ": {train} training and {test} test images of {shape}{first} in {classes} classes")?;
        }
        match &self.problem {
            Some(problem) => write!(f, "\n  problem: {problem}"),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::tests::png;
    use std::fs;

    #[test]
    fn says_what_is_there_and_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        assert!(info(dir.path()).unwrap().to_string().contains("no data set found"));
        assert!(info(&dir.path().join("nowhere")).unwrap_err().to_string().contains("nowhere"));

        let cifar = dir.path().join("cifar-100-binary");
        fs::create_dir(&cifar).unwrap();
        fs::write(cifar.join("train.bin"), [0; 3074 * 2]).unwrap();
        fs::write(cifar.join("test.bin"), [0; 3074]).unwrap();
        for name in ["train/a/x.png", "val/a/y.png"] {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, png(6, 5, png::ColorType::Grayscale, 1)).unwrap();
        }
        fs::write(dir.path().join("train-labels-idx1-ubyte"), b"cut").unwrap();
        fs::write(dir.path().join("cifar-10-binary.tar.gz"), b"...").unwrap();

        let info = info(dir.path()).unwrap();
        let kinds: Vec<_> = info.found.iter().map(|found| (found.kind, found.train, found.test)).collect();
        assert_eq!(
            kinds,
            [(DatasetKind::Cifar100, 2, 1), (DatasetKind::Mnist, 0, 0), (DatasetKind::Folder, 1, 1)]
        );
        let text = info.to_string();
        assert!(
            text.contains("2 training and 1 test images of 3×32×32 in 100 classes\n  problem: "),
            "{text}"
        );
        assert!(text.contains("folder in") && text.contains("3×5×6 (the first"), "{text}");
        assert!(text.contains("grawa data get cifar10"), "{text}");
    }
}
