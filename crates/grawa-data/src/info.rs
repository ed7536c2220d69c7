//! Describes a folder: which data sets it holds, how many images, and what is wrong with them.

use crate::error::{Error, Result};
use crate::{DatasetKind, Reading, Shape, check_pictures, cifar, folder, idx, load, picture};
use std::fmt::Display;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Class folders without a test set are split as a run splits them, with some seed.
const UNSPLIT: Reading = Reading { split_test: 0.2, seed: 0, shrink: 0 };

/// What a folder holds.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// A line for each data set and archive, each with its problems and warnings below it.
    pub text: String,
    /// How many problems there are; finding no data set is one.
    pub problems: usize,
}

impl Info {
    fn add(&mut self, line: &str) {
        let join = if self.text.is_empty() { "" } else { "\n" };
        self.text.push_str(join);
        self.text.push_str(line);
    }

    fn problem(&mut self, what: impl Display) {
        self.problems += 1;
        self.add(&format!("  problem: {what}"));
    }
}

/// Finds the data sets in `dir`, and reads and checks them completely. The description has a line for each, with what is wrong with it,
/// and one for each archive that [`download`](crate::download) would use. `progress` is told how many of how many pictures are decoded.
///
/// ```
/// let info = grawa_data::info(env!("CARGO_MANIFEST_DIR").as_ref(), &|_, _| ())?;
/// assert!(info.text.contains("no data set") && info.problems == 1);
/// # Ok::<(), grawa_data::Error>(())
/// ```
pub fn info(dir: &Path, progress: &(dyn Fn(usize, usize) + Sync)) -> Result<Info> {
    if !dir.is_dir() {
        let hint = "Give the folder in which the data sets lie";
        return Err(Error::missing(dir, "data", "a folder of this name", hint));
    }
    let mut info = Info::default();
    for format in [&cifar::CIFAR10, &cifar::CIFAR100] {
        match (format.find(dir)?, format.find_pickled(dir)?) {
            (Some(at), _) => describe(&mut info, format.kind, &at),
            (None, Some(at)) => {
                info.add(&format!("{} in {}", format.kind, at.display()));
                info.problem(format.pickled(&at));
            }
            (None, None) => {}
        }
    }
    let mut places = Vec::new();
    for format in [&idx::MNIST, &idx::FASHION] {
        // Files that lie in `dir` itself are found under both names.
        if let Some(at) = idx::find(format, dir)?.filter(|at| !places.contains(at)) {
            describe(&mut info, idx::which(&at).map_or(format.kind, |which| which.kind), &at);
            places.push(at);
        }
    }
    let as_folder = folder::look(dir, &UNSPLIT);
    let has_pictures = |listed: &folder::Listed| listed.parts.iter().any(|(files, _)| !files.is_empty());
    let as_folder = as_folder.and_then(|(listed, mut problems)| match has_pictures(&listed) {
        true => Ok((listed, problems)),
        false => Err(problems.pop().unwrap_or_else(|| Error::missing(dir, "pictures", "class folders", ""))),
    });
    if let (Ok(found), true) = (&as_folder, dir.join("train").is_dir() || info.text.is_empty()) {
        describe_folder(&mut info, dir, found, progress);
    } else if let (Err(problem), true) = (&as_folder, dir.join("train").is_dir()) {
        info.add(&format!("{} in {}", DatasetKind::Folder, dir.display()));
        info.problem(problem);
    }
    for cifar::Format { archive: (name, _), kind, .. } in [&cifar::CIFAR10, &cifar::CIFAR100] {
        let (path, dir) = (dir.join(name), dir.display());
        if path.is_file() {
            let get = format!("`grawa data get {kind} --dir {dir}` unpacks it");
            info.add(&format!("{}: the archive of {kind}; {get}", path.display()));
        }
    }
    if let (true, Err(why)) = (info.text.is_empty(), as_folder) {
        info.add(&format!(
            "{}: no data set found. Looked for {}, {}, the idx files of MNIST and Fashion-MNIST, <class>/, and train/<class>/ with val/<class>/",
            dir.display(),
            cifar::CIFAR10.folder,
            cifar::CIFAR100.folder,
        ));
        info.problem(format_args!("as class folders: {why}"));
    }
    Ok(info)
}

/// One data set, or what is wrong with it.
fn describe(info: &mut Info, kind: DatasetKind, at: &Path) {
    let place = format!("{kind} in {}", at.display());
    match load(kind.name(), at) {
        Ok(set) => {
            let (train, test, shape, classes) =
                (set.train.len(), set.test.len(), set.train.shape(), set.classes);
            info.add(&format!(
                "{place}: {train} training and {test} test images of {shape} in {classes} classes"
            ));
        }
        Err(problem) => {
            info.add(&place);
            info.problem(problem);
        }
    }
}

/// Class folders, with what is wrong with them, and the pictures that cannot be decoded.
fn describe_folder(
    info: &mut Info,
    dir: &Path,
    (listed, problems): &(folder::Listed, Vec<Error>),
    progress: &(dyn Fn(usize, usize) + Sync),
) {
    let place = format!("{} in {}", DatasetKind::Folder, dir.display());
    let [train, test] = [0, 1].map(|part: usize| listed.parts[part].0.len());
    let files: Vec<&Path> = listed.parts.iter().flat_map(|(files, _)| files).map(AsRef::as_ref).collect();
    let first = folder::read(files[0]).and_then(|bytes| picture::size(&bytes, dir));
    let shape = first.map_or(String::new(), |(height, width)| {
        format!(" of {} (the first; others may differ)", Shape::new(3, height, width))
    });
    let classes = listed.names.len();
    info.add(&format!("{place}: {train} training and {test} test images{shape} in {classes} classes"));
    problems.iter().for_each(|problem| info.problem(problem));
    let done = AtomicUsize::new(0);
    let checked = check_pictures(&files, &|| progress(done.fetch_add(1, Ordering::Relaxed) + 1, files.len()));
    let broken: Vec<Error> = checked.into_iter().filter_map(Result::err).collect();
    broken.iter().for_each(|error| info.problem(error));
    for warning in folder::folder_warnings(dir, &UNSPLIT).unwrap_or_default() {
        info.add(&format!("  warning: {warning}"));
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
        let info = |dir: &Path| super::info(dir, &|_, _| ());
        assert!(info(dir.path()).unwrap().text.contains("no data set found"));
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

        let Info { text, problems } = info(dir.path()).unwrap();
        assert_eq!(problems, 2, "{text}");
        let lines: Vec<&str> = text.lines().filter(|line| !line.starts_with("  ")).collect();
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

    /// The reason is the one that a run gives, and pictures are decoded.
    #[test]
    fn class_folders_are_checked_as_a_run_checks_them() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, bytes: &[u8]| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, bytes).unwrap();
        };
        let info = || super::info(dir.path(), &|_, _| ()).unwrap();
        let good = png(6, 5, png::ColorType::Rgb, 1);
        for name in ["a/1.png", "a/2.png", "b/1.png"] {
            write(name, &good);
        }
        let Info { text, problems } = info();
        assert!(problems == 1 && text.contains("the only picture of its class"), "{text}");
        write("b/2.png", &good);
        assert_eq!(info().problems, 0, "{}", info().text);
        write("c/notes.txt", b"");
        assert!(info().text.contains("no picture in this class folder"), "{}", info().text);
        // All that is wrong at once, here and where a run reads them.
        write("a/broken.png", b"no picture");
        write("d/only.jpg", &good);
        let Info { text, problems } = info();
        let error = folder(dir.path(), &UNSPLIT, &|_, _| ()).unwrap_err().to_string();
        let survey = crate::survey(dir.path(), &UNSPLIT).unwrap_err().to_string();
        assert_eq!(problems, 3, "{text}");
        for words in ["no picture in this class folder", "remove the folder", "only.jpg", "broken.png"] {
            for said in [&text, &error, &survey] {
                assert!(said.contains(words), "{words}: {said}");
            }
        }
        assert!(error.contains("has 3 problems") && error.contains("grawa data info"), "{error}");
        fs::remove_file(dir.path().join("a/broken.png")).unwrap();
        fs::remove_dir_all(dir.path().join("d")).unwrap();
        for name in ["c/empty.png", "c/text.png", "c/cut.png"] {
            write(name, if name == "c/cut.png" { &good[..good.len() / 2] } else { &name.as_bytes()[..0] });
        }
        write("c/text.png", b"text");
        write("c/d.webp", b"");
        let Info { text, problems } = info();
        assert_eq!(problems, 3, "{text}");
        for words in ["empty.png", "text.png", "cut.png", "warning: 1 file "] {
            assert!(text.contains(words), "{words}: {text}");
        }
    }
}
