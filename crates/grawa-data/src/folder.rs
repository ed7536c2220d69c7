//! Class folders of pictures, as ImageNet has them: `train/<class>/*.JPEG`, `val/<class>/*.JPEG`.
//!
//! The folders are only listed, sorted by name, so the numbers of classes and pictures do not depend on the file system. A
//! picture is read and decoded when a batch needs it.

use crate::error::{Error, Result, io};
use crate::{Dataset, DatasetKind, Shape, Split, find_folder, picture};
use std::ffi::{OsStr, OsString};
use std::fs;
use std::path::{Path, PathBuf};

/// The files of a split. A folder is kept once: ImageNet has 1.3 million names in 1,000 of them.
#[derive(Clone, Debug, Default)]
pub struct Files {
    folders: Vec<PathBuf>,
    names: Vec<(u32, Box<OsStr>)>,
}

impl Files {
    /// How many files there are.
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// The path of file `index`, if there is one.
    pub fn path(&self, index: usize) -> Option<PathBuf> {
        let (folder, name) = self.names.get(index)?;
        Some(self.folders[*folder as usize].join(&**name))
    }

    pub(crate) fn select(&self, indices: &[u32]) -> Files {
        let names = indices.iter().map(|&index| self.names[index as usize].clone()).collect();
        Files { folders: self.folders.clone(), names }
    }
}

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
        let mut files = Files::default();
        let mut labels = Vec::new();
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
            let number = files.folders.len() as u32;
            labels.resize(labels.len() + pictures.len(), class as u32);
            files.names.extend(pictures.into_iter().map(|name| (number, name)));
            files.folders.push(folder);
        }
        let Some(first) = files.path(0) else {
            let expected = "class folders with files called .jpg, .jpeg or .png";
            return Err(Error::wrong_format(at, "no picture at all", expected));
        };
        let (height, width) = picture::size(&read(&first)?, &first)?;
        Split::from_files(Shape::new(3, height, width), files, labels, count)
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

/// The names of the pictures in a folder, in order.
fn pictures(folder: &Path) -> Result<Vec<Box<OsStr>>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(io("list", folder))? {
        let name = entry.map_err(io("list", folder))?.file_name();
        let hidden = name.as_encoded_bytes().starts_with(b".");
        let is_picture =
            |kind: &OsStr| ["jpg", "jpeg", "png"].iter().any(|known| kind.eq_ignore_ascii_case(known));
        if !hidden && Path::new(&name).extension().is_some_and(is_picture) {
            names.push(name.into_boxed_os_str());
        }
    }
    names.sort_unstable();
    Ok(names)
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
        assert!(files.path(2).unwrap().ends_with("dog/a.PNG"));
        assert!(files.path(4).is_none());
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
