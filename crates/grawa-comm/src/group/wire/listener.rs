//! Accepts connections, and hands over those whose peer is authenticated and has sent its first message.
//!
//! One thread does this for all connections, and waits for none: a connection costs a socket and a few kilobytes for a few
//! seconds at most. [`Pending`] limits how many there are, and a [`TokenBucket`] how much of a core they use: a handshake costs the
//! listener more than the peer. Beyond its share the thread sleeps, and the peers wait. An error ends one connection and no
//! other.

use super::connection::{CONNECT_TIMEOUT, Reader, Writer, is_pause};
use super::file_limit::Limits;
use super::frame::{self, Partial};
use super::handshake::Handshake;
use super::pending::Pending;
use super::tls::Security;
use crate::Error;
use crate::group::environment::{Environment, POLL};
use crate::group::token_bucket::TokenBucket;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use std::cmp::Reverse;
use std::io::ErrorKind;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The longest first message.
pub(crate) const SHORT: usize = 4096;
/// Connections that are accepted in one turn, and CPU time for those that are open. Turns are short, so that a joiner does not wait
/// long for the next.
const ACCEPTED: usize = 128;
const TURN: Duration = Duration::from_millis(1);
/// Connections that the system holds for the next turn, if it allows that many.
const BACKLOG: i32 = 1024;

/// The share of a core for peers that are not authenticated, and the CPU seconds that may be used at once after an idle time: a hundred
/// handshakes.
const SHARE: f64 = 0.05;
const MOST: f64 = 0.1;

/// What is done with connections.
pub(crate) trait Service: Send + Sync + 'static {
    /// Whether to stop listening.
    fn is_over(&self) -> bool;

    /// How long a peer may take until it is authenticated and its first message is there.
    fn patience(&self) -> Duration {
        CONNECT_TIMEOUT
    }

    /// Takes over a connection. The thread that listens calls it: it must not wait.
    fn open(self: &Arc<Self>, opened: Opened) -> Result<(), Error>;

    /// A connection was rejected.
    fn reject(&self, _from: SocketAddr, _why: &Error) {}
}

/// A connection whose peer is authenticated, if there is a key, and its first message.
pub(crate) struct Opened {
    pub(crate) from: SocketAddr,
    pub(crate) writer: Writer,
    pub(crate) reader: Reader,
    pub(crate) first: Vec<u8>,
}

/// Listens at an address on a thread of its own, until the service is over; port 0 is any. Returns the address.
pub(crate) fn listen(
    environment: &Environment,
    address: &str,
    security: Security,
    limits: Limits,
    service: Arc<impl Service>,
) -> Result<SocketAddr, Error> {
    #[cfg(test)]
    if let Environment::Simulated(process) = environment {
        return process.listen(address, service);
    }
    let listener = TcpListener::bind(address)
        .map_err(|error| Error::Connection { why: format!("cannot listen at {address}: {error}") })?;
    listener.set_nonblocking(true)?;
    // The standard library asks for 128. A connection beyond that is dropped, and its peer tries again after one second, then three.
    rustix::net::listen(&listener, BACKLOG).map_err(std::io::Error::from)?;
    let address = listener.local_addr()?;
    environment.spawn("listen", move || serve(&listener, &security, limits, &service))?;
    Ok(address)
}

fn serve(listener: &TcpListener, security: &Security, limits: Limits, service: &Arc<impl Service>) {
    let began = Instant::now();
    let (pending, budget) = (Pending::new(limits), TokenBucket::new(SHARE, MOST, Duration::ZERO));
    let mut turns = Turns { listener, security, service, began, pending, budget };
    while !service.is_over() {
        turns.turn();
    }
}

/// A connection that is not authenticated yet.
struct Incoming {
    from: SocketAddr,
    socket: Arc<TcpStream>,
    /// None until something arrives: a silent peer costs no more than its socket.
    handshake: Option<Box<Handshake>>,
    first: Partial,
    /// CPU time that was used for it.
    used: Duration,
}

enum Step {
    /// More must arrive.
    Waits,
    /// It has ended without a byte.
    Ended,
    Opened(Box<Opened>),
}

struct Turns<'a, S> {
    listener: &'a TcpListener,
    security: &'a Security,
    service: &'a Arc<S>,
    began: Instant,
    pending: Pending<Incoming>,
    budget: TokenBucket,
}

impl<S: Service> Turns<'_, S> {
    fn turn(&mut self) {
        let used = cpu_time();
        let (is_due, ready) = self.wait();
        self.advance(ready);
        if is_due {
            self.accept();
        }
        let now = self.began.elapsed();
        let patience = self.service.patience();
        while let Some(entry) = self.pending.older_than(now.saturating_sub(patience)) {
            let why = format!("no complete message within {} s", patience.as_secs());
            self.service.reject(entry.one.from, &Error::Connection { why });
        }
        let used = cpu_time().saturating_sub(used);
        let rest = self.budget.use_anyway(used.as_secs_f64(), self.began.elapsed());
        if !rest.is_zero() {
            std::thread::sleep(rest);
        }
    }

    /// Waits a short time for something to happen. Returns whether a peer connects, and which connections have bytes to read.
    fn wait(&self) -> (bool, Vec<usize>) {
        let mut sockets: Vec<PollFd<'_>> = (self.pending.entries.iter())
            .map(|entry| PollFd::new(&entry.one.socket, PollFlags::IN))
            .collect();
        let count = sockets.len();
        sockets.push(PollFd::new(self.listener, PollFlags::IN));
        let timeout = Timespec { tv_sec: 0, tv_nsec: POLL.subsec_nanos() as _ };
        if let Err(error) = poll(&mut sockets, Some(&timeout)) {
            // A signal, or no memory: it passes. This must not spin.
            if error != rustix::io::Errno::INTR {
                std::thread::sleep(POLL);
            }
            return (false, Vec::new());
        }
        let is_ready = |at: &usize| !sockets[*at].revents().is_empty();
        (is_ready(&count), (0..count).filter(is_ready).collect())
    }

    /// Continues with connections that have bytes to read: those of the address with the fewest connections first, the newest of
    /// them first. If there is not time for all, some are served at once, instead of all too late.
    fn advance(&mut self, mut ready: Vec<usize>) {
        ready.sort_by_cached_key(|at| (self.pending.of_its_address(*at), Reverse(*at)));
        let (mut over, mut before) = (Vec::new(), cpu_time());
        let (end, patience) = (before + TURN, self.service.patience());
        for at in ready {
            let entry = &mut self.pending.entries[at];
            let step = entry.one.advance(self.security, self.began + entry.since + patience);
            let after = cpu_time();
            entry.one.used += after.saturating_sub(before);
            before = after;
            if !matches!(step, Ok(Step::Waits)) {
                over.push((at, step));
            }
            if after > end {
                break;
            }
        }
        // From the last one, so that the positions of those before it stay.
        over.sort_by_key(|(at, _)| Reverse(*at));
        for (at, step) in over {
            let entry = self.pending.remove(at);
            let done = match step {
                Ok(Step::Opened(opened)) => {
                    self.service.open(*opened).map(|()| self.budget.give_back(entry.one.used.as_secs_f64()))
                }
                Ok(_) => Ok(()),
                Err(why) => Err(why),
            };
            if let Err(why) = done {
                self.service.reject(entry.one.from, &why);
            }
        }
    }

    fn accept(&mut self) {
        for _ in 0..ACCEPTED {
            match self.listener.accept() {
                Ok((socket, from)) if socket.set_nonblocking(true).is_ok() => {
                    let (socket, first, used) = (Arc::new(socket), Partial::default(), Duration::ZERO);
                    let one = Incoming { from, socket, handshake: None, first, used };
                    let address = from.ip().to_canonical();
                    if let Some(entry) = self.pending.add(address, self.began.elapsed(), one) {
                        let why = "it made room for newer connections before it was authenticated".into();
                        self.service.reject(entry.one.from, &Error::Connection { why });
                    }
                }
                Ok(_) => {}
                Err(error) => match error.kind() {
                    ErrorKind::WouldBlock => return,
                    // That one connection has ended.
                    ErrorKind::Interrupted | ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset => {}
                    // Too many open files, most likely: it passes. This must not spin.
                    _ => return std::thread::sleep(POLL),
                },
            }
        }
    }
}

impl Incoming {
    /// Reads what has arrived.
    fn advance(&mut self, security: &Security, end: Instant) -> Result<Step, Error> {
        let handshake = match &mut self.handshake {
            Some(handshake) => handshake,
            silent => match self.socket.peek(&mut [0]) {
                Ok(1..) => {
                    let socket = Arc::clone(&self.socket);
                    silent.insert(Handshake::new(&Environment::System, socket, security, false)?.into())
                }
                Err(error) if is_pause(&error) => return Ok(Step::Waits),
                Ok(0) | Err(_) => return Ok(Step::Ended),
            },
        };
        if !handshake.advance(end)? {
            return Ok(Step::Waits);
        }
        match self.first.read(frame::whole(SHORT), |buffer| handshake.reader.read(buffer)) {
            Ok(true) => {}
            Ok(false) => return Err(Error::Connection { why: "it ended before its first message".into() }),
            Err(error) if is_pause(&error) => return Ok(Step::Waits),
            Err(error) => return Err(error.into()),
        }
        let first = std::mem::take(&mut self.first).body(&mut handshake.reader.numbers, SHORT)?;
        let first = first.ok_or_else(|| Error::Frame { why: "its first frame is a repetition".into() })?;
        let Some(handshake) = self.handshake.take() else { return Ok(Step::Ended) };
        let (writer, reader) = handshake.finish()?;
        Ok(Step::Opened(Box::new(Opened { from: self.from, writer, reader, first })))
    }
}

/// The CPU time of this thread so far. Where the system does not know it, the time since the start.
fn cpu_time() -> Duration {
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
    use super::super::connection::{ALWAYS, dial};
    use super::super::frame::Numbers;
    use super::super::tls::new_key;
    use super::*;
    use std::io::{Read, Write};
    use std::sync::Mutex;
    use std::sync::atomic::{AtomicBool, Ordering};

    /// A service that accepts every connection and returns its first message.
    #[derive(Default)]
    struct Answers {
        is_over: AtomicBool,
        is_patient: AtomicBool,
        rejected: Mutex<Vec<String>>,
    }

    impl Service for Answers {
        fn is_over(&self) -> bool {
            self.is_over.load(Ordering::Relaxed)
        }

        fn patience(&self) -> Duration {
            CONNECT_TIMEOUT * if self.is_patient.load(Ordering::Relaxed) { 5 } else { 1 }
        }

        fn open(self: &Arc<Self>, mut opened: Opened) -> Result<(), Error> {
            if opened.first == b"wrong" {
                return Err(Error::Message { why: "wrong".into() });
            }
            opened.writer.send(&opened.first, ALWAYS)
        }

        fn reject(&self, _: SocketAddr, why: &Error) {
            self.rejected.lock().unwrap().push(why.to_string());
        }
    }

    const LIMITS: Limits = Limits { pending: 20, per_address: 16, open: 20 };

    struct Listening(Arc<Answers>, SocketAddr, Security);

    impl Listening {
        fn new(security: Security) -> Self {
            let (answers, ours) = (Arc::<Answers>::default(), security.clone());
            let service = Arc::clone(&answers);
            let address = listen(&Environment::System, "127.0.0.1:0", ours, LIMITS, service).unwrap();
            Listening(answers, address, security)
        }

        fn connect(&self, first: &[u8]) -> TcpStream {
            let mut socket = TcpStream::connect(self.1).unwrap();
            socket.set_read_timeout(Some(3 * CONNECT_TIMEOUT)).unwrap();
            socket.write_all(first).unwrap();
            socket
        }

        /// Asserts that a member is answered. Returns how soon.
        fn is_answered(&self) -> Duration {
            self.is_answered_after(Duration::ZERO)
        }

        /// The same where it is slow to send its first message.
        fn is_answered_after(&self, time: Duration) -> Duration {
            let began = Instant::now();
            let address = self.1.to_string();
            let (mut out, mut from) = dial(&Environment::System, &address, &self.2).unwrap();
            std::thread::sleep(time);
            out.send(b"hello", ALWAYS).unwrap();
            assert_eq!(from.receive(100, ALWAYS).unwrap().as_deref(), Some(&b"hello"[..]));
            began.elapsed()
        }

        fn wait_rejected(&self, count: usize) -> Vec<String> {
            let began = Instant::now();
            loop {
                let rejected = self.0.rejected.lock().unwrap().clone();
                if rejected.len() >= count {
                    return rejected;
                }
                assert!(began.elapsed() < 5 * CONNECT_TIMEOUT, "{rejected:?}");
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
        [Security::Plain, Security::with_key(&path).unwrap()].map(Listening::new)
    }

    fn is_ended(mut socket: TcpStream) -> bool {
        let mut rest = Vec::new();
        match socket.read_to_end(&mut rest) {
            Ok(_) => true,
            Err(error) => error.kind() == ErrorKind::ConnectionReset,
        }
    }

    /// A member is answered at once while many peers connect and send nothing. These make room, and end in time.
    #[test]
    fn silent_peers_hold_up_nobody() {
        for listening in both() {
            let silent: Vec<TcpStream> = (0..100).map(|_| listening.connect(&[])).collect();
            let took = listening.is_answered();
            assert!(took < CONNECT_TIMEOUT / 2, "{took:?}");
            assert!(silent.into_iter().all(is_ended));
            let rejected = listening.wait_rejected(100);
            assert_eq!(rejected.len(), 100);
            let made_room = rejected.iter().filter(|why| why.contains("made room")).count();
            assert!(made_room >= 100 - LIMITS.per_address, "{made_room}");
            assert!(rejected.iter().any(|why| why.contains("within 3 s")), "{rejected:?}");
        }
    }

    /// A first message that trickles in is given up as soon as one that does not arrive, on plain connections, too.
    #[test]
    fn a_first_message_that_trickles_in_is_given_up() {
        // The beginning of a frame of 400 bytes, and of a TLS record.
        for (listening, first) in both().into_iter().zip([[144, 1, 0, 0], [22, 3, 1, 8]]) {
            let mut socket = listening.connect(&first);
            let began = Instant::now();
            while socket.write_all(&[0]).is_ok() {
                assert!(began.elapsed() < 3 * CONNECT_TIMEOUT, "it still listens");
                std::thread::sleep(Duration::from_millis(20));
            }
            assert!(began.elapsed() < 2 * CONNECT_TIMEOUT);
            assert!(listening.wait_rejected(1)[0].contains("within 3 s"));
        }
    }

    /// Where many connect at once on few cores, a handshake may take longer.
    #[test]
    fn a_patient_service_waits_longer() {
        for listening in both() {
            listening.0.is_patient.store(true, Ordering::Relaxed);
            listening.is_answered_after(CONNECT_TIMEOUT + Duration::from_secs(1));
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
                // A connection that is not read to its end may end while it is written to.
                let mut socket = TcpStream::connect(listening.1).unwrap();
                let _ = socket.write_all(bytes);
                socket.set_read_timeout(Some(3 * CONNECT_TIMEOUT)).unwrap();
                assert!(is_ended(socket));
            }
            assert_eq!(listening.wait_rejected(garbage.len()).len(), garbage.len());
            listening.is_answered();
        }
    }

    /// A peer that connects and leaves without a byte is not reported.
    #[test]
    fn a_peer_that_leaves_without_a_byte_is_not_reported() {
        let [plain, _] = both();
        (0..5).for_each(|_| drop(plain.connect(&[])));
        plain.is_answered();
        plain.connect(b"garbage that is no frame at all");
        assert_eq!(plain.wait_rejected(1).len(), 1);
    }

    /// A handshake with more bytes than any of ours is ended.
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
