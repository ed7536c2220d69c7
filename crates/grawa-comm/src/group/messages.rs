//! The messages between members and the coordinator.
//!
//! Nothing else crosses a control connection. Parameters never do: they move between members.

pub use crate::call::Call;
use crate::{Error, Lost, printable};
use serde::{Deserialize, Serialize};

/// The version of the protocol. Members and coordinator must have the same.
pub const VERSION: u16 = 10;

/// The longest message on a control connection: a charter, or a report of a round of thousands of workers.
pub const LONGEST: usize = 4 << 20;

/// The longest charter: it must fit into a message with room to spare.
pub const LONGEST_CHARTER: usize = LONGEST / 2;

/// A state of the group between two rounds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct StateVersion {
    /// The number of the next operation.
    pub op: u64,
    /// The digest of the centre and of the memory that belongs to it.
    pub digest: u64,
}

/// The address of a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Peer {
    /// Its number.
    pub worker: u32,
    /// Drawn by its process at the start. A number may be reused, a token never is.
    pub token: u64,
    /// Where it listens for other members.
    #[serde(deserialize_with = "printable::text")]
    pub address: String,
}

/// One attempt of an operation: epoch, operation, attempt.
pub type AttemptId = (u64, u64, u32);

/// A message from a member to the coordinator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToCoordinator {
    /// The first message of a process with one worker.
    Hello(Hello),
    /// It is ready to take part, and holds this state: its own, or that of a donor.
    Enter(StateVersion),
    /// A round is over for it. It now holds this state.
    Holds(StateVersion),
    /// It calls an operation.
    Arrive {
        /// The number of the operation.
        op: u64,
        /// The operation.
        call: Call,
        /// Its local steps since the last round that counted them.
        steps: u64,
        /// The epoch whose members it knows; 0 if none.
        known_epoch: u64,
    },
    /// Its part of an attempt is done.
    Done {
        /// The attempt.
        attempt: AttemptId,
        /// The digest of the result.
        digest: u64,
    },
    /// An attempt failed.
    Failed {
        /// The attempt.
        attempt: AttemptId,
        /// The member that it could not exchange data with.
        peer: u32,
        /// Why.
        #[serde(deserialize_with = "printable::text")]
        why: String,
    },
    /// It could not fetch the state.
    NotRestored {
        /// The donor.
        donor: u32,
    },
    /// It is alive.
    Heartbeat {
        /// Local steps of this cycle so far.
        steps: u64,
        /// A counter that grows as its work progresses.
        progress: u64,
        /// How many workers it has left.
        workers: u32,
    },
    /// A report for whoever watches the run.
    Report(Vec<u8>),
    /// It leaves the group.
    Leave,
    /// The first message of a process with several workers.
    HelloOfSet {
        /// How many workers it has.
        workers: u32,
        /// The rest.
        hello: Hello,
    },
    /// The coordinator has no charter yet: it proposes one. The first proposal counts; all get the charter as the answer.
    Propose(Proposal),
    /// It has all messages of an attempt, and cannot read one. Others may.
    Unreadable {
        /// The attempt.
        attempt: AttemptId,
        /// Whose message that is.
        peer: u32,
        /// What is wrong with it.
        #[serde(deserialize_with = "printable::text")]
        why: String,
    },
    /// The second message on a connection: the fingerprint of its build.
    Build {
        /// The fingerprint.
        fingerprint: u64,
    },
    /// All members are to stop together, within a step: it leaves without another round.
    Stop,
}

/// What a worker proposes to a coordinator that has no charter.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Proposal {
    /// The definition of the run.
    pub charter: Vec<u8>,
    /// At a free pace: local steps per worker and round.
    pub trigger: Option<u64>,
    /// Milliseconds that a round waits at least for workers that are late.
    pub wait: Option<u64>,
}

/// The first message on a connection. Every version of the protocol can read it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Hello {
    /// The member's version of the protocol.
    pub version: u16,
    /// The run it was part of; 0 if none.
    pub run: u64,
    /// Its token.
    pub token: u64,
    /// The number of its first worker, if it had one.
    pub worker: Option<u32>,
    /// Where it listens for other members.
    #[serde(deserialize_with = "printable::text")]
    pub address: String,
}

/// A message from the coordinator to a member.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ToMember {
    /// The answer to a hello.
    Welcome {
        /// The run.
        run: u64,
        /// The member's number.
        worker: u32,
        /// Whether the coordinator still has its record. Then it repeats the messages that were not answered.
        known: bool,
        /// Milliseconds between heartbeats.
        heartbeat: u64,
        /// The definition of the run, unless the member has it; empty if the coordinator waits for a proposal.
        charter: Option<Vec<u8>>,
        /// Workers that the run begins with.
        founders: u32,
    },
    /// It may not take part. Every version of the protocol can read this message.
    Refused {
        /// Why.
        #[serde(deserialize_with = "printable::text")]
        why: String,
    },
    /// It holds the committed state, and may call this operation.
    Ready {
        /// The operation.
        op: u64,
    },
    /// It must fetch the committed state from a donor.
    Restore {
        /// The donor.
        donor: Peer,
        /// The state.
        version: StateVersion,
    },
    /// The answer to a heartbeat.
    HeartbeatAck,
    /// At a free pace: enough steps were taken. Begin the round.
    StartRound {
        /// The operation that begins it.
        op: u64,
    },
    /// All members have called the operation.
    Begin {
        /// The epoch.
        epoch: u64,
        /// The operation.
        op: u64,
        /// The members, in order, unless it knows those of this epoch.
        members: Option<Vec<Peer>>,
        /// Members lost since the operation before.
        lost: Vec<Lost>,
        /// The attempt to transfer data. `None` if there is nothing to transfer: the operation is then over.
        attempt: Option<u32>,
    },
    /// An operation that transferred data is over.
    Ended {
        /// The operation.
        op: u64,
        /// How it ended.
        end: End,
    },
    /// A report was received.
    ReportAck,
    /// The answer to a proposal: the definition of the run, the member's or that of another that was first.
    Charter {
        /// The definition.
        charter: Vec<u8>,
        /// Milliseconds between heartbeats.
        heartbeat: u64,
    },
    /// The coordinator asks all members to stop together, within a step.
    Stop,
    /// The run is over, and this member was not there when it ended.
    Over,
    /// Before the run begins: how many workers have joined.
    Joined {
        /// How many.
        workers: u32,
    },
}

/// How an operation that transferred data ended. Members that were lost before it began are not named again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum End {
    /// All members hold the same result.
    Commit {
        /// Members lost meanwhile.
        lost: Vec<Lost>,
    },
    /// A member was lost. The result must not be used.
    Shrunk {
        /// Members lost.
        lost: Vec<Lost>,
    },
    /// The members called different operations.
    OutOfStep {
        /// What each called.
        calls: Vec<(u32, Call)>,
    },
}

/// An entry of the coordinator's journal.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Entry {
    /// A state was committed.
    Committed(Record),
    /// A run began without a charter, and this proposal became it.
    Adopted {
        /// The run.
        run: u64,
        /// The proposal.
        proposal: Proposal,
    },
}

impl Entry {
    /// A record begins with its run, which is never 0. So 0 marks the other kind, and journals of earlier versions can be read.
    const ADOPTED: u8 = 0;

    /// As bytes.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        match self {
            Entry::Committed(record) => encode(record),
            Entry::Adopted { run, proposal } => encode(&(Entry::ADOPTED, run, proposal)),
        }
    }

    /// From bytes, all of which must belong to it.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        match bytes.split_first() {
            Some((&Entry::ADOPTED, rest)) => {
                let (run, proposal) = decode(rest).or_else(|error| {
                    // Version 9 of the protocol had no wait.
                    let old = decode(rest).map_err(|_| error);
                    old.map(|(run, charter, trigger)| (run, Proposal { charter, trigger, wait: None }))
                })?;
                Ok(Entry::Adopted { run, proposal })
            }
            _ => match decode(bytes)? {
                Record { run: 0, .. } => Err(Error::Message { why: "a record of run 0".into() }),
                record => Ok(Entry::Committed(record)),
            },
        }
    }
}

/// A committed state in the journal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Record {
    /// The run.
    pub run: u64,
    /// The epoch.
    pub epoch: u64,
    /// The state.
    pub version: StateVersion,
    /// How many members hold it. Version 4 of the protocol also wrote 0, for a state that a member had only reported: such a
    /// record is ignored.
    pub members: u32,
    /// Their tokens. Up to version 6 of the protocol, none if they are those of the record before.
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

    /// Run 0 written at length would be read as the other kind when it is written again (found by the fuzz target `wire`).
    #[test]
    fn a_record_of_run_0_is_none() {
        assert!(Entry::decode(&[0x80, 0, 1, 1, 1, 1, 0]).is_err());
    }

    #[test]
    fn messages_go_both_ways() {
        let version = StateVersion { op: 7, digest: u64::MAX };
        let peer = Peer { worker: 3, token: 9, address: "[::1]:4000".into() };
        let lost = vec![Lost { worker: 1, why: crate::Why::Disconnected }];
        for message in [
            ToCoordinator::Enter(version),
            ToCoordinator::Arrive {
                op: 2,
                call: Call::Mix { plan: 5, centre: 1 },
                steps: 4,
                known_epoch: 300,
            },
            ToCoordinator::Leave,
        ] {
            assert_eq!(decode::<ToCoordinator>(&encode(&message).unwrap()).unwrap(), message);
        }
        for message in [
            ToMember::Restore { donor: peer.clone(), version },
            ToMember::Begin {
                epoch: 1,
                op: 2,
                members: Some(vec![peer]),
                lost: lost.clone(),
                attempt: Some(1),
            },
            ToMember::Ended { op: 1, end: End::Shrunk { lost } },
        ] {
            assert_eq!(decode::<ToMember>(&encode(&message).unwrap()).unwrap(), message);
        }
    }

    /// Version 4 said hello, and was refused, in the same bytes.
    #[test]
    fn other_versions_can_be_refused() {
        let hello = Hello { version: 4, run: 0, token: 1, worker: None, address: "a:1".into() };
        let hello = ToCoordinator::Hello(hello);
        assert_eq!(encode(&hello).unwrap(), [0, 4, 0, 1, 0, 3, b'a', b':', b'1']);
        assert_eq!(encode(&ToMember::Refused { why: "no".into() }).unwrap(), [1, 2, b'n', b'o']);
    }

    /// Journals of version 9 have proposals without a wait.
    #[test]
    fn an_older_proposal_is_read() {
        let old = encode(&(Entry::ADOPTED, 7u64, vec![1u8, 2], Some(300u64))).unwrap();
        let proposal = Proposal { charter: vec![1, 2], trigger: Some(300), wait: None };
        let new = Entry::Adopted { run: 7, proposal: Proposal { wait: Some(9), ..proposal.clone() } };
        assert_eq!(Entry::decode(&old).unwrap(), Entry::Adopted { run: 7, proposal });
        assert_eq!(Entry::decode(&new.encode().unwrap()).unwrap(), new);
        assert!(Entry::decode(&old[..old.len() - 1]).is_err());
    }

    /// Text that a member sends contains no control characters once it is decoded.
    #[test]
    fn text_is_printable_once_it_is_decoded() {
        let evil = || String::from("\u{1b}]0;x\u{7}\u{9b}2J\n");
        let peer = Peer { worker: 3, token: 9, address: evil() };
        let lost = Vec::new();
        let ups = [
            ToCoordinator::Hello(Hello { version: 1, run: 2, token: 3, worker: None, address: evil() }),
            ToCoordinator::Failed { attempt: (1, 2, 3), peer: 4, why: evil() },
        ];
        let downs = [
            ToMember::Refused { why: evil() },
            ToMember::Restore { donor: peer.clone(), version: StateVersion { op: 0, digest: 0 } },
            ToMember::Begin { epoch: 1, op: 2, members: Some(vec![peer]), lost, attempt: None },
        ];
        let ups = ups.map(|up| format!("{:?}", decode::<ToCoordinator>(&encode(&up).unwrap()).unwrap()));
        let downs = downs.map(|down| format!("{:?}", decode::<ToMember>(&encode(&down).unwrap()).unwrap()));
        for text in ups.iter().chain(&downs) {
            // `Debug` writes control characters as escapes.
            assert!(text.contains("\u{fffd}]0;x\u{fffd}\u{fffd}2J ") && !text.contains("\\u{"), "{text}");
        }
    }

    #[test]
    fn trailing_bytes_are_refused() {
        let mut bytes = encode(&ToCoordinator::Leave).unwrap();
        bytes.push(0);
        assert!(decode::<ToCoordinator>(&bytes).unwrap_err().to_string().contains("1 bytes too many"));
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_message_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = decode::<ToCoordinator>(&bytes);
            let _ = decode::<ToMember>(&bytes);
            if let Ok(entry) = Entry::decode(&bytes) {
                prop_assert_eq!(Entry::decode(&entry.encode().unwrap()).unwrap(), entry);
            }
        }
    }
}
