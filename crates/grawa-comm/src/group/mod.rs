//! An elastic group: workers on any machines that can reach each other. They may crash, stall, leave and join.
//!
//! A coordinator leads every operation; vectors move between the members directly. Both sides of the protocol are pure
//! (`coordinator`, `member`). The rest runs them on sockets and threads, and in the tests on a simulated clock and
//! network with many kinds of faults. The page `docs/protocol.md` states what is guaranteed.

mod coordinator;
mod digest;
mod environment;
mod fingerprint;
#[doc(hidden)]
pub mod internals;
mod member;
mod messages;
mod token_bucket;
mod transfer;
mod wire;

#[cfg(test)]
mod control_traffic_tests;
#[cfg(test)]
mod misbehaving_member_tests;
#[cfg(test)]
mod misbehaving_peer_tests;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod slow_link_tests;
#[cfg(test)]
mod tests;

pub use coordinator::Settings;
pub use coordinator::deadline::RoundWait;
pub use coordinator::event::CoordinatorEvent;
pub use coordinator::journal::Past;
pub use coordinator::roster::MemberState;
pub use coordinator::server::{CoordinatorServer, MemberStatus, Receipt, ServerEvent, Status, Traffic};
pub use fingerprint::{SESSION_FORMATS, fingerprint};
pub use member::control_connection::{Contact, Reporter};
pub use member::from_environment as variables;
pub use member::join::Joiner;
pub use member::socket_member::SocketMember;
pub use messages::{Proposal, StateVersion};
pub use transfer::TransferOptions;
pub use wire::file_limit::raise_file_limit;
pub use wire::tls::{Security, new_key};
