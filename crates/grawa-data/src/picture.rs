//! Pictures in files: decoding JPEG and PNG to RGB, cutting and resizing.
//!
//! Greyscale becomes three equal channels, 16 bits become 8, transparency is dropped, CMYK and YCCK are
//! converted, palettes looked up. The first bytes of a file decide its format, not its name (ImageNet has a PNG called
//! .JPEG). A damaged or truncated file is an error that names it, never a half-grey picture.

use crate::error::{Error, Result};
use crate::{Rectangle, Shape};
use fast_image_resize::images::{TypedImage, TypedImageRef};
use fast_image_resize::pixels::U8x3;
use fast_image_resize::{FilterType, ResizeAlg, ResizeOptions, Resizer};
use std::io::Cursor;
use std::path::Path;
use zune_core::bytestream::ZCursor;
use zune_core::colorspace::ColorSpace;
use zune_core::options::DecoderOptions;
use zune_jpeg::JpegDecoder;

/// A picture: rows of red, green, blue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Picture {
    /// Rows.
    pub height: u32,
    /// Columns.
    pub width: u32,
    /// Three bytes for each pixel, row after row.
    pub pixels: Vec<u8>,
}

/// The longest side, and the most pixels of a picture: 192 MB decoded.
const LONGEST: usize = 1 << 14;
const MOST: usize = 1 << 26;

/// Decodes a JPEG or PNG file; `path` is only used in errors.
pub fn decode(bytes: &[u8], path: &Path) -> Result<Picture> {
    let read = |is_jpeg| if is_jpeg { jpeg(bytes, true) } else { png_picture(bytes) };
    is_jpeg(bytes).and_then(read).map_err(|why| Error::broken_picture(path, &why))
}

/// Height and width of a JPEG or PNG file, from its header.
pub(crate) fn size(bytes: &[u8], path: &Path) -> Result<(u32, u32)> {
    let read = |is_jpeg| match is_jpeg {
        true => jpeg_header(bytes, false).map(|(_, height, width)| (height as u32, width as u32)),
        false => png_header(bytes).map(|reader| (reader.info().height, reader.info().width)),
    };
    is_jpeg(bytes).and_then(read).map_err(|why| Error::broken_picture(path, &why))
}

/// Whether a JPEG or PNG file has no colours, from its header.
pub(crate) fn is_grey(bytes: &[u8]) -> bool {
    match is_jpeg(bytes) {
        Ok(true) => jpeg_header(bytes, false).is_ok_and(|(decoder, ..)| {
            decoder.input_colorspace().is_some_and(|space| space.num_components() == 1)
        }),
        Ok(false) => png_header(bytes).is_ok_and(|reader| {
            matches!(reader.info().color_type, png::ColorType::Grayscale | png::ColorType::GrayscaleAlpha)
        }),
        Err(_) => false,
    }
}

/// Whether a file is a JPEG or, if not, a PNG.
fn is_jpeg(bytes: &[u8]) -> Result<bool, String> {
    match bytes {
        [0xff, 0xd8, ..] => Ok(true),
        [0x89, b'P', b'N', b'G', b'\r', b'\n', 0x1a, b'\n', ..] => Ok(false),
        _ => {
            Err(format!("it begins with {:02x?}, as neither JPEG nor PNG does", &bytes[..bytes.len().min(8)]))
        }
    }
}

/// Refuses sizes that a file of this length cannot have, given at most `densest` pixels for each byte: a header alone must
/// not cause a large allocation.
fn plausible(height: usize, width: usize, bytes: usize, densest: usize) -> Result<(), String> {
    let pixels = height.saturating_mul(width);
    if height == 0 || width == 0 || height > LONGEST || width > LONGEST || pixels > MOST {
        return Err(format!(
            "{width}×{height} pixels, but sides go from 1 to {LONGEST} and pixels to {MOST}"
        ));
    }
    if pixels > bytes.saturating_mul(densest) {
        return Err(format!("{width}×{height} pixels in {bytes} bytes, so that most must be missing"));
    }
    Ok(())
}

type Jpeg<'a> = JpegDecoder<ZCursor<&'a [u8]>>;

fn jpeg_header(bytes: &[u8], strict: bool) -> Result<(Jpeg<'_>, usize, usize), String> {
    let options = DecoderOptions::default()
        .set_strict_mode(strict)
        .set_max_width(LONGEST)
        .set_max_height(LONGEST)
        .jpeg_set_out_colorspace(ColorSpace::RGB);
    let mut decoder = JpegDecoder::new_with_options(ZCursor::new(bytes), options);
    decoder.decode_headers().map_err(|e| e.to_string())?;
    let (width, height) = decoder.dimensions().ok_or("a header without a size")?;
    // The shortest code of an 8×8 block is one bit.
    plausible(height, width, bytes.len(), 8 * 64 * 2)?;
    Ok((decoder, height, width))
}

/// Strict, so that missing data is an error. Only padding between headers is forgiven, which libjpeg skips too,
/// and then the file must at least have its end.
fn jpeg(bytes: &[u8], strict: bool) -> Result<Picture, String> {
    let decoded = jpeg_header(bytes, strict).and_then(|(mut decoder, height, width)| {
        let pixels = decoder.decode().map_err(|e| e.to_string())?;
        if pixels.len() != height * width * 3 {
            return Err(format!("{} bytes for {width}×{height} pixels", pixels.len()));
        }
        Ok(Picture { height: height as u32, width: width as u32, pixels })
    });
    match decoded {
        Err(why) if strict && why.contains("Extra bytes between headers") => {
            let tail = &bytes[bytes.len().saturating_sub(1024)..];
            if tail.windows(2).any(|pair| pair == [0xff, 0xd9]) { jpeg(bytes, false) } else { Err(why) }
        }
        other => other,
    }
}

fn png_header(bytes: &[u8]) -> Result<png::Reader<Cursor<&[u8]>>, String> {
    // Ancillary chunks (profiles, texts) are bounded by this; the pixels are checked by hand.
    let limits = png::Limits { bytes: 64 << 20 };
    let mut decoder = png::Decoder::new_with_limits(Cursor::new(bytes), limits);
    decoder.set_transformations(png::Transformations::EXPAND | png::Transformations::STRIP_16);
    let reader = decoder.read_info().map_err(|e| e.to_string())?;
    let (height, width) = (reader.info().height as usize, reader.info().width as usize);
    // Deflate packs at most 1,032 to 1, and a pixel has at least one bit.
    plausible(height, width, bytes.len(), 1032 * 8)?;
    Ok(reader)
}

fn png_picture(bytes: &[u8]) -> Result<Picture, String> {
    let mut reader = png_header(bytes)?;
    let (height, width) = (reader.info().height, reader.info().width);
    let size = reader.output_buffer_size().ok_or("more pixels than memory can address")?;
    let mut raw = vec![0; size];
    let frame = reader.next_frame(&mut raw).map_err(|e| e.to_string())?;
    raw.truncate(frame.buffer_size());
    let channels = frame.color_type.samples();
    let count = height as usize * width as usize;
    if frame.bit_depth != png::BitDepth::Eight || raw.len() != count * channels {
        return Err(format!("{} bytes for {width}×{height} pixels", raw.len()));
    }
    let pixels = match channels {
        1 | 2 => raw.chunks_exact(channels).flat_map(|pixel| [pixel[0]; 3]).collect(),
        4 => raw.chunks_exact(4).flat_map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect(),
        _ => raw,
    };
    Ok(Picture { height, width, pixels })
}

impl Picture {
    pub(crate) fn shape(&self) -> Shape {
        Shape::new(3, self.height, self.width)
    }

    /// The `part` of the picture, resized to `height` × `width` by the triangle filter with antialiasing, as
    /// Pillow and torchvision do.
    pub(crate) fn resized(
        &self,
        part: Rectangle,
        height: u32,
        width: u32,
        resizer: &mut Resizer,
    ) -> Result<Picture> {
        // Sizes were checked when the picture was decoded; an error here would be a bug.
        let fault = |why: String| Error::broken_picture(Path::new("resizing"), &why);
        let mut pixels = vec![0; 3 * height as usize * width as usize];
        // Typed: the crate's other function compiles code for all pixel types.
        let from = TypedImageRef::<U8x3>::from_buffer(self.width, self.height, &self.pixels)
            .map_err(|e| fault(e.to_string()))?;
        let mut to =
            TypedImage::<U8x3>::from_buffer(width, height, &mut pixels).map_err(|e| fault(e.to_string()))?;
        let options = ResizeOptions::new().resize_alg(ResizeAlg::Convolution(FilterType::Bilinear)).crop(
            part.column.into(),
            part.row.into(),
            part.width.into(),
            part.height.into(),
        );
        resizer.resize_typed(&from, &mut to, &options).map_err(|e| fault(e.to_string()))?;
        Ok(Picture { height, width, pixels })
    }

    /// The picture with a shorter side of at most `side`; in proportion.
    pub(crate) fn shrunk(self, side: u32, resizer: &mut Resizer) -> Result<Picture> {
        let (height, width, short) = (self.height, self.width, self.height.min(self.width));
        if short <= side {
            return Ok(self);
        }
        let whole = Rectangle { row: 0, column: 0, height, width };
        let new = |long: u32| ((u64::from(side) * u64::from(long)) / u64::from(short)) as u32;
        self.resized(whole, new(height), new(width), resizer)
    }

    /// The picture resized for evaluation, its shorter side to 256 for a square of 224 and in proportion for others, and where
    /// the middle square of `size` begins in it; torchvision's rounding. Of a picture whose longer side would become longer than
    /// 65,536 only the middle is resized, four times as long as the shorter side: the square does not reach the rest.
    pub(crate) fn shortened(&self, size: u32, resizer: &mut Resizer) -> Result<(Picture, u32, u32)> {
        let shorter = (size * 8).div_ceil(7);
        let long = |long: u32, short: u32| ((u64::from(shorter) * u64::from(long)) / u64::from(short)) as u32;
        let (height, width) = if self.width <= self.height {
            (long(self.height, self.width), shorter)
        } else {
            (shorter, long(self.width, self.height))
        };
        let whole = Rectangle { row: 0, column: 0, height: self.height, width: self.width };
        let (part, height, width) = if height.max(width) as usize <= 4 * LONGEST {
            (whole, height, width)
        } else if self.width <= self.height {
            let kept = self.height.min(4 * self.width);
            let part = Rectangle { row: (self.height - kept) / 2, height: kept, ..whole };
            (part, long(kept, self.width), shorter)
        } else {
            let kept = self.width.min(4 * self.height);
            let part = Rectangle { column: (self.width - kept) / 2, width: kept, ..whole };
            (part, shorter, long(kept, self.height))
        };
        let middle = |side: u32| (f64::from(side - size) / 2.0).round_ties_even() as u32;
        Ok((self.resized(part, height, width, resizer)?, middle(height), middle(width)))
    }

    /// The same bytes plane by plane: all reds, all greens, all blues.
    pub(crate) fn planes(&self) -> Vec<u8> {
        let mut planes = Vec::with_capacity(self.pixels.len());
        for channel in 0..3 {
            planes.extend(self.pixels.chunks_exact(3).map(|pixel| pixel[channel]));
        }
        planes
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use proptest::prelude::*;

    /// A PNG of a pattern that every colour type can show.
    pub(crate) fn png(width: u32, height: u32, color: png::ColorType, bytes: usize) -> Vec<u8> {
        let mut file = Vec::new();
        let mut encoder = png::Encoder::new(&mut file, width, height);
        encoder.set_color(color);
        encoder.set_depth(if bytes == 2 { png::BitDepth::Sixteen } else { png::BitDepth::Eight });
        if color == png::ColorType::Indexed {
            encoder.set_palette((0..768).map(|i| (i / 3 * 2) as u8).collect::<Vec<u8>>());
        }
        let values = width as usize * height as usize * color.samples();
        let data: Vec<u8> =
            (0..values).flat_map(|i| [(i * 9 % 120) as u8; 2].into_iter().take(bytes)).collect();
        encoder.write_header().unwrap().write_image_data(&data).unwrap();
        file
    }

    #[test]
    fn every_kind_of_png_becomes_rgb() {
        use png::ColorType::{Grayscale, GrayscaleAlpha, Indexed, Rgb, Rgba};
        let name = Path::new("x.png");
        for (color, bytes, second) in [
            (Rgb, 1, [27, 36, 45]),
            (Rgb, 2, [27, 36, 45]),
            (Rgba, 1, [36, 45, 54]),
            (Rgba, 2, [36, 45, 54]),
            (Grayscale, 1, [9; 3]),
            (Grayscale, 2, [9; 3]),
            (GrayscaleAlpha, 1, [18; 3]),
            (Indexed, 1, [18; 3]),
        ] {
            let picture = decode(&png(5, 4, color, bytes), name).unwrap();
            assert_eq!((picture.height, picture.width, picture.pixels.len()), (4, 5, 60));
            assert_eq!(picture.pixels[3..6], second, "{color:?}");
            assert_eq!(size(&png(5, 4, color, bytes), name).unwrap(), (4, 5));
        }
    }

    /// Made by another program: a palette of 4, one bit a pixel, 16 bits, transparency.
    #[test]
    fn pillow_s_pngs_are_read() {
        let red = [200, 30, 40];
        for (file, corner) in [
            (&include_bytes!("../tests/pictures/palette.png")[..], red),
            (include_bytes!("../tests/pictures/rgba.png"), red),
            (include_bytes!("../tests/pictures/bits.png"), [0; 3]),
            (include_bytes!("../tests/pictures/grey16.png"), [0; 3]),
        ] {
            let picture = decode(file, Path::new("x")).unwrap();
            assert_eq!((picture.height, picture.width), (6, 10));
            assert_eq!(picture.pixels[..3], corner);
        }
    }

    /// Pillow's pixels of the same files, within the few levels by which decoders may differ.
    #[test]
    fn every_kind_of_jpeg_becomes_rgb() {
        for (name, file, corners) in JPEGS {
            let picture = decode(file, Path::new(name)).unwrap();
            assert_eq!((picture.height, picture.width), (24, 40), "{name}");
            let pixel = |y: usize, x: usize| &picture.pixels[(y * 40 + x) * 3..][..3];
            for (corner, expected) in
                [pixel(4, 4), pixel(4, 35), pixel(19, 4), pixel(19, 35)].into_iter().zip(corners)
            {
                let off = corner.iter().zip(expected).map(|(&a, b)| a.abs_diff(b)).max().unwrap();
                assert!(off <= 3, "{name}: {corner:?}, Pillow has {expected:?}");
            }
        }
    }

    type Corners = [[u8; 3]; 4];
    /// Small pictures made with Pillow, and the pixels Pillow reads from them at (4, 4), (4, 35), (19, 4), (19, 35).
    const JPEGS: [(&str, &[u8], Corners); 5] = [
        (
            "rgb.jpg",
            include_bytes!("../tests/pictures/rgb.jpg"),
            [[198, 31, 41], [20, 160, 63], [30, 60, 220], [240, 231, 200]],
        ),
        (
            "progressive.jpg",
            include_bytes!("../tests/pictures/progressive.jpg"),
            [[198, 31, 41], [20, 160, 63], [30, 60, 220], [240, 231, 200]],
        ),
        (
            "grey.jpg",
            include_bytes!("../tests/pictures/grey.jpg"),
            [[82, 82, 82], [107, 107, 107], [69, 69, 69], [230, 230, 230]],
        ),
        (
            "cmyk.jpg",
            include_bytes!("../tests/pictures/cmyk.jpg"),
            [[200, 30, 40], [20, 160, 60], [30, 60, 220], [240, 230, 200]],
        ),
        (
            "ycck.jpg",
            include_bytes!("../tests/pictures/ycck.jpg"),
            [[47, 191, 183], [199, 80, 166], [190, 164, 30], [13, 21, 47]],
        ),
    ];

    #[test]
    fn a_cut_or_damaged_picture_is_an_error_that_names_it() {
        let name = Path::new("n01440764_10026.JPEG");
        let (_, jpeg, _) = JPEGS[0];
        let png = png(50, 40, png::ColorType::Rgb, 1);
        for file in [jpeg, &png] {
            for part in [0, 1, 2, 3, 5] {
                let cut = &file[..file.len() * part / 6];
                let text = decode(cut, name).unwrap_err().to_string();
                assert!(text.contains("n01440764_10026.JPEG"), "{text}");
            }
        }
        let text = decode(b"GIF89a......", name).unwrap_err().to_string();
        assert!(text.contains("neither JPEG nor PNG"), "{text}");
        let mut wrong = png.clone();
        let middle = wrong.len() / 2;
        wrong[middle] ^= 0x55;
        assert!(decode(&wrong, name).is_err());
    }

    #[test]
    fn padding_between_headers_is_forgiven_in_a_whole_file() {
        let (name, file, _) = JPEGS[0];
        // Before the table of quantisation, the marker 0xffdb.
        let at = file.windows(2).position(|pair| pair == [0xff, 0xdb]).unwrap();
        let padded = [&file[..at], &[0; 9], &file[at..]].concat();
        assert_eq!(decode(&padded, Path::new(name)).unwrap(), decode(file, Path::new(name)).unwrap());
        assert!(decode(&padded[..padded.len() - 60], Path::new(name)).is_err());
    }

    #[test]
    fn a_header_that_promises_the_world_costs_nothing() {
        let mut file = png(5, 4, png::ColorType::Rgb, 1);
        file[16..24].copy_from_slice(&[0, 0, 0x40, 0, 0, 0, 0x10, 0]);
        // The sum of the header must be right for its size to be believed at all.
        let sum = crc(&file[12..29]);
        file[29..33].copy_from_slice(&sum.to_be_bytes());
        let text = decode(&file, Path::new("x")).unwrap_err().to_string();
        assert!(text.contains("16384×4096 pixels in"), "{text}");
    }

    fn crc(bytes: &[u8]) -> u32 {
        !bytes.iter().fold(!0, |sum, &byte| {
            (0..8).fold(
                sum ^ u32::from(byte),
                |sum, _| if sum & 1 == 1 { sum >> 1 ^ 0xedb8_8320 } else { sum >> 1 },
            )
        })
    }

    /// Of a picture of one column, evaluation sees the middle: here row 1500 of 3000 and those beside it.
    #[test]
    fn a_long_thin_picture_is_shown() {
        let level = |at: u32| if (1490..1510).contains(&at) { 200 } else { 10 };
        let pixels: Vec<u8> = (0..3000).flat_map(|at| [level(at); 3]).collect();
        for (height, width) in [(3000, 1), (1, 3000)] {
            let thin = Picture { height, width, pixels: pixels.clone() };
            let (short, row, column) = thin.shortened(32, &mut Resizer::new()).unwrap();
            assert_eq!(short.height.min(short.width), 37);
            assert_eq!(short.height.max(short.width), 4 * 37);
            let middle = (row + 16) * short.width + column + 16;
            assert_eq!(short.pixels[3 * middle as usize], 200);
        }
    }

    #[test]
    fn resizing_keeps_flat_colours_and_means() {
        let mut resizer = Resizer::new();
        let flat = Picture { height: 30, width: 50, pixels: [10, 200, 77].repeat(1500) };
        let part = Rectangle { row: 3, column: 7, height: 20, width: 31 };
        assert_eq!(flat.resized(part, 16, 16, &mut resizer).unwrap().pixels, [10, 200, 77].repeat(256));
        let (short, row, column) = flat.shortened(56, &mut resizer).unwrap();
        assert_eq!((short.height, short.width, row, column), (64, 106, 4, 25));
        assert_eq!(flat.shortened(224, &mut resizer).unwrap().0.shape(), Shape::new(3, 256, 426));
        // Left half black, right half white: each half of the result stays so.
        let half: Vec<u8> = (0..40 * 40).flat_map(|i| [if i % 40 < 20 { 0 } else { 255 }; 3]).collect();
        let half = Picture { height: 40, width: 40, pixels: half };
        let whole = Rectangle { row: 0, column: 0, height: 40, width: 40 };
        let small = half.resized(whole, 4, 4, &mut resizer).unwrap();
        assert_eq!((small.pixels[0], small.pixels[9]), (0, 255));
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(256))]

        #[test]
        fn any_bytes_are_read_or_refused(
            which: prop::sample::Index,
            changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..6),
            cut: prop::sample::Index,
        ) {
            let mut files: Vec<Vec<u8>> = JPEGS.iter().map(|(_, file, _)| file.to_vec()).collect();
            files.push(png(9, 7, png::ColorType::Rgb, 1));
            let mut bytes = files.swap_remove(which.index(files.len()));
            for (at, byte) in changes {
                let at = at.index(bytes.len());
                bytes[at] = byte;
            }
            bytes.truncate(bytes.len() - cut.index(bytes.len()) / 4);
            if let Ok(picture) = decode(&bytes, Path::new("x")) {
                prop_assert_eq!(picture.pixels.len(), picture.height as usize * picture.width as usize * 3);
            }
        }

        #[test]
        fn random_bytes_are_refused(mut bytes in prop::collection::vec(any::<u8>(), 0..300), jpeg: bool) {
            if jpeg && bytes.len() > 2 {
                bytes[..3].copy_from_slice(&[0xff, 0xd8, 0xff]);
            }
            let _ = (decode(&bytes, Path::new("x")), size(&bytes, Path::new("x")));
        }
    }
}
