//! MNIST and Fashion-MNIST from their idx files, plain or gzipped.
//!
//! An idx file is two zero bytes, the type (8 = bytes), the number of dimensions, each dimension as four
//! bytes with the highest first, then the values. Both sets use the same file names; only the
//! contents differ.

use crate::error::{Error, Result, check_labels, io};
use crate::{Check, Dataset, DatasetKind, Shape, Split, find_folder, md5};
use flate2::read::GzDecoder;
use std::borrow::Cow;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// One of the two sets.
pub(crate) struct Format {
    pub(crate) kind: DatasetKind,
    title: &'static str,
    folders: &'static [&'static str],
    /// Without names, classes are called by their numbers.
    class_names: &'static [&'static str],
    /// The md5 of each of [`FILES`], unpacked.
    md5: [&'static str; 4],
}

/// Training images and labels, test images and labels.
const FILES: [&str; 4] = [
    "train-images-idx3-ubyte",
    "train-labels-idx1-ubyte",
    "t10k-images-idx3-ubyte",
    "t10k-labels-idx1-ubyte",
];

const CLASSES: u32 = 10;

/// The limit of an unpacked file: ten times the largest official one.
const LARGEST: u64 = 512 << 20;

pub(crate) const MNIST: Format = Format {
    kind: DatasetKind::Mnist,
    title: "MNIST",
    folders: &["mnist", "MNIST"],
    class_names: &[],
    md5: [
        "6bbc9ace898e44ae57da46a324031adb",
        "a25bea736e30d166cdddb491f175f624",
        "2646ac647ad5339dbf082846283269ea",
        "27ae3e4e09519cfbb04c329615203637",
    ],
};

pub(crate) const FASHION: Format = Format {
    kind: DatasetKind::FashionMnist,
    title: "Fashion-MNIST",
    folders: &["fashion-mnist", "FashionMNIST", "fashion"],
    class_names: &[
        "T-shirt/top",
        "trouser",
        "pullover",
        "dress",
        "coat",
        "sandal",
        "shirt",
        "sneaker",
        "bag",
        "ankle boot",
    ],
    md5: [
        "f4a8712d7a061bf5bd6d2ca38dc4d50a",
        "9018921c3c673c538a1fc5bad174d6f9",
        "8181f5470baa50b63fa0f6fddb340f0a",
        "15d484375f8d13e6eb1aabb0c3f46965",
    ],
};

/// The shape and the bytes of an idx file of images; `path` is only for the words of an error.
pub fn parse_idx_images<'a>(bytes: &'a [u8], path: &Path) -> Result<(Shape, &'a [u8])> {
    let ([_, height, width], values) = parse::<3>(bytes, path, "images")?;
    if height == 0 || width == 0 || height > 1 << 14 || width > 1 << 14 {
        let found = format!("images of {height}×{width}");
        return Err(Error::wrong_format(path, found, "sides from 1 to 16384"));
    }
    Ok((Shape::new(1, height, width), values))
}

/// The labels of an idx file, each below `classes`; `path` is only for the words of an error.
pub fn parse_idx_labels<'a>(bytes: &'a [u8], path: &Path, classes: u32) -> Result<&'a [u8]> {
    let (_, labels) = parse::<1>(bytes, path, "labels")?;
    check_labels(path, labels, classes)?;
    Ok(labels)
}

/// What a gzipped file holds, or the bytes themselves if it is not gzipped; `path` is only for the words of
/// an error.
pub fn unzip<'a>(bytes: &'a [u8], path: &Path) -> Result<Cow<'a, [u8]>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(Cow::Borrowed(bytes));
    }
    let expected = format!("an intact gzip file of at most {LARGEST} bytes unpacked");
    let wrong = |found: &str| Error::wrong_format(path, found, &*expected);
    let mut plain = Vec::new();
    let mut reader = GzDecoder::new(bytes).take(LARGEST + 1);
    reader.read_to_end(&mut plain).map_err(|e| wrong(&format!("a gzip file that does not unpack ({e})")))?;
    if plain.len() as u64 > LARGEST {
        return Err(wrong("more"));
    }
    Ok(Cow::Owned(plain))
}

/// The dimensions and values of an idx file with `N` dimensions.
fn parse<'a, const N: usize>(bytes: &'a [u8], path: &Path, what: &str) -> Result<([u32; N], &'a [u8])> {
    let magic = [0, 0, 8, N as u8];
    let start = 4 + 4 * N;
    if bytes.len() < start || bytes[..4] != magic {
        let found =
            format!("a file of {} bytes that begins with {:02x?}", bytes.len(), &bytes[..bytes.len().min(4)]);
        let expected = format!("an idx file of {what}, which begins with {magic:02x?} and {N} dimension(s)");
        return Err(Error::wrong_format(path, found, expected));
    }
    let (fours, _) = bytes[4..start].as_chunks::<4>();
    let dims: [u32; N] = std::array::from_fn(|dim| u32::from_be_bytes(fours[dim]));
    // A hostile header may claim anything: the product is taken in 128 bits and nothing is allocated for it.
    let needed = start as u128 + dims.iter().map(|&dim| u128::from(dim)).product::<u128>();
    if bytes.len() as u128 != needed {
        let expected = format!("its header promises {dims:?} {what}, {needed} bytes in all");
        return Err(Error::wrong_length(path, bytes.len(), &expected));
    }
    Ok((dims, &bytes[start..]))
}

/// The names a file may have.
fn spellings(name: &str) -> [String; 4] {
    // Some unpackers turn the last dash but one into a dot.
    let dotted = name.replace("-idx", ".idx");
    [name.to_owned(), format!("{name}.gz"), dotted.clone(), format!("{dotted}.gz")]
}

fn spelled(at: &Path, name: &str) -> Option<PathBuf> {
    spellings(name).iter().map(|name| at.join(name)).find(|path| path.is_file())
}

/// The folder that holds the files: `dir`, or one below by the set's name, or that one's `raw`.
pub(crate) fn find(format: &Format, dir: &Path) -> Result<Option<PathBuf>> {
    let names: Vec<String> = FILES.iter().flat_map(|name| spellings(name)).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let Some(at) = find_folder::find(dir, format.folders, &names)? else { return Ok(None) };
    let raw = at.join("raw");
    Ok(Some(if raw.is_dir() { raw } else { at }))
}

/// Which of the two sets lies in `at`, by its training labels.
pub(crate) fn which(at: &Path) -> Option<&'static Format> {
    let path = spelled(at, FILES[1])?;
    let bytes = fs::read(&path).ok()?;
    let found = md5::of_bytes(&unzip(&bytes, &path).ok()?);
    [&MNIST, &FASHION].into_iter().find(|format| format.md5[1] == found)
}

/// Reads the set from `dir`, which holds `train-images-idx3-ubyte` and so on, plain or `.gz`, or a folder such as `mnist` or
/// `MNIST/raw` that does.
pub(crate) fn read(format: &Format, dir: &Path, check: Check) -> Result<Dataset> {
    let missing = |at: &Path| {
        let (files, folder) = (FILES.join(", "), format.folders[0]);
        let expected = format!("{files} (each also .gz), or a folder {folder} with them");
        Error::missing(at, format.title, &expected, "Put the four idx files there")
    };
    let at = find(format, dir)?.ok_or_else(|| missing(dir))?;
    if let Some(other) = which(&at).filter(|other| other.kind != format.kind) {
        let found = format!("the files of {}", other.title);
        return Err(Error::wrong_format(&at, found, format!("those of {}", format.title)));
    }
    let file = |number: usize| {
        let path = spelled(&at, FILES[number]).ok_or_else(|| missing(&at))?;
        let bytes = fs::read(&path).map_err(io("read", &path))?;
        let bytes = match unzip(&bytes, &path)? {
            Cow::Owned(plain) => plain,
            Cow::Borrowed(_) => bytes,
        };
        check.verify(&path, &format!("{} file", format.title), &bytes, format.md5[number])?;
        Ok::<_, Error>((path, bytes))
    };
    let part = |first: usize| {
        let ((path, images), (labels_path, labels)) = (file(first)?, file(first + 1)?);
        let (shape, pixels) = parse_idx_images(&images, &path)?;
        let labels = parse_idx_labels(&labels, &labels_path, CLASSES)?;
        let count = pixels.len() / shape.len();
        if labels.is_empty() || count != labels.len() {
            let expected = format!("one or more, one for each of the {count} images");
            return Err(Error::wrong_format(&labels_path, format!("{} labels", labels.len()), expected));
        }
        let start = images.len() - pixels.len();
        let mut pixels = images;
        pixels.drain(..start);
        Split::from_bytes(shape, pixels, labels.iter().map(|&label| label.into()).collect(), CLASSES)
    };
    let (train, test) = (part(0)?, part(2)?);
    if train.shape() != test.shape() {
        let found = format!("test images of {}", test.shape());
        return Err(Error::wrong_format(&at, found, format!("{} as in training", train.shape())));
    }
    let class_names = format.class_names.iter().map(ToString::to_string).collect();
    Ok(Dataset::of(format.kind, class_names, CLASSES, [train, test]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use proptest::prelude::*;
    use std::io::Write;

    fn images(n: u32, side: u32) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, 3];
        for dim in [n, side, side] {
            bytes.extend(dim.to_be_bytes());
        }
        bytes.extend((0..n * side * side).map(|i| i as u8));
        bytes
    }

    fn labels(n: u32) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, 1];
        bytes.extend(n.to_be_bytes());
        bytes.extend((0..n).map(|i| (i % 10) as u8));
        bytes
    }

    fn zipped(bytes: &[u8]) -> Vec<u8> {
        let mut to = GzEncoder::new(Vec::new(), Compression::default());
        to.write_all(bytes).unwrap();
        to.finish().unwrap()
    }

    fn write(dir: &Path) {
        fs::create_dir_all(dir).unwrap();
        fs::write(dir.join(FILES[0]), images(12, 5)).unwrap();
        fs::write(dir.join("train-labels.idx1-ubyte"), labels(12)).unwrap();
        fs::write(dir.join(format!("{}.gz", FILES[2])), zipped(&images(4, 5))).unwrap();
        fs::write(dir.join(format!("{}.gz", FILES[3])), zipped(&labels(4))).unwrap();
    }

    #[test]
    fn reads_plain_and_zipped_files() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("MNIST").join("raw"));
        let set = read(&MNIST, dir.path(), Check::Skip).unwrap();
        assert_eq!((set.train.len(), set.test.len(), set.classes), (12, 4, 10));
        assert_eq!(set.train.shape(), Shape::new(1, 5, 5));
        assert_eq!(set.test.bytes().unwrap()[25..28], [25, 26, 27]);
        assert_eq!(set.test.labels(), [0, 1, 2, 3]);
        assert!(read(&FASHION, dir.path(), Check::Skip).is_err(), "the folder is called MNIST");
    }

    #[test]
    fn bad_files_are_named_with_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |check| read(&FASHION, dir.path(), check).unwrap_err().to_string();
        assert!(refused(Check::Skip).contains("holds no Fashion-MNIST"));
        write(dir.path());
        assert!(refused(Check::Official).contains("f4a8712d7a061bf5bd6d2ca38dc4d50a"));
        let train = dir.path().join(FILES[0]);

        fs::write(&train, &images(12, 5)[..100]).unwrap();
        let text = refused(Check::Skip);
        assert!(
            text.contains(FILES[0]) && text.contains("100 bytes") && text.contains("316 bytes in all"),
            "{text}"
        );

        fs::write(&train, labels(12)).unwrap();
        assert!(refused(Check::Skip).contains("expected an idx file of images"));

        fs::write(&train, images(11, 5)).unwrap();
        let text = refused(Check::Skip);
        assert!(text.contains("12 labels") && text.contains("11 images"), "{text}");

        fs::write(&train, images(12, 6)).unwrap();
        assert!(refused(Check::Skip).contains("1×6×6"));

        let mut cut = zipped(&images(12, 5));
        cut.truncate(60);
        fs::write(&train, cut).unwrap();
        assert!(refused(Check::Skip).contains("does not unpack"));

        fs::write(&train, images(12, 5)).unwrap();
        let mut wrong = labels(12);
        wrong[8 + 7] = 77;
        fs::write(dir.path().join("train-labels.idx1-ubyte"), wrong).unwrap();
        let text = refused(Check::Skip);
        assert!(text.contains("record 7 has label 77"), "{text}");
    }

    #[test]
    fn a_header_that_promises_the_world_costs_nothing() {
        let mut bytes = vec![0, 0, 8, 3];
        bytes.extend([0xff; 12]);
        let text = parse_idx_images(&bytes, Path::new("x")).unwrap_err().to_string();
        assert!(text.contains("16 bytes long"), "{text}");
        let mut bytes = vec![0, 0, 8, 3];
        bytes.extend([[0; 4], [0xff; 4], [0xff; 4]].concat());
        assert!(parse_idx_images(&bytes, Path::new("x")).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut: prop::sample::Index,
            zip: bool,
        ) {
            let mut bytes = if zip { zipped(&images(3, 4)) } else { images(3, 4) };
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - cut.index(bytes.len()) / 4);
            if let Ok(plain) = unzip(&bytes, Path::new("x"))
                && let Ok((shape, pixels)) = parse_idx_images(&plain, Path::new("x"))
            {
                prop_assert_eq!(pixels.len() % shape.len(), 0);
            }
            let _ = parse_idx_labels(&bytes, Path::new("x"), 10);
        }

        #[test]
        fn random_bytes_are_refused(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = unzip(&bytes, Path::new("x"));
            let _ = parse_idx_images(&bytes, Path::new("x"));
            let _ = parse_idx_labels(&bytes, Path::new("x"), 10);
        }
    }
}
