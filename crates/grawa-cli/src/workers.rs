//! The processes of a launch: started, watched, and started again where that was asked for.

use crate::failure::Failure;
use crate::output::{print, warn};
use grawa_comm::group::MemberStatus;
use grawa_train::Stop;
#[cfg(unix)]
use rustix::process::Signal;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom, Write};
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// From the end of a process to its next start.
const PAUSE: Duration = Duration::from_secs(1);
/// How often the logs are read.
const READ: Duration = Duration::from_millis(100);

#[cfg(not(unix))]
enum Signal {
    INT,
    KILL,
}

/// The processes that run, by their numbers: what a signal handler can reach.
#[derive(Clone, Default)]
pub(crate) struct Running(Arc<Mutex<BTreeSet<u32>>>);

impl Running {
    fn lock(&self) -> MutexGuard<'_, BTreeSet<u32>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Does to them what Ctrl-C at their own terminal would, and to what they have started.
    pub(crate) fn interrupt(&self) {
        self.signal(Signal::INT);
    }

    /// Ends them, and what they have started.
    pub(crate) fn kill(&self) {
        self.signal(Signal::KILL);
    }

    #[cfg(unix)]
    fn signal(&self, signal: Signal) {
        for id in self.lock().iter() {
            if let Some(group) = i32::try_from(*id).ok().and_then(rustix::process::Pid::from_raw) {
                // It may have ended by itself.
                let _ = rustix::process::kill_process_group(group, signal);
            }
        }
    }

    #[cfg(not(unix))]
    fn signal(&self, _: Signal) {}
}

/// A worker's process, and those that take its place.
struct Slot {
    command: Command,
    child: Child,
    restarts: u32,
    ended: Option<(ExitStatus, Instant)>,
}

/// The numbers of the processes' workers. Process k wishes for the workers from k times their number on; one that was started again may get
/// others.
#[derive(Clone, Default)]
pub(crate) struct Numbers(Arc<Mutex<BTreeMap<usize, (u64, u32)>>>);

impl Numbers {
    /// Takes what the coordinator knows; each process has so many workers.
    pub(crate) fn update(&self, members: &[MemberStatus], each: u32) {
        let mut numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        for member in members {
            let known = numbers.values_mut().find(|(token, _)| *token == member.token);
            match (known, member.wish) {
                (Some((_, worker)), _) => *worker = member.worker,
                (None, Some(wish)) => {
                    numbers.insert((wish / each.max(1)) as usize, (member.token, member.worker));
                }
                (None, None) => {}
            }
        }
    }

    /// A process as its output is marked: by the number that messages give its worker, and by its own where that is another.
    pub(crate) fn name(&self, process: usize, each: u32) -> String {
        let numbers = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let wished = process as u32 * each;
        let worker = numbers.get(&process).map_or(wished, |(_, worker)| *worker);
        match each {
            1 if worker == wished => format!("worker {worker}"),
            1 => format!("process {process} (worker {worker})"),
            _ => format!("process {process} (workers {worker} to {})", worker + each - 1),
        }
    }
}

/// The workers' processes. They are ended when this is dropped.
pub(crate) struct Workers {
    slots: Vec<Slot>,
    pub(crate) numbers: Numbers,
    pub(crate) running: Running,
    /// Workers of each.
    each: u32,
    /// How often each may be started again.
    restarts: u32,
    is_stopping: bool,
}

impl Workers {
    pub(crate) fn new(restarts: u32, each: u32) -> Self {
        let (numbers, running) = (Numbers::default(), Running::default());
        Workers { slots: Vec::new(), numbers, running, each, restarts, is_stopping: false }
    }

    /// Starts one more.
    pub(crate) fn start(&mut self, mut command: Command) -> Result<(), Failure> {
        let child = spawn(&mut command)?;
        self.running.lock().insert(child.id());
        self.slots.push(Slot { command, child, restarts: 0, ended: None });
        Ok(())
    }

    /// Notices those that have ended, and starts those again that ended badly. One that cannot be started has failed once more: the others
    /// go on.
    pub(crate) fn watch(&mut self) {
        for (number, slot) in self.slots.iter_mut().enumerate() {
            if slot.ended.is_none()
                && let Ok(Some(status)) = slot.child.try_wait()
            {
                self.running.lock().remove(&slot.child.id());
                slot.ended = Some((status, Instant::now()));
            }
            let Some((status, since)) = slot.ended else { continue };
            let is_left = slot.restarts < self.restarts && !status.success() && !self.is_stopping;
            if is_left && since.elapsed() > PAUSE {
                slot.restarts += 1;
                let (count, of) = (slot.restarts, self.restarts);
                let name = self.numbers.name(number, self.each);
                warn(&format!("{name} ended ({status}); it is started again ({count} of {of})"));
                match spawn(&mut slot.command) {
                    Ok(child) => {
                        self.running.lock().insert(child.id());
                        (slot.child, slot.ended) = (child, None);
                    }
                    Err(error) => {
                        warn(&format!("{name}: {error}"));
                        slot.ended = Some((status, Instant::now()));
                    }
                }
            }
        }
    }

    /// The numbers and exit statuses of those that have failed for good.
    pub(crate) fn failed(&self) -> Vec<(usize, ExitStatus)> {
        let ended = self.slots.iter().enumerate();
        let ended = ended.filter_map(|(number, slot)| Some((number, self.last_status(slot)?)));
        ended.filter(|(_, status)| !status.success()).collect()
    }

    /// The number and exit status of one that has ended for good.
    pub(crate) fn ended(&self) -> Option<(usize, ExitStatus)> {
        let mut slots = self.slots.iter().enumerate();
        slots.find_map(|(number, slot)| Some((number, self.last_status(slot)?)))
    }

    /// Whether all have ended for good.
    pub(crate) fn are_gone(&self) -> bool {
        self.slots.iter().all(|slot| self.last_status(slot).is_some())
    }

    fn last_status(&self, slot: &Slot) -> Option<ExitStatus> {
        let (status, _) = slot.ended?;
        let is_last = status.success() || slot.restarts >= self.restarts || self.is_stopping;
        is_last.then_some(status)
    }

    /// Asks all to stop together.
    pub(crate) fn ask(&mut self) {
        self.is_stopping = true;
        for input in self.slots.iter_mut().filter_map(|slot| slot.child.stdin.as_mut()) {
            // It may have ended by itself.
            let _ = input.write_all(Stop::LINE.as_bytes()).and_then(|()| input.flush());
        }
    }

    /// From now on none is started again.
    pub(crate) fn let_end(&mut self) {
        self.is_stopping = true;
    }
}

impl Drop for Workers {
    fn drop(&mut self) {
        for slot in &mut self.slots {
            // It may have ended by itself.
            let _ = slot.child.kill();
            let _ = slot.child.wait();
        }
    }
}

fn spawn(command: &mut Command) -> Result<Child, Failure> {
    let started = command.spawn();
    let program = command.get_program().display();
    started.map_err(|error| Failure::Machine(format!("cannot start {program}: {error}")))
}

/// Prints what workers write to their logs. Processes that write to files survive the end of this one.
pub(crate) struct Tail {
    is_over: Arc<AtomicBool>,
    reader: Option<JoinHandle<()>>,
}

impl Tail {
    /// From these places of the logs on: a run that continues appends to them.
    pub(crate) fn new(logs: Vec<(PathBuf, u64)>, numbers: Numbers, each: u32) -> Self {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let mut logs: Vec<Log> = logs.into_iter().map(|(path, start)| Log::new(path, start)).collect();
        let reader = std::thread::spawn(move || {
            loop {
                let is_last = over.load(Ordering::Relaxed);
                for (number, log) in logs.iter_mut().enumerate() {
                    let lines = log.lines(is_last);
                    let name = numbers.name(number, each);
                    lines.iter().for_each(|line| print(&format!("[{name}] {line}")));
                }
                if is_last {
                    return;
                }
                std::thread::sleep(READ);
            }
        });
        Tail { is_over, reader: Some(reader) }
    }
}

impl Drop for Tail {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Relaxed);
        let _ = self.reader.take().map(JoinHandle::join);
    }
}

/// A log that grows.
struct Log {
    path: PathBuf,
    start: u64,
    file: Option<File>,
    rest: Vec<u8>,
}

impl Log {
    fn new(path: PathBuf, start: u64) -> Self {
        Log { path, start, file: None, rest: Vec::new() }
    }

    /// The lines since the last call; with the beginning of a line, if it is the last call.
    fn lines(&mut self, is_last: bool) -> Vec<String> {
        if self.file.is_none() {
            let open = File::open(&self.path);
            self.file = open.and_then(|mut file| file.seek(SeekFrom::Start(self.start)).map(|_| file)).ok();
        }
        if let Some(file) = &mut self.file {
            // What cannot be read is in the file all the same.
            let _ = file.read_to_end(&mut self.rest);
        }
        let end = match is_last {
            true => self.rest.len(),
            false => self.rest.iter().rposition(|byte| *byte == b'\n').map_or(0, |at| at + 1),
        };
        let whole: Vec<u8> = self.rest.drain(..end).collect();
        let text = String::from_utf8_lossy(&whole);
        // A progress bar writes over its line: its last state counts.
        text.lines()
            .map(|line| line.rsplit('\r').find(|part| !part.is_empty()).unwrap_or("").into())
            .collect()
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    /// Output is marked by the number that messages give a worker; a process that was started again may have got another one.
    #[test]
    fn a_process_is_named_by_its_worker() {
        let numbers = Numbers::default();
        let member = |token, wish, worker| MemberStatus {
            worker,
            token,
            wish,
            workers: 1,
            state: grawa_comm::group::MemberState::Active,
            since: 1,
            address: String::new(),
            steps: 0,
            silent: Duration::ZERO,
            has_arrived: false,
            is_awaited: false,
            traffic: grawa_comm::group::Traffic::default(),
        };
        numbers.update(&[member(7, Some(0), 0), member(8, Some(1), 3)], 1);
        assert_eq!(
            [0, 1, 2].map(|process| numbers.name(process, 1)),
            ["worker 0", "process 1 (worker 3)", "worker 2"]
        );
        numbers.update(&[member(8, None, 1)], 1);
        assert_eq!(numbers.name(1, 1), "worker 1");
        assert_eq!(numbers.name(1, 4), "process 1 (workers 1 to 4)");
    }

    #[test]
    fn whole_lines_are_printed_once() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("log");
        let mut log = Log::new(path.clone(), 0);
        assert!(log.lines(false).is_empty());
        let mut file = File::create(&path).unwrap();
        file.write_all(b"one\ntwo\rthree\rfour").unwrap();
        assert_eq!(log.lines(false), ["one"]);
        file.write_all(b" and five\r\nsix").unwrap();
        assert_eq!(log.lines(false), ["four and five"]);
        assert_eq!(log.lines(true), ["six"]);
        assert!(log.lines(true).is_empty());
        assert_eq!(Log::new(path, 4).lines(true), ["four and five", "six"]);
    }
}
