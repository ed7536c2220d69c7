//! Rounds whose workers lie on several cards: each card sums its own, the sums are added up, each card pulls its own.
//!
//! A centre is kept once on every card that has workers of its group, and is the same on all. Sums are taken by card and
//! then over the cards, so rounding differs from a round on one card, where they are taken worker by worker.

use super::card::{Argument, Card, Grid, Memory, at};
use super::fleet::Fleet;
use super::limits;
use super::nccl::{Nccl, Vector};
use super::part::Part;
use super::round::{Vectors, moves};
use crate::Error;
use grawa_core::Plan;
use grawa_core::method::{Share, Toward};

/// How the sums of cards are added up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sum {
    /// By NCCL, from card to card. A card can be in it only once.
    Nccl,
    /// In this machine's memory: slow, but for fleets that share a card as well. For tests.
    Host,
}

/// What connects cards.
#[derive(Debug)]
pub struct Link(Option<Nccl>);

/// A fleet in a round: its part, and the group's level and number as that card counts.
#[derive(Debug)]
pub struct Seat<'a> {
    /// The fleet.
    pub fleet: &'a mut Fleet,
    /// Its part in the round.
    pub part: Part,
    /// Which of its centres the group's is; see [`Fleet::load_centre`].
    pub place: (usize, usize),
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

/// Where a part of a round is done: what and by whom, and addresses on the card.
struct Site {
    work: Work,
    base: u64,
    vectors: u64,
    centre: u64,
    sums: u64,
    copies: i32,
}

impl Link {
    /// Connects cards.
    pub fn new(sum: Sum, cards: &[Card]) -> Result<Self, Error> {
        if sum == Sum::Host {
            return Ok(Link(None));
        }
        let nccl = Nccl::open()?;
        nccl.introduce(&cards.iter().map(|card| card.index).collect::<Vec<_>>())?;
        Ok(Link(Some(nccl)))
    }

    /// Carries out a plan on all fleets that have workers of it, in the order of their cards.
    #[allow(unsafe_code, reason = "NCCL adds up what lies on the cards")]
    pub fn mix(&self, seats: &mut [Seat<'_>], plan: &Plan, vectors: Vectors) -> Result<(), Error> {
        if plan.share == Share::Nothing {
            return Ok(());
        }
        let numbers = |seat: &Seat<'_>| seat.fleet.plan.graph.parameters().len();
        let length = seats.first().map_or(0, numbers);
        if let Some(other) = seats.iter().map(numbers).find(|&other| other != length) {
            let what = "the vector of another GPU in the round".into();
            return Err(Error::WrongLength { what, found: other, expected: length });
        }
        let sites: Vec<Site> =
            seats.iter_mut().map(|seat| seat.site(plan, vectors)).collect::<Result<_, _>>()?;
        for (seat, site) in seats.iter().zip(&sites) {
            seat.sum(site)?;
        }
        match &self.0 {
            Some(nccl) => {
                let vectors: Vec<Vector<'_>> = (seats.iter().zip(&sites))
                    .map(|(seat, site)| Vector {
                        card: seat.fleet.context.card.index,
                        start: site.sums,
                        stream: &seat.fleet.main,
                    })
                    .collect();
                // SAFETY: `site` made room for as many sums as there are parameters, which are as many on every card; fleets
                // wait for their cards before they give memory back.
                unsafe { nccl.add_up(&vectors, length) }?;
            }
            None => add_up_here(seats)?,
        }
        for (seat, site) in seats.iter().zip(&sites) {
            seat.pull(site)?;
        }
        seats.iter().try_for_each(|seat| seat.fleet.synchronise())
    }
}

/// Adds the sums up in the order of the seats.
fn add_up_here(seats: &[Seat<'_>]) -> Result<(), Error> {
    let sums = || seats.iter().filter_map(|seat| Some((seat, seat.fleet.sums.as_ref()?)));
    let mut total: Vec<f32> = Vec::new();
    for (seat, memory) in sums() {
        let mut sum = vec![0.0f32; seat.fleet.plan.graph.parameters().len()];
        memory.read(0, &mut sum)?;
        match total.is_empty() {
            true => total = sum,
            false => total.iter_mut().zip(sum).for_each(|(total, x)| *total += x),
        }
    }
    sums().try_for_each(|(_, memory)| memory.write(0, &total))
}

impl Seat<'_> {
    /// Checks the part and takes its weights to the card; nothing else is changed yet.
    fn site(&mut self, plan: &Plan, vectors: Vectors) -> Result<Site, Error> {
        let (fleet, part) = (&mut *self.fleet, &self.part);
        limits::members(part.first, part.members, fleet.workers)?;
        let per_span = plan.weights.is_per_span();
        let (found, expected) =
            (part.rows.len(), (part.members + 1) * if per_span { fleet.plan.spans.len() } else { 1 });
        if found != expected {
            return Err(Error::WrongLength { what: "the round's table of weights".into(), found, expected });
        }
        let bytes = 4 * fleet.plan.graph.parameters().len();
        let (level, group) = self.place;
        let Some(centre) = fleet.centre_at(level, group)? else {
            let why = "this level has no centre yet".into();
            return Err(Error::Device { action: "hold a round".into(), why });
        };
        if fleet.sums.is_none() {
            fleet.sums = Some(Memory::new(&fleet.context, bytes)?);
        }
        fleet.weights.write(0, &part.rows)?;
        let (moving, rate) = moves(plan);
        let offset = match vectors {
            Vectors::Parameters => fleet.plan.offsets.parameters,
            Vectors::Gradients => fleet.plan.offsets.gradient,
        };
        let base = fleet.memory.start + fleet.plan.slab * part.first as u64;
        Ok(Site {
            work: Work {
                members: part.members as i32,
                per_span: per_span.into(),
                moving,
                toward_old: i32::from(plan.toward == Toward::Old),
                rate,
                pull: plan.pull,
                absent: part.absent,
                replaced: part.replaced,
            },
            base,
            vectors: base + offset,
            centre,
            sums: fleet.sums.as_ref().map_or(0, |memory| memory.start),
            copies: i32::from(vectors == Vectors::Parameters),
        })
    }

    /// Starts the weighted sum of this card's workers.
    fn sum(&self, site: &Site) -> Result<(), Error> {
        let fleet = &*self.fleet;
        let pass = fleet.pass(None);
        let mut arguments = [
            at(&pass.chunks),
            at(&site.work),
            at(&fleet.weights.start),
            at(&site.vectors),
            at(&site.sums),
            at(&fleet.plan.slab),
        ];
        self.start("part_sum", &mut arguments)
    }

    /// Starts to make the centre from the sum of all, and to pull this card's workers.
    fn pull(&self, site: &Site) -> Result<(), Error> {
        let fleet = &*self.fleet;
        let pass = fleet.pass(None);
        let mut arguments = [
            at(&pass.spans),
            at(&pass.chunks),
            at(&site.work),
            at(&fleet.weights.start),
            at(&site.sums),
            at(&site.vectors),
            at(&site.centre),
            at(&site.base),
            at(&site.copies),
            at(&fleet.plan.slab),
        ];
        self.start("part_pull", &mut arguments)
    }

    fn start(&self, name: &'static str, arguments: &mut [Argument<'_>]) -> Result<(), Error> {
        let fleet = &*self.fleet;
        fleet.pass(None).start_once(name, Grid::row(fleet.plan.chunks.len()), arguments)
    }
}
