//! Which member reports to the coordinator, and what the others keep in case it is lost.
//!
//! All members know the same events of a round. One of them, the reporter, sends them: the one with the lowest number. If it is lost, the next
//! one, of those that know all that the coordinator has not acknowledged, sends that again. The coordinator drops reports whose number it
//! has seen.

use crate::event::{Event, Place};
use crate::event_codec::{Report, Sequence};
use crate::round_message::ProcessMessage;
use std::cmp::Reverse;
use std::collections::VecDeque;

/// The most reports that a member keeps.
const KEPT: usize = 64;

/// The shared reports of a member.
#[derive(Clone, Debug, Default)]
pub(crate) struct SharedReports {
    is_reporter: bool,
    /// Those that the coordinator may not have, the oldest first.
    pending: VecDeque<Report>,
}

impl SharedReports {
    pub(crate) fn is_reporter(&self) -> bool {
        self.is_reporter
    }

    /// How many reports it keeps.
    pub(crate) fn kept(&self) -> u16 {
        self.pending.len() as u16
    }

    /// All members have sent their messages: they know who reports. Returns what `worker` must send again.
    pub(crate) fn elect(&mut self, worker: u32, messages: &[(u32, ProcessMessage)]) -> Vec<Report> {
        if let Some((reporter, message)) = messages.iter().find(|(_, message)| message.is_reporter) {
            self.keep_last(message.unacknowledged.into());
            // A member with a lower number has joined. It takes over when nothing of the other is on its way.
            let first = messages.first().map_or(reporter, |(first, _)| first);
            self.is_reporter = worker == if message.unacknowledged == 0 { *first } else { *reporter };
            return Vec::new();
        }
        // A member that has joined since does not know the oldest ones.
        let next = messages.iter().max_by_key(|(id, message)| (message.kept, Reverse(*id)));
        self.is_reporter = next.is_some_and(|(next, _)| *next == worker);
        if self.is_reporter { self.pending.iter().cloned().collect() } else { Vec::new() }
    }

    /// Adds the report of these events, which all members make alike.
    pub(crate) fn add(&mut self, at: &Place, events: Vec<Event>) -> Report {
        let is_evaluation = matches!(events.first(), Some(Event::Evaluated(_)));
        let sequence = Sequence { rounds: at.rounds, steps: at.steps, is_evaluation };
        let report = Report::Shared { sequence, events };
        self.pending.push_back(report.clone());
        self.keep_last(KEPT);
        report
    }

    fn keep_last(&mut self, count: usize) {
        self.pending.drain(..self.pending.len().saturating_sub(count));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::coordinate::Inbox;
    use proptest::prelude::*;

    fn event(rounds: u64) -> Event {
        let at = Place { rounds, steps: 4 * rounds, ..Place::default() };
        Event::Round(crate::Round { at, rate: 0.1, loss: None, workers: vec![], mixed: vec![], bytes: 0 })
    }

    /// A member and what it has sent that has not arrived.
    #[derive(Clone, Default)]
    struct Member {
        reports: SharedReports,
        on_the_way: VecDeque<Report>,
    }

    proptest! {
        /// Whoever is lost, and whoever joins: as long as one stays, every round is recorded once and in order.
        #[test]
        fn every_round_is_recorded_once(
            steps in proptest::collection::vec((0u32..6, any::<bool>(), 0usize..4, any::<bool>()), 1..60),
        ) {
            let mut members: Vec<(u32, Member)> = (0..3).map(|id| (id, Member::default())).collect();
            let (mut inbox, mut recorded) = (Inbox::default(), Vec::new());
            for (rounds, (who, joins, arrived, is_lost)) in (1..).zip(&steps) {
                // One is lost with what it has not sent, or joins and knows nothing of earlier rounds. One that knows all stays.
                let most = members.iter().map(|(_, one)| one.reports.kept()).max();
                let stays = |(id, one): &(u32, Member)| id != who && Some(one.reports.kept()) == most;
                if *is_lost && members.iter().any(stays) {
                    members.retain(|(id, _)| id != who);
                } else if *joins && members.iter().all(|(id, _)| id != who) {
                    members.push((*who, Member::default()));
                    members.sort_by_key(|(id, _)| *id);
                }
                let messages: Vec<(u32, ProcessMessage)> = (members.iter())
                    .map(|(id, one)| {
                        let (is_reporter, kept) = (one.reports.is_reporter(), one.reports.kept());
                        let unacknowledged = one.on_the_way.len() as u8;
                        (*id, ProcessMessage { is_reporter, unacknowledged, kept, ..ProcessMessage::default() })
                    })
                    .collect();
                for (id, one) in &mut members {
                    one.on_the_way.extend(one.reports.elect(*id, &messages));
                    let report = one.reports.add(event(rounds).place(), vec![event(rounds)]);
                    if one.reports.is_reporter() {
                        one.on_the_way.push_back(report);
                    }
                    let arrived = one.on_the_way.len().min(*arrived);
                    for report in one.on_the_way.drain(..arrived).collect::<Vec<_>>() {
                        recorded.extend(inbox.accept(*id, report));
                    }
                }
                prop_assert!(members.iter().filter(|(_, one)| one.reports.is_reporter()).count() == 1);
            }
            for (id, one) in members {
                recorded.extend(one.on_the_way.into_iter().flat_map(|report| inbox.accept(id, report)));
            }
            let rounds: Vec<u64> = recorded.iter().map(|event| event.place().rounds).collect();
            prop_assert_eq!(rounds, (1..=steps.len() as u64).collect::<Vec<_>>());
        }
    }

    #[test]
    fn what_is_kept_is_bounded() {
        let mut reports = SharedReports::default();
        (1..=1000).for_each(|rounds| drop(reports.add(event(rounds).place(), vec![event(rounds)])));
        let again = reports.elect(0, &[(0, ProcessMessage::default()), (1, ProcessMessage::default())]);
        assert!(again.len() == KEPT && reports.is_reporter());
        assert_eq!(again.last(), reports.pending.back());
    }
}
