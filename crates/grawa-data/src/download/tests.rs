//! Downloads from a server of the test's own, which cuts connections and lies on request.

use super::*;
use flate2::{Compression, write::GzEncoder};
use grawa_core::{Key, Purpose};
use std::io::{BufRead, BufReader};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use tar::EntryType;

/// A gzipped tar of these files; names are written as they are, even those that the tar crate refuses.
fn packed(files: &[(&str, EntryType, &[u8])]) -> Vec<u8> {
    let mut tar = tar::Builder::new(GzEncoder::new(Vec::new(), Compression::default()));
    for (name, kind, bytes) in files {
        let mut header = tar::Header::new_ustar();
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o755);
        header.set_size(bytes.len() as u64);
        if *kind == EntryType::Symlink {
            header.set_link_name("/etc").unwrap();
        }
        header.set_cksum();
        tar.append(&header, *bytes).unwrap();
    }
    tar.into_inner().unwrap().finish().unwrap()
}

/// What the server does with one request.
#[derive(Clone, Copy)]
enum Answer {
    /// All of it.
    Properly,
    /// As above, but the connection ends after so many bytes.
    CutAfter(usize),
    /// Not found.
    Missing,
    /// All of it, without saying how long it is.
    WithoutLength,
}

/// Answers one request after the other and then closes its door. Returns its address and what was asked.
fn serve(body: Vec<u8>, answers: &[Answer]) -> (String, Arc<Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let base = format!("http://{}/", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let (log, answers) = (Arc::clone(&asked), answers.to_vec());
    std::thread::spawn(move || {
        for answer in answers {
            let (stream, _) = listener.accept().unwrap();
            respond(stream, &body, answer, &log);
        }
    });
    (base, asked)
}

fn respond(mut stream: TcpStream, body: &[u8], answer: Answer, log: &Mutex<Vec<String>>) {
    let mut lines = BufReader::new(stream.try_clone().unwrap()).lines();
    log.lock().unwrap().push(lines.next().unwrap().unwrap());
    lines.map_while(Result::ok).take_while(|line| !line.is_empty()).for_each(drop);
    let (status, length, sent) = match answer {
        Answer::Missing => ("404 Not Found", Some(0), &[][..]),
        Answer::WithoutLength => ("200 OK", None, body),
        Answer::CutAfter(count) => ("200 OK", Some(body.len()), &body[..count]),
        Answer::Properly => ("200 OK", Some(body.len()), body),
    };
    let length = length.map_or(String::new(), |length| format!("Content-Length: {length}\r\n"));
    write!(stream, "HTTP/1.1 {status}\r\n{length}Connection: close\r\n\r\n").unwrap();
    // The client may hang up early; that is its right.
    let _ = stream.write_all(sent);
}

fn tarball() -> Vec<u8> {
    // Bytes that do not pack, so that the archive is long enough to be cut.
    let mut draws = Key::new(1, Purpose::Step).stream();
    let noise: Vec<u8> = (0..40_000).map(|_| draws.word() as u8).collect();
    packed(&[
        ("box/", EntryType::Directory, b""),
        ("box/train.bin", EntryType::Regular, &noise),
        ("box/test.bin", EntryType::Regular, b"test"),
    ])
}

fn archive(md5: &str) -> Archive<'_> {
    let files = vec!["train.bin", "test.bin"];
    Archive { file: "box.tar.gz", md5, folder: "box", files, longest: LONGEST }
}

/// Everything below `dir`, in order.
fn listing(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> =
        fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort_unstable();
    names
}

#[test]
fn a_full_download_is_checked_and_unpacked() {
    let body = tarball();
    let md5 = md5::of_bytes(&body);
    let (base, asked) = serve(body.clone(), &[Answer::Properly]);
    let dir = tempfile::tempdir().unwrap();
    let at = dir.path().join("new").join("folder");
    let mut last = None;
    let folder = archive(&md5)
        .fetch(&base, &at, &mut |done, total| {
            assert_eq!(total, Some(body.len() as u64));
            assert!(last.replace(done) <= Some(done));
        })
        .unwrap();
    assert_eq!(last, Some(body.len() as u64));
    assert_eq!(fs::read(folder.join("test.bin")).unwrap(), b"test");
    assert_eq!(listing(&at), ["box", "box.tar.gz"]);
    assert_eq!(asked.lock().unwrap()[..], ["GET /box.tar.gz HTTP/1.1"]);
    // Again: it is there, and nobody is asked (the server is gone).
    assert_eq!(archive(&md5).fetch(&base, &at, &mut |_, _| panic!("nothing to do")).unwrap(), folder);
    // Only the archive: it is used.
    fs::remove_dir_all(&folder).unwrap();
    archive(&md5).fetch(&base, &at, &mut |_, _| ()).unwrap();
}

#[test]
fn a_cut_download_leaves_nothing_and_may_be_repeated() {
    let body = tarball();
    let md5 = md5::of_bytes(&body);
    let dir = tempfile::tempdir().unwrap();
    let (base, _) = serve(body.clone(), &[Answer::CutAfter(10_000), Answer::Properly]);
    let text = archive(&md5).fetch(&base, dir.path(), &mut |_, _| ()).unwrap_err().to_string();
    assert!(text.contains("box.tar.gz") && text.contains(&md5), "{text}");
    assert!(listing(dir.path()).is_empty());
    archive(&md5).fetch(&base, dir.path(), &mut |_, _| ()).unwrap();
    assert_eq!(listing(dir.path()), ["box", "box.tar.gz"]);
}

#[test]
fn a_wrong_sum_is_refused_and_nothing_is_unpacked() {
    let md5 = "0123456789abcdef0123456789abcdef";
    let (base, _) = serve(tarball(), &[Answer::Properly]);
    let dir = tempfile::tempdir().unwrap();
    let text = archive(md5).fetch(&base, dir.path(), &mut |_, _| ()).unwrap_err().to_string();
    assert!(
        text.contains(md5) && text.contains(&md5::of_bytes(&tarball())) && text.contains("removed"),
        "{text}"
    );
    assert!(listing(dir.path()).is_empty());
    // A user's own archive is refused too, but it stays.
    fs::write(dir.path().join("box.tar.gz"), b"another archive").unwrap();
    let text = archive(md5).fetch(&base, dir.path(), &mut |_, _| ()).unwrap_err().to_string();
    assert!(text.contains("box.tar.gz") && text.contains(md5), "{text}");
    assert_eq!(fs::read(dir.path().join("box.tar.gz")).unwrap(), b"another archive");
}

/// With and without an announced length.
#[test]
fn a_server_cannot_fill_the_disk() {
    let body = tarball();
    let md5 = md5::of_bytes(&body);
    let longest = body.len() as u64;
    for answer in [Answer::Properly, Answer::WithoutLength] {
        let dir = tempfile::tempdir().unwrap();
        let (base, asked) = serve(body.clone(), &[answer, answer]);
        let short = Archive { longest: longest - 1, ..archive(&md5) };
        let text = short.fetch(&base, dir.path(), &mut |_, _| ()).unwrap_err().to_string();
        assert!(text.contains("no archive is longer than") && text.contains("box.tar.gz"), "{text}");
        // It is not asked again, and nothing is kept.
        assert_eq!((asked.lock().unwrap().len(), listing(dir.path())), (1, Vec::new()));
        // What is as long as an archive may be is taken.
        Archive { longest, ..archive(&md5) }.fetch(&base, dir.path(), &mut |_, _| ()).unwrap();
    }
}

/// A server may refer to another address, but not from https to an address where anyone can change what is sent.
#[test]
fn https_is_not_left() {
    let (base, asked) = serve(Vec::new(), &[Answer::Properly]);
    let refused = agent(BASE).get(&base).call();
    assert!(matches!(refused, Err(ureq::Error::RequireHttpsOnly(_))), "{refused:?}");
    assert!(asked.lock().unwrap().is_empty());
    // A mirror that was named as plain http is asked so.
    agent(&base).get(&base).call().unwrap();
    assert_eq!(asked.lock().unwrap().len(), 1);
}

#[test]
fn without_a_server_the_error_says_what_to_fetch_and_where_to_put_it() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let dir = tempfile::tempdir().unwrap();
    let text = download_from(&format!("http://{free}"), "cifar100", dir.path(), &mut |_, _| ())
        .unwrap_err()
        .to_string();
    let put = dir.path().join("cifar-100-binary.tar.gz");
    for part in [
        &format!("http://{free}/cifar-100-binary.tar.gz"),
        &format!("{put:?}"),
        "03b5dce01913d631647c71ecec9e9cb8",
    ] {
        assert!(text.contains(part), "{text}");
    }
    let (base, _) = serve(vec![], &[Answer::Missing]);
    let text = download_from(&base, "cifar10", dir.path(), &mut |_, _| ()).unwrap_err().to_string();
    assert!(text.contains("status 404"), "{text}");
    assert!(listing(dir.path()).is_empty());
}

#[test]
fn what_is_in_the_way_is_left_alone() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir(dir.path().join("box")).unwrap();
    fs::write(dir.path().join("box").join("train.bin"), b"mine").unwrap();
    let text = archive("").fetch("http://127.0.0.1:9", dir.path(), &mut |_, _| ()).unwrap_err().to_string();
    assert!(text.contains("in the way") && text.contains("test.bin"), "{text}");
    assert_eq!(fs::read(dir.path().join("box").join("train.bin")).unwrap(), b"mine");
}

#[test]
fn a_wrong_archive_leaves_nothing_behind() {
    for bytes in [
        packed(&[("box/train.bin", EntryType::Regular, b"1")]),
        packed(&[("box/train.bin", EntryType::Regular, b"1"), ("../evil", EntryType::Regular, b"2")]),
        packed(&[("box", EntryType::Symlink, b""), ("box/evil", EntryType::Regular, b"2")]),
        b"<html>moved</html>".to_vec(),
    ] {
        let dir = tempfile::tempdir().unwrap();
        fs::write(dir.path().join("box.tar.gz"), &bytes).unwrap();
        let md5 = md5::of_bytes(&bytes);
        archive(&md5).fetch("http://127.0.0.1:9", dir.path(), &mut |_, _| ()).unwrap_err();
        assert_eq!(listing(dir.path()), ["box.tar.gz"]);
        assert!(!dir.path().parent().unwrap().join("evil").exists());
    }
}

#[test]
fn only_cifar_has_an_archive() {
    let dir = Path::new("nowhere");
    for (name, hint) in
        [("digits", "inside the program"), ("mnist", "idx files"), ("folder", "train/<class>/")]
    {
        let text = download(name, dir, &mut |_, _| ()).unwrap_err().to_string();
        assert!(text.contains(hint), "{text}");
    }
    assert!(
        download("cifar1", dir, &mut |_, _| ()).unwrap_err().to_string().contains("did you mean 'cifar10'?")
    );
}
