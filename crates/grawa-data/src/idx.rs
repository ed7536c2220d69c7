//! MNIST and Fashion-MNIST from their idx files, plain or gzipped.
//!
//! An idx file is two zero bytes, the type (8 = bytes), the number of dimensions, each dimension as four
//! bytes with the highest first, then the values. Both sets use the same file names; only the
//! contents differ. A file must have its official md5, so nothing else about it is checked.

use crate::error::{Error, Result, io};
use crate::{Dataset, DatasetKind, Shape, Split, find_folder, md5};
use flate2::read::GzDecoder;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

/// One of the two sets.
#[derive(Clone, Copy)]
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

const SHAPE: Shape = Shape::new(1, 28, 28);

/// The length of the header of a file of images, and of one of labels.
const HEADERS: [usize; 2] = [16, 8];

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

/// What a gzipped file holds, or the bytes themselves if it is not gzipped.
fn unzip(bytes: Vec<u8>, path: &Path) -> Result<Vec<u8>> {
    if !bytes.starts_with(&[0x1f, 0x8b]) {
        return Ok(bytes);
    }
    let mut plain = Vec::new();
    GzDecoder::new(&*bytes).read_to_end(&mut plain).map_err(io("unpack", path))?;
    Ok(plain)
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
    let found = md5::of_bytes(&unzip(bytes, &path).ok()?);
    [&MNIST, &FASHION].into_iter().find(|format| format.md5[1] == found)
}

/// Reads the set from `dir`, which holds `train-images-idx3-ubyte` and so on, plain or `.gz`, or a folder such as `mnist` or
/// `MNIST/raw` that does.
pub(crate) fn read(format: &Format, dir: &Path) -> Result<Dataset> {
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
    // The values of a file, after its header.
    let file = |number: usize| {
        let path = spelled(&at, FILES[number]).ok_or_else(|| missing(&at))?;
        let mut bytes = unzip(fs::read(&path).map_err(io("read", &path))?, &path)?;
        let what = format!("{} file", format.title);
        md5::check(&bytes, &path, &what, format.md5[number], md5::GET_AGAIN)?;
        bytes.drain(..HEADERS[number % 2]);
        Ok::<_, Error>(bytes)
    };
    let part = |first: usize| {
        let (pixels, labels) = (file(first)?, file(first + 1)?);
        Split::from_bytes(SHAPE, pixels, labels.into_iter().map(u32::from).collect(), CLASSES)
    };
    let class_names = format.class_names.iter().map(ToString::to_string).collect();
    Ok(Dataset::of(format.kind, class_names, CLASSES, [part(0)?, part(2)?]))
}

#[cfg(test)]
mod tests {
    use super::*;
    use flate2::{Compression, write::GzEncoder};
    use std::io::Write;

    fn images(n: u32) -> Vec<u8> {
        let mut bytes = vec![0, 0, 8, 3];
        for dim in [n, 28, 28] {
            bytes.extend(dim.to_be_bytes());
        }
        bytes.extend((0..n * 28 * 28).map(|i| i as u8));
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
        fs::write(dir.join(FILES[0]), images(12)).unwrap();
        fs::write(dir.join("train-labels.idx1-ubyte"), labels(12)).unwrap();
        fs::write(dir.join(format!("{}.gz", FILES[2])), zipped(&images(4))).unwrap();
        fs::write(dir.join(format!("{}.gz", FILES[3])), zipped(&labels(4))).unwrap();
    }

    /// The format with the sums of the files that `write` leaves.
    fn own(format: &Format) -> Format {
        let files = [images(12), labels(12), images(4), labels(4)];
        Format { md5: files.map(|bytes| &*md5::of_bytes(&bytes).leak()), ..*format }
    }

    #[test]
    fn reads_plain_and_zipped_files() {
        let dir = tempfile::tempdir().unwrap();
        write(&dir.path().join("MNIST").join("raw"));
        let set = read(&own(&MNIST), dir.path()).unwrap();
        assert_eq!((set.train.len(), set.test.len(), set.classes), (12, 4, 10));
        assert_eq!(set.train.shape(), SHAPE);
        assert_eq!(set.test.bytes().unwrap()[25..28], [25, 26, 27]);
        assert_eq!(set.test.labels(), [0, 1, 2, 3]);
        assert!(read(&own(&FASHION), dir.path()).is_err(), "the folder is called MNIST");
    }

    #[test]
    fn bad_files_are_named_with_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        let refused = |format: &Format| read(format, dir.path()).unwrap_err().to_string();
        assert!(refused(&FASHION).contains("holds no Fashion-MNIST"));
        write(dir.path());
        assert!(refused(&FASHION).contains("f4a8712d7a061bf5bd6d2ca38dc4d50a"));

        let train = dir.path().join(FILES[0]);
        for bytes in [&images(12)[..100], &labels(12), b""] {
            fs::write(&train, bytes).unwrap();
            let text = refused(&own(&FASHION));
            assert!(text.contains(FILES[0]) && text.contains("damaged"), "{text}");
        }
        fs::write(&train, &zipped(&images(12))[..60]).unwrap();
        let text = refused(&own(&FASHION));
        assert!(text.contains("cannot unpack") && text.contains(FILES[0]), "{text}");
    }
}
