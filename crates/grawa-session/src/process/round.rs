//! Rounds: plans are made of the reports of all workers, and carried out in this process and between processes.

use super::ending::Exchange;
use super::{Level, Messages, Process};
use crate::Error;
use crate::event::Mixed;
use crate::round_message::{ProcessMessage, RoundMessage};
use crate::worker_set::{Slot, Vectors, WorkerState};
use grawa_comm::{Collective, Error as CommError, Outcome};
use grawa_core::{Memory, Method, Name, Plan, Preset, Pull, Report, Score, Weighting, plan};
use std::sync::Arc;

impl Process {
    /// The round: inside every group where there are groups, and of all workers where it is due.
    pub(crate) fn round(&mut self, messages: &Messages, quota: u64) -> Result<Vec<Mixed>, Error> {
        let end = crate::milestones::Position { steps: self.at.steps.saturating_add(quota), ..self.at };
        let cycle = self.common.milestones.cycle(&end);
        let all = self.levels.len() - 1;
        let last = if self.common.method.is_outer(cycle) { all } else { all.saturating_sub(1) };
        let mut reports: Vec<Report> = messages.iter().map(|(id, message)| message.report(*id)).collect();
        let mut mixed = Vec::new();
        for level in 0..=last {
            if level > 0 {
                // The groups have moved: the scores of the level of all are computed again.
                self.score(level)?;
                reports = self.exchange_reports(level)?;
            }
            mixed.extend(self.round_of(level, &reports)?);
            self.workers.iter_mut().for_each(|worker| worker.trackers[level].round());
        }
        self.workers.iter_mut().for_each(|worker| worker.finite = true);
        Ok(mixed)
    }

    /// All workers start from the parameters of the first one that is finite: a round before the first step.
    pub(crate) fn start_alike(&mut self) -> Result<(), Error> {
        let first = Method {
            score: Score::Loss { window: 1 },
            weighting: Weighting::Smallest,
            pull: Pull::Fixed(1.0),
            prox: 0.0,
            ..Method::named(Name::Mean, Preset::Paper)
        };
        loop {
            let message = |worker: &WorkerState| {
                let finite = worker.finite;
                (worker.id, RoundMessage { finite, steps: 1, ..RoundMessage::default() })
            };
            let workers = self.workers.iter().map(message).collect();
            let mine = ProcessMessage { workers, ..ProcessMessage::default() };
            let heads = self.gather(Exchange::Start, mine)?;
            let all = heads.iter().flat_map(|(_, head)| &head.workers);
            let report = |(id, message): &(u32, RoundMessage)| Report {
                scores: vec![f64::from(*id); first.scores(self.common.layout.spans().len())],
                ..message.report(*id)
            };
            let reports: Vec<Report> = all.map(report).collect();
            let plan = plan(&first, &self.common.layout, &Memory::default(), &reports)?;
            let level = self.levels.len() - 1;
            match self.mix(Group::Round { level, own: 0 }, Slot::All, &plan, Vectors::Parameters) {
                Err(Error::Comm(CommError::Shrunk { lost })) => self.report_lost(&lost),
                mixed => return mixed.map(|_| ()),
            }
        }
    }

    /// The reports of all workers to a level.
    fn exchange_reports(&mut self, level: usize) -> Result<Vec<Report>, Error> {
        let message = |worker: &WorkerState| {
            let Report { finite, scores, steps, .. } = worker.report(level);
            (worker.id, RoundMessage { finite, scores, steps, ..RoundMessage::default() })
        };
        let workers = self.workers.iter().map(message).collect();
        let mine = ProcessMessage { workers, ..ProcessMessage::default() };
        let heads = self.gather(Exchange::Level(level), mine)?;
        let all = heads.iter().flat_map(|(_, head)| &head.workers);
        Ok(all.map(|(id, message)| message.report(*id)).collect())
    }

    /// The round of a level: the groups of this process are mixed, and all processes know the result of every group.
    fn round_of(&mut self, level: usize, reports: &[Report]) -> Result<Vec<Mixed>, Error> {
        let groups = self.levels[level].groups.clone();
        let mut mixed = Vec::with_capacity(groups.len());
        for (number, group) in groups.iter().enumerate() {
            let reports: Vec<Report> =
                reports.iter().filter(|report| group.contains(&report.worker)).cloned().collect();
            if reports.is_empty() {
                // All of the group were lost.
                continue;
            }
            let Level { method, own, memories, .. } = &self.levels[level];
            let (share, rate) = self.moment;
            let plan = match own.iter().position(|group| group.number == number) {
                Some(own) => self.plan_and_mix(level, own, reports, Vectors::Parameters)?,
                None => plan(&method.at(share, rate), &self.common.layout, &memories[number], &reports)?,
            };
            mixed.push(described(&plan));
            self.note_left_out(&plan);
            self.levels[level].memories[number] = plan.memory;
        }
        Ok(mixed)
    }

    pub(crate) fn share_gradients(&mut self, messages: &Messages) -> Result<Mixed, Error> {
        let reports = messages.iter().map(|(id, message)| message.report(*id)).collect();
        let last = self.levels.len() - 1;
        let plan = self.plan_and_mix(last, 0, reports, Vectors::Gradients)?;
        let mixed = described(&plan);
        self.note_left_out(&plan);
        self.levels[last].memories[0] = plan.memory;
        Ok(mixed)
    }

    /// Plans and mixes a group of this process; if another process is lost meanwhile, plans again without it.
    fn plan_and_mix(
        &mut self,
        level: usize,
        own: usize,
        mut reports: Vec<Report>,
        vectors: Vectors,
    ) -> Result<Plan, Error> {
        let group = Group::Round { level, own };
        loop {
            let Level { method, memories, own: groups, .. } = &self.levels[level];
            let (share, rate) = self.moment;
            let memory = &memories[groups[own].number];
            let plan = plan(&method.at(share, rate), &self.common.layout, memory, &reports)?;
            let slot = groups[own].slot;
            match self.mix(group, slot, &plan, vectors) {
                Ok(outcome) => {
                    let (members, is_linked) = (self.ranks(&plan), self.link(group).is_some());
                    self.count_mix(&outcome, &members, is_linked);
                    self.report_lost(&outcome.lost);
                    for (rank, index) in members {
                        if plan.replaced[rank] && vectors == Vectors::Parameters {
                            self.set.reset(index);
                        }
                    }
                    return Ok(plan);
                }
                Err(Error::Comm(CommError::Shrunk { lost })) => {
                    let here = self.link(group).map(|link| link.members().to_vec()).unwrap_or_default();
                    let before = reports.len();
                    self.processes.retain(|(process, _)| here.contains(process));
                    let left =
                        |worker: u32| self.processes.iter().any(|(_, workers)| workers.contains(&worker));
                    reports.retain(|report| left(report.worker));
                    if reports.len() == before {
                        return Err(CommError::Shrunk { lost }.into());
                    }
                    self.report_lost(&lost);
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes the centre of a group and pulls its workers here.
    pub fn mix(&mut self, group: Group, slot: Slot, plan: &Plan, vectors: Vectors) -> Result<Outcome, Error> {
        let ranks = self.ranks(plan);
        let indices: Vec<usize> = ranks.iter().map(|(_, index)| *index).collect();
        let clock = Arc::clone(&self.common.clock);
        let start = clock();
        let workers: Vec<u32> = ranks.iter().map(|(rank, _)| plan.workers[*rank]).collect();
        let part = plan.within(&workers);
        let members = self.link(group).map(|link| link.members().to_vec()).unwrap_or_default();
        let of_process = |id: &u32| {
            let found = self.processes.iter().find(|(process, _)| process == id);
            (*id, found.map(|(_, workers)| workers.clone()).unwrap_or_default())
        };
        // Also processes that have lost their workers of the group take part, with weight zero.
        let by_process = plan.by_process(&members.iter().map(of_process).collect::<Vec<_>>());
        let Process { set, levels, membership, view, common, all_centre, .. } = self;
        let link: Option<&mut dyn Collective> = match group {
            Group::View => view.as_deref_mut().map(|link| link as _),
            Group::Round { level, own } => match &mut levels[level].own[own] {
                own if own.slot == Slot::All => membership.all(),
                own => own.link.as_deref_mut().map(|link| link as _),
            },
        };
        let Some(link) = link else {
            set.mix(slot, plan, &indices, vectors)?;
            let (bytes, work) = (4 * common.layout.len() as u64, clock().saturating_sub(start));
            return Ok(Outcome { bytes, work, ..Outcome::default() });
        };
        let before = Arc::clone(link.centre());
        let mut outcome = set
            .combine(&part, &indices, vectors, &mut |vector| link.mix(&by_process, &common.layout, vector))?;
        let after = Arc::clone(link.centre());
        if after.len() != before.len() {
            let what =
                "the centre of a transport that does not keep the velocity of an outer optimizer".into();
            let (found, expected) = (after.len(), before.len());
            return Err(grawa_core::Error::WrongLength { what, found, expected }.into());
        }
        set.pull(plan, &ranks, (&before, &after), vectors)?;
        // The memory of the old centre is used for the one after the next.
        drop(before);
        if slot == Slot::All {
            *all_centre = Arc::clone(&after);
        }
        set.set_centre(slot, after)?;
        // Making the vector of this process and pulling its workers may take longer than the operation, on a GPU for example.
        outcome.work = clock().saturating_sub(start).saturating_sub(outcome.wait);
        Ok(outcome)
    }

    fn link(&mut self, group: Group) -> Option<&mut dyn Collective> {
        match group {
            Group::View => self.view.as_deref_mut().map(|link| link as _),
            Group::Round { level, own } if self.levels[level].own[own].slot == Slot::All => {
                self.membership.all()
            }
            Group::Round { level, own } => {
                self.levels[level].own[own].link.as_deref_mut().map(|link| link as _)
            }
        }
    }

    /// The workers of a plan that are here: rank in the plan, and index in the set.
    fn ranks(&self, plan: &Plan) -> Vec<(usize, usize)> {
        let workers = self.workers.iter();
        workers.filter_map(|worker| Some((plan.index_of(worker.id)?, worker.index))).collect()
    }

    /// Counts a round of these workers. Where they are all here, each counts as if it had sent its vector.
    fn count_mix(&mut self, outcome: &Outcome, members: &[(usize, usize)], is_linked: bool) {
        let mut counts = true;
        for worker in &mut self.workers {
            if members.iter().any(|(_, index)| *index == worker.index) {
                worker.tally.bytes += if counts { outcome.bytes } else { 0 };
                worker.tally.times.wait += outcome.wait.as_secs_f64();
                worker.tally.times.apply += outcome.work.as_secs_f64();
                counts = !is_linked;
            }
        }
    }
}

/// A group to be mixed.
#[derive(Clone, Copy, Debug)]
pub enum Group {
    /// A group of this process, by level and place.
    Round { level: usize, own: usize },
    /// The group that makes the model to be evaluated.
    View,
}

fn described(plan: &Plan) -> Mixed {
    Mixed {
        workers: plan.workers.clone(),
        weights: plan.weights.rows().map(<[f32]>::to_vec).collect(),
        pull: plan.pull,
        reasons: plan.reasons.clone(),
    }
}
