//! What ends a command without success, and with which exit code.

/// Why a command ended.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Failure {
    /// An experiment.
    #[error(transparent)]
    Lab(#[from] grawa_lab::Error),
    /// The engine.
    #[error(transparent)]
    Engine(#[from] grawa_nn::Error),
    /// A method.
    #[error(transparent)]
    Core(#[from] grawa_core::Error),
}

impl Failure {
    /// 2 for a wrong request, 1 for something that failed.
    pub(crate) fn code(&self) -> u8 {
        match self {
            Failure::Lab(error) => {
                if error.is_usage() {
                    2
                } else {
                    1
                }
            }
            Failure::Engine(error) => {
                if error.is_usage() {
                    2
                } else {
                    1
                }
            }
            Failure::Core(_) => 2,
        }
    }
}
