//! A connection whose two directions are used by two threads, in the clear or encrypted.
//!
//! Messages go through TLS; vectors are sealed beside it, in between. So never is more read than is sure to be TLS's.
//! Waiting is never for ever: reads and writes look every [`LOOK`] whether to go on, also where something drips in.

use super::digest::{Crc, crc};
use super::frame::{self, Numbers};
use super::handshake::Handshake;
use super::key::{Wire, token_of};
use super::seal::{BLOCK, Seal, TAG};
use crate::Error;
use rustls::Connection;
use std::io::{ErrorKind, IoSlice, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// How often one who waits looks whether it should.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Until a connection must be made.
pub(super) const MADE: Duration = Duration::from_secs(3);
/// How long vectors may stand still on their way.
const STILL: Duration = Duration::from_secs(5);
/// A bulk transfer that moves fewer bytes than this within [`LOOK`] counts as paused: one byte now and then is no progress.
const DRIP: usize = 16 << 10;
/// The bytes before a record of TLS, and the longest record (RFC 8446, section 5.2).
const RECORD: (usize, usize) = (5, 5 + (1 << 14) + 256);

/// Whether to wait on.
pub(super) type GoOn<'a> = &'a (dyn Fn() -> bool + Sync);

/// Always.
pub(super) const FOR_EVER: GoOn<'static> = &|| true;

pub(super) type Shared = Option<Arc<Mutex<Connection>>>;

/// The direction out.
#[derive(Debug)]
pub(super) struct Out {
    pub(super) socket: Arc<TcpStream>,
    pub(super) tls: Shared,
    pub(super) seal: Option<Seal>,
    pub(super) numbers: Numbers,
    pub(super) sealed: Vec<u8>,
}

/// The direction in.
#[derive(Debug)]
pub(super) struct In {
    pub(super) socket: Arc<TcpStream>,
    pub(super) tls: Shared,
    pub(super) seal: Option<Seal>,
    pub(super) numbers: Numbers,
    pub(super) record: Record,
}

/// Connects to an address.
pub(super) fn dial(address: &str, wire: &Wire) -> Result<(Out, In), Error> {
    let mut last = Error::Connection { why: format!("{address} is no address") };
    for address in address.to_socket_addrs()? {
        match TcpStream::connect_timeout(&address, MADE) {
            Ok(socket) => return link(socket, wire, true),
            Err(error) => last = Error::Connection { why: format!("{address}: {error}") },
        }
    }
    Err(last)
}

/// Makes both directions of a socket.
pub(super) fn link(socket: TcpStream, wire: &Wire, dials: bool) -> Result<(Out, In), Error> {
    socket.set_read_timeout(Some(LOOK))?;
    socket.set_write_timeout(Some(MADE))?;
    let mut handshake = Handshake::new(socket, wire, dials)?;
    let end = Instant::now() + MADE;
    while !handshake.advance(end)? {
        if Instant::now() > end {
            return Err(given_up());
        }
    }
    handshake.finish()
}

/// A record of TLS as it comes in, and not a byte more: what follows may be a vector.
#[derive(Debug, Default)]
pub(super) struct Record {
    pub(super) bytes: Vec<u8>,
}

impl Record {
    /// Reads until it is whole; false at the end. Where it pauses it goes on at the next call.
    pub(super) fn read(&mut self, from: &mut impl Read) -> std::io::Result<bool> {
        loop {
            let whole = match self.bytes.get(3..RECORD.0) {
                Some(len) => RECORD.0 + usize::from(u16::from_be_bytes([len[0], len[1]])),
                None => RECORD.0,
            };
            if whole > RECORD.1 {
                return Err(std::io::Error::new(ErrorKind::InvalidData, "no record of TLS is that long"));
            }
            let (here, is_head) = (self.bytes.len(), whole == RECORD.0);
            if here == whole && !is_head {
                return Ok(true);
            }
            self.bytes.resize(whole, 0);
            let read = from.read(&mut self.bytes[here..]);
            self.bytes.truncate(here + read.as_ref().map_or(0, |n| *n));
            if read? == 0 {
                return Ok(false);
            }
        }
    }

    pub(super) fn hand_to(&mut self, tls: &mut Connection) -> std::io::Result<()> {
        let mut rest = &self.bytes[..];
        while !rest.is_empty() {
            tls.read_tls(&mut rest)?;
            tls.process_new_packets().map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))?;
        }
        self.bytes.clear();
        Ok(())
    }
}

pub(super) fn is_pause(error: &std::io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut | ErrorKind::Interrupted)
}

fn given_up() -> Error {
    Error::Connection { why: "it was given up".into() }
}

impl Out {
    /// Sends a message as a frame.
    pub(super) fn send(&mut self, body: &[u8], go_on: GoOn<'_>) -> Result<(), Error> {
        let mut bytes = frame::head(self.numbers.give(), body)?.to_vec();
        bytes.extend_from_slice(body);
        self.write(&bytes, go_on)
    }

    fn write(&mut self, bytes: &[u8], go_on: GoOn<'_>) -> Result<(), Error> {
        let Some(tls) = &self.tls else { return put(&self.socket, bytes, &[], go_on) };
        self.sealed.clear();
        {
            let mut tls = tls.lock().unwrap_or_else(PoisonError::into_inner);
            tls.writer().write_all(bytes)?;
            while tls.wants_write() {
                tls.write_tls(&mut self.sealed)?;
            }
        }
        put(&self.socket, &self.sealed, &[], go_on)
    }

    /// Sends bytes of vectors after a head, which [`In::read_head`] and [`In::read_body`] of the same lengths take. Their
    /// checksum may be known already.
    pub(super) fn write_bulk(
        &mut self,
        head: &[u8],
        body: &[u8],
        checksum: Option<u32>,
        go_on: GoOn<'_>,
    ) -> Result<(), Error> {
        let mut front = head.to_vec();
        front.extend_from_slice(&checksum.unwrap_or_else(|| crc(body)).to_le_bytes());
        front.extend_from_slice(&crc(&front).to_le_bytes());
        let Some(seal) = &mut self.seal else {
            return put(&self.socket, &front, body, go_on);
        };
        self.sealed.clear();
        add_sealed(seal, &front, &mut self.sealed)?;
        for block in body.chunks(BLOCK) {
            add_sealed(seal, block, &mut self.sealed)?;
            put(&self.socket, &self.sealed, &[], go_on)?;
            self.sealed.clear();
        }
        put(&self.socket, &self.sealed, &[], go_on)
    }

    /// Ends the connection, both ways.
    pub(super) fn end(&self) {
        // It may have ended already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn add_sealed(seal: &mut Seal, block: &[u8], to: &mut Vec<u8>) -> Result<(), Error> {
    let start = to.len();
    to.extend_from_slice(block);
    let tag = seal.seal(&mut to[start..])?;
    to.extend_from_slice(&tag);
    Ok(())
}

/// Sends two stretches of bytes as one: what is short would else wake the other side for itself.
fn put(mut socket: &TcpStream, first: &[u8], second: &[u8], go_on: GoOn<'_>) -> Result<(), Error> {
    let mut parts = [IoSlice::new(first), IoSlice::new(second)];
    let mut parts = &mut parts[..];
    let (mut left, mut pace) = (first.len() + second.len(), Pace::default());
    while left > 0 {
        match socket.write_vectored(parts) {
            Ok(0) => return Err(Error::Connection { why: "it takes nothing any more".into() }),
            Ok(n) => {
                IoSlice::advance_slices(&mut parts, n);
                left -= n;
                if pace.drips(n) && left > 0 && !go_on() {
                    return Err(given_up());
                }
            }
            Err(error) if is_pause(&error) => {
                if !go_on() {
                    return Err(given_up());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// How many bytes have moved since when: tells a transfer that flows from one that only drips.
struct Pace {
    since: Instant,
    bytes: usize,
}

impl Default for Pace {
    fn default() -> Self {
        Pace { since: Instant::now(), bytes: 0 }
    }
}

impl Pace {
    /// So many bytes have moved. Whether fewer than [`DRIP`] did within the last [`LOOK`].
    fn drips(&mut self, bytes: usize) -> bool {
        self.bytes += bytes;
        if self.since.elapsed() < LOOK {
            return false;
        }
        let drips = self.bytes < DRIP;
        *self = Pace::default();
        drips
    }
}

impl In {
    /// The token that the other side's certificate stands for; none in the clear.
    pub(super) fn token(&self) -> Option<u64> {
        let tls = self.tls.as_ref()?.lock().unwrap_or_else(PoisonError::into_inner);
        tls.peer_certificates()?.first().map(token_of)
    }

    /// The next message; nothing at the end.
    pub(super) fn receive(&mut self, longest: usize, go_on: GoOn<'_>) -> Result<Option<Vec<u8>>, Error> {
        let mut numbers = self.numbers;
        let body = frame::read(&mut Waiting { from: self, go_on }, &mut numbers, longest);
        self.numbers = numbers;
        body
    }

    /// Fills a buffer with the head of what [`Out::write_bulk`] sends. Returns the checksum of its body.
    pub(super) fn read_head(&mut self, head: &mut [u8], go_on: GoOn<'_>) -> Result<u32, Error> {
        let mut front = vec![0; head.len() + 8];
        self.read_block(&mut front, go_on)?;
        let word = |at: usize| u32::from_le_bytes([front[at], front[at + 1], front[at + 2], front[at + 3]]);
        let len = head.len();
        check(&front[..len + 4], crc(&front[..len + 4]), word(len + 4))?;
        head.copy_from_slice(&front[..len]);
        Ok(word(len))
    }

    /// Fills a buffer with the body, which must have this checksum.
    pub(super) fn read_body(&mut self, body: &mut [u8], sent: u32, go_on: GoOn<'_>) -> Result<(), Error> {
        let mut sum = Crc::default();
        match self.seal {
            // Summed as it comes: then it is still in cache.
            None => get(&self.socket, body, |bytes| sum.add(bytes), go_on)?,
            Some(_) => {
                for block in body.chunks_mut(BLOCK) {
                    self.read_block(block, go_on)?;
                    sum.add(block);
                }
            }
        }
        check(body, sum.get(), sent)
    }

    fn read_block(&mut self, block: &mut [u8], go_on: GoOn<'_>) -> Result<(), Error> {
        get(&self.socket, block, |_| {}, go_on)?;
        if let Some(seal) = &mut self.seal {
            let mut tag = [0; TAG];
            get(&self.socket, &mut tag, |_| {}, go_on)?;
            seal.open(block, tag)?;
        }
        Ok(())
    }

    /// Ends the connection, both ways.
    pub(super) fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    pub(super) fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(tls) = &self.tls else { return (&*self.socket).read(buffer) };
        loop {
            match tls.lock().unwrap_or_else(PoisonError::into_inner).reader().read(buffer) {
                Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                read => return read,
            }
            // Not under the lock: the other direction goes on meanwhile.
            if !self.record.read(&mut &*self.socket)? {
                return Ok(0);
            }
            self.record.hand_to(&mut tls.lock().unwrap_or_else(PoisonError::into_inner))?;
        }
    }
}

fn check(bytes: &[u8], found: u32, sent: u32) -> Result<(), Error> {
    if found == sent {
        return Ok(());
    }
    let why = format!("{} bytes have the checksum {found:08x}, not {sent:08x}", bytes.len());
    Err(Error::Frame { why })
}

/// Fills a buffer; `each` sees what comes as it comes. It may take long, but not without a byte for [`STILL`].
fn get(
    mut socket: &TcpStream,
    mut buffer: &mut [u8],
    mut each: impl FnMut(&[u8]),
    go_on: GoOn<'_>,
) -> Result<(), Error> {
    let (mut last, mut pace) = (Instant::now(), Pace::default());
    while !buffer.is_empty() {
        match socket.read(buffer) {
            Ok(0) => return Err(Error::Connection { why: "it ended".into() }),
            Ok(n) => {
                each(&buffer[..n]);
                buffer = &mut buffer[n..];
                last = Instant::now();
                if pace.drips(n) && !buffer.is_empty() && !go_on() {
                    return Err(given_up());
                }
            }
            Err(error) if is_pause(&error) => {
                if !go_on() || last.elapsed() > STILL {
                    return Err(given_up());
                }
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Reads until told otherwise.
struct Waiting<'a> {
    from: &'a mut In,
    go_on: GoOn<'a>,
}

impl Read for Waiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            // Before every read, not only when one has paused: a message that drips in must end in time, too.
            if !(self.go_on)() {
                return Err(std::io::Error::other("it was given up"));
            }
            match self.from.read(buffer) {
                Err(error) if is_pause(&error) => {}
                read => return read,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::TcpListener;

    /// One that sends a byte of a greeting now and then does not hold up a thread for long.
    #[test]
    fn a_handshake_ends_in_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("key");
        super::super::new_key(&path).unwrap();
        let wire = Wire::with_key(&path).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let mut slow = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let drips = std::thread::spawn(move || {
            // The head of a long record, and then a byte at a time.
            let _ = slow.write_all(&[22, 3, 1, 16, 0]);
            while slow.write_all(&[0]).is_ok() {
                std::thread::sleep(Duration::from_millis(50));
            }
        });
        let began = Instant::now();
        assert!(link(listener.accept().unwrap().0, &wire, false).is_err());
        assert!(began.elapsed() < 3 * MADE, "{:?}", began.elapsed());
        drips.join().unwrap();
    }

    fn pair() -> (Out, In) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (out, _) = dial(&listener.local_addr().unwrap().to_string(), &Wire::Plain).unwrap();
        (out, link(listener.accept().unwrap().0, &Wire::Plain, false).unwrap().1)
    }

    /// A byte now and then is no progress, neither of a message nor of a vector.
    #[test]
    fn what_drips_in_is_given_up() {
        type Reads = fn(&mut In, GoOn<'_>) -> Result<(), Error>;
        let message: Reads = |from, go_on| from.receive(4096, go_on).map(|_| ());
        let vector: Reads = |from, go_on| from.read_body(&mut vec![0; 4096], 0, go_on);
        for reads in [message, vector] {
            let (out, mut from) = pair();
            let (began, is_over) = (Instant::now(), std::sync::atomic::AtomicBool::new(false));
            std::thread::scope(|scope| {
                // A frame of a kilobyte, or some of a vector.
                (&*out.socket).write_all(&[0, 4, 0, 0]).unwrap();
                scope.spawn(|| {
                    while !is_over.load(std::sync::atomic::Ordering::Relaxed) {
                        let _ = (&*out.socket).write_all(&[0]);
                        std::thread::sleep(LOOK / 10);
                    }
                });
                let read = reads(&mut from, &|| began.elapsed() < 3 * LOOK);
                let took = began.elapsed();
                is_over.store(true, std::sync::atomic::Ordering::Relaxed);
                let error = read.unwrap_err().to_string();
                assert!(error.contains("given up") && took < 20 * LOOK, "after {took:?}: {error}");
            });
        }
    }

    /// One that takes nothing is not waited for for ever.
    #[test]
    fn what_nobody_takes_is_given_up() {
        let (mut out, from) = pair();
        let (body, began) = (vec![0; 64 << 20], Instant::now());
        let go_on = || began.elapsed() < 3 * LOOK;
        let error = out.write_bulk(&[], &body, None, &go_on).unwrap_err();
        assert!(error.to_string().contains("given up"), "{error}");
        drop(from);
    }
}
