//! A process of an elastic run: it joins a coordinator, trains its workers, and may leave.

use crate::engine::Workload;
use crate::event::{Finished, Observer};
use crate::group_checkpoint::{Restored, newest};
use crate::process::Common;
use crate::recipe::{Format, Pace};
use crate::run::{AnyEngine, Run};
use crate::snapshot::Part;
use crate::{Error, Recipe, Stop};
use grawa_comm::group::{Joiner, TransferOptions};
use grawa_data::Dataset;
use grawa_session::Pacing;
use grawa_session::enter::{Entered, first_shard, workers_of};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Why workers cannot join and leave in a run of this recipe, if they cannot.
pub fn objection(recipe: &Recipe) -> Option<String> {
    grawa_session::elastic::objection(&recipe.method)
}

/// Checks that workers can join and leave in a run of this recipe.
pub(crate) fn expect_elastic(recipe: &Recipe) -> Result<(), Error> {
    let refuse = |why| Err(Error::Session(grawa_session::Error::NotElastic { why }));
    objection(recipe).map_or(Ok(()), refuse)
}

/// Checks that workers can join and leave in a run of this recipe, and that they can train it on this data. Returns
/// which tensors of `model.init` they start with, in words.
pub fn check(recipe: &Recipe, data: &Dataset) -> Result<Option<String>, Error> {
    expect_elastic(recipe)?;
    let workload = Workload::new(recipe, data)?;
    let start = |path: &PathBuf| crate::init::start(&workload.graph, path, recipe.train.seed);
    Ok(recipe.model.init.as_ref().map(start).transpose()?.map(|(_, words)| words))
}

/// Takes part in a run as one process. It writes checkpoints to `folder` while it is the first member that has one. Its events go to the
/// coordinator, and to the observers here. Returns how the run ended.
pub fn join(
    recipe: Recipe,
    data: &Dataset,
    joiner: Joiner,
    folder: Option<&Path>,
    stop: Stop,
    observers: &mut [Box<dyn Observer>],
) -> Result<Finished, Error> {
    let run = Run::as_member(recipe, data, &joiner)?;
    let run = match folder {
        Some(folder) => run.keep_in(folder),
        None => run,
    };
    run.join(joiner, stop, observers)
}

impl Run {
    /// The part of a process that joins a run of this recipe.
    fn as_member(recipe: Recipe, data: &Dataset, joiner: &Joiner) -> Result<Self, Error> {
        let (workload, workers, cores) =
            (Workload::new(&recipe, data)?, workers_of(joiner), recipe.machine.threads);
        Run::of(recipe, workload, |recipe, workload| AnyEngine::of_some(recipe, workload, workers, cores))
    }

    /// Takes part in a run of the coordinator that has accepted this joiner, as one process.
    pub fn join(
        self,
        joiner: Joiner,
        stop: Stop,
        observers: &mut [Box<dyn Observer>],
    ) -> Result<Finished, Error> {
        let recipe = self.recipe();
        expect_elastic(recipe)?;
        let founders = recipe.train.workers;
        let (parameters, statistics) = self.workers.start(recipe)?;
        if joiner.charter.is_empty() {
            let why = "the coordinator has no recipe: it waits for programs with a session; give it a recipe or its options";
            return Err(Error::Session(grawa_session::Error::NotElastic { why: why.into() }));
        }
        let reporter = joiner.reporter();
        let asked = stop.clone();
        reporter.on_stop(move || {
            asked.together.store(true, Ordering::Relaxed);
            asked.asked.store(true, Ordering::Relaxed);
        });
        let part = |worker: u32| Part {
            worker: first_shard(worker, founders),
            velocity: vec![0.0; parameters.len()],
            parameters: parameters.clone(),
            statistics: statistics.clone(),
            loss: f64::NAN,
            finite: true,
            ..Part::default()
        };
        let mut parts: Vec<Part> = workers_of(&joiner).map(part).collect();
        let options =
            TransferOptions { overlap: recipe.train.overlap, bf16: recipe.train.wire == Format::Bf16 };
        let kept = self.folder.as_deref().map(newest).transpose()?.flatten();
        let (mut launch, source) = self.launch();
        let set = source.set(&launch.recipe, &mut parts)?;
        let kept = kept.map(|Restored { held, centre, .. }| (held, centre));
        let entered = Entered::new(joiner, &launch.recipe.method, founders, parameters, kept, options)?;
        launch.reporter = Some(Arc::new(reporter));
        launch.resumed = entered.is_late();
        (launch.together, launch.stop) = (stop.together, stop.asked);
        let pacing = match launch.recipe.train.pace {
            Pace::Even => Pacing::Even,
            Pace::Free => Pacing::Called,
        };
        let make = |common: &Arc<Common>| Ok(entered.process(common, set, parts)?);
        launch.run(crate::milestones::Position::default(), pacing, make, observers)
    }
}

#[cfg(test)]
mod best_model;
#[cfg(test)]
mod joins;
#[cfg(test)]
mod tests;
