//! A run in plain lines, where there is no terminal: which events make a line, and when.
//!
//! A step has one line at most. That of a round waits for the next event, because an evaluation of the same step may follow: its
//! error belongs on that line, and on no other.

use super::{View, line};
use crate::Event;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

/// Rounds make a line at every such share of the budget.
const PART: f64 = 0.1;
/// The least time between two lines that tell how far the run is: a file should stay readable.
const PAUSE: Duration = Duration::from_secs(1);

/// Lets lines of several runs through, at most one a second.
#[derive(Clone, Debug, Default)]
pub struct LinePace(Arc<Mutex<Option<Instant>>>);

impl LinePace {
    /// Whether a line may be written now; it then counts as written.
    pub fn is_due(&self) -> bool {
        let mut last = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let is_due = last.is_none_or(|last| last.elapsed() >= PAUSE);
        if is_due {
            *last = Some(Instant::now());
        }
        is_due
    }
}

/// What was written so far.
#[derive(Debug, Default)]
pub(super) struct Lines {
    /// A round's step and line, held back until the next event.
    waiting: Option<(u64, String)>,
    /// When the last line on progress was due.
    last: Option<Duration>,
    /// The step of that line.
    step: Option<u64>,
    /// The share of the budget of the last round that made a line.
    share: f64,
}

impl Lines {
    /// Nothing more is written of the run up to this share of its budget.
    pub(super) fn after(share: f64) -> Self {
        Lines { share, ..Lines::default() }
    }

    /// The lines that an event makes at a time. The view has taken the event in.
    pub(super) fn event(&mut self, event: &Event, view: &View, now: Duration) -> Vec<String> {
        let at = event.place();
        let is_time = self.last.is_none_or(|last| now >= last + PAUSE);
        let mut lines = Vec::new();
        match event {
            Event::Started(started) => {
                let (verb, what) = (if started.resumed { "continues" } else { "starts" }, &started.method);
                let on = format!(
                    "network {}, data {}, {} workers",
                    started.network, started.data, started.workers
                );
                lines.push(format!("{what} {verb}: {on}, seed {}, {}", started.seed, started.budget));
            }
            Event::Fault(fault) => lines.push(format!("step {}: {}", fault.at.steps, fault.what)),
            Event::Round(_) => {
                lines.extend(self.release());
                if is_time && at.share >= self.share + PART {
                    self.share = at.share;
                    self.last = Some(now);
                    self.waiting = Some((at.steps, line(view)));
                }
            }
            Event::Evaluated(_) => {
                let of_this = self.waiting.take_if(|(step, _)| *step == at.steps).is_some();
                lines.extend(self.release());
                if of_this || is_time {
                    lines.push(self.write(view, now));
                }
            }
            Event::Finished(_) => {
                self.waiting.take_if(|(step, _)| *step == at.steps);
                lines.extend(self.release());
                if self.step != Some(at.steps) {
                    lines.push(self.write(view, now));
                }
            }
            Event::Checkpoint { .. } | Event::CheckpointWritten { .. } => {}
        }
        lines
    }

    /// The line that was held back.
    fn release(&mut self) -> Option<String> {
        let (step, line) = self.waiting.take()?;
        self.step = Some(step);
        Some(line)
    }

    fn write(&mut self, view: &View, now: Duration) -> String {
        (self.last, self.step) = (Some(now), Some(view.at.steps));
        line(view)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sample;

    /// The lines of a run whose events are so many seconds apart.
    fn written(rounds: u64, apart: f64) -> Vec<String> {
        let (mut view, mut lines) = (View::default(), Lines::default());
        let events = sample::run("mgrawa", 2, rounds).into_iter().enumerate();
        let take = |(number, event): (usize, Event)| {
            view.event(&event);
            lines.event(&event, &view, Duration::from_secs_f64(apart * number as f64))
        };
        events.flat_map(take).collect()
    }

    /// The step of a line on progress, and the error it gives.
    fn progress(lines: &[String]) -> Vec<(u64, Option<&str>)> {
        (lines.iter())
            .filter(|line| line.contains("  epoch "))
            .map(|line| {
                let step = line["step ".len()..].split(' ').next().unwrap().replace(',', "").parse().unwrap();
                let error = line.split("test error ").nth(1).and_then(|rest| rest.split("  ").next());
                (step, error)
            })
            .collect()
    }

    /// An evaluation every other round, of 4 steps each: only those steps have an error, which is their own.
    #[test]
    fn an_error_stands_on_the_line_of_its_evaluation_and_a_step_has_one_line() {
        let lines = written(6, 10.0);
        assert_eq!(
            progress(&lines),
            [
                (4, None),
                (8, Some("33.43 %")),
                (12, None),
                (16, Some("20.06 %")),
                (20, None),
                (24, Some("14.21 %"))
            ],
            "{lines:#?}"
        );
        // The start and the fault are told, too.
        assert_eq!(lines.len(), 8, "{lines:#?}");
        assert!(lines[0].starts_with("mgrawa starts: ") && lines[3].contains("worker 1 lost"), "{lines:#?}");
    }

    /// However quick the run, progress makes a line a second at most; starts, faults and the end are always told.
    #[test]
    fn a_quick_run_writes_a_line_a_second() {
        for (apart, most) in [(0.01, 1), (0.1, 4), (0.4, 15)] {
            let lines = written(12, apart);
            let found = progress(&lines);
            // Some are due at once; the last is that of the end.
            assert!((2..=most + 2).contains(&found.len()), "{apart}: {lines:#?}");
            assert_eq!(found.last(), Some(&(48, Some("7.52 %"))), "{lines:#?}");
            assert!(lines[0].contains("starts") && lines.iter().any(|line| line.contains("worker 1 lost")));
            let mut steps: Vec<u64> = found.iter().map(|it| it.0).collect();
            steps.dedup();
            assert_eq!(steps.len(), found.len(), "{lines:#?}");
        }
    }

    #[test]
    fn a_run_that_goes_on_tells_of_what_is_new() {
        let events = sample::run("mean", 2, 10);
        let (mut view, mut lines) = (View::default(), Lines::after(0.5));
        let mut found = Vec::new();
        for (number, event) in
            events.iter().enumerate().filter(|(_, event)| !matches!(event, Event::Evaluated(_)))
        {
            view.event(event);
            found.extend(lines.event(event, &view, Duration::from_secs(10 * number as u64)));
        }
        let steps: Vec<u64> = progress(&found).iter().map(|it| it.0).collect();
        assert_eq!(steps, [24, 28, 32, 36, 40], "{found:#?}");
    }
}
