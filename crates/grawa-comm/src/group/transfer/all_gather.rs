//! All-gather: every member sends its message to every other, directly, and holds those of all.
//!
//! Messages have different lengths. They are sent in parts: each has a checksum, and a header that names the attempt. Members send
//! and receive at once, which avoids deadlock. The digest is that of all messages in the order of the members.

use super::header::{HEADER, Header, Kind};
use super::{Links, TransferError, connected, exchange, receivers, senders};
use crate::Error;
use crate::group::digest::Crc;
use crate::group::messages::AttemptId;
use crate::group::wire::connection::{KeepGoing, Reader, Writer};

/// The longest message: two million statistics of batch norm. A member holds the messages of all at once.
pub const LONGEST: usize = 16 << 20;
/// A socket without unread bytes takes as many at once. A member sends so short a message before it receives, on one thread.
const SHORT: usize = 4 << 10;
/// The most bytes of a part. Memory grows with what has arrived, not with what is claimed.
pub const PART: usize = 1 << 18;

/// A message as it arrives.
#[derive(Debug, Default)]
pub struct PartialMessage {
    bytes: Vec<u8>,
    whole: Option<u32>,
}

impl PartialMessage {
    /// Room for the part with this header, which must be the next one of this attempt.
    pub fn room(&mut self, attempt: AttemptId, header: &[u8; HEADER]) -> Result<&mut [u8], Error> {
        let (found, start) = (Header::decode(header)?, self.bytes.len());
        if found.len as usize > LONGEST {
            let why = format!("a message of {} bytes, where {LONGEST} are allowed", found.len);
            return Err(Error::Frame { why });
        }
        let whole = *self.whole.get_or_insert(found.len);
        if self.is_whole() && start > 0 {
            return Err(Error::Frame { why: format!("{found:?} came after the end of a message") });
        }
        found.check(Header { kind: Kind::Message, attempt, start: start as u64, len: whole })?;
        self.bytes.resize(start + (whole as usize - start).min(PART), 0);
        Ok(&mut self.bytes[start..])
    }

    /// Whether all of it has arrived.
    pub fn is_whole(&self) -> bool {
        self.whole == Some(self.bytes.len() as u32)
    }
}

/// The parts of a message with their headers. An empty message has one part.
fn parts(attempt: AttemptId, message: &[u8]) -> impl Iterator<Item = ([u8; HEADER], &[u8])> {
    let starts = (0..message.len().max(1)).step_by(PART);
    starts.map(move |start| {
        let len = message.len() as u32;
        let header = Header { kind: Kind::Message, attempt, start: start as u64, len };
        (header.encode(), &message[start..message.len().min(start + PART)])
    })
}

/// Sends a message to all, and returns those of all, by rank, and their digest.
pub(crate) fn all_gather(links: Links<'_>, mine: &[u8]) -> Result<(Vec<Vec<u8>>, u32), TransferError> {
    let Links { environment, attempt, rank: me, writers, readers, keep_going, .. } = links;
    let members = writers.len();
    let mut send = |keep_going: KeepGoing<'_>| {
        receivers(me, members).try_for_each(|rank| {
            send(&mut writers[rank], attempt, mine, keep_going).map_err(TransferError::with(rank))
        })
    };
    let mut receive = |keep_going: KeepGoing<'_>| {
        let mut messages = vec![Vec::new(); members];
        for rank in senders(me, members) {
            let message = receive(&mut readers[rank], attempt, keep_going);
            messages[rank] = message.map_err(TransferError::with(rank))?;
        }
        messages[me] = mine.to_vec();
        Ok(messages)
    };
    let messages = match mine.len() <= SHORT {
        true => send(keep_going).and_then(|()| receive(keep_going))?,
        false => exchange((environment, keep_going), send, receive)?,
    };
    let digest = digest(&messages);
    Ok((messages, digest))
}

/// The digest of messages in their order.
fn digest(messages: &[Vec<u8>]) -> u32 {
    let mut digest = Crc::default();
    for message in messages {
        digest.add(&(message.len() as u32).to_le_bytes());
        digest.add(message);
    }
    digest.get()
}

fn send(
    to: &mut Option<Writer>,
    attempt: AttemptId,
    message: &[u8],
    keep_going: KeepGoing<'_>,
) -> Result<(), Error> {
    let to = connected(to)?;
    parts(attempt, message).try_for_each(|(header, part)| to.write_bulk(&header, part, None, keep_going))
}

fn receive(
    from: &mut Option<Reader>,
    attempt: AttemptId,
    keep_going: KeepGoing<'_>,
) -> Result<Vec<u8>, Error> {
    let (from, mut message) = (connected(from)?, PartialMessage::default());
    while !message.is_whole() {
        let mut header = [0; HEADER];
        let checksum = from.read_header(&mut header, keep_going)?;
        from.read_body(message.room(attempt, &header)?, checksum, keep_going)?;
    }
    Ok(message.bytes)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::environment::Environment;
    use crate::group::wire::connection::{ALWAYS, establish};
    use crate::group::wire::tls::Security;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};

    const ATTEMPT: AttemptId = (3, 7, 1);
    /// The bytes before a part: the header, and two checksums.
    const FRONT: usize = HEADER + 8;

    /// A message through headers and parts, as a connection would carry them.
    fn carried(word: &[u8]) -> Result<Vec<u8>, Error> {
        let mut partial = PartialMessage::default();
        for (head, part) in parts(ATTEMPT, word) {
            assert!(!partial.is_whole());
            partial.room(ATTEMPT, &head)?.copy_from_slice(part);
        }
        assert!(partial.is_whole());
        Ok(partial.bytes)
    }

    proptest! {
        #[test]
        fn messages_arrive_whole(parts in 0usize..4, rest in 0usize..3, byte: u8) {
            let word = vec![byte; parts * PART + rest];
            prop_assert_eq!(carried(&word).unwrap(), word);
        }
    }

    /// A part that is not the next one of this attempt is refused, and takes no memory.
    #[test]
    fn a_part_that_is_not_the_next_is_refused() {
        let good = Header { kind: Kind::Message, attempt: ATTEMPT, start: 0, len: 5 };
        let refused = |part: Header, why: &str| {
            let error = PartialMessage::default().room(ATTEMPT, &part.encode()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(Header { attempt: (3, 7, 0), ..good }, "was next");
        refused(Header { attempt: (2, 7, 1), ..good }, "was next");
        refused(Header { attempt: (3, 6, 1), ..good }, "was next");
        refused(Header { start: 1, ..good }, "was next");
        refused(Header { len: LONGEST as u32 + 1, ..good }, "where 16777216 are allowed");
        assert!(PartialMessage::default().room(ATTEMPT, &[7; HEADER]).is_err());
        let mut long = PartialMessage::default();
        let first = Header { len: LONGEST as u32, ..good };
        assert_eq!(long.room(ATTEMPT, &first.encode()).unwrap().len(), PART);
        // The same once more, and one with another length.
        assert!(long.room(ATTEMPT, &first.encode()).is_err());
        assert!(long.room(ATTEMPT, &Header { start: PART as u64, len: 9, ..good }.encode()).is_err());
        let mut whole = PartialMessage::default();
        whole.room(ATTEMPT, &good.encode()).unwrap();
        assert!(whole.is_whole() && whole.room(ATTEMPT, &Header { start: 5, ..good }.encode()).is_err());
    }

    #[test]
    fn the_digest_depends_on_where_a_message_ends() {
        let [one, other] = [["a", "bc"], ["ab", "c"]].map(|messages| digest(&messages.map(Vec::from)));
        assert_ne!(one, other);
    }

    fn pair() -> (Writer, Reader) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dials = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let system = &Environment::System;
        let (out, _) = establish(system, dials, &Security::Plain, true).unwrap();
        let accepted = listener.accept().unwrap().0;
        (out, establish(system, accepted, &Security::Plain, false).unwrap().1)
    }

    type Ends = (Vec<Option<Writer>>, Vec<Option<Reader>>);

    fn links(rank: usize, (writers, readers): &mut Ends) -> Links<'_> {
        const SYSTEM: Environment = Environment::System;
        let scratch = Box::leak(Box::default());
        Links { environment: &SYSTEM, attempt: ATTEMPT, rank, writers, readers, scratch, keep_going: ALWAYS }
    }

    /// The connections of every member to and from all others.
    fn connections(members: usize) -> Vec<Ends> {
        let mut ends: Vec<Ends> = (0..members).map(|_| Ends::default()).collect();
        for (from, to) in (0..members).flat_map(|from| (0..members).map(move |to| (from, to))) {
            let (out, into) = (from != to).then(pair).unzip();
            ends[from].0.push(out);
            ends[to].1.push(into);
        }
        ends
    }

    type Gathered = Result<(Vec<Vec<u8>>, u32), TransferError>;

    /// What each member gathers, and the bytes that it sends.
    fn all(words: &[Vec<u8>]) -> Vec<(Gathered, u64)> {
        std::thread::scope(|scope| {
            let gather = |rank: usize, word: &[u8], mut ends: Ends| {
                let gathered = all_gather(links(rank, &mut ends), word);
                (gathered, ends.0.iter().flatten().map(|writer| writer.sent).sum())
            };
            let threads: Vec<_> = (words.iter().zip(connections(words.len())).enumerate())
                .map(|(rank, (word, ends))| scope.spawn(move || gather(rank, word, ends)))
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// A member that sends what it should not is named by all others. Nobody waits for what does not arrive.
    #[test]
    fn a_member_that_misbehaves_is_named() {
        let part = Header { kind: Kind::Message, attempt: ATTEMPT, start: 0, len: 4 };
        let headers = [
            ([7; HEADER], "not the beginning of a piece"),
            (Header { attempt: (3, 6, 1), ..part }.encode(), "was next"),
            (Header { start: 4, ..part }.encode(), "was next"),
            (Header { len: LONGEST as u32 + 1, ..part }.encode(), "are allowed"),
            // A part that is shorter than announced, and then the end.
            (Header { len: 400, ..part }.encode(), "ended"),
        ];
        for (header, why) in headers {
            let mut honest = connections(3);
            let (mut lies, deaf) = honest.pop().unwrap();
            std::thread::scope(|scope| {
                let honest: Vec<_> = (honest.into_iter().enumerate())
                    .map(|(rank, ends)| {
                        scope.spawn(move || all_gather(links(rank, &mut { ends }), b"word").map(|_| ()))
                    })
                    .collect();
                lies.iter_mut()
                    .flatten()
                    .for_each(|to| to.write_bulk(&header, b"lies", None, ALWAYS).unwrap());
                drop(lies);
                for found in honest {
                    let failed = found.join().unwrap().unwrap_err();
                    assert_eq!(failed.rank, Some(2), "{:?}", failed.why);
                    assert!(failed.why.to_string().contains(why), "{} is not {why}", failed.why);
                }
            });
            drop(deaf);
        }
    }

    /// All send at once, and more than sockets hold: nobody waits for ever.
    #[test]
    fn all_hold_the_messages_of_all() {
        for lengths in [vec![3], vec![0, 5], vec![120, 7_000_000, 0, 9_000_000], vec![40; 9]] {
            let words: Vec<Vec<u8>> = (0..).zip(&lengths).map(|(rank, &len)| vec![rank; len]).collect();
            let mut digests = Vec::new();
            for (rank, (heard, bytes)) in all(&words).into_iter().enumerate() {
                let (heard, digest) = heard.unwrap();
                assert_eq!(heard, words);
                let parts = lengths[rank].div_ceil(PART).max(1);
                let sent = (lengths.len() - 1) * (lengths[rank] + FRONT * parts);
                assert_eq!(bytes, sent as u64);
                digests.push(digest);
            }
            assert!(digests.iter().all(|digest| *digest == digests[0]));
        }
    }
}
