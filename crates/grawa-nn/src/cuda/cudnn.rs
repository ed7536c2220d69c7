//! Convolutions by cuDNN: plans of its backend interface, chosen by measurement or by its own heuristic.
//!
//! Only deterministic plans are used. With f32 storage, cuDNN may multiply in tf32: that is what this module is for.
#![allow(unsafe_code)]

use super::compile::Layer;
use super::device::{Context, Event, Memory, Stream};
use super::library::{self, Name};
use crate::Error;
use cudarc::cudnn::sys::{self, cudnnBackendAttributeName_t as Attribute};
use cudarc::cudnn::sys::{cudnnBackendAttributeType_t as Type, cudnnBackendDescriptorType_t as Descriptor};
use std::ffi::c_void;
use std::sync::Arc;

fn checked(action: &str, status: sys::cudnnStatus_t) -> Result<(), Error> {
    match status {
        sys::cudnnStatus_t::CUDNN_STATUS_SUCCESS => Ok(()),
        other => Err(Error::device(action, format!("{other:?}"))),
    }
}

/// A cuDNN handle on a GPU.
#[derive(Debug)]
pub(crate) struct Cudnn {
    context: Arc<Context>,
    handle: sys::cudnnHandle_t,
}

// SAFETY: every caller of cuDNN borrows its replica set mutably: one thread at a time.
unsafe impl Send for Cudnn {}
// SAFETY: as above.
unsafe impl Sync for Cudnn {}

/// A value of an attribute.
///
/// # Safety
///
/// `TYPE` is the backend's name of the type.
unsafe trait Value {
    const TYPE: Type;
}

macro_rules! values {
    ($($kind:ty: $name:ident),+ $(,)?) => {$(
        // SAFETY: the table below, from cuDNN's documentation.
        unsafe impl Value for $kind {
            const TYPE: Type = Type::$name;
        }
    )+};
}
values! {
    i64: CUDNN_TYPE_INT64,
    f32: CUDNN_TYPE_FLOAT,
    *mut c_void: CUDNN_TYPE_VOID_PTR,
    Raw: CUDNN_TYPE_BACKEND_DESCRIPTOR,
    sys::cudnnHandle_t: CUDNN_TYPE_HANDLE,
    sys::cudnnDataType_t: CUDNN_TYPE_DATA_TYPE,
    sys::cudnnConvolutionMode_t: CUDNN_TYPE_CONVOLUTION_MODE,
    sys::cudnnBackendHeurMode_t: CUDNN_TYPE_HEUR_MODE,
    sys::cudnnBackendNumericalNote_t: CUDNN_TYPE_NUMERICAL_NOTE,
}

/// A descriptor as a value of another descriptor.
#[derive(Clone, Copy)]
#[repr(transparent)]
struct Raw(sys::cudnnBackendDescriptor_t);

/// A descriptor of the backend interface.
#[derive(Debug)]
struct Described(sys::cudnnBackendDescriptor_t);

// SAFETY: a descriptor is written by its creator, and only read once it is finalised.
unsafe impl Send for Described {}
// SAFETY: as above.
unsafe impl Sync for Described {}

impl Described {
    fn new(kind: Descriptor) -> Result<Self, Error> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: writes one handle, which is destroyed once, in drop.
        checked("describe a convolution", unsafe { sys::cudnnBackendCreateDescriptor(kind, &mut raw) })?;
        Ok(Described(raw))
    }

    fn raw(&self) -> [Raw; 1] {
        [Raw(self.0)]
    }

    fn set<T: Value>(self, name: Attribute, values: &[T]) -> Result<Self, Error> {
        let count = values.len() as i64;
        let status =
            // SAFETY: `Value` names the type, and cuDNN copies the values.
            unsafe { sys::cudnnBackendSetAttribute(self.0, name, T::TYPE, count, values.as_ptr().cast()) };
        checked("describe a convolution", status)?;
        Ok(self)
    }

    fn finish(self) -> Result<Self, Error> {
        // SAFETY: the descriptor lives as long as self.
        checked("plan a convolution", unsafe { sys::cudnnBackendFinalize(self.0) })?;
        Ok(self)
    }

    /// Reads at most as many values as fit; returns how many there are.
    fn get<T: Value>(&self, name: Attribute, values: &mut [T]) -> Result<usize, Error> {
        let (mut count, wanted, to) = (0i64, values.len() as i64, values.as_mut_ptr().cast::<c_void>());
        let status =
            // SAFETY: `Value` names the type, and `wanted` is the length of the slice.
            unsafe { sys::cudnnBackendGetAttribute(self.0, name, T::TYPE, wanted, &mut count, to) };
        checked("query a convolution", status)?;
        Ok((count.max(0) as usize).min(values.len()))
    }
}

impl Drop for Described {
    fn drop(&mut self) {
        // SAFETY: created once in `new`.
        let _ = unsafe { sys::cudnnBackendDestroyDescriptor(self.0) };
    }
}

/// What a plan computes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Direction {
    /// The output.
    Forward,
    /// The gradient of the input.
    BackwardData,
    /// The gradient of the weights.
    BackwardWeights,
}

/// An execution plan.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    plan: Arc<Described>,
    pub(crate) workspace: usize,
    pub(crate) name: &'static str,
    /// Measured time in seconds; 0 if it was not measured.
    pub(crate) seconds: f64,
}

/// The largest workspace that a plan may use.
const WORKSPACE: usize = 1 << 30;
/// The most plans that are tried.
const TRIED: usize = 10;

impl Cudnn {
    pub(crate) fn open(context: &Arc<Context>) -> Result<Self, Error> {
        library::open(Name::Cudnn)?;
        context.bind()?;
        let mut handle = std::ptr::null_mut();
        // SAFETY: writes one handle, which is destroyed once, in drop.
        checked("open cuDNN", unsafe { sys::cudnnCreate(&mut handle) })?;
        Ok(Cudnn { context: context.clone(), handle })
    }

    /// Runs a plan on input, weights and output (or their gradients).
    ///
    /// # Safety
    ///
    /// The tensors are in memory of this GPU that lives until the work is done, each as large as the layer of the plan requires.
    /// So is a workspace of the size that the plan needs.
    pub(crate) unsafe fn run(
        &self,
        plan: &Plan,
        stream: &Stream,
        tensors: [u64; 3],
        workspace: u64,
    ) -> Result<(), Error> {
        // SAFETY: the handles are alive, and the tensors are the caller's promise.
        checked("select a stream", unsafe { sys::cudnnSetStream(self.handle, stream.handle.cast()) })?;
        use Attribute as A;
        let pointers = tensors.map(|tensor| tensor as *mut c_void);
        let pack = Described::new(Descriptor::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, &[1i64, 2, 3])?
            .set(A::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, &pointers)?
            .set(A::CUDNN_ATTR_VARIANT_PACK_WORKSPACE, &[workspace as *mut c_void])?
            .finish()?;
        // SAFETY: the handles are alive, and the tensors are the caller's promise.
        checked("run a convolution", unsafe { sys::cudnnBackendExecute(self.handle, plan.plan.0, pack.0) })
    }

    /// The deterministic plans for a layer that can be built, in the order of cuDNN's heuristic.
    pub(crate) fn plans(
        &self,
        layer: &Layer,
        direction: Direction,
        narrow: bool,
    ) -> Result<Vec<Plan>, Error> {
        self.context.bind()?;
        let graph = self.describe(layer, direction, narrow)?;
        let mut plans: Vec<Plan> = Vec::new();
        use sys::cudnnBackendHeurMode_t as Heuristic;
        for mode in [Heuristic::CUDNN_HEUR_MODE_A, Heuristic::CUDNN_HEUR_MODE_FALLBACK] {
            if !plans.is_empty() {
                break;
            }
            let heuristic = Described::new(Descriptor::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
                .set(Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH, &graph.raw())?
                .set(Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, &[mode])?
                .finish()?;
            let configs: Vec<Described> = (0..2 * TRIED)
                .map(|_| Described::new(Descriptor::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))
                .collect::<Result<_, _>>()?;
            let mut raw: Vec<Raw> = configs.iter().flat_map(Described::raw).collect();
            let found = heuristic.get(Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS, &mut raw)?;
            for config in configs.iter().take(found) {
                if plans.len() < TRIED && is_deterministic(config)? {
                    plans.extend(self.build(config, direction).ok().flatten());
                }
            }
        }
        Ok(plans)
    }

    fn build(&self, config: &Described, direction: Direction) -> Result<Option<Plan>, Error> {
        let plan = Described::new(Descriptor::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .set(Attribute::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, &[self.handle])?
            .set(Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG, &config.raw())?
            .finish()?;
        let mut workspace = [0i64];
        plan.get(Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE, &mut workspace)?;
        let workspace = workspace[0].max(0) as usize;
        let name = match direction {
            Direction::Forward => "cudnn forward",
            Direction::BackwardData => "cudnn backward (data)",
            Direction::BackwardWeights => "cudnn backward (weights)",
        };
        Ok((workspace <= WORKSPACE).then(|| Plan { plan: Arc::new(plan), workspace, name, seconds: 0.0 }))
    }

    fn describe(&self, layer: &Layer, direction: Direction, narrow: bool) -> Result<Described, Error> {
        let geometry = &layer.forward;
        let stored = match narrow {
            true => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            false => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        // Batch, channels, height, width; channels are contiguous.
        let tensor = |name: i64, [n, c, h, w]: [i32; 4]| -> Result<Described, Error> {
            let sides = [n, c, h, w].map(i64::from);
            let [_, c, h, w] = sides;
            Described::new(Descriptor::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
                .set(Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE, &[stored])?
                .set(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, &sides)?
                .set(Attribute::CUDNN_ATTR_TENSOR_STRIDES, &[h * w * c, 1, w * c, c])?
                .set(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, &[name])?
                .set(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, &[16i64])?
                .finish()
        };
        let input = tensor(1, [geometry.n, geometry.cp, geometry.h, geometry.w])?;
        let weights = tensor(2, [geometry.op, geometry.cp, geometry.kh, geometry.kw])?;
        let output = tensor(3, [geometry.n, geometry.op, geometry.oh, geometry.ow])?;
        let (stride, pad) = (layer.stride as i64, layer.pad as i64);
        let exact = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
        let cross = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let conv = Described::new(Descriptor::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, &[exact])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_CONV_MODE, &[cross])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, &[2i64])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_DILATIONS, &[1i64, 1])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, &[stride, stride])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, &[pad, pad])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, &[pad, pad])?
            .finish()?;
        use Attribute as A;
        let (kind, names) = match direction {
            Direction::Forward => (
                Descriptor::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_ALPHA,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_BETA,
                ],
            ),
            Direction::BackwardData => (
                Descriptor::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_DATA_DESCRIPTOR,
                [
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_CONV_DESC,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DX,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_W,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_DY,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_ALPHA,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_DATA_BETA,
                ],
            ),
            Direction::BackwardWeights => (
                Descriptor::CUDNN_BACKEND_OPERATION_CONVOLUTION_BACKWARD_FILTER_DESCRIPTOR,
                [
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_CONV_DESC,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_X,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DW,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_DY,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        };
        let mut operation = Described::new(kind)?;
        for (name, part) in names.into_iter().zip([&conv, &input, &weights, &output]) {
            operation = operation.set(name, &part.raw())?;
        }
        let operation = operation.set(names[4], &[1.0f32])?.set(names[5], &[0.0f32])?.finish()?;
        Described::new(Descriptor::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_OPERATIONGRAPH_OPS, &operation.raw())?
            .set(A::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, &[self.handle])?
            .finish()
    }

    /// The fastest of the plans, measured on scratch memory.
    ///
    /// # Safety
    ///
    /// The tensors are in memory of this GPU, each as large as the layer of the plans requires.
    pub(crate) unsafe fn fastest(
        &self,
        plans: Vec<Plan>,
        stream: &Stream,
        tensors: [u64; 3],
    ) -> Result<Option<Plan>, Error> {
        let room = plans.iter().map(|plan| plan.workspace).max().unwrap_or(0);
        let workspace = Memory::new(&self.context, room)?;
        let mut best: Option<Plan> = None;
        for mut plan in plans {
            let time = timed(&self.context, stream, || {
                // SAFETY: the tensors are the caller's promise. The workspace has the size of the largest of any plan, and `timed`
                // waits for the work.
                unsafe { self.run(&plan, stream, tensors, workspace.start) }
            });
            let Ok(seconds) = time else { continue };
            plan.seconds = seconds;
            // cuDNN's order decides where times hardly differ.
            if best.as_ref().is_none_or(|best| seconds < 0.98 * best.seconds) {
                best = Some(plan);
            }
        }
        Ok(best)
    }
}

/// Whether the engine of a configuration gives the same bits every time.
fn is_deterministic(config: &Described) -> Result<bool, Error> {
    use sys::cudnnBackendNumericalNote_t as Note;
    let engine = Described::new(Descriptor::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
    config.get(Attribute::CUDNN_ATTR_ENGINECFG_ENGINE, &mut engine.raw())?;
    let mut notes = [Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE; 16];
    let found = engine.get(Attribute::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE, &mut notes)?;
    Ok(!notes[..found].contains(&Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
}

/// The time of some work on the GPU in seconds: the least of four measurements, after a warm-up.
pub(crate) fn timed(
    context: &Arc<Context>,
    stream: &Stream,
    mut work: impl FnMut() -> Result<(), Error>,
) -> Result<f64, Error> {
    let (begin, end) = (Event::new(context, true)?, Event::new(context, true)?);
    work()?;
    stream.synchronise()?;
    let mut least = f64::INFINITY;
    for _ in 0..4 {
        stream.mark(&begin)?;
        for _ in 0..3 {
            work()?;
        }
        stream.mark(&end)?;
        stream.synchronise()?;
        least = least.min(begin.seconds_to(&end)? / 3.0);
    }
    Ok(least)
}

impl Drop for Cudnn {
    fn drop(&mut self) {
        if self.context.bind().is_ok() {
            // SAFETY: created once in `open`.
            let _ = unsafe { sys::cudnnDestroy(self.handle) };
        }
    }
}
