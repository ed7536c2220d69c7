//! What members and the coordinator say to each other.
//!
//! Every message is here, and nothing else crosses a control connection. Parameters never do: they move between members.

use crate::{Error, Lost, printable};
use serde::{Deserialize, Serialize};

/// The version of the protocol; both sides must have the same.
pub const VERSION: u16 = 5;

/// The longest message on a control connection. What workers say to each other does not cross it, and a charter and what is told of
/// a round of thousands are shorter.
pub const LONGEST: usize = 4 << 20;

/// Where a member stands between two cycles: the meeting it comes to next, and the digest of what it holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Stand {
    /// The number of the meeting.
    pub op: u64,
    /// The digest of the centre and of what is remembered with it.
    pub digest: u64,
}

/// A member, as others reach it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its number.
    pub worker: u32,
    /// Drawn by its process when it started: a number may come back, a token never does.
    pub token: u64,
    /// Where it listens for vectors.
    #[serde(deserialize_with = "printable::text")]
    pub address: String,
}

/// What a member is about to do with the others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Call {
    /// Exchange words.
    Gather,
    /// Wait for all.
    Barrier,
    /// Carry out a plan of this digest, on the centre of this number.
    Mix {
        /// The digest of the plan.
        plan: u64,
        /// Which centre.
        centre: u8,
    },
    /// Take over the vector of a leader.
    Broadcast {
        /// The leader.
        leader: u32,
    },
}

impl Call {
    /// Its name, for whoever is out of step.
    pub fn name(self) -> &'static str {
        match self {
            Call::Gather => "gather",
            Call::Barrier => "barrier",
            Call::Mix { .. } => "mix",
            Call::Broadcast { .. } => "broadcast",
        }
    }
}

/// What a member says to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Up {
    /// The first word on a connection.
    Hello {
        /// Its version of the protocol.
        version: u16,
        /// The run it was part of; 0 if none yet.
        run: u64,
        /// Its token.
        token: u64,
        /// The number it had, if any.
        worker: Option<u32>,
        /// Where it listens for vectors.
        #[serde(deserialize_with = "printable::text")]
        address: String,
    },
    /// It is ready to take part, from where it stands.
    Enter(Stand),
    /// A cycle is over for it: it now stands here.
    Stands(Stand),
    /// It has come to a meeting.
    Arrive {
        /// The number of the meeting.
        op: u64,
        /// To do what.
        call: Call,
        /// Its local steps since it was last counted.
        steps: u64,
        /// The epoch whose members it knows; 0 if none.
        knows: u64,
    },
    /// Its part of moving vectors, or words, is done.
    Done {
        /// The epoch.
        epoch: u64,
        /// The meeting.
        op: u64,
        /// Which attempt.
        attempt: u32,
        /// The digest of what came out.
        digest: u64,
    },
    /// Moving them failed.
    Broken {
        /// The epoch.
        epoch: u64,
        /// The meeting.
        op: u64,
        /// Which attempt.
        attempt: u32,
        /// Whom it could not exchange with.
        peer: u32,
        /// Why.
        #[serde(deserialize_with = "printable::text")]
        why: String,
    },
    /// It took over what a donor holds.
    Took(Stand),
    /// It could not.
    NotTaken {
        /// The donor.
        donor: u32,
    },
    /// A sign of life.
    Beat {
        /// Local steps of this cycle so far.
        steps: u64,
        /// Grows whenever its work moves on.
        progress: u64,
    },
    /// Something for whoever watches the run.
    Tell(Vec<u8>),
    /// It ends.
    Leave,
}

/// What the coordinator says to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Down {
    /// The answer to a hello.
    Welcome {
        /// The run.
        run: u64,
        /// The member's number.
        worker: u32,
        /// Whether it is still taken to be where it was: then it repeats what it had said and got no answer to.
        known: bool,
        /// Milliseconds from one sign of life to the next.
        beat: u64,
        /// What defines the run; none for a member that knows.
        charter: Option<Vec<u8>>,
    },
    /// It may not join.
    Refused {
        /// Why.
        #[serde(deserialize_with = "printable::text")]
        why: String,
    },
    /// It stands where all stand, and may come to this meeting.
    Ready {
        /// The meeting.
        op: u64,
    },
    /// It stands elsewhere: it is to take over what a donor holds.
    Take {
        /// The donor.
        donor: Peer,
        /// What the donor holds.
        stand: Stand,
    },
    /// The answer to a sign of life.
    Beat,
    /// At a free pace: enough steps were taken, come to the meeting.
    Round {
        /// The meeting.
        op: u64,
    },
    /// A meeting took place.
    Met {
        /// The epoch.
        epoch: u64,
        /// The meeting.
        op: u64,
        /// Who came, in order; none for one that knows the members of this epoch.
        members: Option<Vec<Peer>>,
        /// Who was lost since the meeting before.
        lost: Vec<Lost>,
        /// For vectors and words: which attempt to move them this is. None where nothing is moved.
        attempt: Option<u32>,
    },
    /// The end of a meeting that moved vectors or words.
    Closed {
        /// The meeting.
        op: u64,
        /// How it ended.
        end: End,
    },
    /// What it told was heard.
    Heard,
}

/// How a meeting that moved something ended. Those who were lost before it began are not named again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// All hold the same; who was lost on the way is named.
    Commit {
        /// Who.
        lost: Vec<Lost>,
    },
    /// Someone was lost: nothing counts.
    Shrunk {
        /// Who.
        lost: Vec<Lost>,
    },
    /// Members called different things.
    OutOfStep {
        /// What each called.
        calls: Vec<(u32, Call)>,
    },
}

/// What must survive the coordinator: where the run stands.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The run.
    pub run: u64,
    /// The epoch.
    pub epoch: u64,
    /// What all hold.
    pub stand: Stand,
    /// How many hold it. Version 4 of the protocol also wrote 0, for a state that a member had only reported.
    pub members: u32,
    /// Their tokens, where these are others than in the record before.
    pub tokens: Vec<u64>,
}

/// A message as bytes.
pub fn encode<T: Serialize>(message: &T) -> Result<Vec<u8>, Error> {
    postcard::to_stdvec(message).map_err(|error| Error::Message { why: error.to_string() })
}

/// A message from bytes, all of which must belong to it.
pub fn decode<'a, T: Deserialize<'a>>(bytes: &'a [u8]) -> Result<T, Error> {
    let wrong = |why: String| Error::Message { why };
    let (message, rest) = postcard::take_from_bytes(bytes).map_err(|error| wrong(error.to_string()))?;
    if rest.is_empty() { Ok(message) } else { Err(wrong(format!("{} bytes too many", rest.len()))) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn messages_go_both_ways() {
        let stand = Stand { op: 7, digest: u64::MAX };
        let peer = Peer { worker: 3, token: 9, address: "[::1]:4000".into() };
        let lost = vec![Lost { worker: 1, why: crate::Why::Disconnected }];
        for up in [
            Up::Enter(stand),
            Up::Arrive { op: 2, call: Call::Mix { plan: 5, centre: 1 }, steps: 4, knows: 300 },
            Up::Leave,
        ] {
            assert_eq!(decode::<Up>(&encode(&up).unwrap()).unwrap(), up);
        }
        for down in [
            Down::Take { donor: peer.clone(), stand },
            Down::Met { epoch: 1, op: 2, members: Some(vec![peer]), lost: lost.clone(), attempt: Some(1) },
            Down::Closed { op: 1, end: End::Shrunk { lost } },
        ] {
            assert_eq!(decode::<Down>(&encode(&down).unwrap()).unwrap(), down);
        }
    }

    /// Whatever a member says that is text, no terminal obeys it.
    #[test]
    fn text_is_printable_once_it_is_unpacked() {
        let evil = || String::from("\u{1b}]0;x\u{7}\u{9b}2J\n");
        let peer = Peer { worker: 3, token: 9, address: evil() };
        let lost = Vec::new();
        let ups = [
            Up::Hello { version: 1, run: 2, token: 3, worker: None, address: evil() },
            Up::Broken { epoch: 1, op: 2, attempt: 3, peer: 4, why: evil() },
        ];
        let downs = [
            Down::Refused { why: evil() },
            Down::Take { donor: peer.clone(), stand: Stand { op: 0, digest: 0 } },
            Down::Met { epoch: 1, op: 2, members: Some(vec![peer]), lost, attempt: None },
        ];
        let ups = ups.map(|up| format!("{:?}", decode::<Up>(&encode(&up).unwrap()).unwrap()));
        let downs = downs.map(|down| format!("{:?}", decode::<Down>(&encode(&down).unwrap()).unwrap()));
        for said in ups.iter().chain(&downs) {
            // `Debug` writes control characters as escapes.
            assert!(said.contains("\u{fffd}]0;x\u{fffd}\u{fffd}2J ") && !said.contains("\\u{"), "{said}");
        }
    }

    #[test]
    fn what_is_left_over_is_refused() {
        let mut bytes = encode(&Up::Leave).unwrap();
        bytes.push(0);
        assert!(decode::<Up>(&bytes).unwrap_err().to_string().contains("1 bytes too many"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<Up>(&bytes);
            let _ = decode::<Down>(&bytes);
            let _ = decode::<Record>(&bytes);
        }
    }
}
