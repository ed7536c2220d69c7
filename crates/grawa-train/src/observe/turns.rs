//! Events in the order of rounds.
//!
//! Workers in processes of their own tell of rounds in turn, each on a connection of its own, so one may be overtaken by the next.
//! [`Turns`] holds back what came too early. It does so for a few seconds only: one who was to tell may be gone.

use crate::Event;
use std::time::Duration;

/// How long one that is to tell of a round is waited for.
const PATIENCE: Duration = Duration::from_secs(5);

/// What was told, and what waits for its turn.
#[derive(Debug, Default)]
pub struct Turns {
    /// The last round that was told of.
    rounds: u64,
    /// With when it came, in that order.
    early: Vec<(Duration, Event)>,
}

impl Turns {
    /// Goes on after these events.
    pub fn after(so_far: &[Event]) -> Self {
        Turns { rounds: so_far.last().map_or(0, |event| event.place().rounds), early: Vec::new() }
    }

    /// Takes in an event that came now: those whose turn it is, in order.
    pub fn take(&mut self, event: Event, now: Duration) -> Vec<Event> {
        self.early.push((now, event));
        self.due(now)
    }

    /// Those whose turn it is, or who were held back long enough.
    pub fn due(&mut self, now: Duration) -> Vec<Event> {
        let mut due = Vec::new();
        while let Some(at) = (0..self.early.len()).min_by_key(|&at| rank(&self.early[at].1)) {
            let is_late = |(came, _): &(Duration, Event)| now.saturating_sub(*came) >= PATIENCE;
            if !self.is_next(&self.early[at].1) && !self.early.iter().any(is_late) {
                break;
            }
            let (_, event) = self.early.remove(at);
            if let Event::Round(round) = &event {
                // One that comes after it was given up does not make the next ones wait again.
                self.rounds = self.rounds.max(round.at.rounds);
            }
            due.push(event);
        }
        due
    }

    /// All that is left, in order: nobody will tell any more.
    pub fn rest(&mut self) -> Vec<Event> {
        let mut rest: Vec<Event> =
            std::mem::take(&mut self.early).into_iter().map(|(_, event)| event).collect();
        rest.sort_by_key(rank);
        rest
    }

    fn is_next(&self, event: &Event) -> bool {
        match event {
            Event::Round(round) => round.at.rounds <= self.rounds.saturating_add(1),
            Event::Evaluated(_) | Event::Checkpoint { .. } | Event::Finished(_) => {
                event.place().rounds <= self.rounds
            }
            // Whenever they come.
            Event::Started(_) | Event::Fault(_) => true,
        }
    }
}

/// What comes first: what may come at any time, then round by round, and the end last.
fn rank(event: &Event) -> (u8, u64, u8) {
    let rounds = event.place().rounds;
    match event {
        Event::Started(_) | Event::Fault(_) => (0, 0, 0),
        Event::Round(_) => (1, rounds, 0),
        Event::Evaluated(_) | Event::Checkpoint { .. } => (1, rounds, 1),
        Event::Finished(_) => (2, rounds, 0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sample;
    use proptest::prelude::*;

    const NOW: Duration = Duration::from_secs(100);

    /// The events of a run as workers tell of them: one whose turn it is may be slow.
    fn told(slow: &[bool]) -> (Vec<Event>, Vec<Event>) {
        let mut events = sample::run("mgrawa", 3, 12);
        events.retain(|event| !matches!(event, Event::Fault(_)));
        let mut found: Vec<(usize, Event)> = Vec::new();
        for (at, event) in events.iter().enumerate() {
            let is_slow = matches!(event, Event::Round(_)) && slow[at % slow.len()];
            found.push((2 * at + if is_slow { 3 } else { 0 }, event.clone()));
        }
        found.sort_by_key(|(at, _)| *at);
        (events, found.into_iter().map(|(_, event)| event).collect())
    }

    proptest! {
        #[test]
        fn rounds_come_in_order_whoever_is_slow(slow in proptest::collection::vec(any::<bool>(), 1..9)) {
            let (expected, told) = told(&slow);
            let mut turns = Turns::default();
            let found: Vec<Event> = told.into_iter().flat_map(|event| turns.take(event, NOW)).collect();
            prop_assert!(found == expected, "{:?}", found.iter().map(|event| event.place().rounds).collect::<Vec<_>>());
        }
    }

    #[test]
    fn one_that_never_comes_is_not_waited_for_for_ever() {
        let (events, _) = told(&[false]);
        let is_first = |event: &Event| matches!(event, Event::Round(round) if round.at.rounds == 1);
        let mut turns = Turns::default();
        let mut found = Vec::new();
        for event in events.iter().filter(|event| !is_first(event)).cloned() {
            found.extend(turns.take(event, NOW));
        }
        assert!(!found.iter().any(|event| matches!(event, Event::Round(_))), "{found:?}");
        assert_eq!(turns.due(NOW + PATIENCE / 2), []);
        found.extend(turns.due(NOW + PATIENCE));
        assert_eq!(found.len(), events.len() - 1);
        assert_eq!(turns.rest(), []);
    }

    /// Two are missing and the end is there already: what there is comes in order, and the end last.
    #[test]
    fn the_end_comes_last() {
        let (events, _) = told(&[false]);
        let is_missing =
            |event: &Event| matches!(event, Event::Round(round) if [1, 3].contains(&round.at.rounds));
        let mut turns = Turns::default();
        let mut found = Vec::new();
        let (end, rest): (Vec<_>, Vec<_>) = (events.iter().filter(|event| !is_missing(event)).cloned())
            .partition(|event| matches!(event, Event::Finished(_)));
        for event in end.into_iter().chain(rest.into_iter().rev()) {
            found.extend(turns.take(event, NOW));
        }
        found.extend(turns.due(NOW + PATIENCE));
        let rounds: Vec<u64> = (found.iter())
            .filter(|event| matches!(event, Event::Round(_)))
            .map(|event| event.place().rounds)
            .collect();
        assert!(rounds.is_sorted() && rounds.len() > 3, "{rounds:?}");
        assert!(matches!(found.last(), Some(Event::Finished(_))) && turns.rest().is_empty());
        // One that comes after all is told of, and nothing waits for it.
        let late = events.iter().find(|event| is_missing(event)).cloned().unwrap();
        assert_eq!(turns.take(late.clone(), NOW + PATIENCE), [late]);
    }

    /// A run that went back tells of rounds again.
    #[test]
    fn a_run_may_go_back() {
        let (events, _) = told(&[false]);
        let mut turns = Turns::after(&events);
        for event in events {
            assert_eq!(turns.take(event.clone(), NOW), [event]);
        }
    }
}
