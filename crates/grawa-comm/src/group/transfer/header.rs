//! The header of every piece of data that one member sends to another.

use crate::Error;
use crate::group::messages::AttemptId;

/// The bytes of a header.
pub const HEADER: usize = 36;

/// What a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// A message. The length in the header is that of the whole message.
    Message,
    /// A summand of a reduction.
    Summand,
    /// The result of a reduction.
    Result,
}

const KINDS: [(&[u8; 4], Kind); 3] =
    [(b"gMSG", Kind::Message), (b"gADD", Kind::Summand), (b"gSUM", Kind::Result)];

/// The header of a piece.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// What it belongs to.
    pub kind: Kind,
    /// The attempt.
    pub attempt: AttemptId,
    /// The position of the piece.
    pub start: u64,
    /// Its length in floats, or the length of the whole message in bytes.
    pub len: u32,
}

impl Header {
    /// The bytes.
    pub fn encode(&self) -> [u8; HEADER] {
        let (epoch, op, attempt) = self.attempt;
        let mut bytes = [0; HEADER];
        let magic = KINDS.iter().find(|(_, kind)| *kind == self.kind).map_or(b"gADD", |(magic, _)| magic);
        bytes[..4].copy_from_slice(magic);
        bytes[4..8].copy_from_slice(&attempt.to_le_bytes());
        bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&op.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.start.to_le_bytes());
        bytes[32..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    /// An error if this is not the header that comes next.
    pub(crate) fn check(&self, expected: Header) -> Result<(), Error> {
        if *self == expected {
            return Ok(());
        }
        Err(Error::Frame { why: format!("{self:?} came where {expected:?} was next") })
    }

    /// From the bytes.
    pub fn decode(bytes: &[u8; HEADER]) -> Result<Self, Error> {
        let short = |at: usize| u32::from_le_bytes(std::array::from_fn(|n| bytes[at + n]));
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        let Some((_, kind)) = KINDS.iter().find(|(magic, _)| bytes.starts_with(*magic)) else {
            return Err(Error::Frame {
                why: format!("{:02x?} is not the beginning of a piece", &bytes[..4]),
            });
        };
        let attempt = (long(8), long(16), short(4));
        Ok(Header { kind: *kind, attempt, start: long(24), len: short(32) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_go_both_ways(kind in 0usize..3, attempt: (u64, u64, u32), start: u64, len: u32) {
            let header = Header { kind: KINDS[kind].1, attempt, start, len };
            prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        }
    }

    #[test]
    fn any_other_beginning_is_refused() {
        let error = Header::decode(&[7; HEADER]).unwrap_err();
        assert!(error.to_string().contains("not the beginning of a piece"), "{error}");
    }
}
