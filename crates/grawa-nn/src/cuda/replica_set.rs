//! Replicas of one network on one GPU. A kernel serves several of them; one local step of all is one captured graph.
//!
//! A [`ReplicaSet`] owns the memory of its workers. Vectors enter and leave in the order of the network's layouts; the layout on
//! the GPU is private. Only calls that read from the GPU wait for it.

use super::autotune::{Autotuner, Choice};
use super::batch_ahead::BatchAhead;
use super::compile::{HISTORY, Program};
use super::cudnn::Cudnn;
use super::data::{DeviceDataset, Source, Split};
use super::device::{Captured, Context, Device, Grid, Memory, Stream, WIDE, arguments};
use super::device_snapshot::SnapshotRoom;
use super::host_step::HostSteps;
use super::job::{Chain, Job, chains};
use super::kernel_choice::LayerKernels;
use super::kernels::Kernels;
use super::limits;
use super::pass::{PassMode, summing_blocks};
use super::pinned::Pinned;
use crate::error::expect_len;
use crate::plan::Reuse;
use crate::{Error, Graph, Mode, Precision};
use bytemuck::{Pod, Zeroable};
use grawa_core::{Key, Optimizer};
use std::sync::{Arc, Mutex};

/// The settings of a replica set.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Images in the batch of one worker.
    pub batch: usize,
    /// Workers.
    pub workers: usize,
    /// How numbers are stored and multiplied.
    pub precision: Precision,
    /// Choose kernels by shape alone instead of by measurement, so that every run gives the same bits.
    pub fixed: bool,
}

/// Inputs and results of a step; see `simple.cu`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, Pod, Zeroable)]
pub(crate) struct Controls {
    pub(crate) seed: [u32; 2],
    pub(crate) worker: u32,
    pub(crate) step: [u32; 2],
    pub(crate) slot: u32,
    pub(crate) rate: f32,
    pub(crate) prox: [f32; 2],
    pub(crate) lost: u32,
    pub(crate) correct: u32,
    pub(crate) apart: u32,
    pub(crate) loss: f64,
}

/// Numbers of AdamW behind a worker's second moment, the first of which is its number of steps; see `adamw.cu`.
pub(super) const BEHIND: usize = 3;

/// Kernels of every precision, of bf16 alone, of bf16 on Hopper, and of f32 alone. They are loaded before a graph is recorded.
const KERNELS: &str = "norm_moments norm_settle norm_settle_flow norm_fold norm_forward norm_forward_moments norm_reduce norm_backward \
     norm_pool_forward norm_pool_reduce norm_pool_backward add_forward add_moments add_backward \
     add_bias pool_forward pool_backward pool_backward_tiles global_forward global_backward move_one move_eight dropout loss loss_sum \
     channel_sums intake augment pack_all_weights keep_result collect update adamw_position adamw squares norms mix device_sum device_pull ascend pause";
const TENSOR_CORE_KERNELS: &str = "conv_16 conv_32 conv_64 conv_64_tall conv_128 conv_rows_16 conv_rows_32 wgrad_16 \
     wgrad_32 wgrad_64 wgrad_rows_16 wgrad_rows_32";
const WIDE_KERNELS: &str = "conv_wide_64 conv_wide_128 conv_wide_160 conv_wide_data_64 conv_wide_data_128 conv_wide_data_160 \
     conv_wide_64_rows conv_wide_128_rows conv_wide_160_rows conv_wide_data_64_rows conv_wide_data_128_rows conv_wide_data_160_rows \
     wgrad_wide_64 wgrad_wide_128 wgrad_wide_160 wgrad_wide_64_32 wgrad_wide_128_32 wgrad_wide_160_32";
const F32_KERNELS: &str =
    "conv_f32_16 conv_f32_32 conv_f32_64 conv_f32_64_tall wgrad_f32_16 wgrad_f32_32 wgrad_f32_64";

/// Replicas of one network on one GPU.
#[derive(Debug)]
pub struct ReplicaSet {
    pub(crate) context: Arc<Context>,
    pub(crate) kernels: Arc<Kernels>,
    pub(super) cudnn: Option<Cudnn>,
    pub(crate) program: Program,
    pub(super) precision: Precision,
    pub(super) layer_kernels: Vec<LayerKernels>,
    choices: Vec<Choice>,
    /// The most blocks of a replica that sum channels; see [`Pass::sums`].
    pub(super) summing_blocks: usize,
    pub(super) host_steps: HostSteps,
    /// The batches of the next step, from the first one that was copied ahead. Dropped before the memory it is copied to.
    pub(super) ahead: Option<BatchAhead>,
    pub(crate) memory: Memory,
    pub(super) spans: Memory,
    pub(super) chunks: Memory,
    pub(crate) first_chunk: Memory,
    pub(crate) main: Stream,
    pub(super) chains: Vec<Chain>,
    pub(super) jobs: Vec<(Job, Captured)>,
    pub(crate) workers: usize,
    pub(crate) controls: Vec<Controls>,
    /// Steps since the positions were set: the `slot` of the controls once the GPU has finished all enqueued work.
    pub(super) slot: usize,
    /// The data sets on the GPU.
    pub(crate) datasets: [Option<DeviceDataset>; 2],
    /// The learning rates of the next steps.
    pub(super) rates: Memory,
    /// The weights of a round.
    pub(crate) weights: Memory,
    /// The second moments of AdamW and the numbers behind them, worker by worker, from its first step on.
    pub(super) second: Option<Memory>,
    /// The centre of all workers, those of the groups, and the model to evaluate.
    pub(crate) centres: [Option<Memory>; 3],
    /// The velocity of the outer optimizer of the centre of all, if it has one.
    pub(crate) outer: Option<Memory>,
    /// The weighted sum of a round on several GPUs.
    pub(crate) sums: Option<Memory>,
    /// Workers in a group, and how many of the first group are on an earlier GPU.
    pub(crate) group: usize,
    pub(crate) lead: usize,
    /// Whether models to evaluate replace the workers, and the workers' statistics meanwhile.
    pub(super) is_replaced: bool,
    pub(super) saved_statistics: Option<Memory>,
    /// What the passes of an evaluation have kept, pass by pass, worker by worker.
    pub(super) kept: Option<Memory>,
    /// For copies that are fetched later.
    pub(super) rooms: Vec<Arc<SnapshotRoom>>,
    /// For vectors on their way to the GPU or from it, from the first one on.
    pub(super) pinned: Mutex<Option<Pinned>>,
}

/// How many workers fit into free memory, and the largest batch (of repeated halves) with which one fits. About six parameter
/// vectors of a slab do not depend on the batch.
fn what_fits(slab: usize, vector: usize, free: usize, batch: usize) -> (usize, usize) {
    let fixed = (6 * vector).min(slab);
    let needs = |size: usize| fixed + (slab - fixed) / batch.max(1) * size;
    let size = std::iter::successors(Some(batch), |size| Some(size / 2)).take_while(|&size| size > 0);
    (free / slab.max(1), size.into_iter().find(|&size| needs(size) <= free).unwrap_or(0))
}

fn describe_fit((workers, batch): (usize, usize), asked: usize) -> String {
    match (workers, batch) {
        (1.., _) => {
            format!("{workers} of the {asked} workers would fit, or a smaller batch with all of them")
        }
        (0, 1..) => format!("not even one worker fits; with a batch of about {batch} one would"),
        (0, 0) => "not even one worker with a batch of one image fits: use a GPU with more memory".into(),
    }
}

/// The result of a pass on a batch, for one worker.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Outcome {
    /// The sum of the losses.
    pub loss: f64,
    /// Images whose largest logit is that of their label.
    pub correct: u32,
}

impl ReplicaSet {
    /// Compiles a network for a GPU and allocates the memory of the workers.
    pub fn new(device: &Device, graph: &Graph, settings: Settings) -> Result<Self, Error> {
        ReplicaSet::planned(device, graph, settings, Reuse::ConsumedOrEqual)
    }

    /// The same, with a choice of when the buffers of gradients are used again.
    pub(super) fn planned(
        device: &Device,
        graph: &Graph,
        settings: Settings,
        reuse: Reuse,
    ) -> Result<Self, Error> {
        let Settings { batch, workers, precision, fixed } = settings;
        expect_len("the list of workers", workers.min(1), 1)?;
        let context = Context::open(device.clone())?;
        let narrow = precision == Precision::Bf16;
        let kernels = Kernels::new(&context, narrow)?;
        kernels.load(KERNELS)?;
        kernels.load(if narrow { TENSOR_CORE_KERNELS } else { F32_KERNELS })?;
        if narrow && device.capability == WIDE {
            kernels.load(WIDE_KERNELS)?;
        }
        let cudnn = match precision {
            Precision::F32 => None,
            Precision::Tf32 => Some(Cudnn::open(&context)?),
            // Without cuDNN bf16 is slower, but correct.
            Precision::Bf16 => Cudnn::open(&context).ok(),
        };
        let main = Stream::main(&context);
        let mut program = Program::planned(graph, batch, if narrow { 2 } else { 4 }, reuse)?;
        let autotuner = Autotuner {
            context: &context,
            kernels: &kernels,
            cudnn: cudnn.as_ref(),
            stream: &main,
            precision,
            replicas: workers,
            fixed,
        };
        let (layer_kernels, choices) = autotuner.choose(&program)?;
        let needs: Vec<_> = layer_kernels.iter().map(LayerKernels::needs).collect();
        let blocks = summing_blocks(&kernels, program.wide, workers)?;
        program.allocate(&needs, blocks);
        let memory = Memory::new(&context, program.slab as usize * workers).map_err(|error| match error {
            Error::OutOfDeviceMemory { needed, free, .. } => {
                let fits = what_fits(program.slab as usize, 4 * graph.parameters().len(), free, batch);
                Error::OutOfDeviceMemory { needed, free, fits: describe_fit(fits, workers) }
            }
            other => other,
        })?;
        let table = |bytes: usize| Memory::new(&context, bytes);
        let spans = Memory::holding(&context, &program.spans)?;
        let chunks = Memory::holding(&context, &program.chunks)?;
        let first_chunk = Memory::holding(&context, &program.first_chunk)?;
        let rates = table(4 * HISTORY)?;
        let weights = table(4 * program.spans.len() * (workers + 1))?;
        let chains = chains(&context, &program, &layer_kernels, workers)?;
        let controls =
            (0..workers).map(|worker| Controls { worker: worker as u32, ..Controls::default() }).collect();
        Ok(ReplicaSet {
            chains,
            host_steps: HostSteps::new(&context, &program, workers)?,
            ahead: None,
            context,
            kernels,
            cudnn,
            program,
            precision,
            layer_kernels,
            choices,
            summing_blocks: blocks,
            memory,
            spans,
            chunks,
            first_chunk,
            main,
            jobs: Vec::new(),
            workers,
            controls,
            slot: 0,
            datasets: [None, None],
            rates,
            weights,
            second: None,
            centres: [None, None, None],
            outer: None,
            sums: None,
            group: workers,
            lead: 0,
            is_replaced: false,
            saved_statistics: None,
            kept: None,
            rooms: Vec::new(),
            pinned: Mutex::default(),
        })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        &self.program.graph
    }

    /// Bytes of device memory for each worker.
    pub fn bytes(&self) -> usize {
        self.program.slab as usize
    }

    /// The kernels chosen for each layer.
    pub fn choices(&self) -> &[Choice] {
        &self.choices
    }

    pub(crate) fn offset(&self, worker: usize, offset: u64) -> usize {
        worker * self.program.slab as usize + offset as usize
    }

    /// Where an offset is for each worker.
    pub(crate) fn places(&self, offset: u64) -> Vec<usize> {
        (0..self.workers).map(|worker| self.offset(worker, offset)).collect()
    }

    pub(crate) fn write_vector(&self, worker: usize, offset: u64, vector: &[f32]) -> Result<(), Error> {
        expect_len("the vector", vector.len(), self.program.graph.parameters().len())?;
        self.send_vector(vector, &self.memory, self.offset(worker, offset))
    }

    pub(crate) fn read_vector(&self, worker: usize, offset: u64) -> Result<Vec<f32>, Error> {
        let mut vector = vec![0.0f32; self.program.graph.parameters().len()];
        self.fetch_vector(&self.memory, self.offset(worker, offset), &mut vector)?;
        Ok(vector)
    }

    /// Sets the parameters and statistics of a worker.
    pub fn load(&mut self, worker: usize, parameters: &[f32], statistics: &[f32]) -> Result<(), Error> {
        self.load_statistics(worker, statistics)?;
        self.load_parameters(worker, parameters)
    }

    /// Sets the parameters of a worker.
    pub fn load_parameters(&mut self, worker: usize, parameters: &[f32]) -> Result<(), Error> {
        self.write_vector(worker, self.program.offsets.parameters, parameters)?;
        self.pack_weights()
    }

    /// Sets the gradient of a worker.
    pub fn load_gradient(&mut self, worker: usize, gradient: &[f32]) -> Result<(), Error> {
        self.write_vector(worker, self.program.offsets.gradient, gradient)
    }

    /// Sets the running statistics of a worker.
    pub fn load_statistics(&mut self, worker: usize, statistics: &[f32]) -> Result<(), Error> {
        expect_len("the statistics", statistics.len(), self.program.graph.statistics().len())?;
        self.memory.write(self.offset(worker, self.program.offsets.statistics), statistics)
    }

    /// Packs the weights into the copies that convolutions read.
    pub(crate) fn pack_weights(&self) -> Result<(), Error> {
        let (spans, chunks, base) = (self.spans.start, self.chunks.start, self.memory.start);
        let (parameters, slab) = (base + self.program.offsets.parameters, self.program.slab);
        let grid = Grid::row(self.program.chunks.len());
        let arguments = arguments![spans, chunks, parameters, base, slab];
        self.pass(None).start(&self.main, "pack_all_weights", grid, arguments)
    }

    /// Sets the velocity of a worker.
    pub fn load_velocity(&mut self, worker: usize, velocity: &[f32]) -> Result<(), Error> {
        self.write_vector(worker, self.program.offsets.velocity, velocity)
    }

    /// A worker's parameters.
    pub fn parameters(&self, worker: usize) -> Result<Vec<f32>, Error> {
        self.read_vector(worker, self.program.offsets.parameters)
    }

    /// A worker's velocity.
    pub fn velocity(&self, worker: usize) -> Result<Vec<f32>, Error> {
        self.read_vector(worker, self.program.offsets.velocity)
    }

    /// A worker's second moment of AdamW, and its number of steps as the last number; empty before its first step.
    pub fn second_moment(&self, worker: usize) -> Result<Vec<f32>, Error> {
        limits::index("worker", worker, self.workers)?;
        let Some(memory) = &self.second else { return Ok(Vec::new()) };
        let length = self.program.graph.parameters().len();
        let mut vector = vec![0.0f32; length + 1];
        self.fetch_vector(memory, 4 * worker * (length + BEHIND), &mut vector)?;
        Ok(if vector[length] == 0.0 { Vec::new() } else { vector })
    }

    /// Sets what [`ReplicaSet::second_moment`] has returned.
    pub fn load_second_moment(&mut self, worker: usize, values: &[f32]) -> Result<(), Error> {
        limits::index("worker", worker, self.workers)?;
        let length = self.program.graph.parameters().len();
        match values {
            // What was never used is zero.
            [] if self.second.is_none() => return Ok(()),
            [] => {}
            values => expect_len("the second moment", values.len(), length + 1)?,
        }
        self.reserve_second_moments()?;
        let Some(memory) = &self.second else { return Ok(()) };
        let zeros = vec![0.0; if values.is_empty() { length + 1 } else { 0 }];
        let vector = if values.is_empty() { &zeros } else { values };
        self.send_vector(vector, memory, 4 * worker * (length + BEHIND))
    }

    pub(super) fn reserve_second_moments(&mut self) -> Result<&Memory, Error> {
        let stride = self.program.graph.parameters().len() + BEHIND;
        Memory::reserve(&mut self.second, &self.context, 4 * stride * self.workers)
    }

    /// A worker's gradient.
    pub fn gradient_of(&self, worker: usize) -> Result<Vec<f32>, Error> {
        self.read_vector(worker, self.program.offsets.gradient)
    }

    /// A worker's running statistics.
    pub fn statistics(&self, worker: usize) -> Result<Vec<f32>, Error> {
        let mut statistics = vec![0.0f32; self.program.graph.statistics().len()];
        self.memory.read(self.offset(worker, self.program.offsets.statistics), &mut statistics)?;
        Ok(statistics)
    }

    /// Copies a batch from the host for each worker: images plane by plane, and labels.
    pub fn load_batches(&mut self, batches: &[(&[f32], &[u32])]) -> Result<(), Error> {
        self.check_batches(batches)?;
        self.displace_ahead()?;
        for (worker, (images, labels)) in batches.iter().enumerate() {
            self.memory.write(self.offset(worker, self.program.offsets.intake), images)?;
            self.memory.write(self.offset(worker, self.program.offsets.labels), labels)?;
        }
        self.take_in()
    }

    /// Checks that there is a batch for every worker, and that they fit the network.
    pub(super) fn check_batches(&self, batches: &[(&[f32], &[u32])]) -> Result<(), Error> {
        expect_len("the list of batches", batches.len(), self.workers)?;
        let (batch, shape) = (self.program.batch, self.program.graph.input());
        batches.iter().try_for_each(|(images, labels)| {
            expect_len("the batch of images", images.len(), batch * shape.len())?;
            expect_len("the list of labels", labels.len(), batch)?;
            self.check_labels(labels)
        })
    }

    /// Enqueues the conversion of the images that came from the host.
    pub(super) fn take_in(&self) -> Result<(), Error> {
        let (batch, shape) = (self.program.batch, self.program.graph.input());
        let [from, to] = [self.program.offsets.intake, self.program.values[0]].map(|o| self.memory.start + o);
        let wide = super::compile::pitch(shape.channels);
        let [n, channels, area, wide] = [batch, shape.channels, shape.area(), wide].map(|x| x as i32);
        let grid = Grid::row((batch * shape.area()).div_ceil(64));
        let arguments = arguments![from, to, n, channels, area, wide, self.program.slab];
        self.pass(None).start(&self.main, "intake", grid, arguments)?;
        self.mark_taken()
    }

    /// Checks that every label names a class.
    pub(super) fn check_labels(&self, labels: &[u32]) -> Result<(), Error> {
        let classes = self.program.graph.classes();
        match labels.iter().enumerate().find(|&(_, &label)| label as usize >= classes) {
            Some((example, &label)) => Err(Error::LabelOutOfRange { example, found: label.into(), classes }),
            None => Ok(()),
        }
    }

    /// The logits of a worker's last pass, example by example.
    pub fn logits(&self, worker: usize) -> Result<Vec<f32>, Error> {
        let last = self.program.last();
        self.planes(worker, self.program.values[last], self.program.shape(last))
    }

    /// Sets the position of all workers in their run: the key of their random draws, the learning rates of the next steps (the
    /// last one persists), the strengths of the pulls.
    pub fn set_position(&mut self, key: Key, rates: &[f32], prox: [f32; 2]) -> Result<(), Error> {
        let keys: Vec<Key> = (0..self.workers as u32).map(|worker| key.worker(worker)).collect();
        self.set_positions(&keys, rates, prox)
    }

    /// The same with a key for each worker.
    pub fn set_positions(&mut self, keys: &[Key], rates: &[f32], prox: [f32; 2]) -> Result<(), Error> {
        let halves = |x: u64| [x as u32, (x >> 32) as u32];
        for (controls, key) in self.controls.iter_mut().zip(keys) {
            let (worker, step) = key.place();
            (controls.seed, controls.worker, controls.step) = (halves(key.seed()), worker, halves(step));
            (controls.slot, controls.prox) = (0, prox);
            controls.rate = rates.last().copied().unwrap_or(0.0);
        }
        self.rates.write(0, &rates[..rates.len().min(HISTORY)])?;
        self.push_controls()
    }

    /// Sets the learning rate and the strengths of the pulls for the update with the current gradients.
    pub fn set_rate(&mut self, rate: f32, prox: [f32; 2]) -> Result<(), Error> {
        self.controls.iter_mut().for_each(|controls| (controls.rate, controls.prox) = (rate, prox));
        self.push_controls()
    }

    pub(crate) fn push_controls(&mut self) -> Result<(), Error> {
        for (worker, controls) in self.controls.iter().enumerate() {
            self.memory.write(self.offset(worker, 0), &[*controls])?;
        }
        self.slot = self.controls.iter().map(|controls| controls.slot as usize).max().unwrap_or(0);
        Ok(())
    }

    fn read_controls(&self) -> Result<Vec<Controls>, Error> {
        let all = self.memory.read_each(&self.places(0), 1)?;
        Ok(all.into_iter().flatten().collect())
    }

    /// A forward and a backward pass on the loaded batches: the gradient of the sum of the losses times `factor`. Updates the
    /// running statistics only if `track`.
    pub fn gradient(&mut self, mode: Mode, factor: f64, track: bool) -> Result<Vec<Outcome>, Error> {
        let pass_mode = self.pass_mode(mode, track)?;
        self.run(Job::Gradient { pass_mode, factor: factor as f32, from: Source::Loaded, noted: false })?;
        self.outcomes()
    }

    /// A forward pass on the loaded batches.
    pub fn forward(&mut self, mode: Mode) -> Result<Vec<Outcome>, Error> {
        let pass_mode = self.pass_mode(mode, false)?;
        self.run(Job::Forward { pass_mode, from: Source::Loaded })?;
        self.outcomes()
    }

    pub(crate) fn pass_mode(&mut self, mode: Mode, track: bool) -> Result<PassMode, Error> {
        Ok(match mode {
            Mode::Evaluate => PassMode { of_batch: false, track: false, dropout: false },
            Mode::Train { dropout } => {
                if let Some(key) = dropout {
                    let (rate, prox) = self.controls.first().map_or((0.0, [0.0; 2]), |c| (c.rate, c.prox));
                    self.set_positions(&vec![key; self.workers], &[rate], prox)?;
                }
                PassMode { of_batch: true, track, dropout: dropout.is_some() }
            }
        })
    }

    pub(crate) fn outcomes(&self) -> Result<Vec<Outcome>, Error> {
        let outcome = |c: Controls| Outcome { loss: c.loss, correct: c.correct };
        Ok(self.read_controls()?.into_iter().map(outcome).collect())
    }

    /// Enqueues `count` local steps of every worker.
    pub fn steps(&mut self, optimizer: impl Into<Optimizer>, count: usize) -> Result<(), Error> {
        let job = Job::Step { optimizer: optimizer.into(), from: self.source() };
        self.check_slots(job, count)?;
        (0..count).try_for_each(|_| self.run(job))
    }

    /// The source of the batches of steps.
    pub(crate) fn source(&self) -> Source {
        if self.datasets[Split::Train as usize].is_some() { Source::Augmented } else { Source::Loaded }
    }

    /// For every worker the mean losses of the first `count` steps since [`ReplicaSet::set_position`] on data of the GPU, and whether
    /// a parameter of it was ever not finite.
    pub fn losses(&self, count: usize) -> Result<Vec<(Vec<f64>, bool)>, Error> {
        let places = self.places(self.program.offsets.history);
        let mut losses: Vec<Vec<f64>> = self.memory.read_each(&places, count.min(HISTORY))?;
        losses.iter_mut().flatten().for_each(|loss| *loss /= self.program.batch as f64);
        let lost = self.read_controls()?.into_iter().map(|controls| controls.lost != 0);
        Ok(losses.into_iter().zip(lost).collect())
    }

    /// Waits until the GPU has finished all enqueued work.
    pub fn synchronise(&self) -> Result<(), Error> {
        self.context.bind()?;
        self.context.synchronise()
    }
}

impl Drop for ReplicaSet {
    /// Steps are enqueued without waiting: memory is not freed while the GPU may still use it.
    fn drop(&mut self) {
        let _ = self.synchronise();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Kernels are looked up by name at run time.
    #[test]
    fn every_kernel_is_in_the_source() {
        let source = super::super::kernels::source();
        for name in [KERNELS, TENSOR_CORE_KERNELS, F32_KERNELS, super::super::tangent::TANGENT_KERNELS]
            .iter()
            .flat_map(|names| names.split_whitespace())
        {
            let defined = [format!(" {name}("), format!("({name},")].iter().any(|text| source.contains(text));
            assert!(defined, "no kernel {name}");
        }
    }

    #[test]
    fn a_replica_set_that_is_too_large_learns_what_would_fit() {
        // 60 bytes of vectors and one byte per image.
        let fits = |free| what_fits(60 + 128, 10, free, 128);
        assert_eq!((fits(188 * 3 + 5), fits(100), fits(60)), ((3, 128), (0, 32), (0, 0)));
        assert!(describe_fit((3, 128), 4).starts_with("3 of the 4 workers would fit"));
        assert!(describe_fit((0, 32), 4).contains("a batch of about 32"));
    }
}
