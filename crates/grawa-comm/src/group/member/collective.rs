//! The [`Collective`] and [`Elastic`] operations of a group on sockets.

use super::MemberAction;
use super::peer_listener::fetch;
use super::socket_member::{Ended, SocketMember};
use crate::call::check_lengths;
use crate::group::environment::lock;
use crate::group::messages::Call;
use crate::group::transfer::all_reduce::{Base, Contributes, Reduce, all_reduce};
use crate::group::transfer::overlap::{Finished, Overlap};
use crate::group::transfer::{Transferred, all_gather};
use crate::{Collective, Elastic, Error, Gathered, Heartbeat, Outcome};
use grawa_core::{Layout, Plan, Share, centre_part};
use std::ops::Range;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Whether the worker of this rank has weight in a shard.
fn has_weight(plan: &Plan, layout: &Layout, rank: usize, shard: &Range<usize>) -> bool {
    if !plan.weights.is_per_span() {
        return plan.weights.of(0)[rank] > 0.0;
    }
    let first = layout.span_at(shard.start).unwrap_or(0);
    let spans =
        layout.spans().iter().enumerate().skip(first).take_while(|(_, span)| span.range().start < shard.end);
    spans.into_iter().any(|(index, _)| plan.weights.of(index)[rank] > 0.0)
}

impl SocketMember {
    /// Reduces the vectors of all. Returns the result.
    fn all_reduce(
        &mut self,
        call: Call,
        mine: &[f32],
        contributes: Contributes<'_>,
        base: Base<'_>,
        reduce: Reduce<'_>,
    ) -> Result<Ended<Vec<f32>>, Error> {
        let mut result = match Arc::try_unwrap(std::mem::take(&mut self.retired)) {
            Ok(retired) if !retired.is_empty() => retired,
            _ => std::mem::take(&mut lock(&self.connections).spare),
        };
        let ended = self.run_operation(call, |links, _| {
            result.resize(mine.len(), 0.0);
            all_reduce(links, contributes, base, mine, &mut result, reduce)
        });
        match ended? {
            Ended::Committed((), outcome) => {
                Ok(Ended::Committed(result, Outcome { bytes: 4 * mine.len() as u64, ..outcome }))
            }
            Ended::Aborted(lost) => {
                lock(&self.connections).spare = result;
                Ok(Ended::Aborted(lost))
            }
        }
    }

    /// Makes the next centre from the vectors of all.
    fn make_centre(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Ended<Vec<f32>>, Error> {
        let call = Call::Mix { plan: plan.digest(), centre: self.number };
        let contributes = |rank: usize, shard: &Range<usize>| {
            plan.share != Share::Nothing && plan.workers.len() > rank && has_weight(plan, layout, rank, shard)
        };
        let before = Arc::clone(&self.centre);
        let mut reduce = |shard: &Range<usize>, summands: &[&[f32]], to: &mut [f32]| {
            if plan.keeps_centre() {
                to.copy_from_slice(&before[shard.clone()]);
            }
            Ok(centre_part(plan, layout, shard.start, summands, to)?)
        };
        let base = self.options.bf16.then(|| &before[..]);
        self.all_reduce(call, mine, &contributes, base, &mut reduce)
    }

    /// Starts the transfer that makes the next centre. Its result is taken at the next operation.
    fn start_overlap(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> std::io::Result<Outcome> {
        let mut copy = std::mem::take(&mut self.send_buffer);
        copy.clear();
        copy.extend_from_slice(mine);
        let mut twin = SocketMember {
            connections: Arc::clone(&self.connections),
            client: Arc::clone(&self.client),
            _anchor: None,
            members: self.members.clone(),
            centre: Arc::clone(&self.centre),
            retired: Arc::default(),
            overlap: None,
            send_buffer: Vec::new(),
            lost: Vec::new(),
            ..*self
        };
        let environment = &self.client.environment;
        let (plan, layout, overlap) = (plan.clone(), layout.clone(), Arc::new(Overlap::new(environment)));
        let (bytes, members) = (size_of_val(mine) as u64, self.members.clone());
        let transfer = Arc::clone(&overlap);
        let work = move || {
            let make = || twin.make_centre(&plan, &layout, &copy);
            let panicked = |_| Err(Error::Connection { why: "a thread panicked".into() });
            let ended = catch_unwind(AssertUnwindSafe(make)).unwrap_or_else(panicked);
            let members = twin.members.clone();
            let (centre, lost) = match ended {
                Ok(Ended::Committed(centre, outcome)) => (Ok(Some(Arc::new(centre))), outcome.lost),
                // It was aborted for all members: the old centre stays.
                Ok(Ended::Aborted(lost)) => (Ok(None), lost),
                Err(error) => (Err(error), Vec::new()),
            };
            let finished = centre.map(|centre| Finished { centre, members, lost, send_buffer: copy });
            transfer.finish(finished, &twin.client, &twin.centre);
        };
        environment.spawn("overlap", work)?;
        *lock(&self.client.overlap) = Some(Arc::clone(&overlap));
        self.overlap = Some(overlap);
        Ok(Outcome { members, bytes, ..Outcome::default() })
    }
}

impl Collective for SocketMember {
    fn id(&self) -> u32 {
        self.client.worker.load(Ordering::Relaxed)
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        if message.len() > all_gather::LONGEST {
            return Err(Error::LongMessage { found: message.len(), longest: all_gather::LONGEST });
        }
        self.finish_overlap()?;
        loop {
            let mut messages = Vec::new();
            let ended = self.run_operation(Call::Gather, |links, peers| {
                let (gathered, transferred) = all_gather::all_gather(links, message)?;
                messages = peers.iter().map(|peer| peer.worker).zip(gathered).collect();
                Ok(transferred)
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

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Outcome, Error> {
        self.finish_overlap()?;
        check_lengths([(self.id(), mine.len())], self.centre.len(), layout)?;
        if plan.index_of(self.id()).is_none() {
            return Err(grawa_core::Error::WrongWorkers { found: plan.workers.clone() }.into());
        }
        if self.options.overlap {
            return Ok(self.start_overlap(plan, layout, mine)?);
        }
        match self.make_centre(plan, layout, mine)? {
            Ended::Aborted(lost) => Err(Error::Shrunk { lost }),
            Ended::Committed(centre, outcome) => {
                self.replace_centre(Arc::new(centre));
                Ok(outcome)
            }
        }
    }

    fn broadcast(&mut self, leader: u32, mine: &mut [f32]) -> Result<Outcome, Error> {
        self.finish_overlap()?;
        loop {
            let members = self.members.clone();
            let leads = move |rank: usize| members.get(rank) == Some(&leader);
            let mut copy = |_: &Range<usize>, summands: &[&[f32]], to: &mut [f32]| {
                let from = (0..summands.len()).find(|&rank| leads(rank)).unwrap_or(0);
                to.copy_from_slice(summands[from]);
                Ok(())
            };
            match self.all_reduce(
                Call::Broadcast { leader },
                mine,
                &|rank, _| leads(rank),
                None,
                &mut copy,
            )? {
                Ended::Committed(vector, outcome) => {
                    mine.copy_from_slice(&vector);
                    return Ok(outcome);
                }
                Ended::Aborted(_) if self.members.contains(&leader) => {}
                Ended::Aborted(_) => {
                    return Err(Error::NoSuchLeader { leader, members: self.members.clone() });
                }
            }
        }
    }

    fn barrier(&mut self) -> Result<Outcome, Error> {
        let environment = self.client.environment.clone();
        let start = environment.now();
        self.finish_overlap()?;
        let ended = self.run_operation(Call::Barrier, |_, _| Ok(Transferred::default()))?;
        let (Ended::Committed((), Outcome { lost, .. }) | Ended::Aborted(lost)) = ended;
        let lost = std::mem::take(&mut self.lost).into_iter().chain(lost).collect();
        let wait = environment.now() - start;
        Ok(Outcome { members: self.members.clone(), lost, wait, ..Outcome::default() })
    }

    fn centre(&self) -> &Arc<Vec<f32>> {
        &self.centre
    }

    fn heartbeat(&self) -> Heartbeat {
        let client = Arc::clone(&self.client);
        Arc::new(move || {
            client.steps.fetch_add(1, Ordering::Relaxed);
        })
    }
}

impl Elastic for SocketMember {
    fn round_due(&self) -> Arc<dyn Fn() -> bool + Send + Sync> {
        let client = Arc::clone(&self.client);
        Arc::new(move || {
            // A transfer that failed is reported by the next operation.
            let has_failed = lock(&client.overlap).as_ref().is_some_and(|overlap| overlap.has_failed());
            has_failed || client.state.lock().member.is_round_due()
        })
    }

    fn newest_centre(&self) -> Result<Arc<Vec<f32>>, Error> {
        let newest = self.overlap.as_ref().map_or(Ok(None), |overlap| overlap.centre())?;
        Ok(newest.unwrap_or_else(|| Arc::clone(&self.centre)))
    }

    fn next_operation(&self) -> u64 {
        self.overlap.iter().for_each(|overlap| overlap.wait());
        self.client.state.lock().member.op
    }

    fn set_workers(&mut self, workers: u32) {
        self.client.state.lock().member.workers_left = workers;
    }

    fn publish(&mut self, memory: &[u8]) -> Result<(), Error> {
        self.client.counted.store(self.client.steps.load(Ordering::Relaxed), Ordering::Relaxed);
        match &self.overlap {
            Some(overlap) => overlap.publish(memory, &self.client, &self.centre),
            None => self.client.publish(memory.into(), Arc::clone(&self.centre)),
        }
        Ok(())
    }

    fn rejoin(&mut self) -> Result<Vec<u8>, Error> {
        // The result does not matter any more.
        let _ = self.finish_overlap();
        self.lost.clear();
        let (client, shared) = (Arc::clone(&self.client), Arc::clone(&self.connections));
        let mut connections = lock(&shared);
        // The others continued without it, and dropped their ends of its connections.
        connections.is_clean = false;
        loop {
            let deferred = connections.deferred.take();
            match deferred.map_or_else(|| client.next_action(&|_| true), |action| Ok(Some(action)))? {
                Some(MemberAction::Restore { donor, version }) => {
                    let run = client.state.lock().member.run;
                    let keep_going = || !client.is_interrupted();
                    let wanted = (version, self.centre.len());
                    match fetch(&client.environment, &donor, &client.security, run, wanted, &keep_going) {
                        Ok(held) => {
                            client.update_number();
                            self.replace_centre(Arc::clone(&held.centre));
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
                    self.replace_centre(Arc::clone(&held.centre));
                    return Ok(held.memory.clone());
                }
                _ => {}
            }
        }
    }
}
