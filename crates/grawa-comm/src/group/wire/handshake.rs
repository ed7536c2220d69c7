//! A connection that is not authenticated yet.
//!
//! Nothing here waits: on a socket that does not block, [`Handshake::advance`] reads what has arrived and returns. So one thread
//! serves all connections that are not authenticated, and a slow or silent peer holds none.

use super::bulk_cipher::BulkCipher;
use super::connection::{Reader, Socket, Writer, feed, is_pause, whole_record};
use super::tls::Security;
use crate::Error;
use crate::group::environment::{Environment, POLL, lock};
use std::io::{ErrorKind, Read};
use std::net::TcpStream;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// The most bytes a peer may send before it is authenticated. The certificates of a run take less than two kilobytes.
const MOST: usize = 16 << 10;

#[derive(Debug)]
pub(crate) struct Handshake {
    tcp: Arc<TcpStream>,
    pub(super) reader: Reader,
    /// Of the sending direction.
    cipher: Option<BulkCipher>,
    dials: bool,
    left: usize,
}

impl Handshake {
    /// Prepares the handshake. Nothing is read or written yet.
    pub(crate) fn new(
        environment: &Environment,
        tcp: Arc<TcpStream>,
        security: &Security,
        dials: bool,
    ) -> Result<Self, Error> {
        tcp.set_nodelay(true)?;
        disable_pacing(&tcp)?;
        let mut tls = security.connection(dials)?;
        if let Some(tls) = &mut tls {
            tls.set_buffer_limit(None);
        }
        let tls = tls.map(|tls| Arc::new(Mutex::new(tls)));
        let reader = Reader::new(Socket::Tcp(Arc::clone(&tcp)), tls, environment);
        Ok(Handshake { tcp, reader, cipher: None, dials, left: MOST })
    }

    /// Continues with what has arrived, until `end` at the latest. True when the handshake is done: the peer holds the key, if
    /// there is one.
    pub(crate) fn advance(&mut self, end: Instant) -> Result<bool, Error> {
        let Some(tls) = self.reader.tls.clone() else { return Ok(true) };
        if self.cipher.is_some() {
            return Ok(true);
        }
        let (mut tls, tcp, left) = (lock(&tls), &self.tcp, &mut self.left);
        let record = &mut self.reader.record;
        while tls.is_handshaking() || tls.wants_write() {
            // A few kilobytes, for which a new socket always has room.
            while tls.wants_write() {
                tls.write_tls(&mut &**tcp)?;
            }
            if !tls.is_handshaking() {
                break;
            }
            match record.read(whole_record, |buffer| read_bounded(tcp, buffer, end, left)) {
                Ok(true) => {}
                Ok(false) => return Err(std::io::Error::from(ErrorKind::UnexpectedEof).into()),
                Err(error) if is_pause(&error) => return Ok(false),
                Err(error) => return Err(error.into()),
            }
            if let Err(why) = feed(record, &mut tls) {
                // The alert says what is wrong, if the peer still receives it.
                let _ = tls.write_tls(&mut &**tcp);
                return Err(Error::WrongKey { why: why.to_string() });
            }
        }
        self.cipher = Some(BulkCipher::new(&tls, self.dials)?);
        self.reader.cipher = Some(BulkCipher::new(&tls, !self.dials)?);
        Ok(true)
    }

    /// Both directions, for threads that wait.
    pub(crate) fn finish(self) -> Result<(Writer, Reader), Error> {
        let Handshake { tcp, reader, cipher, .. } = self;
        tcp.set_nonblocking(false)?;
        tcp.set_read_timeout(Some(POLL))?;
        tcp.set_write_timeout(Some(POLL))?;
        Ok((reader.writer(cipher), reader))
    }
}

/// Between processes of one machine there is nothing to pace. Where the system paces its connections (BBR), timers cost a tenth
/// of the time of a round.
fn disable_pacing(socket: &TcpStream) -> std::io::Result<()> {
    #[cfg(target_os = "linux")]
    if socket.peer_addr()?.ip() == socket.local_addr()?.ip() {
        // Where this is not allowed, nothing changes.
        let _ = rustix::net::sockopt::set_tcp_congestion(socket, "cubic");
    }
    let _ = socket;
    Ok(())
}

/// Reads until a moment, and at most `left` bytes: a peer that sends slowly is not waited for, one that sends much is not read.
fn read_bounded(
    mut socket: &TcpStream,
    buffer: &mut [u8],
    end: Instant,
    left: &mut usize,
) -> std::io::Result<usize> {
    if Instant::now() > end {
        return Err(ErrorKind::TimedOut.into());
    }
    if *left == 0 {
        let why = format!("more than {MOST} bytes came before it was authenticated");
        return Err(std::io::Error::new(ErrorKind::InvalidData, why));
    }
    let most = buffer.len().min(*left);
    let n = socket.read(&mut buffer[..most])?;
    *left -= n;
    Ok(n)
}
