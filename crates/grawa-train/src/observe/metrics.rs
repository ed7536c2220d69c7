//! `metrics.csv`: the progress of a run as a table for other programs. It holds no times, so that a repetition gives the
//! same file.

use super::appended::Appended;
use crate::{Error, Event};
use std::path::Path;

/// The file's name.
pub const METRICS: &str = "metrics.csv";

const HEADER: &str = "event,step,round,epoch,rate,train_loss,model,test_loss,test_error,bytes";

/// A new file with the events so far; an existing one is replaced.
pub(super) fn create<'a>(
    folder: &Path,
    so_far: impl IntoIterator<Item = &'a Event>,
) -> Result<Appended, Error> {
    let text: String = std::iter::once(format!("{HEADER}\n")).chain(so_far.into_iter().map(rows)).collect();
    Appended::create(folder.join(METRICS), &folder.join(format!("{METRICS}.new")), text.as_bytes())
}

/// The rows of an event: none, one, or one for each model.
pub(super) fn rows(event: &Event) -> String {
    let at = event.place();
    let place = format!("{},{},{}", at.steps, at.rounds, at.epochs);
    let number = |number: Option<f64>| number.map(|number| number.to_string()).unwrap_or_default();
    match event {
        Event::Round(round) => {
            format!("round,{place},{},{},,,,{}\n", round.rate, number(round.loss), round.bytes)
        }
        Event::Evaluated(evaluated) => evaluated
            .models
            .iter()
            .map(|model| {
                format!("evaluated,{place},,,{},{},{},\n", model.which, number(model.loss), model.error())
            })
            .collect(),
        _ => String::new(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sample;
    use std::fs;

    #[test]
    fn every_row_has_every_column() {
        let folder = tempfile::tempdir().unwrap();
        let events = sample::run("lgrawa", 2, 4);
        let mut metrics = create(folder.path(), []).unwrap();
        for event in &events {
            metrics.append(rows(event).as_bytes()).unwrap();
        }
        let text = fs::read_to_string(folder.path().join(METRICS)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 4 + 2);
        assert!(lines.iter().all(|line| line.matches(',').count() == HEADER.matches(',').count()), "{text}");
        assert_eq!(lines[1], "round,4,1,0.25,0.1,1,,,,20000");
        assert_eq!(lines[3], "evaluated,8,2,0.5,,,mean,0.5,0.3342618384401114,");
        // What a resume writes anew is the same.
        create(folder.path(), &events).unwrap();
        assert_eq!(fs::read_to_string(folder.path().join(METRICS)).unwrap(), text);
    }
}
