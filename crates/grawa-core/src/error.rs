//! Errors of this crate. All come from the caller's input; nothing panics.

use crate::method::{knobs, names};
use std::sync::Arc;
use thiserror::Error;

/// An input this crate cannot work with. The text says what was found, what was expected, what to do.
#[derive(Clone, Debug, PartialEq, Error)]
#[non_exhaustive]
pub enum Error {
    /// Two tensors of a layout have the same name.
    #[error("two tensors are called '{name}'; every tensor of a layout needs its own name")]
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
    #[error("there is no method '{found}'{}; the methods are {}", did_you_mean(found, names()), names().join(", "))]
    UnknownMethod {
        /// What was asked for.
        found: String,
    },
    /// A knob's name is not known.
    #[error("{method} has no knob '{found}'{}; the knobs are {}", suggestion(.nearest), knobs().join(", "))]
    UnknownKnob {
        /// The method being read.
        method: String,
        /// What was asked for.
        found: String,
        /// The closest known knob, if one is close.
        nearest: Option<String>,
    },
    /// A knob's value has the wrong type, is out of range, or has no meaning with the other choices.
    #[error("{method}: {knob} {why}")]
    WrongKnob {
        /// The method.
        method: String,
        /// The knob.
        knob: String,
        /// What is wrong with it, and what to do.
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
    /// A text in the wrong form.
    #[error("cannot read {what} '{found}': {expected}")]
    Unreadable {
        /// What was being read: a method, a budget, a schedule.
        what: &'static str,
        /// The text.
        found: String,
        /// The right form.
        expected: String,
    },
    /// A worker's report does not fit the method.
    #[error("worker {worker} reports {found} scores, but {method} needs {expected}")]
    WrongScores {
        /// The worker.
        worker: u32,
        /// How many scores it reported.
        found: usize,
        /// How many are needed.
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
    /// A replica could not do its work. [`Error::replica`] makes one.
    #[error(transparent)]
    Replica(Cause),
    /// Vectors of different lengths where they must be equal.
    #[error("{what}: {found} numbers were found, and {expected} are needed")]
    WrongLength {
        /// The vector.
        what: String,
        /// Its length.
        found: usize,
        /// The length it needs.
        expected: usize,
    },
}

impl Error {
    /// The wrong knob, if it is a single one.
    pub fn knob(&self) -> Option<&str> {
        match self {
            Error::UnknownKnob { found: knob, .. } | Error::WrongKnob { knob, .. } => Some(knob),
            _ => None,
        }
    }

    /// The error of a replica whose engine or data failed; `cause` is an error or a text.
    pub fn replica(cause: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> Error {
        Error::Replica(Cause(cause.into().into()))
    }

    /// The cause of a replica's failure, if this is one; it can be downcast.
    pub fn replica_cause(&self) -> Option<&(dyn std::error::Error + 'static)> {
        if let Error::Replica(Cause(cause)) = self { Some(&**cause) } else { None }
    }
}

/// The cause of a replica's failure. It is shared, so that every worker of a device can return it; two are equal if they
/// share it.
#[derive(Clone, Debug, Error)]
#[error(transparent)]
pub struct Cause(Arc<dyn std::error::Error + Send + Sync>);

impl PartialEq for Cause {
    fn eq(&self, other: &Cause) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

/// Checks the length of a vector.
pub(crate) fn expect_len(what: &str, found: usize, expected: usize) -> Result<(), Error> {
    if found == expected { Ok(()) } else { Err(Error::WrongLength { what: what.into(), found, expected }) }
}

fn suggestion(nearest: &Option<String>) -> String {
    nearest.as_ref().map(|name| format!(" (did you mean '{name}'?)")).unwrap_or_default()
}

/// A hint for a name that is not one of `known`, such as ` (did you mean 'period'?)`; empty if none is near.
pub fn did_you_mean<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> String {
    suggestion(&nearest(found, known))
}

/// The nearest of `known` to `found`, if it is near enough to be a typing error.
pub fn nearest<'a>(found: &str, known: impl IntoIterator<Item = &'a str>) -> Option<String> {
    let found = found.to_lowercase().replace('_', "-");
    known
        .into_iter()
        .map(|name| (strsim::damerau_levenshtein(&found, &name.replace('_', "-")), name))
        .filter(|&(distance, name)| distance <= (name.len() / 3).max(1))
        .min()
        .map(|(_, name)| name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Method;
    use std::error::Error as _;

    /// The knob is a field of the error: its text can be reworded, and a text that reads alike names no knob.
    #[test]
    fn the_wrong_knob_is_a_field_of_the_error() {
        let wrong = "lgrawa:rate=0.1".parse::<Method>().unwrap_err();
        assert!(matches!(wrong, Error::WrongKnob { .. }), "{wrong:?}");
        assert_eq!(wrong.knob(), Some("rate"));
        let why = "this method cannot be set: it is an example".into();
        assert_eq!(Error::ChoicesClash { method: "lgrawa".into(), why }.knob(), None);
    }

    /// Text, chain and type of what a replica failed with outlive the seam, and so does a copy for another worker.
    #[test]
    fn a_replica_s_error_keeps_its_cause() {
        #[derive(Debug, Error)]
        #[error("cannot read a picture")]
        struct Unreadable(#[source] std::io::Error);

        let disk = std::io::Error::other("the disk is gone");
        let error = Error::replica(Unreadable(disk));
        assert_eq!(error.to_string(), "cannot read a picture");
        assert_eq!(error.source().unwrap().to_string(), "the disk is gone");
        assert!(error.replica_cause().unwrap().is::<Unreadable>());
        assert_eq!(error.clone(), error);
        assert_ne!(Error::replica("a text"), Error::replica("a text"));
        assert_eq!(Error::replica("a text").to_string(), "a text");
        assert!(Error::NothingFinite.replica_cause().is_none());
    }
}
