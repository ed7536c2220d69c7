//! A round costs few bytes on a control connection, and the same number for any size of the group.

use super::Settings;
use super::coordinator::{Action, Coordinator, Input};
use super::member::{Member, MemberAction};
use super::messages::{Call, End, StateVersion, ToCoordinator, ToMember, encode};
use super::wire::frame;
use std::collections::VecDeque;
use std::time::Duration;

/// Members and their coordinator. Messages arrive at once; their bytes are counted.
struct Group {
    coordinator: Coordinator,
    members: Vec<Member>,
    actions: VecDeque<(usize, MemberAction)>,
    bytes: Vec<usize>,
    rounds: u64,
}

fn size(message: &impl serde::Serialize) -> usize {
    frame::HEADER + encode(message).unwrap().len()
}

impl Group {
    fn new(count: usize) -> Self {
        let settings = Settings { founders: count as u32, ..Settings::default() };
        let coordinator = Coordinator::new(settings, 7, Vec::new(), &[]);
        let member = |n: usize| {
            Member::new(1 << 40 | n as u64, format!("10.1.{}.{}:40000", n / 250, n % 250), 1, None)
        };
        let members = (0..count).map(member).collect();
        let mut group =
            Group { coordinator, members, actions: VecDeque::new(), bytes: vec![0; count], rounds: 0 };
        for n in 0..count {
            let hello = group.members[n].connected();
            group.say(n, Some(hello));
            let enter = group.members[n].enter(StateVersion { op: 0, digest: 5 });
            group.say(n, enter);
        }
        group.actions.clear();
        group
    }

    fn say(&mut self, member: usize, up: impl IntoIterator<Item = ToCoordinator>) {
        for up in up {
            self.bytes[member] += size(&up);
            let input = Input::Message { session: member as u64, message: up };
            for action in self.coordinator.handle(input, Duration::from_millis(1)) {
                let Action::Send { session, message } = action else { continue };
                self.hear(session as usize, message);
            }
        }
    }

    fn hear(&mut self, member: usize, down: ToMember) {
        self.bytes[member] += size(&down);
        let (ups, action) = self.members[member].handle(down);
        assert_eq!(ups, []);
        self.actions.extend(action.map(|action| (member, action)));
    }

    /// One operation of all members.
    fn operate(&mut self, call: Call) {
        for member in 0..self.members.len() {
            let (up, action) = self.members[member].call(call, 32);
            assert_eq!(action, None);
            self.say(member, up);
        }
        while let Some((member, action)) = self.actions.pop_front() {
            match action {
                MemberAction::Transfer { attempt, .. } => {
                    assert_eq!(self.members[member].members.len(), self.members.len());
                    let up = self.members[member].done(attempt, u32::MAX.into());
                    self.say(member, up);
                }
                MemberAction::Ended(end) => assert_eq!(end, End::Commit { lost: vec![] }),
                other => panic!("{other:?}"),
            }
        }
    }

    /// A round. Returns the bytes of each member.
    fn round(&mut self) -> Vec<usize> {
        self.bytes.fill(0);
        self.operate(Call::Gather);
        self.operate(Call::Mix { plan: u64::MAX, centre: 0 });
        self.rounds += 1;
        for member in 0..self.members.len() {
            let up = self.members[member].publish(u64::MAX - self.rounds);
            self.say(member, up);
        }
        self.bytes.clone()
    }
}

/// The first operation names the members. Later ones refer to them by the epoch.
#[test]
fn a_round_costs_the_same_for_any_size_of_the_group() {
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
