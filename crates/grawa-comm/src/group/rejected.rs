//! Connections that were rejected: they are counted, and reported at most once a minute.
//!
//! A port scan, or a worker with the wrong key that tries again and again, would else fill the record of a run.

use std::time::Duration;

/// From one report to the next.
const QUIET: Duration = Duration::from_secs(60);

/// What was rejected since the last report.
#[derive(Debug, Default)]
pub(super) struct Rejected {
    count: u64,
    last: Option<(String, String)>,
    reported: Option<Duration>,
}

/// What is reported: the last one that was rejected, and why.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Report {
    pub(super) from: String,
    pub(super) why: String,
}

impl Rejected {
    /// One was rejected.
    pub(super) fn add(&mut self, from: String, why: String) {
        self.count += 1;
        self.last = Some((from, why));
    }

    /// What is to be reported now, if anything is.
    pub(super) fn due(&mut self, now: Duration) -> Option<Report> {
        if self.reported.is_some_and(|then| now.saturating_sub(then) < QUIET) {
            return None;
        }
        let (from, mut why) = self.last.take()?;
        let others = std::mem::take(&mut self.count) - 1;
        if others > 0 {
            why += &format!(" (and {others} more connections since the last report, at most one a minute)");
        }
        self.reported = Some(now);
        Some(Report { from, why })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// However many come, in a minute there is one report, and in the end all were counted.
    #[test]
    fn there_is_one_report_a_minute() {
        let (mut rejected, mut reports) = (Rejected::default(), Vec::new());
        assert_eq!(rejected.due(Duration::ZERO), None);
        for tick in 0..1500u64 {
            let now = Duration::from_millis(100 * tick);
            if tick < 1000 {
                rejected.add(format!("address {tick}"), "no key".into());
            }
            reports.extend(rejected.due(now).map(|report| (tick, report)));
        }
        let found: Vec<_> =
            reports.iter().map(|(tick, report)| (*tick, &*report.from, &*report.why)).collect();
        let more = |count| {
            format!("no key (and {count} more connections since the last report, at most one a minute)")
        };
        assert_eq!(
            found,
            [
                (0, "address 0", "no key"),
                (600, "address 600", &*more(599)),
                (1200, "address 999", &*more(398))
            ]
        );
        assert_eq!(rejected.due(Duration::from_secs(999)), None);
    }
}
