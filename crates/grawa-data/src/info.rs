//! Describes a folder: which data sets it holds, how many images, and what is wrong with them.

use crate::error::{Error, Result};
use crate::{DatasetKind, Reading, cifar, folder, idx, load};
use std::path::Path;

/// Class folders without a test set are split as a run splits them, with some seed.
const UNSPLIT: Reading = Reading { split_test: 0.2, seed: 0, shrink: 0 };

/// Finds the data sets in `dir`, and reads and checks them completely; class folders are only listed. The description has
/// a line for each, with what is wrong with it, and one for each archive that [`download`](crate::download) would use.
///
/// ```
/// let info = grawa_data::info(env!("CARGO_MANIFEST_DIR").as_ref())?;
/// assert!(info.contains("no data set"));
/// # Ok::<(), grawa_data::Error>(())
/// ```
pub fn info(dir: &Path) -> Result<String> {
    if !dir.is_dir() {
        let hint = "Give the folder in which the data sets lie";
        return Err(Error::missing(dir, "data", "a folder of this name", hint));
    }
    let mut lines = Vec::new();
    for format in [&cifar::CIFAR10, &cifar::CIFAR100] {
        lines.extend(format.find(dir)?.map(|at| describe(format.kind, &at)));
    }
    let mut places = Vec::new();
    for format in [&idx::MNIST, &idx::FASHION] {
        // Files that lie in `dir` itself are found under both names.
        if let Some(at) = idx::find(format, dir)?.filter(|at| !places.contains(at)) {
            lines.push(describe(idx::which(&at).map_or(format.kind, |which| which.kind), &at));
            places.push(at);
        }
    }
    if dir.join("train").is_dir() || lines.is_empty() && folder::list(dir, &UNSPLIT).is_ok() {
        lines.push(describe(DatasetKind::Folder, dir));
    }
    for cifar::Format { archive: (name, _), kind, .. } in [&cifar::CIFAR10, &cifar::CIFAR100] {
        let (path, dir) = (dir.join(name), dir.display());
        if path.is_file() {
            let get = format!("`grawa data get {kind} --dir {dir}` unpacks it");
            lines.push(format!("{}: the archive of {kind}; {get}", path.display()));
        }
    }
    if lines.is_empty() {
        lines.push(format!(
            "{}: no data set found. Looked for {}, {}, the idx files of MNIST and Fashion-MNIST, and train/<class>/ with val/<class>/",
            dir.display(),
            cifar::CIFAR10.folder,
            cifar::CIFAR100.folder,
        ));
    }
    Ok(lines.join("\n"))
}

/// One data set, or what is wrong with it.
fn describe(kind: DatasetKind, at: &Path) -> String {
    let place = format!("{kind} in {}", at.display());
    let set = match kind {
        DatasetKind::Folder => folder(at, &UNSPLIT, &|_, _| ()),
        _ => load(kind.name(), at),
    };
    let set = match set {
        Ok(set) => set,
        Err(problem) => return format!("{place}\n  problem: {problem}"),
    };
    let first = if kind == DatasetKind::Folder { " (the first; others may differ)" } else { "" };
    let (train, test, shape, classes) = (set.train.len(), set.test.len(), set.train.shape(), set.classes);
    format!("{place}: {train} training and {test} test images of {shape}{first} in {classes} classes")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::tests::png;
    use std::fs;

    #[test]
    fn says_what_is_there_and_what_is_wrong() {
        let dir = tempfile::tempdir().unwrap();
        assert!(info(dir.path()).unwrap().contains("no data set found"));
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

        let text = info(dir.path()).unwrap();
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("  problem: ")).collect();
        assert_eq!(lines.len(), 4, "{text}");
        assert!(lines[0].starts_with("cifar100 in ") && lines[1].starts_with("mnist in "), "{text}");
        assert!(!lines[1].contains("images"), "{text}");
        assert!(lines[2].contains(": 1 training and 1 test images"), "{text}");
        assert!(
            text.contains("cifar-100-binary\n  problem: ") && text.contains("official CIFAR-100"),
            "{text}"
        );
        assert!(text.contains("folder in") && text.contains("3×5×6 (the first"), "{text}");
        assert!(text.contains("grawa data get cifar10"), "{text}");
    }
}
