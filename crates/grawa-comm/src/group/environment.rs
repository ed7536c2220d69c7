//! What a group takes from its surroundings: the clock, threads, connections and random numbers.
//!
//! Outside tests this is the operating system. The simulation replaces it, and so runs the code of members and coordinator
//! unchanged on a simulated clock and network. Vectors never pass through here: they go from a buffer to a socket directly.

#[cfg(test)]
use super::simulate::Process;
use std::hash::{BuildHasher, Hasher};
use std::sync::{Condvar, LazyLock, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a thread that waits checks whether it still should.
pub(crate) const POLL: Duration = Duration::from_millis(100);

/// The surroundings of one process.
#[derive(Clone, Debug, Default)]
pub(crate) enum Environment {
    #[default]
    System,
    #[cfg(test)]
    Simulated(Process),
}

impl Environment {
    /// The time since a fixed moment. It never decreases.
    pub(crate) fn now(&self) -> Duration {
        static START: LazyLock<Instant> = LazyLock::new(Instant::now);
        match self {
            Environment::System => START.elapsed(),
            #[cfg(test)]
            Environment::Simulated(process) => process.now(),
        }
    }

    pub(crate) fn sleep(&self, time: Duration) {
        match self {
            Environment::System => std::thread::sleep(time),
            #[cfg(test)]
            Environment::Simulated(process) => process.sleep(time),
        }
    }

    /// A random number. No two members may get the same.
    pub(crate) fn random(&self) -> u64 {
        match self {
            Environment::System => std::hash::RandomState::new().build_hasher().finish(),
            #[cfg(test)]
            Environment::Simulated(process) => process.random(),
        }
    }

    pub(crate) fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> std::io::Result<()> {
        match self {
            Environment::System => {
                std::thread::Builder::new().name(format!("grawa-{name}")).spawn(work).map(drop)
            }
            #[cfg(test)]
            Environment::Simulated(process) => process.spawn(work),
        }
    }

    /// Locks a mutex whose holder may wait for other things.
    pub(crate) fn lock_long<'a, T>(&self, mutex: &'a Mutex<T>) -> MutexGuard<'a, T> {
        #[cfg(test)]
        if let Environment::Simulated(process) = self {
            process.await_free(mutex);
        }
        mutex.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Runs two functions at once, the first on a thread of its own. Returns when both have; `None` if the first panicked.
    pub(crate) fn run_both<A: Send, B>(
        &self,
        first: impl FnOnce() -> A + Send,
        second: impl FnOnce() -> B,
    ) -> (Option<A>, B) {
        match self {
            Environment::System => std::thread::scope(|scope| {
                let first = scope.spawn(first);
                let second = second();
                (first.join().ok(), second)
            }),
            #[cfg(test)]
            Environment::Simulated(process) => process.run_both(first, second),
        }
    }
}

/// Locks a mutex. A poisoned one is as good as any: no thread panics while it holds one of ours.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    #[cfg(test)]
    super::simulate::assert_free(mutex);
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A value that threads share, and can wait for changes of.
#[derive(Debug)]
pub(crate) struct Monitor<T> {
    environment: Environment,
    value: Mutex<T>,
    changed: Condvar,
}

impl<T> Monitor<T> {
    pub(crate) fn new(environment: &Environment, value: T) -> Self {
        Monitor { environment: environment.clone(), value: Mutex::new(value), changed: Condvar::new() }
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, T> {
        lock(&self.value)
    }

    /// Wakes every thread that waits.
    pub(crate) fn notify(&self) {
        match &self.environment {
            Environment::System => self.changed.notify_all(),
            #[cfg(test)]
            Environment::Simulated(process) => process.notify(std::ptr::from_ref(&self.changed).addr()),
        }
    }

    /// Waits for a change, no longer than `timeout`. It may return early.
    pub(crate) fn wait<'a>(&'a self, guard: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
        match &self.environment {
            Environment::System => {
                self.changed.wait_timeout(guard, timeout).unwrap_or_else(PoisonError::into_inner).0
            }
            #[cfg(test)]
            Environment::Simulated(process) => {
                drop(guard);
                process.wait(std::ptr::from_ref(&self.changed).addr(), timeout);
                self.lock()
            }
        }
    }
}
