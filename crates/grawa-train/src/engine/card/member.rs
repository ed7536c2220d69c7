//! A group of workers on one card or on several: words go between threads, vectors are mixed where they lie.

use super::{OnCard, Stock};
use crate::engine::net::told;
use grawa_comm::threads;
use grawa_comm::{Collective, Error, Gathered, Lost, Outcome, digest};
use grawa_core::{Layout, Plan};
use grawa_nn::cuda::{Link, Part, Seat, Vectors};
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A card where workers of a group live.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) stock: Arc<Stock>,
    /// Who they are.
    pub(super) workers: Range<u32>,
    /// The group's level and number, as that card counts: where its centre lies there.
    pub(super) place: (usize, usize),
}

/// One worker's end of a group.
#[derive(Debug)]
pub(crate) struct CardMember {
    talk: threads::Member,
    homes: Arc<[Home]>,
    /// Which of them is this worker's.
    own: usize,
    /// What connects them, if the group lies on several cards.
    link: Option<Arc<Link>>,
    centre: OnCard,
}

/// Connects the workers of a group, who live here.
pub(super) fn group(homes: Vec<Home>, link: Option<&Arc<Link>>, deadline: Duration) -> Vec<CardMember> {
    let homes: Arc<[Home]> = homes.into();
    let workers = homes.iter().flat_map(|home| home.workers.clone());
    (threads::group(workers, Vec::new(), deadline).into_iter())
        .map(|talk| {
            let own = homes.iter().position(|home| home.workers.contains(&talk.worker())).unwrap_or(0);
            let (level, group) = homes[own].place;
            let centre = OnCard::Centre { level, group };
            CardMember { talk, homes: Arc::clone(&homes), own, link: link.cloned(), centre }
        })
        .collect()
}

/// What a card says, as the group knows it.
fn failed(why: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
    grawa_core::Error::replica(why).into()
}

impl Home {
    /// Which of the card's workers the first one is.
    fn first(&self) -> usize {
        self.stock.seat(self.workers.start)
    }
}

/// Carries out a plan on the cards of a group.
fn mix(homes: &[Home], link: Option<&Link>, plan: &Plan, vectors: Vectors) -> Result<(), grawa_nn::Error> {
    let Some(link) = link else {
        let home = &homes[0];
        return home.stock.deck.alone(|fleet| fleet.mix(plan, home.place, home.first(), vectors));
    };
    // A card whose workers were all lost is left out. The others are taken in their order, so that nobody waits in a circle.
    let homes: Vec<&Home> =
        homes.iter().filter(|home| plan.workers.iter().any(|who| home.workers.contains(who))).collect();
    let mut fleets: Vec<_> = homes.iter().map(|home| home.stock.deck.fleet()).collect();
    let mut seats: Vec<Seat<'_>> = (fleets.iter_mut().zip(&homes))
        .map(|(fleet, home)| Seat {
            fleet,
            part: Part::new(plan, home.workers.clone(), home.first()),
            place: home.place,
        })
        .collect();
    link.mix(&mut seats, plan, vectors)
}

impl CardMember {
    /// What its card's workers share.
    #[cfg(test)]
    pub(super) fn stock(&self) -> &Arc<Stock> {
        &self.homes[self.own].stock
    }

    /// Has the first of the group do something on the cards, while the others wait to hear how it went: if it failed, nobody
    /// knows how far it came, and none can go on. Returns who was lost meanwhile.
    fn by_the_first(
        &mut self,
        act: impl FnOnce() -> Result<(), grawa_nn::Error>,
    ) -> Result<Vec<Lost>, Error> {
        let first = self.talk.members().first().copied();
        let own = if first == Some(self.talk.worker()) { act().err() } else { None };
        let why = own.as_ref().map(ToString::to_string).unwrap_or_default();
        let heard = self.talk.gather(why.as_bytes())?;
        if let Some(error) = own {
            return Err(told(error.into()).into());
        }
        match heard.messages.iter().find(|(worker, _)| Some(*worker) == first) {
            Some((_, why)) if why.is_empty() => Ok(heard.outcome.lost),
            Some((_, why)) => Err(failed(String::from_utf8_lossy(why).into_owned())),
            None => Err(failed("the worker that mixed for all was lost on the way")),
        }
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
                return Err(failed("a centre takes no part in a round"));
            }
        };
        if self.link.is_none() && plan.workers.len() != self.homes[0].workers.len() {
            return Err(failed("a worker is gone, and a card's workers go together"));
        }
        let (homes, link) = (Arc::clone(&self.homes), self.link.clone());
        outcome.lost.extend(self.by_the_first(|| mix(&homes, link.as_deref(), plan, vectors))?);
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
        let (homes, others) = (Arc::clone(&self.homes), outcome.members.clone());
        let home =
            |worker: u32| homes.iter().find(|home| home.workers.contains(&worker)).unwrap_or(&homes[0]);
        let lost = self.by_the_first(|| {
            if !is_parameters {
                let (action, why) = ("hand on a vector".into(), "only parameters are handed on".into());
                return Err(grawa_nn::Error::Device { action, why });
            }
            let stock = &home(leader).stock;
            let from = stock.deck.alone(|fleet| fleet.parameters(stock.seat(leader)))?;
            for worker in others.into_iter().filter(|&worker| worker != leader) {
                let stock = &home(worker).stock;
                stock.deck.alone(|fleet| fleet.load_parameters(stock.seat(worker), &from))?;
            }
            Ok(())
        })?;
        outcome.lost.extend(lost);
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
        let Home { stock, place: (level, group), .. } = &self.homes[self.own];
        let copied =
            stock.deck.alone(|fleet| fleet.centre(*level, *group)).map_err(|error| told(error.into()))?;
        Ok(copied.unwrap_or_default())
    }

    fn alive(&self) {
        self.talk.alive();
    }

    fn forget(&self, lost: &Lost) {
        self.talk.forget(lost);
    }
}
