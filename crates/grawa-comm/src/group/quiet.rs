//! What a round costs on the control connections: little, and the same however many take part.

use super::message::{Call, Down, End, Stand, Up, encode};
use super::{Action, Coordinator, Deed, Event, Member, OWN, Settings, frame};
use std::collections::VecDeque;
use std::time::Duration;

/// Members and their coordinator, whose messages arrive at once and are counted.
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

    /// All come, move what is to be moved, and hear that all have.
    fn meet(&mut self, call: Call) {
        for member in 0..self.members.len() {
            let (up, deed) = self.members[member].come(call, 32);
            self.say(member, up);
            self.deeds.extend(deed.map(|deed| (member, deed)));
        }
        let mut own = None;
        while let Some((member, deed)) = self.deeds.pop_front() {
            match deed {
                Deed::Move { epoch, op, attempt, .. } => {
                    assert_eq!(self.members[member].members().len(), self.members.len());
                    let tag = (epoch, op, attempt);
                    let up = self.members[member].done(tag, u32::MAX.into());
                    self.say(member, up);
                    own = (attempt == OWN).then_some(tag);
                }
                Deed::Closed(end) => assert_eq!(end, End::Commit { lost: vec![] }),
                other => panic!("{other:?}"),
            }
        }
        let Some(tag) = own else { return };
        let vows: Vec<Vec<u8>> = self.members.iter().map(|member| member.vow(tag).unwrap()).collect();
        for member in &mut self.members {
            let closed = Deed::Closed(End::Commit { lost: vec![] });
            assert_eq!(member.agree(tag, &vows), (None, Some(closed)));
        }
    }

    /// A round, and what it cost each.
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

    /// A sign of life of all, and what it cost each.
    fn beat(&mut self) -> Vec<usize> {
        self.bytes.fill(0);
        for member in 0..self.members.len() {
            let up = self.members[member].beat(32, 1 << 20);
            self.say(member, up);
        }
        self.bytes.clone()
    }
}

/// The first round tells who they are, later ones do not, and in the end the coordinator is not asked at all.
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
        (0..2).for_each(|_| drop(group.round()));
        for _ in 0..50 {
            assert_eq!(group.round(), vec![0; count]);
        }
        // Two tell of every stand, up to sixteen each, and the coordinator knows where they are.
        let told = group.beat();
        assert!(told.iter().all(|bytes| *bytes < 50 + 16 * (10 + 2)), "{count} members: {told:?}");
        let op = group.members[0].stand().unwrap().op;
        assert!(group.coordinator.op() + 2 >= op, "{} and {op}", group.coordinator.op());
        let idle = group.beat();
        assert!(idle.iter().all(|bytes| *bytes < 40), "{idle:?}");
    }
    println!("{} control bytes a worker and round that is led", cost[0]);
    assert!(cost.iter().all(|bytes| *bytes == cost[0]), "{cost:?}");
    assert!(cost[0] <= 200, "{} bytes", cost[0]);
}
