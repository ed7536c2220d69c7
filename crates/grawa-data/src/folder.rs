//! Class folders of pictures, as ImageNet has them: `train/<class>/*.JPEG`, `val/<class>/*.JPEG`.
//!
//! The folders are only listed, sorted by name, so the numbers of classes and pictures do not depend on the file system. A
//! picture is read and decoded when a batch needs it.

use crate::error::{Error, Result, io};
use crate::{Dataset, DatasetKind, Images, Shape, Split, find_folder, picture};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Lists the pictures below `dir`: `train/<class>/…`, and `val/<class>/…` or `test/<class>/…`.
///
/// The classes are the folders of `train` in the order of their names; files that are not called .jpg, .jpeg
/// or .png are left out.
pub fn folder(dir: &Path) -> Result<Dataset> {
    let missing = |expected, hint| Error::missing(dir, "class folders of pictures", expected, hint);
    let train_dir = dir.join("train");
    let test_dir = [dir.join("val"), dir.join("test")].into_iter().find(|path| path.is_dir());
    let Some(test_dir) = test_dir.filter(|_| train_dir.is_dir()) else {
        return Err(missing("folders train and val (or test)", "Give the folder that holds both"));
    };
    let classes = find_folder::subfolders(&train_dir)?;
    if classes.is_empty() {
        return Err(missing("train/<class>/*.jpg", "Put each class's pictures in a folder of its own"));
    }
    let names: Vec<OsString> =
        classes.iter().filter_map(|path| path.file_name().map(OsStr::to_owned)).collect();
    let count = names.len() as u32;
    let part = |at: &Path, folders: Vec<PathBuf>, may_be_empty: bool| {
        let (mut files, mut labels) = (Vec::new(), Vec::new());
        for folder in folders {
            let Ok(class) =
                names.binary_search_by(|name| name.as_os_str().cmp(folder.file_name().unwrap_or_default()))
            else {
                let found = "a class folder that is not in train";
                return Err(Error::wrong_format(&folder, found, "the classes of train"));
            };
            let pictures = pictures(&folder)?;
            if pictures.is_empty() && !may_be_empty {
                let expected = "one or more files called .jpg, .jpeg or .png";
                return Err(Error::wrong_format(&folder, "no picture in this class folder", expected));
            }
            labels.resize(labels.len() + pictures.len(), class as u32);
            files.extend(pictures);
        }
        let Some(first) = files.first() else {
            let expected = "class folders with files called .jpg, .jpeg or .png";
            return Err(Error::wrong_format(at, "no picture at all", expected));
        };
        let (height, width) = picture::size(&read(first)?, first)?;
        Split::new(Shape::new(3, height, width), Images::Files(Arc::new(files)), labels, count)
    };
    let test_folders = find_folder::subfolders(&test_dir)?;
    let parts = [part(&train_dir, classes, false)?, part(&test_dir, test_folders, true)?];
    let class_names = names.iter().map(|name| name.to_string_lossy().into_owned()).collect();
    Ok(Dataset::of(DatasetKind::Folder, class_names, count, parts))
}

/// The bytes of a file.
pub(crate) fn read(path: &Path) -> Result<Vec<u8>> {
    fs::read(path).map_err(io("read", path))
}

/// The pictures in a folder, by name.
fn pictures(folder: &Path) -> Result<Vec<PathBuf>> {
    let is_picture =
        |kind: &OsStr| ["jpg", "jpeg", "png"].iter().any(|known| kind.eq_ignore_ascii_case(known));
    let mut paths = find_folder::visible(folder)?;
    paths.retain(|path| path.extension().is_some_and(is_picture));
    Ok(paths)
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
        let set = folder(dir.path()).unwrap();
        assert_eq!(set.class_names, ["ant", "cat", "dog"]);
        assert_eq!((set.train.labels(), set.test.labels()), (&[0, 1, 2, 2][..], &[2][..]));
        assert_eq!(set.train.shape(), Shape::new(3, 4, 5));
        let crate::Images::Files(files) = set.train.images() else { panic!("listed, not decoded") };
        assert_eq!(files.len(), 4);
        assert!(files[2].ends_with("dog/a.PNG"));
        let (rest, held) = set.train.hold_out(2, 0).unwrap();
        assert_eq!((rest.len(), held.len()), (2, 2));
    }

    #[test]
    fn what_is_missing_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let refused = || folder(dir.path()).unwrap_err().to_string();
        assert!(refused().contains("train and val"));
        write(dir.path(), &["train/dog/b.png"]);
        assert!(refused().contains("train and val"));
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
