//! A worker on a card whose group lies elsewhere: in other processes, on other machines.
//!
//! Vectors go by way of the host: a copy is mixed there as that of any worker on a CPU, by whatever connects the group, and what came
//! out goes back to the card with the new centre, which the next steps are pulled toward.

use super::{OnCard, Stock};
use crate::engine::net::told;
use grawa_comm::{Collective, Error, Gathered, Lost, Outcome};
use grawa_core::{Layout, Plan};
use std::sync::Arc;

/// One worker's end of such a group.
#[derive(Debug)]
pub(crate) struct Staged<C> {
    group: C,
    stock: Arc<Stock>,
    /// Where the centre lies on the card.
    place: (usize, usize),
    centre: OnCard,
    /// The version of the one that was brought there last.
    brought: u64,
}

/// What a card says, as the group knows it.
fn failed(error: grawa_nn::Error) -> Error {
    told(error.into()).into()
}

impl<C: Collective<Buffer = [f32]>> Staged<C> {
    /// The end of a group for the one worker of a card.
    pub(super) fn new(group: C, stock: Arc<Stock>, place: (usize, usize)) -> Result<Self, Error> {
        let (level, number) = place;
        let centre = OnCard::Centre { level, group: number };
        let mut staged = Staged { group, stock, place, centre, brought: 0 };
        staged.bring_centre()?;
        Ok(staged)
    }

    /// Any meeting may be the one at which the centre is another: one that was on its way has come.
    fn look_at_centre(&mut self) -> Result<(), Error> {
        if self.group.centre_version() == self.brought { Ok(()) } else { self.bring_centre() }
    }

    fn bring_centre(&mut self) -> Result<(), Error> {
        let (centre, (level, number)) = (self.group.centre(), self.place);
        self.brought = self.group.centre_version();
        // A group whose model nobody looks at has none.
        if centre.is_empty() {
            return Ok(());
        }
        self.stock.deck.alone(|fleet| fleet.load_centre(level, number, centre)).map_err(failed)
    }

    /// Has the group do something with a copy of a vector, which goes back to where it came from.
    fn by_way_of_the_host(
        &mut self,
        of: OnCard,
        act: impl FnOnce(&mut C, &mut [f32]) -> Result<Outcome, Error>,
    ) -> Result<Outcome, Error> {
        // There is one worker on the card.
        let fetched = self.stock.deck.alone(|fleet| match of {
            OnCard::Parameters => fleet.parameters(0),
            OnCard::Gradients => fleet.gradient_of(0),
            OnCard::Centre { level, group } => Ok(fleet.centre(level, group)?.unwrap_or_default()),
        });
        let mut vector = fetched.map_err(failed)?;
        let outcome = act(&mut self.group, &mut vector)?;
        let brought = self.stock.deck.alone(|fleet| match of {
            OnCard::Parameters => fleet.load_parameters(0, &vector),
            OnCard::Gradients => fleet.load_gradient(0, &vector),
            OnCard::Centre { level, group } => fleet.load_centre(level, group, &vector),
        });
        brought.map_err(failed)?;
        Ok(outcome)
    }
}

impl<C: Collective<Buffer = [f32]>> Collective for Staged<C> {
    type Buffer = OnCard;

    fn worker(&self) -> u32 {
        self.group.worker()
    }

    fn members(&self) -> &[u32] {
        self.group.members()
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        let gathered = self.group.gather(message);
        self.look_at_centre()?;
        gathered
    }

    fn hand_in(&mut self, message: Vec<u8>) -> Result<Gathered, Error> {
        let gathered = self.group.hand_in(message);
        self.look_at_centre()?;
        gathered
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &mut OnCard) -> Result<Outcome, Error> {
        let outcome = self.by_way_of_the_host(*mine, |group, vector| group.mix(plan, layout, vector))?;
        self.bring_centre()?;
        Ok(outcome)
    }

    fn broadcast(&mut self, leader: u32, mine: &mut OnCard) -> Result<Outcome, Error> {
        let outcome = self.by_way_of_the_host(*mine, |group, vector| group.broadcast(leader, vector))?;
        self.look_at_centre()?;
        Ok(outcome)
    }

    fn barrier(&mut self) -> Result<Outcome, Error> {
        let outcome = self.group.barrier();
        self.look_at_centre()?;
        outcome
    }

    fn centre(&self) -> &OnCard {
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

    fn is_called(&self) -> bool {
        self.group.is_called()
    }

    fn meeting(&self) -> u64 {
        self.group.meeting()
    }

    fn settle(&mut self, memory: &[u8]) -> Result<(), Error> {
        self.group.settle(memory)
    }

    fn rejoin(&mut self) -> Result<Vec<u8>, Error> {
        let memory = self.group.rejoin()?;
        self.bring_centre()?;
        Ok(memory)
    }

    fn forget(&self, lost: &Lost) {
        self.group.forget(lost);
    }
}
