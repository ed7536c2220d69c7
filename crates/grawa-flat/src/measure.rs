//! All figures of a state at once.

use crate::{
    Draw, Error, Estimate, Examples, Form, Hessian, Losses, Ritz, Sharpness, Standing, direction, frobenius,
    lanczos, quadratic_forms, sharpness, trace,
};
use grawa_core::norm::{norm, norms};
use grawa_core::{Key, Purpose};
use grawa_nn::{Graph, Mode, State};

/// What to measure, and how well.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Settings {
    /// Batch norm's mode; dropout must be off, or no two products are of one matrix.
    pub mode: Mode,
    /// Lanczos steps.
    pub steps: usize,
    /// Lanczos runs, each from a direction of its own.
    pub draws: usize,
    /// Products with further directions, for trace and Frobenius norm.
    pub extra: usize,
    /// ε of the ε-sharpness.
    pub radius: f64,
    /// Gradients to search its box with.
    pub search: usize,
    /// Where directions are drawn from.
    pub seed: u64,
    /// Threads.
    pub threads: usize,
    /// Bytes that may be used.
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
            threads: std::thread::available_parallelism().map_or(1, usize::from),
            memory: 4 << 30,
        }
    }
}

impl Settings {
    /// How many times `measure` will report: once a product or gradient.
    pub fn work(&self) -> usize {
        self.draws * self.steps + self.extra + self.search + 1
    }
}

/// What was measured.
#[derive(Clone, Debug, PartialEq)]
pub struct Figures {
    /// Parameters.
    pub parameters: usize,
    /// Mean loss and error on the examples.
    pub standing: Standing,
    /// ‖g‖ of the mean loss: GRAWA's score.
    pub gradient: f64,
    /// Σₖ‖Gₖ‖ over the tensors: MGRAWA's score.
    pub layers: f64,
    /// The Lanczos runs.
    pub draws: Vec<Draw>,
    /// Their Ritz values.
    pub ritz: Vec<Ritz>,
    /// What single products said, those of the runs' first steps included.
    pub forms: Vec<Form>,
    /// ε-sharpness.
    pub sharpness: Sharpness,
    /// Bytes that were used.
    pub bytes: usize,
    /// Batches whose passes were kept, and all of them.
    pub kept: (usize, usize),
}

impl Figures {
    /// A figure of each run, and their mean.
    fn over_draws(&self, figure: impl Fn(&Ritz) -> f64) -> Estimate {
        Estimate::of(&self.ritz.iter().map(figure).collect::<Vec<_>>())
    }

    /// The largest eigenvalue, with the bound of its own run: where the runs end, it is surely known so well.
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

/// An end of the spectrum with its residual, which is no better than products in f32 are.
fn bounded(end: Option<(f64, f64)>) -> Estimate {
    let (value, error) = end.unwrap_or((f64::NAN, f64::NAN));
    Estimate { value, error: error.max(1e-6 * value.abs()) }
}

/// Measures everything at a state; `note` is called once a product or gradient.
pub fn measure(
    graph: &Graph,
    state: &State,
    examples: &Examples,
    settings: &Settings,
    mut note: impl FnMut(),
) -> Result<Figures, Error> {
    for (what, found, least) in [("steps", settings.steps, 1), ("draws", settings.draws, 1)] {
        if found < least {
            return Err(Error::TooFew { what, found, least });
        }
    }
    let len = state.parameters.len();
    // The vectors of a run, one to work in, and one to draw.
    let basis = (settings.steps + 2) * len * size_of::<f32>();
    let Some(rest) = settings.memory.checked_sub(basis) else {
        let megabytes = |bytes: usize| bytes.div_ceil(1_000_000);
        let (steps, needed) = (settings.steps, megabytes(basis));
        let allowed = settings.memory / 1_000_000;
        return Err(Error::TooMuchMemory { steps, parameters: len, needed, allowed });
    };
    let mut losses = Losses::new(graph, examples, settings.mode, settings.threads)?;
    let standing = losses.at(&state.parameters, &state.statistics)?;
    let model = (&*state.parameters, &*state.statistics);
    let sharpness = sharpness(&mut losses, model, settings.radius, settings.search, &mut note)?;
    drop(losses);
    let mut hessian = Hessian::new(graph, state, examples, settings.mode, settings.threads, rest)?;
    let mut layers = vec![0.0; graph.parameters().spans().len()];
    norms(graph.parameters(), hessian.gradient(), &mut layers)?;
    let gradient = norm(hessian.gradient());
    let key = Key::new(settings.seed, Purpose::Direction);
    let mut apply = |v: &[f32], out: &mut [f32]| {
        let done = hessian.apply(v, out);
        note();
        done
    };
    let (mut draws, mut forms): (Vec<Draw>, Vec<Form>) = (Vec::new(), Vec::new());
    for number in 0..settings.draws {
        let start = direction(key.step(number as u64), len);
        let draw = lanczos(&mut apply, &start, settings.steps)?;
        forms.push(draw.form());
        draws.push(draw);
    }
    let further = (settings.draws..settings.draws + settings.extra).map(|number| key.step(number as u64));
    forms.extend(quadratic_forms(&mut apply, len, further)?);
    Ok(Figures {
        parameters: len,
        standing,
        gradient,
        layers: layers.iter().sum(),
        ritz: draws.iter().map(Draw::ritz).collect(),
        draws,
        forms,
        sharpness,
        bytes: basis + hessian.bytes(),
        kept: hessian.kept(),
    })
}
