//! Products of the Hessian with vectors on the compiled engine: exact, including the statistics of batch norm.
//!
//! A [`Point`] keeps everything that a forward and a backward pass computed. A product is one more pass, over
//! tangents: how every result, and then every gradient, changes along the vector. It costs about two gradients. A
//! point serves any number of products while the parameters stay the same.

use super::arena::Arena;
use super::convolution::ConvWorkspace;
use super::program::Program;
use crate::error::expect_len;
use crate::plan::Reuse;
use crate::{Error, Graph, Mode};
use std::sync::Arc;

/// A network compiled for products with the Hessian of its loss on batches of one size.
///
/// ```
/// use grawa_nn::{Curvature, Mode, Shape, zoo};
/// let net = zoo::digits("digits", Shape::image(1, 8), 4, 10)?;
/// let curvature = Curvature::compile(&net, 2)?;
/// let mut tangents = curvature.tangents(1)?;
/// let mut point = curvature.point(&tangents);
/// let (parameters, statistics) = (net.initial(7), net.initial_statistics());
/// let (images, labels) = (vec![0.5; 2 * net.input().len()], [3, 9]);
/// let mut gradient = vec![0.0; parameters.len()];
/// let mode = Mode::Train { dropout: None };
/// // Of the mean loss: a factor of 1/N.
/// let (model, examples) = ((&*parameters, &*statistics), (&*images, &labels[..]));
/// curvature.visit(&mut point, &mut tangents, model, examples, (mode, 0.5), &mut gradient)?;
/// let mut product = vec![0.0; parameters.len()];
/// curvature.product(&mut point, &mut tangents, &parameters, &gradient, &mut product)?;
/// # Ok::<(), grawa_nn::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Curvature {
    /// Keeps all gradients: products read them.
    pub(super) kept: Program,
    /// Reuses buffers: the tangents of gradients are consumed like gradients.
    pub(super) flowing: Program,
}

/// A batch at some parameters, with everything that a forward and a backward pass computed.
#[derive(Debug)]
pub struct Point {
    pub(super) arena: Arena,
    pub(super) mode: Mode,
    factor: f32,
    is_visited: bool,
}

impl Point {
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.arena.bytes()
    }
}

/// The memory that products write to, and the threads that share their work.
#[derive(Debug)]
pub struct Tangents {
    pub(super) arena: Arena,
}

impl Tangents {
    /// Bytes of memory.
    pub fn bytes(&self) -> usize {
        self.arena.bytes()
    }
}

impl Curvature {
    /// Compiles a network for batches of this size.
    pub fn compile(graph: &Graph, batch: usize) -> Result<Self, Error> {
        let planned = |reuse| Program::planned(graph, batch, reuse);
        Ok(Curvature { kept: planned(Reuse::Never)?, flowing: planned(Reuse::Consumed)? })
    }

    /// The network.
    pub fn graph(&self) -> &Graph {
        self.kept.graph()
    }

    /// Images in a batch.
    pub fn batch(&self) -> usize {
        self.kept.batch()
    }

    /// Memory for products on `threads` threads.
    pub fn tangents(&self, threads: usize) -> Result<Tangents, Error> {
        Ok(Tangents { arena: Arena::new(&self.flowing, threads)? })
    }

    /// Memory for one point. It uses the threads of `tangents`.
    pub fn point(&self, tangents: &Tangents) -> Point {
        // Convolutions use the workspace of the tangents, which is swapped in during a visit.
        let workspace = ConvWorkspace::new(std::iter::empty(), 0, 0);
        let arena = Arena::on(&self.kept, Arc::clone(&tangents.arena.pool), workspace);
        Point { arena, mode: Mode::Evaluate, factor: 0.0, is_visited: false }
    }

    /// Evaluates a batch at some parameters. Returns the sum of the losses, and writes the gradient of that sum times
    /// `factor` (1/N for the mean). Products at this point are with the Hessian of the same function.
    pub fn visit(
        &self,
        point: &mut Point,
        tangents: &mut Tangents,
        model: (&[f32], &[f32]),
        examples: (&[f32], &[u32]),
        (mode, factor): (Mode, f64),
        gradient: &mut [f32],
    ) -> Result<f64, Error> {
        point.is_visited = false;
        std::mem::swap(&mut point.arena.workspace, &mut tangents.arena.workspace);
        let loss = self.kept.gradient(&mut point.arena, model, examples, mode, factor, gradient);
        std::mem::swap(&mut point.arena.workspace, &mut tangents.arena.workspace);
        let loss = loss?;
        (point.mode, point.factor, point.is_visited) = (mode, factor as f32, true);
        Ok(loss)
    }

    /// The Hessian at a visited point times `vector`. `parameters` must be those of the visit.
    pub fn product(
        &self,
        point: &mut Point,
        tangents: &mut Tangents,
        parameters: &[f32],
        vector: &[f32],
        product: &mut [f32],
    ) -> Result<(), Error> {
        let count = self.graph().parameters().len();
        expect_len("the parameters", parameters.len(), count)?;
        expect_len("the vector", vector.len(), count)?;
        expect_len("the product", product.len(), count)?;
        if !point.is_visited {
            return Err(Error::NotVisited);
        }
        product.fill(0.0);
        let arena = &mut tangents.arena;
        let pool = Arc::clone(&arena.pool);
        pool.install(|| self.pass(point, arena, parameters, vector, product));
        Ok(())
    }

    fn pass(
        &self,
        point: &mut Point,
        arena: &mut Arena,
        parameters: &[f32],
        vector: &[f32],
        product: &mut [f32],
    ) {
        let steps = &self.flowing.steps;
        for index in 0..steps.len() {
            self.tangent_forward(index, point, arena, parameters, vector);
        }
        let last = steps.last().map_or(0, |step| step.output);
        let Some(slot) = self.flowing.slots[last] else { return };
        self.turn(point, arena, last, slot);
        for index in (0..steps.len()).rev() {
            self.tangent_backward(index, point, arena, parameters, vector, product);
        }
    }

    /// The tangent of the gradient of the loss with respect to the logits: p∘(z′ − p·z′), from the tangents z′ of the
    /// logits.
    fn turn(&self, point: &Point, arena: &mut Arena, last: usize, slot: usize) {
        let classes = self.graph().classes();
        let mut change = vec![0.0; point.arena.logits.len()];
        let place = &self.flowing.places[last];
        if let Some(buffer) = &arena.values[last] {
            buffer.copy_to(place, &mut change);
        }
        for (change, logits) in change.chunks_exact_mut(classes).zip(point.arena.logits.chunks_exact(classes))
        {
            let top = logits.iter().copied().fold(f32::NEG_INFINITY, f32::max);
            let sum: f32 = logits.iter().map(|&logit| (logit - top).exp()).sum();
            let share = |logit: f32| (logit - top).exp() / sum;
            let mean: f32 = logits.iter().zip(&*change).map(|(&logit, change)| share(logit) * change).sum();
            for (change, &logit) in change.iter_mut().zip(logits) {
                *change = point.factor * share(logit) * (*change - mean);
            }
        }
        if let Some(buffer) = arena.gradients[slot].as_mut() {
            buffer.store(place, &change, false);
        }
    }
}
