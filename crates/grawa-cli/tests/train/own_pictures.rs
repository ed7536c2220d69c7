//! A user's own pictures: one command trains on them.

use crate::repeated::same;
use crate::{text, train};
use std::fs;
use std::path::Path;
use std::process::Command;
use tempfile::TempDir;

/// A PNG of grey pixels, stored without compression.
pub(crate) fn png(side: u32, pixel: impl Fn(u32, u32) -> u8) -> Vec<u8> {
    let check = |bytes: &[u8]| {
        !bytes.iter().fold(!0u32, |sum, &byte| {
            (0..8)
                .fold(sum ^ u32::from(byte), |sum, _| (sum >> 1) ^ if sum & 1 == 1 { 0xedb8_8320 } else { 0 })
        })
    };
    let chunk = |name: &[u8; 4], data: &[u8]| {
        let named = [name, data].concat();
        [&(data.len() as u32).to_be_bytes()[..], &named, &check(&named).to_be_bytes()].concat()
    };
    let rows: Vec<u8> = (0..side)
        .flat_map(|y| [0].into_iter().chain((0..side).map(|x| pixel(x, y)).collect::<Vec<_>>()))
        .collect();
    let (a, b) = rows.iter().fold((1u32, 0u32), |(a, b), &byte| {
        let a = (a + u32::from(byte)) % 65521;
        (a, (b + a) % 65521)
    });
    let length = rows.len() as u16;
    let zlib = [
        &[0x78, 1, 1][..],
        &length.to_le_bytes(),
        &(!length).to_le_bytes(),
        &rows,
        &(b << 16 | a).to_be_bytes(),
    ];
    let size = [side.to_be_bytes(), side.to_be_bytes()].concat();
    let header = chunk(b"IHDR", &[&size[..], &[8, 0, 0, 0, 0]].concat());
    [&b"\x89PNG\r\n\x1a\n"[..], &header, &chunk(b"IDAT", &zlib.concat()), &chunk(b"IEND", &[])].concat()
}

/// Stripes down and across, 24 pictures each.
pub(crate) fn draw_stripes(place: &Path) {
    for number in 0..48u32 {
        let folder = place.join(["down", "across"][number as usize % 2]);
        fs::create_dir_all(&folder).unwrap();
        let stripe = |x: u32, y: u32| if number % 2 == 0 { x } else { y } + number / 8;
        let noise = |x: u32, y: u32| (x * 7 + y * 13 + number * 29) % 61;
        let pixel = |x, y| (stripe(x, y) % 4 / 2 * 150 + noise(x, y)) as u8;
        fs::write(folder.join(format!("{number}.png")), png(8, pixel)).unwrap();
    }
}

/// A folder of pictures and nothing else: what is chosen is in the recipe, it learns, and evaluation, replay and resume need no more.
#[test]
fn a_folder_of_pictures_needs_one_command() {
    let place = TempDir::new().unwrap();
    draw_stripes(&place.path().join("mine"));
    let done = |arguments: &[&str]| {
        let output = train(place.path(), arguments);
        assert_eq!(output.status.code(), Some(0), "{arguments:?}: {}", text(&output.stderr));
        text(&output.stdout)
    };
    let printed = done(&["--data", "folder", "--dir", "mine", "--out", "run"]);
    assert!(
        printed.contains("greyscale pictures all of 8×8, in 2 classes: 38 to train on, 10 for testing"),
        "{printed}"
    );
    assert!(printed.contains("data.augment = \"pad1crop8\""), "{printed}");
    let recipe = fs::read_to_string(place.path().join("run/recipe.toml")).unwrap();
    for line in
        ["split_test = 0.2", "shrink = 8", "augment = \"pad1crop8\"", "name = \"resnet20\"", "batch = 8"]
    {
        assert!(recipe.contains(line), "{line}: {recipe}");
    }
    let mut eval = Command::new(env!("CARGO_BIN_EXE_grawa"));
    let eval = text(&eval.args(["eval", "run"]).current_dir(place.path()).output().unwrap().stdout);
    let all = eval.lines().find(|line| line.starts_with("all")).unwrap();
    let error: f64 = all.split_whitespace().last().unwrap().parse().unwrap();
    assert!(error <= 20.0, "{eval}");
    done(&["--replay", "run", "--out", "again"]);
    same(&place.path().join("run"), &place.path().join("again"));
    let kept = fs::read_dir(place.path().join("again/checkpoints")).unwrap();
    let mut kept: Vec<String> = kept.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    kept.sort();
    done(&["--resume", "again", "--checkpoint", &kept[0]]);
    same(&place.path().join("run"), &place.path().join("again"));
}

/// What is left out of a folder is said once, and the run goes on.
#[test]
fn pictures_that_are_left_out_are_counted() {
    let place = TempDir::new().unwrap();
    draw_stripes(&place.path().join("mine"));
    fs::write(place.path().join("mine/down/x.webp"), b"").unwrap();
    let output =
        train(place.path(), &["--data", "folder", "--dir", "mine", "--budget", "40step", "--out", "run"]);
    let error = text(&output.stderr);
    assert_eq!(output.status.code(), Some(0), "{error}");
    assert_eq!(error.matches("x.webp").count(), 1, "{error}");
}
