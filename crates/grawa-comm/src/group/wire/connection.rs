//! A connection whose two directions are used by two threads, plain or encrypted.
//!
//! Messages go through TLS. Vectors are encrypted beside it, in between; so a reader never reads past the current TLS record.
//! No read or write waits for ever: each checks every [`POLL`] whether to continue, also while bytes trickle in.

use super::bulk_cipher::{BLOCK, BulkCipher, TAG};
use super::frame::{self, Numbers, Partial};
use super::handshake::Handshake;
use super::tls::{Security, token_of};
use crate::Error;
use crate::group::digest::{Crc, crc};
use crate::group::environment::{Environment, POLL, lock};
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long connecting may take.
pub(crate) const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// How long a vector may arrive without a byte.
pub(crate) const STALL: Duration = Duration::from_secs(5);
/// A transfer that moves fewer bytes than this within [`POLL`] counts as paused: single bytes are no progress.
const TRICKLE: usize = 16 << 10;
/// Bytes that are read at a time where they are not encrypted: the checksum finds them in cache.
const PLAIN_BLOCK: usize = 1 << 17;
/// The bytes before a TLS record, and the longest record (RFC 8446, section 5.2).
const RECORD: (usize, usize) = (5, 5 + (1 << 14) + 256);

/// Whether to keep waiting.
pub(crate) type KeepGoing<'a> = &'a (dyn Fn() -> bool + Sync);

#[cfg(test)]
pub(crate) const ALWAYS: KeepGoing<'static> = &|| true;

/// A stream of bytes in both directions.
#[derive(Clone, Debug)]
pub(crate) enum Socket {
    Tcp(Arc<TcpStream>),
    #[cfg(test)]
    Simulated(Arc<crate::group::simulate::Socket>),
}

impl Socket {
    pub(crate) fn read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&**socket).read(buffer),
            #[cfg(test)]
            Socket::Simulated(socket) => socket.read(buffer),
        }
    }

    fn write(&self, parts: &[IoSlice<'_>]) -> std::io::Result<usize> {
        match self {
            Socket::Tcp(socket) => (&**socket).write_vectored(parts),
            #[cfg(test)]
            Socket::Simulated(socket) => socket.write(parts),
        }
    }

    /// Writes what there is room for now.
    fn write_now(&self, bytes: &[u8]) -> std::io::Result<usize> {
        match self {
            #[cfg(unix)]
            Socket::Tcp(socket) => {
                use rustix::net::{SendFlags, send};
                Ok(send(socket, bytes, SendFlags::DONTWAIT | SendFlags::NOSIGNAL)?)
            }
            // Elsewhere a write waits for a short time, at most.
            #[allow(unreachable_patterns)]
            _ => self.write(&[IoSlice::new(bytes)]),
        }
    }

    fn end(&self) {
        match self {
            // It may have ended already.
            Socket::Tcp(socket) => drop(socket.shutdown(Shutdown::Both)),
            #[cfg(test)]
            Socket::Simulated(socket) => socket.end(),
        }
    }
}

type Tls = Option<Arc<Mutex<rustls::Connection>>>;

/// The sending direction.
#[derive(Debug)]
pub(crate) struct Writer {
    socket: Socket,
    tls: Tls,
    cipher: Option<BulkCipher>,
    numbers: Numbers,
    unsent: Vec<u8>,
    /// Bytes of vectors sent so far.
    pub(crate) sent: u64,
    environment: Environment,
}

/// The receiving direction.
#[derive(Debug)]
pub(crate) struct Reader {
    pub(super) socket: Socket,
    pub(super) tls: Tls,
    pub(super) cipher: Option<BulkCipher>,
    pub(super) numbers: Numbers,
    /// The TLS record that arrives now.
    pub(super) record: Partial,
    /// How long a vector may arrive without a byte.
    pub(crate) stall: Duration,
    environment: Environment,
}

/// Connects to an address.
pub(crate) fn dial(
    environment: &Environment,
    address: &str,
    security: &Security,
) -> Result<(Writer, Reader), Error> {
    #[cfg(test)]
    if let Environment::Simulated(process) = environment {
        let reader = Reader::new(Socket::Simulated(process.dial(address)?), None, environment);
        return Ok((reader.writer(None), reader));
    }
    let mut last = Error::Connection { why: format!("{address} is no address") };
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, CONNECT_TIMEOUT) {
            Ok(socket) => return establish(environment, socket, security, true),
            Err(error) => last = Error::Connection { why: format!("{address}: {error}") },
        }
    }
    Err(last)
}

/// Performs the handshake on a socket, and returns both directions.
pub(crate) fn establish(
    environment: &Environment,
    socket: TcpStream,
    security: &Security,
    dials: bool,
) -> Result<(Writer, Reader), Error> {
    socket.set_read_timeout(Some(POLL))?;
    socket.set_write_timeout(Some(CONNECT_TIMEOUT))?;
    let mut handshake = Handshake::new(environment, Arc::new(socket), security, dials)?;
    let end = Instant::now() + CONNECT_TIMEOUT;
    while !handshake.advance(end)? {
        if Instant::now() > end {
            return Err(cancelled());
        }
    }
    handshake.finish()
}

/// How many bytes a TLS record has, as far as its beginning tells.
pub fn whole_record(bytes: &[u8]) -> std::io::Result<usize> {
    match bytes.get(3..RECORD.0).map(|len| RECORD.0 + usize::from(u16::from_be_bytes([len[0], len[1]]))) {
        Some(whole) if whole > RECORD.1 => {
            Err(std::io::Error::new(ErrorKind::InvalidData, "no TLS record is that long"))
        }
        whole => Ok(whole.unwrap_or(RECORD.0)),
    }
}

/// Passes a complete record to TLS.
pub(super) fn feed(record: &mut Partial, tls: &mut rustls::Connection) -> std::io::Result<()> {
    let mut rest = &record.bytes[..];
    while !rest.is_empty() {
        tls.read_tls(&mut rest)?;
        tls.process_new_packets().map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))?;
    }
    record.bytes.clear();
    Ok(())
}

pub(super) fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn cancelled() -> Error {
    Error::Connection { why: "it was given up".into() }
}

impl Writer {
    /// Sends a message as a frame.
    pub(crate) fn send(&mut self, body: &[u8], keep_going: KeepGoing<'_>) -> Result<(), Error> {
        self.queue(body)?;
        let bytes = std::mem::take(&mut self.unsent);
        let sent = self.write(&bytes, &[], keep_going);
        self.unsent = bytes;
        self.unsent.clear();
        sent
    }

    /// Adds a message, as a frame, to what is to be sent.
    pub(crate) fn queue(&mut self, body: &[u8]) -> Result<(), Error> {
        let header = frame::header(self.numbers.give(), body)?;
        let Some(tls) = &self.tls else {
            self.unsent.extend_from_slice(&header);
            self.unsent.extend_from_slice(body);
            return Ok(());
        };
        let mut tls = lock(tls);
        tls.writer().write_all(&[&header, body].concat())?;
        while tls.wants_write() {
            tls.write_tls(&mut self.unsent)?;
        }
        Ok(())
    }

    /// Sends what there is room for now. Returns how many bytes are left.
    pub(crate) fn flush(&mut self) -> Result<usize, Error> {
        let mut sent = 0;
        while sent < self.unsent.len() {
            match self.socket.write_now(&self.unsent[sent..]) {
                Ok(n) => sent += n,
                Err(error) if is_pause(&error) => break,
                Err(error) => return Err(error.into()),
            }
        }
        self.unsent.drain(..sent);
        Ok(self.unsent.len())
    }

    /// Sends a header and bytes of a vector. [`Reader::read_header`] and [`Reader::read_body`] of the same lengths receive them.
    /// The checksum of the bytes may be known already.
    pub(crate) fn write_bulk(
        &mut self,
        header: &[u8],
        body: &[u8],
        checksum: Option<u32>,
        keep_going: KeepGoing<'_>,
    ) -> Result<(), Error> {
        let mut front = header.to_vec();
        front.extend_from_slice(&checksum.unwrap_or_else(|| crc(body)).to_le_bytes());
        front.extend_from_slice(&crc(&front).to_le_bytes());
        self.sent += (front.len() + body.len()) as u64;
        let Some(cipher) = &mut self.cipher else { return self.write(&front, body, keep_going) };
        let mut encrypted = std::mem::take(&mut self.unsent);
        cipher.append(&front, &mut encrypted)?;
        for block in body.chunks(BLOCK) {
            let Some(cipher) = &mut self.cipher else { break };
            cipher.append(block, &mut encrypted)?;
            self.write(&encrypted, &[], keep_going)?;
            encrypted.clear();
        }
        let sent = self.write(&encrypted, &[], keep_going);
        encrypted.clear();
        self.unsent = encrypted;
        sent
    }

    /// Writes two slices at once: the first is short, and would otherwise wake the receiver alone.
    fn write(&self, first: &[u8], second: &[u8], keep_going: KeepGoing<'_>) -> Result<(), Error> {
        let mut parts = [IoSlice::new(first), IoSlice::new(second)];
        let mut parts = &mut parts[..];
        // A peer that is busy may take its time.
        let mut pace = Pace::new(&self.environment, Duration::MAX, keep_going);
        let mut left = first.len() + second.len();
        while left > 0 {
            let n = pace.moved(self.socket.write(parts), left)?;
            IoSlice::advance_slices(&mut parts, n);
            left -= n;
        }
        Ok(())
    }

    /// Ends the connection, both ways.
    pub(crate) fn end(&self) {
        self.socket.end();
    }
}

/// How many bytes have moved of late, and whether to keep waiting for more.
struct Pace<'a> {
    environment: &'a Environment,
    /// How long it may take without a byte.
    stall: Duration,
    keep_going: KeepGoing<'a>,
    since: Duration,
    bytes: usize,
}

impl<'a> Pace<'a> {
    fn new(environment: &'a Environment, stall: Duration, keep_going: KeepGoing<'a>) -> Self {
        Pace { environment, stall, keep_going, since: environment.now(), bytes: 0 }
    }

    /// How many bytes of those left a read or write has moved. An error if it failed, or is to be given up: when it pauses, or fewer
    /// than [`TRICKLE`] bytes moved within the last [`POLL`].
    fn moved(&mut self, result: std::io::Result<usize>, left: usize) -> Result<usize, Error> {
        let now = self.environment.now();
        let (n, is_paused) = match result {
            Ok(0) => return Err(Error::Connection { why: "it ended".into() }),
            Ok(n) => {
                self.bytes += n;
                let is_due = now - self.since >= POLL;
                let is_trickle = is_due && self.bytes < TRICKLE && n < left;
                if is_due {
                    (self.since, self.bytes) = (now, 0);
                }
                (n, is_trickle)
            }
            Err(error) if is_pause(&error) => (0, true),
            Err(error) => return Err(error.into()),
        };
        match is_paused && (!(self.keep_going)() || now - self.since > self.stall) {
            true => Err(cancelled()),
            false => Ok(n),
        }
    }
}

impl Reader {
    pub(crate) fn new(socket: Socket, tls: Tls, environment: &Environment) -> Self {
        let (numbers, record) = (Numbers::default(), Partial::default());
        Reader { socket, tls, cipher: None, numbers, record, stall: STALL, environment: environment.clone() }
    }

    /// The other direction.
    pub(crate) fn writer(&self, cipher: Option<BulkCipher>) -> Writer {
        Writer {
            socket: self.socket.clone(),
            tls: self.tls.clone(),
            cipher,
            numbers: Numbers::default(),
            unsent: Vec::new(),
            sent: 0,
            environment: self.environment.clone(),
        }
    }

    /// The token of the peer's certificate; none if the connection is plain.
    pub(crate) fn token(&self) -> Option<u64> {
        lock(self.tls.as_ref()?).peer_certificates()?.first().map(token_of)
    }

    /// The next message; none at the end of the connection.
    pub(crate) fn receive(
        &mut self,
        longest: usize,
        keep_going: KeepGoing<'_>,
    ) -> Result<Option<Vec<u8>>, Error> {
        let mut numbers = self.numbers;
        let read = |buffer: &mut [u8]| loop {
            // Before every read, not only after a pause: a message that trickles in must end in time, too.
            if !keep_going() {
                return Err(std::io::Error::other("it was given up"));
            }
            match self.read(buffer) {
                Err(error) if is_pause(&error) => {}
                read => return read,
            }
        };
        let body = frame::read(read, &mut numbers, longest);
        self.numbers = numbers;
        body
    }

    /// Reads the header that [`Writer::write_bulk`] sent. Returns the checksum of the body.
    pub(crate) fn read_header(&mut self, header: &mut [u8], keep_going: KeepGoing<'_>) -> Result<u32, Error> {
        let mut front = vec![0; header.len() + 8];
        self.read_block(&mut front, keep_going)?;
        let word = |at: usize| u32::from_le_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
        let len = header.len();
        check(len + 4, crc(&front[..len + 4]), word(len + 4))?;
        header.copy_from_slice(&front[..len]);
        Ok(word(len))
    }

    /// Reads the body, which must have this checksum.
    pub(crate) fn read_body(
        &mut self,
        body: &mut [u8],
        checksum: u32,
        keep_going: KeepGoing<'_>,
    ) -> Result<(), Error> {
        let (len, mut sum) = (body.len(), Crc::default());
        for block in body.chunks_mut(if self.cipher.is_some() { BLOCK } else { PLAIN_BLOCK }) {
            self.read_block(block, keep_going)?;
            sum.add(block);
        }
        check(len, sum.get(), checksum)
    }

    fn read_block(&mut self, block: &mut [u8], keep_going: KeepGoing<'_>) -> Result<(), Error> {
        self.fill(block, keep_going)?;
        let mut tag = [0; TAG];
        if self.cipher.is_some() {
            self.fill(&mut tag, keep_going)?;
        }
        self.cipher.as_mut().map_or(Ok(()), |cipher| cipher.decrypt(block, tag))
    }

    /// Fills a buffer. It may take long, but not without a byte for the time that is allowed.
    fn fill(&self, mut buffer: &mut [u8], keep_going: KeepGoing<'_>) -> Result<(), Error> {
        let mut pace = Pace::new(&self.environment, self.stall, keep_going);
        while !buffer.is_empty() {
            let n = pace.moved(self.socket.read(buffer), buffer.len())?;
            buffer = &mut buffer[n..];
        }
        Ok(())
    }

    /// Ends the connection, both ways.
    pub(crate) fn end(&self) {
        self.socket.end();
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.read(buffer) };
        loop {
            match lock(tls).reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            // Without the lock: the other direction continues meanwhile.
            if !self.record.read(whole_record, |buffer| self.socket.read(buffer))? {
                return Ok(0);
            }
            feed(&mut self.record, &mut lock(tls))?;
        }
    }
}

fn check(len: usize, found: u32, sent: u32) -> Result<(), Error> {
    if found == sent {
        return Ok(());
    }
    let why = format!("{len} bytes have the checksum {found:08x}, not {sent:08x}");
    Err(Error::Frame { why })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// A peer that sends its greeting byte by byte does not hold up a thread for long.
    #[test]
    fn a_handshake_ends_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        super::super::tls::new_key(&path).unwrap();
        let security = Security::with_key(&path).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let drips = std::thread::spawn(move || {
            // The header of a long record, and then a byte at a time.
            let _ = slow.write_all(&[22, 3, 1, 16, 0]);
            while slow.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let began = Instant::now();
        assert!(establish(&Environment::System, listener.accept().unwrap().0, &security, false).is_err());
        assert!(began.elapsed() < 3 * CONNECT_TIMEOUT, "{:?}", began.elapsed());
        drips.join().unwrap();
    }

    fn raw(writer: &Writer, bytes: &[u8]) -> Result<(), Error> {
        writer.write(bytes, &[], ALWAYS)
    }

    fn pair() -> (Writer, Reader) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let environment = Environment::System;
        let address = listener.local_addr().unwrap().to_string();
        let (writer, _) = dial(&environment, &address, &Security::Plain).unwrap();
        let accepted = listener.accept().unwrap().0;
        (writer, establish(&environment, accepted, &Security::Plain, false).unwrap().1)
    }

    /// Single bytes are no progress, neither of a message nor of a vector.
    #[test]
    fn what_trickles_in_is_given_up() {
        type Reads = fn(&mut Reader, KeepGoing<'_>) -> Result<(), Error>;
        let message: Reads = |reader, keep_going| reader.receive(4096, keep_going).map(|_| ());
        let vector: Reads = |reader, keep_going| reader.read_body(&mut vec![0; 4096], 0, keep_going);
        for reads in [message, vector] {
            let (out, mut from) = pair();
            let (began, is_over) = (Instant::now(), std::sync::atomic::AtomicBool::new(false));
            std::thread::scope(|scope| {
                // The beginning of a frame of a kilobyte, or of a vector.
                raw(&out, &[0, 4, 0, 0]).unwrap();
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = raw(&out, &[0]);
                        std::thread::sleep(POLL / 10);
                    }
                });
                let read = reads(&mut from, &|| began.elapsed() < 3 * POLL);
                let took = began.elapsed();
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                let error = read.unwrap_err().to_string();
                assert!(error.contains("given up") && took < 20 * POLL, "after {took:?}: {error}");
            });
        }
    }

    /// A writer does not wait for ever for a peer that receives nothing.
    #[test]
    fn what_nobody_takes_is_given_up() {
        let (mut out, from) = pair();
        let (body, began) = (vec![0; 64 << 20], Instant::now());
        let keep_going = || began.elapsed() < 3 * POLL;
        let error = out.write_bulk(&[], &body, None, &keep_going).unwrap_err();
        assert!(error.to_string().contains("given up"), "{error}");
        drop(from);
    }
}
