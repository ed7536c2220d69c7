//! A worker on a GPU whose group is in other processes or on other machines.
//!
//! Vectors go through the host: the group mixes a copy there, as for a worker on a CPU. The result returns to the GPU
//! together with the new centre, toward which the next steps are pulled.

use super::{DeviceShared, DeviceVector};
use crate::engine::cpu_replica::replica_error;
use grawa_comm::{Collective, Error, Gathered, Lost, Outcome};
use grawa_core::{Layout, Plan};
use std::sync::Arc;

/// One worker's member of such a group.
#[derive(Debug)]
pub(crate) struct Staged<C> {
    group: C,
    shared: Arc<DeviceShared>,
    /// Level and group of the centre on the GPU.
    centre_place: (usize, usize),
    centre: DeviceVector,
    /// The version of the centre on the GPU.
    loaded_version: u64,
}

/// An error of a GPU, as an error of the group.
fn failed(error: grawa_nn::Error) -> Error {
    replica_error(error.into()).into()
}

impl<C: Collective<Buffer = [f32]>> Staged<C> {
    /// The member of a group for the only worker of a GPU.
    pub(super) fn new(
        group: C,
        shared: Arc<DeviceShared>,
        centre_place: (usize, usize),
    ) -> Result<Self, Error> {
        let (level, number) = centre_place;
        let centre = DeviceVector::Centre { level, group: number };
        let mut staged = Staged { group, shared, centre_place, centre, loaded_version: 0 };
        staged.load_centre()?;
        Ok(staged)
    }

    /// Any operation may complete an overlapped round and change the centre.
    fn refresh_centre(&mut self) -> Result<(), Error> {
        if self.group.centre_version() == self.loaded_version { Ok(()) } else { self.load_centre() }
    }

    fn load_centre(&mut self) -> Result<(), Error> {
        let (centre, (level, number)) = (self.group.centre(), self.centre_place);
        self.loaded_version = self.group.centre_version();
        // A group whose model is not evaluated has no centre.
        if centre.is_empty() {
            return Ok(());
        }
        self.shared.lockstep.alone(|set| set.load_centre(level, number, centre)).map_err(failed)
    }

    /// Lets the group act on a copy of a vector, and writes the copy back.
    fn through_host(
        &mut self,
        of: DeviceVector,
        act: impl FnOnce(&mut C, &mut [f32]) -> Result<Outcome, Error>,
    ) -> Result<Outcome, Error> {
        // There is one worker on the GPU.
        let fetched = self.shared.lockstep.alone(|set| match of {
            DeviceVector::Parameters => set.parameters(0),
            DeviceVector::Gradients => set.gradient_of(0),
            DeviceVector::Centre { level, group } => Ok(set.centre(level, group)?.unwrap_or_default()),
        });
        let mut vector = fetched.map_err(failed)?;
        let outcome = act(&mut self.group, &mut vector)?;
        let loaded_version = self.shared.lockstep.alone(|set| match of {
            DeviceVector::Parameters => set.load_parameters(0, &vector),
            DeviceVector::Gradients => set.load_gradient(0, &vector),
            DeviceVector::Centre { level, group } => set.load_centre(level, group, &vector),
        });
        loaded_version.map_err(failed)?;
        Ok(outcome)
    }
}

impl<C: Collective<Buffer = [f32]>> Collective for Staged<C> {
    type Buffer = DeviceVector;

    fn worker(&self) -> u32 {
        self.group.worker()
    }

    fn members(&self) -> &[u32] {
        self.group.members()
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        let gathered = self.group.gather(message);
        self.refresh_centre()?;
        gathered
    }

    fn hand_in(&mut self, message: Vec<u8>) -> Result<Gathered, Error> {
        let gathered = self.group.hand_in(message);
        self.refresh_centre()?;
        gathered
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &mut DeviceVector) -> Result<Outcome, Error> {
        let outcome = self.through_host(*mine, |group, vector| group.mix(plan, layout, vector))?;
        self.load_centre()?;
        Ok(outcome)
    }

    fn broadcast(&mut self, leader: u32, mine: &mut DeviceVector) -> Result<Outcome, Error> {
        let outcome = self.through_host(*mine, |group, vector| group.broadcast(leader, vector))?;
        self.refresh_centre()?;
        Ok(outcome)
    }

    fn barrier(&mut self) -> Result<Outcome, Error> {
        let outcome = self.group.barrier();
        self.refresh_centre()?;
        outcome
    }

    fn centre(&self) -> &DeviceVector {
        &self.centre
    }

    fn centre_version(&self) -> u64 {
        self.group.centre_version()
    }

    fn copy_centre(&self) -> Result<Vec<f32>, Error> {
        self.group.copy_centre()
    }

    fn alive(&self) {
        self.group.alive();
    }

    fn is_round_due(&self) -> bool {
        self.group.is_round_due()
    }

    fn next_operation(&self) -> u64 {
        self.group.next_operation()
    }

    fn publish(&mut self, memory: &[u8]) -> Result<(), Error> {
        self.group.publish(memory)
    }

    fn rejoin(&mut self) -> Result<Vec<u8>, Error> {
        let memory = self.group.rejoin()?;
        self.load_centre()?;
        Ok(memory)
    }

    fn forget(&self, lost: &Lost) {
        self.group.forget(lost);
    }
}
