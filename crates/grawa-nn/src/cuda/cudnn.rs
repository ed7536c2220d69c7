//! Convolutions by cuDNN: plans of its backend interface, chosen by measurement or by its own first advice.
//!
//! Only plans that give the same bits every time are taken. In f32 storage the tensor cores' tf32 is allowed, since that is
//! what this is used for.
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
        other => Err(Error::Device { action: action.into(), why: format!("{other:?}") }),
    }
}

/// cuDNN, open on a GPU.
#[derive(Debug)]
pub(crate) struct Cudnn {
    context: Arc<Context>,
    handle: sys::cudnnHandle_t,
}

// SAFETY: whatever calls cuDNN borrows the replica set that has it mutably: one thread at a time.
unsafe impl Send for Cudnn {}
// SAFETY: as above.
unsafe impl Sync for Cudnn {}

/// A descriptor of the backend interface.
#[derive(Debug)]
struct Described(sys::cudnnBackendDescriptor_t);

// SAFETY: a descriptor is written by the one who makes it, and only read once it is final.
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

    fn set<T>(self, name: Attribute, kind: Type, values: &[T]) -> Result<Self, Error> {
        let count = values.len() as i64;
        let status =
            // SAFETY: every caller in this file names the type of its values; they are copied.
            unsafe { sys::cudnnBackendSetAttribute(self.0, name, kind, count, values.as_ptr().cast()) };
        checked("describe a convolution", status)?;
        Ok(self)
    }

    fn finish(self) -> Result<Self, Error> {
        // SAFETY: the descriptor lives as long as self.
        checked("plan a convolution", unsafe { sys::cudnnBackendFinalize(self.0) })?;
        Ok(self)
    }

    /// Reads at most as many values as there is room for; returns how many there are.
    fn get<T>(&self, name: Attribute, kind: Type, room: &mut [T]) -> Result<usize, Error> {
        let mut count = 0i64;
        let wanted = room.len() as i64;
        // SAFETY: every caller in this file names the type of the room, which is as large as is said.
        let status = unsafe {
            sys::cudnnBackendGetAttribute(
                self.0,
                name,
                kind,
                wanted,
                &mut count,
                room.as_mut_ptr().cast::<c_void>(),
            )
        };
        checked("ask about a convolution", status)?;
        Ok((count.max(0) as usize).min(room.len()))
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

/// A plan that can be run.
#[derive(Clone, Debug)]
pub(crate) struct Plan {
    plan: Arc<Described>,
    pub(crate) workspace: usize,
    pub(crate) name: &'static str,
    /// Seconds that it took when it was chosen; 0 if it was not measured.
    pub(crate) seconds: f64,
}

/// The most memory a plan may ask for.
const WORKSPACE: usize = 1 << 30;
/// The plans of each kind of advice that are tried.
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

    /// The version, such as 91900.
    pub(crate) fn version() -> usize {
        // SAFETY: it takes nothing.
        unsafe { sys::cudnnGetVersion() }
    }

    /// Runs a plan on input, kernels and output (or their gradients).
    ///
    /// # Safety
    ///
    /// The tensors lie in memory of this GPU that lives until the work is done, each as large as the layer that the plan was
    /// made for says; so does a workspace as large as the plan asks for.
    pub(crate) unsafe fn run(
        &self,
        plan: &Plan,
        stream: &Stream,
        tensors: [u64; 3],
        workspace: u64,
    ) -> Result<(), Error> {
        // SAFETY: the handles live, and the tensors are the caller's promise.
        checked("turn to a stream", unsafe { sys::cudnnSetStream(self.handle, stream.handle.cast()) })?;
        let pointers = tensors.map(|tensor| tensor as *mut c_void);
        let pack = Described::new(Descriptor::CUDNN_BACKEND_VARIANT_PACK_DESCRIPTOR)?
            .set(Attribute::CUDNN_ATTR_VARIANT_PACK_UNIQUE_IDS, Type::CUDNN_TYPE_INT64, &[1i64, 2, 3])?
            .set(Attribute::CUDNN_ATTR_VARIANT_PACK_DATA_POINTERS, Type::CUDNN_TYPE_VOID_PTR, &pointers)?
            .set(
                Attribute::CUDNN_ATTR_VARIANT_PACK_WORKSPACE,
                Type::CUDNN_TYPE_VOID_PTR,
                &[workspace as *mut c_void],
            )?
            .finish()?;
        // SAFETY: the handles live, and the tensors are the caller's promise.
        checked("run a convolution", unsafe { sys::cudnnBackendExecute(self.handle, plan.plan.0, pack.0) })
    }

    /// The plans for a layer that can be built and repeat their bits, best advice first.
    pub(crate) fn plans(
        &self,
        layer: &Layer,
        direction: Direction,
        narrow: bool,
    ) -> Result<Vec<Plan>, Error> {
        self.context.bind()?;
        let graph = self.describe(layer, direction, narrow)?;
        let mut plans: Vec<Plan> = Vec::new();
        use sys::cudnnBackendHeurMode_t as Advice;
        for mode in [Advice::CUDNN_HEUR_MODE_A, Advice::CUDNN_HEUR_MODE_FALLBACK] {
            if !plans.is_empty() {
                break;
            }
            let advice = Described::new(Descriptor::CUDNN_BACKEND_ENGINEHEUR_DESCRIPTOR)?
                .set(
                    Attribute::CUDNN_ATTR_ENGINEHEUR_OPERATION_GRAPH,
                    Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
                    &[graph.0],
                )?
                .set(Attribute::CUDNN_ATTR_ENGINEHEUR_MODE, Type::CUDNN_TYPE_HEUR_MODE, &[mode])?
                .finish()?;
            let configs: Vec<Described> = (0..2 * TRIED)
                .map(|_| Described::new(Descriptor::CUDNN_BACKEND_ENGINECFG_DESCRIPTOR))
                .collect::<Result<_, _>>()?;
            let mut raw: Vec<_> = configs.iter().map(|config| config.0).collect();
            let found = advice.get(
                Attribute::CUDNN_ATTR_ENGINEHEUR_RESULTS,
                Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
                &mut raw,
            )?;
            for config in configs.iter().take(found) {
                if plans.len() < TRIED && self.repeats(config)? {
                    plans.extend(self.build(config, direction).ok().flatten());
                }
            }
        }
        Ok(plans)
    }

    fn build(&self, config: &Described, direction: Direction) -> Result<Option<Plan>, Error> {
        let plan = Described::new(Descriptor::CUDNN_BACKEND_EXECUTION_PLAN_DESCRIPTOR)?
            .set(Attribute::CUDNN_ATTR_EXECUTION_PLAN_HANDLE, Type::CUDNN_TYPE_HANDLE, &[self.handle])?
            .set(
                Attribute::CUDNN_ATTR_EXECUTION_PLAN_ENGINE_CONFIG,
                Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
                &[config.0],
            )?
            .finish()?;
        let mut workspace = [0i64];
        plan.get(
            Attribute::CUDNN_ATTR_EXECUTION_PLAN_WORKSPACE_SIZE,
            Type::CUDNN_TYPE_INT64,
            &mut workspace,
        )?;
        let workspace = workspace[0].max(0) as usize;
        let name = match direction {
            Direction::Forward => "cudnn forward",
            Direction::BackwardData => "cudnn backward (data)",
            Direction::BackwardWeights => "cudnn backward (kernels)",
        };
        Ok((workspace <= WORKSPACE).then(|| Plan { plan: Arc::new(plan), workspace, name, seconds: 0.0 }))
    }

    /// Whether the engine of a configuration gives the same bits every time.
    fn repeats(&self, config: &Described) -> Result<bool, Error> {
        let kernel = Described::new(Descriptor::CUDNN_BACKEND_ENGINE_DESCRIPTOR)?;
        config.get(
            Attribute::CUDNN_ATTR_ENGINECFG_ENGINE,
            Type::CUDNN_TYPE_BACKEND_DESCRIPTOR,
            &mut [kernel.0],
        )?;
        use sys::cudnnBackendNumericalNote_t as Note;
        let mut notes = [Note::CUDNN_NUMERICAL_NOTE_TENSOR_CORE; 16];
        let found = kernel.get(
            Attribute::CUDNN_ATTR_ENGINE_NUMERICAL_NOTE,
            Type::CUDNN_TYPE_NUMERICAL_NOTE,
            &mut notes,
        )?;
        Ok(!notes[..found].contains(&Note::CUDNN_NUMERICAL_NOTE_NONDETERMINISTIC))
    }

    fn describe(&self, layer: &Layer, direction: Direction, narrow: bool) -> Result<Described, Error> {
        let geometry = &layer.forward;
        let stored = match narrow {
            true => sys::cudnnDataType_t::CUDNN_DATA_BFLOAT16,
            false => sys::cudnnDataType_t::CUDNN_DATA_FLOAT,
        };
        // Batch, channels, height, width, with the channels side by side.
        let tensor = |name: i64, [n, c, h, w]: [i32; 4]| -> Result<Described, Error> {
            let sides = [n, c, h, w].map(i64::from);
            let [_, c, h, w] = sides;
            Described::new(Descriptor::CUDNN_BACKEND_TENSOR_DESCRIPTOR)?
                .set(Attribute::CUDNN_ATTR_TENSOR_DATA_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[stored])?
                .set(Attribute::CUDNN_ATTR_TENSOR_DIMENSIONS, Type::CUDNN_TYPE_INT64, &sides)?
                .set(Attribute::CUDNN_ATTR_TENSOR_STRIDES, Type::CUDNN_TYPE_INT64, &[h * w * c, 1, w * c, c])?
                .set(Attribute::CUDNN_ATTR_TENSOR_UNIQUE_ID, Type::CUDNN_TYPE_INT64, &[name])?
                .set(Attribute::CUDNN_ATTR_TENSOR_BYTE_ALIGNMENT, Type::CUDNN_TYPE_INT64, &[16i64])?
                .finish()
        };
        let input = tensor(1, [geometry.n, geometry.cp, geometry.h, geometry.w])?;
        let kernels = tensor(2, [geometry.o, geometry.cp, geometry.kh, geometry.kw])?;
        let output = tensor(3, [geometry.n, geometry.op, geometry.oh, geometry.ow])?;
        let (stride, pad) = (layer.stride as i64, layer.pad as i64);
        let exact = sys::cudnnDataType_t::CUDNN_DATA_FLOAT;
        let cross = sys::cudnnConvolutionMode_t::CUDNN_CROSS_CORRELATION;
        let conv = Described::new(Descriptor::CUDNN_BACKEND_CONVOLUTION_DESCRIPTOR)?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_COMP_TYPE, Type::CUDNN_TYPE_DATA_TYPE, &[exact])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_CONV_MODE, Type::CUDNN_TYPE_CONVOLUTION_MODE, &[cross])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_SPATIAL_DIMS, Type::CUDNN_TYPE_INT64, &[2i64])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_DILATIONS, Type::CUDNN_TYPE_INT64, &[1i64, 1])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_FILTER_STRIDES, Type::CUDNN_TYPE_INT64, &[stride, stride])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_PRE_PADDINGS, Type::CUDNN_TYPE_INT64, &[pad, pad])?
            .set(Attribute::CUDNN_ATTR_CONVOLUTION_POST_PADDINGS, Type::CUDNN_TYPE_INT64, &[pad, pad])?
            .finish()?;
        use Attribute as A;
        let (kind, names, factors) = match direction {
            Direction::Forward => (
                Descriptor::CUDNN_BACKEND_OPERATION_CONVOLUTION_FORWARD_DESCRIPTOR,
                [
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_CONV_DESC,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_X,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_W,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_FORWARD_Y,
                ],
                [
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
                ],
                [
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
                ],
                [
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_ALPHA,
                    A::CUDNN_ATTR_OPERATION_CONVOLUTION_BWD_FILTER_BETA,
                ],
            ),
        };
        let mut operation = Described::new(kind)?;
        for (name, part) in names.into_iter().zip([&conv, &input, &kernels, &output]) {
            operation = operation.set(name, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[part.0])?;
        }
        let operation = operation
            .set(factors[0], Type::CUDNN_TYPE_FLOAT, &[1.0f32])?
            .set(factors[1], Type::CUDNN_TYPE_FLOAT, &[0.0f32])?
            .finish()?;
        Described::new(Descriptor::CUDNN_BACKEND_OPERATIONGRAPH_DESCRIPTOR)?
            .set(A::CUDNN_ATTR_OPERATIONGRAPH_OPS, Type::CUDNN_TYPE_BACKEND_DESCRIPTOR, &[operation.0])?
            .set(A::CUDNN_ATTR_OPERATIONGRAPH_HANDLE, Type::CUDNN_TYPE_HANDLE, &[self.handle])?
            .finish()
    }

    /// The quickest of the plans on scratch memory that holds input, kernels and output.
    ///
    /// # Safety
    ///
    /// The tensors lie in memory of this GPU, each as large as the layer that the plans were made for says.
    pub(crate) unsafe fn quickest(
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
                // SAFETY: the tensors are the caller's promise; the workspace is as large as the largest that any plan asks for,
                // and `timed` waits for the work.
                unsafe { self.run(&plan, stream, tensors, workspace.start) }
            });
            let Ok(seconds) = time else { continue };
            plan.seconds = seconds;
            // cuDNN's own order counts where the clock hardly tells them apart.
            if best.as_ref().is_none_or(|best| seconds < 0.98 * best.seconds) {
                best = Some(plan);
            }
        }
        Ok(best)
    }
}

/// Seconds that some work takes on the GPU: the least of a few tries, after one that does not count.
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
