//! A group of workers on one or several GPUs: messages go between threads, vectors are mixed in device memory.

use super::{DeviceShared, DeviceVector};
use crate::engine::cpu_replica::replica_error;
use grawa_comm::threads;
use grawa_comm::{Collective, Error, Gathered, Lost, Outcome};
use grawa_core::{Layout, Plan};
use grawa_nn::cuda::{DeviceShare, MultiGpu, Participant, Vectors};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// The members of a group on one GPU.
#[derive(Debug)]
pub(super) struct DeviceMembers {
    pub(super) shared: Arc<DeviceShared>,
    /// Their numbers.
    pub(super) workers: Range<u32>,
    /// Level and group of the group's centre on that GPU.
    pub(super) centre: (usize, usize),
}

/// One worker's member of a group.
#[derive(Debug)]
pub(crate) struct CudaMember {
    threads: threads::Member,
    devices: Arc<[DeviceMembers]>,
    /// The index of this worker's GPU.
    own: usize,
    /// The connection between GPUs, if the group uses several.
    multi_gpu: Option<Arc<MultiGpu>>,
    centre: DeviceVector,
    version: u64,
}

/// Connects the workers of a group.
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

/// An error of a GPU, as an error of the group.
fn failed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    grawa_core::Error::replica(why).into()
}

impl DeviceMembers {
    /// The index of the first member on the GPU.
    fn first(&self) -> usize {
        self.shared.index_of(self.workers.start)
    }
}

/// Executes a plan on the GPUs of a group.
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
    // A GPU without remaining workers is skipped. The others are locked in order, which avoids deadlock.
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
    /// What the workers of its GPU share.
    #[cfg(test)]
    pub(super) fn shared(&self) -> &Arc<DeviceShared> {
        &self.devices[self.own].shared
    }

    /// Executes something on the GPUs in the first member, while the others wait for its result. After an error the
    /// state is unknown and no worker can continue. Returns the workers that were lost meanwhile.
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
            None => Err(failed("the worker that mixed for all was lost")),
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
                return Err(failed("a centre cannot be mixed"));
            }
        };
        if self.multi_gpu.is_none() && plan.workers.len() != self.devices[0].workers.len() {
            return Err(failed("a worker ended, and the workers of a GPU cannot continue without it"));
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
                let (action, why) = ("broadcast a vector".into(), "only parameters can be broadcast".into());
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
