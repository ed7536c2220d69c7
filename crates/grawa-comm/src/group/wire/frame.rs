//! Frames: messages on a connection, each with its length, its number and a checksum.
//!
//! ```text
//! length of the body  4 bytes, little-endian
//! number              4 bytes: 0 for the first frame on a connection, then increasing by one
//! checksum            4 bytes: CRC-32C of the number and the body
//! body
//! ```
//! A repeated frame is ignored. One that is damaged, too long, or not the next ends the connection.

use crate::Error;
use crate::group::digest::Crc;
use std::io::Write;

/// The bytes before a body.
pub const HEADER: usize = 12;

/// The longest body: the memory that a donor sends must fit. Control messages are shorter.
pub const LONGEST: usize = 64 << 20;

/// The most bytes that are read at once.
const STEP: usize = 1 << 16;

/// Numbers the frames of one direction.
#[derive(Clone, Copy, Debug, Default)]
pub struct Numbers {
    next: u32,
    /// Bytes of frames that were new, and of repetitions.
    fresh: u64,
    repeated: u64,
}

/// Bytes that may be repeated beyond those that were new: what is new is counted where it is used, and repetitions are not.
const REPEATED: u64 = 1 << 16;

impl Numbers {
    /// The number of the next frame to send.
    pub fn give(&mut self) -> u32 {
        let number = self.next;
        self.next = self.next.wrapping_add(1);
        number
    }

    /// Whether a frame of this number is new. An error if one before it is missing.
    pub fn take(&mut self, number: u32) -> Result<bool, Error> {
        let ahead = number.wrapping_sub(self.next);
        match ahead {
            0 => {
                self.next = self.next.wrapping_add(1);
                Ok(true)
            }
            // Half of all numbers count as earlier ones.
            0x8000_0000.. => Ok(false),
            _ => Err(Error::Frame { why: format!("number {number} came where {} was next", self.next) }),
        }
    }
}

/// The bytes before a body.
pub fn header(number: u32, body: &[u8]) -> Result<[u8; HEADER], Error> {
    let len = u32::try_from(body.len()).ok().filter(|len| *len as usize <= LONGEST);
    let len = len.ok_or_else(|| too_long(body.len(), LONGEST))?;
    let mut header = [0; HEADER];
    header[..4].copy_from_slice(&len.to_le_bytes());
    header[4..8].copy_from_slice(&number.to_le_bytes());
    header[8..].copy_from_slice(&checksum(number, body).to_le_bytes());
    Ok(header)
}

fn checksum(number: u32, body: &[u8]) -> u32 {
    let mut crc = Crc::default();
    crc.add(&number.to_le_bytes());
    crc.add(body);
    crc.get()
}

fn too_long(found: usize, longest: usize) -> Error {
    Error::Frame { why: format!("a body of {found} bytes, where {longest} are allowed") }
}

/// Writes a frame.
pub fn write(to: &mut impl Write, numbers: &mut Numbers, body: &[u8]) -> Result<(), Error> {
    // One write, so that a small message is one packet.
    let mut bytes = header(numbers.give(), body)?.to_vec();
    bytes.extend_from_slice(body);
    to.write_all(&bytes)?;
    Ok(to.flush()?)
}

/// Reads the next frame that is not a repetition; none at the end of the connection. The body may have `longest` bytes.
pub fn read(
    mut from: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
    numbers: &mut Numbers,
    longest: usize,
) -> Result<Option<Vec<u8>>, Error> {
    loop {
        let mut frame = Partial::default();
        if !frame.read(whole(longest), &mut from)? {
            let why = format!("{} bytes, then the end", frame.bytes.len());
            return if frame.bytes.is_empty() { Ok(None) } else { Err(Error::Frame { why }) };
        }
        if let Some(body) = frame.body(numbers, longest)? {
            return Ok(Some(body));
        }
    }
}

/// Bytes as they arrive, until they are complete, and not one more: what follows may be something else.
#[derive(Debug, Default)]
pub struct Partial {
    /// What has arrived.
    pub bytes: Vec<u8>,
}

impl Partial {
    /// Reads until there are `whole` bytes, which depends on those that have arrived. False at the end of the connection. After a
    /// pause the next call continues. Memory grows with what has arrived, not with what is claimed.
    pub fn read(
        &mut self,
        whole: impl Fn(&[u8]) -> std::io::Result<usize>,
        mut read: impl FnMut(&mut [u8]) -> std::io::Result<usize>,
    ) -> std::io::Result<bool> {
        loop {
            let (here, whole) = (self.bytes.len(), whole(&self.bytes)?);
            if here == whole {
                return Ok(true);
            }
            self.bytes.resize(whole.min(here + STEP), 0);
            let found = read(&mut self.bytes[here..]);
            self.bytes.truncate(here + found.as_ref().map_or(0, |n| *n));
            if found? == 0 {
                return Ok(false);
            }
        }
    }

    /// The body of a frame that has arrived, unless it is a repetition.
    pub(crate) fn body(mut self, numbers: &mut Numbers, longest: usize) -> Result<Option<Vec<u8>>, Error> {
        let word = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| self.bytes[at + n]));
        let (len, number, expected) = (word(0) as usize, word(4), word(8));
        if len > longest {
            return Err(too_long(len, longest));
        }
        self.bytes.drain(..HEADER);
        if checksum(number, &self.bytes) != expected {
            return Err(Error::Frame { why: format!("the checksum of {len} bytes is wrong") });
        }
        let is_new = numbers.take(number)?;
        *(if is_new { &mut numbers.fresh } else { &mut numbers.repeated }) += (HEADER + len) as u64;
        if numbers.repeated > numbers.fresh.saturating_add(REPEATED) {
            return Err(Error::Frame { why: format!("frame {number} and others came again and again") });
        }
        Ok(is_new.then_some(self.bytes))
    }
}

/// How many bytes a frame has, as far as its beginning tells. One that is too long ends with its header, and is refused.
pub(crate) fn whole(longest: usize) -> impl Fn(&[u8]) -> std::io::Result<usize> {
    move |bytes| {
        let len = bytes.first_chunk::<4>().filter(|_| bytes.len() >= HEADER);
        let len = len.map_or(0, |len| u32::from_le_bytes(*len) as usize);
        Ok(if len > longest { HEADER } else { HEADER + len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::io::Read;

    fn framed(bodies: &[Vec<u8>]) -> Vec<u8> {
        let (mut bytes, mut numbers) = (Vec::new(), Numbers::default());
        bodies.iter().for_each(|body| write(&mut bytes, &mut numbers, body).unwrap());
        bytes
    }

    fn all(mut bytes: &[u8]) -> Result<Vec<Vec<u8>>, Error> {
        let (mut bodies, mut numbers) = (Vec::new(), Numbers::default());
        while let Some(body) = read(|buffer| bytes.read(buffer), &mut numbers, 1000)? {
            bodies.push(body);
        }
        Ok(bodies)
    }

    #[test]
    fn a_repetition_is_ignored_and_a_gap_is_not() {
        let bodies = [vec![1], vec![], vec![2, 3]];
        let bytes = framed(&bodies);
        let first = &bytes[..HEADER + 1];
        assert_eq!(all(&[first, &bytes].concat()).unwrap(), bodies);
        assert!(
            all(&bytes[HEADER + 1..]).unwrap_err().to_string().contains("number 1 came where 0 was next")
        );
    }

    /// A peer that repeats every frame is read; one that sends the same again and again is not.
    #[test]
    fn what_is_repeated_is_limited() {
        let bodies: Vec<Vec<u8>> = (0..200u8).map(|n| vec![n; 900]).collect();
        let mut numbers = Numbers::default();
        let mut twice = Vec::new();
        for body in &bodies {
            let mut frame = Vec::new();
            write(&mut frame, &mut numbers, body).unwrap();
            twice.extend([frame.clone(), frame].concat());
        }
        assert_eq!(all(&twice).unwrap(), bodies);
        let one = framed(&[vec![0; 900]]);
        assert!(all(&one.repeat(50)).is_ok());
        let error = all(&one.repeat(1000)).unwrap_err().to_string();
        assert!(error.contains("again and again"), "{error}");
    }

    #[test]
    fn numbers_go_round() {
        let mut numbers = Numbers { next: u32::MAX, ..Numbers::default() };
        assert!(
            numbers.take(u32::MAX).unwrap() && numbers.take(0).unwrap() && !numbers.take(u32::MAX).unwrap()
        );
    }

    #[test]
    fn a_frame_that_is_too_long_is_refused_before_it_is_read() {
        let mut bytes = framed(&[vec![0; 1001]]);
        bytes.truncate(HEADER);
        assert!(all(&bytes).unwrap_err().to_string().contains("1001 bytes, where 1000 are allowed"));
    }

    proptest! {
        #[test]
        fn frames_go_both_ways(bodies in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..90), 0..9)) {
            prop_assert_eq!(all(&framed(&bodies)).unwrap(), bodies);
        }

        #[test]
        fn damage_is_found(body in proptest::collection::vec(any::<u8>(), 0..90), at: prop::sample::Index, bit in 0u8..8) {
            let mut bytes = framed(std::slice::from_ref(&body));
            let at = at.index(bytes.len());
            bytes[at] ^= 1 << bit;
            prop_assert!(all(&bytes).is_err());
        }

        /// A frame that arrives in pieces is read like a whole one, and nothing after it is touched.
        #[test]
        fn a_frame_may_come_in_pieces(body in proptest::collection::vec(any::<u8>(), 0..90), cut in 1usize..200, after in 0usize..30) {
            struct Pieces<'a>(&'a [u8], usize, bool);
            impl Read for Pieces<'_> {
                fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
                    self.2 = !self.2;
                    let most = buffer.len().min(self.1);
                    if self.2 { Err(std::io::ErrorKind::WouldBlock.into()) } else { self.0.read(&mut buffer[..most]) }
                }
            }
            let mut bytes = framed(std::slice::from_ref(&body));
            let length = bytes.len();
            bytes.extend(vec![7; after]);
            let (mut from, mut partial) = (Pieces(&bytes, cut, false), Partial::default());
            let is_whole = loop {
                match partial.read(whole(1000), |buffer| from.read(buffer)) {
                    Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => {}
                    read => break read.unwrap(),
                }
            };
            prop_assert!(is_whole && partial.bytes == bytes[..length] && from.0.len() == after);
            prop_assert_eq!(partial.body(&mut Numbers::default(), 1000).unwrap(), Some(body));
        }
    }

    #[test]
    fn a_partial_frame_that_claims_too_much_is_refused() {
        let bytes = framed(&[vec![0; 1001]]);
        let mut from = &bytes[..HEADER - 1];
        let short = |buffer: &mut [u8]| from.read(buffer);
        assert!(Partial::default().read(whole(1000), short).is_ok_and(|is_whole| !is_whole));
        let (mut from, mut partial) = (&bytes[..], Partial::default());
        assert!(partial.read(whole(1000), |buffer| from.read(buffer)).unwrap());
        assert_eq!(from.len(), 1001, "nothing of the body is read");
        let error = partial.body(&mut Numbers::default(), 1000).unwrap_err();
        assert!(error.to_string().contains("1001 bytes, where 1000 are allowed"), "{error}");
    }
}
