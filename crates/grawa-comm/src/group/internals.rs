//! Internals for fuzz targets and for tests of other crates. They are not part of the API.

pub use super::coordinator::{Action, Coordinator, Input};
pub use super::member::peer_listener::{Gift, Greeting};
pub use super::member::{Member, MemberAction};
pub use super::wire::connection::whole_record;

pub mod journal {
    pub use super::super::coordinator::journal::{Content, MAGIC, content, write};
}

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
