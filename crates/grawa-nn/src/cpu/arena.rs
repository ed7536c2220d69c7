//! The memory of passes, allocated once: results, gradients, packed weights, and the threads that share the work.

use super::convolution::ConvWorkspace;
use super::memory::zeros;
use super::norm::{Affine, Moments};
use super::profile::Profile;
use super::program::{Place, Program};
use super::simd::{F32x16, Isa};
use crate::plan::NO_STEP;
use crate::{Error, Op};
use grawa_core::Update;
use std::sync::Arc;

/// The buffer of a place.
#[derive(Debug)]
pub(crate) enum Buffer {
    Planes(Vec<F32x16>),
    Vectors(Vec<f32>),
}

impl Buffer {
    fn new(place: &Place, batch: usize) -> Self {
        match place {
            Place::Planes(blocked) => Buffer::Planes(zeros(batch * blocked.image())),
            Place::Vectors(len) => Buffer::Vectors(vec![0.0; batch * len]),
        }
    }

    pub(crate) fn planes(&self) -> &[F32x16] {
        if let Buffer::Planes(planes) = self { planes } else { &[] }
    }

    pub(crate) fn planes_mut(&mut self) -> &mut [F32x16] {
        if let Buffer::Planes(planes) = self { planes } else { &mut [] }
    }

    pub(crate) fn vectors(&self) -> &[f32] {
        if let Buffer::Vectors(vectors) = self { vectors } else { &[] }
    }

    pub(crate) fn vectors_mut(&mut self) -> &mut [f32] {
        if let Buffer::Vectors(vectors) = self { vectors } else { &mut [] }
    }

    /// Stores values in plain order, or adds them if `add`.
    pub(crate) fn store(&mut self, place: &Place, plain: &[f32], add: bool) {
        match place {
            Place::Vectors(_) => {
                let pairs = self.vectors_mut().iter_mut().zip(plain);
                pairs.for_each(|(to, &x)| *to = if add { *to + x } else { x });
            }
            Place::Planes(blocked) => {
                let images = self.planes_mut().chunks_exact_mut(blocked.image());
                for (image, plain) in images.zip(plain.chunks_exact(blocked.shape.len())) {
                    if add { blocked.pack_add(plain, image) } else { blocked.pack(plain, image) }
                }
            }
        }
    }

    /// The values in plain order, unpacked into `flat` if they are blocked.
    pub(crate) fn plain<'a>(&'a self, place: &Place, flat: &'a mut [f32]) -> &'a [f32] {
        let Place::Planes(blocked) = place else { return self.vectors() };
        let images = self.planes().chunks_exact(blocked.image());
        let pairs = images.zip(flat.chunks_exact_mut(blocked.shape.len()));
        pairs.for_each(|(image, plain)| blocked.unpack(image, plain));
        flat
    }

    /// The values in plain order, in memory of their own.
    pub(crate) fn to_plain(&self, place: &Place) -> Vec<f32> {
        let Place::Planes(blocked) = place else { return self.vectors().to_vec() };
        let mut flat = vec![0.0; self.planes().len() / blocked.image() * blocked.shape.len()];
        self.copy_to(place, &mut flat);
        flat
    }

    /// Copies the values in plain order.
    pub(crate) fn copy_to(&self, place: &Place, plain: &mut [f32]) {
        match place {
            Place::Vectors(_) => plain.copy_from_slice(self.vectors()),
            Place::Planes(_) => {
                self.plain(place, plain);
            }
        }
    }

    /// Bytes for each image of a batch.
    fn bytes_per_image(place: &Place) -> usize {
        match place {
            Place::Planes(blocked) => size_of::<F32x16>() * blocked.image(),
            Place::Vectors(len) => size_of::<f32>() * len,
        }
    }

    fn bytes(&self) -> usize {
        size_of_val(self.planes()) + size_of_val(self.vectors())
    }
}

/// What a step stores besides its result.
#[derive(Debug, Default)]
pub(crate) struct Scratch {
    /// The bias of a convolution, as vectors.
    pub(crate) bias: Vec<F32x16>,
    /// Moments of every image: of a convolution's result, or of a batch norm's input.
    pub(crate) moments: Vec<Moments>,
    /// The statistics that a batch norm used.
    pub(crate) mean: Vec<f32>,
    pub(crate) variance: Vec<f32>,
    pub(crate) affine: Affine,
    /// Sums over all images of the gradient of a batch norm's or bias's output, and of that times its input.
    pub(crate) sum: Vec<f64>,
    pub(crate) along: Vec<f64>,
    /// Plain vectors: an input that is blocked elsewhere, and its gradient.
    pub(crate) flat: Vec<f32>,
    pub(crate) flow: Vec<f32>,
}

/// The memory that passes of one program write to. It belongs to a core or to a group of cores, never to a worker.
#[derive(Debug)]
pub struct Arena {
    pub(crate) isa: Isa,
    pub(crate) pool: Arc<rayon::ThreadPool>,
    pub(crate) values: Vec<Option<Buffer>>,
    pub(crate) gradients: Vec<Option<Buffer>>,
    pub(crate) scratch: Vec<Scratch>,
    pub(crate) workspace: ConvWorkspace,
    pub(crate) logits: Vec<f32>,
    /// The gradient of the logits.
    pub(crate) flow: Vec<f32>,
    /// Whether the last pass was in training mode, so that its statistics can be tracked.
    pub(crate) trained: bool,
    pub(crate) profile: Option<Profile>,
}

impl Arena {
    /// Memory for passes of a program on `threads` threads.
    pub fn new(program: &Program, threads: usize) -> Result<Self, Error> {
        let threads = threads.max(1);
        let pool = rayon::ThreadPoolBuilder::new()
            .num_threads(threads)
            .build()
            .map_err(|error| Error::Threads { why: error.to_string() })?;
        let workspace = ConvWorkspace::new(program.conv_choices(), program.batch, threads);
        Ok(Arena::on(program, Arc::new(pool), workspace))
    }

    /// [`Arena::bytes`] of an arena that is not allocated.
    pub fn bytes_for(program: &Program, threads: usize) -> usize {
        let results = program.steps.iter().map(|step| &program.places[step.output]);
        let buffers = results.chain(&program.places[..1]).chain(&program.buffers);
        let per_image: usize = buffers.map(Buffer::bytes_per_image).sum();
        let flat = program.steps.iter().map(|step| {
            let len = program.graph.nodes()[step.inputs[0]].shape.len();
            match step.op {
                Op::Linear { .. } | Op::Dropout { .. } => 2 * len,
                Op::Relu if matches!(program.places[step.output], Place::Vectors(_)) => len,
                _ => 0,
            }
        });
        program.batch * (per_image + size_of::<f32>() * flat.sum::<usize>())
            + ConvWorkspace::bytes_for(program.conv_choices(), program.batch, threads.max(1))
    }

    /// Memory for passes of a program on an existing thread pool and convolution workspace.
    pub(crate) fn on(program: &Program, pool: Arc<rayon::ThreadPool>, workspace: ConvWorkspace) -> Self {
        let batch = program.batch;
        let mut values: Vec<Option<Buffer>> = program.places.iter().map(|_| None).collect();
        for node in program.steps.iter().map(|step| step.output).chain([0]) {
            values[node] = Some(Buffer::new(&program.places[node], batch));
        }
        let gradients = program.buffers.iter().map(|place| Some(Buffer::new(place, batch))).collect();
        let scratch = program.steps.iter().map(|step| {
            let mut scratch = Scratch::default();
            let moments = |blocks: usize| (0..batch).map(|_| Moments::new(blocks)).collect::<Vec<_>>();
            let flat = batch * program.graph.nodes()[step.inputs[0]].shape.len();
            match &step.op {
                Op::Conv { .. } => {
                    let geometry = &program.convolutions[&step.node].geometry;
                    scratch.moments = moments(geometry.to.blocks());
                    scratch.bias = zeros(geometry.to.blocks());
                    scratch.sum = vec![0.0; geometry.to.shape.channels];
                }
                Op::BatchNorm { .. } => {
                    let place = program.planes(step.inputs[0]);
                    scratch.mean = vec![0.0; place.shape.channels];
                    scratch.variance = vec![0.0; place.shape.channels];
                    scratch.sum = vec![0.0; place.shape.channels];
                    scratch.along = vec![0.0; place.shape.channels];
                    scratch.moments = moments(place.blocks());
                    scratch.affine = Affine::new(place.blocks());
                }
                Op::Linear { .. } | Op::Dropout { .. } => {
                    scratch.flat = vec![0.0; flat];
                    scratch.flow = vec![0.0; flat];
                }
                Op::Relu if matches!(program.places[step.output], Place::Vectors(_)) => {
                    scratch.flow = vec![0.0; flat];
                }
                Op::Relu | Op::Add | Op::GlobalAverage | Op::MaxPool(_) | Op::AveragePool(_) => {}
                Op::PadChannels { .. } | Op::Subsample { .. } | Op::Concat | Op::Plain { .. } => {}
                Op::Input => unreachable!("{NO_STEP}"),
            }
            scratch
        });
        let scratch = scratch.collect();
        let logits = vec![0.0; batch * program.graph.classes()];
        Arena {
            isa: Isa::new(),
            pool,
            values,
            gradients,
            scratch,
            workspace,
            flow: logits.clone(),
            logits,
            trained: false,
            profile: None,
        }
    }

    /// Runs the step of an optimizer on the threads of this arena. Returns whether all parameters are finite afterwards.
    pub fn update(&self, update: Update<'_>) -> bool {
        /// Small enough to divide evenly, large enough to be worth a thread.
        const PARAMETERS: usize = 1 << 15;
        fn run(update: Update<'_>) -> bool {
            if update.len() <= PARAMETERS {
                return update.run();
            }
            match update.halves() {
                (whole, None) => whole.run(),
                (first, Some(second)) => {
                    let (first, second) = rayon::join(|| run(first), || run(second));
                    first & second
                }
            }
        }
        if self.pool.current_num_threads() == 1 { update.run() } else { self.pool.install(|| run(update)) }
    }

    /// Starts to record how long every operation takes.
    pub fn start_profile(&mut self) {
        self.profile = Some(Profile::new(self.scratch.len()));
    }

    /// The recorded times.
    pub fn profile(&self) -> Option<&Profile> {
        self.profile.as_ref()
    }

    /// The logits of the last pass, example by example.
    pub fn logits(&self) -> &[f32] {
        &self.logits
    }

    /// Bytes of all memory that a pass writes to.
    pub fn bytes(&self) -> usize {
        let buffers = self.values.iter().chain(&self.gradients).flatten().map(Buffer::bytes).sum::<usize>();
        let plain = |scratch: &Scratch| size_of::<f32>() * (scratch.flat.len() + scratch.flow.len());
        buffers + self.workspace.bytes() + self.scratch.iter().map(plain).sum::<usize>()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::zoo::ZOO;

    #[test]
    fn bytes_are_known_without_allocating() {
        for name in ["digits", "resnet20", "vgg16"] {
            let entry = ZOO.iter().find(|entry| entry.name == name).unwrap();
            let program = Program::compile(&entry.build(entry.input, entry.classes).unwrap(), 3).unwrap();
            for threads in [1, 2] {
                let arena = Arena::new(&program, threads).unwrap();
                assert_eq!(Arena::bytes_for(&program, threads), arena.bytes(), "{name}, {threads} threads");
            }
        }
    }
}
