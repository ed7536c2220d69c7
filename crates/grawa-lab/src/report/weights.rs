//! The weights β over the rounds of a run: a line for each worker, or a map of layers and rounds for each worker.

use grawa_train::{Event, Mixed};

/// The most rounds of a line.
const ROUNDS: usize = 120;
/// The bytes of all maps of a page.
const ALL: usize = 1_500_000;

/// The bytes of the map of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Budget(usize);

impl Budget {
    /// The budget of each of `count` runs on a page.
    pub(super) fn for_runs(count: usize) -> Self {
        Budget((ALL / count.max(1)).min(400_000))
    }
}

/// Weights over rounds.
#[derive(Clone, Debug, PartialEq)]
pub enum Weights {
    /// One weight for each worker.
    Lines {
        /// The rounds; of averaged ones the last.
        rounds: Vec<u64>,
        /// The workers.
        workers: Vec<u32>,
        /// A row for each worker.
        rows: Vec<Vec<Option<f64>>>,
    },
    /// A weight for every layer and worker.
    Map {
        /// The rounds.
        rounds: Vec<u64>,
        /// The layers; `first … last` where neighbours were averaged.
        layers: Vec<String>,
        /// The workers.
        workers: Vec<u32>,
        /// log₂(β·M) from −2 to 2 as bytes from 0 to 254; 255 where a worker did not take part. By round, then layer, then worker.
        cells: Vec<u8>,
    },
}

impl Weights {
    /// The weights of a run's rounds; none where the method has no weights.
    pub(super) fn of(events: &[Event], budget: Budget) -> Option<Self> {
        let spans = events.iter().find_map(|event| match event {
            Event::Started(started) => Some(started.spans.clone()),
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
        if most == 1 {
            return Some(lines(&mixed, workers));
        }
        Some(map(&mixed, workers, &spans, budget))
    }
}

fn lines(mixed: &[(u64, &Mixed)], workers: Vec<u32>) -> Weights {
    let bins = mixed.len().min(ROUNDS);
    let bin = |index: usize| &mixed[index * mixed.len() / bins..(index + 1) * mixed.len() / bins];
    let row = |worker: u32| {
        let weight = |mixed: &Mixed| {
            let index = mixed.workers.iter().position(|&other| other == worker)?;
            mixed.weights.first()?.get(index).map(|&weight| f64::from(weight))
        };
        (0..bins).map(|index| mean(bin(index).iter().filter_map(|(_, mixed)| weight(mixed)))).collect()
    };
    Weights::Lines {
        rounds: (0..bins).filter_map(|index| bin(index).last().map(|it| it.0)).collect(),
        rows: workers.iter().map(|&worker| row(worker)).collect(),
        workers,
    }
}

fn map(mixed: &[(u64, &Mixed)], workers: Vec<u32>, spans: &[String], Budget(budget): Budget) -> Weights {
    let (mut rows, mut bins) = (spans.len().max(1), mixed.len().min(2 * ROUNDS));
    // Reduce layers before rounds, down to what can be seen.
    while rows * bins * workers.len() > budget && (rows > 1 || bins > 1) {
        if rows > 1 && (rows > 48 || bins < 24) { rows = rows.div_ceil(2) } else { bins = bins.div_ceil(2) }
    }
    let part = |index: usize, parts: usize, count: usize| index * count / parts..(index + 1) * count / parts;
    let mut cells = Vec::with_capacity(rows * bins * workers.len());
    for bin in 0..bins {
        let rounds = &mixed[part(bin, bins, mixed.len())];
        for row in 0..rows {
            for &worker in &workers {
                let weights = rounds.iter().filter_map(|(_, mixed)| {
                    let index = mixed.workers.iter().position(|&other| other == worker)?;
                    let layers = mixed.weights.get(part(row, rows, spans.len()))?;
                    mean(layers.iter().filter_map(|layer| layer.get(index)).map(|&weight| f64::from(weight)))
                });
                cells.push(mean(weights).map_or(255, |weight| byte(weight * workers.len() as f64)));
            }
        }
    }
    let name = |row: usize| {
        let range = part(row, rows, spans.len());
        let names = &spans[range];
        match names {
            [] => String::new(),
            [one] => one.clone(),
            [first, .., last] => format!("{first} … {last}"),
        }
    };
    Weights::Map {
        rounds: (0..bins)
            .filter_map(|bin| mixed[part(bin, bins, mixed.len())].last().map(|it| it.0))
            .collect(),
        layers: (0..rows).map(name).collect(),
        workers,
        cells,
    }
}

fn mean(numbers: impl Iterator<Item = f64>) -> Option<f64> {
    let (sum, count) = numbers.fold((0.0, 0.0), |(sum, count), x| (sum + x, count + 1.0));
    (count > 0.0).then(|| sum / count)
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
        let Some(Weights::Lines { rounds, workers, rows }) = Weights::of(&events, Budget(1)) else {
            panic!("lines")
        };
        assert_eq!((rounds, workers), (vec![1, 2], vec![0, 1]));
        assert_eq!(rows, [[Some(0.25), None], [Some(0.75), Some(1.0)]]);
        assert_eq!(Weights::of(&events[..1], Budget(1)), None);
    }

    #[test]
    fn maps_stay_within_their_budget() {
        let mut events = vec![started(100)];
        events.extend((1..=50).map(|number| round(number, &[0, 1], vec![vec![0.25, 0.75]; 100])));
        for budget in [100_000, 3_000, 200, 1] {
            let Some(Weights::Map { rounds, layers, workers, cells }) = Weights::of(&events, Budget(budget))
            else {
                panic!("map")
            };
            assert_eq!(cells.len(), rounds.len() * layers.len() * workers.len());
            assert!(cells.len() <= budget.max(2), "{budget}: {}", cells.len());
            assert_eq!(rounds.last(), Some(&50));
            // Averages of equal weights are those weights.
            assert!(cells.chunks(2).all(|pair| pair == [byte(0.5), byte(1.5)]));
            assert!(layers[0].starts_with("layer0") && layers[layers.len() - 1].ends_with("layer99"));
        }
    }
}
