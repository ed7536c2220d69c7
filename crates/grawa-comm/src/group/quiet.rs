//! What a round costs on the control connections: little, and the same however many take part.

use super::message::{Call, Down, End, Stand, Up, encode};
use super::{Action, Coordinator, Deed, Event, Member, Settings, frame};
use std::collections::VecDeque;
use std::time::Duration;

/// Members and their coordinator, whose messages arrive at once and are counted.
struct Group {
    coordinator: Coordinator,
    members: Vec<Member>,
    deeds: VecDeque<(usize, Deed)>,
    bytes: Vec<usize>,
}

fn size(message: &impl serde::Serialize) -> usize {
    frame::HEAD + encode(message).unwrap().len()
}

impl Group {
    fn new(count: usize) -> Self {
        let settings = Settings { founders: count as u32, ..Settings::default() };
        let coordinator = Coordinator::new(settings, 7, Vec::new(), &[]);
        let member =
            |n: usize| Member::new(1 << 40 | n as u64, format!("10.1.{}.{}:40000", n / 250, n % 250));
        let members = (0..count).map(member).collect();
        let mut group = Group { coordinator, members, deeds: VecDeque::new(), bytes: vec![0; count] };
        for n in 0..count {
            let hello = group.members[n].connected();
            group.say(n, Some(hello));
            let enter = group.members[n].enter(Stand { op: 0, digest: 5 });
            group.say(n, enter);
        }
        group.deeds.clear();
        group
    }

    fn say(&mut self, member: usize, up: impl IntoIterator<Item = Up>) {
        for up in up {
            self.bytes[member] += size(&up);
            let event = Event::Heard { session: member as u64, up };
            for action in self.coordinator.on(event, Duration::from_millis(1)) {
                let Action::Send { session, down } = action else { continue };
                self.hear(session as usize, down);
            }
        }
    }

    fn hear(&mut self, member: usize, down: Down) {
        self.bytes[member] += size(&down);
        let (ups, deed) = self.members[member].hear(down);
        assert_eq!(ups, []);
        self.deeds.extend(deed.map(|deed| (member, deed)));
    }

    /// All come, move what is to be moved, and hear that all have.
    fn meet(&mut self, call: Call) {
        for member in 0..self.members.len() {
            let up = self.members[member].come(call, 32).unwrap();
            self.say(member, up);
        }
        while let Some((member, deed)) = self.deeds.pop_front() {
            match deed {
                Deed::Move { epoch, op, attempt, .. } => {
                    assert_eq!(self.members[member].members().len(), self.members.len());
                    let up = self.members[member].done((epoch, op, attempt), u32::MAX.into());
                    self.say(member, up);
                }
                Deed::Closed(end) => assert_eq!(end, End::Commit { lost: vec![] }),
                other => panic!("{other:?}"),
            }
        }
    }

    /// A round, and what it cost each.
    fn round(&mut self) -> Vec<usize> {
        self.bytes.fill(0);
        self.meet(Call::Gather);
        self.meet(Call::Mix { plan: u64::MAX, centre: 0 });
        for member in 0..self.members.len() {
            let up = self.members[member].stands(u64::MAX);
            self.say(member, up);
        }
        self.bytes.clone()
    }
}

/// The first round tells who they are; later ones do not.
#[test]
fn a_round_costs_the_same_however_many_take_part() {
    let mut cost = Vec::new();
    for count in [1, 4, 12, 200] {
        let mut group = Group::new(count);
        let first = group.round();
        let later = (0..50).map(|_| group.round()).next_back().unwrap();
        assert!(first[0] >= later[0] + 20 * count, "{} and {} bytes", first[0], later[0]);
        assert!(later.iter().all(|bytes| *bytes == later[0]), "{later:?}");
        cost.push(later[0]);
    }
    println!("{} control bytes a worker and round", cost[0]);
    assert!(cost.iter().all(|bytes| *bytes == cost[0]), "{cost:?}");
    assert!(cost[0] <= 200, "{} bytes", cost[0]);
}
