//! Connections that were rejected. They are counted, and reported at most once per minute: a port scan, or a worker with the
//! wrong key that retries, must not fill the record of a run.

use std::time::Duration;

/// From one report to the next.
const INTERVAL: Duration = Duration::from_secs(60);

/// What was rejected since the last report.
#[derive(Debug, Default)]
pub(crate) struct RejectedPeers {
    count: u64,
    last: Option<(String, String)>,
    reported: Option<Duration>,
}

impl RejectedPeers {
    pub(crate) fn add(&mut self, from: String, why: String) {
        self.count += 1;
        self.last = Some((from, why));
    }

    /// The report that is due now, if one is: where the last connection came from, and why it was rejected.
    pub(crate) fn due(&mut self, now: Duration) -> Option<(String, String)> {
        if self.reported.is_some_and(|then| now.saturating_sub(then) < INTERVAL) {
            return None;
        }
        let (from, mut why) = self.last.take()?;
        let others = std::mem::take(&mut self.count) - 1;
        if others > 0 {
            why += &format!(" (and {others} more connections since the last report, at most one per minute)");
        }
        self.reported = Some(now);
        Some((from, why))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// There is one report per minute, and in the end every connection was counted.
    #[test]
    fn there_is_one_report_per_minute() {
        let (mut rejected, mut reports) = (RejectedPeers::default(), Vec::new());
        assert_eq!(rejected.due(Duration::ZERO), None);
        for tick in 0..1500u64 {
            let now = Duration::from_millis(100 * tick);
            if tick < 1000 {
                rejected.add(format!("address {tick}"), "no key".into());
            }
            reports.extend(rejected.due(now).map(|report| (tick, report)));
        }
        let found: Vec<_> = reports.iter().map(|(tick, (from, why))| (*tick, &**from, &**why)).collect();
        let more = |count| {
            format!("no key (and {count} more connections since the last report, at most one per minute)")
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
