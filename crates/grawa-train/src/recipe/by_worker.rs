//! Settings of single workers, such as `worker 2: 3x, worker 5: 2x`.

use std::ops::RangeInclusive;

/// What is written where no worker has a setting.
const NONE: &str = "none";

/// A number for some workers, in the order of the workers.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ByWorker(Vec<(u32, f64)>);

impl ByWorker {
    /// Reads a text whose numbers end in `unit` and are right; if it cannot, says what was expected.
    pub(super) fn read(
        text: &str,
        unit: &str,
        expected: &str,
        right: RangeInclusive<f64>,
    ) -> Result<Self, String> {
        let wrong = || format!("found \"{text}\", expected {expected}, or \"{NONE}\"");
        if text == NONE {
            return Ok(ByWorker::default());
        }
        let mut found: Vec<(u32, f64)> = Vec::new();
        for part in text.split(',') {
            let (worker, number) = part.split_once(':').ok_or_else(wrong)?;
            let worker = worker.trim().strip_prefix("worker").and_then(|worker| worker.trim().parse().ok());
            let number = number.trim().strip_suffix(unit).and_then(|number| number.trim().parse().ok());
            match (worker, number) {
                (Some(worker), Some(number)) if right.contains(&number) => found.push((worker, number)),
                _ => return Err(wrong()),
            }
        }
        found.sort_by_key(|(worker, _)| *worker);
        match found.windows(2).find(|pair| pair[0].0 == pair[1].0) {
            Some(pair) => Err(format!("worker {} is named twice in \"{text}\"", pair[0].0)),
            None => Ok(ByWorker(found)),
        }
    }

    /// The text again.
    pub(super) fn print(&self, unit: &str) -> String {
        let parts: Vec<String> =
            self.0.iter().map(|(worker, number)| format!("worker {worker}: {number}{unit}")).collect();
        if parts.is_empty() { NONE.into() } else { parts.join(", ") }
    }

    /// The workers that have a setting, and the settings.
    pub fn all(&self) -> &[(u32, f64)] {
        &self.0
    }
}
