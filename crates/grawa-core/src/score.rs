//! What a worker reports to a round, and the running averages behind it.
//!
//! Two averages exist. Over rounds, [`Memory`] smooths the score each worker computed on a batch; it lives in
//! the round's plan, so that every member of a group holds the same one. Over local steps, a worker's
//! [`Tracker`] keeps the last losses and the running norms of its own gradients. Both are the same
//! exponential average with bias correction: s ← γ·s + (1−γ)·A, ŝ = s / (1 − γᵗ).

use crate::error::expect_len;
use crate::method::{Norm, Score, Source};
use crate::{Error, Layout, Method};
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, VecDeque};

/// The report of a worker to a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Report {
    /// Which worker; the lowest rank wins a tie.
    pub worker: u32,
    /// Its scores: none, one, or one for each span, as [`Method::scores`] says. A missing score is NaN.
    pub scores: Vec<f64>,
    /// Whether all its parameters (or, where gradients are shared, gradients) are finite.
    pub finite: bool,
    /// Local steps since the last round.
    pub steps: u64,
}

/// An exponential average of several numbers with bias correction.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Average {
    pub(crate) sums: Vec<f64>,
    pub(crate) weights: Vec<f64>,
}

impl Average {
    /// An average of `len` numbers, without values yet.
    pub fn new(len: usize) -> Self {
        Average { sums: vec![0.0; len], weights: vec![0.0; len] }
    }

    /// Adds new values. A value that is not finite is skipped: a single bad batch must not spoil the average.
    pub fn add(&mut self, momentum: f64, values: &[f64]) {
        for ((sum, weight), &value) in self.sums.iter_mut().zip(&mut self.weights).zip(values) {
            if value.is_finite() {
                *sum = momentum * *sum + (1.0 - momentum) * value;
                *weight = momentum * *weight + (1.0 - momentum);
            }
        }
    }

    /// The corrected averages; NaN for a number that was never seen.
    pub fn values(&self) -> impl Iterator<Item = f64> + '_ {
        // The weight is 1 − γᵗ, updated step by step.
        self.sums
            .iter()
            .zip(&self.weights)
            .map(|(sum, weight)| if *weight > 0.0 { sum / weight } else { f64::NAN })
    }

    /// Forgets everything.
    pub fn clear(&mut self) {
        self.sums.fill(0.0);
        self.weights.fill(0.0);
    }

    fn len(&self) -> usize {
        self.sums.len()
    }
}

/// The memory of a method from round to round: the score momentum of every worker.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Memory {
    /// Rounds so far.
    pub rounds: u64,
    pub(crate) averages: BTreeMap<u32, Average>,
}

impl Memory {
    /// Adds a worker's scores and returns the smoothed ones. A score that is bad now stays bad now, whatever the average.
    pub(crate) fn smooth(&mut self, momentum: f64, report: &Report) -> Vec<f64> {
        let fresh = || Average::new(report.scores.len());
        let average = self.averages.entry(report.worker).or_insert_with(fresh);
        if average.len() != report.scores.len() {
            *average = fresh();
        }
        // No norm is negative: such a score is as bad as NaN and is skipped too.
        let good: Vec<f64> =
            report.scores.iter().map(|&raw| if raw < 0.0 { f64::NAN } else { raw }).collect();
        average.add(momentum, &good);
        average
            .values()
            .zip(&report.scores)
            .map(|(smooth, &raw)| if raw.is_finite() && raw >= 0.0 { smooth } else { raw })
            .collect()
    }

    /// Forgets a worker whose parameters were replaced: its past does not describe the new ones.
    pub(crate) fn forget(&mut self, worker: u32) {
        self.averages.remove(&worker);
    }
}

/// Statistics of a worker over its local steps.
#[derive(Clone, Debug)]
pub struct Tracker {
    score: Score,
    notes: Notes,
}

/// The state of a [`Tracker`], for a checkpoint.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Notes {
    losses: VecDeque<f64>,
    norms: Average,
    steps: u64,
    finite: bool,
}

impl Tracker {
    /// The tracker a method needs over a layout.
    pub fn new(method: &Method, layout: &Layout) -> Self {
        let spans = match method.score {
            Score::Norm { from: Source::Training { .. }, .. } => layout.spans().len(),
            Score::None | Score::Loss { .. } | Score::Norm { .. } => 0,
        };
        let notes = Notes { losses: VecDeque::new(), norms: Average::new(spans), steps: 0, finite: true };
        Tracker { score: method.score, notes }
    }

    /// The state so far.
    pub fn notes(&self) -> &Notes {
        &self.notes
    }

    /// Restores a kept state, if it fits this method and layout.
    pub fn recall(&mut self, notes: Notes) -> Result<(), Error> {
        expect_len("the list of running norms", notes.norms.len(), self.notes.norms.len())?;
        self.notes = notes;
        Ok(())
    }

    /// Whether [`Tracker::step`] wants the norms of each step's gradient.
    pub fn wants_norms(&self) -> bool {
        matches!(self.score, Score::Norm { from: Source::Training { .. }, .. })
    }

    /// Records a local step: its loss, the norm of each span's gradient (empty if they are not wanted), and
    /// whether the parameters are finite after it.
    pub fn step(&mut self, loss: f64, norms: &[f64], finite: bool) {
        self.notes.steps += 1;
        self.notes.finite = finite;
        match self.score {
            Score::Loss { window } => {
                if self.notes.losses.len() == window as usize {
                    self.notes.losses.pop_front();
                }
                self.notes.losses.push_back(loss);
            }
            Score::Norm { from: Source::Training { .. }, momentum, .. } => {
                self.notes.norms.add(momentum, norms)
            }
            Score::None | Score::Norm { .. } => {}
        }
    }

    /// The report to a round. `norms` are those of the score batch, for a method that scores one. A worker that is scored by its
    /// local steps has no score while it took none since the last round.
    pub fn report(&self, worker: u32, norms: &[f64]) -> Report {
        let mut scores = match self.score {
            Score::None => Vec::new(),
            // The mean of the losses so far: the authors' ring starts with zeros and is biased at first.
            Score::Loss { .. } => {
                vec![self.notes.losses.iter().sum::<f64>() / self.notes.losses.len() as f64]
            }
            Score::Norm { of, from: Source::Training { .. }, .. } => reduce(of, self.notes.norms.values()),
            Score::Norm { of, from: Source::Batch { .. }, .. } => reduce(of, norms.iter().copied()),
        };
        // Statistics from before the last round describe parameters that were pulled since.
        if self.notes.steps == 0 && self.score.is_by_steps() {
            scores.fill(f64::NAN);
        }
        Report { worker, scores, finite: self.notes.finite, steps: self.notes.steps }
    }

    /// Ends a round: resets the counts, and the running norms if the method says so.
    pub fn round(&mut self) {
        self.notes.steps = 0;
        self.notes.finite = true;
        if let Score::Norm { from: Source::Training { reset: true }, .. } = self.score {
            self.notes.norms.clear();
        }
    }
}

/// The score from the norms of all spans.
fn reduce(of: Norm, norms: impl Iterator<Item = f64>) -> Vec<f64> {
    match of {
        Norm::Layers => norms.collect(),
        Norm::LayerSum => vec![norms.sum()],
        Norm::Gradient => vec![norms.fold(0.0, libm::hypot)],
    }
}

/// Checks that each worker reports once, with as many scores as the method needs.
pub(crate) fn check(method: &Method, layout: &Layout, reports: &[Report]) -> Result<(), Error> {
    let mut found: Vec<u32> = reports.iter().map(|report| report.worker).collect();
    found.sort_unstable();
    if found.is_empty() || found.windows(2).any(|pair| pair[0] == pair[1]) {
        return Err(Error::WrongWorkers { found });
    }
    let expected = method.scores(layout.spans().len());
    match reports.iter().find(|report| report.scores.len() != expected) {
        None => Ok(()),
        Some(report) => Err(Error::WrongScores {
            worker: report.worker,
            found: report.scores.len(),
            expected,
            method: method.name.to_string(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn method(text: &str) -> Method {
        text.parse().unwrap()
    }

    /// γ = 0.43046721 and scores 4, 2, worked out by hand.
    #[test]
    fn the_golden_averages() {
        let mut average = Average::new(1);
        average.add(0.430_467_21, &[4.0]);
        assert!((average.sums[0] - 2.278_131).abs() < 1e-6);
        assert!((average.values().next().unwrap() - 4.0).abs() < 1e-12);
        average.add(0.430_467_21, &[2.0]);
        assert!((average.sums[0] - 2.119_726).abs() < 1e-6);
        assert!((average.values().next().unwrap() - 2.601_855).abs() < 1e-6);
    }

    #[test]
    fn a_bad_score_does_not_spoil_the_average() {
        let mut memory = Memory::default();
        let mut report = Report { worker: 3, scores: vec![4.0], finite: true, steps: 1 };
        assert_eq!(memory.smooth(0.5, &report), [4.0]);
        report.scores = vec![f64::NAN];
        assert!(memory.smooth(0.5, &report)[0].is_nan());
        report.scores = vec![4.0];
        assert_eq!(memory.smooth(0.5, &report), [4.0]);
    }

    #[test]
    fn losses_are_averaged_over_the_window_only() {
        let layout = Layout::flat(1);
        let mut tracker = Tracker::new(&method("lsgd:score_window=2"), &layout);
        tracker.step(8.0, &[], true);
        assert_eq!(tracker.report(0, &[]).scores, [8.0]);
        tracker.step(2.0, &[], true);
        tracker.step(4.0, &[], true);
        assert_eq!(tracker.report(0, &[]).scores, [3.0]);
        // The window reaches back over a round, as the authors' ring does.
        tracker.round();
        tracker.step(10.0, &[], true);
        assert_eq!(tracker.report(0, &[]).scores, [7.0]);
    }

    /// At a free pace a worker may take no step between two rounds: its state before the pull must not make it lead.
    #[test]
    fn without_a_step_since_the_last_round_there_is_no_score() {
        let layout = Layout::new([("a", vec![1]), ("b", vec![1])]).unwrap();
        for text in [
            "lsgd",
            "lsgd:preset=reference",
            "local-mgrawa",
            "local-lgrawa",
            "local-lgrawa:preset=reference",
            "local-mgrawa:score_reset=false",
        ] {
            let method = method(text);
            let mut workers = [Tracker::new(&method, &layout), Tracker::new(&method, &layout)];
            workers.iter_mut().for_each(|worker| worker.step(1.0, &[1.0, 1.0], true));
            workers.iter_mut().for_each(Tracker::round);
            workers[1].step(9.0, &[9.0, 9.0], true);
            let reports: Vec<Report> =
                (0..).zip(&workers).map(|(id, worker)| worker.report(id, &[])).collect();
            assert!(reports[0].scores.iter().all(|score| score.is_nan()), "{text}: {:?}", reports[0]);
            let plan = crate::plan(&method, &layout, &Memory::default(), &reports).unwrap();
            assert!(plan.weights.rows().all(|row| row == [0.0, 1.0]), "{text}: {:?}", plan.weights);
            assert!(
                plan.reasons.contains(&"worker 0 weighs nothing: it made no step to be judged by".to_owned()),
                "{text}: {:?}",
                plan.reasons
            );
            workers[0].step(1.0, &[1.0, 1.0], true);
            let scores = workers[0].report(0, &[]).scores;
            assert!(scores.iter().all(|score| score.is_finite()), "{text}: {scores:?}");
        }
        // A score on a batch describes the current parameters.
        let tracker = Tracker::new(&method("mgrawa"), &layout);
        assert_eq!(tracker.report(0, &[3.0, 4.0]).scores, [7.0]);
    }

    #[test]
    fn running_norms_start_anew_where_the_method_says_so() {
        let layout = Layout::new([("a", vec![1]), ("b", vec![1])]).unwrap();
        for (text, resets) in [
            ("local-lgrawa", true),
            ("local-lgrawa:preset=reference", false),
            ("local-mgrawa:preset=reference", true),
        ] {
            let mut tracker = Tracker::new(&method(text), &layout);
            assert!(tracker.wants_norms());
            tracker.step(0.0, &[3.0, 4.0], true);
            tracker.round();
            tracker.step(0.0, &[6.0, 8.0], true);
            let total: f64 = tracker.report(0, &[]).scores.iter().sum();
            // With a reset only the second step counts; else (0.85·0.15·7 + 0.15·14) / (1 − 0.85²).
            let expected =
                if resets { 14.0 } else { (0.85 * 0.15 * 7.0 + 0.15 * 14.0) / (1.0 - 0.85 * 0.85) };
            assert!((total - expected).abs() < 1e-12, "{text}: {total}");
        }
    }

    #[test]
    fn scores_are_reduced_as_the_method_says() {
        let layout = Layout::new([("a", vec![1]), ("b", vec![1])]).unwrap();
        let scores = |text: &str| Tracker::new(&method(text), &layout).report(0, &[3.0, 4.0]).scores;
        assert_eq!(scores("grawa"), [5.0]);
        assert_eq!(scores("mgrawa"), [7.0]);
        assert_eq!(scores("lgrawa"), [3.0, 4.0]);
        assert_eq!(scores("mean"), [0.0; 0]);
    }
}
