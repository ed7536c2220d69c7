//! A relay between a worker and the others that does to their connections what networks do.
//!
//! The worker finds the coordinator at the relay's address, and is started with `--host 127.0.0.2`: the relay reads its port from
//! its hello, listens at that host, and so carries what others send it, too.

use super::until;
use grawa_comm::group::internals::messages::{ToCoordinator, ToMember, decode, encode};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// By which others reach a worker behind a relay.
pub(crate) const HOST: &str = "127.0.0.2";

/// What passes on a control connection.
#[derive(Debug)]
pub(crate) enum Relayed {
    Up(ToCoordinator),
    Down(ToMember),
    /// So many bytes of vectors, to the worker.
    Pieces(usize),
}

type Watch = Box<dyn FnMut(&Relayed) -> bool + Send>;

/// What is done to what passes.
#[derive(Default)]
pub(crate) struct Faults {
    /// Every message and every chunk is held up for so many milliseconds.
    pub(crate) delay: AtomicU64,
    /// Nothing passes, and no connection ends.
    pub(crate) is_parted: AtomicBool,
    /// Nothing passes that the worker sends to the coordinator, and all else does.
    pub(crate) is_mute: AtomicBool,
    /// Control messages pass twice, and some chunks of vectors.
    pub(crate) doubles: AtomicBool,
    /// Control bytes that passed, and chunks of vectors.
    pub(crate) bytes: AtomicU64,
    chunks: AtomicU64,
    /// Passes in the place of the worker's next sign of life.
    pub(crate) lie: Mutex<Option<ToCoordinator>>,
    /// Sees everything first; what it returns true for does not pass, and ends the connection.
    watch: Mutex<Option<Watch>>,
    sockets: Mutex<Vec<TcpStream>>,
}

/// A relay at work. It ends with the test's process.
pub(crate) struct Relay {
    pub(crate) address: String,
    pub(crate) faults: Arc<Faults>,
}

impl Relay {
    /// A relay to a coordinator.
    pub(crate) fn to(coordinator: &str) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let (address, faults) = (listener.local_addr().unwrap().to_string(), Arc::<Faults>::default());
        let (shared, to) = (Arc::clone(&faults), coordinator.to_owned());
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(&to)) else { continue };
                shared.join(from, to, frames::<ToCoordinator>, frames::<ToMember>);
            }
        });
        Relay { address, faults }
    }

    /// Ends all connections; new ones can be made.
    pub(crate) fn cut(&self) {
        for socket in self.faults.sockets.lock().unwrap().drain(..) {
            let _ = socket.shutdown(Shutdown::Both);
        }
    }

    /// From now on this sees everything first.
    pub(crate) fn watch(&self, watch: impl FnMut(&Relayed) -> bool + Send + 'static) {
        *self.faults.watch.lock().unwrap() = Some(Box::new(watch));
    }
}

type Carry = fn(&Arc<Faults>, TcpStream, TcpStream) -> std::io::Result<()>;

impl Faults {
    fn join(self: &Arc<Self>, from: TcpStream, to: TcpStream, up: Carry, down: Carry) {
        for socket in [&from, &to] {
            socket.set_nodelay(true).unwrap();
            self.sockets.lock().unwrap().push(socket.try_clone().unwrap());
        }
        let back = (to.try_clone().unwrap(), from.try_clone().unwrap());
        for (carry, (from, to)) in [(up, (from, to)), (down, back)] {
            let faults = Arc::clone(self);
            std::thread::spawn(move || {
                let ends = [from.try_clone().unwrap(), to.try_clone().unwrap()];
                // Connections end.
                let _ = carry(&faults, from, to);
                ends.iter().for_each(|end| drop(end.shutdown(Shutdown::Both)));
            });
        }
    }

    /// Whether it may pass.
    fn sees(&self, message: &Relayed) -> std::io::Result<()> {
        let stops = self.watch.lock().unwrap().as_mut().is_some_and(|watch| watch(message));
        if stops {
            return Err(std::io::Error::other("stopped"));
        }
        std::thread::sleep(Duration::from_millis(self.delay.load(Ordering::Relaxed)));
        let is_held = || {
            self.is_parted.load(Ordering::Relaxed)
                || (self.is_mute.load(Ordering::Relaxed) && matches!(message, Relayed::Up(_)))
        };
        while is_held() {
            std::thread::sleep(Duration::from_millis(10));
        }
        Ok(())
    }

    /// Carries what others send to the worker behind this relay, at its own port.
    fn open_door(self: &Arc<Self>, address: &str) {
        let Some(port) = address.strip_prefix(HOST).and_then(|rest| rest.strip_prefix(':')) else { return };
        // It sends its hello again on every connection; and a port may have been another's, behind another relay, who has died.
        let is_open = DOORS.lock().unwrap().insert(address.to_owned(), Arc::clone(self)).is_some();
        if is_open {
            return;
        }
        let listener = TcpListener::bind(address).unwrap();
        let (address, to) = (address.to_owned(), format!("127.0.0.1:{port}"));
        std::thread::spawn(move || {
            for from in listener.incoming() {
                let (Ok(from), Ok(to)) = (from, TcpStream::connect(&to)) else { continue };
                let faults = Arc::clone(&DOORS.lock().unwrap()[&address]);
                faults.join(from, to, chunks, chunks);
            }
        });
    }
}

/// Behind which relay the worker is that listens here. Doors stay open as long as the test's process.
static DOORS: Mutex<BTreeMap<String, Arc<Faults>>> = Mutex::new(BTreeMap::new());

/// Messages, one way.
trait Message: for<'a> serde::Deserialize<'a> {
    fn relayed(self) -> Relayed;
}

impl Message for ToCoordinator {
    fn relayed(self) -> Relayed {
        Relayed::Up(self)
    }
}

impl Message for ToMember {
    fn relayed(self) -> Relayed {
        Relayed::Down(self)
    }
}

fn frames<M: Message>(faults: &Arc<Faults>, mut from: TcpStream, mut to: TcpStream) -> std::io::Result<()> {
    loop {
        let mut frame = vec![0; grawa_comm::group::internals::frame::HEADER];
        from.read_exact(&mut frame)?;
        let length = u32::from_le_bytes([frame[0], frame[1], frame[2], frame[3]]) as usize;
        let start = frame.len();
        frame.resize(start + length, 0);
        from.read_exact(&mut frame[start..])?;
        let message = decode::<M>(&frame[start..]).map_err(std::io::Error::other)?.relayed();
        if let Relayed::Up(ToCoordinator::Hello(hello)) = &message {
            faults.open_door(&hello.address);
        }
        if matches!(message, Relayed::Up(ToCoordinator::Heartbeat { .. }))
            && let Some(lie) = faults.lie.lock().unwrap().take()
        {
            let number = u32::from_le_bytes([frame[4], frame[5], frame[6], frame[7]]);
            let body = encode(&lie).map_err(std::io::Error::other)?;
            frame = grawa_comm::group::internals::frame::header(number, &body)
                .map_err(std::io::Error::other)?
                .to_vec();
            frame.extend_from_slice(&body);
        }
        faults.sees(&message)?;
        faults.bytes.fetch_add(frame.len() as u64, Ordering::Relaxed);
        to.write_all(&frame)?;
        if faults.doubles.load(Ordering::Relaxed) {
            to.write_all(&frame)?;
        }
    }
}

fn chunks(faults: &Arc<Faults>, mut from: TcpStream, mut to: TcpStream) -> std::io::Result<()> {
    let mut buffer = [0; 1 << 12];
    loop {
        let n = match from.read(&mut buffer)? {
            0 => return Ok(()),
            n => n,
        };
        faults.sees(&Relayed::Pieces(n))?;
        to.write_all(&buffer[..n])?;
        // So seldom that an attempt can succeed.
        let number = faults.chunks.fetch_add(1, Ordering::Relaxed);
        if number % 41 == 40 && faults.doubles.load(Ordering::Relaxed) {
            to.write_all(&buffer[..n])?;
        }
    }
}

/// Waits until a relay's watch has seen what it looked for.
pub(crate) fn seen(flag: &AtomicBool, what: &str) {
    until(what, || flag.load(Ordering::Relaxed));
}
