//! The calls of MPI, with lengths checked and errors as `Result`.
//!
//! MPI is started for calls from any thread, but one at a time: a thread that calls holds the [`Turn`] of the process. Errors are
//! returned, not fatal, so that a failure can be reported before the job ends.
#![allow(unsafe_code)]

use crate::Error;
use mpi::datatype::Equivalence;
use mpi::ffi;
use mpi::raw::AsRaw;
use std::os::raw::{c_char, c_int, c_void};
use std::sync::{Mutex, MutexGuard, PoisonError, TryLockError};

const WINDOW: &str = "make the counters that a free pace needs";
/// How often MPI is polled for work: one answer takes several messages.
const LOOKS: usize = 8;

static TURN: Mutex<()> = Mutex::new(());

/// The right to call MPI. One thread of the process has it at a time. A call that waits for other ranks keeps it.
pub(super) struct Turn {
    _held: MutexGuard<'static, ()>,
}

/// Waits for it.
pub(super) fn turn() -> Turn {
    Turn { _held: TURN.lock().unwrap_or_else(PoisonError::into_inner) }
}

/// A communicator. It lives until MPI ends: freeing it would need all its ranks, and some may be gone.
#[derive(Clone, Copy, Debug)]
pub(super) struct Comm(ffi::MPI_Comm);

// SAFETY: a handle. MPI was started for calls from any thread, and the thread that calls has the turn.
unsafe impl Send for Comm {}
// SAFETY: as above.
unsafe impl Sync for Comm {}

/// A window: memory of the first rank that others add to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Window(ffi::MPI_Win);

// SAFETY: as for `Comm`.
unsafe impl Send for Window {}
// SAFETY: as for `Comm`.
unsafe impl Sync for Window {}

impl Comm {
    /// All ranks of the job. Its errors, and those of communicators split from it, are returned.
    pub(super) fn world() -> Result<Self, Error> {
        let turn = turn();
        // SAFETY: MPI is running, and these are its constants.
        let (world, code) = unsafe {
            let world = Comm(ffi::RSMPI_COMM_WORLD);
            (world, ffi::MPI_Comm_set_errhandler(world.0, ffi::RSMPI_ERRORS_RETURN))
        };
        answer(&turn, "return errors", code).map(|()| world)
    }

    pub(super) fn rank(self) -> Result<usize, Error> {
        let (turn, mut rank) = (turn(), 0);
        // SAFETY: writes one int.
        answer(&turn, "tell the rank", unsafe { ffi::MPI_Comm_rank(self.0, &raw mut rank) })?;
        Ok(rank as usize)
    }

    pub(super) fn size(self) -> Result<usize, Error> {
        self.size_in(&turn())
    }

    fn size_in(self, turn: &Turn) -> Result<usize, Error> {
        let mut size = 0;
        // SAFETY: writes one int.
        answer(turn, "tell the number of ranks", unsafe { ffi::MPI_Comm_size(self.0, &raw mut size) })?;
        Ok(size as usize)
    }

    /// A communicator of the ranks that take part, in their order. All ranks must call it.
    pub(super) fn split(self, is_in: bool) -> Result<Option<Self>, Error> {
        let turn = turn();
        // SAFETY: writes one handle.
        let (made, code) = unsafe {
            let colour = if is_in { 0 } else { ffi::RSMPI_UNDEFINED };
            let mut made = ffi::RSMPI_COMM_NULL;
            let code = ffi::MPI_Comm_split(self.0, colour, 0, &raw mut made);
            (made, code)
        };
        answer(&turn, "split off a group", code).map(|()| is_in.then_some(Comm(made)))
    }

    /// How many ranks share this machine. All ranks must call it.
    pub(super) fn on_this_machine(self) -> Result<usize, Error> {
        let turn = turn();
        // SAFETY: writes one handle.
        let (mut made, code) = unsafe {
            let (kind, none) = (ffi::RSMPI_COMM_TYPE_SHARED, ffi::RSMPI_INFO_NULL);
            let mut made = ffi::RSMPI_COMM_NULL;
            let code = ffi::MPI_Comm_split_type(self.0, kind, 0, none, &raw mut made);
            (made, code)
        };
        answer(&turn, "find neighbours", code)?;
        let size = Comm(made).size_in(&turn)?;
        // SAFETY: the handle was made above. All ranks that got it free it, and none uses it any more.
        answer(&turn, "find neighbours", unsafe { ffi::MPI_Comm_free(&raw mut made) })?;
        Ok(size)
    }

    /// The numbers of all ranks, in order. All must pass the same count.
    pub(super) fn all_words<const N: usize>(self, mine: [u64; N]) -> Result<Vec<[u64; N]>, Error> {
        let mut all = vec![[0; N]; self.size()?];
        let (turn, count) = (turn(), N as c_int);
        // SAFETY: reads N numbers, and writes N of each rank.
        let code = unsafe {
            let (kind, from, to) = (ffi::RSMPI_UINT64_T, mine.as_ptr().cast(), all.as_mut_ptr().cast());
            ffi::MPI_Allgather(from, count, kind, to, count, kind, self.0)
        };
        answer(&turn, "gather words", code).map(|()| all)
    }

    /// Sends `counts.0[r]` floats of `from` to rank r, and fills `to` with the `counts.1[r]` floats of each rank r, both in
    /// order.
    pub(super) fn exchange(
        self,
        from: &[f32],
        to: &mut [f32],
        counts: (&[usize], &[usize]),
    ) -> Result<(), Error> {
        let (out, out_starts) = places(counts.0)?;
        let (back, back_starts) = places(counts.1)?;
        fits("exchange floats", self.size()? as c_int, out.len().min(back.len()))?;
        if end(&out, &out_starts) > from.len() || end(&back, &back_starts) > to.len() {
            return Err(wrong("exchange floats", "more than there is room for"));
        }
        let turn = turn();
        // SAFETY: a count for every rank, and all of them inside `from` and `to`.
        let code = unsafe {
            let (kind, from, to) = (ffi::RSMPI_FLOAT, from.as_ptr().cast(), to.as_mut_ptr().cast());
            let (out, out_starts) = (out.as_ptr(), out_starts.as_ptr());
            let (back, back_starts) = (back.as_ptr(), back_starts.as_ptr());
            ffi::MPI_Alltoallv(from, out, out_starts, kind, to, back, back_starts, kind, self.0)
        };
        answer(&turn, "exchange floats", code)
    }

    /// Fills `all` with the parts of all ranks, in order. `counts` says how long each is. `mine` is that of this rank.
    pub(super) fn all_parts<T: Equivalence>(
        self,
        mine: &[T],
        all: &mut [T],
        counts: &[usize],
    ) -> Result<(), Error> {
        let (call, (counts, starts)) = ("gather parts", places(counts)?);
        fits(call, counts[self.rank()?], mine.len())?;
        fits(call, self.size()? as c_int, counts.len())?;
        if end(&counts, &starts) > all.len() {
            return Err(wrong(call, "more than there is room for"));
        }
        let (count, kind, turn) = (int(mine.len())?, T::equivalent_datatype(), turn());
        // SAFETY: reads as many elements as this rank's count says, and all counts lie inside `all`.
        let code = unsafe {
            let (kind, from, to) = (kind.as_raw(), mine.as_ptr().cast(), all.as_mut_ptr().cast());
            ffi::MPI_Allgatherv(from, count, kind, to, counts.as_ptr(), starts.as_ptr(), kind, self.0)
        };
        answer(&turn, call, code)
    }

    pub(super) fn send(self, to: usize, bytes: &[u8]) -> Result<(), Error> {
        let (count, to, turn) = (int(bytes.len())?, int(to)?, turn());
        // SAFETY: as many bytes as the slice has.
        let code = unsafe { ffi::MPI_Send(bytes.as_ptr().cast(), count, ffi::RSMPI_UINT8_T, to, 0, self.0) };
        answer(&turn, "send", code)
    }

    pub(super) fn receive(self, from: usize, bytes: &mut [u8]) -> Result<(), Error> {
        let (count, from, turn) = (int(bytes.len())?, int(from)?, turn());
        // SAFETY: as many bytes as the slice has; longer messages are an error of MPI.
        let code = unsafe {
            let (to, kind) = (bytes.as_mut_ptr().cast(), ffi::RSMPI_UINT8_T);
            ffi::MPI_Recv(to, count, kind, from, 0, self.0, ffi::RSMPI_STATUS_IGNORE)
        };
        answer(&turn, "receive", code)
    }

    /// Lets MPI answer requests of other ranks. Nothing is received.
    pub(super) fn attend(self) {
        let (_turn, mut found) = (turn(), 0);
        for _ in 0..LOOKS {
            // SAFETY: writes one int. An error here occurs again where it matters.
            unsafe {
                let (any, tag) = (ffi::RSMPI_ANY_SOURCE, ffi::RSMPI_ANY_TAG);
                ffi::MPI_Iprobe(any, tag, self.0, &raw mut found, ffi::RSMPI_STATUS_IGNORE);
            }
        }
    }

    /// Ends all ranks of the job. If another thread waits inside MPI, this process ends itself, and `mpirun` ends the others.
    pub(super) fn abort(self, code: i32) -> ! {
        let turn = TURN.try_lock();
        if !matches!(turn, Err(TryLockError::WouldBlock)) {
            // SAFETY: may be called whenever MPI is running.
            unsafe { ffi::MPI_Abort(self.0, code) };
        }
        std::process::abort()
    }

    /// Makes counters in the memory of the first rank, at zero. All ranks must call it.
    pub(super) fn window(self, words: usize) -> Result<Window, Error> {
        let here = if self.rank()? == 0 { words } else { 0 };
        let bytes = (here * size_of::<i64>()) as ffi::MPI_Aint;
        let mut memory: *mut i64 = std::ptr::null_mut();
        let turn = turn();
        // SAFETY: MPI allocates the memory, and the first rank clears what it asked for before others can access it.
        unsafe {
            let mut window = ffi::RSMPI_WIN_NULL;
            let unit = size_of::<i64>() as c_int;
            let (place, none) = ((&raw mut memory).cast::<c_void>(), ffi::RSMPI_INFO_NULL);
            let code = ffi::MPI_Win_allocate(bytes, unit, none, self.0, place, &raw mut window);
            answer(&turn, WINDOW, code)?;
            (0..here).for_each(|word| memory.add(word).write_volatile(0));
            answer(&turn, WINDOW, ffi::MPI_Win_set_errhandler(window, ffi::RSMPI_ERRORS_RETURN))?;
            answer(&turn, WINDOW, ffi::MPI_Win_lock_all(0, window))?;
            answer(&turn, WINDOW, ffi::MPI_Win_sync(window))?;
            answer(&turn, WINDOW, ffi::MPI_Barrier(self.0))?;
            Ok(Window(window))
        }
    }
}

impl Window {
    /// Adds to a counter, and returns its old value.
    pub(super) fn add(self, word: usize, amount: i64) -> Result<i64, Error> {
        let (turn, mut before) = (turn(), 0i64);
        // SAFETY: reads one i64 and writes one, and both live until the flush has returned.
        unsafe {
            let (from, to) = ((&raw const amount).cast(), (&raw mut before).cast());
            let (kind, sum) = (ffi::RSMPI_INT64_T, ffi::RSMPI_SUM);
            let code = ffi::MPI_Fetch_and_op(from, to, kind, 0, word as ffi::MPI_Aint, sum, self.0);
            answer(&turn, "count", code)?;
            answer(&turn, "count", ffi::MPI_Win_flush(0, self.0))?;
        }
        Ok(before)
    }

    /// Frees the window. All ranks must call it.
    pub(super) fn free(mut self) {
        let _turn = turn();
        // SAFETY: the window is not used after this. At the end of a job there is nothing to do about an error.
        unsafe {
            ffi::MPI_Win_unlock_all(self.0);
            ffi::MPI_Win_free(&raw mut self.0);
        }
    }
}

/// Counts and offsets, as MPI needs them.
fn places(counts: &[usize]) -> Result<(Vec<c_int>, Vec<c_int>), Error> {
    let mut start = 0;
    let (mut ints, mut starts) = (Vec::with_capacity(counts.len()), Vec::with_capacity(counts.len()));
    for &count in counts {
        ints.push(int(count)?);
        starts.push(int(start)?);
        start += count;
    }
    Ok((ints, starts))
}

/// The end of the last one.
fn end(counts: &[c_int], starts: &[c_int]) -> usize {
    starts.last().zip(counts.last()).map_or(0, |(&start, &count)| start as usize + count as usize)
}

fn int(count: usize) -> Result<c_int, Error> {
    c_int::try_from(count)
        .map_err(|_| wrong("move so much at once", &format!("{count} is more than an int holds")))
}

fn fits(call: &'static str, expected: c_int, found: usize) -> Result<(), Error> {
    if expected as usize == found {
        return Ok(());
    }
    Err(wrong(call, &format!("{found} instead of {expected}")))
}

fn wrong(call: &'static str, why: &str) -> Error {
    Error::Mpi { call, why: why.into() }
}

fn answer(_: &Turn, call: &'static str, code: c_int) -> Result<(), Error> {
    if code == 0 {
        return Ok(());
    }
    // The limit of MPI is 256 or 512, depending on the implementation.
    let mut text = [0u8; 8192];
    let mut length = 0;
    // SAFETY: the text has room for more than MPI ever writes.
    unsafe { ffi::MPI_Error_string(code, text.as_mut_ptr().cast::<c_char>(), &raw mut length) };
    let text = &text[..usize::try_from(length).unwrap_or(0).min(text.len())];
    Err(wrong(call, &String::from_utf8_lossy(text)))
}
