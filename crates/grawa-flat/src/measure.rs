//! All measurements of a state.

use crate::{
    Engine, Error, Estimate, Examples, Hessian, LossAndError, Losses, QuadraticForm, Ritz, direction,
    frobenius, lanczos, quadratic_forms, sharpness, trace,
};
use grawa_core::norm::{norm, norms};
use grawa_core::{Key, Purpose};
use grawa_nn::{Graph, Mode, State};

/// The settings of a measurement.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Batch norm's mode; dropout must be off, or products belong to different matrices.
    pub mode: Mode,
    /// Lanczos steps.
    pub steps: usize,
    /// Lanczos runs, each from its own direction.
    pub draws: usize,
    /// Products with further directions, for trace and Frobenius norm.
    pub extra: usize,
    /// ε of the ε-sharpness.
    pub radius: f64,
    /// Gradients to search its box with.
    pub search: usize,
    /// The seed of the directions.
    pub seed: u64,
    /// Where passes run.
    pub engine: Engine,
    /// The limit of the host's memory in bytes.
    pub memory: usize,
}

impl Default for Settings {
    fn default() -> Self {
        Settings {
            mode: Mode::Train { dropout: None },
            steps: 100,
            draws: 3,
            extra: 10,
            radius: 1e-3,
            search: 10,
            seed: 31,
            engine: Engine::Cpu { threads: std::thread::available_parallelism().map_or(1, usize::from) },
            memory: 4 << 30,
        }
    }
}

impl Settings {
    /// How often `measure` reports: once for each product or gradient.
    pub fn work(&self) -> usize {
        self.draws * self.steps + self.extra + self.search + 1
    }
}

/// The measurements.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Parameters.
    pub parameters: usize,
    /// Mean loss and error on the examples.
    pub at_checkpoint: LossAndError,
    /// ‖g‖ of the mean loss: GRAWA's score.
    pub gradient: f64,
    /// Σₖ‖Gₖ‖ over the tensors: MGRAWA's score.
    pub layers: f64,
    /// The Ritz values of the Lanczos runs.
    pub ritz: Vec<Ritz>,
    /// The quadratic forms of single products, with those of the runs' first steps.
    pub forms: Vec<QuadraticForm>,
    /// ε-sharpness.
    pub sharpness: f64,
    /// Bytes that were used.
    pub bytes: usize,
    /// The number of batches whose passes were kept, and of all batches.
    pub kept: (usize, usize),
}

impl Figures {
    /// The mean of a number of each run.
    fn over_draws(&self, figure: impl Fn(&Ritz) -> f64) -> Estimate {
        Estimate::of(&self.ritz.iter().map(figure).collect::<Vec<_>>())
    }

    /// The largest eigenvalue, with the error bound of its run.
    pub fn largest(&self) -> Estimate {
        let ends = self.ritz.iter().filter_map(|run| Some((*run.values.last()?, *run.residuals.last()?)));
        bounded(ends.max_by(|a, b| a.0.total_cmp(&b.0)))
    }

    /// The smallest eigenvalue, in the same way.
    pub fn smallest(&self) -> Estimate {
        let ends = self.ritz.iter().filter_map(|run| Some((*run.values.first()?, *run.residuals.first()?)));
        bounded(ends.min_by(|a, b| a.0.total_cmp(&b.0)))
    }

    /// λ₁ over λ₅.
    pub fn ratio(&self) -> Estimate {
        let nth =
            |run: &Ritz, n: usize| run.values.len().checked_sub(n).map_or(f64::NAN, |at| run.values[at]);
        self.over_draws(|run| nth(run, 1) / nth(run, 5))
    }

    /// The sum of the Ritz values: what the paper's table lists as Frobenius norm.
    pub fn ritz_sum(&self) -> Estimate {
        self.over_draws(|run| run.values.iter().sum())
    }

    /// √Σθ² of the Ritz values: near the Frobenius norm only if few eigenvalues dominate.
    pub fn ritz_norm(&self) -> Estimate {
        self.over_draws(|run| run.values.iter().map(|value| value * value).sum::<f64>().sqrt())
    }

    /// The Frobenius norm.
    pub fn frobenius(&self) -> Estimate {
        frobenius(&self.forms, self.parameters)
    }

    /// The trace.
    pub fn trace(&self) -> Estimate {
        trace(&self.forms, self.parameters)
    }
}

/// An end of the spectrum with its residual, which is at least the rounding of products in f32.
fn bounded(end: Option<(f64, f64)>) -> Estimate {
    let (value, error) = end.unwrap_or((f64::NAN, f64::NAN));
    Estimate { value, error: error.max(1e-6 * value.abs()) }
}

/// Measures everything at a state; `note` is called for each product or gradient.
pub fn measure(
    graph: &Graph,
    state: &State,
    examples: &Examples,
    settings: &Settings,
    mut note: impl FnMut(),
) -> Result<Figures, Error> {
    if settings.draws == 0 {
        return Err(Error::TooFew("draws", 0, 1));
    }
    let len = state.parameters.len();
    // The vectors of a run, a working vector, and a direction.
    let basis = (settings.steps + 2) * len * size_of::<f32>();
    let Some(rest) = settings.memory.checked_sub(basis) else {
        let (steps, needed, allowed) =
            (settings.steps, basis.div_ceil(1_000_000), settings.memory / 1_000_000);
        return Err(Error::Setting(format!(
            "{steps} steps on {len} parameters need {needed} MB of memory, but {allowed} MB are allowed; allow more, or make fewer steps"
        )));
    };
    let mut losses = Losses::new(graph, examples, settings.mode, settings.engine)?;
    let at_checkpoint = losses.at(&state.parameters, &state.statistics)?;
    let model = (&*state.parameters, &*state.statistics);
    let sharpness = sharpness(&mut losses, model, settings.radius, settings.search, &mut note)?;
    drop(losses);
    let mut hessian = Hessian::new(graph, state, examples, settings.mode, settings.engine, rest)?;
    let mut layers = vec![0.0; graph.parameters().spans().len()];
    norms(graph.parameters(), hessian.gradient(), &mut layers)?;
    let gradient = norm(hessian.gradient());
    let key = Key::new(settings.seed, Purpose::Direction);
    let mut apply = |v: &[f32], out: &mut [f32]| {
        let done = hessian.apply(v, out);
        note();
        done
    };
    let (mut ritz, mut forms) = (Vec::new(), Vec::new());
    for number in 0..settings.draws {
        let start = direction(key.step(number as u64), len);
        let draw = lanczos(&mut apply, &start, settings.steps)?;
        forms.push(draw.form());
        ritz.push(draw.ritz());
    }
    let further = (settings.draws..settings.draws + settings.extra).map(|number| key.step(number as u64));
    forms.extend(quadratic_forms(&mut apply, len, further)?);
    Ok(Figures {
        parameters: len,
        at_checkpoint,
        gradient,
        layers: layers.iter().sum(),
        ritz,
        forms,
        sharpness,
        bytes: basis + hessian.bytes(),
        kept: hessian.kept(),
    })
}
