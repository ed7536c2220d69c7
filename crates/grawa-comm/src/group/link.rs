//! A connection whose two directions are used by two threads, in the clear or encrypted.
//!
//! Waiting is never for ever: reads and writes look every [`LOOK`] whether to go on.

use super::frame::{self, Numbers};
use super::key::Wire;
use crate::Error;
use rustls::Connection;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpStream, ToSocketAddrs};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// How often one who waits looks whether it should.
pub(super) const LOOK: Duration = Duration::from_millis(100);
/// Until a connection must be made.
const MADE: Duration = Duration::from_secs(3);
/// Encrypted bytes are read this many at a time.
const RAW: usize = 1 << 17;

/// Whether to wait on.
pub(super) type GoOn<'a> = &'a (dyn Fn() -> bool + Sync);

/// Always.
pub(super) const FOR_EVER: GoOn<'static> = &|| true;

type Shared = Option<Arc<Mutex<Connection>>>;

/// The direction out.
#[derive(Debug)]
pub(super) struct Out {
    socket: TcpStream,
    tls: Shared,
    numbers: Numbers,
    sealed: Vec<u8>,
}

/// The direction in.
#[derive(Debug)]
pub(super) struct In {
    socket: TcpStream,
    tls: Shared,
    numbers: Numbers,
    raw: Vec<u8>,
    /// What of `raw` is not opened yet.
    left: std::ops::Range<usize>,
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
pub(super) fn link(mut socket: TcpStream, wire: &Wire, dials: bool) -> Result<(Out, In), Error> {
    socket.set_nodelay(true)?;
    socket.set_read_timeout(Some(MADE))?;
    socket.set_write_timeout(Some(MADE))?;
    let mut connection = wire.connection(dials)?;
    if let Some(connection) = &mut connection {
        connection.set_buffer_limit(None);
        while connection.is_handshaking() {
            connection.complete_io(&mut socket)?;
        }
    }
    socket.set_read_timeout(Some(LOOK))?;
    socket.set_write_timeout(Some(LOOK))?;
    let tls = connection.map(|connection| Arc::new(Mutex::new(connection)));
    let raw = if tls.is_some() { vec![0; RAW] } else { Vec::new() };
    let out = Out {
        socket: socket.try_clone()?,
        tls: tls.clone(),
        numbers: Numbers::default(),
        sealed: Vec::new(),
    };
    Ok((out, In { socket, tls, numbers: Numbers::default(), raw, left: 0..0 }))
}

fn is_pause(error: &std::io::Error) -> bool {
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

    /// Sends bytes.
    pub(super) fn write(&mut self, bytes: &[u8], go_on: GoOn<'_>) -> Result<(), Error> {
        let Some(tls) = &self.tls else { return put(&mut self.socket, bytes, go_on) };
        for part in bytes.chunks(RAW) {
            self.sealed.clear();
            {
                let mut tls = tls.lock().unwrap_or_else(PoisonError::into_inner);
                tls.writer().write_all(part)?;
                while tls.wants_write() {
                    tls.write_tls(&mut self.sealed)?;
                }
            }
            put(&mut self.socket, &self.sealed, go_on)?;
        }
        Ok(())
    }

    /// Ends the connection, both ways.
    pub(super) fn end(&self) {
        // It may have ended already.
        let _ = self.socket.shutdown(Shutdown::Both);
    }
}

fn put(socket: &mut TcpStream, mut bytes: &[u8], go_on: GoOn<'_>) -> Result<(), Error> {
    while !bytes.is_empty() {
        match socket.write(bytes) {
            Ok(0) => return Err(Error::Connection { why: "it takes nothing any more".into() }),
            Ok(n) => bytes = &bytes[n..],
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

impl In {
    /// The next message; nothing at the end.
    pub(super) fn receive(&mut self, longest: usize, go_on: GoOn<'_>) -> Result<Option<Vec<u8>>, Error> {
        let mut numbers = self.numbers;
        let body = frame::read(&mut Waiting { from: self, go_on }, &mut numbers, longest);
        self.numbers = numbers;
        body
    }

    /// Fills a buffer.
    pub(super) fn read_exact(&mut self, buffer: &mut [u8], go_on: GoOn<'_>) -> Result<(), Error> {
        Ok(Waiting { from: self, go_on }.read_exact(buffer)?)
    }

    /// Ends the connection, both ways.
    pub(super) fn end(&self) {
        let _ = self.socket.shutdown(Shutdown::Both);
    }

    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let Some(tls) = &self.tls else { return self.socket.read(buffer) };
        loop {
            {
                let mut tls = tls.lock().unwrap_or_else(PoisonError::into_inner);
                loop {
                    match tls.reader().read(buffer) {
                        Err(error) if error.kind() == ErrorKind::WouldBlock => {}
                        read => return read,
                    }
                    if self.left.is_empty() {
                        break;
                    }
                    let mut rest = &self.raw[self.left.clone()];
                    let before = rest.len();
                    tls.read_tls(&mut rest)?;
                    self.left.start += before - rest.len();
                    tls.process_new_packets()
                        .map_err(|error| std::io::Error::new(ErrorKind::InvalidData, error))?;
                }
            }
            // Not under the lock: the other direction goes on meanwhile.
            match self.socket.read(&mut self.raw)? {
                0 => return Ok(0),
                n => self.left = 0..n,
            }
        }
    }
}

/// Reads until told otherwise.
struct Waiting<'a> {
    from: &'a mut In,
    go_on: GoOn<'a>,
}

impl Read for Waiting<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        loop {
            match self.from.read(buffer) {
                Err(error) if is_pause(&error) => {
                    if !(self.go_on)() {
                        return Err(std::io::Error::other("it was given up"));
                    }
                }
                read => return read,
            }
        }
    }
}
