//! Members that report, and the coordinator's inbox, together.

use super::Inbox;
use crate::event::{Event, Place};
use crate::event_codec::Report;
use crate::round_message::ProcessMessage;
use grawa_session::reporter::{KEPT, SharedReports};
use proptest::prelude::*;
use std::collections::VecDeque;

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
                let report = one.reports.add(event(rounds).place(), vec![event(rounds)], true);
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
    (1..=1000).for_each(|rounds| drop(reports.add(event(rounds).place(), vec![event(rounds)], true)));
    let again = reports.elect(0, &[(0, ProcessMessage::default()), (1, ProcessMessage::default())]);
    assert!(again.len() == KEPT && reports.is_reporter());
    assert_eq!(again.last(), reports.pending.back());
}
