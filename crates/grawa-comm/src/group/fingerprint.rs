//! The fingerprint of a build: of the protocol, of all message formats, and of the plans that it makes. Members and coordinator must have the
//! same.
//!
//! Two builds with the same protocol number may still differ: then one sends what the other cannot read, or they plan differently, and the round
//! fails. The fingerprint is computed from an encoded example of every message, and the digest of one plan. Another format, or another plan,
//! is another fingerprint, without anyone who remembers to change it.

use super::digest::Crc;
use super::member::peer_listener::{Gift, Greeting};
use super::messages::{
    Call, End, Hello, Peer, Proposal, StateVersion, ToCoordinator, ToMember, VERSION, encode,
};
use super::transfer::header::{Header, Kind};
use crate::{Lost, Why};
use grawa_core::{Layout, Memory, Method, Report, plan};
use std::sync::LazyLock;
use std::time::Duration;

/// The CRC-32C of an example of each message that the loop of a process sends to others: `grawa-session` knows these formats, and a test there
/// compares them with this number.
pub const SESSION_FORMATS: u32 = 0xcc3d_c221;

/// The fingerprint of this build.
pub fn fingerprint() -> u64 {
    static OURS: LazyLock<u64> = LazyLock::new(|| combine(&examples(), golden_plan(), SESSION_FORMATS));
    *OURS
}

/// Why a peer with another fingerprint is refused.
pub(crate) fn objection(found: u64) -> Option<String> {
    let ours = fingerprint();
    (found != ours).then(|| {
        format!(
            "its build has the fingerprint {found:016x}, and this one {ours:016x}: message formats or plans differ; use the same build of grawa \
             everywhere"
        )
    })
}

fn combine(examples: &[Vec<u8>], plan: u64, session: u32) -> u64 {
    let (mut formats, mut plans) = (Crc::default(), Crc::default());
    formats.add(&VERSION.to_le_bytes());
    for example in examples {
        formats.add(&(example.len() as u64).to_le_bytes());
        formats.add(example);
    }
    formats.add(&session.to_le_bytes());
    plans.add(&plan.to_le_bytes());
    u64::from(formats.get()) << 32 | u64::from(plans.get())
}

/// The digest of one plan: four workers, uneven scores by layer, a memory; one worker is not finite.
fn golden_plan() -> u64 {
    let spans = [("weight", vec![3, 2]), ("bias", vec![3]), ("scale", vec![1])];
    let layout = Layout::new(spans.map(|(name, shape)| (name.to_string(), shape)));
    let reports: Vec<Report> = (0u32..4)
        .map(|worker| Report {
            worker,
            scores: (1..4u32).map(|n| 1.0 / f64::from(3 * worker + n)).collect(),
            finite: worker != 2,
            steps: 4,
        })
        .collect();
    let method: Result<Method, _> = "lgrawa".parse();
    let planned = layout.ok().zip(method.ok()).and_then(|(layout, method)| {
        let first = plan(&method, &layout, &Memory::default(), &reports).ok()?;
        plan(&method, &layout, &first.memory, &reports).ok()
    });
    planned.map_or(0, |plan| plan.digest())
}

/// An example of every message, encoded.
fn examples() -> Vec<Vec<u8>> {
    let version = StateVersion { op: 300, digest: 0x0123_4567_89ab_cdef };
    let peer = || Peer { worker: 3, token: 1 << 40, address: "[::1]:4000".into() };
    let lost = || {
        let whys = [
            Why::Left,
            Why::Panicked,
            Why::Stalled { after: Duration::from_millis(2500) },
            Why::Disconnected,
            Why::Unreachable,
            Why::Late { after: Duration::from_millis(1500) },
            Why::Differs,
            Why::OutOfStep,
            Why::Excess,
        ];
        whys.into_iter().zip(0..).map(|(why, worker)| Lost { worker, why }).collect::<Vec<_>>()
    };
    let hello = || Hello { version: VERSION, run: 7, token: 1 << 41, worker: Some(5), address: "a:1".into() };
    let (attempt, why) = ((1 << 33, 300, 2), || String::from("why"));
    let calls = [Call::Gather, Call::Mix { plan: 1 << 50, centre: 1 }, Call::FinalBarrier, Call::Finish];
    let up = [
        ToCoordinator::Hello(hello()),
        ToCoordinator::Enter(version),
        ToCoordinator::Holds(version),
        ToCoordinator::Arrive { op: 300, call: calls[1], steps: 400, known_epoch: 1 << 33 },
        ToCoordinator::Arrive { op: 300, call: calls[0], steps: 400, known_epoch: 1 << 33 },
        ToCoordinator::Done { attempt, digest: 500 },
        ToCoordinator::Failed { attempt, peer: 600, why: why() },
        ToCoordinator::NotRestored { donor: 600 },
        ToCoordinator::Heartbeat { steps: 400, progress: 500, workers: 600 },
        ToCoordinator::Report(vec![1, 2, 3]),
        ToCoordinator::Leave,
        ToCoordinator::HelloOfSet { workers: 700, hello: hello() },
        ToCoordinator::Propose(Proposal { charter: vec![1, 2, 3], trigger: Some(300), wait: Some(30_000) }),
        ToCoordinator::Unreadable { attempt, peer: 600, why: why() },
        ToCoordinator::Build { fingerprint: 1 << 60 },
        ToCoordinator::Stop,
    ];
    let down = [
        ToMember::Welcome {
            run: 7,
            worker: 5,
            known: true,
            heartbeat: 500,
            charter: Some(vec![1, 2]),
            founders: 300,
        },
        ToMember::Refused { why: why() },
        ToMember::Ready { op: 300 },
        ToMember::Restore { donor: peer(), version },
        ToMember::HeartbeatAck,
        ToMember::StartRound { op: 300 },
        ToMember::Begin {
            epoch: 1 << 33,
            op: 300,
            members: Some(vec![peer()]),
            lost: lost(),
            attempt: Some(2),
        },
        ToMember::Ended { op: 300, end: End::Commit { lost: lost() } },
        ToMember::Ended { op: 300, end: End::Shrunk { lost: Vec::new() } },
        ToMember::Ended { op: 300, end: End::OutOfStep { calls: calls.map(|call| (9, call)).into() } },
        ToMember::ReportAck,
        ToMember::Charter { charter: vec![1, 2, 3], heartbeat: 500 },
        ToMember::Stop,
        ToMember::Over,
        ToMember::Joined { workers: 300 },
    ];
    let between =
        [Greeting::Transfer { run: 7, token: 1 << 41, attempt }, Greeting::Fetch { run: 7, version }];
    let header = |kind| Header { kind, attempt, start: 1 << 34, len: 1 << 20 }.encode().to_vec();
    let mut all: Vec<Vec<u8>> = up.iter().filter_map(|message| encode(message).ok()).collect();
    all.extend(down.iter().filter_map(|message| encode(message).ok()));
    all.extend(between.iter().filter_map(|message| encode(message).ok()));
    all.extend(encode(&Gift { memory: vec![1, 2], reports: 300, floats: 1 << 33 }).ok());
    all.extend([Kind::Message, Kind::Summand, Kind::Result].map(header));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::messages::decode;

    /// The names of an enum's variants, from its source.
    fn variants(source: &str, of: &str) -> Vec<String> {
        let start = source.find(&format!("pub enum {of} {{")).expect(of);
        let body = &source[start..start + source[start..].find("\n}").expect(of)];
        let names = body
            .lines()
            .filter_map(|line| line.strip_prefix("    "))
            .filter(|line| line.starts_with(|first: char| first.is_ascii_uppercase()));
        names.map(|line| line.chars().take_while(char::is_ascii_alphanumeric).collect()).collect()
    }

    /// Every message has an example: the first byte of an encoded message is the number of its variant.
    #[test]
    fn every_message_has_an_example() {
        let messages = include_str!("messages.rs");
        let (up, down) = (variants(messages, "ToCoordinator"), variants(messages, "ToMember"));
        let between = variants(include_str!("member/peer_listener.rs"), "Greeting");
        let whys = variants(include_str!("../lib.rs"), "Why");
        assert!(up.len() > 12 && down.len() > 9 && between.len() == 2 && whys.len() > 8, "{up:?} {down:?}");
        let all = examples();
        let has = |count: usize, from: usize, enough: usize| {
            let found: std::collections::BTreeSet<u8> =
                all[from..from + enough].iter().map(|it| it[0]).collect();
            assert_eq!(found, (0..count as u8).collect(), "a message has no example");
        };
        // One operation has two examples, and the end of an operation three.
        let (ups, downs) = (up.len() + 1, down.len() + 2);
        has(up.len(), 0, ups);
        has(down.len(), ups, downs);
        has(between.len(), ups + downs, between.len());
        // Every reason for a loss is in the example of a committed operation.
        let ToMember::Ended { end: End::Commit { lost }, .. } = decode(&all[ups + 7]).unwrap() else {
            panic!("another message");
        };
        assert_eq!(lost.len(), whys.len());
    }

    /// Whatever byte of whatever example changes, and whatever the plan, the fingerprint is another one.
    #[test]
    fn another_format_or_plan_is_another_fingerprint() {
        let (all, plan) = (examples(), golden_plan());
        assert!(plan != 0, "there is a plan");
        let ours = combine(&all, plan, SESSION_FORMATS);
        assert_eq!(ours, fingerprint());
        for n in 0..all.len() {
            for at in 0..all[n].len() {
                let mut other = all.clone();
                other[n][at] ^= 1;
                assert_ne!(combine(&other, plan, SESSION_FORMATS), ours, "example {n}, byte {at}");
            }
            let mut other = all.clone();
            other[n].push(0);
            assert_ne!(combine(&other, plan, SESSION_FORMATS), ours, "example {n} is longer");
        }
        assert_ne!(combine(&all, plan ^ 1, SESSION_FORMATS), ours);
        assert_ne!(combine(&all, plan, SESSION_FORMATS ^ 1), ours);
        let why = objection(ours ^ 1).unwrap();
        assert!(
            why.contains(&format!("{ours:016x}")) && why.contains(&format!("{:016x}", ours ^ 1)),
            "{why}"
        );
        assert_eq!(objection(ours), None);
    }
}
