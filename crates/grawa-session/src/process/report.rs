//! What a process reports: rounds, workers that were left out or lost, and the end.

use super::{Messages, Note, Process};
use crate::Error;
use crate::event::{Event, Fault, Finished, Mixed, Reason, Round, Share as WorkerShare};
use crate::membership::Membership;
use crate::round_message::{ProcessMessage, RoundMessage, Tally};
use grawa_comm::Lost;
use grawa_core::{Plan, Share};

impl Process {
    /// Hands an event to the supervisor.
    pub fn say(&self, event: Event) {
        // There is no supervisor only when the run was given up: the next operation will fail.
        let _ = self.common.notes.send(Note::Event(event));
    }

    /// Reports events that all processes know: one of them sends them.
    pub fn report_shared(&mut self, events: Vec<Event>) {
        let (at, is_first) = (self.place(), self.membership.is_first());
        let is_reporter = match self.membership.elastic_mut() {
            None => is_first,
            Some(elastic) => {
                let is_kept = !elastic.keepers.is_empty();
                let report = elastic.reports.add(&at, events.clone(), is_kept).map(<[u8]>::to_vec);
                let is_reporter = elastic.reports.is_reporter();
                match report {
                    Ok(report) if is_reporter => self.send_report(report),
                    Ok(_) => {}
                    Err(error) => drop(self.common.notes.send(Note::NotReported(error))),
                }
                is_reporter
            }
        };
        if is_reporter {
            events.into_iter().for_each(|event| self.say(event));
        }
    }

    /// Sends a report to the coordinator at once, and not when the supervisor comes to it: so it is sent before this process takes part
    /// in the next operation.
    pub fn send_report(&self, report: Vec<u8>) {
        let Some(reporter) = &self.common.reporter else { return };
        if let Err(error) = reporter.send(report) {
            let _ = self.common.notes.send(Note::NotReported(error.into()));
        }
    }

    /// A worker of this process failed, and the others continue.
    pub(crate) fn lose(&mut self, index: usize, error: Error) {
        let Some(at) = self.workers.iter().position(|worker| worker.index == index) else { return };
        let worker = self.workers.remove(at).id;
        if let Membership::Elastic(all, _) = &mut self.membership {
            all.set_workers(self.workers.len() as u32);
        }
        let what = format!("worker {worker} is lost: {error}");
        let fault = Event::Fault(Fault { at: self.place(), worker: Some(worker), what });
        // Where there is a coordinator it must know; the supervisor sends it.
        let _ = self.common.notes.send(Note::Own(fault));
        self.reasons.push(error);
    }

    /// This process cannot continue.
    pub fn report_failure(&mut self, error: &Error) {
        if self.is_reported {
            return;
        }
        for worker in self.workers.iter().map(|worker| worker.id) {
            let what = format!("worker {worker} is lost: {error}");
            let fault = Event::Fault(Fault { at: self.place(), worker: Some(worker), what });
            let _ = self.common.notes.send(Note::Own(fault));
        }
    }

    pub(crate) fn report_lost_process(&mut self, lost: &Lost) {
        // In an elastic group the coordinator reports it.
        if matches!(self.membership, Membership::Fixed(_)) && self.membership.is_first() {
            let what = format!("{lost}: the run continues without it");
            self.say(Event::Fault(Fault { at: self.place(), worker: Some(lost.worker), what }));
        }
    }

    /// Workers that do the same: a fault of the user's program, which loses its use without a sign.
    pub(crate) fn warn_if_alike(&mut self, messages: &Messages) {
        let Some(what) = crate::round_message::alike(messages).filter(|_| !self.has_warned) else { return };
        self.has_warned = true;
        self.warning = Some(what.clone());
        let at = self.place();
        self.report_shared(vec![Event::Fault(Fault { at, worker: None, what })]);
    }

    pub(crate) fn note_left_out(&mut self, plan: &Plan) {
        let left_out = plan.workers.iter().zip(&plan.replaced).filter(|(_, lost)| **lost);
        self.left_out.extend(left_out.map(|(worker, _)| *worker));
    }

    pub(crate) fn report_round(&mut self, messages: &Messages, mixed: Vec<Mixed>, had_diverged: bool) {
        let left_out = std::mem::take(&mut self.left_out);
        let is_told = self.common.milestones.tells(&self.at) || !left_out.is_empty();
        // The bytes of this round itself belong to it; every process has sent as much.
        let mut bytes = 0;
        for worker in &mut self.workers {
            let own = messages.iter().find(|(id, _)| *id == worker.id).map(|(_, message)| message.tally);
            let own = own.unwrap_or_default();
            if is_told {
                worker.past.add(&own);
                worker.past.bytes += worker.tally.bytes;
                bytes += std::mem::take(&mut worker.tally.bytes);
            } else {
                worker.tally += own;
            }
        }
        if !is_told {
            return;
        }
        let by_round = self.common.method.share == Share::Parameters;
        let shares = |(worker, message): &(u32, RoundMessage)| {
            let Tally { steps, loss, times, .. } = message.tally;
            WorkerShare {
                worker: *worker,
                // After a resume inside a cycle, all steps of the cycle.
                steps: if by_round { message.steps } else { steps },
                total: message.taken,
                loss: finite(loss / steps as f64),
                times,
            }
        };
        let tallies = || messages.iter().map(|(_, message)| message.tally);
        let steps = tallies().fold(0, |sum: u64, tally| sum.saturating_add(tally.steps));
        let loss: f64 = tallies().map(|tally| tally.loss).sum();
        let before = tallies().fold(0, |sum: u64, tally| sum.saturating_add(tally.bytes));
        let round = Round {
            at: self.place(),
            rate: self.workers.first().map_or(0.0, |worker| worker.rate),
            loss: finite(loss / steps as f64),
            workers: messages.iter().map(shares).collect(),
            mixed,
            bytes: before.saturating_add(bytes.saturating_mul(self.processes.len() as u64)),
        };
        self.last_round = Some(round.clone());
        let infinite = self.infinite_losses(messages, &left_out);
        let faults = self.left_out_faults(left_out, messages.len(), had_diverged).into_iter().chain(infinite);
        self.report_shared([Event::Round(round)].into_iter().chain(faults).collect());
    }

    /// Which workers were not finite in this round.
    fn left_out_faults(&self, mut left_out: Vec<u32>, workers: usize, had_diverged: bool) -> Vec<Event> {
        let fault = |worker, what| Event::Fault(Fault { at: self.place(), worker, what });
        left_out.sort_unstable();
        left_out.dedup();
        if !left_out.is_empty() && left_out.len() == workers {
            // Said once: nobody will be finite again unless a round heals them, which ends it.
            if had_diverged {
                return Vec::new();
            }
            let what = "no worker is finite any more: start again with a smaller learning rate";
            return vec![fault(None, what.into())];
        }
        let what = match self.common.method.share {
            Share::Gradients => "gradient is not finite: this step is taken without it",
            _ => "parameters are not finite: it continues from the centre, without its momentum",
        };
        left_out.iter().map(|worker| fault(Some(*worker), format!("worker {worker}'s {what}"))).collect()
    }

    /// Losses of infinity, which the round's event cannot hold: each worker's once. NaN may mean that no loss is known, and who was
    /// left out has its fault already.
    fn infinite_losses(&mut self, messages: &Messages, left_out: &[u32]) -> Vec<Event> {
        let mut events = Vec::new();
        for (worker, RoundMessage { tally, .. }) in messages {
            let is_new = tally.steps > 0 && tally.loss.is_infinite() && !left_out.contains(worker);
            if is_new && self.infinite.insert(*worker) {
                let what = format!("worker {worker}'s loss is infinite: a smaller learning rate may help");
                events.push(Event::Fault(Fault { at: self.place(), worker: Some(*worker), what }));
            }
        }
        events
    }

    /// Every process tells its supervisor how the run ended.
    pub(crate) fn report_end(&mut self, heads: &[(u32, ProcessMessage)], reason: Reason) {
        let messages = || heads.iter().flat_map(|(_, head)| &head.workers);
        let share = |(worker, RoundMessage { taken, tally, .. }): &(u32, RoundMessage)| WorkerShare {
            worker: *worker,
            steps: *taken,
            total: *taken,
            loss: None,
            times: tally.times,
        };
        let bytes = messages().fold(0, |sum: u64, (_, message)| sum.saturating_add(message.tally.bytes));
        let (at, workers, diverged) = (self.place(), messages().map(share).collect(), self.diverged);
        let _ = self.common.notes.send(Note::Own(Event::Finished(Finished {
            at,
            reason,
            workers,
            bytes,
            diverged,
        })));
    }
}

pub fn finite(x: f64) -> Option<f64> {
    Some(x).filter(|x| x.is_finite())
}
