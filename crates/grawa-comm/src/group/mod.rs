//! An elastic group: workers on any machines that can reach each other, who may die, stall, leave and arrive.
//!
//! A [`Coordinator`] says who meets and when; vectors move directly between the members. Both sides of the protocol are pure
//! ([`Coordinator`], [`Member`]): the same code runs on sockets and, in the tests, on a simulated network with every kind of
//! fault. What is promised is on the page `docs/protocol.md`.

mod allowance;
mod collective;
#[cfg(test)]
mod control_traffic_tests;
mod coordinator;
mod deadline;
pub mod digest;
mod door;
mod exchange;
mod files;
mod flight;
pub mod forecast;
pub mod frame;
#[cfg(fuzzing)]
pub mod fuzz;
mod guest;
mod half;
mod handshake;
mod host;
mod key;
#[cfg(test)]
mod lies;
mod line;
mod link;
mod listener;
pub mod log;
mod meeting;
mod member;
pub mod message;
mod notice;
#[cfg(test)]
mod outsider;
mod participant;
mod pending;
mod quota;
mod rejected;
mod seal;
mod seat;
#[cfg(test)]
mod simulate;
#[cfg(test)]
mod slow;
mod succession;
#[cfg(test)]
mod tests;
mod trigger;
pub mod words;

pub use coordinator::{Action, Coordinator, Event, Settings};
pub use deadline::Deadline;
pub use door::Greeting;
pub use exchange::{HEAD, Head, Tag};
pub use files::raise_file_limit;
pub use flight::Travel;
pub use guest::Guest;
pub use host::{Host, Standing, Status, Told, Traffic};
pub use key::{Wire, new_key};
pub use line::{Contact, Teller};
pub use log::Log;
pub use member::{Deed, Member};
pub use message::{Peer, Record, Stand};
pub use notice::Notice;
pub use participant::Participant;
pub use seat::{Seat, Session, State};
