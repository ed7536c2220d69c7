//! Evaluation in the middle of a run: which model, with which statistics, measured by all workers together.
//!
//! The model is made by a round that pulls no worker: the mean of the workers is a round of equal weights, the best worker one in which
//! the smallest loss leads. Every worker then measures its share of the test set. The training state does not change, and the time is
//! not counted as training time. A run that is asked to stop breaks its evaluation off, and makes it again after a
//! resume.

use crate::BatchNorm;
use crate::Error;
use crate::event::{Evaluated, Event, Model};
use crate::membership::Membership;
use crate::process::{Group, Process, finite};
use crate::round_message::{check, decode, encode, not_own};
use crate::worker_set::{Evaluation, Measured, PerWorker, Shard, Slot, Vectors, WorkerSet};
use grawa_comm::Error as CommError;
use grawa_core::{
    Evaluate, Layout, Memory, Method, Name, Plan, Preset, Pull, Report, Score, StateKind, Weighting, plan,
};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The round that makes the evaluated model, where it is made of the workers.
pub fn viewing(evaluate: Evaluate) -> Option<Method> {
    let still = Method { pull: Pull::Fixed(0.0), prox: 0.0, ..Method::named(Name::Mean, Preset::Paper) };
    match evaluate {
        Evaluate::Mean => Some(still),
        Evaluate::Best => {
            Some(Method { score: Score::Loss { window: 1 }, weighting: Weighting::Smallest, ..still })
        }
        Evaluate::Centre | Evaluate::Each => None,
    }
}

/// The round that makes the saved model, where it is made of the workers: their mean where each is evaluated by itself.
pub fn saving(evaluate: Evaluate) -> Option<Method> {
    viewing(if evaluate == Evaluate::Each { Evaluate::Mean } else { evaluate })
}

/// The plan of such a round: workers that are not finite do not count, and a worker without a loss is never the best.
pub fn view(method: &Method, layout: &Layout, workers: &[(u32, f64, bool)]) -> Result<Plan, Error> {
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

/// Counts over a part of the test set.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Counts {
    /// The sum of the losses.
    pub loss: f64,
    /// Examples that were classified wrong.
    pub wrong: u64,
    /// All examples.
    pub examples: u64,
}

impl Counts {
    /// Counts one example: its loss, and whether another class has a logit as large as the label's.
    pub fn take(&mut self, logits: &[f32], label: usize) {
        let largest = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let sum: f64 = logits.iter().map(|&x| libm::exp(f64::from(x) - f64::from(largest))).sum();
        self.loss += libm::log(sum) + f64::from(largest) - f64::from(logits[label]);
        let own = logits[label];
        let is_first = logits.iter().enumerate().all(|(class, &x)| class == label || x < own);
        self.wrong += u64::from(!is_first);
        self.examples += 1;
    }
}

/// The average of the workers' running statistics: means are averaged, variances include the differences between
/// workers, as if one worker had seen all batches. Means and variances are pairs of spans.
pub fn average(layout: &Layout, workers: &[Vec<f32>]) -> Vec<f32> {
    let mut out = workers.first().cloned().unwrap_or_default();
    let count = workers.len() as f64;
    let mean = |at: usize| workers.iter().map(|worker| f64::from(worker[at])).sum::<f64>() / count;
    for span in layout.spans().iter().filter(|span| span.name().ends_with("running_mean")) {
        let name = span.name().replace("running_mean", "running_var");
        let Some(variances) = layout.find(&name) else { continue };
        for (at, to) in span.range().zip(variances.range()) {
            let centre = mean(at);
            let between: f64 = workers.iter().map(|w| (f64::from(w[at]) - centre).powi(2)).sum();
            out[at] = centre as f32;
            out[to] = (mean(to) + between / count) as f32;
        }
    }
    out
}

/// Statistics of a model: of the worker with this index, or for all.
type ModelStatistics = (Option<usize>, Arc<Vec<f32>>);

/// What each worker measured.
type Numbers = Vec<(u32, Vec<f64>)>;

/// The models of a method, and what their statistics were.
type MeasuredModels = (Vec<Model>, Vec<ModelStatistics>);

impl Process {
    /// Measures the model of the method; false if that was broken off, since the run is to stop.
    pub fn evaluate(&mut self) -> Result<bool, Error> {
        let Some(evaluation) = self.set.evaluation() else { return Ok(true) };
        let clock = Arc::clone(&self.common.clock);
        let start = clock();
        let measured = self.measure(&evaluation)?;
        let spent = clock().saturating_sub(start);
        // It is not training time.
        self.began += spent;
        for worker in &mut self.workers {
            worker.tally.times.evaluate += spent.as_secs_f64();
        }
        let Some((models, statistics)) = measured else { return Ok(false) };
        let evaluated = Evaluated { at: self.place(), models };
        self.calibrated = statistics.first().map(|(_, statistics)| statistics.to_vec()).unwrap_or_default();
        self.report_shared(vec![Event::Evaluated(evaluated.clone())]);
        self.history.push(evaluated);
        self.evaluated_at = Some(self.at);
        Ok(true)
    }

    /// The results of the method's models, and the statistics they were measured with; none if that was broken off.
    fn measure(&mut self, evaluation: &Evaluation) -> Result<Option<MeasuredModels>, Error> {
        let best = self.make_view()?;
        let evaluate = self.common.method.evaluate;
        let model = match evaluate {
            Evaluate::Each => Measured::Own,
            _ => Measured::Centre(self.evaluated_slot()?),
        };
        let Some(statistics) = self.settle_statistics(evaluation, model, best)? else { return Ok(None) };
        let counts = self.measure_together(model, 3, |set, shards| {
            let of = |shard: &Shard| statistics.iter().find(|(index, _)| *index == Some(shard.index));
            let all = statistics.first().map(|(_, statistics)| Arc::clone(statistics)).unwrap_or_default();
            let statistics: Vec<Arc<Vec<f32>>> = (shards.iter())
                .map(|shard| of(shard).map_or_else(|| Arc::clone(&all), |(_, own)| Arc::clone(own)))
                .collect();
            let numbers = |counts: Counts| vec![counts.loss, counts.wrong as f64, counts.examples as f64];
            let counts = set.test(model, shards, &statistics);
            counts.into_iter().map(|(index, counts)| (index, counts.map(numbers))).collect()
        })?;
        let Some(counts) = counts else { return Ok(None) };
        let mut models = Vec::new();
        for (worker, numbers) in counts {
            let [loss, wrong, examples] = numbers[..] else {
                return Err(Error::Garbled { worker, found: numbers.len() });
            };
            let counts = Counts { loss, wrong: wrong as u64, examples: examples as u64 };
            models.push((format!("worker {worker}"), counts));
        }
        if model != Measured::Own {
            let which = match (evaluate, best) {
                (Evaluate::Centre, _) => "centre".to_owned(),
                (Evaluate::Best, Some(worker)) => format!("best (worker {worker})"),
                _ => "mean".into(),
            };
            let mut sum = Counts::default();
            for (_, counts) in &models {
                sum.loss += counts.loss;
                sum.wrong = sum.wrong.saturating_add(counts.wrong);
                sum.examples = sum.examples.saturating_add(counts.examples);
            }
            models = vec![(which, sum)];
        }
        let models = models.into_iter().map(|(which, counts)| Model {
            which,
            loss: finite(counts.loss / counts.examples as f64),
            wrong: counts.wrong,
            examples: counts.examples,
        });
        Ok(Some((models.collect(), statistics)))
    }

    /// Where the evaluated model is, if it is one.
    pub(crate) fn evaluated_slot(&mut self) -> Result<Slot, Error> {
        if self.common.method.evaluate != Evaluate::Centre {
            return Ok(Slot::View);
        }
        let Membership::Elastic(all, _) = &self.membership else { return Ok(Slot::All) };
        let newest = all.newest_centre()?;
        if Arc::ptr_eq(&newest, &self.all_centre) {
            return Ok(Slot::All);
        }
        // Workers are not pulled toward it yet, but it is what the group holds, and what is saved.
        let len = self.common.layout.len();
        let model = if newest.len() == len { newest } else { Arc::new(newest[..len].to_vec()) };
        self.set.set_centre(Slot::View, model)?;
        Ok(Slot::View)
    }

    /// Makes the evaluated model in the view, where it is made of the workers. Returns who leads it, if one does.
    pub fn make_view(&mut self) -> Result<Option<u32>, Error> {
        viewing(self.common.method.evaluate).map_or(Ok(None), |method| self.make_view_by(&method))
    }

    /// Makes the model to be saved in the view, where it is made of the workers. One that was evaluated here stays: if a worker was lost
    /// since, the others would make another one.
    pub(crate) fn make_saved_view(&mut self, stopped: bool) -> Result<(), Error> {
        let Some(method) = saving(self.common.method.evaluate) else { return Ok(()) };
        let is_evaluated = !stopped && self.evaluated_at == Some(self.at);
        let keeps = is_evaluated && self.common.method.evaluate != Evaluate::Each;
        let evaluated = keeps.then(|| self.set.centre(Slot::View)).transpose()?;
        // All take part: one that has just taken the state of the others has evaluated nothing.
        self.make_view_by(&method)?;
        evaluated.map_or(Ok(()), |evaluated| self.set.set_centre(Slot::View, evaluated))
    }

    fn make_view_by(&mut self, method: &Method) -> Result<Option<u32>, Error> {
        loop {
            let mine: Vec<(u32, f64, bool)> =
                self.workers.iter().map(|worker| (worker.id, worker.loss, worker.finite)).collect();
            let mut workers = self.gather_view(mine)?;
            // Workers that took the final state of the others have no part in it.
            let without_part = self.without_part(workers.iter().map(|(id, ..)| *id));
            workers.iter_mut().for_each(|(id, _, counts)| *counts &= !without_part.contains(id));
            let plan = view(method, &self.common.layout, &workers)?;
            let leader = plan.weights.of(0).iter().position(|&weight| weight == 1.0);
            match self.mix(Group::View, Slot::View, &plan, Vectors::Parameters) {
                Ok(_) => return Ok(leader.map(|at| plan.workers[at]).filter(|_| plan.workers.len() > 1)),
                Err(Error::Comm(CommError::Shrunk { .. })) => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// What all workers send, in the order of the workers. The first field is the worker's number.
    fn gather_view(&mut self, mine: Vec<(u32, f64, bool)>) -> Result<Vec<(u32, f64, bool)>, Error> {
        let Some(link) = &mut self.view else { return Ok(mine) };
        let is_elastic = self.membership.is_elastic();
        let fits = |numbers: Range<u32>, bytes: &[u8]| {
            check(numbers.start, bytes, |found: &Vec<(u32, f64, bool)>| {
                is_elastic.then(|| not_own(&numbers, found.iter().map(|(worker, ..)| *worker))).flatten()
            })
        };
        let gathered = link.gather_readable(&encode(&mine)?, &fits)?;
        let mut all = Vec::new();
        self.processes.clear();
        for (process, bytes) in &gathered.messages {
            let workers: Vec<(u32, f64, bool)> = decode(*process, bytes)?;
            self.processes.push((*process, workers.iter().map(|(worker, ..)| *worker).collect()));
            all.extend(workers);
        }
        Ok(all)
    }

    /// Sends the numbers of its workers to all processes, so many of each. Returns those of all workers. A process that is asked to stop may send
    /// none, where that `may_stop` all.
    pub(crate) fn gather_numbers(
        &mut self,
        mine: Numbers,
        each: usize,
        may_stop: bool,
    ) -> Result<Numbers, Error> {
        let is_elastic = self.membership.is_elastic();
        let Some(all) = self.membership.all() else { return Ok(mine) };
        let fits = |numbers: Range<u32>, bytes: &[u8]| {
            check(numbers.start, bytes, |found: &Numbers| {
                let stops = may_stop && found.iter().all(|(_, numbers)| numbers.is_empty());
                let wrong = found.iter().find(|(_, numbers)| !stops && numbers.len() != each);
                let workers = found.iter().map(|(worker, _)| *worker);
                is_elastic.then(|| not_own(&numbers, workers)).flatten().or_else(|| {
                    let (worker, numbers) = wrong?;
                    Some(format!("worker {worker} sends {} numbers, and {each} are needed", numbers.len()))
                })
            })
        };
        let gathered = all.gather_readable(&encode(&mine)?, &fits)?;
        let mut numbers = Vec::new();
        for (process, bytes) in &gathered.messages {
            numbers.extend(decode::<Numbers>(*process, bytes)?);
        }
        Ok(numbers)
    }

    /// Every worker of the run measures its share of the batches, and all get the results of all. If one is lost meanwhile its share is
    /// missing, and the others divide all batches again: so the result covers all batches. No worker joins meanwhile, so each repetition
    /// has fewer workers, and it ends.
    ///
    /// None if it was broken off, since the run is to stop: no numbers of one process tell this to all.
    fn measure_together(
        &mut self,
        model: Measured,
        each: usize,
        mut measure: impl FnMut(&mut dyn WorkerSet, &[Shard]) -> PerWorker<Vec<f64>>,
    ) -> Result<Option<Numbers>, Error> {
        let mut all: Vec<u32> =
            self.processes.iter().flat_map(|(_, workers)| workers.iter().copied()).collect();
        loop {
            let shard = |index: usize, worker: u32| match model {
                Measured::Own => Shard { index, shard: 0, of: 1 },
                Measured::Centre(_) => {
                    let shard = all.iter().position(|&other| other == worker).unwrap_or(0);
                    Shard { index, shard, of: all.len().max(1) }
                }
            };
            let shards: Vec<Shard> =
                self.workers.iter().map(|worker| shard(worker.index, worker.id)).collect();
            let measured = measure(&mut *self.set, &shards);
            let mut mine = Vec::new();
            self.take(measured, |worker, numbers| mine.push((worker.id, numbers)))?;
            if self.common.stop.load(Ordering::Relaxed) {
                if self.membership.is_elastic() && !self.common.together.load(Ordering::Relaxed) {
                    // The others measure again, without it.
                    return Err(Error::Left);
                }
                // They may be of a part.
                mine.iter_mut().for_each(|(_, numbers)| numbers.clear());
            }
            let mut results = self.gather_numbers(mine, each, true)?;
            if results.iter().any(|(_, numbers)| numbers.is_empty()) {
                return Ok(None);
            }
            // Only workers that were asked count, and each once.
            let mut expected = all.iter().copied().peekable();
            results.retain(|(worker, _)| {
                while expected.next_if(|other| other < worker).is_some() {}
                expected.next_if_eq(worker).is_some()
            });
            let heard: Vec<u32> = results.iter().map(|(worker, _)| *worker).collect();
            if heard == all {
                return Ok(Some(results));
            }
            self.processes
                .iter_mut()
                .for_each(|(_, workers)| workers.retain(|worker| heard.contains(worker)));
            all = heard;
        }
    }

    /// The statistics for the evaluated model, as the policy says; none if counting them was broken off.
    fn settle_statistics(
        &mut self,
        Evaluation { policy, statistics: layout }: &Evaluation,
        model: Measured,
        leader: Option<u32>,
    ) -> Result<Option<Vec<ModelStatistics>>, Error> {
        let is_each = model == Measured::Own;
        let mut own = Vec::new();
        // Recalibration does not need them, and a GPU would have to be waited for.
        if layout.is_empty() || *policy != BatchNorm::Recalibrate {
            for worker in &self.workers {
                own.push((worker.index, worker.id, self.set.copy(worker.index, StateKind::Statistics)?));
            }
        }
        if layout.is_empty() || (is_each && *policy == BatchNorm::Keep) {
            let own = own.into_iter();
            return Ok(Some(own.map(|(index, _, statistics)| (Some(index), Arc::new(statistics))).collect()));
        }
        let narrow = |numbers: Vec<f64>| numbers.into_iter().map(|x| x as f32).collect::<Vec<f32>>();
        if *policy != BatchNorm::Recalibrate {
            let wide = |numbers: &[f32]| numbers.iter().map(|&x| f64::from(x)).collect::<Vec<f64>>();
            let mine = own.iter().map(|(_, worker, statistics)| (*worker, wide(statistics))).collect();
            let mut workers = self.gather_numbers(mine, layout.len(), false)?;
            if let Some((worker, found)) = workers.iter().find(|(_, found)| found.len() != layout.len()) {
                return Err(Error::Garbled { worker: *worker, found: found.len() });
            }
            if *policy == BatchNorm::Average {
                let without_part = self.without_part(workers.iter().map(|(worker, _)| *worker));
                workers.retain(|(worker, _)| !without_part.contains(worker));
                let workers: Vec<Vec<f32>> =
                    workers.into_iter().map(|(_, numbers)| narrow(numbers)).collect();
                return Ok(Some(vec![(None, Arc::new(average(layout, &workers)))]));
            }
            let leader = leader.filter(|_| !is_each);
            let chosen = workers.iter().position(|(worker, _)| Some(*worker) == leader).unwrap_or(0);
            return Ok(Some(vec![(None, Arc::new(narrow(workers.swap_remove(chosen).1)))]));
        }
        let mean = |mut sums: Vec<f64>| {
            let total = sums.pop().unwrap_or(0.0);
            narrow(sums.into_iter().map(|sum| sum / total).collect())
        };
        let with_count = |(mut sums, count): (Vec<f64>, u64)| {
            sums.push(count as f64);
            sums
        };
        if is_each {
            let shards: Vec<Shard> =
                self.workers.iter().map(|worker| Shard { index: worker.index, shard: 0, of: 1 }).collect();
            let found = self.set.recalibrate(model, &shards);
            let mut own = Vec::new();
            self.take(found, |worker, found| {
                own.push((Some(worker.index), Arc::new(mean(with_count(found)))));
            })?;
            return Ok(Some(own));
        }
        let shares = self.measure_together(model, layout.len() + 1, |set, shards| {
            let found = set.recalibrate(model, shards);
            found.into_iter().map(|(index, found)| (index, found.map(with_count))).collect()
        })?;
        let Some(shares) = shares else { return Ok(None) };
        let mut sums = vec![0.0; layout.len() + 1];
        for (worker, share) in shares {
            if share.len() != sums.len() {
                return Err(Error::Garbled { worker, found: share.len() });
            }
            sums.iter_mut().zip(share).for_each(|(sum, x)| *sum += x);
        }
        Ok(Some(vec![(None, Arc::new(mean(sums)))]))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Two workers that saw batches of mean 0 and 2, each of variance 1: together mean 1 and variance 2.
    #[test]
    fn averaged_statistics_hold_the_differences_between_workers() {
        let layout = Layout::new([("bn.running_mean", vec![1]), ("bn.running_var", vec![1])]).unwrap();
        assert_eq!(average(&layout, &[vec![0.0, 1.0], vec![2.0, 1.0]]), [1.0, 2.0]);
        assert_eq!(average(&layout, &[vec![3.0, 5.0]]), [3.0, 5.0]);
    }

    #[test]
    fn an_example_counts_as_right_only_if_its_class_is_alone_in_front() {
        let count = |logits: &[f32], label| {
            let mut counts = Counts::default();
            counts.take(logits, label);
            counts
        };
        assert_eq!(count(&[1.0, 3.0], 1).wrong, 0);
        assert_eq!(count(&[3.0, 3.0], 1).wrong, 1);
        assert_eq!(count(&[f32::NAN, 3.0], 1).wrong, 1);
        assert!((count(&[0.0, 0.0], 0).loss - 2f64.ln()).abs() < 1e-12);
        assert!((count(&[1000.0, 0.0], 1).loss - 1000.0).abs() < 1e-9);
    }
}
