//! The evaluated model of a snapshot, for users of the result.

use crate::evaluate::average;
use crate::evaluate::{view, viewing};
use crate::snapshot::Snapshot;
use crate::{Error, Recipe};
use grawa_core::{Evaluate, mix};
use grawa_nn::{Graph, State};

/// Parameters as the method's evaluation has them (the mean of the workers where it is each of them); statistics as they
/// were evaluated, or the average of the workers' where the model was not evaluated here.
pub(super) fn model(recipe: &Recipe, graph: &Graph, snapshot: &mut Snapshot) -> Result<State, Error> {
    let evaluate = recipe.method.evaluate;
    let all = snapshot.memories.len().saturating_sub(1);
    let centre = (snapshot.parts.iter().flat_map(|part| &part.centres))
        .find(|(level, _, _)| *level == all)
        .map(|(_, _, centre)| centre.clone());
    let parameters = match (evaluate, centre) {
        (Evaluate::Centre, Some(mut centre)) => {
            centre.truncate(graph.parameters().len());
            centre
        }
        (choice, _) => {
            // This round pulls no worker, so the workers' vectors do not change.
            let method = viewing(if choice == Evaluate::Best { choice } else { Evaluate::Mean });
            let workers: Vec<(u32, f64, bool)> =
                snapshot.parts.iter().map(|part| (part.worker, part.loss, part.finite)).collect();
            let mut made = vec![0.0; graph.parameters().len()];
            if let Some(method) = method {
                let plan = view(&method, graph.parameters(), &workers)?;
                let mut vectors: Vec<&mut [f32]> =
                    snapshot.parts.iter_mut().map(|part| part.parameters.as_mut_slice()).collect();
                mix(&plan, graph.parameters(), &mut vectors, &mut made)?;
            }
            made
        }
    };
    let statistics = match &snapshot.calibrated {
        Some(statistics) if evaluate != Evaluate::Each => statistics.clone(),
        _ => {
            let workers: Vec<Vec<f32>> = snapshot.parts.iter().map(|part| part.statistics.clone()).collect();
            average(graph.statistics(), &workers)
        }
    };
    Ok(State { parameters, statistics, batches: snapshot.at.steps })
}
