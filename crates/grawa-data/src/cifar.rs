//! CIFAR-10 and CIFAR-100 from their official binary files.
//!
//! A file is a row of records without a header: the label (CIFAR-100: the coarse label, then the fine one,
//! which is the one used), then 3,072 bytes: the red plane of 32 rows of 32, the green, the blue. A file must have its
//! official md5, so nothing else about it is checked.

use crate::error::{Error, Result, io};
use crate::{Dataset, DatasetKind, Shape, Split, find_folder, md5};
use rayon::prelude::*;
use std::fs;
use std::path::{Path, PathBuf};

/// The format of CIFAR-10 or CIFAR-100.
#[derive(Clone, Copy)]
pub(crate) struct Format {
    pub(crate) kind: DatasetKind,
    pub(crate) title: &'static str,
    /// The official archive and its md5 sum.
    pub(crate) archive: (&'static str, &'static str),
    /// The folder inside it.
    pub(crate) folder: &'static str,
    /// Training files and their md5 sums.
    train: &'static [(&'static str, &'static str)],
    /// The test file and its md5 sum.
    test: (&'static str, &'static str),
    /// Bytes before the pixels; the last one is the label.
    labels: usize,
    classes: u32,
}

const SHAPE: Shape = Shape::new(3, 32, 32);

pub(crate) const CIFAR10: Format = Format {
    kind: DatasetKind::Cifar10,
    title: "CIFAR-10",
    archive: ("cifar-10-binary.tar.gz", "c32a1d4ab5d03f1284b67883e8d87530"),
    folder: "cifar-10-batches-bin",
    train: &[
        ("data_batch_1.bin", "5dd7e06a14cb22eb9f671a540d1b7c25"),
        ("data_batch_2.bin", "5ea93a67294ea407fff1d09f752e9692"),
        ("data_batch_3.bin", "942cd6a4bcdd0dd3c604fbe906cb4421"),
        ("data_batch_4.bin", "ae636b3ba5c66a11e91e8cb52e771fcb"),
        ("data_batch_5.bin", "53f37980c15c3d472c316c40844f3f0d"),
    ],
    test: ("test_batch.bin", "803d5f7f4d78ea53de84dbe85f74fb6d"),
    labels: 1,
    classes: 10,
};

pub(crate) const CIFAR100: Format = Format {
    kind: DatasetKind::Cifar100,
    title: "CIFAR-100",
    archive: ("cifar-100-binary.tar.gz", "03b5dce01913d631647c71ecec9e9cb8"),
    folder: "cifar-100-binary",
    train: &[("train.bin", "6172c7755cfe09b2fe270c85cebc1b15")],
    test: ("test.bin", "4499cfba6c016c1be1438163640a0898"),
    labels: 2,
    classes: 100,
};

const CIFAR10_NAMES: [&str; 10] =
    ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"];

/// The images and labels of files, one after the other.
fn parse(format: &Format, files: &[Vec<u8>]) -> (Vec<u8>, Vec<u32>) {
    let length = format.labels + SHAPE.len();
    let records = || files.iter().flat_map(|bytes| bytes.chunks_exact(length));
    let labels: Vec<u32> = records().map(|record| record[format.labels - 1].into()).collect();
    let mut images = vec![0; labels.len() * SHAPE.len()];
    let mut rest = &mut images[..];
    for bytes in files {
        let (here, after) = rest.split_at_mut(bytes.len() / length * SHAPE.len());
        let records = bytes.par_chunks_exact(length).map(|record| &record[format.labels..]);
        here.par_chunks_exact_mut(SHAPE.len())
            .zip(records)
            .for_each(|(image, pixels)| image.copy_from_slice(pixels));
        rest = after;
    }
    (images, labels)
}

impl Format {
    /// The names of its files.
    pub(crate) fn files(&self) -> Vec<&'static str> {
        self.train.iter().chain([&self.test]).map(|&(name, _)| name).collect()
    }

    /// The folder with the Python version of the set: pickled files, which are not read.
    pub(crate) fn find_pickled(&self, dir: &Path) -> Result<Option<PathBuf>> {
        let (folder, file) = match self.kind {
            DatasetKind::Cifar100 => ("cifar-100-python", "train"),
            _ => ("cifar-10-batches-py", "data_batch_1"),
        };
        // A folder of pictures may have a folder called `train`; only files count.
        let found = find_folder::find(dir, &[folder], &[file])?;
        Ok(found.filter(|at| at.join(file).is_file()))
    }

    /// What to do about the Python version.
    pub(crate) fn pickled(&self, at: &Path) -> String {
        let (archive, kind) = (self.archive.0, self.kind);
        format!(
            "{at:?} holds {} in its Python version (pickled), which is not read; `grawa data get {kind}` downloads the binary version, {archive}",
            self.title
        )
    }

    /// The folder that holds the files.
    pub(crate) fn find(&self, dir: &Path) -> Result<Option<PathBuf>> {
        find_folder::find(dir, &[self.folder], &self.files())
    }
}

/// Reads the set from `dir`, which holds its files or, at most two folders down, the folder that does. CIFAR-100 has its
/// 100 fine labels.
pub(crate) fn read(format: &Format, dir: &Path) -> Result<Dataset> {
    let missing = |at: &Path| {
        let what = format!("{} in its binary version", format.title);
        let expected = format!("{}, or the folder {} with them", format.files().join(", "), format.folder);
        let get = format!("`grawa data get {}` downloads it", format.kind);
        let hint = format!("{get}; the Python and Matlab versions are not read");
        Error::missing(at, &what, &expected, &hint)
    };
    let at = match (format.find(dir)?, format.find_pickled(dir)?) {
        (Some(at), _) => at,
        (None, Some(pickled)) => return Err(Error::File(format.pickled(&pickled))),
        (None, None) => return Err(missing(dir)),
    };
    let read = |(name, sum): &(&str, &str)| {
        let path = at.join(name);
        if !path.is_file() {
            return Err(missing(&at));
        }
        let bytes = fs::read(&path).map_err(io("read", &path))?;
        md5::check(&bytes, &path, &format!("{} file", format.title), sum, md5::GET_AGAIN)?;
        Ok(bytes)
    };
    // All at once: the md5 sums of 180 MB take a third of a second one after the other.
    let names: Vec<_> = format.train.iter().chain([&format.test]).collect();
    let files: Vec<Result<Vec<u8>>> = names.par_iter().map(|&file| read(file)).collect();
    let files: Vec<Vec<u8>> = files.into_iter().collect::<Result<_>>()?;
    let part = |files: &[Vec<u8>]| {
        let (images, labels) = parse(format, files);
        Split::from_bytes(SHAPE, images, labels, format.classes)
    };
    let (train, test) = files.split_at(format.train.len());
    let parts = [part(train)?, part(test)?];
    Ok(Dataset::of(format.kind, class_names(format, &at), format.classes, parts))
}

fn class_names(format: &Format, at: &Path) -> Vec<String> {
    if format.kind == DatasetKind::Cifar10 {
        return CIFAR10_NAMES.map(str::to_owned).to_vec();
    }
    // Names for reports: without the file, classes have numbers only.
    let text = fs::read_to_string(at.join("fine_label_names.txt")).unwrap_or_default();
    let names: Vec<String> =
        text.lines().map(str::trim).filter(|l| !l.is_empty()).map(str::to_owned).collect();
    if names.len() == format.classes as usize { names } else { Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `n` records whose labels and pixels follow from their number.
    fn records(format: &Format, n: usize) -> Vec<u8> {
        let mut bytes = Vec::new();
        for i in 0..n {
            if format.labels == 2 {
                bytes.push((i % 20) as u8);
            }
            bytes.push((i % format.classes as usize) as u8);
            bytes.extend((0..3072).map(|p| (p * 7 + i) as u8));
        }
        bytes
    }

    fn write(format: &Format, dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        for (name, _) in format.train {
            fs::write(dir.join(name), records(format, 4)).unwrap();
        }
        fs::write(dir.join(format.test.0), records(format, 3)).unwrap();
    }

    /// The format with the sums of the files that `write` leaves.
    fn own(format: &Format) -> Format {
        let sum = |n| -> &'static str { md5::of_bytes(&records(format, n)).leak() };
        let train: Vec<_> = format.train.iter().map(|&(name, _)| (name, sum(4))).collect();
        let test = (format.test.0, sum(3));
        Format { train: train.leak(), test, ..*format }
    }

    #[test]
    fn reads_both_sets_from_the_folder_or_above_it() {
        for format in [own(&CIFAR10), own(&CIFAR100)] {
            let dir = tempfile::tempdir().unwrap();
            let deep = dir.path().join("sets").join(format.folder);
            write(&format, &deep);
            for at in [dir.path(), &dir.path().join("sets"), &deep] {
                let set = read(&format, at).unwrap();
                assert_eq!((set.train.len(), set.test.len()), (4 * format.train.len(), 3));
                assert_eq!(set.train.labels()[..4], [0, 1, 2, 3]);
                assert_eq!(set.train.shape(), SHAPE);
                assert_eq!(set.test.bytes().unwrap()[3072..3075], [1, 8, 15]);
            }
        }
    }

    /// The files of PyTorch users: named as what they are, wherever they lie, and no hindrance beside the binary
    /// version.
    #[test]
    fn the_python_version_is_named() {
        for (format, folder, file) in
            [(&CIFAR10, "cifar-10-batches-py", "data_batch_1"), (&CIFAR100, "cifar-100-python", "train")]
        {
            let dir = tempfile::tempdir().unwrap();
            let deep = dir.path().join(folder);
            fs::create_dir_all(&deep).unwrap();
            fs::write(deep.join(file), b"pickled").unwrap();
            for at in [dir.path(), &deep] {
                let text = read(format, at).unwrap_err().to_string();
                let words = ["Python version (pickled)", format.archive.0, "grawa data get"];
                assert!(words.iter().all(|word| text.contains(word)), "{text}");
                let info = crate::info(at, &|_, _| ()).unwrap();
                assert!(
                    info.problems >= 1 && info.text.contains("Python version (pickled)"),
                    "{}",
                    info.text
                );
            }
            write(&own(format), dir.path());
            assert!(read(&own(format), dir.path()).is_ok());
        }
    }

    #[test]
    fn class_names_are_known() {
        let (format, dir) = (own(&CIFAR100), tempfile::tempdir().unwrap());
        write(&format, dir.path());
        assert!(read(&format, dir.path()).unwrap().class_names.is_empty());
        let names: String = (0..100).map(|i| format!("class{i}\n")).collect();
        fs::write(dir.path().join("fine_label_names.txt"), names).unwrap();
        assert_eq!(read(&format, dir.path()).unwrap().class_names[99], "class99");
    }

    #[test]
    fn bad_files_are_named_with_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        write(&CIFAR10, dir.path());
        let refused = |format: &Format| read(format, dir.path()).unwrap_err().to_string();
        let text = refused(&CIFAR10);
        assert!(
            text.contains("data_batch_1.bin") && text.contains("5dd7e06a14cb22eb9f671a540d1b7c25"),
            "{text}"
        );

        let (format, third) = (own(&CIFAR10), dir.path().join("data_batch_3.bin"));
        for bytes in [&records(&format, 4)[..3073 * 3 + 5], b""] {
            fs::write(&third, bytes).unwrap();
            let text = refused(&format);
            assert!(text.contains("data_batch_3.bin") && text.contains("damaged"), "{text}");
        }

        fs::remove_file(&third).unwrap();
        let text = refused(&format);
        assert!(text.contains("data_batch_3.bin") && text.contains("grawa data get cifar10"), "{text}");

        let text = read(&CIFAR10, &dir.path().join("nowhere")).unwrap_err().to_string();
        assert!(text.contains("nowhere") && text.contains("grawa data get cifar10"), "{text}");
    }
}
