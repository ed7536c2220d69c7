//! What the pictures of a folder are like, from their headers: for defaults that fit them.

use crate::error::{Result, io};
use crate::folder::{self, Reading};
use crate::picture;
use rayon::prelude::*;
use std::fs::File;
use std::io::Read as _;
use std::path::Path;

/// What the pictures of a folder are like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Training and test pictures.
    pub count: [usize; 2],
    /// Classes.
    pub classes: u32,
    /// Whether the folder itself says which pictures are for testing.
    pub is_split: bool,
    /// The median of the shorter sides of those that were looked at, in pixels.
    pub side: u32,
    /// Height and width, if every picture was looked at and all have the same.
    pub same: Option<(u32, u32)>,
    /// Whether none has colours.
    pub is_grey: bool,
}

/// At most so many headers are read.
const MOST: usize = 4096;
/// The part of a file that usually has the header: profiles and previews stand before it.
const HEADER: u64 = 1 << 18;

/// Lists the pictures below `dir` and reads the headers of up to 4,096 of them, evenly spread.
pub fn survey(dir: &Path, reading: &Reading) -> Result<Survey> {
    look(dir, reading).map_err(|error| folder::every_problem(dir, reading, error))
}

fn look(dir: &Path, reading: &Reading) -> Result<Survey> {
    let listed = folder::list(dir, reading)?;
    let count = [0, 1].map(|part: usize| listed.parts[part].0.len());
    let all: Vec<&Path> = listed.parts.iter().flat_map(|(files, _)| files).map(AsRef::as_ref).collect();
    let looked: Vec<&Path> = all.iter().step_by(all.len().div_ceil(MOST)).copied().collect();
    let mut found = looked.par_iter().map(|path| header(path)).collect::<Result<Vec<_>>>()?;
    let is_grey = found.iter().all(|(_, is_grey)| *is_grey);
    let first = found[0].0;
    let same =
        Some(first).filter(|_| looked.len() == all.len() && found.iter().all(|(size, _)| *size == first));
    found.sort_by_key(|((height, width), _)| height.min(width).to_owned());
    let (height, width) = found[found.len() / 2].0;
    let classes = listed.names.len() as u32;
    Ok(Survey { count, classes, is_split: listed.is_split, side: height.min(width), same, is_grey })
}

/// Height and width of a picture, and whether it has no colours.
fn header(path: &Path) -> Result<((u32, u32), bool)> {
    let mut bytes = Vec::new();
    let file = File::open(path).map_err(io("read", path))?;
    file.take(HEADER).read_to_end(&mut bytes).map_err(io("read", path))?;
    let size = match picture::size(&bytes, path) {
        Ok(size) => size,
        Err(_) if bytes.len() as u64 == HEADER => {
            bytes = folder::read(path)?;
            picture::size(&bytes, path)?
        }
        Err(error) => return Err(error),
    };
    Ok((size, picture::is_grey(&bytes)))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::picture::tests::png;
    use std::fs;

    #[test]
    fn sizes_and_colours_are_seen() {
        let dir = tempfile::tempdir().unwrap();
        let write = |name: &str, width, height, colour| {
            let path = dir.path().join(name);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, png(width, height, colour, 1)).unwrap();
        };
        for number in 0..5 {
            write(&format!("a/{number}.png"), 30, 40, png::ColorType::Grayscale);
            write(&format!("b/{number}.png"), 30, 40, png::ColorType::Grayscale);
        }
        let look = || survey(dir.path(), &Reading { split_test: 0.2, ..Reading::default() }).unwrap();
        let same = Survey {
            count: [8, 2],
            classes: 2,
            is_split: false,
            side: 30,
            same: Some((40, 30)),
            is_grey: true,
        };
        assert_eq!(look(), same);
        write("b/other.png", 90, 80, png::ColorType::Rgb);
        assert_eq!(look(), Survey { count: [9, 2], same: None, is_grey: false, ..same });
    }
}
