//! The operations of a [`Participant`]: what [`Collective`] asks for, made of meetings.

use super::door::ask;
use super::exchange::{Base, Move, Moved};
use super::flight::{Flight, Landed};
use super::line::lock;
use super::member::Deed;
use super::message::Call;
use super::participant::{Ended, Ends, Participant};
use super::words;
use crate::{Collective, Error, Gathered, Outcome};
use grawa_core::{Layout, Plan, Share, centre_part, pull_part};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Instant;

/// Whether the worker at a seat of the plan weighs anything in a share.
fn weighs(plan: &Plan, layout: &Layout, seat: usize, share: &Range<usize>) -> bool {
    if !plan.weights.is_per_span() {
        return plan.weights.of(0)[seat] > 0.0;
    }
    let first = layout.span_at(share.start).unwrap_or(0);
    let spans =
        layout.spans().iter().enumerate().skip(first).take_while(|(_, span)| span.range().start < share.end);
    spans.into_iter().any(|(index, _)| plan.weights.of(index)[seat] > 0.0)
}

impl Participant {
    /// Moves vectors: what all come to, if they do.
    fn move_all(
        &mut self,
        call: Call,
        mine: &[f32],
        adds: &(dyn Fn(usize, &Range<usize>) -> bool + Sync),
        base: Base<'_>,
        mut sum: impl FnMut(&Range<usize>, &[&[f32]], &mut [f32]) -> Result<(), Error>,
    ) -> Result<Ended<Vec<f32>>, Error> {
        let mut sums = std::mem::take(&mut lock(&self.core).spare);
        let ended = self.meet(call, |Ends { tag, seat, outs, ins, go_on, .. }| {
            sums.resize(mine.len(), 0.0);
            Move { tag, seat, outs, ins, adds, base, go_on }.run(mine, &mut sums, &mut sum)
        });
        match ended? {
            Ended::Well((), outcome) => {
                Ok(Ended::Well(sums, Outcome { bytes: 4 * mine.len() as u64, ..outcome }))
            }
            Ended::Not(lost) => {
                lock(&self.core).spare = sums;
                Ok(Ended::Not(lost))
            }
        }
    }

    /// The next centre, from everyone's vector.
    fn make_centre(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Ended<Vec<f32>>, Error> {
        let call = Call::Mix { plan: plan.digest(), centre: self.number };
        let adds = |seat: usize, share: &Range<usize>| {
            plan.share != Share::Nothing && plan.workers.len() > seat && weighs(plan, layout, seat, share)
        };
        let before = Arc::clone(&self.centre);
        let sum = |share: &Range<usize>, summands: &[&[f32]], to: &mut [f32]| {
            match plan.share {
                // Gradients have no past: where nobody's is finite, the step is none, not the last one again.
                Share::Gradients => to.fill(0.0),
                Share::Parameters | Share::Nothing if plan.keeps_centre() => {
                    to.copy_from_slice(&before[share.clone()]);
                }
                Share::Parameters | Share::Nothing => {}
            }
            Ok(centre_part(plan, layout, share.start, summands, to)?)
        };
        let base = self.travel.bf16.then(|| &before[..]);
        self.move_all(call, mine, &adds, base, sum)
    }

    /// Pulls toward the centre there is, and sends the vector off to the next one, which is there at the next meeting.
    fn take_off(
        &mut self,
        plan: &Plan,
        layout: &Layout,
        seat: usize,
        mine: &mut [f32],
    ) -> std::io::Result<Outcome> {
        let mut copy = std::mem::take(&mut self.luggage);
        copy.clear();
        copy.extend_from_slice(mine);
        pull_part(plan, seat, mine, &self.centre, &self.centre);
        let mut twin = Participant {
            core: Arc::clone(&self.core),
            shared: Arc::clone(&self.shared),
            _anchor: None,
            members: self.members.clone(),
            centre: Arc::clone(&self.centre),
            flight: None,
            luggage: Vec::new(),
            lost: Vec::new(),
            ..*self
        };
        let (plan, layout, flight) = (plan.clone(), layout.clone(), Arc::new(Flight::default()));
        let (bytes, members) = (size_of_val(mine) as u64, self.members.clone());
        let up = Arc::clone(&flight);
        let fly = move || {
            let make = || twin.make_centre(&plan, &layout, &copy);
            let broke_down = |_| Err(Error::Connection { why: "a thread broke down".into() });
            let ended = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(broke_down);
            let members = twin.members.clone();
            let landed = ended.map(|ended| match ended {
                Ended::Well(centre, outcome) => {
                    Landed { centre: Some(Arc::new(centre)), members, lost: outcome.lost, mine: copy }
                }
                // It came to nothing, for all alike: the old centre stays.
                Ended::Not(lost) => Landed { centre: None, members, lost, mine: copy },
            });
            up.end(landed, &twin.shared, &twin.centre);
        };
        std::thread::Builder::new().name("grawa-flight".into()).spawn(fly)?;
        *lock(&self.shared.flight) = Some(Arc::clone(&flight));
        self.flight = Some(flight);
        Ok(Outcome { members, bytes, ..Outcome::default() })
    }
}

impl Collective for Participant {
    type Buffer = [f32];

    fn worker(&self) -> u32 {
        self.worker
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        if message.len() > words::LONGEST {
            return Err(Error::LongWord { found: message.len(), longest: words::LONGEST });
        }
        self.land()?;
        loop {
            let mut messages = Vec::new();
            let ended = self.meet(Call::Gather, |Ends { tag, peers, seat, outs, ins, go_on }| {
                let (words, moved) = words::Exchange { tag, seat, outs, ins, go_on }.run(message)?;
                messages = peers.iter().map(|peer| peer.worker).zip(words).collect();
                Ok(moved)
            })?;
            match ended {
                Ended::Well((), mut outcome) => {
                    messages.retain(|(worker, _)| outcome.members.contains(worker));
                    outcome.lost.splice(..0, std::mem::take(&mut self.lost));
                    outcome.bytes = message.len() as u64;
                    return Ok(Gathered { messages, outcome });
                }
                // Those who are left say the same again.
                Ended::Not(lost) => self.lost.extend(lost),
            }
        }
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &mut [f32]) -> Result<Outcome, Error> {
        self.land()?;
        for (what, found) in
            [("the vector of this worker", mine.len()), ("the centre of the group", self.centre.len())]
        {
            if found != layout.len() {
                return Err(grawa_core::Error::WrongLength {
                    what: what.into(),
                    found,
                    expected: layout.len(),
                }
                .into());
            }
        }
        let Some(seat) = plan.workers.iter().position(|&worker| worker == self.worker) else {
            return Err(grawa_core::Error::WrongWorkers { found: plan.workers.clone() }.into());
        };
        if self.travel.overlap {
            return Ok(self.take_off(plan, layout, seat, mine)?);
        }
        let before = Arc::clone(&self.centre);
        match self.make_centre(plan, layout, mine)? {
            Ended::Not(lost) => Err(Error::Shrunk { lost }),
            Ended::Well(after, outcome) => {
                pull_part(plan, seat, mine, &before, &after);
                drop(before);
                let old = self.take_centre(Arc::new(after));
                if let Ok(old) = Arc::try_unwrap(old) {
                    lock(&self.core).spare = old;
                }
                Ok(outcome)
            }
        }
    }

    fn broadcast(&mut self, leader: u32, mine: &mut [f32]) -> Result<Outcome, Error> {
        self.land()?;
        loop {
            let members = self.members.clone();
            let at = move |seat: usize| members.get(seat) == Some(&leader);
            let sum = |_: &Range<usize>, summands: &[&[f32]], to: &mut [f32]| {
                let from = (0..summands.len()).find(|&seat| at(seat)).unwrap_or(0);
                to.copy_from_slice(summands[from]);
                Ok(())
            };
            match self.move_all(Call::Broadcast { leader }, mine, &|seat, _| at(seat), None, sum)? {
                Ended::Well(vector, outcome) => {
                    mine.copy_from_slice(&vector);
                    return Ok(outcome);
                }
                Ended::Not(_) if self.members.contains(&leader) => {}
                Ended::Not(_) => return Err(Error::NoSuchLeader { leader, members: self.members.clone() }),
            }
        }
    }

    fn barrier(&mut self) -> Result<Outcome, Error> {
        let start = Instant::now();
        self.land()?;
        // It moves nothing.
        let nothing = |Ends { outs, ins, .. }: Ends<'_>| Ok(Moved { digest: 0, bytes: 0, outs, ins });
        let (Ended::Well((), Outcome { lost, .. }) | Ended::Not(lost)) = self.meet(Call::Barrier, nothing)?;
        let lost = std::mem::take(&mut self.lost).into_iter().chain(lost).collect();
        Ok(Outcome { members: self.members.clone(), lost, wait: start.elapsed(), ..Outcome::default() })
    }

    fn centre(&self) -> &[f32] {
        &self.centre
    }

    fn centre_version(&self) -> u64 {
        self.version
    }

    fn copy_centre(&self) -> Result<Vec<f32>, Error> {
        // What is saved is what the group holds, though workers are not pulled toward it yet.
        let newest = self.flight.as_ref().map_or(Ok(None), |flight| flight.centre())?;
        Ok(newest.as_ref().unwrap_or(&self.centre).to_vec())
    }

    fn alive(&self) {
        self.shared.steps.fetch_add(1, Ordering::Relaxed);
    }

    fn is_called(&self) -> bool {
        lock(&self.shared.state).member.is_called()
    }

    fn meeting(&self) -> u64 {
        self.flight.iter().for_each(|flight| flight.wait());
        lock(&self.shared.state).member.op()
    }

    fn settle(&mut self, memory: &[u8]) -> Result<(), Error> {
        self.shared.counted.store(self.shared.steps.load(Ordering::Relaxed), Ordering::Relaxed);
        match &self.flight {
            Some(flight) => flight.settle(memory, &self.shared, &self.centre),
            None => self.shared.stand(memory.into(), Arc::clone(&self.centre)),
        }
        Ok(())
    }

    fn rejoin(&mut self) -> Result<Vec<u8>, Error> {
        // Where it was going does not matter any more.
        let _ = self.land();
        self.lost.clear();
        let shared = Arc::clone(&self.shared);
        let mut core = lock(&self.core);
        // The others went on without it, and gave up their ends of its connections.
        core.is_clean = false;
        loop {
            let deed = core.due.take().or_else(|| shared.next(&|_| true));
            match deed {
                Some(Deed::Take { donor, stand }) => {
                    let run = lock(&shared.state).member.run();
                    let go_on = || !shared.is_interrupted();
                    match ask(&donor, &shared.wire, run, stand, self.centre.len(), &go_on) {
                        Ok(held) => {
                            (self.centre, self.version) = (Arc::clone(&held.centre), self.version + 1);
                            let memory = held.memory.clone();
                            shared.door.hold(Arc::new(held));
                            shared.tell(|member| member.took(stand));
                            return Ok(memory);
                        }
                        Err(_) => shared.tell(|member| member.not_taken(donor.worker)),
                    }
                }
                Some(Deed::Back) => {
                    let Some(held) = shared.door.held() else { continue };
                    (self.centre, self.version) = (Arc::clone(&held.centre), self.version + 1);
                    return Ok(held.memory.clone());
                }
                Some(Deed::Refused { why }) => return Err(Error::Refused { why }),
                Some(_) => {}
                None => return Err(Error::Connection { why: "the group was left".into() }),
            }
        }
    }
}
