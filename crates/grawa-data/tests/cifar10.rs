//! The real CIFAR-10, where the environment variable `GRAWA_CIFAR10` names a folder that holds it.

use grawa_data::{DatasetKind, Feed, Loader, PrefetchLoader, Sampler, load};
use std::path::PathBuf;

fn folder() -> PathBuf {
    std::env::var_os("GRAWA_CIFAR10")
        .map(PathBuf::from)
        .expect("GRAWA_CIFAR10 names a folder that holds CIFAR-10")
}

#[test]
#[ignore = "needs CIFAR-10: GRAWA_CIFAR10 names its folder, and --include-ignored"]
fn it_is_what_the_constants_say() {
    let set = load("cifar10", &folder()).unwrap();
    assert_eq!((set.train.len(), set.test.len(), set.classes), (50_000, 10_000, 10));
    for (part, each) in [(&set.train, 5_000), (&set.test, 1_000)] {
        let mut counts = [0; 10];
        part.labels().iter().for_each(|&label| counts[label as usize] += 1);
        assert_eq!(counts, [each; 10]);
    }
    let bytes = set.train.bytes().unwrap();
    for (channel, &mean) in set.normalise.mean.iter().enumerate() {
        let planes = bytes.chunks_exact(1024).skip(channel).step_by(3);
        let sum: u64 = planes.flatten().map(|&byte| u64::from(byte)).sum();
        let found = sum as f64 / (50_000.0 * 1024.0 * 255.0);
        println!("channel {channel}: mean {found:.5}, constant {mean}");
        assert!((found - f64::from(mean)).abs() < 5e-4);
    }
}

#[test]
#[ignore = "needs CIFAR-10: GRAWA_CIFAR10 names its folder, and --include-ignored"]
fn an_epoch_of_four_workers_shows_every_class_equally() {
    let set = load("cifar10", &folder()).unwrap();
    let feed = Feed::new(&set.train, &set.normalise, DatasetKind::Cifar10.augment("resnet20")).unwrap();
    let order = Sampler::new(36, feed.len(), 4, 125).unwrap();
    let mut counts = [0; 10];
    for worker in 0..4 {
        let mut ahead =
            PrefetchLoader::training(Loader::new(feed.clone(), &order, worker).unwrap(), 0, 2).unwrap();
        for _ in 0..100 {
            let batch = ahead.fetch().unwrap();
            batch.labels.iter().for_each(|&label| counts[label as usize] += 1);
            assert!(batch.images.iter().all(|x| x.abs() < 3.0));
        }
    }
    assert_eq!(counts, [5_000; 10]);
}
