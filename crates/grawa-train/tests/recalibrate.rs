//! Recalibrated batch-norm statistics against PyTorch's on the same augmented batches (`oracle/recalibrate.py`).

#![allow(clippy::unwrap_used)]

mod runs;

use grawa_core::norm::norm;
use grawa_data::digits;
use grawa_nn::{Data, Graph, State, Tensors};
use grawa_train::Evaluator;
use runs::recipe;
use std::path::Path;

/// Parameters and statistics as `oracle/filling.py` computes them.
fn filled(graph: &Graph) -> State {
    let numbers = |count: usize, stream: u64| {
        let number = move |index: u64| {
            let hash = (index * 2_654_435_761 + stream * 40_503 * 65_537) % 4_294_967_296;
            hash as f64 / 2_147_483_648.0 - 1.0
        };
        (1..=count as u64).map(number)
    };
    let mut parameters = Vec::new();
    for (stream, span) in (1..).zip(graph.parameters().spans()) {
        let fan_in = span.len() / span.shape()[0];
        let value = |u: f64| match span.shape().len() {
            2.. => u * (3.0 / fan_in as f64).sqrt(),
            _ if span.name().ends_with("weight") => 1.0 + 0.5 * u,
            _ => 0.3 * u,
        };
        parameters.extend(numbers(span.len(), stream).map(|u| value(u) as f32));
    }
    State { parameters, ..State::initial(graph, 0) }
}

#[test]
fn statistics_are_those_of_pytorch_on_the_same_augmented_batches() {
    let data = digits().unwrap();
    let settings = [
        "train.workers=1",
        "train.batch=32",
        "train.seed=11",
        "evaluate.batch_norm=recalibrate",
        "data.augment=flip+pad2crop8",
    ];
    let mut recipe = recipe("sgd", &settings);
    recipe.evaluate.images = 320;
    let meter = Evaluator::new(&recipe, &data).unwrap();
    let found = meter.statistics(&filled(meter.graph())).unwrap();
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/recalibrate.safetensors");
    let expected = Tensors::read(&path, "recalibrate").unwrap();
    let spans = meter.graph().statistics().spans();
    assert_eq!(spans.len(), expected.names().count());
    for span in spans {
        let Some(Data::F32(expected)) = expected.find(span.name()).map(|tensor| &tensor.data) else {
            panic!("{} is missing", span.name());
        };
        let found = &found[span.range()];
        assert_eq!(found.len(), expected.len(), "{}", span.name());
        let difference: Vec<f32> = found.iter().zip(expected).map(|(a, b)| a - b).collect();
        let off = norm(&difference) / norm(expected);
        assert!(off < 1e-5, "{} is off by {off:.1e}", span.name());
    }
}
