//! `grawa theory`: placeholder until the experiments are in.
use clap::Args;
use grawa_lab::Error;
/// x
#[derive(Args)]
pub(crate) struct Arguments {}
pub(crate) fn run(_: &Arguments) -> Result<(), Error> {
    Ok(())
}
