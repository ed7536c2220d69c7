//! Simulated connections: bytes arrive in order, after a delay, and not while their link is cut.

use super::scheduler::{Process, State, World};
use crate::Error;
use crate::group::digest::crc;
use crate::group::messages::{ToMember, decode};
use crate::group::wire::connection::{self, Reader};
use crate::group::wire::frame;
use crate::group::wire::listener::{Opened, SHORT, Service};
use std::collections::{BTreeMap, VecDeque};
use std::io::{ErrorKind, IoSlice};
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

/// How long a read waits before it returns.
const POLL: Duration = crate::group::environment::POLL;

/// The link of every process: full duplex, to a switch that is never the bottleneck.
#[derive(Clone, Copy, Debug)]
pub(super) struct Link {
    /// Bytes per second, each way.
    pub(super) rate: f64,
    /// From the first byte sent to the first byte received.
    pub(super) latency: Duration,
}

/// All links and connections.
#[derive(Debug, Default)]
pub(super) struct Network {
    /// The longest delay, in milliseconds.
    pub(super) lag: u64,
    /// If links have a rate: which, and until when each process sends and receives.
    pub(super) link: Option<Link>,
    busy: BTreeMap<usize, [Duration; 2]>,
    /// Of 1000 messages to or from the coordinator, how many arrive twice.
    pub(super) duplicates: u64,
    /// By node: until when the coordinator, and other workers, cannot be reached.
    pub(super) cut_off: BTreeMap<usize, Duration>,
    pub(super) silenced: BTreeMap<usize, Duration>,
    /// A node that sends wrong bits with right checksums, once.
    pub(super) forges: Option<usize>,
    pipes: Vec<Pipe>,
    listeners: BTreeMap<SocketAddr, Listener>,
}

/// One direction of a connection.
#[derive(Debug)]
struct Pipe {
    from: usize,
    to: usize,
    chunks: VecDeque<(Duration, Vec<u8>)>,
    last: Duration,
    /// When the receiver learns that it has ended.
    ends: Option<Duration>,
    is_closed: bool,
}

#[derive(Debug)]
struct Listener {
    process: usize,
    accepted: VecDeque<Arc<Socket>>,
}

impl Network {
    /// Sockets that nobody accepted refer to the world, and would keep it for ever.
    pub(super) fn take_listeners(&mut self) -> impl Drop + use<> {
        struct Taken(BTreeMap<SocketAddr, Listener>);
        impl Drop for Taken {
            fn drop(&mut self) {
                self.0.clear();
            }
        }
        Taken(std::mem::take(&mut self.listeners))
    }
}

fn key(pipe: usize) -> usize {
    // Odd, and beyond those of threads.
    (1 << 40) + 2 * pipe + 1
}

fn listener_key(process: usize) -> usize {
    (1 << 41) + 2 * process + 1
}

impl State {
    /// When something that is sent now arrives, if nothing is in front of it.
    fn arrival(&mut self, from: usize, to: usize) -> Duration {
        let lag = Duration::from_micros(100 + self.below(1000 * self.network.lag.max(1)));
        let until = |nodes: &BTreeMap<usize, Duration>, node: usize| {
            nodes.get(&node).copied().unwrap_or(Duration::ZERO)
        };
        let cut = match (self.processes[from].node, self.processes[to].node) {
            (Some(from), Some(to)) => {
                until(&self.network.silenced, from).max(until(&self.network.silenced, to))
            }
            (Some(node), None) | (None, Some(node)) => until(&self.network.cut_off, node),
            (None, None) => Duration::ZERO,
        };
        (self.now + lag).max(cut)
    }

    /// When bytes that are sent now have arrived.
    fn transfer(&mut self, from: usize, to: usize, bytes: usize) -> Duration {
        let Some(Link { rate, latency }) = self.network.link else { return self.arrival(from, to) };
        let takes = Duration::from_secs_f64(bytes as f64 / rate);
        let sends = &mut self.network.busy.entry(from).or_default()[0];
        let starts = self.now.max(*sends);
        *sends = starts + takes;
        let receives = &mut self.network.busy.entry(to).or_default()[1];
        *receives = (*receives).max(starts + latency) + takes;
        *receives
    }

    /// The coordinator offers no state that is not in its journal.
    fn check_logged(&mut self, bytes: &[u8]) {
        let Some((_, body)) = bytes.split_at_checked(frame::HEADER) else { return };
        if let Ok(ToMember::Restore { version, .. }) = decode(body)
            && !self.durable.contains(&version)
        {
            self.fail(|| format!("{version:?} is offered, and not in the journal"));
        }
    }

    fn close(&mut self, pipe: usize) {
        let Pipe { from, to, last, is_closed, .. } = self.network.pipes[pipe];
        if !is_closed {
            let at = self.arrival(from, to).max(last);
            let found = &mut self.network.pipes[pipe];
            (found.is_closed, found.ends) = (true, Some(at));
            self.wake_at(key(pipe), at);
        }
    }

    /// Ends the connections of a process with the coordinator, or with other workers.
    pub(super) fn break_connections(&mut self, process: usize, with_peers: bool) {
        for pipe in 0..self.network.pipes.len() {
            let Pipe { from, to, .. } = self.network.pipes[pipe];
            let other = if from == process { to } else { from };
            let is_peer = self.processes[other].node.is_some();
            if (from == process || to == process) && is_peer == with_peers {
                self.close(pipe);
            }
        }
    }
}

/// One end of a simulated connection.
#[derive(Debug)]
pub(crate) struct Socket {
    process: Process,
    incoming: usize,
    outgoing: usize,
}

impl Socket {
    fn world(&self) -> &World {
        &self.process.world
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> std::io::Result<usize> {
        // Control connections are idle most of the time.
        let is_control = {
            let state = self.world().state();
            let Pipe { from, to, .. } = state.network.pipes[self.incoming];
            state.processes[from].node.is_none() || state.processes[to].node.is_none()
        };
        let deadline = self.process.now() + if is_control { 10 * POLL } else { POLL };
        loop {
            let mut state = self.world().state();
            let now = state.now;
            let pipe = &mut state.network.pipes[self.incoming];
            let next = pipe.chunks.front().map(|(at, _)| *at).or(pipe.ends);
            match next {
                Some(at) if at <= now => {
                    let Some((_, chunk)) = pipe.chunks.front_mut() else { return Ok(0) };
                    let n = chunk.len().min(buffer.len());
                    buffer[..n].copy_from_slice(&chunk[..n]);
                    chunk.drain(..n);
                    if chunk.is_empty() {
                        pipe.chunks.pop_front();
                    }
                    return Ok(n);
                }
                _ if now >= deadline => return Err(ErrorKind::WouldBlock.into()),
                _ => {}
            }
            drop(state);
            let until = next.map_or(deadline, |at| at.min(deadline));
            self.process.wait(key(self.incoming), until - now);
        }
    }

    pub(crate) fn write(&self, parts: &[IoSlice<'_>]) -> std::io::Result<usize> {
        let mut bytes: Vec<u8> = parts.iter().flat_map(|part| part.iter().copied()).collect();
        let written = bytes.len();
        let mut state = self.world().state();
        if state.network.pipes[self.outgoing].is_closed || state.processes[self.process.id].is_dead {
            return Err(ErrorKind::BrokenPipe.into());
        }
        let Pipe { from, to, last, .. } = state.network.pipes[self.outgoing];
        let is_control = state.processes[from].node.is_none() || state.processes[to].node.is_none();
        let free = state.network.busy.get(&from).map_or(state.now, |busy| busy[0]);
        if !is_control && free > state.now {
            // One piece after the other. Messages to and from the coordinator are short, and wait in the socket.
            let time = free - state.now;
            drop(state);
            self.process.sleep(time);
            return self.write(parts);
        }
        if is_control && state.below(1000) < state.network.duplicates {
            bytes.extend_from_within(..);
        }
        if state.processes[from].node.is_none() {
            state.check_logged(&bytes);
        }
        let is_bulk = parts.len() == 2 && !parts[0].is_empty() && !parts[1].is_empty();
        if is_bulk && !is_control && state.network.forges == state.processes[from].node {
            state.network.forges = None;
            state.note(|| "a piece is forged".into());
            forge(&mut bytes, parts[0].len());
        }
        let at = state.transfer(from, to, bytes.len()).max(last);
        let pipe = &mut state.network.pipes[self.outgoing];
        pipe.last = at;
        pipe.chunks.push_back((at, bytes));
        state.wake_at(key(self.outgoing), at);
        Ok(written)
    }

    pub(crate) fn end(&self) {
        let mut state = self.world().state();
        state.close(self.outgoing);
        let now = state.now;
        let incoming = &mut state.network.pipes[self.incoming];
        incoming.chunks.clear();
        (incoming.is_closed, incoming.ends) = (true, Some(now));
        state.wake_at(key(self.incoming), now);
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        self.end();
    }
}

/// Changes a bit of a piece, and the checksums with it: a fault of memory that no checksum finds.
fn forge(bytes: &mut [u8], front: usize) {
    bytes[front] ^= 1;
    let sum = crc(&bytes[front..]).to_le_bytes();
    bytes[front - 8..front - 4].copy_from_slice(&sum);
    let sum = crc(&bytes[..front - 4]).to_le_bytes();
    bytes[front - 4..front].copy_from_slice(&sum);
}

impl Process {
    pub(crate) fn dial(&self, address: &str) -> Result<Arc<Socket>, Error> {
        let failed = |why: &str| Error::Connection { why: format!("{address}: {why}") };
        let target: SocketAddr = address.parse().map_err(|_| failed("no address"))?;
        let mut state = self.world.state();
        let listener = state.network.listeners.get(&target).map(|listener| listener.process);
        let to = listener.filter(|process| !state.processes[*process].is_dead);
        let Some(to) = to else {
            drop(state);
            self.sleep(Duration::from_millis(1));
            return Err(failed("refused"));
        };
        let at = state.arrival(self.id, to);
        let wait = (at - state.now).min(connection::CONNECT_TIMEOUT);
        drop(state);
        self.sleep(wait);
        let mut state = self.world.state();
        if state.now < at || state.processes[to].is_dead {
            return Err(failed("timed out"));
        }
        let first = state.network.pipes.len();
        for (from, to) in [(self.id, to), (to, self.id)] {
            let (chunks, last) = (VecDeque::new(), Duration::ZERO);
            state.network.pipes.push(Pipe { from, to, chunks, last, ends: None, is_closed: false });
        }
        let theirs = Process { world: Arc::clone(&self.world), id: to };
        let theirs = Socket { process: theirs, incoming: first, outgoing: first + 1 };
        if let Some(listener) = state.network.listeners.get_mut(&target) {
            listener.accepted.push_back(Arc::new(theirs));
        }
        let now = state.now;
        state.wake_at(listener_key(to), now);
        Ok(Arc::new(Socket { process: self.clone(), incoming: first + 1, outgoing: first }))
    }

    /// Accepts connections; each gets a thread that receives its first message.
    pub(crate) fn listen(&self, address: &str, service: Arc<impl Service>) -> Result<SocketAddr, Error> {
        let [high, low] = (self.id as u16).to_be_bytes();
        let own = SocketAddr::from(([10, 0, high, low], 1));
        let address = address.parse().unwrap_or(own);
        let listener = Listener { process: self.id, accepted: VecDeque::new() };
        let before = self.world.state().network.listeners.insert(address, listener);
        drop(before);
        let process = self.clone();
        self.spawn(move || {
            while !service.is_over() {
                let mut state = process.world.state();
                let listener = state.network.listeners.get_mut(&address);
                let accepted = listener.and_then(|listener| listener.accepted.pop_front());
                drop(state);
                let Some(socket) = accepted else {
                    process.wait(listener_key(process.id), 10 * POLL);
                    continue;
                };
                let (environment, service, clock) =
                    (process.environment(), Arc::clone(&service), process.clone());
                let began = process.now();
                let greet = move || {
                    let mut reader = Reader::new(connection::Socket::Simulated(socket), None, &environment);
                    let in_time = || clock.now() - began < connection::CONNECT_TIMEOUT;
                    if let Ok(Some(first)) = reader.receive(SHORT, &in_time) {
                        let writer = reader.writer(None);
                        let _ = service.open(Opened { from: address, writer, reader, first });
                    }
                };
                let _ = process.spawn(greet);
            }
        })?;
        Ok(address)
    }
}
