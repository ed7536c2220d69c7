//! A group of workers on one card: words go between threads, vectors are mixed where they lie.

use super::{OnCard, Stock};
use grawa_comm::threads;
use grawa_comm::{Collective, Error, Gathered, Lost, Outcome, digest};
use grawa_core::{Layout, Plan};
use grawa_nn::cuda::Vectors;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// One worker's end of a group on a card.
#[derive(Debug)]
pub(crate) struct CardMember {
    talk: threads::Member,
    stock: Arc<Stock>,
    first: usize,
    place: (usize, usize),
    centre: OnCard,
}

/// Connects the workers of a group: the `group`-th of the card's `level`.
pub(super) fn group(
    stock: &Arc<Stock>,
    workers: Range<u32>,
    (level, group): (usize, usize),
    deadline: Duration,
) -> Vec<CardMember> {
    let first = workers.start as usize;
    (threads::group(workers, Vec::new(), deadline).into_iter())
        .map(|talk| CardMember {
            talk,
            stock: Arc::clone(stock),
            first,
            place: (level, group),
            centre: OnCard::Centre { level, group },
        })
        .collect()
}

/// What the card says, as the group knows it.
fn failed(error: &grawa_nn::Error) -> Error {
    grawa_core::Error::Replica { why: error.to_string() }.into()
}

impl CardMember {
    /// Has the first of the group do something on the card, while the others wait for it.
    fn by_the_first(
        &mut self,
        act: impl FnOnce(&mut grawa_nn::cuda::Fleet) -> Result<(), grawa_nn::Error>,
    ) -> Result<(), Error> {
        let done = match self.talk.members().first() == Some(&self.talk.worker()) {
            true => self.stock.deck.alone(act).map_err(|error| failed(&error)),
            false => Ok(()),
        };
        self.talk.barrier()?;
        done
    }
}

impl Collective for CardMember {
    type Buffer = OnCard;

    fn worker(&self) -> u32 {
        self.talk.worker()
    }

    fn members(&self) -> &[u32] {
        self.talk.members()
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        self.talk.gather(message)
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &mut OnCard) -> Result<Outcome, Error> {
        let Gathered { messages, mut outcome } = self.talk.gather(&digest(plan).to_le_bytes())?;
        let start = Instant::now();
        if let Some((other, _)) = messages.iter().find(|(_, message)| *message != messages[0].1) {
            return Err(Error::PlansDiffer { first: messages[0].0, other: *other });
        }
        if plan.workers != outcome.members {
            return Err(Error::Shrunk { lost: outcome.lost });
        }
        let vectors = match mine {
            OnCard::Parameters => Vectors::Parameters,
            OnCard::Gradients => Vectors::Gradients,
            OnCard::Centre { .. } => {
                return Err(
                    grawa_core::Error::Replica { why: "a centre takes no part in a round".into() }.into()
                );
            }
        };
        let (place, first) = (self.place, self.first);
        self.by_the_first(|fleet| fleet.mix(plan, place, first, vectors))?;
        outcome.bytes = 4 * layout.len() as u64;
        outcome.work = start.elapsed();
        Ok(outcome)
    }

    fn broadcast(&mut self, leader: u32, mine: &mut OnCard) -> Result<Outcome, Error> {
        let Gathered { mut outcome, .. } = self.talk.gather(&leader.to_le_bytes())?;
        let start = Instant::now();
        if !outcome.members.contains(&leader) {
            return Err(Error::NoSuchLeader { leader, members: outcome.members });
        }
        let is_parameters = *mine == OnCard::Parameters;
        let others: Vec<usize> = outcome.members.iter().map(|&worker| worker as usize).collect();
        self.by_the_first(|fleet| match is_parameters {
            true => {
                let from = fleet.parameters(leader as usize)?;
                for worker in others.into_iter().filter(|&worker| worker != leader as usize) {
                    let statistics = fleet.statistics(worker)?;
                    fleet.load(worker, &from, &statistics)?;
                }
                Ok(())
            }
            false => Err(grawa_nn::Error::Device {
                action: "hand on a vector".into(),
                why: "only parameters are handed on".into(),
            }),
        })?;
        outcome.work = start.elapsed();
        Ok(outcome)
    }

    fn barrier(&mut self) -> Result<Outcome, Error> {
        self.talk.barrier()
    }

    fn centre(&self) -> &OnCard {
        &self.centre
    }

    fn copy_centre(&self) -> Result<Vec<f32>, Error> {
        let (level, group) = self.place;
        let copied =
            self.stock.deck.alone(|fleet| fleet.centre(level, group)).map_err(|error| failed(&error))?;
        Ok(copied.unwrap_or_default())
    }

    fn alive(&self) {
        self.talk.alive();
    }

    fn forget(&self, lost: &Lost) {
        self.talk.forget(lost);
    }
}
