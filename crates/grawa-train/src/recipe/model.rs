//! The network a recipe asks for.

use super::Model;
use grawa_nn::{Error, Graph, Shape, zoo};

impl Model {
    /// The network of one's own, if the recipe has one.
    pub(super) fn own(&self) -> Option<Graph> {
        self.graph.as_deref().and_then(|text| Graph::from_json(text).ok())
    }

    /// Whether the network comes in several widths.
    pub fn has_widths(&self) -> bool {
        matches!(self.name.as_str(), "digits" | "resnet20" | "resnet56")
    }

    /// The network for images of this shape, and for the classes of the data set unless the recipe says otherwise.
    pub fn build(&self, input: Shape, classes: usize) -> Result<Graph, Error> {
        if let Some(text) = &self.graph {
            let graph = Graph::from_json(text)?;
            return if graph.input() == input {
                Ok(graph)
            } else {
                let expected = format!(
                    "it was exported for {}; export it with an example of the shape of the data, or change data.augment",
                    graph.input()
                );
                Err(Error::DoesNotFit {
                    operation: format!("the network {} of model.graph", self.name),
                    found: input,
                    expected,
                })
            };
        }
        let classes = self.classes.map_or(classes, |classes| classes as usize);
        match (self.name.as_str(), self.width) {
            ("digits", Some(width)) => zoo::digits(&self.name, input, width as usize, classes),
            ("resnet20", Some(width)) => zoo::resnet(&self.name, input, 3, width as usize, classes),
            ("resnet56", Some(width)) => zoo::resnet(&self.name, input, 9, width as usize, classes),
            _ => zoo::find(&self.name)?.build(input, classes),
        }
    }
}
