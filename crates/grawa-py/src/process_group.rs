//! Rounds over a process group of Python's: `torch.distributed` moves the vectors, on the device where they are.
//!
//! The session decides, and never sees the vectors: its own have one number for each tensor, 1, or NaN where a parameter is not
//! finite.
//! A plan needs no more of them. The Python object carries the plan out on the real vectors.

use grawa_comm::{Collective, Error as CommError, Gathered, Outcome, Transport};
use grawa_core::{Centre, Layout, Outer, Plan, Share, Toward};
use pyo3::prelude::*;
use pyo3::types::PyBytes;
use std::cell::Cell;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The process group. `carrier` has the methods `gather` and `mix`, which all processes call in the same order.
pub(crate) struct ProcessGroup {
    carrier: Arc<Py<PyAny>>,
    rank: u32,
    size: u32,
    /// Groups with vectors made so far: that of the rounds, then that of the evaluated model.
    groups: Cell<u32>,
}

impl ProcessGroup {
    pub(crate) fn new(carrier: Py<PyAny>, rank: u32, size: u32) -> Self {
        ProcessGroup { carrier: Arc::new(carrier), rank, size, groups: Cell::new(0) }
    }
}

impl Transport for ProcessGroup {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn group(&self, ranks: Range<u32>, centre: Vec<f32>) -> Result<Option<Box<dyn Collective>>, CommError> {
        if ranks != (0..self.size) {
            // Sessions refuse methods with groups inside the group.
            return Err(CommError::NotInGroup);
        }
        // A group without a centre only gathers.
        let is_view = !centre.is_empty() && self.groups.replace(self.groups.get() + 1) > 0;
        let members = ranks.collect();
        let carrier = Arc::clone(&self.carrier);
        Ok(Some(Box::new(Member { carrier, id: self.rank, members, is_view, centre: Arc::new(centre) })))
    }
}

/// One process's end of it.
struct Member {
    carrier: Arc<Py<PyAny>>,
    id: u32,
    members: Vec<u32>,
    is_view: bool,
    /// Stands for the centre, which Python has.
    centre: Arc<Vec<f32>>,
}

impl Member {
    fn outcome(&self, bytes: u64, since: Instant) -> Outcome {
        // How long this process waited for the others is not known: the engine does not say.
        let (wait, work) = (Duration::ZERO, since.elapsed());
        Outcome { members: self.members.clone(), bytes, wait, work, ..Outcome::default() }
    }
}

fn raised(error: &PyErr) -> CommError {
    CommError::Connection { why: error.to_string() }
}

impl Collective for Member {
    fn id(&self) -> u32 {
        self.id
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, CommError> {
        let start = Instant::now();
        let all = Python::attach(|py| {
            let found = self.carrier.call_method1(py, "gather", (PyBytes::new(py, message),))?;
            found.extract::<Vec<Vec<u8>>>(py)
        });
        let all = all.map_err(|error| raised(&error))?;
        let messages = self.members.iter().copied().zip(all).collect();
        Ok(Gathered { messages, outcome: self.outcome(message.len() as u64, start) })
    }

    fn mix(&mut self, plan: &Plan, _: &Layout, mine: &[f32]) -> Result<Outcome, CommError> {
        let start = Instant::now();
        let Some(at) = plan.index_of(self.id).filter(|_| plan.share == Share::Parameters) else {
            return Ok(self.outcome(0, start));
        };
        let weights: Vec<f32> = plan.weights.rows().map(|row| row[at]).collect();
        // Where no worker has a weight the centre stays.
        let is_kept: Vec<bool> =
            plan.weights.rows().map(|row| row.iter().all(|weight| *weight <= 0.0)).collect();
        let (rate, outer) = match plan.centre {
            Centre::Weighted => (None, None),
            Centre::Moving { rate } => (Some(rate), None),
            Centre::Outer(Outer { rate, momentum, nesterov, by_rate }) => {
                (None, Some((rate, momentum, nesterov, by_rate.unwrap_or(1.0))))
            }
        };
        let is_finite = mine.iter().all(|x| x.is_finite());
        let pull = (plan.pull, plan.toward == Toward::Old, !is_finite, plan.push);
        let sent = Python::attach(|py| {
            let arguments = (self.is_view, weights, is_kept, rate, outer, pull);
            let sent = self.carrier.call_method1(py, "mix", arguments)?;
            sent.extract::<u64>(py)
        });
        Ok(self.outcome(sent.map_err(|error| raised(&error))?, start))
    }

    fn centre(&self) -> &Arc<Vec<f32>> {
        &self.centre
    }
}
