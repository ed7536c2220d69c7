//! Networks as JSON: any text is read or refused, and what is read has shapes that fit.
#![no_main]
use grawa_nn::Graph;

libfuzzer_sys::fuzz_target!(|text: &str| {
    if let Ok(graph) = Graph::from_json(text) {
        assert!(graph.nodes().iter().all(|node| !node.shape.is_empty()));
        assert!(graph.classes() > 0 && graph.activations() > 0);
        assert!(graph.to_string().contains("parameters"));
    }
});
