//! What a pass writes to, allocated once: results, gradients, blocked weights, and the threads that share the work.

use super::lanes::{Line, Machine, WIDTH};
use super::memory::zeros;
use super::norm::{Affine, Moments};
use super::program::{Kind, Place, Program};
use crate::Error;

/// A buffer of a place.
#[derive(Debug)]
pub(crate) enum Buffer {
    Planes(Vec<Line>),
    Vectors(Vec<f32>),
}

impl Buffer {
    fn new(place: &Place, batch: usize) -> Self {
        match place {
            Place::Planes(blocked) => Buffer::Planes(zeros(batch * blocked.image())),
            Place::Vectors(len) => Buffer::Vectors(vec![0.0; batch * len]),
        }
    }

    pub(crate) fn planes(&self) -> &[Line] {
        if let Buffer::Planes(planes) = self { planes } else { &[] }
    }

    pub(crate) fn planes_mut(&mut self) -> &mut [Line] {
        if let Buffer::Planes(planes) = self { planes } else { &mut [] }
    }

    pub(crate) fn vectors(&self) -> &[f32] {
        if let Buffer::Vectors(vectors) = self { vectors } else { &[] }
    }

    pub(crate) fn vectors_mut(&mut self) -> &mut [f32] {
        if let Buffer::Vectors(vectors) = self { vectors } else { &mut [] }
    }

    fn bytes(&self) -> usize {
        size_of_val(self.planes()) + size_of_val(self.vectors())
    }
}

/// What one step keeps besides its result.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// A convolution's blocked weights, and those of its way back.
    pub(crate) weights: Vec<Line>,
    pub(crate) turned: Vec<Line>,
    /// The gradient of the weights, for each group of images.
    pub(crate) groups: Vec<Vec<Line>>,
    /// Moments of every image: of a convolution's result, or of a batch norm's input.
    pub(crate) moments: Vec<Moments>,
    /// What a batch norm normalised with.
    pub(crate) mean: Vec<f32>,
    pub(crate) variance: Vec<f32>,
    pub(crate) affine: Option<Affine>,
    /// A linear layer's input where it is blocked, and that input's gradient.
    pub(crate) flat: Vec<f32>,
}

/// What passes of one program write to. It belongs to a core, or to all of them: never to a worker.
#[derive(Debug)]
pub struct Arena {
    pub(crate) machine: Machine,
    pub(crate) pool: rayon::ThreadPool,
    pub(crate) values: Vec<Option<Buffer>>,
    pub(crate) gradients: Vec<Option<Buffer>>,
    pub(crate) scratch: Vec<Scratch>,
    pub(crate) logits: Vec<f32>,
    /// Whether the last pass was one of training, whose statistics can be tracked.
    pub(crate) trained: bool,
}

/// Weight gradients are summed in as many groups of images: enough for all threads, fixed by the shape alone so that the
/// bits do not depend on their number, and few where the weights are many.
pub(crate) fn groups(weights: usize, batch: usize) -> usize {
    if weights * WIDTH * size_of::<f32>() <= 1 << 20 { batch.min(4) } else { 1 }
}

impl Arena {
    /// Room for passes of a program on `threads` threads.
    pub fn new(program: &Program, threads: usize) -> Result<Self, Error> {
        let threads = threads.max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|error| Error::Threads { why: error.to_string() })?;
        let batch = program.batch;
        let mut values: Vec<Option<Buffer>> = program.places.iter().map(|_| None).collect();
        for node in program.steps.iter().map(|step| step.output).chain([0]) {
            values[node] = Some(Buffer::new(&program.places[node], batch));
        }
        let gradients = program.buffers.iter().map(|place| Some(Buffer::new(place, batch))).collect();
        let lines = zeros;
        let scratch = program.steps.iter().map(|step| {
            let mut scratch = Scratch::default();
            let moments = |blocks: usize| (0..batch).map(|_| Moments::new(blocks)).collect::<Vec<_>>();
            match &step.kind {
                Kind::Conv { walk, .. } => {
                    scratch.weights = lines(walk.weights());
                    scratch.turned = lines(walk.weights());
                    scratch.groups =
                        (0..groups(walk.weights(), batch)).map(|_| lines(walk.weights())).collect();
                    scratch.moments = moments(walk.to.blocks());
                }
                Kind::Norm { .. } => {
                    let place = program.planes(step.inputs[0]);
                    scratch.mean = vec![0.0; place.shape.channels];
                    scratch.variance = vec![0.0; place.shape.channels];
                    scratch.moments = moments(place.blocks());
                    let blank = || lines(place.blocks());
                    scratch.affine =
                        Some(Affine { middle: blank(), slope: blank(), shift: blank(), along: blank() });
                }
                Kind::Linear { .. } | Kind::Dropout { .. } => {
                    if let Place::Planes(blocked) = program.places[step.inputs[0]] {
                        scratch.flat = vec![0.0; batch * blocked.shape.len()];
                    }
                }
                _ => {}
            }
            scratch
        });
        let scratch = scratch.collect();
        let logits = vec![0.0; batch * program.graph.classes()];
        Ok(Arena { machine: Machine::here(), pool, values, gradients, scratch, logits, trained: false })
    }

    /// The logits of the last pass, example after example.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Bytes of everything a pass writes to.
    pub fn bytes(&self) -> usize {
        let buffers = self.values.iter().chain(&self.gradients).flatten().map(Buffer::bytes).sum::<usize>();
        let lines = |scratch: &Scratch| {
            let many = scratch.groups.iter().map(Vec::len).sum::<usize>();
            size_of::<Line>() * (scratch.weights.len() + scratch.turned.len() + many) + 4 * scratch.flat.len()
        };
        buffers + self.scratch.iter().map(lines).sum::<usize>()
    }
}
