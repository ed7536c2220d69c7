//! The exchange of messages between processes, and who is lost in it.

use super::ending::Exchange;
use super::{Messages, Process};
use crate::Error;
use crate::membership::Membership;
use crate::round_message::{ProcessMessage, Tally, check, decode, encode, not_own};
use crate::worker_set::{Slot, WorkerState};
use grawa_comm::Lost;
use grawa_core::Share;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

impl Process {
    /// Sends the messages of its workers to all processes. Returns those of all.
    pub(crate) fn exchange(&mut self) -> Result<(Vec<(u32, ProcessMessage)>, Messages), Error> {
        let gradients = self.common.method.share == Share::Gradients;
        let message = |worker: &WorkerState| {
            let mut report = worker.report(0);
            if gradients {
                report.finite = worker.norms.iter().all(|norm| norm.is_finite());
            }
            (worker.id, worker.message(report))
        };
        let mine = ProcessMessage {
            stop: self.common.stop.load(Ordering::Relaxed),
            keeps: self.common.snapshots.is_some(),
            elapsed: self.elapsed().as_secs_f64(),
            workers: self.workers.iter().map(message).collect(),
            ..self.reporter_state()
        };
        let sent: Vec<Tally> =
            self.workers.iter_mut().map(|worker| std::mem::take(&mut worker.tally)).collect();
        let gathered = self.gather(Exchange::Level(0), mine);
        let heads = gathered.as_deref().unwrap_or_default();
        let messages: Messages = heads.iter().flat_map(|(_, head)| head.workers.iter().cloned()).collect();
        if messages.is_empty() || messages.iter().any(|(_, message)| !message.full) {
            // It will be sent again: at once, or after a resume, which continues as if there had been no exchange.
            for (worker, sent) in self.workers.iter_mut().zip(sent) {
                worker.tally.bytes = 0;
                worker.tally += sent;
            }
        }
        Ok((gathered?, messages))
    }

    /// Gathers the messages of all processes, and counts what that took.
    pub(crate) fn gather(
        &mut self,
        exchange: Exchange,
        mine: ProcessMessage,
    ) -> Result<Vec<(u32, ProcessMessage)>, Error> {
        // Every worker counts as if it had sent its own part: the record does not depend on how workers are placed.
        let sizes: Vec<u64> = mine.workers.iter().map(|(_, message)| message.bytes()).collect();
        let bytes = encode(&mine)?;
        let scores = match exchange {
            Exchange::Level(level) => self.levels[level].method.scores(self.common.layout.spans().len()),
            Exchange::Start | Exchange::FinalBarrier | Exchange::Finish => 0,
        };
        let is_elastic = self.membership.is_elastic();
        let fits = |numbers: Range<u32>, bytes: &[u8]| {
            check(numbers.start, bytes, |message: &ProcessMessage| {
                let workers = message.workers.iter().map(|(worker, _)| *worker);
                is_elastic.then(|| not_own(&numbers, workers)).flatten().or_else(|| message.objection(scores))
            })
        };
        let gathered = match (&mut self.membership, exchange) {
            (Membership::Elastic(all, _), Exchange::FinalBarrier) => Some(all.final_barrier(&bytes, &fits)?),
            (Membership::Elastic(all, _), Exchange::Finish) => Some(all.finish(&bytes, &fits)?),
            (membership, _) => membership.all().map(|all| all.gather_readable(&bytes, &fits)).transpose()?,
        };
        let Some(gathered) = gathered else {
            self.workers.iter_mut().zip(sizes).for_each(|(worker, bytes)| worker.tally.bytes += bytes);
            self.processes = vec![(0, mine.workers.iter().map(|(worker, _)| *worker).collect())];
            return Ok(vec![(0, mine)]);
        };
        for (worker, bytes) in self.workers.iter_mut().zip(sizes) {
            worker.tally.bytes += bytes;
            worker.tally.times.wait += gathered.outcome.wait.as_secs_f64();
            worker.tally.times.wire += gathered.outcome.work.as_secs_f64();
        }
        let heads = (gathered.messages.iter())
            .map(|(process, bytes)| Ok((*process, decode::<ProcessMessage>(*process, bytes)?)))
            .collect::<Result<Vec<_>, Error>>()?;
        let ids = |head: &ProcessMessage| head.workers.iter().map(|(worker, _)| *worker).collect();
        self.processes = heads.iter().map(|(process, head)| (*process, ids(head))).collect();
        self.refresh_centre()?;
        self.report_lost(&gathered.outcome.lost);
        Ok(heads)
    }

    /// Where rounds overlap with training, a centre arrives with the next operation.
    pub(crate) fn refresh_centre(&mut self) -> Result<(), Error> {
        let Some(all) = self.membership.all() else { return Ok(()) };
        if Arc::ptr_eq(all.centre(), &self.all_centre) {
            return Ok(());
        }
        self.all_centre = Arc::clone(all.centre());
        self.set.set_centre(Slot::All, Arc::clone(&self.all_centre))
    }

    /// Processes that stalled; those that left report it themselves. A process that is lost to one group is lost to all, or the next
    /// group waits for it again, and this process stalls in turn.
    pub(crate) fn report_lost(&mut self, lost: &[Lost]) {
        for lost in lost.iter().filter(|lost| !lost.is_left()) {
            let inner =
                self.levels.iter().flat_map(|level| &level.own).filter_map(|group| group.link.as_ref());
            inner.chain(&self.view).for_each(|link| link.forget(lost));
            self.membership.all().into_iter().for_each(|all| all.forget(lost));
            self.report_lost_process(lost);
        }
    }
}
