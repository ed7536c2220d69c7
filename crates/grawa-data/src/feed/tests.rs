//! The quick copy against the definition, and the ways a batch can be refused.

use super::*;
use crate::picture::tests::png;
use grawa_core::Purpose;
use proptest::prelude::*;
use std::fs;

/// Images of distinct bytes, `n` of `shape`.
fn part(n: usize, shape: Shape) -> Split {
    let bytes = (0..n * shape.len()).map(|i| (i * 31 % 251) as u8).collect();
    Split::from_bytes(shape, bytes, (0..n as u32).map(|i| i % 7).collect(), 7).unwrap()
}

fn normalise(channels: usize) -> Normalise {
    Normalise::new(255.0, &[0.5, 0.4, 0.3][..channels], &[0.2, 0.25, 0.3][..channels])
}

/// One pixel as the documentation defines it.
fn defined(feed: &Feed, key: Key, at: u32, index: usize, (c, y, x): (u32, u32, u32)) -> f32 {
    let Crop::Random { pad, .. } = feed.augment.crop else { panic!("only crops") };
    let shape = feed.part.shape();
    let Window { flip, row, column } = feed.augment.window(key, at, shape);
    let (y, x) = (i64::from(y + row) - i64::from(pad), i64::from(x + column) - i64::from(pad));
    let x = if flip { i64::from(shape.width) - 1 - x } else { x };
    let inside = (0..i64::from(shape.height)).contains(&y) && (0..i64::from(shape.width)).contains(&x);
    let image = &feed.part.bytes().unwrap()[index * shape.len()..][..shape.len()];
    let byte = if inside {
        image[c as usize * shape.plane() + y as usize * shape.width as usize + x as usize]
    } else {
        0
    };
    feed.table[c as usize][usize::from(byte)]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn the_quick_copy_is_the_definition(
        seed: u64, step in 0u64..1000, flip: bool, pad in 0u32..9,
        (channels, height, width) in (1u32..4, 1u32..12, 1u32..12), size in 1u32..12,
    ) {
        prop_assume!(size <= height.min(width));
        let shape = Shape::new(channels, height, width);
        let augment = Augment { flip, crop: Crop::Random { pad, size } };
        let feed = Feed::new(&part(5, shape), &normalise(channels as usize), augment).unwrap();
        let key = Key::new(seed, Purpose::Augment).worker(3).step(step);
        let indices = [4, 0, 0, 2];
        let n = feed.output().len();
        let (mut images, mut labels) = (vec![f32::NAN; 4 * n], vec![99; 4]);
        feed.augmented(key, &indices, &mut images, &mut labels).unwrap();
        prop_assert_eq!(labels, [4, 0, 0, 2]);
        for (at, &index) in indices.iter().enumerate() {
            for (i, &pixel) in images[at * n..][..n].iter().enumerate() {
                let (c, y, x) = (i as u32 / (size * size), i as u32 / size % size, i as u32 % size);
                prop_assert_eq!(pixel, defined(&feed, key, at as u32, index as usize, (c, y, x)));
            }
        }
    }
}

#[test]
fn evaluation_shows_the_middle_and_masks_the_short_last_batch() {
    let shape = Shape::new(1, 6, 8);
    let feed = Feed::new(&part(5, shape), &normalise(1), "flip+crop4".parse().unwrap()).unwrap();
    let (mut images, mut labels) = (vec![f32::NAN; 2 * 16], vec![99; 2]);
    let mut seen = Vec::new();
    for number in 0.. {
        let real = feed.evaluation(number, &mut images, &mut labels).unwrap();
        if real == 0 {
            break;
        }
        seen.extend_from_slice(&labels[..real]);
        // Row 1, column 2 of the image is the first pixel of the middle.
        let first = feed.part.bytes().unwrap()[number * 2 * 48 + 8 + 2];
        assert_eq!(images[0], feed.table[0][usize::from(first)]);
        assert!(images[real * 16..].iter().all(|&x| x == 0.0) && labels[real..].iter().all(|&l| l == 0));
    }
    assert_eq!(seen, feed.part.labels());
    // The same images by their numbers.
    let mut again = vec![0.0; 16];
    feed.evaluation(1, &mut images, &mut labels).unwrap();
    feed.plain(&[3], &mut again, &mut [0]).unwrap();
    assert_eq!(images[16..], again);
}

#[test]
fn augment_none_and_whole_copy_everything() {
    let shape = Shape::new(3, 4, 5);
    let feed = Feed::new(&part(2, shape), &normalise(3), Augment::NONE).unwrap();
    let (mut a, mut b) = (vec![0.0; 60], vec![1.0; 60]);
    feed.augmented(Key::new(1, Purpose::Augment), &[1], &mut a, &mut [0]).unwrap();
    feed.plain(&[1], &mut b, &mut [0]).unwrap();
    assert_eq!(a, b);
    let bytes = &feed.part.bytes().unwrap()[60..];
    assert!(a.iter().enumerate().all(|(i, &x)| x == feed.table[i / 20][usize::from(bytes[i])]));
}

#[test]
fn what_does_not_fit_is_refused_in_words() {
    let small = part(3, Shape::new(1, 8, 8));
    let refused =
        |text: &str| Feed::new(&small, &normalise(1), text.parse().unwrap()).unwrap_err().to_string();
    assert!(refused("flip+crop28").contains("crop at most 8"));
    assert!(refused("resized224").contains("pictures in files"));
    assert!(refused("crop0").contains("from 1"));
    assert!(Feed::new(&small, &normalise(3), Augment::NONE).is_err());
    assert!(Feed::new(&small, &Normalise::new(255.0, &[0.0], &[0.0]), Augment::NONE).is_err());
    let feed = Feed::new(&small, &normalise(1), Augment::NONE).unwrap();
    let key = Key::new(1, Purpose::Augment);
    let text = feed.augmented(key, &[3], &mut [0.0; 64], &mut [0]).unwrap_err().to_string();
    assert!(text.contains("no example 3; it must be below 3"), "{text}");
    let text = feed.augmented(key, &[0], &mut [0.0; 63], &mut [0]).unwrap_err().to_string();
    assert!(text.contains("63, but 64"), "{text}");
    assert!(feed.plain(&[0], &mut [0.0; 64], &mut []).is_err());
    assert!(feed.evaluation(usize::MAX, &mut [0.0; 64], &mut [0]).is_ok_and(|real| real == 0));
}

#[test]
fn pictures_in_files_are_cropped_resized_and_named_when_broken() {
    let dir = tempfile::tempdir().unwrap();
    for (name, width, height) in
        [("train/a/0.png", 60, 40), ("train/b/1.png", 31, 77), ("val/a/2.png", 40, 40)]
    {
        let path = dir.path().join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, png(width, height, png::ColorType::Rgb, 1)).unwrap();
    }
    let set = crate::folder(dir.path(), &crate::Reading::default(), &|_, _| ()).unwrap();
    let feed = Feed::new(&set.train, &set.normalise, "flip+resized16".parse().unwrap()).unwrap();
    assert_eq!(feed.output(), Shape::new(3, 16, 16));
    let key = Key::new(1, Purpose::Augment).worker(1).step(9);
    let n = feed.output().len();
    let (mut images, mut again, mut labels) = (vec![f32::NAN; 3 * n], vec![f32::NAN; 3 * n], vec![9; 3]);
    feed.augmented(key, &[1, 0, 1], &mut images, &mut labels).unwrap();
    assert_eq!(labels, [1, 0, 1]);
    assert!(images.iter().all(|x| x.is_finite()));
    for threads in [1, 3] {
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        again.fill(f32::NAN);
        pool.install(|| feed.augmented(key, &[1, 0, 1], &mut again, &mut labels)).unwrap();
        assert!(images == again, "{threads} threads give other bits");
    }
    assert_ne!(images[..n], images[2 * n..], "the same picture is cropped differently");
    assert_eq!(feed.evaluation(0, &mut images, &mut labels).unwrap(), 2);

    let whole = Feed::new(&set.train, &set.normalise, Augment::NONE).unwrap();
    let mut images = vec![0.0; whole.output().len()];
    whole.plain(&[0], &mut images, &mut [0]).unwrap();
    let first = dir.path().join("train/a/0.png");
    let planes = picture::decode(&fs::read(&first).unwrap(), &first).unwrap().planes();
    let defined = |at: usize| whole.table()[at / (60 * 40)][usize::from(planes[at])];
    assert!(images.iter().enumerate().all(|(at, &found)| found == defined(at)));
    let text = whole.plain(&[1], &mut images, &mut [0]).unwrap_err().to_string();
    assert!(text.contains("1.png") && text.contains("3×77×31") && text.contains("3×40×60"), "{text}");

    let path = dir.path().join("train/b/1.png");
    let bytes = fs::read(&path).unwrap();
    fs::write(&path, &bytes[..bytes.len() / 2]).unwrap();
    let mut images = vec![0.0; n];
    let text = feed.plain(&[1], &mut images, &mut [0]).unwrap_err().to_string();
    assert!(text.contains("1.png") && text.contains("not a readable picture"), "{text}");
    fs::remove_file(&path).unwrap();
    assert!(feed.plain(&[1], &mut images, &mut [0]).unwrap_err().to_string().contains("cannot read"));
}
