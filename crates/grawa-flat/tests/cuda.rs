//! Measurements on a GPU against those on the CPU.

#![allow(clippy::unwrap_used)]

use grawa_core::{Key, Purpose};
use grawa_flat::{Engine, Examples, Hessian, Losses, Settings, direction, measure};
use grawa_nn::{Graph, Mode, Shape, State, zoo};

const CPU: Engine = Engine::Cpu { threads: 2 };

fn case(graph: &Graph) -> (State, Examples) {
    let mut draws = Key::new(5, Purpose::Problem).stream();
    let images = (0..24 * graph.input().len()).map(|_| draws.normal() as f32).collect();
    let labels = (0..24).map(|_| draws.below(graph.classes() as u64) as u32).collect();
    (State::initial(graph, 3), Examples::new(images, labels, 6).unwrap())
}

fn networks() -> [Graph; 2] {
    [
        zoo::digits("digits", Shape::image(1, 8), 4, 10).unwrap(),
        zoo::resnet("resnet", Shape::image(3, 9), 1, 4, 5).unwrap(),
    ]
}

#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn figures_on_a_gpu_are_those_of_the_cpu() {
    for graph in networks() {
        let (state, examples) = case(&graph);
        for mode in [Mode::Train { dropout: None }, Mode::Evaluate] {
            let settings = Settings { mode, steps: 40, draws: 2, extra: 4, ..Settings::default() };
            let [cpu, gpu] = [CPU, Engine::Cuda].map(|engine| {
                let settings = Settings { engine, ..settings };
                let mut noted = 0;
                let figures = measure(&graph, &state, &examples, &settings, || noted += 1).unwrap();
                assert_eq!(noted, settings.work());
                figures
            });
            assert_eq!((gpu.kept, gpu.parameters), ((4, 4), cpu.parameters));
            assert_eq!(gpu.at_checkpoint.error, cpu.at_checkpoint.error);
            let near = |what: &str, found: f64, expected: f64, within: f64| {
                let off = (found - expected).abs();
                assert!(off <= within, "{} {mode:?}: {what} {found} and {expected}", graph.name());
            };
            // The ends of the spectrum agree within their bounds, and rounding of the products.
            let scale = cpu.largest().value.abs().max(cpu.smallest().value.abs());
            for (what, found, expected) in
                [("λ_max", gpu.largest(), cpu.largest()), ("λ_min", gpu.smallest(), cpu.smallest())]
            {
                near(what, found.value, expected.value, found.error + expected.error + 1e-5 * scale);
            }
            for (what, found, expected) in [
                ("loss", gpu.at_checkpoint.loss, cpu.at_checkpoint.loss),
                ("‖g‖", gpu.gradient, cpu.gradient),
                ("Σₖ‖Gₖ‖", gpu.layers, cpu.layers),
                ("trace", gpu.trace().value, cpu.trace().value),
                ("‖H‖_F", gpu.frobenius().value, cpu.frobenius().value),
                ("ε-sharpness", gpu.sharpness, cpu.sharpness),
            ] {
                near(what, found, expected, 1e-3 * expected.abs());
            }
        }
    }
}

/// Losses, gradients and products, the same bits twice.
#[test]
#[ignore = "needs an NVIDIA GPU: GRAWA_NEEDS_GPU=1 and --include-ignored"]
fn losses_and_products_on_a_gpu_are_those_of_the_cpu() {
    for graph in networks() {
        let (state, examples) = case(&graph);
        let mode = Mode::Train { dropout: None };
        let v = direction(Key::new(2, Purpose::Direction), state.parameters.len());
        let away: Vec<f32> = state.parameters.iter().zip(&v).map(|(x, v)| x + v).collect();
        let run = |engine: Engine| {
            let mut losses = Losses::new(&graph, &examples, mode, engine).unwrap();
            let mut gradient = vec![0.0; v.len()];
            let loss = losses.gradient(&away, &state.statistics, &mut gradient).unwrap();
            let at = losses.at(&away, &state.statistics).unwrap();
            assert!((at.loss / loss - 1.0).abs() < 1e-6);
            let mut hessian = Hessian::new(&graph, &state, &examples, mode, engine, 1 << 30).unwrap();
            let mut product = vec![0.0; v.len()];
            hessian.apply(&v, &mut product).unwrap();
            (at, gradient, hessian.loss(), hessian.gradient().to_vec(), product)
        };
        let (cpu, gpu) = (run(CPU), run(Engine::Cuda));
        let close = |what: &str, found: &[f32], expected: &[f32]| {
            let square =
                |x: &mut dyn Iterator<Item = f32>| x.map(|x| f64::from(x).powi(2)).sum::<f64>().sqrt();
            let off = square(&mut found.iter().zip(expected).map(|(a, b)| a - b));
            let off = off / square(&mut expected.iter().copied());
            assert!(off < 1e-4, "{}: {what} off by {off:.2e}", graph.name());
        };
        assert!((gpu.0.loss / cpu.0.loss - 1.0).abs() < 1e-5 && (gpu.2 / cpu.2 - 1.0).abs() < 1e-5);
        assert_eq!(gpu.0.error, cpu.0.error);
        close("the gradient elsewhere", &gpu.1, &cpu.1);
        close("the gradient", &gpu.3, &cpu.3);
        close("the product", &gpu.4, &cpu.4);
        assert_eq!(run(Engine::Cuda), gpu, "other bits the second time");
    }
}
