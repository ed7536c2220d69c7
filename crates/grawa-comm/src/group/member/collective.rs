//! The [`Collective`] and [`Elastic`] operations of a group on sockets.

use super::MemberAction;
use super::control_connection::State;
use super::peer_listener::fetch;
use super::socket_member::{Caller, Ended, SocketMember};
use crate::call::check_lengths;
use crate::group::environment::lock;
use crate::group::messages::Call;
#[cfg(test)]
use crate::group::simulate::Mutation;
use crate::group::transfer::all_reduce::all_reduce;
use crate::group::transfer::overlap::{Finished, Overlap};
use crate::group::transfer::{TransferError, all_gather};
use crate::{Check, Collective, Elastic, Error, Gathered, Heartbeat, MOST_REPORTS, Outcome};
use grawa_core::{Layout, Plan, Share, centre_part, finish_centre};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Milliseconds that a member waits at the end of a run for a coordinator that is out of reach.
const FINISH_MS: u64 = 30_000;

/// Whether differences may be to this centre. Workers that bring parameters of their own begin with a centre of zeros, and a difference to
/// that would be the parameters themselves, rounded. All members hold the same centre, so all decide alike. Where there is none of this
/// length vectors are sent as they are, too.
fn is_base(committed: &[f32]) -> bool {
    committed.iter().any(|&x| x != 0.0)
}

/// What a vector takes when it is sent, as differences in `bf16` or as it is.
fn bytes_of(len: usize, as_differences: bool) -> u64 {
    len as u64 * if as_differences { 2 } else { 4 }
}

impl Caller {
    /// The centre that an operation begins with. Only the first centre is part of the committed state. What this member has kept of another
    /// one, a member that joined or returned has not: operations on the others begin with the committed centre, too.
    fn centre_before(&self) -> Arc<Vec<f32>> {
        #[cfg(test)]
        if self.client.environment.mutation() == Some(Mutation::OwnBase) {
            return Arc::clone(&self.centre);
        }
        match self.number {
            0 => Arc::clone(&self.centre),
            _ => self.client.listener.held().map_or_else(Arc::default, |held| Arc::clone(&held.centre)),
        }
    }

    /// Makes the next centre from the vectors of all.
    fn make_centre(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Ended<Vec<f32>>, Error> {
        let call = Call::Mix { plan: plan.digest(), centre: self.number };
        let has_weight = |rank: usize| plan.weights.rows().any(|row| row.get(rank).is_some_and(|&x| x > 0.0));
        let contributes = |rank: usize| plan.share != Share::Nothing && has_weight(rank);
        let before = self.centre_before();
        // The velocity of an outer optimizer is that of the first centre.
        let before = if self.number == 0 { &before[..] } else { &before[..mine.len().min(before.len())] };
        let known = before.get(..mine.len());
        let mut reduce = |shard: &Range<usize>, summands: &[&[f32]], to: &mut [f32]| {
            if plan.keeps_centre() {
                match known {
                    Some(known) => to.copy_from_slice(&known[shard.clone()]),
                    None => to.fill(0.0),
                }
            }
            Ok(centre_part(plan, layout, shard.start, summands, to)?)
        };
        let base = known.filter(|known| self.options.bf16 && is_base(known));
        let bytes = bytes_of(mine.len(), base.is_some());
        let mut result = Arc::try_unwrap(std::mem::take(&mut self.retired)).unwrap_or_default();
        let ended = self.run_operation(call, |links, peers| {
            result.resize(mine.len(), 0.0);
            let contributes: Vec<bool> = (0..peers.len()).map(contributes).collect();
            all_reduce(links, &contributes, base, mine, &mut result, &mut reduce)
        });
        match ended? {
            Ended::Committed((), outcome) => {
                let centre = finish_centre(plan, before, result);
                Ok(Ended::Committed(centre, Outcome { bytes, ..outcome }))
            }
            Ended::Aborted(lost) => {
                self.retired = Arc::new(result);
                Ok(Ended::Aborted(lost))
            }
        }
    }
}

impl SocketMember {
    /// Exchanges messages, in this operation.
    fn gather_as(&mut self, call: Call, message: &[u8], check: Check<'_>) -> Result<Gathered, Error> {
        if message.len() > all_gather::LONGEST {
            return Err(Error::LongMessage { found: message.len(), longest: all_gather::LONGEST });
        }
        self.finish_overlap()?;
        loop {
            let mut messages = Vec::new();
            #[cfg(test)]
            let mutation = self.caller.client.environment.mutation();
            let ended = self.caller.run_operation(call, |links, peers| {
                let own = links.rank;
                #[cfg(test)]
                let own = if mutation == Some(Mutation::OwnMessage) { usize::MAX } else { own };
                let (gathered, digest) = all_gather::all_gather(links, message)?;
                let members: Vec<u32> = peers.iter().map(|peer| peer.worker).collect();
                // A message that cannot be used is its sender's fault: a complaint, as about a transfer that failed. Nobody complains about
                // itself: a member that cannot use what it sent cannot take part, and leaves.
                for (rank, (numbers, bytes)) in crate::numbers(&members).zip(&gathered).enumerate() {
                    let rank = Some(rank).filter(|rank| *rank != own);
                    let wrong = |why| TransferError { rank, why: Error::Message { why } };
                    let checked = check(numbers, bytes);
                    #[cfg(test)]
                    let checked = if mutation == Some(Mutation::AnyMessage) { Ok(()) } else { checked };
                    checked.map_err(wrong)?;
                }
                messages = members.into_iter().zip(gathered).collect();
                Ok(digest)
            })?;
            match ended {
                Ended::Committed((), mut outcome) => {
                    messages.retain(|(worker, _)| outcome.members.contains(worker));
                    outcome.lost.splice(..0, std::mem::take(&mut self.lost));
                    outcome.bytes = message.len() as u64;
                    return Ok(Gathered { messages, outcome });
                }
                // The remaining members try again.
                Ended::Aborted(lost) => self.lost.extend(lost),
            }
        }
    }

    /// Starts the transfer that makes the next centre. Its result is taken at the next operation.
    fn start_overlap(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> std::io::Result<Outcome> {
        let before = self.caller.centre_before();
        let as_differences = self.caller.options.bf16 && before.get(..mine.len()).is_some_and(is_base);
        let bytes = bytes_of(mine.len(), as_differences);
        let mut copy = std::mem::take(&mut self.send_buffer);
        copy.clear();
        copy.extend_from_slice(mine);
        let retired = std::mem::take(&mut self.caller.retired);
        let mut caller = Caller { retired, ..self.caller.clone() };
        let environment = &self.caller.client.environment;
        let (plan, layout, overlap) = (plan.clone(), layout.clone(), Arc::new(Overlap::new(environment)));
        let transfer = Arc::clone(&overlap);
        let work = move || {
            let make = || caller.make_centre(&plan, &layout, &copy);
            let panicked = |_| Err(Error::Connection { why: "a thread panicked".into() });
            let ended = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(panicked);
            transfer.finish(ended.map(|ended| {
                let lost = match ended {
                    Ended::Committed(centre, outcome) => {
                        caller.replace_centre(Arc::new(centre));
                        outcome.lost
                    }
                    // It was aborted for all members: the old centre stays.
                    Ended::Aborted(lost) => lost,
                };
                Finished { caller, lost, send_buffer: copy }
            }));
        };
        environment.spawn("overlap", work)?;
        *lock(&self.caller.client.overlap) = Some(Arc::clone(&overlap));
        self.overlap = Some(overlap);
        Ok(Outcome { members: self.caller.members.clone(), bytes, ..Outcome::default() })
    }
}

impl Collective for SocketMember {
    fn id(&self) -> u32 {
        self.caller.client.worker.load(Ordering::Relaxed)
    }

    fn members(&self) -> &[u32] {
        &self.caller.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        self.gather_readable(message, &|_, _| Ok(()))
    }

    fn gather_readable(&mut self, message: &[u8], check: Check<'_>) -> Result<Gathered, Error> {
        self.gather_as(Call::Gather, message, check)
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Outcome, Error> {
        self.finish_overlap()?;
        check_lengths([(self.id(), mine.len())], self.caller.centre.len(), layout)?;
        if plan.index_of(self.id()).is_none() {
            return Err(grawa_core::Error::WrongWorkers { found: plan.workers.clone() }.into());
        }
        if self.caller.options.overlap {
            if let Some(why) = plan.overlap_objection() {
                return Err(Error::NoOverlap { why });
            }
            return Ok(self.start_overlap(plan, layout, mine)?);
        }
        match self.caller.make_centre(plan, layout, mine)? {
            Ended::Aborted(lost) => Err(Error::Shrunk { lost }),
            Ended::Committed(centre, outcome) => {
                self.caller.replace_centre(Arc::new(centre));
                Ok(outcome)
            }
        }
    }

    fn centre(&self) -> &Arc<Vec<f32>> {
        &self.caller.centre
    }

    fn heartbeat(&self) -> Heartbeat {
        let client = Arc::clone(&self.caller.client);
        Arc::new(move || {
            client.steps.fetch_add(1, Ordering::Relaxed);
        })
    }
}

impl Elastic for SocketMember {
    fn round_due(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let client = Arc::clone(&self.caller.client);
        Arc::new(move || {
            // A transfer that failed is reported by the next operation.
            let has_failed = lock(&client.overlap).as_ref().is_some_and(|overlap| overlap.has_failed());
            has_failed || client.state.lock().member.is_round_due()
        })
    }

    fn newest_centre(&self) -> Result<Arc<Vec<f32>>, Error> {
        self.overlap.as_ref().map_or_else(|| Ok(Arc::clone(&self.caller.centre)), |overlap| overlap.centre())
    }

    fn next_operation(&self) -> u64 {
        self.overlap.iter().for_each(|overlap| overlap.wait());
        self.caller.client.state.lock().member.op
    }

    fn set_workers(&mut self, workers: u32) {
        self.caller.client.state.lock().member.workers_left = workers;
    }

    fn publish(&mut self, memory: &[u8]) -> Result<(), Error> {
        self.caller.client.counted.store(self.caller.client.steps.load(Ordering::Relaxed), Ordering::Relaxed);
        match &self.overlap {
            Some(overlap) => overlap.publish(memory),
            None => self.caller.publish(memory.into()),
        }
        Ok(())
    }

    fn keep_reports(&mut self, reports: Vec<u8>) {
        let fits = reports.len() <= MOST_REPORTS;
        *lock(&self.caller.client.reports) = if fits { reports } else { Vec::new() };
    }

    fn kept_reports(&self) -> Vec<u8> {
        self.caller.client.listener.held().map_or_else(Vec::new, |held| held.reports.clone())
    }

    fn final_barrier(&mut self, message: &[u8], check: Check<'_>) -> Result<Gathered, Error> {
        self.gather_as(Call::FinalBarrier, message, check)
    }

    fn finish(&mut self, message: &[u8], check: Check<'_>) -> Result<Gathered, Error> {
        // All is done but to say so. A worker does not stay for ever where nobody receives that.
        self.caller.client.contact_patience.fetch_min(FINISH_MS, Ordering::Relaxed);
        self.gather_as(Call::Finish, message, check)
    }

    fn rejoin(&mut self) -> Result<Vec<u8>, Error> {
        // The result does not matter any more.
        let _ = self.finish_overlap();
        self.lost.clear();
        let (client, shared) = (Arc::clone(&self.caller.client), Arc::clone(&self.caller.connections));
        let mut connections = lock(&shared);
        // The others continued without it, and dropped their ends of its connections.
        connections.is_clean = false;
        loop {
            let deferred = connections.deferred.take();
            let waits = |state: &State| !client.has_given_up(state);
            match deferred.map_or_else(|| client.next_action(&waits), |action| Ok(Some(action)))? {
                None => return Err(Error::OutOfContact),
                Some(MemberAction::Restore { donor, version }) => {
                    let run = client.state.lock().member.run;
                    let keep_going = || !client.is_interrupted();
                    let wanted = (version, self.caller.centre.len());
                    match fetch(&client.environment, &donor, &client.security, run, wanted, &keep_going) {
                        Ok(held) => {
                            client.update_number();
                            self.caller.replace_centre(Arc::clone(&held.centre));
                            let memory = held.memory.clone();
                            client.listener.hold(Arc::new(held));
                            client.send_from(|member| member.restored(version));
                            return Ok(memory);
                        }
                        Err(_) => client.send_from(|member| member.not_restored(donor.worker)),
                    }
                }
                Some(MemberAction::RollBack) => {
                    let Some(held) = client.listener.held() else { continue };
                    client.update_number();
                    self.caller.replace_centre(Arc::clone(&held.centre));
                    return Ok(held.memory.clone());
                }
                _ => {}
            }
        }
    }
}
