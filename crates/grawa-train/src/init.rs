//! A start from a file: every tensor of the network that the file has, with another head allowed.

use crate::Error;
use grawa_nn::{Data, Graph, State, Tensors};
use std::path::Path;

/// The state to start from, and the tensors that are new: those of the last layer, where the file has them for another number of
/// classes or not at all. They start as the seed says. Everything else must be in the file.
pub(crate) fn start(graph: &Graph, path: &Path, seed: u64) -> Result<(State, Vec<String>), Error> {
    let file = Tensors::read(path, graph.name())?;
    let mut state = State::initial(graph, seed);
    let mut fresh = Vec::new();
    let layer = |name: &str| name.rsplit_once('.').map_or("", |(layer, _)| layer).to_owned();
    let head = graph.parameters().spans().last().map(|span| layer(span.name()));
    for (layout, vector) in
        [(graph.parameters(), &mut state.parameters), (graph.statistics(), &mut state.statistics)]
    {
        for span in layout.spans() {
            let found = file.find(span.name()).filter(|tensor| tensor.shape == span.shape());
            match found.map(|tensor| &tensor.data) {
                Some(Data::F32(numbers)) => vector[span.range()].copy_from_slice(numbers),
                _ if Some(layer(span.name())) == head => fresh.push(span.name().to_owned()),
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
    Ok((state, fresh))
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
        assert_eq!(start(&ten, &path, 2).unwrap(), (State { batches: 0, ..saved.clone() }, vec![]));

        let (state, fresh) = start(&three, &path, 2).unwrap();
        assert_eq!(fresh, ["linear.weight", "linear.bias"]);
        let body = three.parameters().find("linear.weight").unwrap().range().start;
        assert_eq!(state.parameters[..body], saved.parameters[..body]);
        assert_eq!(state.parameters[body..], State::initial(&three, 2).parameters[body..]);

        let error = start(&digits(10, 5), &path, 2).unwrap_err().to_string();
        assert!(error.contains("conv1.weight"), "{error}");
    }
}
