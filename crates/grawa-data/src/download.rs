//! Downloading the official CIFAR archives.
//!
//! Existing files are never overwritten: archive and contents are made in a temporary folder, and renamed when the md5 is
//! right. Without a network the error says which address to fetch by other means and where to put the file; an archive in
//! that place is used. An https address never redirects to plain http, and no server can fill the disk: see [`LONGEST`].

use crate::error::{Error, Result, io};
use crate::{DatasetKind, cifar, md5};
use flate2::read::GzDecoder;
use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the archives are.
const BASE: &str = "https://www.cs.toronto.edu/~kriz/";

/// The limit of an archive in bytes; those of CIFAR have 170 MB. A server that sends more sends something else.
const LONGEST: u64 = 256 << 20;

/// An archive and what it holds.
struct Archive<'a> {
    file: &'a str,
    md5: &'a str,
    folder: &'a str,
    files: Vec<&'a str>,
    longest: u64,
}

/// Receives the number of bytes so far, and of all if the server says it.
type ProgressFn<'a> = &'a mut dyn FnMut(u64, Option<u64>);

/// Downloads the data set called `name` (cifar10 or cifar100) into `dir` and unpacks it; returns its folder.
///
/// Uses what exists already: the unpacked folder, or the archive.
pub fn download(name: &str, dir: &Path, progress: ProgressFn<'_>) -> Result<PathBuf> {
    download_from(BASE, name, dir, progress)
}

/// As [`download`], from a mirror: `base` is the address before the archive's name.
fn download_from(base: &str, name: &str, dir: &Path, progress: ProgressFn<'_>) -> Result<PathBuf> {
    let kind: DatasetKind = name.parse()?;
    let refuse = |hint| {
        let known = "it can get cifar10 and cifar100";
        Err(Error::NoArchive(format!("'{kind}' cannot be downloaded by grawa; {known}. {hint}")))
    };
    let format = match kind {
        DatasetKind::Cifar10 => &cifar::CIFAR10,
        DatasetKind::Cifar100 => &cifar::CIFAR100,
        DatasetKind::Digits => return refuse("The digits are inside the program and need no download"),
        DatasetKind::Mnist | DatasetKind::FashionMnist => {
            return refuse("Put its four idx files, plain or .gz, into a folder");
        }
        DatasetKind::Folder => return refuse("Put pictures into train/<class>/ and val/<class>/"),
    };
    let (file, md5) = format.archive;
    let archive = Archive { file, md5, folder: format.folder, files: format.files(), longest: LONGEST };
    archive.fetch(base, dir, progress)
}

impl Archive<'_> {
    fn fetch(&self, base: &str, dir: &Path, progress: ProgressFn<'_>) -> Result<PathBuf> {
        let folder = dir.join(self.folder);
        if folder.exists() {
            return match self.missing(&folder) {
                None => Ok(folder),
                Some(file) => Err(Error::in_the_way(&folder, &format!("it lacks {file}"))),
            };
        }
        fs::create_dir_all(dir).map_err(io("create", dir))?;
        let path = dir.join(self.file);
        let aside = tempfile::tempdir_in(dir).map_err(io("create a folder in", dir))?;
        if path.exists() {
            self.verify(&path, "Remove it, or put the official file there")?;
        } else {
            let part = aside.path().join(self.file);
            self.get(base, &part, &path, progress)?;
            self.verify(&part, "It was removed; run the same command again")?;
            fs::rename(&part, &path).map_err(io("rename", &part))?;
        }
        let file = File::open(&path).map_err(io("open", &path))?;
        // Its md5 is right, and the crate writes nothing outside the folder.
        tar::Archive::new(GzDecoder::new(file)).unpack(aside.path()).map_err(io("unpack", &path))?;
        let made = aside.path().join(self.folder);
        if let Some(file) = self.missing(&made) {
            let found = format!("an archive without {file}");
            let expected = format!("{} with {}", self.folder, self.files.join(", "));
            return Err(Error::wrong_format(&path, found, expected));
        }
        fs::rename(&made, &folder).map_err(io("rename", &made))?;
        Ok(folder)
    }

    /// A file that a folder lacks.
    fn missing(&self, folder: &Path) -> Option<&str> {
        self.files.iter().copied().find(|file| !folder.join(file).is_file())
    }

    fn verify(&self, path: &Path, hint: &str) -> Result<()> {
        let bytes = fs::read(path).map_err(io("read", path))?;
        md5::check(&bytes, path, self.file, self.md5, hint)
    }

    /// Downloads the archive to `part`. An error says how to put it at `put` by other means.
    fn get(&self, base: &str, part: &Path, put: &Path, progress: ProgressFn<'_>) -> Result<()> {
        let url = format!("{}/{}", base.trim_end_matches('/'), self.file);
        let failed = |why: String| {
            Error::Download(format!(
                "cannot download {url}: {why}. Fetch that address by other means, put the file at {put:?} (md5 {}), and run \
                 the same command again",
                self.md5
            ))
        };
        let response = agent(&url).get(&url).call().map_err(|error| failed(error.to_string()))?;
        if response.status() != 200 {
            return Err(failed(format!("the server answered with status {}", response.status().as_u16())));
        }
        let mut file = File::create(part).map_err(io("create", part))?;
        let (mut done, total) = (0, response.body().content_length());
        let mut body = response.into_body().into_reader();
        let mut piece = vec![0; 1 << 16];
        loop {
            progress(done, total);
            let count = body.read(&mut piece).map_err(|error| failed(error.to_string()))?;
            if count == 0 {
                return file.sync_all().map_err(io("write to", part));
            }
            done += count as u64;
            if done > self.longest {
                return Err(failed(format!("no archive is longer than {} bytes, and this is", self.longest)));
            }
            file.write_all(&piece[..count]).map_err(io("write to", part))?;
        }
    }
}

/// The HTTP client for `url`. If that is https, so is every address the server redirects to.
fn agent(url: &str) -> ureq::Agent {
    let mut config = ureq::Agent::config_builder()
        .https_only(url.starts_with("https://"))
        .http_status_as_error(false)
        .user_agent("grawa")
        .timeout_resolve(Some(Duration::from_secs(20)))
        .timeout_connect(Some(Duration::from_secs(20)))
        .timeout_recv_response(Some(Duration::from_secs(60)))
        .timeout_per_read(Some(Duration::from_secs(60)));
    // The proxy of the environment is used, except for a mirror on this machine.
    if ["http://127.", "http://localhost", "http://[::1]"].iter().any(|here| url.starts_with(here)) {
        config = config.proxy(None);
    }
    config.build().into()
}

#[cfg(test)]
mod tests;
