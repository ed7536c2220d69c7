//! Decides what a round does, once for all methods. A `mix` executes the decision.
//!
//! [`plan`] is a pure function of the method, its memory, and the reports of the workers: the same reports give every
//! member the same [`Plan`]. A plan holds the weights β, the centre rule, the pulls, the memory for the next round, and
//! the reasons for every deviation from the formula. With an inner level, each group gets a plan from
//! [`Inner::method`](crate::Inner), then all workers get one.
//!
//! Rules that protect the centre, besides those for scores in [`weights`](crate::weights):
//!
//! | case | rule |
//! |---|---|
//! | a worker's parameters are not finite | its weight is zero, its score memory is dropped, and it is set to the new centre |
//! | no worker's parameters are finite | the centre stays and all workers are set to it |
//! | a span the loss does not depend on (marked in the layout, or its norm is below 10⁻⁶ of every worker's sum of norms) | all weights in it are equal: the norm is rounding noise |
//! | a worker made no local step since the last round, and is scored by its steps | it has no score, and weight zero |
//! | one worker | it is the centre |

use crate::method::{By, Centre, Norm, Score, Share, Source, Toward, Weighting};
use crate::weights::{self, Rulings};
use crate::{Error, Layout, Memory, Method, Report, score};

mod digest;

/// A span whose norm is below this share of the sum of all norms, in every worker, counts as silent, and a worker that is as
/// near to the centre as at it: rounding in `f32` alone causes as much.
const NOISE: f64 = 1e-6;

/// The decision of a round.
#[derive(Clone, Debug, PartialEq)]
pub struct Plan {
    /// Which vectors are mixed.
    pub share: Share,
    /// The workers that take part, in the order of the reports; vectors are summed in this order.
    pub workers: Vec<u32>,
    /// β.
    pub weights: Weights,
    /// How the weighted average becomes the centre.
    pub centre: Centre,
    /// λ.
    pub pull: f32,
    /// The centre to pull toward.
    pub toward: Toward,
    /// How far each worker is pushed away from the centre, beside the pull: see [`Plan::pull_at`].
    pub push: f32,
    /// For each worker whether its vector is lost and replaced by the new centre. Its momentum should be cleared.
    pub replaced: Vec<bool>,
    /// Why anything here differs from the formula, and which worker leads: sentences for the user.
    pub reasons: Vec<String>,
    /// What the method remembers for the next round.
    pub memory: Memory,
}

impl Plan {
    /// Whether the new centre depends on the old one: the centre moves, or stays where all weights are zero.
    pub fn keeps_centre(&self) -> bool {
        self.share == Share::Nothing || matches!(self.centre, Centre::Moving { .. }) || !self.has_weights()
    }

    /// Whether any worker has a weight, in every span.
    pub(crate) fn has_weights(&self) -> bool {
        self.weights.rows().all(|row| row.iter().any(|weight| *weight > 0.0))
    }

    /// The pull of a worker at a distance from a centre of this norm: λ less push/distance, which may be negative. A worker
    /// that differs from the centre by rounding only has no direction to be pushed in.
    pub fn pull_at(&self, distance: f64, norm: f64) -> f64 {
        let push = if distance > NOISE * norm { f64::from(self.push) / distance } else { 0.0 };
        f64::from(self.pull) - push
    }

    /// The same plan with one vector for each process, given with its workers: their weighted mean, see [`Plan::within`]. The weight of a
    /// process is the sum of its workers' weights. With one worker in each process the weights are those of the workers. A
    /// process without workers has weight zero.
    pub fn by_process(&self, processes: &[(u32, Vec<u32>)]) -> Plan {
        let sums = |row: &[f32]| -> Vec<f32> {
            let weight = |worker: &u32| self.index_of(*worker).map_or(0.0, |at| row[at]);
            processes.iter().map(|(_, workers)| workers.iter().map(weight).sum()).collect()
        };
        let rows = self.weights.rows().flat_map(sums).collect();
        Plan {
            workers: processes.iter().map(|(process, _)| *process).collect(),
            weights: Weights { workers: processes.len(), rows },
            replaced: vec![false; processes.len()],
            ..self.clone()
        }
    }

    /// The plan that makes the weighted mean of these workers and moves none of them.
    pub fn within(&self, workers: &[u32]) -> Plan {
        let here: Vec<usize> = workers.iter().filter_map(|&worker| self.index_of(worker)).collect();
        let shares = |row: &[f32]| -> Vec<f32> {
            let sum: f32 = here.iter().map(|&at| row[at]).sum();
            here.iter().map(|&at| if sum > 0.0 { row[at] / sum } else { 0.0 }).collect()
        };
        let rows = self.weights.rows().flat_map(shares).collect();
        Plan {
            workers: here.iter().map(|&at| self.workers[at]).collect(),
            weights: Weights { workers: here.len(), rows },
            centre: Centre::Weighted,
            pull: 0.0,
            push: 0.0,
            replaced: vec![false; here.len()],
            ..self.clone()
        }
    }

    /// The plan that pulls these workers toward a centre which is given, and does not move it. Workers that take over the centre are left
    /// as they are.
    pub fn toward_given_centre(&self, workers: &[u32]) -> Plan {
        let here: Vec<usize> = workers.iter().filter_map(|&worker| self.index_of(worker)).collect();
        // The centre keeps its place; the mean of the workers only must be finite.
        let rows =
            here.iter().map(|&at| f32::from(u8::from(!self.replaced[at])) / here.len() as f32).collect();
        Plan {
            workers: here.iter().map(|&at| self.workers[at]).collect(),
            weights: Weights { workers: here.len(), rows },
            centre: Centre::Moving { rate: 0.0 },
            toward: Toward::New,
            replaced: vec![false; here.len()],
            ..self.clone()
        }
    }

    /// The place of a worker in the plan.
    pub fn index_of(&self, worker: u32) -> Option<usize> {
        self.workers.iter().position(|&other| other == worker)
    }
}

/// β: one weight for each worker, or one for each worker and span.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    workers: usize,
    rows: Vec<f32>,
}

impl Weights {
    /// The weights of all workers for a span; the same for every span unless spans have their own weights.
    pub fn of(&self, span: usize) -> &[f32] {
        let row = if self.is_per_span() { span } else { 0 };
        &self.rows[row * self.workers..][..self.workers]
    }

    /// Whether spans have their own weights.
    pub fn is_per_span(&self) -> bool {
        self.rows.len() > self.workers
    }

    /// All rows in order: one for each span, or a single one.
    pub fn rows(&self) -> impl Iterator<Item = &[f32]> {
        self.rows.chunks_exact(self.workers.max(1))
    }
}

/// Decides a round.
///
/// ```
/// use grawa_core::{Layout, Memory, Method, Report, plan};
/// let method: Method = "grawa".parse()?;
/// let report = |worker, score| Report { worker, scores: vec![score], finite: true, steps: 32 };
/// let plan = plan(&method, &Layout::flat(2), &Memory::default(), &[report(0, 1.0), report(1, 3.0)])?;
/// assert_eq!(plan.weights.of(0), [0.75, 0.25]);
/// # Ok::<(), grawa_core::Error>(())
/// ```
pub fn plan(method: &Method, layout: &Layout, memory: &Memory, reports: &[Report]) -> Result<Plan, Error> {
    method.check()?;
    score::check(method, layout, reports)?;
    let mut round = Round {
        layout,
        workers: reports.iter().map(|report| report.worker).collect(),
        present: reports.iter().map(|report| report.finite).collect(),
        reasons: Vec::new(),
        without_score: Vec::new(),
    };
    let mut memory = memory.clone();
    memory.rounds += 1;

    for report in reports.iter().filter(|report| !report.finite) {
        round.reasons.push(format!("worker {} is not finite and takes over the centre", report.worker));
        memory.forget(report.worker);
    }
    if !round.present.contains(&true) {
        round.reasons.push("no worker is finite: all take over the last centre".into());
    }
    if let ([worker], [true]) = (&round.workers[..], &round.present[..]) {
        round.reasons.push(format!("worker {worker} is alone and is the centre"));
    }
    if method.share == Share::Nothing {
        round.reasons.push("the method does not communicate".into());
    }

    let scores: Vec<Vec<f64>> = (reports.iter())
        .map(|report| match method.score {
            Score::Norm { from: Source::Batch { .. }, momentum, .. } if report.finite => {
                memory.smooth(momentum, report)
            }
            // Training gradients were smoothed step by step.
            _ => report.scores.clone(),
        })
        .collect();
    let mut weights = round.weigh(method, reports, &scores);
    if method.by == By::Steps {
        round.weigh_by_steps(reports, &mut weights);
    }

    Ok(Plan {
        share: method.share,
        centre: method.centre,
        pull: method.pull_of(reports.len()) as f32,
        push: method.push as f32,
        toward: method.toward,
        replaced: round.present.iter().map(|here| !here).collect(),
        workers: round.workers,
        weights,
        reasons: round.reasons,
        memory,
    })
}

/// A decision in progress.
struct Round<'a> {
    layout: &'a Layout,
    workers: Vec<u32>,
    present: Vec<bool>,
    reasons: Vec<String>,
    /// Workers without a usable score, which is said once.
    without_score: Vec<u32>,
}

impl Round<'_> {
    fn weigh(&mut self, method: &Method, reports: &[Report], scores: &[Vec<f64>]) -> Weights {
        let workers = self.workers.len();
        let per_span = matches!(method.score, Score::Norm { of: Norm::Layers, .. })
            && method.weighting == Weighting::Inverse;
        // A layout without spans still has one row.
        let rows = if per_span { self.layout.spans().len().max(1) } else { 1 };
        let mut weights = Weights { workers, rows: vec![0.0; rows * workers] };
        if !self.present.contains(&true) {
            return weights;
        }
        if method.weighting == Weighting::Uniform {
            weights::uniform(&self.present, &mut weights.rows);
            return weights;
        }
        self.note_lost_scores(method, reports, scores);
        let column = |span: usize| scores.iter().map(|scores| scores[span]).collect::<Vec<f64>>();
        match method.weighting {
            Weighting::Smallest => {
                // A method that scores every span leads by their sum.
                let totals: Vec<f64> = scores.iter().map(|scores| scores.iter().sum()).collect();
                let (leader, rulings) =
                    weights::smallest(&totals, &self.workers, &self.present, &mut weights.rows);
                if let Some(leader) = leader {
                    let (worker, score) = (self.workers[leader], totals[leader]);
                    self.reasons.push(format!("worker {worker} leads with {score:.4}"));
                }
                self.note(None, &totals, &rulings);
            }
            _ if !per_span => {
                let scores = column(0);
                let rulings = weights::inverse(&scores, &self.present, &mut weights.rows);
                self.note(None, &scores, &rulings);
            }
            _ => {
                let totals: Vec<f64> = scores.iter().map(|scores| scores.iter().sum()).collect();
                let broken: Vec<Option<&f64>> = scores
                    .iter()
                    .map(|scores| scores.iter().find(|score| !(score.is_finite() && **score >= 0.0)))
                    .collect();
                for (index, (row, span)) in
                    weights.rows.chunks_exact_mut(workers).zip(self.layout.spans()).enumerate()
                {
                    let scores = column(index);
                    let is_noise = || {
                        // A worker with any broken score says nothing about noise.
                        let whole = |w: &usize| self.present[*w] && broken[*w].is_none() && totals[*w] > 0.0;
                        let mut judges = (0..workers).filter(whole).peekable();
                        judges.peek().is_some() && judges.all(|w| scores[w] <= NOISE * totals[w])
                    };
                    if span.is_silent() || is_noise() {
                        weights::uniform(&self.present, row);
                        let why = match span.is_silent() {
                            true => format!("the loss does not depend on {}", span.name()),
                            false => format!("the gradient of {} is rounding noise", span.name()),
                        };
                        self.reasons.push(format!("{why}: all workers weigh the same in it"));
                    } else {
                        let rulings = weights::inverse(&scores, &self.present, row);
                        self.note(Some(span.name()), &scores, &rulings);
                    }
                }
            }
        }
        weights
    }

    /// Multiplies the weights by the workers' steps. Equal steps change nothing, not even a bit.
    fn weigh_by_steps(&mut self, reports: &[Report], weights: &mut Weights) {
        let steps = || reports.iter().filter(|report| report.finite).map(|report| report.steps);
        if steps().max() == steps().min() {
            return;
        }
        for (at, row) in weights.rows.chunks_exact_mut(reports.len()).enumerate() {
            let product = |(weight, report): (&f32, &Report)| f64::from(*weight) * report.steps as f64;
            let products: Vec<f64> = row.iter().zip(reports).map(product).collect();
            let sum: f64 = products.iter().sum();
            if sum > 0.0 {
                for report in reports.iter().filter(|report| at == 0 && report.finite && report.steps == 0) {
                    self.reasons.push(format!("worker {} weighs nothing: it made no step", report.worker));
                }
                row.iter_mut().zip(products).for_each(|(weight, product)| *weight = (product / sum) as f32);
            } else if at == 0 {
                self.reasons.push("no worker with a weight made a step: steps do not count".into());
            }
        }
    }

    /// A worker without a usable score: reported once, not for every span.
    fn note_lost_scores(&mut self, method: &Method, reports: &[Report], scores: &[Vec<f64>]) {
        for (report, scores) in reports.iter().zip(scores).filter(|(report, _)| report.finite) {
            if !scores.is_empty() && scores.iter().all(|score| !score.is_finite()) {
                let why = match report.steps == 0 && method.score.is_by_steps() {
                    true => "it made no step to be judged by".into(),
                    false => format!("its score is {}", scores[0]),
                };
                self.reasons.push(format!("worker {} weighs nothing: {why}", report.worker));
                self.without_score.push(report.worker);
            }
        }
    }

    fn note(&mut self, span: Option<&str>, scores: &[f64], rulings: &Rulings) {
        let place = span.map(|span| format!(" in {span}")).unwrap_or_default();
        for &index in &rulings.unusable {
            let (worker, score) = (self.workers[index], scores[index]);
            if !self.without_score.contains(&worker) {
                self.reasons.push(format!("worker {worker} weighs nothing{place}: its score is {score}"));
            }
        }
        for &index in &rulings.raised {
            let (worker, score, floor) =
                (self.workers[index], scores[index], rulings.floor.unwrap_or_default());
            self.reasons.push(format!("worker {worker}'s score{place} of {score:.3e} counts as {floor:.3e}"));
        }
        if rulings.uniform {
            self.reasons.push(format!("no usable score{place}: all workers weigh the same"));
        }
    }
}

#[cfg(test)]
mod tests;
