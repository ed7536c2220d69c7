//! Rounds whose workers lie on several GPUs: each GPU sums its own, the sums are added up, each GPU pulls its own.
//!
//! A centre is kept once on every GPU that has workers of its group, and is the same on all. Sums are taken by GPU and
//! then over the GPUs, so rounding differs from a round on one GPU, where they are taken worker by worker.

use super::device::{Argument, Device, Grid, Memory, at};
use super::device_share::DeviceShare;
use super::limits;
use super::nccl::{Nccl, Vector};
use super::replica_set::ReplicaSet;
use super::round::{Vectors, moves};
use crate::Error;
use grawa_core::Plan;
use grawa_core::method::{Share, Toward};

/// How the sums of GPUs are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum AllReduce {
    /// By NCCL, from GPU to GPU. A GPU can be in it only once.
    Nccl,
    /// In this machine's memory: slow, but for replica sets that share a GPU as well. For tests.
    Host,
}

/// What connects GPUs.
#[derive(Debug)]
pub struct MultiGpu(Option<Nccl>);

/// A replica set in a round: its part, and the group's level and number as that GPU counts.
#[derive(Debug)]
pub struct Participant<'a> {
    /// The replica set.
    pub set: &'a mut ReplicaSet,
    /// Its part in the round.
    pub share: DeviceShare,
    /// Which of its centres the group's is; see [`ReplicaSet::load_centre`].
    pub centre: (usize, usize),
}

/// What a part of a round does; see `part.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug)]
struct Work {
    members: i32,
    per_span: i32,
    moving: i32,
    toward_old: i32,
    rate: f32,
    pull: f32,
    absent: u64,
    replaced: u64,
}

/// Where a part of a round is done: what and by whom, and addresses on the GPU.
struct RoundLaunch {
    work: Work,
    base: u64,
    vectors: u64,
    centre: u64,
    sums: u64,
    copies: i32,
}

impl MultiGpu {
    /// Connects GPUs.
    pub fn new(sum: AllReduce, devices: &[Device]) -> Result<Self, Error> {
        if sum == AllReduce::Host {
            return Ok(MultiGpu(None));
        }
        let nccl = Nccl::open()?;
        nccl.connect(&devices.iter().map(|device| device.index).collect::<Vec<_>>())?;
        Ok(MultiGpu(Some(nccl)))
    }

    /// Carries out a plan on all replica sets that have workers of it, in the order of their GPUs.
    #[allow(unsafe_code, reason = "NCCL adds up what lies on the GPUs")]
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
        let launches: Vec<RoundLaunch> = participants
            .iter_mut()
            .map(|participant| participant.launch(plan, vectors))
            .collect::<Result<_, _>>()?;
        for (participant, launch) in participants.iter().zip(&launches) {
            participant.sum(launch)?;
        }
        match &self.0 {
            Some(nccl) => {
                let vectors: Vec<Vector<'_>> = (participants.iter().zip(&launches))
                    .map(|(participant, launch)| Vector {
                        device: participant.set.context.device.index,
                        start: launch.sums,
                        stream: &participant.set.main,
                    })
                    .collect();
                // SAFETY: `site` made room for as many sums as there are parameters, which are as many on every GPU; replica sets
                // wait for their GPUs before they give memory back.
                unsafe { nccl.all_reduce(&vectors, length) }?;
            }
            None => all_reduce_on_host(participants)?,
        }
        for (participant, launch) in participants.iter().zip(&launches) {
            participant.pull(launch)?;
        }
        participants.iter().try_for_each(|participant| participant.set.synchronise())
    }
}

/// Adds the sums up in the order of the seats.
fn all_reduce_on_host(participants: &[Participant<'_>]) -> Result<(), Error> {
    let sums =
        || participants.iter().filter_map(|participant| Some((participant, participant.set.sums.as_ref()?)));
    let mut total: Vec<f32> = Vec::new();
    for (participant, memory) in sums() {
        let mut sum = vec![0.0f32; participant.set.program.graph.parameters().len()];
        memory.read(0, &mut sum)?;
        match total.is_empty() {
            true => total = sum,
            false => total.iter_mut().zip(sum).for_each(|(total, x)| *total += x),
        }
    }
    sums().try_for_each(|(_, memory)| memory.write(0, &total))
}

impl Participant<'_> {
    /// Checks the part and takes its weights to the GPU; nothing else is changed yet.
    fn launch(&mut self, plan: &Plan, vectors: Vectors) -> Result<RoundLaunch, Error> {
        let (set, share) = (&mut *self.set, &self.share);
        limits::members(share.first, share.members, set.workers)?;
        let per_span = plan.weights.is_per_span();
        let (found, expected) =
            (share.rows.len(), (share.members + 1) * if per_span { set.program.spans.len() } else { 1 });
        if found != expected {
            return Err(Error::WrongLength { what: "the round's table of weights".into(), found, expected });
        }
        let bytes = 4 * set.program.graph.parameters().len();
        let (level, group) = self.centre;
        let Some(centre) = set.centre_address(level, group)? else {
            let why = "this level has no centre yet".into();
            return Err(Error::Device { action: "hold a round".into(), why });
        };
        if set.sums.is_none() {
            set.sums = Some(Memory::new(&set.context, bytes)?);
        }
        set.weights.write(0, &share.rows)?;
        let (moving, rate) = moves(plan);
        let offset = match vectors {
            Vectors::Parameters => set.program.offsets.parameters,
            Vectors::Gradients => set.program.offsets.gradient,
        };
        let base = set.memory.start + set.program.slab * share.first as u64;
        Ok(RoundLaunch {
            work: Work {
                members: share.members as i32,
                per_span: per_span.into(),
                moving,
                toward_old: i32::from(plan.toward == Toward::Old),
                rate,
                pull: plan.pull,
                absent: share.absent,
                replaced: share.replaced,
            },
            base,
            vectors: base + offset,
            centre,
            sums: set.sums.as_ref().map_or(0, |memory| memory.start),
            copies: i32::from(vectors == Vectors::Parameters),
        })
    }

    /// Starts the weighted sum of this GPU's workers.
    fn sum(&self, launch: &RoundLaunch) -> Result<(), Error> {
        let set = &*self.set;
        let pass = set.pass(None);
        let mut arguments = [
            at(&pass.chunks),
            at(&launch.work),
            at(&set.weights.start),
            at(&launch.vectors),
            at(&launch.sums),
            at(&set.program.slab),
        ];
        self.start("device_sum", &mut arguments)
    }

    /// Starts to make the centre from the sum of all, and to pull this GPU's workers.
    fn pull(&self, launch: &RoundLaunch) -> Result<(), Error> {
        let set = &*self.set;
        let pass = set.pass(None);
        let mut arguments = [
            at(&pass.spans),
            at(&pass.chunks),
            at(&launch.work),
            at(&set.weights.start),
            at(&launch.sums),
            at(&launch.vectors),
            at(&launch.centre),
            at(&launch.base),
            at(&launch.copies),
            at(&set.program.slab),
        ];
        self.start("device_pull", &mut arguments)
    }

    fn start(&self, name: &'static str, arguments: &mut [Argument<'_>]) -> Result<(), Error> {
        let set = &*self.set;
        set.pass(None).start_once(name, Grid::row(set.program.chunks.len()), arguments)
    }
}
