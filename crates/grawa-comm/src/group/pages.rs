//! Memory as the system has it: large pages for vectors, and pages that are lent to a socket instead of copied into it.
//!
//! Between processes of one machine a round is mostly copying. What is lent is read by the receiver where it lies, which
//! saves one copy of two; to count pages of 4 kB costs as much as to copy them, so vectors are moved to large ones first.
//! What is lent must stay as it is until it was received. Where none of this is to be had, bytes are copied.

#[cfg(target_os = "linux")]
pub(super) use here::{Loans, enlarge};
#[cfg(not(target_os = "linux"))]
pub(super) use nowhere::{Loans, enlarge};

#[cfg(target_os = "linux")]
mod here {
    use rustix::pipe::{IoSliceRaw, PipeFlags, SpliceFlags, fcntl_setpipe_size, pipe_with, splice, vmsplice};
    use std::io::Result;
    use std::net::TcpStream;
    use std::os::fd::OwnedFd;
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::time::{Duration, Instant};

    /// A large page, and bytes that are moved to such pages at a time.
    const LARGE: usize = 1 << 21;
    const TURN: usize = 1 << 25;
    /// A round is not held up for longer: the next one goes on with it.
    const LONG: Duration = Duration::from_millis(500);
    /// `MADV_COLLAPSE`, which not every C library names.
    const COLLAPSE: libc::c_int = 25;
    /// The most bytes that are lent at a time; more is not allowed to everyone.
    const MOST: usize = 1 << 20;

    /// Moves a vector to large pages. Where it lies in such already this takes microseconds.
    pub(in super::super) fn enlarge(vector: &[f32]) {
        // To look for large pages in vain can take long.
        static IN_VAIN: AtomicBool = AtomicBool::new(false);
        let (began, ends) = (Instant::now(), vector.as_ptr_range());
        let last = ends.end.addr() / LARGE * LARGE;
        let mut start = ends.start.map_addr(|start| start.next_multiple_of(LARGE)).cast_mut();
        while start.addr() < last && began.elapsed() < LONG && !IN_VAIN.load(Ordering::Relaxed) {
            let len = TURN.min(last - start.addr());
            #[allow(unsafe_code)]
            // SAFETY: these pages are the vector's, and what lies in them stays the same.
            let failed = unsafe { libc::madvise(start.cast(), len, COLLAPSE) } != 0;
            if failed {
                // Where it is not known, or never for such memory, it is not tried again; else at the next round.
                let is_for_ever = std::io::Error::last_os_error().raw_os_error() == Some(libc::EINVAL);
                IN_VAIN.fetch_or(is_for_ever, Ordering::Relaxed);
                return;
            }
            start = start.wrapping_byte_add(len);
        }
    }

    /// Whether a socket has refused what was lent.
    static REFUSED: AtomicBool = AtomicBool::new(false);

    /// What pages are lent through: a pipe, empty in between.
    #[derive(Debug)]
    pub(in super::super) struct Loans {
        out: OwnedFd,
        into: OwnedFd,
    }

    impl Loans {
        /// Nothing where pages cannot be lent.
        pub(in super::super) fn new() -> Option<Self> {
            if REFUSED.load(Ordering::Relaxed) {
                return None;
            }
            let (out, into) = pipe_with(PipeFlags::CLOEXEC).ok()?;
            // With less it only takes more turns.
            let _ = fcntl_setpipe_size(&into, MOST);
            let loans = Loans { out, into };
            // Some sandboxes have pipes but forbid this.
            (loans.lend(&[0]).ok()? == 1 && rustix::io::read(&loans.out, &mut [0; 1]).ok()? == 1)
                .then_some(loans)
        }

        /// Copies a few bytes, as many as a pipe surely takes while it is empty.
        pub(in super::super) fn copy(&self, bytes: &[u8]) -> Result<usize> {
            Ok(rustix::io::write(&self.into, bytes)?)
        }

        /// Lends bytes, and says how many.
        pub(in super::super) fn lend(&self, bytes: &[u8]) -> Result<usize> {
            #[allow(unsafe_code)]
            // SAFETY: this is the end that is written to, so memory is only read, and pages stay while they are lent.
            Ok(unsafe { vmsplice(&self.into, &[IoSliceRaw::from_slice(bytes)], SpliceFlags::NONBLOCK) }?)
        }

        /// Takes back what no socket took.
        pub(in super::super) fn take_back(&self, mut bytes: usize) -> Result<()> {
            let mut room = [0; 4096];
            while bytes > 0 {
                let most = bytes.min(room.len());
                bytes -= rustix::io::read(&self.out, &mut room[..most])?;
            }
            Ok(())
        }

        /// Sockets here take copies only: nothing is lent any more.
        pub(in super::super) fn give_up() {
            REFUSED.store(true, Ordering::Relaxed);
        }

        /// Hands what was copied and lent to a socket, at most so many bytes.
        pub(in super::super) fn hand_to(&self, socket: &TcpStream, most: usize) -> Result<usize> {
            Ok(splice(&self.out, None, socket, None, most, SpliceFlags::empty())?)
        }
    }
}

#[cfg(not(target_os = "linux"))]
mod nowhere {
    use std::io::{ErrorKind, Result};
    use std::net::TcpStream;

    pub(in super::super) fn enlarge(_: &[f32]) {}

    #[derive(Debug)]
    pub(in super::super) enum Loans {}

    impl Loans {
        pub(in super::super) fn new() -> Option<Self> {
            None
        }

        pub(in super::super) fn copy(&self, _: &[u8]) -> Result<usize> {
            Err(ErrorKind::Unsupported.into())
        }

        pub(in super::super) fn lend(&self, _: &[u8]) -> Result<usize> {
            Err(ErrorKind::Unsupported.into())
        }

        pub(in super::super) fn take_back(&self, _: usize) -> Result<()> {
            Err(ErrorKind::Unsupported.into())
        }

        pub(in super::super) fn give_up() {}

        pub(in super::super) fn hand_to(&self, _: &TcpStream, _: usize) -> Result<usize> {
            Err(ErrorKind::Unsupported.into())
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_pages_hold_what_the_small_ones_held() {
        // Shorter than a page, not on the border of one, and several turns.
        for (from, len) in [(0, 0), (3, 1000), (1, 1 << 20), (5, 20 << 20)] {
            let vector: Vec<f32> = (0..len as u32).map(|n| n as f32).collect();
            (0..2).for_each(|_| enlarge(&vector[from.min(len)..]));
            assert!((0..len as u32).zip(&vector).all(|(n, x)| *x == n as f32));
        }
    }
}
