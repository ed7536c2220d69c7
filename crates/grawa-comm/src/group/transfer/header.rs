//! The header of every piece of data that one member sends to another: five numbers of eight bytes.

use crate::Error;
use crate::group::messages::AttemptId;

/// The bytes of a header.
pub const HEADER: usize = 40;

/// What a piece belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u32)]
pub enum Kind {
    /// A message. The length in the header is that of the whole message.
    Message = u32::from_le_bytes(*b"gMSG"),
    /// A summand of a reduction.
    Summand = u32::from_le_bytes(*b"gADD"),
    /// The result of a reduction.
    Result = u32::from_le_bytes(*b"gSUM"),
}

const KINDS: [Kind; 3] = [Kind::Message, Kind::Summand, Kind::Result];

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
        let kind_and_attempt = u64::from(attempt) << 32 | u64::from(self.kind as u32);
        bytemuck::cast([kind_and_attempt, epoch, op, self.start, self.len.into()])
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
        let [kind_and_attempt, epoch, op, start, len]: [u64; 5] = bytemuck::cast(*bytes);
        let attempt = (epoch, op, (kind_and_attempt >> 32) as u32);
        match KINDS.into_iter().find(|kind| *kind as u32 == kind_and_attempt as u32) {
            Some(kind) => Ok(Header { kind, attempt, start, len: u32::try_from(len).unwrap_or(u32::MAX) }),
            None => Err(Error::Frame { why: format!("{bytes:02x?} is not the beginning of a piece") }),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn headers_go_both_ways(kind in 0usize..3, attempt: (u64, u64, u32), start: u64, len: u32) {
            let header = Header { kind: KINDS[kind], attempt, start, len };
            prop_assert_eq!(Header::decode(&header.encode()).unwrap(), header);
        }
    }

    #[test]
    fn any_other_beginning_is_refused() {
        let error = Header::decode(&[7; HEADER]).unwrap_err();
        assert!(error.to_string().contains("not the beginning of a piece"), "{error}");
    }
}
