//! What can go wrong in this crate: always the caller's input, never a panic.

use thiserror::Error;

/// An input this crate cannot work with. The text says what was found, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Two tensors of a layout have the same name.
    #[error("two tensors are called '{name}'; every tensor of a layout needs a name of its own")]
    TwoTensorsOfOneName {
        /// The name.
        name: String,
    },
    /// A layout's size overflows.
    #[error("tensor '{name}' of shape {shape:?} makes the model larger than memory can address")]
    TensorTooLarge {
        /// The tensor.
        name: String,
        /// Its shape.
        shape: Vec<usize>,
    },
    /// A tensor was asked for by a name the layout does not have.
    #[error("the layout has no tensor called '{name}'")]
    NoSuchTensor {
        /// The name.
        name: String,
    },
    /// A method's name is not in the table.
    #[error("there is no method '{found}'{}; the methods are {}", suggestion(.nearest), crate::method::names().join(", "))]
    UnknownMethod {
        /// What was asked for.
        found: String,
        /// The closest known name, if one is close.
        nearest: Option<String>,
    },
    /// A knob's name is not known.
    #[error("{method} has no knob '{found}'{}; the knobs are {}", suggestion(.nearest), crate::method::knobs().join(", "))]
    UnknownKnob {
        /// The method being read.
        method: String,
        /// What was asked for.
        found: String,
        /// The closest known knob, if one is close.
        nearest: Option<String>,
    },
    /// A knob's value is outside what it may be.
    #[error("{method}: {knob} is {found}, but must be {expected}")]
    KnobOutOfRange {
        /// The method.
        method: String,
        /// The knob.
        knob: &'static str,
        /// Its value.
        found: String,
        /// What it may be.
        expected: &'static str,
    },
    /// A knob's value is not of the kind it must be.
    #[error("{method}: {knob} cannot be {found}: {why}")]
    UnreadableKnob {
        /// The method.
        method: String,
        /// The knob.
        knob: String,
        /// Its value.
        found: String,
        /// What was expected.
        why: String,
    },
    /// Choices that do not go together.
    #[error("{method}: {why}")]
    ChoicesClash {
        /// The method.
        method: String,
        /// Which choices, why not, and what to do.
        why: String,
    },
    /// A text that is not of the form it must have.
    #[error("cannot read {what} '{found}': {expected}")]
    Unreadable {
        /// What was being read: a method, a budget, a schedule.
        what: &'static str,
        /// The text.
        found: String,
        /// The form it must have.
        expected: String,
    },
    /// A worker's report does not fit the method.
    #[error("worker {worker} reports {found} scores, but {method} needs {expected}")]
    WrongScores {
        /// The worker.
        worker: u32,
        /// How many scores it reported.
        found: usize,
        /// How many there must be.
        expected: usize,
        /// The method.
        method: String,
    },
    /// A round without workers, or with one worker twice.
    #[error("a round needs at least one worker and each at most once; found workers {found:?}")]
    WrongWorkers {
        /// The workers that reported.
        found: Vec<u32>,
    },
    /// No worker's parameters are finite to start with.
    #[error("no worker starts with finite parameters; at least one must")]
    NothingFinite,
    /// A replica could not do its work.
    #[error("{why}")]
    Replica {
        /// What its engine or its data said.
        why: String,
    },
    /// Vectors of different lengths where they must be equal.
    #[error("{what} holds {found} scalars, but {expected} are needed")]
    WrongLength {
        /// The vector.
        what: String,
        /// Its length.
        found: usize,
        /// The length it must have.
        expected: usize,
    },
}

impl Error {
    /// The knob that is wrong, where it is a single one.
    pub fn knob(&self) -> Option<&str> {
        match self {
            Error::UnknownKnob { found, .. } => Some(found),
            Error::KnobOutOfRange { knob, .. } => Some(knob),
            Error::UnreadableKnob { knob, .. } => Some(knob),
            Error::ChoicesClash { why, .. } => why.split_once(" cannot be set:").map(|(knob, _)| knob),
            _ => None,
        }
    }
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default()
}

/// The one of `known` that is nearest to `found`, if it is near enough to be a slip of the finger.
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let found = found.to_lowercase().replace('_', "-");
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&found, &name.replace('_', "-")), name))
        .filter(|&(distance, name)| distance <= (name.len() / 3).max(1))
        .min()
        .map(|(_, name)| name.to_owned())
}
