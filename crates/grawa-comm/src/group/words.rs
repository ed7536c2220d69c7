//! Exchanging words: every member sends its own to every other, directly, and all hold those of all.
//!
//! Words are short or long, and of different lengths. They travel in parts, as pieces of vectors do: tagged with the move they
//! belong to, with a checksum, and sealed where the wire is encrypted. All send while they receive, so that nobody waits for
//! one who waits for him. The digest is that of all words in the order of the members.

use super::digest::{Crc, crc};
use super::exchange::{Failed, Moved, Tag};
use super::link::{GoOn, In, Out};
use crate::Error;
use std::sync::atomic::{AtomicBool, Ordering};

/// The longest word of a member: two million statistics of batch norm. All hold the words of all at once, so it must not be much.
pub const LONGEST: usize = 16 << 20;
/// The most bytes of a part: memory grows with what has come, not with what is claimed.
pub const PART: usize = 1 << 18;
/// The bytes before a part.
pub const HEAD: usize = 32;

/// What comes before a part of a word on the wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// Of which move.
    pub tag: Tag,
    /// Where it begins.
    pub start: u32,
    /// How many bytes the whole word has.
    pub whole: u32,
}

impl Part {
    /// The bytes.
    pub fn encode(&self) -> [u8; HEAD] {
        let (epoch, op, attempt) = self.tag;
        let mut bytes = [0; HEAD];
        bytes[..4].copy_from_slice(b"gSAY");
        bytes[4..8].copy_from_slice(&attempt.to_le_bytes());
        bytes[8..16].copy_from_slice(&epoch.to_le_bytes());
        bytes[16..24].copy_from_slice(&op.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.start.to_le_bytes());
        bytes[28..].copy_from_slice(&self.whole.to_le_bytes());
        bytes
    }

    /// From the bytes.
    pub fn decode(bytes: &[u8; HEAD]) -> Result<Self, Error> {
        let short = |at: usize| u32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
        let long = |at: usize| u64::from(short(at)) | u64::from(short(at + 4)) << 32;
        let wrong = |why: String| Err(Error::Frame { why });
        if &bytes[..4] != b"gSAY" {
            return wrong(format!("{:02x?} is not the beginning of a word", &bytes[..4]));
        }
        let part = Part { tag: (long(8), long(16), short(4)), start: short(24), whole: short(28) };
        if part.whole as usize > LONGEST {
            return wrong(format!("a word of {} bytes, where {LONGEST} are allowed", part.whole));
        }
        Ok(part)
    }
}

/// A word as it comes in.
#[derive(Debug, Default)]
pub struct Coming {
    word: Vec<u8>,
    whole: Option<u32>,
}

impl Coming {
    /// Room for the part that a head announces, which must be the next one of this move.
    pub fn room(&mut self, tag: Tag, head: &[u8; HEAD]) -> Result<&mut [u8], Error> {
        let (found, start) = (Part::decode(head)?, self.word.len());
        let whole = *self.whole.get_or_insert(found.whole);
        let expected = Part { tag, start: start as u32, whole };
        if found != expected || self.is_whole() && start > 0 {
            return Err(Error::Frame { why: format!("{found:?} came where {expected:?} was next") });
        }
        self.word.resize(start + (whole as usize - start).min(PART), 0);
        Ok(&mut self.word[start..])
    }

    /// Whether all of it has come.
    pub fn is_whole(&self) -> bool {
        self.whole == Some(self.word.len() as u32)
    }
}

/// The parts of a word, each with its head. One that is empty has one.
fn parts(tag: Tag, word: &[u8]) -> impl Iterator<Item = ([u8; HEAD], &[u8])> {
    let starts = (0..word.len().max(1)).step_by(PART);
    starts.map(move |start| {
        let part = Part { tag, start: start as u32, whole: word.len() as u32 };
        (part.encode(), &word[start..word.len().min(start + PART)])
    })
}

/// Who exchanges words.
pub(super) struct Exchange<'a> {
    pub(super) tag: Tag,
    pub(super) seat: usize,
    /// The ends of the connections by seat; none at one's own.
    pub(super) outs: Vec<Option<Out>>,
    pub(super) ins: Vec<Option<In>>,
    pub(super) go_on: GoOn<'a>,
}

impl Exchange<'_> {
    /// Exchanges: returns the words of all, by seat.
    pub(super) fn run(self, mine: &[u8]) -> Result<(Vec<Vec<u8>>, Moved), Failed> {
        let Exchange { tag, seat: me, mut outs, mut ins, go_on: asked } = self;
        let (members, failed) = (outs.len(), AtomicBool::new(false));
        let go_on = || !failed.load(Ordering::Relaxed) && asked();
        // Who failed first is to blame, not the thread that was told to stop for it.
        let is_first = |has_failed: bool| has_failed && !failed.swap(true, Ordering::Relaxed);
        // The next seat first, and the one before: so no two send to the same one at the same time.
        let (sent, heard) = std::thread::scope(|scope| {
            let sender = scope.spawn(|| {
                let sent = (1..members).map(|n| (me + n) % members).try_fold(0, |bytes, seat| {
                    let sent = say(outs[seat].as_mut(), tag, mine, &go_on);
                    Ok(bytes + sent.map_err(|why| Failed { seat: Some(seat), why })?)
                });
                let is_first = is_first(sent.is_err());
                (sent, is_first)
            });
            let heard: Result<Vec<(usize, Vec<u8>)>, Failed> = (1..members)
                .map(|n| (me + members - n) % members)
                .map(|seat| match hear(ins[seat].as_mut(), tag, &go_on) {
                    Ok(word) => Ok((seat, word)),
                    Err(why) => Err(Failed { seat: Some(seat), why }),
                })
                .collect();
            is_first(heard.is_err());
            let broke_down =
                Failed { seat: None, why: Error::Connection { why: "a thread broke down".into() } };
            (sender.join().unwrap_or((Err(broke_down), true)), heard)
        });
        let (mut heard, bytes) = match (heard, sent) {
            (Ok(heard), (Ok(bytes), _)) => (heard, bytes),
            (_, (Err(failed), true)) | (Err(failed), _) | (_, (Err(failed), _)) => return Err(failed),
        };
        heard.push((me, mine.to_vec()));
        heard.sort_by_key(|(seat, _)| *seat);
        let words: Vec<Vec<u8>> = heard.into_iter().map(|(_, word)| word).collect();
        let digest = digest(&words);
        Ok((words, Moved { digest, bytes, outs, ins }))
    }
}

/// The digest of words in their order.
pub(super) fn digest(words: &[Vec<u8>]) -> u32 {
    let mut digest = Crc::default();
    for word in words {
        digest.add(&(word.len() as u32).to_le_bytes());
        digest.add(word);
    }
    digest.get()
}

fn none() -> Error {
    Error::Connection { why: "there is no connection".into() }
}

fn say(to: Option<&mut Out>, tag: Tag, word: &[u8], go_on: GoOn<'_>) -> Result<u64, Error> {
    let (to, mut bytes) = (to.ok_or_else(none)?, 0);
    for (head, part) in parts(tag, word) {
        to.write_bulk(&head, part, Some(crc(part)), go_on)?;
        bytes += (HEAD + 8 + part.len()) as u64;
    }
    Ok(bytes)
}

fn hear(from: Option<&mut In>, tag: Tag, go_on: GoOn<'_>) -> Result<Vec<u8>, Error> {
    let (from, mut coming) = (from.ok_or_else(none)?, Coming::default());
    while !coming.is_whole() {
        let mut head = [0; HEAD];
        let checksum = from.read_head(&mut head, go_on)?;
        from.read_body(coming.room(tag, &head)?, checksum, go_on)?;
    }
    Ok(coming.word)
}

#[cfg(test)]
mod tests {
    use super::super::Wire;
    use super::super::link::{FOR_EVER, link};
    use super::*;
    use proptest::prelude::*;
    use std::net::{TcpListener, TcpStream};

    const TAG: Tag = (3, 7, 1);

    /// A word through heads and parts, as the wire would carry them.
    fn carried(word: &[u8]) -> Result<Vec<u8>, Error> {
        let mut coming = Coming::default();
        for (head, part) in parts(TAG, word) {
            assert!(!coming.is_whole());
            coming.room(TAG, &head)?.copy_from_slice(part);
        }
        assert!(coming.is_whole());
        Ok(coming.word)
    }

    proptest! {
        #[test]
        fn heads_go_both_ways(tag: (u64, u64, u32), start: u32, whole in 0..=LONGEST as u32) {
            let part = Part { tag, start, whole };
            prop_assert_eq!(Part::decode(&part.encode()).unwrap(), part);
        }

        #[test]
        fn words_arrive_whole(parts in 0usize..4, rest in 0usize..3, byte: u8) {
            let word = vec![byte; parts * PART + rest];
            prop_assert_eq!(carried(&word).unwrap(), word);
        }
    }

    /// What is not the next part of this word of this move is refused, whatever it claims, and takes no memory.
    #[test]
    fn what_is_out_of_place_is_refused() {
        let good = Part { tag: TAG, start: 0, whole: 5 };
        let refused = |part: Part, why: &str| {
            let error = Coming::default().room(TAG, &part.encode()).unwrap_err().to_string();
            assert!(error.contains(why), "{error}");
        };
        refused(Part { tag: (3, 7, 0), ..good }, "was next");
        refused(Part { tag: (2, 7, 1), ..good }, "was next");
        refused(Part { tag: (3, 6, 1), ..good }, "was next");
        refused(Part { start: 1, ..good }, "was next");
        refused(Part { whole: LONGEST as u32 + 1, ..good }, "where 16777216 are allowed");
        assert!(Coming::default().room(TAG, &[7; HEAD]).is_err());
        let mut long = Coming::default();
        let first = Part { whole: LONGEST as u32, ..good };
        assert_eq!(long.room(TAG, &first.encode()).unwrap().len(), PART);
        // The same once more, and one that changed its mind about the length.
        assert!(long.room(TAG, &first.encode()).is_err());
        assert!(long.room(TAG, &Part { start: PART as u32, whole: 9, ..good }.encode()).is_err());
        let mut whole = Coming::default();
        whole.room(TAG, &good.encode()).unwrap();
        assert!(whole.is_whole() && whole.room(TAG, &Part { start: 5, ..good }.encode()).is_err());
    }

    #[test]
    fn the_digest_tells_where_a_word_ends() {
        let [one, other] = [["a", "bc"], ["ab", "c"]].map(|words| digest(&words.map(Vec::from)));
        assert_ne!(one, other);
    }

    fn pair() -> (Out, In) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let dials = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let (out, _) = link(dials, &Wire::Plain, true).unwrap();
        (out, link(listener.accept().unwrap().0, &Wire::Plain, false).unwrap().1)
    }

    type Ends = (Vec<Option<Out>>, Vec<Option<In>>);

    /// Every seat's connections to and from all others.
    fn connections(members: usize) -> Vec<Ends> {
        let mut ends: Vec<Ends> = (0..members).map(|_| Ends::default()).collect();
        for (from, to) in (0..members).flat_map(|from| (0..members).map(move |to| (from, to))) {
            let (out, into) = (from != to).then(pair).unzip();
            ends[from].0.push(out);
            ends[to].1.push(into);
        }
        ends
    }

    type Heard = Result<(Vec<Vec<u8>>, Moved), Failed>;

    fn all(words: &[Vec<u8>]) -> Vec<Heard> {
        std::thread::scope(|scope| {
            let threads: Vec<_> = (words.iter().zip(connections(words.len())).enumerate())
                .map(|(seat, (word, (outs, ins)))| {
                    let exchange = Exchange { tag: TAG, seat, outs, ins, go_on: FOR_EVER };
                    scope.spawn(move || exchange.run(word))
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    /// One that says what it should not is found out by everyone, and by name; nobody waits for what does not come.
    #[test]
    fn one_that_lies_is_to_blame() {
        let part = Part { tag: TAG, start: 0, whole: 4 };
        let heads = [
            ([7; HEAD], "not the beginning of a word"),
            (Part { tag: (3, 6, 1), ..part }.encode(), "was next"),
            (Part { start: 4, ..part }.encode(), "was next"),
            (Part { whole: LONGEST as u32 + 1, ..part }.encode(), "are allowed"),
            // A part that is shorter than it says, and then the end.
            (Part { whole: 400, ..part }.encode(), "ended"),
        ];
        for (head, why) in heads {
            let mut honest = connections(3);
            let (mut lies, deaf) = honest.pop().unwrap();
            std::thread::scope(|scope| {
                let honest: Vec<_> = (honest.into_iter().enumerate())
                    .map(|(seat, (outs, ins))| {
                        let exchange = Exchange { tag: TAG, seat, outs, ins, go_on: FOR_EVER };
                        scope.spawn(move || exchange.run(b"word").map(|_| ()))
                    })
                    .collect();
                lies.iter_mut()
                    .flatten()
                    .for_each(|to| to.write_bulk(&head, b"lies", None, FOR_EVER).unwrap());
                drop(lies);
                for found in honest {
                    let failed = found.join().unwrap().unwrap_err();
                    assert_eq!(failed.seat, Some(2), "{:?}", failed.why);
                    assert!(failed.why.to_string().contains(why), "{} is not {why}", failed.why);
                }
            });
            drop(deaf);
        }
    }

    /// Everyone at once, with more than sockets hold: nobody waits for ever.
    #[test]
    fn all_hold_the_words_of_all() {
        for lengths in [vec![3], vec![0, 5], vec![120, 7_000_000, 0, 9_000_000], vec![40; 9]] {
            let words: Vec<Vec<u8>> = (0..).zip(&lengths).map(|(seat, &len)| vec![seat; len]).collect();
            let mut digests = Vec::new();
            for (seat, heard) in all(&words).into_iter().enumerate() {
                let (heard, moved) = heard.unwrap();
                assert_eq!(heard, words);
                let parts = lengths[seat].div_ceil(PART).max(1);
                let sent = (lengths.len() - 1) * (lengths[seat] + (HEAD + 8) * parts);
                assert_eq!(moved.bytes, sent as u64);
                digests.push(moved.digest);
            }
            assert!(digests.iter().all(|digest| *digest == digests[0]));
        }
    }
}
