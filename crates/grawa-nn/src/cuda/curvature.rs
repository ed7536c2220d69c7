//! Products of the Hessian with vectors on a GPU: exact, including the statistics of batch norm.
//!
//! Each batch is a replica: one launch of a kernel serves all batches. A visit keeps everything that a forward and a backward
//! pass computed; a product is one more pass, over tangents, recorded as a graph. It costs about two gradients.

use super::data::Source;
use super::device::{Captured, Device, Grid, Memory, arguments};
use super::floors::KernelTime;
use super::job::Job;
use super::pass::{Pass, PassMode, Times};
use super::replica_set::{Outcome, ReplicaSet, Settings};
use super::tangent::{TANGENT_KERNELS, TangentPass};
use crate::error::expect_len;
use crate::plan::Reuse;
use crate::{Error, Graph, Mode, Precision};

/// The most batches at once if not all of them fit: more would not be faster.
const AT_ONCE: usize = 64;
/// The most replicas of one launch: the limit of a grid's third dimension.
const MOST: usize = 65_535;

/// A network compiled for products with the Hessian of its loss on batches of one size, in f32.
#[derive(Debug)]
pub struct Curvature {
    set: ReplicaSet,
    /// The slabs of tangents.
    tangents: Memory,
    /// A vector on its way to all replicas, and the sum over them.
    vector: Memory,
    sum: Memory,
    /// The visited batches, and what is differentiated there.
    visited: Option<Visit>,
    products: Vec<(Visit, Captured)>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Visit {
    batches: usize,
    pass_mode: PassMode,
    factor: f32,
}

impl Curvature {
    /// Compiles a network for `batches` batches of `batch` images, or for as many at once as the GPU has room for.
    pub fn new(device: &Device, graph: &Graph, batch: usize, batches: usize) -> Result<Self, Error> {
        if let Some(operation) = graph.plain_operations().first() {
            return Err(Error::NoTangent { operation: (*operation).into() });
        }
        let mut at_once = batches.min(MOST);
        loop {
            match Curvature::of(device, graph, batch, at_once) {
                Err(Error::OutOfDeviceMemory { .. }) if at_once > 1 => {
                    at_once = at_once.div_ceil(2).min(AT_ONCE)
                }
                Err(Error::OutOfDeviceMemory { needed, free, .. }) => {
                    let fits = "not even one batch fits: use smaller batches, or the CPU".into();
                    return Err(Error::OutOfDeviceMemory { needed, free, fits });
                }
                done => return done,
            }
        }
    }

    fn of(device: &Device, graph: &Graph, batch: usize, workers: usize) -> Result<Self, Error> {
        let settings = Settings { batch, workers, precision: Precision::F32, fixed: true };
        let set = ReplicaSet::planned(device, graph, settings, Reuse::Never)?;
        set.kernels.load(TANGENT_KERNELS)?;
        let tangents = Memory::new(&set.context, set.bytes() * workers)?;
        let [vector, sum] = [0, 1].map(|_| Memory::new(&set.context, 4 * graph.parameters().len()));
        let (vector, sum) = (vector?, sum?);
        Ok(Curvature { set, tangents, vector, sum, visited: None, products: Vec::new() })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        self.set.graph()
    }

    /// Batches at once.
    pub fn at_once(&self) -> usize {
        self.set.workers
    }

    /// Bytes of device memory.
    pub fn bytes(&self) -> usize {
        2 * self.set.workers * self.set.bytes() + 8 * self.graph().parameters().len()
    }

    /// Sets parameters and statistics. No batch is visited there yet.
    pub fn load(&mut self, parameters: &[f32], statistics: &[f32]) -> Result<(), Error> {
        expect_len("the parameters", parameters.len(), self.graph().parameters().len())?;
        self.visited = None;
        for worker in 0..self.set.workers {
            self.set.load_statistics(worker, statistics)?;
        }
        self.set.send_vector(parameters, &self.vector, 0)?;
        self.spread(&self.set.pass(None))
    }

    /// Enqueues the copy of the vector to the parameters of the slabs of a pass.
    fn spread(&self, pass: &Pass<'_>) -> Result<(), Error> {
        let (set, program) = (&self.set, &self.set.program);
        let (vector, copies) = (self.vector.start, pass.base + program.offsets.parameters);
        let (spans, chunks, base) = (set.spans.start, set.chunks.start, pass.base);
        let arguments = arguments![spans, chunks, vector, copies, base, program.slab];
        pass.start(&set.main, "spread", Grid::row(program.chunks.len()), arguments)
    }

    /// Loads at most [`Curvature::at_once`] batches. They are not visited yet.
    fn fill(&mut self, batches: &[(&[f32], &[u32])]) -> Result<(), Error> {
        let (found, expected) = (batches.len(), self.set.workers);
        let Some(last) = batches.last().filter(|_| found <= expected) else {
            return Err(Error::WrongLength { what: "the list of batches".into(), found, expected });
        };
        self.visited = None;
        // Replicas without a batch repeat the last one; sums leave them out.
        let filled: Vec<_> = (0..expected).map(|replica| *batches.get(replica).unwrap_or(last)).collect();
        self.set.load_batches(&filled)
    }

    /// Losses of at most [`Curvature::at_once`] batches, without gradients. They are not visited.
    pub fn evaluate(&mut self, batches: &[(&[f32], &[u32])], mode: Mode) -> Result<Vec<Outcome>, Error> {
        self.fill(batches)?;
        let mut outcomes = self.set.forward(mode)?;
        outcomes.truncate(batches.len());
        Ok(outcomes)
    }

    /// Evaluates at most [`Curvature::at_once`] batches. Returns the sum of their losses, and writes the gradient of that sum
    /// times `factor`. Products are with the Hessian of the same function.
    pub fn visit(
        &mut self,
        batches: &[(&[f32], &[u32])],
        (mode, factor): (Mode, f64),
        gradient: &mut [f32],
    ) -> Result<f64, Error> {
        let (Mode::Evaluate | Mode::Train { dropout: None }) = mode else {
            return Err(Error::NoTangent { operation: "dropout".into() });
        };
        self.fill(batches)?;
        let pass_mode = self.set.pass_mode(mode, false)?;
        let (factor, count) = (factor as f32, batches.len());
        self.set.run(Job::Gradient { pass_mode, factor, from: Source::Loaded, noted: false })?;
        self.add_up(&self.set.pass(None), count)?;
        self.read_sum(gradient)?;
        self.visited = Some(Visit { batches: count, pass_mode, factor });
        Ok(self.set.outcomes()?.iter().take(count).map(|outcome| outcome.loss).sum())
    }

    /// The sum of the Hessians at the visited batches, times `vector`.
    pub fn product(&mut self, vector: &[f32], product: &mut [f32]) -> Result<(), Error> {
        expect_len("the vector", vector.len(), self.graph().parameters().len())?;
        let visit = self.visited.ok_or(Error::NotVisited)?;
        self.set.send_vector(vector, &self.vector, 0)?;
        if !self.products.iter().any(|(known, _)| *known == visit) {
            let captured = self.set.main.capture(|| self.enqueue(visit, None))?;
            self.products.push((visit, captured));
        }
        let found = self.products.iter().find(|(known, _)| *known == visit);
        found.map_or(Ok(()), |(_, captured)| self.set.main.replay(captured))?;
        self.read_sum(product)
    }

    fn enqueue(&self, visit: Visit, profile: Option<&Times>) -> Result<(), Error> {
        let at = self.set.pass(profile);
        let pass = TangentPass {
            change: Pass { base: self.tangents.start, ..self.set.pass(profile) },
            at,
            pass_mode: visit.pass_mode,
        };
        self.spread(&pass.change)?;
        pass.enqueue(visit.factor)?;
        self.add_up(&pass.change, visit.batches)
    }

    /// Enqueues the sum of the gradients of the first `count` slabs of a pass.
    fn add_up(&self, pass: &Pass<'_>, count: usize) -> Result<(), Error> {
        let program = &self.set.program;
        let length = program.graph.parameters().len() as u64;
        let (gradient, to, count) = (pass.base + program.offsets.gradient, self.sum.start, count as i32);
        let arguments = arguments![gradient, to, length, count, program.slab];
        pass.start_once("sum_replicas", pass.over(length as usize), arguments)
    }

    fn read_sum(&self, to: &mut [f32]) -> Result<(), Error> {
        expect_len("the result", to.len(), self.graph().parameters().len())?;
        self.set.fetch_vector(&self.sum, 0, to)
    }

    /// Times of the kernels of one product, each run alone; the longest first.
    pub fn profile(&mut self) -> Result<Vec<KernelTime>, Error> {
        let visit = self.visited.ok_or(Error::NotVisited)?;
        let times = Times::default();
        self.set.context.bind()?;
        self.enqueue(visit, Some(&times))?;
        Ok(times.by_kernel())
    }
}
