//! What is to be seen of a run: gathered from its events, free of any terminal.

use crate::{Event, Place, Reason, Started, Times};

/// Evaluations that are remembered for the small curve.
const REMEMBERED: usize = 512;

/// A run as it stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct View {
    /// What the run is.
    pub started: Option<Started>,
    /// Where it stands.
    pub at: Place,
    /// The learning rate.
    pub rate: f64,
    /// The training loss since the last round.
    pub loss: Option<f64>,
    /// The workers in rank order.
    pub workers: Vec<Worker>,
    /// Where the time of all workers went, in all.
    pub times: Times,
    /// Bytes handed over, in all.
    pub bytes: u64,
    /// Test errors so far, from 0 to 1: of the best model where there are several.
    pub errors: Vec<f64>,
    /// Which model the last one was of.
    pub model: String,
    /// The step of the last evaluation, unless the run went back behind it.
    pub evaluated: Option<u64>,
    /// The last thing that went wrong.
    pub fault: Option<String>,
    /// Why the run is over, if it is.
    pub over: Option<Reason>,
}

/// A worker as it stands.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Worker {
    /// Its rank.
    pub worker: u32,
    /// Its local steps in all.
    pub steps: u64,
    /// Its training loss since the last round.
    pub loss: Option<f64>,
    /// Its weights β in the last round of all: one, or one a layer.
    pub weights: Vec<f32>,
}

impl View {
    /// Takes in an event.
    pub fn event(&mut self, event: &Event) {
        self.at = *event.place();
        match event {
            Event::Started(started) => {
                let worker = |worker| Worker { worker, ..Worker::default() };
                self.workers = (0..started.workers).map(worker).collect();
                self.started = Some(started.clone());
            }
            Event::Round(round) => {
                (self.rate, self.loss) = (round.rate, round.loss);
                self.evaluated = self.evaluated.filter(|&step| step < round.at.steps);
                self.bytes += round.bytes;
                // A worker that was lost has no share any more, and leaves the view.
                let before = std::mem::take(&mut self.workers);
                for share in &round.workers {
                    self.times += share.times;
                    let known = before.iter().find(|worker| worker.worker == share.worker);
                    let weights = known.map(|worker| worker.weights.clone()).unwrap_or_default();
                    self.workers.push(Worker {
                        worker: share.worker,
                        steps: share.total,
                        loss: share.loss,
                        weights,
                    });
                }
                for mixed in &round.mixed {
                    for (at, rank) in mixed.workers.iter().enumerate() {
                        if let Some(worker) = self.workers.iter_mut().find(|worker| worker.worker == *rank) {
                            worker.weights =
                                mixed.weights.iter().filter_map(|row| row.get(at)).copied().collect();
                        }
                    }
                }
            }
            Event::Evaluated(evaluated) => {
                let best = evaluated.models.iter().min_by(|a, b| a.error().total_cmp(&b.error()));
                if let Some(best) = best {
                    if self.errors.len() == REMEMBERED {
                        self.errors.remove(0);
                    }
                    self.errors.push(best.error());
                    self.model.clone_from(&best.which);
                    self.evaluated = Some(evaluated.at.steps);
                }
            }
            Event::Checkpoint { .. } | Event::CheckpointWritten { .. } => {}
            Event::Fault(fault) => self.fault = Some(fault.what.clone()),
            Event::Finished(finished) => self.over = Some(finished.reason),
        }
    }

    /// The smallest test error so far.
    pub fn best(&self) -> Option<f64> {
        self.errors.iter().copied().min_by(f64::total_cmp)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sample;

    #[test]
    fn a_view_follows_the_events() {
        let mut view = View::default();
        sample::run("lgrawa", 3, 4).iter().for_each(|event| view.event(event));
        assert_eq!((view.at.steps, view.workers.len(), view.over), (16, 3, Some(Reason::Spent)));
        assert_eq!(view.workers[2].weights, [0.5; 3]);
        assert_eq!((view.errors.len(), view.bytes, view.model.as_str()), (2, 80_000, "mean"));
        assert_eq!(view.best(), view.errors.last().copied());
        assert_eq!(view.evaluated, Some(16));
        assert!((view.times.compute - 0.9 * 12.0).abs() < 1e-9);
        assert!(view.fault.unwrap().contains("worker 1"));
    }

    #[test]
    fn a_lost_worker_leaves() {
        let mut view = View::default();
        let mut events = sample::run("mean", 3, 2);
        for event in &mut events {
            if let Event::Round(round) = event
                && round.at.rounds == 2
            {
                round.workers.remove(1);
            }
            view.event(event);
        }
        assert_eq!(view.workers.iter().map(|worker| worker.worker).collect::<Vec<_>>(), [0, 2]);
    }
}
