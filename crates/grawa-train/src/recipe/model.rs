//! The network a recipe asks for.

use super::Model;
use grawa_nn::{Error, Graph, Shape, zoo};

impl Model {
    /// Whether the network comes in several widths.
    pub fn has_widths(&self) -> bool {
        matches!(self.name.as_str(), "digits" | "resnet20" | "resnet56")
    }

    /// The network for images of this shape, and for the classes of the data set unless the recipe says otherwise.
    pub fn build(&self, input: Shape, classes: usize) -> Result<Graph, Error> {
        let classes = self.classes.map_or(classes, |classes| classes as usize);
        match (self.name.as_str(), self.width) {
            ("digits", Some(width)) => zoo::digits(&self.name, input, width as usize, classes),
            ("resnet20", Some(width)) => zoo::resnet(&self.name, input, 3, width as usize, classes),
            ("resnet56", Some(width)) => zoo::resnet(&self.name, input, 9, width as usize, classes),
            _ => zoo::find(&self.name)?.build(input, classes),
        }
    }
}
