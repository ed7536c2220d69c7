//! Simulated threads and a simulated clock.
//!
//! Every simulated thread is a thread of the system, but only one runs at a time. It runs until it waits, sleeps, reads or ends;
//! then the scheduler picks the next one by a seeded random number. The clock advances only when all threads wait. So a
//! schedule is a function of its seed, and takes no longer than its work.

use super::Mutation;
use super::network::Network;
use crate::group::environment::Environment;
use crate::group::messages::StateVersion;
use grawa_core::Stream;
use std::any::Any;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::Duration;

thread_local! {
    /// The number of this simulated thread.
    static ME: Cell<Option<usize>> = const { Cell::new(None) };
}

/// What a thread of a process that was killed unwinds with.
struct Killed;

/// All of a simulation.
pub(super) struct World {
    state: Mutex<State>,
    running: AtomicUsize,
    pub(super) mutation: Option<Mutation>,
}

pub(super) struct State {
    pub(super) now: Duration,
    pub(super) random: Stream,
    pub(super) processes: Vec<ProcessState>,
    pub(super) network: Network,
    /// The states in the journal of the coordinator.
    pub(super) durable: BTreeSet<StateVersion>,
    /// What went wrong first.
    pub(super) failure: Option<String>,
    /// What happened, if it is to be printed.
    pub(super) story: Option<Vec<String>>,
    threads: Vec<Thread>,
    handles: Vec<std::thread::JoinHandle<()>>,
}

/// A process: a worker (by node) or the coordinator.
#[derive(Debug)]
pub(super) struct ProcessState {
    pub(super) node: Option<usize>,
    pub(super) is_dead: bool,
    pub(super) paused_until: Duration,
}

struct Thread {
    process: usize,
    waits: Waits,
    system: Option<std::thread::Thread>,
}

#[derive(PartialEq)]
enum Waits {
    /// For its turn.
    Turn,
    /// For a notification, or a moment.
    For(usize, Option<Duration>),
    Done,
}

impl State {
    pub(super) fn below(&mut self, n: u64) -> u64 {
        self.random.below(n)
    }

    pub(super) fn note(&mut self, what: impl FnOnce() -> String) {
        let now = self.now;
        if let Some(story) = &mut self.story {
            story.push(format!("{:9.4} {}", now.as_secs_f64(), what()));
        }
    }

    pub(super) fn fail(&mut self, why: impl FnOnce() -> String) {
        if self.failure.is_none() {
            let why = why();
            self.note(|| format!("FAILED: {why}"));
            self.failure = Some(why);
        }
    }

    /// Wakes threads that wait for this, at a moment.
    pub(super) fn wake_at(&mut self, key: usize, at: Duration) {
        for thread in &mut self.threads {
            if let Waits::For(of, until) = &mut thread.waits
                && *of == key
            {
                *until = Some(until.map_or(at, |until| until.min(at)));
            }
        }
    }

    pub(super) fn pause(&mut self, process: usize, until: Duration) {
        let paused = &mut self.processes[process].paused_until;
        *paused = until.max(*paused);
    }

    pub(super) fn kill(&mut self, process: usize) {
        self.processes[process].is_dead = true;
        let mine = self.threads.iter_mut().filter(|thread| thread.process == process);
        mine.filter(|thread| thread.waits != Waits::Done).for_each(|thread| thread.waits = Waits::Turn);
    }

    /// The next thread. The clock advances if all wait.
    fn choose(&mut self) -> usize {
        loop {
            let (mut ready, mut next) = (Vec::new(), None);
            for (number, thread) in self.threads.iter().enumerate() {
                let process = &self.processes[thread.process];
                let paused = if process.is_dead { Duration::ZERO } else { process.paused_until };
                let at = match thread.waits {
                    Waits::Done | Waits::For(_, None) => continue,
                    Waits::Turn => paused,
                    Waits::For(_, Some(until)) => until.max(paused),
                };
                match at <= self.now {
                    true => ready.push(number),
                    false => next = Some(next.map_or(at, |next: Duration| next.min(at))),
                }
            }
            if !ready.is_empty() {
                return ready[self.random.below(ready.len() as u64) as usize];
            }
            match next {
                Some(next) => self.now = next,
                None => {
                    // Nobody will ever run again: the first thread, which ends the simulation, must.
                    self.fail(|| "deadlock: all threads wait for each other".into());
                    self.threads[0].waits = Waits::Turn;
                }
            }
        }
    }
}

/// A simulated process, as its code sees it.
#[derive(Clone)]
pub(crate) struct Process {
    pub(super) world: Arc<World>,
    pub(super) id: usize,
}

impl std::fmt::Debug for Process {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Process({})", self.id)
    }
}

impl World {
    pub(super) fn new(random: Stream, mutation: Option<Mutation>, aloud: bool) -> Arc<Self> {
        let state = State {
            now: Duration::ZERO,
            random,
            processes: Vec::new(),
            network: Network::default(),
            durable: BTreeSet::new(),
            failure: None,
            story: aloud.then(Vec::new),
            threads: Vec::new(),
            handles: Vec::new(),
        };
        Arc::new(World { state: Mutex::new(state), running: AtomicUsize::new(0), mutation })
    }

    pub(super) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn process(self: &Arc<Self>, node: Option<usize>) -> Process {
        let mut state = self.state();
        state.processes.push(ProcessState { node, is_dead: false, paused_until: Duration::ZERO });
        Process { world: Arc::clone(self), id: state.processes.len() - 1 }
    }

    /// Makes this thread the first simulated one, and runs a function on it. Then kills every process.
    pub(super) fn run(
        self: &Arc<Self>,
        work: impl FnOnce(&Process),
    ) -> (Option<String>, Option<Vec<String>>) {
        let process = self.process(None);
        let me = self.add_thread(process.id);
        self.state().threads[me].system = Some(std::thread::current());
        self.running.store(me, Ordering::Release);
        ME.set(Some(me));
        work(&process);
        let mut state = self.state();
        (1..state.processes.len()).for_each(|process| state.kill(process));
        let threads = state.threads.len();
        drop(state);
        (0..threads).filter(|thread| *thread != me).for_each(|thread| self.join(thread));
        ME.set(None);
        let mut state = self.state();
        let handles = std::mem::take(&mut state.handles);
        let found = (state.failure.take(), state.story.take());
        let listeners = state.network.take_listeners();
        drop(state);
        drop(listeners);
        handles.into_iter().for_each(|handle| drop(handle.join()));
        found
    }

    fn add_thread(&self, process: usize) -> usize {
        let mut state = self.state();
        state.threads.push(Thread { process, waits: Waits::Turn, system: None });
        state.threads.len() - 1
    }

    /// Lets the next thread run, and returns when it is this one's turn again.
    fn switch(&self, mut state: MutexGuard<'_, State>, me: usize) {
        let next = state.choose();
        if next != me {
            let system = state.threads[next].system.clone();
            self.running.store(next, Ordering::Release);
            drop(state);
            system.into_iter().for_each(|thread| thread.unpark());
            self.await_turn(me);
        }
    }

    fn await_turn(&self, me: usize) {
        while self.running.load(Ordering::Acquire) != me {
            std::thread::park();
        }
    }

    /// Runs a simulated thread to its end.
    fn run_thread(&self, me: usize, work: impl FnOnce()) {
        ME.set(Some(me));
        self.await_turn(me);
        let done = catch_unwind(AssertUnwindSafe(|| {
            self.raise_if_killed(me);
            work();
        }));
        let mut state = self.state();
        if let Err(panic) = done {
            state.fail_by(&*panic);
        }
        state.threads[me].waits = Waits::Done;
        state.wake_at(join_key(me), Duration::ZERO);
        let next = state.choose();
        let system = state.threads[next].system.clone();
        self.running.store(next, Ordering::Release);
        drop(state);
        system.into_iter().for_each(|thread| thread.unpark());
    }

    fn raise_if_killed(&self, me: usize) {
        let state = self.state();
        if state.processes[state.threads[me].process].is_dead && !std::thread::panicking() {
            drop(state);
            resume_unwind(Box::new(Killed));
        }
    }

    /// Waits for the end of a thread, even in a process that was killed.
    fn join(&self, thread: usize) {
        let me = ME.get().unwrap_or(0);
        loop {
            let mut state = self.state();
            if state.threads[thread].waits == Waits::Done {
                return;
            }
            state.threads[me].waits = Waits::For(join_key(thread), None);
            self.switch(state, me);
            self.state().threads[me].waits = Waits::Turn;
        }
    }

    fn block(&self, key: usize, until: Option<Duration>) {
        let Some(me) = ME.get() else { return };
        if std::thread::panicking() {
            return;
        }
        let mut state = self.state();
        state.threads[me].waits = until.map_or(Waits::Turn, |until| Waits::For(key, Some(until)));
        self.switch(state, me);
        self.state().threads[me].waits = Waits::Turn;
        self.raise_if_killed(me);
    }
}

impl State {
    fn fail_by(&mut self, panic: &(dyn Any + Send)) {
        if panic.is::<Killed>() {
            return;
        }
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or(panic.downcast_ref::<&str>().copied()).unwrap_or("no message").to_owned();
        self.fail(|| format!("a thread panicked: {text}"));
    }
}

/// Keys are addresses, or small numbers that are none.
fn join_key(thread: usize) -> usize {
    2 * thread + 1
}

impl Process {
    pub(super) fn environment(&self) -> Environment {
        Environment::Simulated(self.clone())
    }

    pub(crate) fn now(&self) -> Duration {
        self.world.state().now
    }

    pub(crate) fn random(&self) -> u64 {
        let mut state = self.world.state();
        state.below(1 << 32) << 16 | state.processes.len() as u64
    }

    pub(crate) fn sleep(&self, time: Duration) {
        let until = self.now() + time;
        self.world.block(0, Some(until));
    }

    pub(crate) fn wait(&self, key: usize, timeout: Duration) {
        let until = self.now() + timeout;
        self.world.block(key, Some(until));
    }

    /// Wakes the threads that wait for this. Now and then another thread runs at once.
    pub(crate) fn notify(&self, key: usize) {
        let mut state = self.world.state();
        let now = state.now;
        state.wake_at(key, now);
        if state.below(4) == 0 {
            drop(state);
            self.world.block(0, None);
        }
    }

    /// Waits until nobody holds a mutex. Only one simulated thread runs at a time: it is then free for this one.
    pub(crate) fn await_free<T>(&self, mutex: &Mutex<T>) {
        while matches!(mutex.try_lock(), Err(TryLockError::WouldBlock)) {
            self.sleep(Duration::from_millis(1));
        }
    }

    pub(super) fn is_dead(&self) -> bool {
        self.world.state().processes[self.id].is_dead
    }

    pub(crate) fn spawn(&self, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        if self.is_dead() {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        let (thread, world) = (self.world.add_thread(self.id), Arc::clone(&self.world));
        let handle = std::thread::Builder::new().spawn(move || world.run_thread(thread, work))?;
        let mut state = self.world.state();
        state.threads[thread].system = Some(handle.thread().clone());
        state.handles.push(handle);
        Ok(())
    }

    pub(crate) fn run_both<A: Send, B>(
        &self,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B,
    ) -> (Option<A>, B) {
        let result = Mutex::new(None);
        let second = std::thread::scope(|scope| {
            let thread = self.world.add_thread(self.id);
            let (world, result) = (&self.world, &result);
            let keep = move |found: A| *result.lock().unwrap_or_else(PoisonError::into_inner) = Some(found);
            let handle = scope.spawn(move || world.run_thread(thread, || keep(first())));
            self.world.state().threads[thread].system = Some(handle.thread().clone());
            let second = catch_unwind(AssertUnwindSafe(second));
            self.world.join(thread);
            second
        });
        let first = result.into_inner().unwrap_or_else(PoisonError::into_inner);
        (first, second.unwrap_or_else(|panic| resume_unwind(panic)))
    }
}

impl Environment {
    /// The defect of the simulated protocol.
    pub(crate) fn mutation(&self) -> Option<Mutation> {
        if let Environment::Simulated(process) = self { process.world.mutation } else { None }
    }
}

/// A simulated thread must not wait while it holds a lock that another one needs: the system would then wait for ever.
pub(crate) fn assert_free<T>(mutex: &Mutex<T>) {
    if ME.get().is_some() && !std::thread::panicking() {
        let is_taken = matches!(mutex.try_lock(), Err(TryLockError::WouldBlock));
        assert!(!is_taken, "a simulated thread waits while it holds a lock");
    }
}
