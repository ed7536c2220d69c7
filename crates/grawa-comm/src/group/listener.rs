//! Accepts connections, and hands over those whose peer is authenticated and has sent its first message.
//!
//! One thread does this for all of them, and waits for none: until it is handed over a connection costs a socket and a few
//! kilobytes, for a few seconds at most. How many are kept is decided by [`Pending`], how much of a core they may have by
//! [`Allowance`]. What goes wrong with a connection ends it, and it alone.

use super::allowance::Allowance;
use super::files::Limits;
use super::frame::{self, Numbers, Partial};
use super::handshake::Handshake;
use super::key::Wire;
use super::link::{In, LOOK, MADE, Out, is_pause};
use super::pending::Pending;
use crate::Error;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cmp::Reverse;
use std::io::{ErrorKind, Read};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::time::{Duration, Instant};

/// The longest first message.
const SHORT: usize = 4096;
/// Connections that are accepted in a turn, and time on a core that goes to those that are open.
const ACCEPTED: usize = 256;
const TURN: Duration = Duration::from_millis(5);
/// From one turn to the next while nobody comes.
const IDLE: Duration = Duration::from_secs(1);

/// What is done with connections.
pub(super) trait Server {
    /// Whether to stop listening.
    fn is_over(&self) -> bool;

    /// Takes over a connection. It is called by the thread that listens, and must not wait.
    fn open(&self, opened: Opened) -> Result<(), Error>;

    /// A connection was rejected.
    fn reject(&self, _from: SocketAddr, _why: &Error) {}

    /// A turn is over; at least one a second is.
    fn tick(&self) {}
}

/// A connection whose peer is authenticated, if there is a key, and its first message.
pub(super) struct Opened {
    pub(super) from: SocketAddr,
    pub(super) out: Out,
    pub(super) input: In,
    pub(super) first: Vec<u8>,
}

/// Listens until it is over.
pub(super) fn serve(listener: &TcpListener, wire: &Wire, limits: Limits, server: &impl Server) {
    let began = Instant::now();
    let (pending, allowance) = (Pending::new(limits), Allowance::new(Duration::ZERO));
    let mut turns = Turns { listener, wire, server, began, pending, allowance, resumes: None };
    while !server.is_over() {
        turns.turn();
    }
}

/// A connection as far as it has come.
struct Incoming {
    from: SocketAddr,
    stage: Stage,
    /// Time on a core that was spent on it.
    used: Duration,
}

enum Stage {
    /// Nothing has come.
    Silent(TcpStream),
    Talking(Box<Handshake>, Partial),
    /// It ended, or was handed over.
    Over,
}

enum Step {
    /// More must come.
    Waits,
    /// It has ended without a byte: nobody need hear of it.
    Ended,
    Opened(Box<Opened>),
}

struct Turns<'a, S> {
    listener: &'a TcpListener,
    wire: &'a Wire,
    server: &'a S,
    began: Instant,
    pending: Pending<Incoming>,
    allowance: Allowance,
    /// When accepting goes on after an error.
    resumes: Option<Instant>,
}

impl<S: Server> Turns<'_, S> {
    fn turn(&mut self) {
        let used = time_on_core();
        let (is_due, ready) = self.wait();
        self.advance(ready);
        if is_due {
            self.accept();
        }
        let now = self.began.elapsed();
        while let Some(entry) = self.pending.older_than(now.saturating_sub(MADE)) {
            let why = format!("no whole message came within {} s", MADE.as_secs());
            self.server.reject(entry.one.from, &Error::Connection { why });
        }
        self.server.tick();
        let used = time_on_core().saturating_sub(used);
        let rest = self.allowance.spend(used, self.began.elapsed());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }

    /// Waits until something comes, not for long. Whether someone connects, and which connections have something to read.
    fn wait(&mut self) -> (bool, Vec<usize>) {
        self.resumes = self.resumes.filter(|then| *then > Instant::now());
        let timeout = match self.pending.entries().is_empty() && self.resumes.is_none() {
            true => IDLE,
            false => LOOK,
        };
        let mut sockets: Vec<PollFd<'_>> = (self.pending.entries().iter())
            .filter_map(|entry| entry.one.socket())
            .map(|socket| PollFd::new(socket, PollFlags::IN))
            .collect();
        let count = sockets.len();
        if self.resumes.is_none() {
            sockets.push(PollFd::new(self.listener, PollFlags::IN));
        }
        let timeout = Timespec { tv_sec: timeout.as_secs() as _, tv_nsec: timeout.subsec_nanos() as _ };
        if let Err(error) = poll(&mut sockets, Some(&timeout)) {
            // A signal, or no memory: it passes, and must not spin.
            if error != rustix::io::Errno::INTR {
                std::thread::sleep(LOOK);
            }
            return (false, Vec::new());
        }
        let is_ready = |at: &usize| !sockets[*at].revents().is_empty();
        let is_due = sockets.len() > count && is_ready(&count);
        (is_due, (0..count).filter(is_ready).collect())
    }

    /// Goes on with connections that have something to read, those from known addresses first. Then the newest: where more comes than
    /// there is time for, some are served at once, and not all too late.
    fn advance(&mut self, mut ready: Vec<usize>) {
        let entries = self.pending.entries();
        ready.sort_by_key(|at| (!self.pending.is_known(entries[*at].address), Reverse(*at)));
        let (mut over, mut before) = (Vec::new(), time_on_core());
        let end = before + TURN;
        for at in ready {
            let entry = self.pending.entry_mut(at);
            let step = entry.one.advance(self.wire, self.began + entry.since + MADE);
            let after = time_on_core();
            entry.one.used += after.saturating_sub(before);
            before = after;
            if !matches!(step, Ok(Step::Waits)) {
                over.push((at, step));
            }
            if after > end {
                break;
            }
        }
        // From the last one, so that the places of those before it stay.
        over.sort_by_key(|(at, _)| Reverse(*at));
        for (at, step) in over {
            let entry = self.pending.remove(at);
            let done = match step {
                Ok(Step::Opened(opened)) => self.server.open(*opened).map(|()| {
                    self.pending.learn(entry.address);
                    self.allowance.give_back(entry.one.used);
                }),
                Ok(_) => Ok(()),
                Err(why) => Err(why),
            };
            if let Err(why) = done {
                self.server.reject(entry.one.from, &why);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            match self.listener.accept() {
                Ok((socket, from)) if socket.set_nonblocking(true).is_ok() => {
                    let one = Incoming { from, stage: Stage::Silent(socket), used: Duration::ZERO };
                    let address = from.ip().to_canonical();
                    if let Some(entry) = self.pending.add(address, self.began.elapsed(), one) {
                        let why = "it made room for newer connections before it was authenticated".into();
                        self.server.reject(entry.one.from, &Error::Connection { why });
                    }
                }
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    // That one connection has ended.
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset => {}
                    // Too many open files, most likely: it passes, and must not spin.
                    _ => {
                        self.resumes = Some(Instant::now() + LOOK);
                        return;
                    }
                },
            }
        }
    }
}

impl Incoming {
    fn socket(&self) -> Option<&TcpStream> {
        match &self.stage {
            Stage::Silent(socket) => Some(socket),
            Stage::Talking(handshake, _) => Some(&handshake.from.socket),
            Stage::Over => None,
        }
    }

    /// Takes what has come.
    fn advance(&mut self, wire: &Wire, end: Instant) -> Result<Step, Error> {
        self.stage = match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Silent(socket) => match socket.peek(&mut [0]) {
                Ok(1..) => Stage::Talking(Box::new(Handshake::new(socket, wire, false)?), Partial::default()),
                Err(error) if is_pause(&error) => Stage::Silent(socket),
                Ok(0) | Err(_) => return Ok(Step::Ended),
            },
            stage => stage,
        };
        let Stage::Talking(handshake, partial) = &mut self.stage else { return Ok(Step::Waits) };
        if !handshake.advance(end)? {
            return Ok(Step::Waits);
        }
        match partial.read(&mut Reads(&mut handshake.from), SHORT) {
            Ok(true) => {}
            Ok(false) => return Err(Error::Connection { why: "it ended before its first message".into() }),
            Err(error) if is_pause(&error) => return Ok(Step::Waits),
            Err(error) => return Err(error.into()),
        }
        let mut numbers = Numbers::default();
        let first = frame::read(&mut &partial.bytes[..], &mut numbers, SHORT)?;
        let first = first.ok_or_else(|| Error::Frame { why: "its first frame is a repetition".into() })?;
        handshake.from.numbers = numbers;
        let Stage::Talking(handshake, _) = std::mem::replace(&mut self.stage, Stage::Over) else {
            return Ok(Step::Ended);
        };
        let (out, input) = handshake.finish()?;
        Ok(Step::Opened(Box::new(Opened { from: self.from, out, input, first })))
    }
}

/// What is there to read, without waiting.
struct Reads<'a>(&'a mut In);

impl Read for Reads<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        self.0.read(buffer)
    }
}

/// What this thread has used of a core so far. Where that is not known the time that has passed stands for it.
fn time_on_core() -> Duration {
    #[cfg(unix)]
    {
        let time = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
        Duration::new(time.tv_sec.unsigned_abs(), u32::try_from(time.tv_nsec).unwrap_or(0))
    }
    #[cfg(not(unix))]
    {
        static BEGAN: std::sync::LazyLock<Instant> = std::sync::LazyLock::new(Instant::now);
        BEGAN.elapsed()
    }
}

#[cfg(test)]
mod tests {
    use super::super::link::{FOR_EVER, dial};
    use super::super::new_key;
    use super::*;
    use std::io::Write;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::sync::{Arc, Mutex};

    /// A server that takes every connection and answers its first message.
    #[derive(Default)]
    struct Answers {
        is_over: AtomicBool,
        rejected: Mutex<Vec<String>>,
    }

    impl Server for Arc<Answers> {
        fn is_over(&self) -> bool {
            self.is_over.load(Ordering::Relaxed)
        }

        fn open(&self, mut opened: Opened) -> Result<(), Error> {
            if opened.first == b"wrong" {
                return Err(Error::Message { why: "wrong".into() });
            }
            opened.out.send(&opened.first, FOR_EVER)
        }

        fn reject(&self, _: SocketAddr, why: &Error) {
            self.rejected.lock().unwrap().push(why.to_string());
        }
    }

    const LIMITS: Limits = Limits { pending: 20, per_address: 16, open: 20 };

    struct Listening(Arc<Answers>, SocketAddr, Wire);

    impl Listening {
        fn new(wire: Wire) -> Self {
            let (answers, listener) = (Arc::<Answers>::default(), TcpListener::bind("127.0.0.1:0").unwrap());
            listener.set_nonblocking(true).unwrap();
            let (address, server, ours) =
                (listener.local_addr().unwrap(), Arc::clone(&answers), wire.clone());
            std::thread::spawn(move || serve(&listener, &ours, LIMITS, &server));
            Listening(answers, address, wire)
        }

        fn connect(&self, first: &[u8]) -> TcpStream {
            let mut socket = TcpStream::connect(self.1).unwrap();
            socket.set_read_timeout(Some(3 * MADE)).unwrap();
            socket.write_all(first).unwrap();
            socket
        }

        /// That someone who means it is answered, and how soon.
        fn is_answered(&self) -> Duration {
            let began = Instant::now();
            let (mut out, mut from) = dial(&self.1.to_string(), &self.2).unwrap();
            out.send(b"hello", FOR_EVER).unwrap();
            assert_eq!(from.receive(100, FOR_EVER).unwrap().as_deref(), Some(&b"hello"[..]));
            began.elapsed()
        }

        fn wait_rejected(&self, count: usize) -> Vec<String> {
            let began = Instant::now();
            loop {
                let rejected = self.0.rejected.lock().unwrap().clone();
                if rejected.len() >= count {
                    return rejected;
                }
                assert!(began.elapsed() < 5 * MADE, "{rejected:?}");
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }

    impl Drop for Listening {
        fn drop(&mut self) {
            self.0.is_over.store(true, Ordering::Relaxed);
        }
    }

    fn both() -> [Listening; 2] {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        new_key(&path).unwrap();
        [Wire::Plain, Wire::with_key(&path).unwrap()].map(Listening::new)
    }

    fn is_ended(mut socket: TcpStream) -> bool {
        let mut rest = Vec::new();
        match socket.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// However many connect and say nothing, whoever means it is answered at once; the silent ones make room, and end in time.
    #[test]
    fn silent_peers_hold_up_nobody() {
        for listening in both() {
            let silent: Vec<TcpStream> = (0..100).map(|_| listening.connect(&[])).collect();
            let took = listening.is_answered();
            assert!(took < MADE / 2, "{took:?}");
            assert!(silent.into_iter().all(is_ended));
            let rejected = listening.wait_rejected(100);
            assert_eq!(rejected.len(), 100);
            let made_room = rejected.iter().filter(|why| why.contains("made room")).count();
            assert!(made_room >= 100 - LIMITS.per_address, "{made_room}");
            assert!(rejected.iter().any(|why| why.contains("within 3 s")), "{rejected:?}");
        }
    }

    /// A first message that drips in is given up after as long as one that does not come, in the clear, too.
    #[test]
    fn a_first_message_that_drips_in_is_given_up() {
        // The beginning of a frame of 400 bytes, and of a record of TLS.
        for (listening, first) in both().into_iter().zip([[144, 1, 0, 0], [22, 3, 1, 8]]) {
            let mut socket = listening.connect(&first);
            let began = Instant::now();
            while socket.write_all(&[0]).is_ok() {
                assert!(began.elapsed() < 3 * MADE, "it still listens");
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(began.elapsed() < 2 * MADE);
            assert!(listening.wait_rejected(1)[0].contains("within 3 s"));
        }
    }

    #[test]
    fn garbage_is_rejected_and_ends_nothing_else() {
        let [plain, keyed] = both();
        let mut wrong = Vec::new();
        frame::write(&mut wrong, &mut Numbers::default(), b"wrong").unwrap();
        let mut repeated = Vec::new();
        frame::write(&mut repeated, &mut Numbers::default(), b"x").unwrap();
        repeated[7] = 0xff;
        let garbage: [&[u8]; 5] = [b"GET / HTTP/1.1\r\n\r\n", &[0; 50], &[0xff; 5000], &wrong, &repeated];
        for listening in [plain, keyed] {
            for bytes in garbage {
                // One that is not read to its end may be cut off while it is sent.
                let mut socket = TcpStream::connect(listening.1).unwrap();
                let _ = socket.write_all(bytes);
                socket.set_read_timeout(Some(3 * MADE)).unwrap();
                assert!(is_ended(socket));
            }
            assert_eq!(listening.wait_rejected(garbage.len()).len(), garbage.len());
            listening.is_answered();
        }
    }

    /// One that connects and goes has said nothing: nobody hears of it.
    #[test]
    fn who_goes_without_a_byte_is_not_told_of() {
        let [plain, _] = both();
        (0..5).for_each(|_| drop(plain.connect(&[])));
        plain.is_answered();
        plain.connect(b"garbage that is no frame at all");
        assert_eq!(plain.wait_rejected(1).len(), 1);
    }

    /// A handshake that takes more bytes than any of ours is not listened to.
    #[test]
    fn an_endless_handshake_is_cut_off() {
        let [_, keyed] = both();
        let mut socket = keyed.connect(&[]);
        // Records that begin a hello of 16 MB.
        let mut record = vec![22, 3, 1, 8, 0];
        record.extend([1, 255, 255, 255]);
        record.resize(5 + 2048, 0);
        while socket.write_all(&record).is_ok() {
            std::thread::sleep(Duration::from_millis(1));
        }
        assert_eq!(keyed.wait_rejected(1).len(), 1);
        keyed.is_answered();
    }
}
