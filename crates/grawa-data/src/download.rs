//! Downloading the official CIFAR archives.
//!
//! Existing files are never overwritten: a download grows in `<archive>.part`, is renamed when its md5 is right, is unpacked
//! into a temporary folder and renamed again. A partial file is continued. Without a network the error says which address to
//! fetch by other means and where to put the file; an archive in that place is used. An https address never redirects to
//! plain http, and no server can fill the disk: see [`LONGEST`].

use crate::error::{Error, Result, io};
use crate::{DatasetKind, archive, cifar, md5};
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Where the archives are.
const BASE: &str = "https://www.cs.toronto.edu/~kriz/";

/// The limit of an archive in bytes; those of CIFAR have 170 MB. A server that sends more sends something else.
const LONGEST: u64 = 256 << 20;

/// What [`download`] is doing.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Progress {
    /// Bytes so far, and the total if the server says it.
    Downloading {
        /// Bytes on disk.
        done: u64,
        /// Bytes in all.
        total: Option<u64>,
    },
    /// The md5 of the archive is being computed.
    Checking(PathBuf),
    /// A file is being unpacked.
    Unpacking(PathBuf),
}

/// An archive and what it holds.
struct Archive<'a> {
    file: &'a str,
    md5: &'a str,
    folder: &'a str,
    files: Vec<&'a str>,
    longest: u64,
}

/// What receives the progress.
type ProgressFn<'a> = &'a mut dyn FnMut(Progress);

/// Downloads the data set called `name` (cifar10 or cifar100) into `dir` and unpacks it; returns its folder.
///
/// Uses what exists already: the unpacked folder, the archive, or a part of it.
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
            return match self.files.iter().find(|file| !folder.join(file).is_file()) {
                None => Ok(folder),
                Some(file) => Err(Error::in_the_way(&folder, &format!("it lacks {file}"))),
            };
        }
        fs::create_dir_all(dir).map_err(io("create", dir))?;
        let path = dir.join(self.file);
        if path.exists() {
            self.verify(&path, "Remove it, or put the official file there", progress)?;
        } else {
            let part = dir.join(format!("{}.part", self.file));
            self.complete(base, &part, &path, progress)?;
            let checked = self.verify(&part, "It was removed; run the same command again", progress);
            if checked.is_err() {
                // Our own file, and continuing it could never succeed.
                fs::remove_file(&part).map_err(io("remove", &part))?;
            }
            checked?;
            fs::rename(&part, &path).map_err(io("rename", &part))?;
        }
        self.unpack(&path, dir, progress)?;
        Ok(folder)
    }

    fn verify(&self, path: &Path, hint: &str, progress: ProgressFn<'_>) -> Result<()> {
        progress(Progress::Checking(path.to_owned()));
        let bytes = fs::read(path).map_err(io("read", path))?;
        md5::check(&bytes, path, self.file, self.md5, hint)
    }

    /// Brings `part` to its full length. Reconnects as long as each attempt makes progress.
    fn complete(&self, base: &str, part: &Path, put: &Path, progress: ProgressFn<'_>) -> Result<()> {
        let url = format!("{}/{}", base.trim_end_matches('/'), self.file);
        let length = || fs::metadata(part).map_or(0, |file| file.len());
        loop {
            let before = length();
            let Some(why) = self.attempt(&url, part, before, progress)? else { return Ok(()) };
            let after = length();
            if after <= before {
                let kept = format!(" (the first {after} bytes are kept in {part:?})");
                let (kept, md5) = (if after == 0 { "" } else { &kept }, self.md5);
                return Err(Error::Download(format!(
                    "cannot download {url}: {why}{kept}. Fetch that address by other means, put the file at {put:?} (md5 {md5}), \
                     and run the same command again"
                )));
            }
        }
    }

    /// Continues `part`, which has the first `have` bytes. Returns why it is not complete, if it is not.
    fn attempt(&self, url: &str, part: &Path, have: u64, progress: ProgressFn<'_>) -> Result<Option<String>> {
        let mut request = agent(url).get(url);
        if have > 0 {
            request = request.header("Range", format!("bytes={have}-"));
        }
        let response = match request.call() {
            Ok(response) => response,
            Err(error) => return Ok(Some(error.to_string())),
        };
        let header = |name: &str| response.headers().get(name).and_then(|value| value.to_str().ok());
        let start = match response.status().as_u16() {
            200 => 0,
            206 => {
                // "bytes 100-199/200"
                let start = header("Content-Range")
                    .and_then(|range| range.strip_prefix("bytes ")?.split('-').next()?.parse().ok());
                if start != Some(have) {
                    return Ok(Some(format!("asked to go on at byte {have}, the server did not")));
                }
                have
            }
            // There is nothing after our bytes: the md5 decides whether they are complete.
            416 if have > 0 => return Ok(None),
            status => return Ok(Some(format!("the server answered with status {status}"))),
        };
        let total = header("Content-Length").and_then(|n| n.parse::<u64>().ok());
        let total = total.map(|n| n.saturating_add(start));
        if let Some(total) = total.filter(|&total| total > self.longest) {
            return self.too_long(part, &format!("{total} bytes")).map(Some);
        }
        let mut file = OpenOptions::new().create(true).append(true).open(part).map_err(io("open", part))?;
        // A server that cannot continue sends everything again.
        file.set_len(start).map_err(io("shorten", part))?;
        let mut body = response.into_body().into_reader();
        let mut piece = vec![0; 1 << 16];
        let mut done = start;
        progress(Progress::Downloading { done, total });
        loop {
            match body.read(&mut piece) {
                Ok(0) => break,
                Ok(n) if done + n as u64 > self.longest => {
                    return self.too_long(part, &format!("more than {} bytes", self.longest)).map(Some);
                }
                Ok(n) => {
                    file.write_all(&piece[..n]).map_err(io("write to", part))?;
                    done += n as u64;
                    progress(Progress::Downloading { done, total });
                }
                Err(error) => return Ok(Some(error.to_string())),
            }
        }
        file.sync_all().map_err(io("write to", part))?;
        let total = total.filter(|&total| done < total);
        Ok(total.map(|total| format!("the connection ended at byte {done} of {total}")))
    }

    /// Removes what was downloaded: it is not a part of the archive, and another attempt cannot help.
    fn too_long(&self, part: &Path, found: &str) -> Result<String> {
        if part.exists() {
            fs::remove_file(part).map_err(io("remove", part))?;
        }
        Ok(format!("the server sends {found}, but no archive is longer than {}", self.longest))
    }

    /// Unpacks into a temporary folder and moves the result to its place in one step.
    fn unpack(&self, path: &Path, dir: &Path, progress: ProgressFn<'_>) -> Result<()> {
        let named = format!(".{}.", self.folder);
        let temporary = tempfile::Builder::new().prefix(&named).suffix(".part").tempdir_in(dir);
        let temporary = temporary.map_err(io("create a folder in", dir))?;
        let file = File::open(path).map_err(io("open", path))?;
        archive::entries(file, path, self.folder, |name, from| {
            progress(Progress::Unpacking(name.to_owned()));
            let to = temporary.path().join(name);
            if let Some(parent) = to.parent() {
                fs::create_dir_all(parent).map_err(io("create", parent))?;
            }
            let mut file =
                OpenOptions::new().write(true).create_new(true).open(&to).map_err(io("create", &to))?;
            std::io::copy(from, &mut file).map_err(io("unpack", &to))?;
            file.sync_all().map_err(io("write to", &to))
        })?;
        let made = temporary.path().join(self.folder);
        if let Some(file) = self.files.iter().find(|file| !made.join(file).is_file()) {
            let found = format!("an archive without {file}");
            let expected = format!("{} with {}", self.folder, self.files.join(", "));
            return Err(Error::wrong_format(path, found, expected));
        }
        let folder = dir.join(self.folder);
        if folder.exists() {
            return Err(Error::in_the_way(&folder, "it appeared while the archive was unpacked"));
        }
        fs::rename(&made, &folder).map_err(io("rename", &made))
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
