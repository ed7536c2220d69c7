//! What tests need of a machine. A test that needs a GPU is ignored, so that it does not count as passed. If it is run
//! without a GPU it fails.

use grawa_nn::cuda::{Device, devices};

/// The first usable GPU.
pub(crate) fn gpu() -> Device {
    match devices() {
        Ok(found) => {
            found.into_iter().find(Device::is_usable).expect("a GPU of compute capability 8.0 or newer")
        }
        Err(error) => panic!("this test needs an NVIDIA GPU: {error}"),
    }
}

/// With GRAWA_NEEDS_GPU=1, tests that need a GPU must not be skipped.
#[test]
fn tests_that_need_a_gpu_run_where_there_is_one() {
    if std::env::var_os("GRAWA_NEEDS_GPU").is_none_or(|value| value != "1") {
        return;
    }
    let asked = std::env::args().any(|word| word == "--include-ignored" || word == "--ignored");
    assert!(
        asked,
        "GRAWA_NEEDS_GPU=1: run the tests with `-- --include-ignored`, or those that need a GPU are left out"
    );
    gpu();
}
