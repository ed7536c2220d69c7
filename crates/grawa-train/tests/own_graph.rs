//! The example `02_own_graph` on a folder of pictures that is made here.

#![allow(clippy::unwrap_used)]

use std::fs::{self, File};
use std::path::Path;

#[allow(dead_code)]
#[path = "../examples/02_own_graph.rs"]
mod own_graph;

/// A picture of one colour.
fn picture(path: &Path, colour: [u8; 3]) {
    let mut encoder = png::Encoder::new(File::create(path).unwrap(), 40, 36);
    encoder.set_color(png::ColorType::Rgb);
    encoder.write_header().unwrap().write_image_data(&colour.repeat(40 * 36)).unwrap();
}

#[test]
fn the_example_trains_on_a_folder_of_pictures() {
    let place = tempfile::tempdir().unwrap();
    for (part, count) in [("train", 12), ("val", 4)] {
        for (class, tint) in [("dusk", [60u8, 20, 40]), ("noon", [200, 180, 90])] {
            let folder = place.path().join(part).join(class);
            fs::create_dir_all(&folder).unwrap();
            for number in 0..count {
                picture(&folder.join(format!("{number}.png")), tint.map(|channel| channel + 3 * number));
            }
        }
    }
    assert_eq!(own_graph::learn(place.path(), "8step").unwrap(), 8);
    let source = include_str!("../examples/02_own_graph.rs");
    let code = source.lines().filter(|line| !line.is_empty() && !line.starts_with("//!")).count();
    assert!(code < 40, "the documentation says under forty lines, and it has {code}");
}
