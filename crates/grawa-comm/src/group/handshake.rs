//! A connection on its way to being authenticated, as far as what has come allows.
//!
//! Nothing here waits: on a socket that does not block, [`Handshake::advance`] takes what is there and returns. So one thread
//! serves all connections that are not authenticated yet, and a peer that is slow, or never says anything, holds none.

use super::frame::Numbers;
use super::key::Wire;
use super::link::{In, LOOK, Out, Record, is_pause};
use super::seal::Seal;
use crate::Error;
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Instant;

/// The most bytes a peer may send before it is authenticated. The certificates of a run take less than two kilobytes.
const MOST: usize = 16 << 10;

#[derive(Debug)]
pub(super) struct Handshake {
    pub(super) from: In,
    /// Of what is sent.
    seal: Option<Seal>,
    dials: bool,
    left: usize,
}

impl Handshake {
    /// Begins; nothing is read or written yet.
    pub(super) fn new(socket: TcpStream, wire: &Wire, dials: bool) -> Result<Self, Error> {
        socket.set_nodelay(true)?;
        hurry(&socket)?;
        let mut tls = wire.connection(dials)?;
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(None);
        }
        let (socket, tls) = (Arc::new(socket), tls.map(|tls| Arc::new(Mutex::new(tls))));
        let from = In { socket, tls, seal: None, numbers: Numbers::default(), record: Record::default() };
        Ok(Handshake { from, seal: None, dials, left: MOST })
    }

    /// Takes the handshake as far as it goes with what has come, until `end` at the latest. True when it is done: the other side
    /// holds the key, if there is one.
    pub(super) fn advance(&mut self, end: Instant) -> Result<bool, Error> {
        let Some(tls) = self.from.tls.clone() else { return Ok(true) };
        if self.seal.is_some() {
            return Ok(true);
        }
        let mut tls = tls.lock().unwrap_or_else(PoisonError::into_inner);
        let In { socket, record, .. } = &mut self.from;
        let mut bounded = Bounded { socket, end, left: &mut self.left };
        while tls.is_handshaking() || tls.wants_write() {
            // A few kilobytes, for which a new socket always has room.
            while tls.wants_write() {
                tls.write_tls(&mut &**socket)?;
            }
            if !tls.is_handshaking() {
                break;
            }
            match record.read(&mut bounded) {
                Ok(true) => {}
                Ok(false) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
                Err(error) if is_pause(&error) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            if let Err(why) = record.hand_to(&mut tls) {
                // What is wrong is told to the other side, if it still hears.
                let _ = tls.write_tls(&mut &**socket);
                return Err(Error::Strange { why: why.to_string() });
            }
        }
        self.seal = Some(Seal::new(&tls, self.dials)?);
        self.from.seal = Some(Seal::new(&tls, !self.dials)?);
        Ok(true)
    }

    /// Both directions, for threads that wait.
    pub(super) fn finish(self) -> Result<(Out, In), Error> {
        let Handshake { from, seal, .. } = self;
        from.socket.set_nonblocking(false)?;
        from.socket.set_read_timeout(Some(LOOK))?;
        from.socket.set_write_timeout(Some(LOOK))?;
        let (socket, tls) = (Arc::clone(&from.socket), from.tls.clone());
        Ok((Out { socket, tls, seal, numbers: Numbers::default(), sealed: Vec::new() }, from))
    }
}

/// Between processes of one machine there is nothing to pace: where the system paces its connections (BBR), timers cost
/// a tenth of the time of a round.
fn hurry(socket: &TcpStream) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    if socket.peer_addr()?.ip() == socket.local_addr()?.ip() {
        // Where it is not allowed it stays as it is.
        let _ = rustix::net::sockopt::set_tcp_congestion(socket, "cubic");
    }
    let _ = socket;
    Ok(())
}

/// Reads until a moment, and so many bytes: one that sends a byte now and then is not waited for, one that sends much is not
/// listened to.
struct Bounded<'a> {
    socket: &'a TcpStream,
    end: Instant,
    left: &'a mut usize,
}

impl Read for Bounded<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        if Instant::now() > self.end {
            return Err(ErrorKind::TimedOut.into());
        }
        if *self.left == 0 {
            let why = format!("more than {MOST} bytes came before it was authenticated");
            return Err(std::io::Error::new(ErrorKind::InvalidData, why));
        }
        let most = buffer.len().min(*self.left);
        let n = (&*self.socket).read(&mut buffer[..most])?;
        *self.left -= n;
        Ok(n)
    }
}
