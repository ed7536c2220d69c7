//! Events for tests and fuzz targets.

use crate::event::{Evaluated, Event, Fault, Mixed, Model, Place, Round, Share, Times};

/// A round, an evaluation and a fault.
pub fn examples() -> [Event; 3] {
    let at = Place { steps: 64, rounds: 2, epochs: 0.1 + 0.2, share: 1.0 / 3.0, elapsed: 3.123_456 };
    let times = Times { compute: 0.25, wire: 1e-6, ..Times::default() };
    let share =
        |worker| Share { worker, steps: 32, total: 64, loss: Some(0.7).filter(|_| worker > 0), times };
    let mixed = Mixed {
        workers: vec![0, 1],
        weights: vec![vec![0.1, 0.9], vec![0.3, 0.7]],
        pull: 0.3,
        reasons: vec!["worker 1 leads".into()],
    };
    let workers = vec![share(0), share(1)];
    let round = Round { at, rate: 0.1, loss: Some(2.2), workers, mixed: vec![mixed], bytes: 800 };
    let model = Model { which: "mean".into(), loss: Some(0.1 + 0.2), wrong: 5, examples: 359 };
    let evaluated = Evaluated { at, models: vec![model.clone(), Model { loss: None, ..model }] };
    [
        Event::Round(round),
        Event::Evaluated(evaluated),
        Event::Fault(Fault { at, worker: Some(3), what: "it left".into() }),
    ]
}
