//! How many pictures of a folder a second become training batches on RAYON_NUM_THREADS cores, and how many are decoded alone:
//! `cargo bench -p grawa-data --bench pictures -- DIR SECONDS`. `oracle/pictures.py` runs it beside PyTorch.

use grawa_data::{DatasetKind, Feed, Images, Loader, PrefetchLoader, Reading, Sampler, decode, folder};
use rayon::prelude::*;
use std::time::Instant;

const BATCH: usize = 64;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1).filter(|word| word != "--bench");
    let dir = arguments.next().ok_or("give the folder that holds the class folders")?;
    let seconds: f64 = arguments.next().ok_or("give the seconds to measure")?.parse()?;
    let set = folder(dir.as_ref(), &Reading { split_test: 0.1, ..Reading::default() }, &|_, _| ())?;
    let feed = Feed::new(&set.train, &DatasetKind::Folder.normalise(), "flip+resized224".parse()?)?;
    let order = Sampler::new(7, feed.len(), 1, BATCH as u32)?;
    let mut batches = PrefetchLoader::training(Loader::new(feed, &order, 0)?, 0, 2)?;
    // The first batches fill the buffers.
    for _ in 0..3 {
        batches.fetch()?;
    }
    let (start, mut count) = (Instant::now(), 0);
    while start.elapsed().as_secs_f64() < seconds {
        count += batches.fetch()?.labels.len();
    }
    println!("batches {:.1}", count as f64 / start.elapsed().as_secs_f64());
    drop(batches);

    let Images::Files(files) = set.train.images() else { return Err("pictures in memory".into()) };
    let (start, mut count) = (Instant::now(), 0);
    for part in files.chunks(BATCH).cycle() {
        part.par_iter().try_for_each(|path| {
            let bytes = std::fs::read(path).map_err(|why| why.to_string())?;
            decode(&bytes, path).map(|_| ()).map_err(|why| why.to_string())
        })?;
        count += part.len();
        if start.elapsed().as_secs_f64() >= seconds {
            break;
        }
    }
    println!("decoded {:.1}", count as f64 / start.elapsed().as_secs_f64());
    Ok(())
}
