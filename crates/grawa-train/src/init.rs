//! A start from a model: every tensor of the network that its file has, with another head allowed.

use crate::{Error, find_model};
use grawa_nn::{Data, Graph, State, Tensors};
use std::path::Path;

/// The state to start from, and in words where its tensors come from. `path` is a run's folder, a checkpoint or a file of tensors. Those
/// of the last layer start as the seed says where the file has them for another number of classes or not at all. Everything else
/// must be in the file.
pub(crate) fn start(graph: &Graph, path: &Path, seed: u64) -> Result<(State, String), Error> {
    let path = &find_model(path)?.model;
    let file = Tensors::read(path, graph.name())?;
    let mut state = State::initial(graph, seed);
    let (mut all, mut fresh) = (0, Vec::new());
    let layer = |name: &str| name.rsplit_once('.').map_or("", |(layer, _)| layer).to_owned();
    let head = graph.parameters().spans().last().map(|span| layer(span.name()));
    for (layout, vector) in
        [(graph.parameters(), &mut state.parameters), (graph.statistics(), &mut state.statistics)]
    {
        for span in layout.spans() {
            all += 1;
            let there = file.find(span.name());
            let found = there.filter(|tensor| tensor.shape == span.shape());
            match found.map(|tensor| &tensor.data) {
                Some(Data::F32(numbers)) => vector[span.range()].copy_from_slice(numbers),
                _ if Some(layer(span.name())) == head => {
                    let (name, shape) = (span.name(), span.shape());
                    fresh.push(match there {
                        Some(tensor) => format!("{name} {:?} → {shape:?} starts at random", tensor.shape),
                        None => format!("{name} {shape:?} is not there and starts at random"),
                    });
                }
                _ => {
                    // The reader says in what it differs.
                    file.f32(span.name(), span.shape())?;
                }
            }
        }
    }
    if let Some(bad) = state.parameters.iter().find(|x| !x.is_finite()) {
        return Err(Error::CannotStart {
            path: path.into(),
            why: format!("it holds a parameter that is {bad}"),
        });
    }
    let loaded = format!("{} of {all} tensors from {}", all - fresh.len(), path.display());
    Ok((state, [vec![loaded], fresh].concat().join("; ")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use grawa_nn::{Shape, zoo};

    #[test]
    fn another_head_is_allowed_and_nothing_else() {
        let place = tempfile::tempdir().unwrap();
        let path = place.path().join("state.safetensors");
        let digits = |classes, width| zoo::digits("digits", Shape::image(1, 8), width, classes).unwrap();
        let (ten, three) = (digits(10, 4), digits(3, 4));
        let saved = State::initial(&ten, 1);
        saved.save(&ten, &path).unwrap();
        let all = format!("12 of 12 tensors from {}", path.display());
        assert_eq!(start(&ten, &path, 2).unwrap(), (State { batches: 0, ..saved.clone() }, all.clone()));

        let (state, words) = start(&three, &path, 2).unwrap();
        let fresh =
            "linear.weight [10, 128] → [3, 128] starts at random; linear.bias [10] → [3] starts at random";
        assert_eq!(words, format!("{}; {fresh}", all.replace("12 of 12", "10 of 12")));
        let body = three.parameters().find("linear.weight").unwrap().range().start;
        assert_eq!(state.parameters[..body], saved.parameters[..body]);
        assert_eq!(state.parameters[body..], State::initial(&three, 2).parameters[body..]);

        let error = start(&digits(10, 5), &path, 2).unwrap_err().to_string();
        assert!(error.contains("conv1.weight"), "{error}");
    }
}
