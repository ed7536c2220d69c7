//! Evaluation in the middle of a run: which model, with which statistics, measured by all workers together.
//!
//! The model is made by a round that pulls no worker: the mean of the workers is a round of equal weights, the best worker one in which
//! the smallest loss leads. Every worker then measures its share of the test set. The training state does not change, and the time is
//! not counted as training time.

use crate::Error;
use crate::engine::{Counts, EvaluateShard, average};
use crate::event::{Evaluated, Event, Model};
use crate::recipe::BatchNorm;
use crate::round_message::{from_bytes, to_bytes};
use crate::shares::measure_together;
use crate::worker::{Worker, finite};
use grawa_comm::{Collective, Error as CommError, Lost};
use grawa_core::{
    Evaluate, Layout, Memory, Method, Name, Plan, Preset, Pull, Replica, Report, Score, StateKind, Weighting,
    plan,
};
use std::sync::Arc;

/// The round that makes the evaluated model, where it is made of the workers.
pub(crate) fn viewing(evaluate: Evaluate) -> Option<Method> {
    let still = Method { pull: Pull::Fixed(0.0), prox: 0.0, ..Method::named(Name::Mean, Preset::Paper) };
    match evaluate {
        Evaluate::Mean => Some(still),
        Evaluate::Best => {
            Some(Method { score: Score::Loss { window: 1 }, weighting: Weighting::Smallest, ..still })
        }
        Evaluate::Centre | Evaluate::Each => None,
    }
}

/// The plan of that round: workers that are not finite do not count, and a worker without a loss is never the best.
pub(crate) fn view(method: &Method, layout: &Layout, workers: &[(u32, f64, bool)]) -> Result<Plan, Error> {
    let reports: Vec<Report> = (workers.iter())
        .map(|&(worker, loss, finite)| Report {
            worker,
            scores: vec![loss; method.scores(layout.spans().len())],
            finite,
            steps: 1,
        })
        .collect();
    let mut plan = plan(method, layout, &Memory::default(), &reports)?;
    // Evaluation changes no worker: one that is not finite stays as it is.
    plan.replaced.fill(false);
    Ok(plan)
}

impl<R: Replica, C: Collective<Buffer = R::Buffer>> Worker<R, C> {
    /// Measures the model of the method.
    pub(crate) fn evaluate(&mut self) -> Result<(), Error> {
        let common = Arc::clone(&self.common);
        if self.examiner.is_none() {
            return Ok(());
        }
        let start = (common.clock)();
        let best = self.make_view()?;
        let statistics = self.replica.copy(StateKind::Statistics)?;
        let Some(examiner) = &mut self.examiner else { return Ok(()) };
        let last = self.levels.len() - 1;
        // The model is in one group, so the workers communicate through the other.
        let evaluate = common.method.evaluate;
        let (model, talk, members): (&R::Buffer, &mut C, &[u32]) = match evaluate {
            Evaluate::Mean | Evaluate::Best => {
                (self.view.centre(), &mut self.levels[last].member, self.view.members())
            }
            Evaluate::Centre => {
                let all = &self.levels[last].member;
                (all.centre(), &mut self.view, all.members())
            }
            Evaluate::Each => (self.replica.parameters(), &mut self.view, self.levels[last].member.members()),
        };
        let (mut members, mut lost) = (members.to_vec(), Vec::new());
        let each = evaluate == Evaluate::Each;
        let statistics = settle_statistics(
            &mut **examiner,
            model,
            statistics,
            (talk, &mut members, &mut lost),
            best.filter(|_| !each),
            each,
        )?;
        let counts = measure_together(talk, &mut members, &mut lost, |seat, alive| {
            let seat = if each { (0, 1) } else { seat };
            let Counts { loss, wrong, examples } = examiner.test(model, &statistics, seat, alive)?;
            Ok(vec![loss, wrong as f64, examples as f64])
        })?;
        let mut models = Vec::new();
        for (worker, numbers) in counts {
            let counts = Counts { loss: numbers[0], wrong: numbers[1] as u64, examples: numbers[2] as u64 };
            models.push((format!("worker {worker}"), counts));
        }
        if !each {
            let which = match (evaluate, best) {
                (Evaluate::Centre, _) => "centre".to_owned(),
                (Evaluate::Best, Some(worker)) => format!("best (worker {worker})"),
                _ => "mean".into(),
            };
            let mut sum = Counts::default();
            for (_, counts) in &models {
                sum.loss += counts.loss;
                sum.wrong += counts.wrong;
                sum.examples += counts.examples;
            }
            models = vec![(which, sum)];
        }
        let models = models.into_iter().map(|(which, counts)| Model {
            which,
            loss: finite(counts.loss / counts.examples as f64),
            wrong: counts.wrong,
            examples: counts.examples,
        });
        let evaluated = Evaluated { at: self.place(), models: models.collect() };
        self.calibrated = statistics;
        let spent = (common.clock)().saturating_sub(start);
        // It is not training time.
        self.began += spent;
        self.tally.times.evaluate += spent.as_secs_f64();
        self.report_shared(vec![Event::Evaluated(evaluated.clone())]);
        self.history.push(evaluated);
        if let Some(waits) = &self.waits {
            waits.take();
        }
        Ok(())
    }

    /// Makes the evaluated model in the view, where it is made of the workers. Returns who leads it, if one does.
    pub(crate) fn make_view(&mut self) -> Result<Option<u32>, Error> {
        let Some(method) = viewing(self.common.method.evaluate) else { return Ok(None) };
        loop {
            let mine = to_bytes(&[self.loss, f64::from(u8::from(self.finite))]);
            let gathered = self.view.gather(&mine)?;
            let mut workers = Vec::new();
            for (worker, bytes) in &gathered.messages {
                let numbers = from_bytes(*worker, bytes, 2)?;
                workers.push((*worker, numbers[0], numbers[1] > 0.0));
            }
            let plan = view(&method, &self.common.layout, &workers)?;
            let leader = plan.weights.of(0).iter().position(|&weight| weight == 1.0);
            match self.view.mix(&plan, &self.common.layout, self.replica.parameters()) {
                Ok(_) => return Ok(leader.map(|at| plan.workers[at]).filter(|_| plan.workers.len() > 1)),
                Err(CommError::Shrunk { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// The statistics for the evaluated model, as the policy says.
fn settle_statistics<C: Collective>(
    examiner: &mut dyn EvaluateShard<C::Buffer>,
    model: &C::Buffer,
    own: Vec<f32>,
    (talk, members, lost): (&mut C, &mut Vec<u32>, &mut Vec<Lost>),
    of: Option<u32>,
    each: bool,
) -> Result<Vec<f32>, Error> {
    let layout = examiner.statistics().clone();
    if layout.is_empty() {
        return Ok(own);
    }
    let wide = |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
    let narrow = |numbers: Vec<f64>| numbers.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
    match examiner.policy() {
        BatchNorm::Keep if each => Ok(own),
        BatchNorm::Keep | BatchNorm::Average => {
            let gathered = talk.gather(&to_bytes(&wide(&own)))?;
            lost.extend(gathered.outcome.lost);
            let mut workers = Vec::new();
            for (worker, bytes) in &gathered.messages {
                workers.push((*worker, narrow(from_bytes(*worker, bytes, layout.len())?)));
            }
            if examiner.policy() == BatchNorm::Average {
                let workers: Vec<Vec<f32>> = workers.into_iter().map(|(_, statistics)| statistics).collect();
                return Ok(average(&layout, &workers));
            }
            let chosen = workers.iter().position(|(worker, _)| Some(*worker) == of).unwrap_or(0);
            Ok(workers.swap_remove(chosen).1)
        }
        BatchNorm::Recalibrate => {
            let mut share = |seat: (usize, usize), alive: &mut dyn FnMut()| {
                let (mut sums, count) = examiner.recalibrate(model, seat, alive)?;
                sums.push(count as f64);
                Ok::<_, Error>(sums)
            };
            let shares = match each {
                true => vec![(talk.worker(), share((0, 1), &mut || talk.alive())?)],
                false => measure_together(talk, members, lost, share)?,
            };
            let mut sums = vec![0.0; layout.len() + 1];
            for (_, share) in shares {
                sums.iter_mut().zip(share).for_each(|(sum, x)| *sum += x);
            }
            let total = sums.pop().unwrap_or(0.0);
            Ok(narrow(sums.into_iter().map(|sum| sum / total).collect()))
        }
    }
}

#[cfg(test)]
mod tests;
