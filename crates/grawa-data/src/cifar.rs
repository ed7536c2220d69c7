//! CIFAR-10 and CIFAR-100 from their official binary files.
//!
//! A file is a row of records without a header: the label (CIFAR-100: the coarse label, then the fine one,
//! which is the one used), then 3,072 bytes: the red plane of 32 rows of 32, the green, the blue.

use crate::error::{Error, Result, check_label, io};
use crate::{Check, Dataset, DatasetKind, Shape, Split, find_folder};
use std::fs;
use std::path::{Path, PathBuf};

/// The format of CIFAR-10 or CIFAR-100.
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

/// Appends the images and labels of one CIFAR-10 file; `path` is only used in errors.
pub fn parse_cifar10(bytes: &[u8], path: &Path, images: &mut Vec<u8>, labels: &mut Vec<u32>) -> Result<()> {
    parse(&CIFAR10, bytes, path, images, labels)
}

/// Appends the images and fine labels of one CIFAR-100 file; `path` is only used in errors.
pub fn parse_cifar100(bytes: &[u8], path: &Path, images: &mut Vec<u8>, labels: &mut Vec<u32>) -> Result<()> {
    parse(&CIFAR100, bytes, path, images, labels)
}

fn parse(
    format: &Format,
    bytes: &[u8],
    path: &Path,
    images: &mut Vec<u8>,
    labels: &mut Vec<u32>,
) -> Result<()> {
    let record = format.labels + SHAPE.len();
    if bytes.is_empty() || !bytes.len().is_multiple_of(record) {
        let expected = format!("a {} file is one or more whole records of {record} bytes", format.title);
        return Err(Error::wrong_length(path, bytes.len(), &expected));
    }
    // Everything is checked before anything is appended.
    for (number, record) in bytes.chunks_exact(record).enumerate() {
        // CIFAR-100's coarse label is not used, but a wrong one means that the file is not what it claims.
        let limits = if format.labels == 2 { [20, 100] } else { [format.classes, format.classes] };
        for (&label, &classes) in record[..format.labels].iter().zip(&limits) {
            check_label(path, number, label, classes)?;
        }
    }
    images.reserve(bytes.len() / record * SHAPE.len());
    for record in bytes.chunks_exact(record) {
        labels.push(record[format.labels - 1].into());
        images.extend_from_slice(&record[format.labels..]);
    }
    Ok(())
}

impl Format {
    /// The names of its files.
    pub(crate) fn files(&self) -> Vec<&'static str> {
        self.train.iter().chain([&self.test]).map(|&(name, _)| name).collect()
    }

    /// The folder that holds the files.
    pub(crate) fn find(&self, dir: &Path) -> Result<Option<PathBuf>> {
        find_folder::find(dir, &[self.folder], &self.files())
    }
}

/// Reads the set from `dir`, which holds its files or, at most two folders down, the folder that does. CIFAR-100 has its
/// 100 fine labels.
pub(crate) fn read(format: &Format, dir: &Path, check: Check) -> Result<Dataset> {
    let missing = |at: &Path| {
        let what = format!("{} in its binary version", format.title);
        let expected = format!("{}, or the folder {} with them", format.files().join(", "), format.folder);
        let get = format!("`grawa data get {}` downloads it", format.kind);
        let hint = format!("{get}; the Python and Matlab versions are not read");
        Error::missing(at, &what, &expected, &hint)
    };
    let at = format.find(dir)?.ok_or_else(|| missing(dir))?;
    let part = |files: &[(&str, &str)]| {
        let (mut images, mut labels) = (Vec::new(), Vec::new());
        for (name, md5) in files {
            let path = at.join(name);
            if !path.is_file() {
                return Err(missing(&at));
            }
            let bytes = fs::read(&path).map_err(io("read", &path))?;
            parse(format, &bytes, &path, &mut images, &mut labels)?;
            check.verify(&path, &format!("{} file", format.title), &bytes, md5)?;
        }
        Split::from_bytes(SHAPE, images, labels, format.classes)
    };
    let parts = [part(format.train)?, part(&[format.test])?];
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
    use proptest::prelude::*;

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

    #[test]
    fn reads_both_sets_from_the_folder_or_above_it() {
        for format in [&CIFAR10, &CIFAR100] {
            let dir = tempfile::tempdir().unwrap();
            let deep = dir.path().join("sets").join(format.folder);
            write(format, &deep);
            for at in [dir.path(), &dir.path().join("sets"), &deep] {
                let set = read(format, at, Check::Skip).unwrap();
                assert_eq!((set.train.len(), set.test.len()), (4 * format.train.len(), 3));
                assert_eq!(set.train.labels()[..4], [0, 1, 2, 3]);
                assert_eq!(set.train.shape(), SHAPE);
                assert_eq!(set.test.bytes().unwrap()[3072..3075], [1, 8, 15]);
            }
        }
    }

    #[test]
    fn class_names_are_known() {
        let dir = tempfile::tempdir().unwrap();
        write(&CIFAR100, dir.path());
        assert!(read(&CIFAR100, dir.path(), Check::Skip).unwrap().class_names.is_empty());
        let names: String = (0..100).map(|i| format!("class{i}\n")).collect();
        fs::write(dir.path().join("fine_label_names.txt"), names).unwrap();
        assert_eq!(read(&CIFAR100, dir.path(), Check::Skip).unwrap().class_names[99], "class99");
    }

    #[test]
    fn bad_files_are_named_with_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        write(&CIFAR10, dir.path());
        let refused = |check| read(&CIFAR10, dir.path(), check).unwrap_err().to_string();

        let text = refused(Check::Official);
        assert!(
            text.contains("data_batch_1.bin") && text.contains("5dd7e06a14cb22eb9f671a540d1b7c25"),
            "{text}"
        );

        let third = dir.path().join("data_batch_3.bin");
        fs::write(&third, &records(&CIFAR10, 4)[..3073 * 3 + 5]).unwrap();
        let text = refused(Check::Skip);
        assert!(
            text.contains("data_batch_3.bin") && text.contains("9224 bytes") && text.contains("3073"),
            "{text}"
        );

        fs::write(&third, b"").unwrap();
        assert!(refused(Check::Skip).contains("0 bytes"));

        let mut wrong = records(&CIFAR10, 4);
        wrong[3073 * 2] = 10;
        fs::write(&third, wrong).unwrap();
        let text = refused(Check::Skip);
        assert!(text.contains("record 2 has label 10") && text.contains("0 to 9"), "{text}");

        fs::remove_file(&third).unwrap();
        let text = refused(Check::Skip);
        assert!(text.contains("data_batch_3.bin") && text.contains("grawa data get cifar10"), "{text}");

        let text = read(&CIFAR10, &dir.path().join("nowhere"), Check::Skip).unwrap_err().to_string();
        assert!(text.contains("nowhere") && text.contains("cifar-10-batches-bin"), "{text}");
    }

    #[test]
    fn a_wrong_coarse_label_betrays_another_file() {
        let mut bytes = records(&CIFAR100, 2);
        bytes[3074] = 20;
        let error = parse_cifar100(&bytes, Path::new("train.bin"), &mut vec![], &mut vec![]).unwrap_err();
        let text = error.to_string();
        assert!(text.contains("record 1 has label 20, but labels go from 0 to 19"), "{text}");
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn any_bytes_are_read_or_refused(
            n in 0usize..3,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..8),
            cut in 0usize..4,
        ) {
            let mut bytes = records(&CIFAR10, n);
            for (at, byte) in changes {
                if !bytes.is_empty() {
                    let at = at.index(bytes.len());
                    bytes[at] = byte;
                }
            }
            bytes.truncate(bytes.len() - cut.min(bytes.len()));
            let (mut images, mut labels) = (vec![], vec![]);
            match parse_cifar10(&bytes, Path::new("x"), &mut images, &mut labels) {
                Ok(()) => prop_assert!(images.len() == n * 3072 && labels.iter().all(|&l| l < 10)),
                Err(_) => prop_assert!(images.is_empty() && labels.is_empty()),
            }
        }
    }
}
