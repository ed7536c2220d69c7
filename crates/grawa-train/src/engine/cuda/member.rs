//! A group of workers on one GPU or on several: words go between threads, vectors are mixed where they lie.

use super::{DeviceShared, DeviceVector};
use crate::engine::cpu_replica::replica_error;
use grawa_comm::threads;
use grawa_comm::{Collective, Error, Gathered, Lost, Outcome};
use grawa_core::{Layout, Plan};
use grawa_nn::cuda::{DeviceShare, MultiGpu, Participant, Vectors};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A GPU where workers of a group live.
#[derive(Debug)]
pub(super) struct DeviceMembers {
    pub(super) shared: Arc<DeviceShared>,
    /// Who they are.
    pub(super) workers: Range<u32>,
    /// The group's level and number, as that GPU counts: where its centre lies there.
    pub(super) centre: (usize, usize),
}

/// One worker's end of a group.
#[derive(Debug)]
pub(crate) struct CudaMember {
    threads: threads::Member,
    devices: Arc<[DeviceMembers]>,
    /// Which of them is this worker's.
    own: usize,
    /// What connects them, if the group lies on several GPUs.
    multi_gpu: Option<Arc<MultiGpu>>,
    centre: DeviceVector,
    version: u64,
}

/// Connects the workers of a group, who live here.
pub(super) fn group(
    devices: Vec<DeviceMembers>,
    multi_gpu: Option<&Arc<MultiGpu>>,
    deadline: Duration,
) -> Vec<CudaMember> {
    let devices: Arc<[DeviceMembers]> = devices.into();
    let workers = devices.iter().flat_map(|device| device.workers.clone());
    (threads::group(workers, Vec::new(), deadline).into_iter())
        .map(|threads| {
            let own =
                devices.iter().position(|device| device.workers.contains(&threads.worker())).unwrap_or(0);
            let (level, group) = devices[own].centre;
            let centre = DeviceVector::Centre { level, group };
            CudaMember {
                threads,
                devices: Arc::clone(&devices),
                own,
                multi_gpu: multi_gpu.cloned(),
                centre,
                version: 0,
            }
        })
        .collect()
}

/// What a GPU says, as the group knows it.
fn failed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    grawa_core::Error::replica(why).into()
}

impl DeviceMembers {
    /// Which of the GPU's workers the first one is.
    fn first(&self) -> usize {
        self.shared.index_of(self.workers.start)
    }
}

/// Carries out a plan on the GPUs of a group.
fn mix(
    devices: &[DeviceMembers],
    multi_gpu: Option<&MultiGpu>,
    plan: &Plan,
    vectors: Vectors,
) -> Result<(), grawa_nn::Error> {
    let Some(multi_gpu) = multi_gpu else {
        let device = &devices[0];
        return device.shared.lockstep.alone(|set| set.mix(plan, device.centre, device.first(), vectors));
    };
    // A GPU whose workers were all lost is left out. The others are taken in their order, so that nobody waits in a circle.
    let devices: Vec<&DeviceMembers> =
        devices.iter().filter(|device| plan.workers.iter().any(|who| device.workers.contains(who))).collect();
    let mut sets: Vec<_> = devices.iter().map(|device| device.shared.lockstep.set()).collect();
    let mut participants: Vec<Participant<'_>> = (sets.iter_mut().zip(&devices))
        .map(|(set, device)| Participant {
            set,
            share: DeviceShare::new(plan, device.workers.clone(), device.first()),
            centre: device.centre,
        })
        .collect();
    multi_gpu.mix(&mut participants, plan, vectors)
}

impl CudaMember {
    /// What its GPU's workers share.
    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<DeviceShared> {
        &self.devices[self.own].shared
    }

    /// Has the first of the group do something on the GPUs, while the others wait to hear how it went: if it failed, nobody
    /// knows how far it came, and none can go on. Returns who was lost meanwhile.
    fn on_first_member(
        &mut self,
        act: impl FnOnce() -> Result<(), grawa_nn::Error>,
    ) -> Result<Vec<Lost>, Error> {
        let first = self.threads.members().first().copied();
        let own = if first == Some(self.threads.worker()) { act().err() } else { None };
        let why = own.as_ref().map(ToString::to_string).unwrap_or_default();
        let gathered = self.threads.gather(why.as_bytes())?;
        if let Some(error) = own {
            return Err(replica_error(error.into()).into());
        }
        match gathered.messages.iter().find(|(worker, _)| Some(*worker) == first) {
            Some((_, why)) if why.is_empty() => Ok(gathered.outcome.lost),
            Some((_, why)) => Err(failed(String::from_utf8_lossy(why).into_owned())),
            None => Err(failed("the worker that mixed for all was lost on the way")),
        }
    }
}

impl Collective for CudaMember {
    type Buffer = DeviceVector;

    fn worker(&self) -> u32 {
        self.threads.worker()
    }

    fn members(&self) -> &[u32] {
        self.threads.members()
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        self.threads.gather(message)
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &mut DeviceVector) -> Result<Outcome, Error> {
        let Gathered { messages, mut outcome } = self.threads.gather(&plan.digest().to_le_bytes())?;
        let start = Instant::now();
        if let Some((other, _)) = messages.iter().find(|(_, message)| *message != messages[0].1) {
            return Err(Error::PlansDiffer { first: messages[0].0, other: *other });
        }
        if plan.workers != outcome.members {
            return Err(Error::Shrunk { lost: outcome.lost });
        }
        let vectors = match mine {
            DeviceVector::Parameters => Vectors::Parameters,
            DeviceVector::Gradients => Vectors::Gradients,
            DeviceVector::Centre { .. } => {
                return Err(failed("a centre takes no part in a round"));
            }
        };
        if self.multi_gpu.is_none() && plan.workers.len() != self.devices[0].workers.len() {
            return Err(failed("a worker is gone, and a GPU's workers go together"));
        }
        self.version += 1;
        let (devices, multi_gpu) = (Arc::clone(&self.devices), self.multi_gpu.clone());
        outcome.lost.extend(self.on_first_member(|| mix(&devices, multi_gpu.as_deref(), plan, vectors))?);
        outcome.bytes = 4 * layout.len() as u64;
        outcome.work = start.elapsed();
        Ok(outcome)
    }

    fn broadcast(&mut self, leader: u32, mine: &mut DeviceVector) -> Result<Outcome, Error> {
        let Gathered { mut outcome, .. } = self.threads.gather(&leader.to_le_bytes())?;
        let start = Instant::now();
        if !outcome.members.contains(&leader) {
            return Err(Error::NoSuchLeader { leader, members: outcome.members });
        }
        let is_parameters = *mine == DeviceVector::Parameters;
        let (devices, others) = (Arc::clone(&self.devices), outcome.members.clone());
        let device = |worker: u32| {
            devices.iter().find(|device| device.workers.contains(&worker)).unwrap_or(&devices[0])
        };
        let lost = self.on_first_member(|| {
            if !is_parameters {
                let (action, why) = ("hand on a vector".into(), "only parameters are handed on".into());
                return Err(grawa_nn::Error::Device { action, why });
            }
            let shared = &device(leader).shared;
            let from = shared.lockstep.alone(|set| set.parameters(shared.index_of(leader)))?;
            for worker in others.into_iter().filter(|&worker| worker != leader) {
                let shared = &device(worker).shared;
                shared.lockstep.alone(|set| set.load_parameters(shared.index_of(worker), &from))?;
            }
            Ok(())
        })?;
        outcome.lost.extend(lost);
        outcome.work = start.elapsed();
        Ok(outcome)
    }

    fn barrier(&mut self) -> Result<Outcome, Error> {
        self.threads.barrier()
    }

    fn centre(&self) -> &DeviceVector {
        &self.centre
    }

    fn centre_version(&self) -> u64 {
        self.version
    }

    fn copy_centre(&self) -> Result<Vec<f32>, Error> {
        let DeviceMembers { shared, centre: (level, group), .. } = &self.devices[self.own];
        let copied = shared
            .lockstep
            .alone(|set| set.centre(*level, *group))
            .map_err(|error| replica_error(error.into()))?;
        Ok(copied.unwrap_or_default())
    }

    fn alive(&self) {
        self.threads.alive();
    }

    fn forget(&self, lost: &Lost) {
        self.threads.forget(lost);
    }
}
