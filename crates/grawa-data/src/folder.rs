//! Class folders of pictures, as ImageNet has them: `train/<class>/*.JPEG`, `val/<class>/*.JPEG`; or without `val`, split by a seed.
//!
//! The folders are listed sorted by name, so the numbers of classes and pictures do not depend on the file system. A
//! picture is decoded when a batch needs it, or once, shrunk, into memory.

use crate::error::{Error, Result, io};
use crate::picture::{self, Picture};
use crate::{Dataset, DatasetKind, Images, Shape, Split, find_folder};
use fast_image_resize::Resizer;
use grawa_core::{Key, Purpose};
use rayon::prelude::*;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How class folders are read.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Reading {
    /// The share of each class that is for testing, where there is no folder `val` or `test`; 0 if there must be one.
    pub split_test: f64,
    /// What the split is drawn from.
    pub seed: u64,
    /// Pictures are decoded once and kept in memory, those with a longer shorter side shrunk to this; 0: decoded when needed.
    pub shrink: u32,
}

/// The worker number of the split's draws. No worker has it; [`Split::hold_out`] has the one after.
const SPLIT: u32 = u32::MAX - 1;

/// The files of a folder of pictures: training first, then testing.
pub(crate) struct Listed {
    pub(crate) names: Vec<OsString>,
    pub(crate) parts: [(Vec<PathBuf>, Vec<u32>); 2],
    /// Whether the folder itself says which pictures are for testing.
    pub(crate) is_split: bool,
    /// The folders that hold class folders.
    roots: Vec<PathBuf>,
}

/// Reads the pictures below `dir`: `train/<class>/…`, and `val/<class>/…` or `test/<class>/…`; or `<class>/…`, or `train/<class>/…`
/// alone, which are split. `progress` is told how many of how many pictures are decoded.
///
/// The classes are the folders in the order of their names; files that are not called .jpg, .jpeg or .png are left out.
///
/// If something is wrong, everything that is wrong is named.
pub fn folder(dir: &Path, reading: &Reading, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Dataset> {
    read_folder(dir, reading, progress).map_err(|error| every_problem(dir, reading, error))
}

fn read_folder(dir: &Path, reading: &Reading, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Dataset> {
    let Listed { names, parts, .. } = list(dir, reading)?;
    let (count, all) = (names.len() as u32, parts.iter().map(|(files, _)| files.len()).sum());
    let (done, largest) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let split = |(files, labels): (Vec<PathBuf>, Vec<u32>)| {
        let (height, width) = picture::size(&read(&files[0])?, &files[0])?;
        largest.fetch_max(3 * height as usize * width as usize, Ordering::Relaxed);
        let images = match reading.shrink {
            0 => Images::Files(Arc::new(files)),
            side => {
                let decode = |resizer: &mut Resizer, path: PathBuf| {
                    let picture = picture::decode(&read(&path)?, &path)?;
                    largest.fetch_max(picture.pixels.len(), Ordering::Relaxed);
                    let picture = picture.shrunk(side, resizer)?;
                    progress(done.fetch_add(1, Ordering::Relaxed) + 1, all);
                    Ok((path, picture))
                };
                let pictures = files.into_par_iter().map_init(Resizer::new, decode);
                Images::Pictures(Arc::new(pictures.collect::<Result<Vec<(PathBuf, Picture)>>>()?))
            }
        };
        let shape = match &images {
            Images::Pictures(pictures) => pictures[0].1.shape(),
            _ => Shape::new(3, height, width),
        };
        Ok(Split::new(shape, images, labels, count)?.with_largest(largest.load(Ordering::Relaxed)))
    };
    let [train, test] = parts;
    let class_names = names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    Ok(Dataset::of(DatasetKind::Folder, class_names, count, [split(train)?, split(test)?]))
}

/// Lists the pictures below `dir`. Neither part is empty. If several things are wrong the error has the first; see
/// [`every_problem`].
pub(crate) fn list(dir: &Path, reading: &Reading) -> Result<Listed> {
    let (listed, mut problems) = look(dir, reading)?;
    if problems.is_empty() { Ok(listed) } else { Err(problems.swap_remove(0)) }
}

/// At most so many problems are named.
const NAMED: usize = 20;

/// An error with everything that is wrong below `dir`, where more than one thing is: all class folders are looked at,
/// and all pictures decoded. `first` is what was found first.
pub(crate) fn every_problem(dir: &Path, reading: &Reading, first: Error) -> Error {
    let Ok((listed, mut problems)) = look(dir, reading) else { return first };
    let files: Vec<&PathBuf> = listed.parts.iter().flat_map(|(files, _)| files).collect();
    problems.extend(crate::check_pictures(&files, &|| ()).into_iter().filter_map(Result::err));
    if problems.len() < 2 {
        return first;
    }
    let lines =
        problems.iter().take(NAMED).map(|problem| format!("\n  problem: {problem}")).collect::<String>();
    let more = match problems.len().saturating_sub(NAMED) {
        0 => String::new(),
        more => format!("\n  and {more} more"),
    };
    Error::File(format!(
        "{dir:?} has {} problems; mend them, and see with `grawa data info` what is left:{lines}{more}",
        problems.len()
    ))
}

/// Lists the pictures below `dir`, and what is wrong with the class folders. An error where there are no class folders
/// to look at.
pub(crate) fn look(dir: &Path, reading: &Reading) -> Result<(Listed, Vec<Error>)> {
    let mut problems = Vec::new();
    let missing = |expected, hint| Err(Error::missing(dir, "class folders of pictures", expected, hint));
    if !dir.is_dir() {
        return missing("a folder of this name", "Give the folder that holds the class folders: --dir DIR");
    }
    let train_dir = dir.join("train");
    let test_dir = [dir.join("val"), dir.join("test")].into_iter().find(|path| path.is_dir());
    let train_dir = match (train_dir.is_dir(), &test_dir) {
        (true, _) => train_dir,
        (false, None) => dir.to_owned(),
        (false, Some(_)) => return missing("a folder train beside it", "Give the folder that holds both"),
    };
    let classes = find_folder::subfolders(&train_dir)?;
    if classes.is_empty() {
        return missing(
            "<class>/*.jpg or train/<class>/*.jpg",
            "Put each class's pictures in a folder of its own",
        );
    }
    let names: Vec<OsString> =
        classes.iter().filter_map(|path| path.file_name().map(OsStr::to_owned)).collect();
    let mut part =
        |at: &Path, folders: Vec<PathBuf>, may_be_empty: bool| -> Result<(Vec<PathBuf>, Vec<u32>)> {
            let (mut files, mut labels) = (Vec::new(), Vec::new());
            for folder in folders {
                let Ok(class) = names
                    .binary_search_by(|name| name.as_os_str().cmp(folder.file_name().unwrap_or_default()))
                else {
                    let found = "a class folder that is not in train";
                    let expected =
                        "the classes of train: move it away, or put pictures to train on into train";
                    problems.push(Error::wrong_format(&folder, found, expected));
                    continue;
                };
                let pictures = pictures(&folder)?;
                if pictures.is_empty() && !may_be_empty {
                    let expected =
                        "one or more files called .jpg, .jpeg or .png: put some there, or remove the folder";
                    problems.push(Error::wrong_format(&folder, "no picture in this class folder", expected));
                }
                labels.resize(labels.len() + pictures.len(), class as u32);
                files.extend(pictures);
            }
            if files.is_empty() {
                let expected = "class folders with files called .jpg, .jpeg or .png";
                problems.push(Error::wrong_format(at, "no picture at all", expected));
            }
            Ok((files, labels))
        };
    let all = part(&train_dir, classes, false)?;
    let parts = match &test_dir {
        Some(test_dir) => [all, part(test_dir, find_folder::subfolders(test_dir)?, true)?],
        None if reading.split_test > 0.0 => divide(all, reading, &mut problems),
        None => {
            let hint =
                "Give the folder that holds both, or let a fifth be for testing: --set data.split_test=0.2";
            return missing("folders train and val (or test)", hint);
        }
    };
    let (is_split, roots) = (test_dir.is_some(), [Some(train_dir), test_dir].into_iter().flatten().collect());
    Ok((Listed { names, parts, is_split, roots }, problems))
}

/// Pictures in formats that are not read.
const OTHERS: [&str; 8] = ["webp", "gif", "bmp", "tif", "tiff", "avif", "heic", "heif"];

/// What is probably not meant by the class folders below `dir`, though they can be read: pictures that are left out, a single class,
/// classes without test pictures. Each with a number and an example.
pub fn folder_warnings(dir: &Path, reading: &Reading) -> Result<Vec<String>> {
    let listed = list(dir, reading)?;
    let (mut others, mut nested, mut found) = (Vec::new(), Vec::new(), Vec::new());
    for root in &listed.roots {
        for class in find_folder::subfolders(root)? {
            for path in find_folder::visible(&class)? {
                if has_extension(&path, &OTHERS) {
                    others.push(path);
                } else if path.is_dir() {
                    // A folder that cannot be listed has no pictures for us.
                    nested.extend(pictures(&path).unwrap_or_default());
                }
            }
        }
    }
    if let Some(first) = others.first() {
        found.push(format!(
            "{} skipped (not JPEG or PNG), such as {first:?}. Convert them",
            counted(others.len(), "file")
        ));
    }
    if let Some(first) = nested.first() {
        found.push(format!(
            "{} skipped (in folders inside a class folder), such as {first:?}. Move them up",
            counted(nested.len(), "picture")
        ));
    }
    if let [only] = listed.names.as_slice() {
        found.push(format!(
            "there is only one class, {only:?}: every answer is right. Put the pictures of each class into a folder of its own"
        ));
    }
    let mut is_tested = vec![false; listed.names.len()];
    listed.parts[1].1.iter().for_each(|&label| is_tested[label as usize] = true);
    let untested: Vec<_> = listed.names.iter().zip(is_tested).filter(|(_, tested)| !tested).collect();
    if let Some((first, _)) = untested.first() {
        let (count, all) = (untested.len(), listed.names.len());
        found.push(format!(
            "{count} of {all} classes have no test pictures, such as {first:?}: the test error does not include them"
        ));
    }
    Ok(found)
}

fn counted(count: usize, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{count} {noun}{plural}")
}

/// Divides every class by the seed; each part has at least one picture of it, or that is a problem.
fn divide(
    (files, labels): (Vec<PathBuf>, Vec<u32>),
    reading: &Reading,
    problems: &mut Vec<Error>,
) -> [(Vec<PathBuf>, Vec<u32>); 2] {
    let mut is_test = vec![false; files.len()];
    let mut first = 0;
    for class in labels.chunk_by(|a, b| a == b) {
        let (count, label) = (class.len(), class[0]);
        if count < 2 {
            let expected = "two or more in each class: one to train on, one to test on";
            problems.push(Error::wrong_format(&files[first], "the only picture of its class", expected));
            first += count;
            continue;
        }
        let tests = ((count as f64 * reading.split_test).round() as usize).clamp(1, count - 1);
        let order = Key::new(reading.seed, Purpose::Shuffle).worker(SPLIT).step(label.into());
        for place in &order.permutation(count as u32)[..tests] {
            is_test[first + *place as usize] = true;
        }
        first += count;
    }
    let mut parts = [(Vec::new(), Vec::new()), (Vec::new(), Vec::new())];
    for ((file, label), is_test) in files.into_iter().zip(labels).zip(is_test) {
        let (files, labels) = &mut parts[usize::from(is_test)];
        files.push(file);
        labels.push(label);
    }
    parts
}

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(io("read", path))
}

/// The pictures in a folder, by name.
fn pictures(folder: &Path) -> Result<Vec<PathBuf>> {
    let mut paths = find_folder::visible(folder)?;
    paths.retain(|path| has_extension(path, &["jpg", "jpeg", "png"]));
    Ok(paths)
}

fn has_extension(path: &Path, known: &[&str]) -> bool {
    path.extension().is_some_and(|kind| known.iter().any(|known| kind.eq_ignore_ascii_case(known)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::tests::png;

    fn write(dir: &Path, files: &[&str]) {
        for file in files {
            let path = dir.join(file);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, png(5, 4, png::ColorType::Rgb, 1)).unwrap();
        }
    }

    #[test]
    fn lists_by_name() {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), &["train/dog/b.png", "train/dog/a.PNG", "train/cat/z.jpeg", "train/cat/notes.txt"]);
        write(dir.path(), &["train/cat/.hidden.png", "val/dog/q.JPEG", "train/ant/x.png"]);
        let set = folder(dir.path(), &Reading::default(), &|_, _| ()).unwrap();
        assert_eq!(set.class_names, ["ant", "cat", "dog"]);
        assert_eq!((set.train.labels(), set.test.labels()), (&[0, 1, 2, 2][..], &[2][..]));
        assert_eq!(set.train.shape(), Shape::new(3, 4, 5));
        let crate::Images::Files(files) = set.train.images() else { panic!("listed, not decoded") };
        assert_eq!(files.len(), 4);
        assert!(files[2].ends_with("dog/a.PNG"));
        let (rest, held) = set.train.hold_out(2, 0).unwrap();
        assert_eq!((rest.len(), held.len()), (2, 2));
    }

    /// A fifth of every class, the same for the same seed, and the same pictures whether they are kept or not.
    #[test]
    fn a_folder_without_a_split_is_divided_by_the_seed() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..20 {
            let class = if number < 15 { "dog" } else { "ant" };
            let path = dir.path().join(format!("{class}/{number:02}.png"));
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, png(20 + number, 40, png::ColorType::Rgb, 1)).unwrap();
        }
        let names = |seed, shrink| {
            let set = folder(dir.path(), &Reading { split_test: 0.2, seed, shrink }, &|_, _| ()).unwrap();
            assert_eq!((set.train.len(), set.test.labels()), (16, &[0, 1, 1, 1][..]));
            match set.test.images() {
                Images::Files(files) => files.to_vec(),
                Images::Pictures(pictures) => {
                    assert!(pictures.iter().all(|(_, picture)| picture.height.min(picture.width) == 8));
                    assert!(set.test.memory() > pictures.iter().map(|(_, p)| p.pixels.len()).sum());
                    pictures.iter().map(|(path, _)| path.clone()).collect()
                }
                Images::Bytes(_) => panic!("pictures"),
            }
        };
        assert_eq!(names(7, 0), names(7, 8));
        assert_ne!(names(7, 0), names(8, 0));
        let alone =
            |share| folder(dir.path(), &Reading { split_test: share, ..Reading::default() }, &|_, _| ());
        assert_eq!(alone(0.999).unwrap().train.labels(), [0, 1]);
        write(dir.path(), &["cat/only.png"]);
        let text = alone(0.2).unwrap_err().to_string();
        assert!(text.contains("only.png") && text.contains("two or more in each class"), "{text}");
    }

    #[test]
    fn what_is_left_out_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let warnings = || folder_warnings(dir.path(), &Reading::default()).unwrap();
        write(dir.path(), &["train/dog/a.png", "train/cat/a.png", "val/dog/a.png", "val/cat/a.png"]);
        write(dir.path(), &["train/dog/notes.txt"]);
        assert!(warnings().is_empty(), "{:?}", warnings());
        write(dir.path(), &["train/dog/b.WEBP", "train/cat/c.gif", "train/dog/more/d.png"]);
        fs::remove_dir_all(dir.path().join("val/cat")).unwrap();
        let [others, nested, untested] = warnings().try_into().unwrap();
        assert!(
            others.starts_with("2 files skipped (not JPEG or PNG)") && others.contains("c.gif"),
            "{others}"
        );
        assert!(nested.starts_with("1 picture skipped") && nested.contains("d.png"), "{nested}");
        assert!(untested.starts_with("1 of 2 classes") && untested.contains("cat"), "{untested}");
        fs::remove_dir_all(dir.path().join("train/cat")).unwrap();
        assert!(warnings()[2].contains("only one class, \"dog\""), "{:?}", warnings());
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = || folder(dir.path(), &Reading::default(), &|_, _| ()).unwrap_err().to_string();
        assert!(refused().contains("a folder of its own"));
        write(dir.path(), &["train/dog/b.png"]);
        assert!(refused().contains("train and val") && refused().contains("data.split_test=0.2"));
        write(dir.path(), &["val/cow/b.png"]);
        let text = refused();
        assert!(text.contains("cow") && text.contains("not in train"), "{text}");
        fs::remove_dir_all(dir.path().join("val/cow")).unwrap();
        assert!(refused().contains("no picture at all"));
        write(dir.path(), &["val/dog/b.png", "train/cat/notes.txt"]);
        let text = refused();
        assert!(text.contains("cat") && text.contains("no picture in this class folder"), "{text}");
        fs::write(dir.path().join("train/cat/a.jpg"), b"this is no picture").unwrap();
        let text = refused();
        assert!(text.contains("a.jpg") && text.contains("not a readable picture"), "{text}");
    }
}
