//! Internals for fuzz targets and for tests of other crates. They are not part of the API.

pub use super::coordinator::journal::records;
pub use super::coordinator::{Action, Coordinator, Input};
pub use super::member::peer_listener::Greeting;
pub use super::member::{Member, MemberAction};

pub mod messages {
    pub use super::super::messages::*;
}

pub mod frame {
    pub use super::super::wire::frame::*;
}

pub mod all_gather {
    pub use super::super::transfer::all_gather::{LONGEST, PART, PartialMessage};
    pub use super::super::transfer::header::{HEADER, Header, Kind};
}

/// Reads bytes as TLS records, a few at a time. Nothing is lost, and nothing beyond a record is read.
#[cfg(fuzzing)]
pub fn tls_records(bytes: &[u8]) {
    use super::wire::connection::whole_record;
    use super::wire::frame::Partial;
    use std::io::Read;
    let (mut rest, mut taken) = (bytes, 0);
    let mut record = Partial::default();
    while let Ok(true) = record.read(whole_record, |buffer| {
        let few = buffer.len().min(7);
        rest.read(&mut buffer[..few])
    }) {
        let len = usize::from(u16::from_be_bytes([record.bytes[3], record.bytes[4]]));
        assert_eq!(record.bytes.len(), 5 + len);
        assert_eq!(record.bytes, bytes[taken..taken + 5 + len]);
        taken += record.bytes.len();
        record.bytes.clear();
    }
}
