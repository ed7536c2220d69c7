//! Members that report, and the coordinator's gate and inbox, together.

use super::Inbox;
use super::reporter_gate::{Group, Member as Active, ReporterGate, RoundReport, Sender};
use crate::event::{Event, Place};
use crate::event_codec::{Report, Sequence};
use crate::round_message::ProcessMessage;
use grawa_comm::group::Receipt;
use grawa_session::reporter::{KEPT, SharedReports};
use proptest::prelude::*;
use std::collections::VecDeque;
use std::time::Duration;

fn event(rounds: u64) -> Event {
    let at = Place { rounds, steps: 4 * rounds, ..Place::default() };
    Event::Round(crate::Round { at, rate: 0.1, loss: None, workers: vec![], mixed: vec![], bytes: 0 })
}

/// A member and what it has sent that has not arrived.
#[derive(Clone, Default)]
struct Member {
    /// Its first round, too.
    token: u64,
    reports: SharedReports,
    on_the_way: VecDeque<Vec<u8>>,
    /// What the coordinator has not recorded yet.
    held: Vec<Report>,
}

/// The coordinator: what it has recorded, in which second.
#[derive(Default)]
struct Recorder {
    gate: ReporterGate,
    inbox: Inbox,
    /// False ones are the largest number.
    rounds: Vec<u64>,
}

/// The number of a member that lies.
const LIAR: u32 = 9;

/// A report of a round that did not happen so.
fn lie(rounds: u64) -> Vec<u8> {
    let Event::Round(round) = event(rounds) else { unreachable!() };
    let sequence = Sequence::of(&event(rounds)).unwrap();
    let events = vec![Event::Round(crate::Round { loss: Some(666.0), ..round })];
    Report::Shared { sequence, events, is_kept: true }.encode().unwrap()
}

impl Recorder {
    fn record(&mut self, worker: u32, report: Report) {
        let events = self.inbox.accept(worker, report);
        let number = |event: &Event| match event {
            Event::Round(round) if round.loss.is_some() => u64::MAX,
            event => event.place().rounds,
        };
        self.rounds.extend(events.iter().map(number));
    }

    /// Reports arrive, and those that were held for long enough are recorded. Members hear of all that need not be sent again.
    fn receive(&mut self, members: &mut [(u32, Member)], arrived: usize, round: u64) {
        let active = members
            .iter()
            .map(|(id, one)| Active { sender: Sender { worker: *id, token: one.token }, since: one.token });
        let active: Vec<Active> = active.collect();
        let group =
            |recorded| Group { active: &active, begun: round, recorded, now: Duration::from_secs(round) };
        for (id, one) in &mut *members {
            let arrived = one.on_the_way.len().min(arrived);
            for bytes in one.on_the_way.drain(..arrived).collect::<Vec<_>>() {
                let report = Report::decode(&bytes).unwrap();
                let Report::Shared { sequence, .. } = &report else { continue };
                let sender = Sender { worker: *id, token: one.token };
                let received = RoundReport { sender, bytes, receipt: Receipt::default() };
                match self.gate.receive(*sequence, received, group(self.inbox.last)) {
                    Some(_) => self.record(*id, report),
                    None => one.held.push(report),
                }
            }
        }
        while let Some(due) = self.gate.due(group(self.inbox.last)) {
            self.record(due.sender.worker, Report::decode(&due.bytes).unwrap());
        }
        let is_new = |report: &Report| match report {
            Report::Shared { sequence, .. } => Some(*sequence) > self.inbox.last,
            Report::Own { .. } => false,
        };
        members.iter_mut().for_each(|(_, one)| one.held.retain(is_new));
    }
}

proptest! {
    /// Whoever is lost, whoever joins, and whoever is lost and back before anyone looks: as long as one stays, every round is recorded once and in
    /// order. With a member that reports any round falsely, too, where reports arrive before the next round begins: members send them before they
    /// take part in that.
    #[test]
    fn every_round_is_recorded_once(
        steps in proptest::collection::vec((0u32..6, any::<bool>(), 0usize..4, any::<bool>()), 1..60),
        lies in proptest::option::of(proptest::collection::vec((1u64..60, 0u64..70), 1..100)),
    ) {
        let mut members: Vec<(u32, Member)> = (0..3).map(|id| (id, Member::default())).collect();
        let mut recorder = Recorder::default();
        for (rounds, (who, joins, arrived, is_lost)) in (1..).zip(&steps) {
            // One is lost with what it has not sent, or joins with what another one knows.
            if *is_lost && members.iter().any(|(id, _)| id != who) {
                members.retain(|(id, _)| id != who);
            }
            if *joins && members.iter().all(|(id, _)| id != who) {
                let (_, donor) = &members[rounds as usize % members.len()];
                let reports = SharedReports::of(&donor.reports.to_bytes());
                members.push((*who, Member { token: rounds, reports, ..Member::default() }));
                members.sort_by_key(|(id, _)| *id);
            }
            let messages: Vec<(u32, ProcessMessage)> = (members.iter())
                .map(|(id, one)| {
                    let (is_reporter, kept) = (one.reports.is_reporter(), one.reports.kept());
                    let unacknowledged = (one.on_the_way.len() + one.held.len()) as u8;
                    (*id, ProcessMessage { is_reporter, unacknowledged, kept, ..ProcessMessage::default() })
                })
                .collect();
            for (id, one) in &mut members {
                one.on_the_way.extend(one.reports.elect(*id, &messages));
                let report = one.reports.add(event(rounds).place(), vec![event(rounds)], true);
                let report = report.unwrap().to_vec();
                if one.reports.is_reporter() {
                    one.on_the_way.push_back(report);
                }
            }
            let arrived = if lies.is_some() { usize::MAX } else { *arrived };
            let false_ones = lies.iter().flatten().filter(|(at, _)| *at == rounds);
            let on_the_way = false_ones.map(|(_, of)| lie(*of)).collect();
            // It has joined just now, and is gone after the round.
            let liar = (LIAR, Member { token: rounds, on_the_way, ..Member::default() });
            if lies.iter().flatten().any(|(at, _)| *at == rounds) {
                let at = if rounds % 2 == 0 { 0 } else { members.len() };
                members.insert(at, liar);
            }
            recorder.receive(&mut members, arrived, rounds);
            members.retain(|(id, _)| *id != LIAR);
            prop_assert!(members.iter().filter(|(_, one)| one.reports.is_reporter()).count() == 1);
        }
        let all = steps.len() as u64;
        (1..=8).for_each(|later| recorder.receive(&mut members, usize::MAX, all + later));
        prop_assert_eq!(recorder.rounds, (1..=all).collect::<Vec<_>>());
    }
}

#[test]
fn what_is_kept_is_bounded() {
    let mut reports = SharedReports::default();
    for rounds in 1..=1000 {
        reports.add(event(rounds).place(), vec![event(rounds)], true).unwrap();
    }
    let again = reports.elect(0, &[(0, ProcessMessage::default()), (1, ProcessMessage::default())]);
    assert!(again.len() == KEPT && reports.is_reporter());
    assert_eq!(again.last(), reports.pending.back());
}
