//! The weights β over the rounds of a run: a line for each worker, or a map of layers and rounds for each worker.

use crate::statistics::mean_of;
use grawa_train::{Event, Mixed};

/// The most rounds of a line.
const ROUNDS: usize = 120;
/// The bytes of all maps of a page.
const ALL: usize = 1_500_000;

/// The bytes of the map of each of `count` runs on a page.
pub(super) fn budget(count: usize) -> usize {
    (ALL / count.max(1)).min(400_000)
}

/// Weights over rounds.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// The rounds; of averaged ones the last.
    pub rounds: Vec<u64>,
    /// The workers.
    pub workers: Vec<u32>,
    /// The layers, `first … last` where neighbours were averaged; none where a worker has one weight for all of them.
    pub layers: Vec<String>,
    /// By round, then layer, then worker; `None` where a worker did not take part.
    pub values: Vec<Option<f64>>,
}

impl Weights {
    /// The weights of a run's rounds, in a map of at most `budget` values; none where the method has no weights.
    pub(super) fn of(events: &[Event], budget: usize) -> Option<Self> {
        let spans = events.iter().find_map(|event| match event {
            Event::Started(started) => Some(&started.spans),
            _ => None,
        })?;
        // With groups the last of several is the one of all.
        let mixed: Vec<(u64, &Mixed)> = (events.iter())
            .filter_map(|event| match event {
                Event::Round(round) => Some((round.at.rounds, round.mixed.last()?)),
                _ => None,
            })
            .collect();
        let mut workers: Vec<u32> =
            mixed.iter().flat_map(|(_, mixed)| mixed.workers.iter().copied()).collect();
        workers.sort_unstable();
        workers.dedup();
        let most = mixed.iter().map(|(_, mixed)| mixed.weights.len()).max().filter(|&most| most > 0)?;
        let spans: &[String] = if most > 1 { spans } else { &[] };
        let (mut rows, mut bins) = (spans.len().max(1), mixed.len().min(ROUNDS * most.min(2)));
        // Reduce layers before rounds, down to what can be seen.
        while most > 1 && rows * bins * workers.len() > budget && (rows > 1 || bins > 1) {
            if rows > 1 && (rows > 48 || bins < 24) {
                rows = rows.div_ceil(2);
            } else {
                bins = bins.div_ceil(2);
            }
        }
        let part =
            |index: usize, parts: usize, count: usize| index * count / parts..(index + 1) * count / parts;
        let mut values = Vec::with_capacity(rows * bins * workers.len());
        for bin in 0..bins {
            for row in 0..rows {
                let layers = if most > 1 { part(row, rows, spans.len()) } else { 0..1 };
                let mean_weight = |&worker: &u32| {
                    mean_of(mixed[part(bin, bins, mixed.len())].iter().filter_map(|(_, mixed)| {
                        let index = mixed.workers.iter().position(|&other| other == worker)?;
                        let layers = mixed.weights.get(layers.clone())?.iter();
                        mean_of(layers.filter_map(|layer| layer.get(index)).map(|&weight| f64::from(weight)))
                    }))
                };
                values.extend(workers.iter().map(mean_weight));
            }
        }
        let name = |row: usize| match &spans[part(row, rows, spans.len())] {
            [] => String::new(),
            [one] => one.clone(),
            [first, .., last] => format!("{first} … {last}"),
        };
        let last = |bin: usize| mixed[part(bin, bins, mixed.len())].last().map(|it| it.0);
        let layers = if most > 1 { (0..rows).map(name).collect() } else { Vec::new() };
        Some(Weights { rounds: (0..bins).filter_map(last).collect(), workers, layers, values })
    }

    /// log₂(β·M) from −2 to 2 as bytes from 0 to 254; 255 where a worker did not take part.
    pub(super) fn bytes(&self) -> Vec<u8> {
        let count = self.workers.len() as f64;
        self.values.iter().map(|weight| weight.map_or(255, |weight| byte(weight * count))).collect()
    }
}

/// A multiple of 1/M, as a byte.
fn byte(times: f64) -> u8 {
    ((libm::log2(times).clamp(-2.0, 2.0) + 2.0) / 4.0 * 254.0).round() as u8
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_train::{Place, Round, Started};

    fn round(number: u64, workers: &[u32], weights: Vec<Vec<f32>>) -> Event {
        let mixed = Mixed { workers: workers.into(), weights, pull: 0.5, reasons: vec![] };
        let at = Place { rounds: number, ..Place::default() };
        Event::Round(Round { at, rate: 0.1, loss: None, workers: vec![], mixed: vec![mixed], bytes: 0 })
    }

    fn started(layers: usize) -> Event {
        Event::Started(Started {
            at: Place::default(),
            method: "lgrawa".into(),
            network: "net".into(),
            data: "digits".into(),
            workers: 2,
            batch: 1,
            seed: 1,
            budget: grawa_core::Amount::Steps(1),
            steps: None,
            parameters: 1,
            spans: (0..layers).map(|layer| format!("layer{layer}")).collect(),
            examples: 1,
            resumed: false,
        })
    }

    #[test]
    fn bytes_are_logarithms() {
        assert_eq!([0.0, 0.25, 0.5, 1.0, 2.0, 4.0, 100.0].map(byte), [0, 0, 64, 127, 191, 254, 254]);
    }

    #[test]
    fn a_worker_that_was_away_leaves_a_gap() {
        let events = [started(1), round(1, &[0, 1], vec![vec![0.25, 0.75]]), round(2, &[1], vec![vec![1.0]])];
        let found = Weights::of(&events, 1).unwrap();
        assert_eq!((found.rounds, found.workers, found.layers), (vec![1, 2], vec![0, 1], vec![]));
        assert_eq!(found.values, [Some(0.25), Some(0.75), None, Some(1.0)]);
        assert_eq!(Weights::of(&events[..1], 1), None);
    }

    #[test]
    fn maps_stay_within_their_budget() {
        let mut events = vec![started(100)];
        events.extend((1..=50).map(|number| round(number, &[0, 1], vec![vec![0.25, 0.75]; 100])));
        for budget in [100_000, 3_000, 200, 1] {
            let found = Weights::of(&events, budget).unwrap();
            let cells = found.bytes();
            let Weights { rounds, workers, layers, .. } = found;
            assert_eq!(cells.len(), rounds.len() * layers.len() * workers.len());
            assert!(cells.len() <= budget.max(2), "{budget}: {}", cells.len());
            assert_eq!(rounds.last(), Some(&50));
            // Averages of equal weights are those weights.
            assert!(cells.chunks(2).all(|pair| pair == [byte(0.5), byte(1.5)]));
            assert!(layers[0].starts_with("layer0") && layers[layers.len() - 1].ends_with("layer99"));
        }
    }
}
