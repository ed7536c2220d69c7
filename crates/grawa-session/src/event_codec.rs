//! Reports: events as bytes on their way from a worker to the coordinator.
//!
//! A report is JSON. It carries a number, so that the coordinator records every event once, however often a report is sent.
//! Numbers that JSON cannot hold are refused, and control characters in texts are replaced: the text comes from another process and
//! goes to files and to a terminal.

#[cfg(any(test, fuzzing))]
#[doc(hidden)]
pub mod examples;

use crate::Error;
use crate::event::{Event, Place};
use grawa_comm::printable;
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// One or more events and what identifies them.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Report {
    /// Events that every member knows, sent by the reporter of the group.
    Shared {
        /// Its number, which all members compute alike.
        sequence: Sequence,
        /// The events.
        events: Vec<Event>,
        /// Whether a member writes checkpoints. A program that does not say so may have one.
        #[serde(default = "unknown")]
        is_kept: bool,
    },
    /// An event of one process alone.
    Own {
        /// A random number of the process.
        sender: u64,
        /// How many reports of its own the process has sent, this one included.
        number: u64,
        /// The event.
        event: Event,
    },
}

fn unknown() -> bool {
    true
}

/// The number of a shared report. It grows as the run does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub struct Sequence {
    /// Rounds so far.
    pub rounds: u64,
    /// Local steps of a worker so far.
    pub steps: u64,
    /// Whether it is the evaluation after that round.
    pub is_evaluation: bool,
}

impl Sequence {
    /// The number of the report that holds an event, if such events are shared.
    pub fn of(event: &Event) -> Option<Self> {
        let Place { rounds, steps, .. } = *event.place();
        let is_evaluation = match event {
            Event::Round(_) => false,
            Event::Evaluated(_) => true,
            _ => return None,
        };
        Some(Sequence { rounds, steps, is_evaluation })
    }
}

#[allow(clippy::needless_pass_by_value)]
fn unreadable(error: serde_json::Error) -> Error {
    grawa_comm::Error::Message { why: error.to_string() }.into()
}

/// Makes all texts printable.
fn clean(value: &mut Value) {
    match value {
        Value::String(text) => *text = printable(text),
        Value::Array(values) => values.iter_mut().for_each(clean),
        Value::Object(fields) => fields.values_mut().for_each(clean),
        Value::Null | Value::Bool(_) | Value::Number(_) => {}
    }
}

impl Report {
    /// The report as bytes.
    pub fn encode(&self) -> Result<Vec<u8>, Error> {
        serde_json::to_vec(self).map_err(unreadable)
    }

    /// The report in bytes of another process.
    pub fn decode(bytes: &[u8]) -> Result<Self, Error> {
        let mut value = serde_json::from_slice(bytes).map_err(unreadable)?;
        clean(&mut value);
        serde_json::from_value(value).map_err(unreadable)
    }
}

#[cfg(test)]
mod tests {
    use super::examples::examples;
    use super::*;
    use crate::event::{Evaluated, Fault, Finished, Model, Reason, Round, Started};
    use proptest::prelude::*;

    /// The start of a run whose texts are all this one.
    fn started(text: &str) -> Started {
        Started {
            at: Place::default(),
            method: text.into(),
            network: text.into(),
            data: text.into(),
            workers: 2,
            batch: 32,
            seed: 7,
            budget: grawa_core::Amount::Steps(64),
            steps: Some(64),
            parameters: 800,
            spans: vec![text.into(); 2],
            examples: 359,
            resumed: false,
        }
    }

    fn own(event: Event) -> Report {
        Report::Own { sender: 7, number: 1, event }
    }

    /// The line of a file is the one that the worker itself would have written.
    #[test]
    fn reports_are_read_back_to_the_bit() {
        let end = Finished {
            at: *examples()[0].place(),
            reason: Reason::Spent,
            workers: vec![],
            bytes: 9,
            diverged: false,
        };
        let path = "checkpoints/step-64".into();
        let others =
            [Event::Checkpoint { at: end.at, path }, Event::Finished(end), Event::Started(started("lgrawa"))];
        let all: Vec<Event> = examples().into_iter().chain(others).collect();
        for event in &all {
            let report = own(event.clone());
            let bytes = report.encode().unwrap();
            let line = serde_json::to_vec(event).unwrap();
            let Report::Own { event: found, .. } = Report::decode(&bytes).unwrap() else { unreachable!() };
            assert_eq!(serde_json::to_vec(&found).unwrap(), line);
        }
        let sequence = Sequence::of(&all[0]).unwrap();
        let shared = Report::Shared { sequence, events: all, is_kept: true };
        assert_eq!(Report::decode(&shared.encode().unwrap()).unwrap(), shared);
    }

    #[test]
    fn bytes_that_are_left_over_are_refused() {
        let mut bytes = own(examples()[0].clone()).encode().unwrap();
        bytes.push(b'0');
        assert!(Report::decode(&bytes).unwrap_err().to_string().contains("trailing characters"));
        assert!(Report::decode(&[]).is_err() && Report::decode(b"{}").is_err());
    }

    /// They could be written to a file, but not be read again.
    #[test]
    fn numbers_that_are_not_finite_are_refused() {
        let [Event::Round(round), ..] = examples() else { unreachable!() };
        let at = Place { epochs: f64::NAN, ..round.at };
        let mut weights = round.clone();
        weights.mixed[0].weights[1][0] = f32::INFINITY;
        let end = Finished { at, reason: Reason::Spent, workers: Vec::new(), bytes: 0, diverged: false };
        for event in [Event::Round(weights), Event::Finished(end)] {
            assert!(Report::decode(&own(event).encode().unwrap()).is_err());
        }
    }

    /// Whatever text a worker puts into an event, no terminal obeys it.
    #[test]
    fn text_of_a_report_is_printable() {
        let evil = || String::from("\u{1b}[2J\u{1b}]0;title\u{7}\u{9b}31m\r\n");
        let [Event::Round(round), Event::Evaluated(evaluated), Event::Fault(fault)] = examples() else {
            unreachable!()
        };
        let mut mixed = round.mixed.clone();
        mixed[0].reasons = vec![evil()];
        let models = vec![Model { which: evil(), ..evaluated.models[0].clone() }];
        for (event, texts) in [
            (Event::Started(started(&evil())), 5),
            (Event::Round(Round { mixed, ..round.clone() }), 1),
            (Event::Evaluated(Evaluated { models, ..evaluated }), 1),
            (Event::Checkpoint { at: round.at, path: evil().into() }, 1),
            (Event::Fault(Fault { what: evil(), ..fault }), 1),
        ] {
            let found = format!("{:?}", Report::decode(&own(event).encode().unwrap()).unwrap());
            // `Debug` writes control characters as escapes.
            assert!(!found.contains('\\'), "{found}");
            let defused = "\u{fffd}[2J\u{fffd}]0;title\u{fffd}\u{fffd}31m  ";
            assert_eq!(found.matches(defused).count(), texts, "{found}");
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_report_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = Report::decode(&bytes);
        }
    }
}
