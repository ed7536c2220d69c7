//! A round costs few bytes on a control connection, and the same number for any size of the group.

use super::message::{Call, Down, End, Stand, Up, encode};
use super::{Action, Coordinator, Deed, Event, Member, Settings, frame};
use std::collections::VecDeque;
use std::time::Duration;

/// Members and their coordinator. Messages arrive at once; their bytes are counted.
struct Group {
    coordinator: Coordinator,
    members: Vec<Member>,
    deeds: VecDeque<(usize, Deed)>,
    bytes: Vec<usize>,
    rounds: u64,
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
        let mut group =
            Group { coordinator, members, deeds: VecDeque::new(), bytes: vec![0; count], rounds: 0 };
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

    /// One operation of all members.
    fn meet(&mut self, call: Call) {
        for member in 0..self.members.len() {
            let (up, deed) = self.members[member].come(call, 32);
            assert_eq!(deed, None);
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

    /// A round. Returns the bytes of each member.
    fn round(&mut self) -> Vec<usize> {
        self.bytes.fill(0);
        self.meet(Call::Gather);
        self.meet(Call::Mix { plan: u64::MAX, centre: 0 });
        self.rounds += 1;
        for member in 0..self.members.len() {
            let up = self.members[member].stands(u64::MAX - self.rounds);
            self.say(member, up);
        }
        self.bytes.clone()
    }
}

/// The first operation names the members. Later ones refer to them by the epoch.
#[test]
fn a_round_costs_the_same_however_many_take_part() {
    let mut cost = Vec::new();
    for count in [1, 4, 12, 200] {
        let mut group = Group::new(count);
        let first = group.round();
        let later = group.round();
        assert!(first[0] >= later[0] + 20 * count, "{} and {} bytes", first[0], later[0]);
        assert!(later.iter().all(|bytes| *bytes == later[0]), "{later:?}");
        cost.push(later[0]);
    }
    println!("{} control bytes per worker and round", cost[0]);
    assert!(cost.iter().all(|bytes| *bytes == cost[0]), "{cost:?}");
    assert!(cost[0] <= 200, "{} bytes", cost[0]);
}
