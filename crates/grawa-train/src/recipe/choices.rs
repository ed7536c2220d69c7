//! The choices of a recipe that are one word.

pub use grawa_session::{BatchNorm, Format, Pace};

grawa_session::choices! {
    /// The optimizer of the local steps.
    OptimizerKind, "optimizer",
    /// SGD with momentum.
    Sgd = "sgd",
    /// AdamW.
    AdamW = "adamw",
}

grawa_session::choices! {
    /// Where networks are trained.
    Device, "device",
    /// On the cores of this machine.
    Cpu = "cpu",
    /// On its NVIDIA GPUs.
    Cuda = "cuda",
}
