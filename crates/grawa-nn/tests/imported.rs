//! Two small networks that `grawa.export` wrote, against PyTorch in f64 (`oracle/import_nets.py --fixtures`).

#![allow(clippy::unwrap_used)]

use grawa_nn::probe::{Engine, probe};
use std::path::Path;

#[test]
fn exported_networks_compute_what_pytorch_does() {
    let fixtures = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures");
    for (name, kinds) in [("imported-residual", 5), ("imported-plain", 4)] {
        let [network, values] = ["json", "safetensors"].map(|kind| fixtures.join(format!("{name}.{kind}")));
        let found =
            probe(network.to_str().unwrap(), None, &values, Path::new("unwritten"), &Engine::Cpu).unwrap();
        // Logits, loss, the whole gradient, its tensors, and statistics where there are some.
        assert_eq!(found.errors.len(), kinds, "{:?}", found.errors);
        for distance in &found.errors {
            assert!(distance.error < 3e-6, "{name}: {distance:?}");
        }
    }
}
