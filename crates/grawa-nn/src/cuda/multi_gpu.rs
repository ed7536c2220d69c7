//! Rounds with workers on several GPUs. Each GPU sums its own workers, the sums are all-reduced, each GPU pulls its own
//! workers.
//!
//! Every GPU with workers of a group keeps a copy of the group's centre; all copies are equal. Sums are taken within a GPU and
//! then over GPUs. Rounding therefore differs from a round on one GPU, which sums worker by worker.

use super::device::{Device, Grid, Memory, arguments};
use super::device_share::DeviceShare;
use super::nccl::{Nccl, Vector};
use super::replica_set::ReplicaSet;
use super::round::{RoundLaunch, Vectors};
use crate::Error;
use grawa_core::Plan;
use grawa_core::method::Share;

/// How the sums of GPUs are added.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduce {
    /// By NCCL. Each GPU can take part only once.
    Nccl,
    /// In host memory: slow, but several replica sets may share a GPU. For tests.
    Host,
}

/// The connection between GPUs.
#[derive(Debug)]
pub struct MultiGpu(Option<Nccl>);

/// A replica set in a round.
#[derive(Debug)]
pub struct Participant<'a> {
    /// The replica set.
    pub set: &'a mut ReplicaSet,
    /// Its share of the round.
    pub share: DeviceShare,
    /// Level and group of its copy of the centre; see [`ReplicaSet::load_centre`].
    pub centre: (usize, usize),
}

impl MultiGpu {
    /// Connects GPUs.
    pub fn new(all_reduce: AllReduce, devices: &[Device]) -> Result<Self, Error> {
        if all_reduce == AllReduce::Host {
            return Ok(MultiGpu(None));
        }
        let nccl = Nccl::open()?;
        nccl.connect(&devices.iter().map(|device| device.index).collect::<Vec<_>>())?;
        Ok(MultiGpu(Some(nccl)))
    }

    /// Executes a plan on all replica sets that have workers of it, in the order of their GPUs.
    #[allow(unsafe_code, reason = "NCCL reads and writes device memory")]
    pub fn mix(
        &self,
        participants: &mut [Participant<'_>],
        plan: &Plan,
        vectors: Vectors,
    ) -> Result<(), Error> {
        if plan.share == Share::Nothing {
            return Ok(());
        }
        let numbers = |participant: &Participant<'_>| participant.set.program.graph.parameters().len();
        let length = participants.first().map_or(0, numbers);
        if let Some(other) = participants.iter().map(numbers).find(|&other| other != length) {
            let what = "the vector of another GPU in the round".into();
            return Err(Error::WrongLength { what, found: other, expected: length });
        }
        let launches: Vec<(RoundLaunch, u64)> = (participants.iter_mut())
            .map(|participant| participant.prepare(plan, vectors))
            .collect::<Result<_, _>>()?;
        for (participant, (launch, sums)) in participants.iter().zip(&launches) {
            participant.sum(launch, *sums)?;
        }
        match &self.0 {
            Some(nccl) => {
                let vectors: Vec<Vector<'_>> = (participants.iter().zip(&launches))
                    .map(|(Participant { set, .. }, (_, sums))| Vector {
                        device: set.context.device.index,
                        start: *sums,
                        stream: &set.main,
                    })
                    .collect();
                // SAFETY: `prepare` allocated as many sums as there are parameters, which are as many on every GPU. Replica
                // sets wait for their GPUs before they free memory.
                unsafe { nccl.all_reduce(&vectors, length) }?;
            }
            None => all_reduce_on_host(participants)?,
        }
        for (participant, (launch, sums)) in participants.iter().zip(&launches) {
            participant.pull(launch, *sums)?;
        }
        if plan.push > 0.0 {
            for (participant, (launch, _)) in participants.iter_mut().zip(&launches) {
                participant.set.push(plan, launch)?;
            }
        }
        participants.iter().try_for_each(|participant| participant.set.synchronise())
    }
}

/// Adds the sums in the order of the participants.
fn all_reduce_on_host(participants: &[Participant<'_>]) -> Result<(), Error> {
    let sums = || participants.iter().filter_map(|Participant { set, .. }| Some((set, set.sums.as_ref()?)));
    let mut total: Vec<f32> = Vec::new();
    for (set, memory) in sums() {
        let mut sum = vec![0.0f32; set.program.graph.parameters().len()];
        memory.read(0, &mut sum)?;
        match total.is_empty() {
            true => total = sum,
            false => total.iter_mut().zip(sum).for_each(|(total, x)| *total += x),
        }
    }
    sums().try_for_each(|(_, memory)| memory.write(0, &total))
}

impl Participant<'_> {
    /// Checks the share, uploads its weights and allocates its sums. Returns the address of the sums.
    fn prepare(&mut self, plan: &Plan, vectors: Vectors) -> Result<(RoundLaunch, u64), Error> {
        let set = &mut *self.set;
        let launch = set.prepare_round(plan, &self.share, self.centre, vectors)?;
        let bytes = 4 * set.program.graph.parameters().len();
        Ok((launch, Memory::reserve(&mut set.sums, &set.context, bytes)?.start))
    }

    /// Enqueues the weighted sum of this GPU's workers.
    fn sum(&self, launch: &RoundLaunch, sums: u64) -> Result<(), Error> {
        let (set, RoundLaunch { round, vectors, .. }) = (&*self.set, *launch);
        let (pass, weights, slab) = (set.pass(None), set.weights.start, set.program.slab);
        let arguments = arguments![set.chunks.start, round, weights, vectors, sums, slab];
        pass.start_once("device_sum", Grid::row(set.program.chunks.len()), arguments)
    }

    /// Enqueues the new centre, made from the sum of all, and the pull of this GPU's workers.
    fn pull(&self, launch: &RoundLaunch, sums: u64) -> Result<(), Error> {
        let (set, RoundLaunch { round, base, vectors, centre, copies }) = (&*self.set, *launch);
        let (pass, weights, slab) = (set.pass(None), set.weights.start, set.program.slab);
        let (spans, chunks) = (set.spans.start, set.chunks.start);
        let arguments = arguments![spans, chunks, round, weights, sums, vectors, centre, base, copies, slab];
        pass.start_once("device_pull", Grid::row(set.program.chunks.len()), arguments)
    }
}
