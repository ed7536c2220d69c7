//! Checks that every transport must pass. Each member runs them in its own thread or process.
//!
//! Make a group of any number of members whose centre is [`STATE`] zeros, and let every member call [`check`]: it runs all
//! operations and compares the results with [`grawa_core::mix()`] on plain slices, bit for bit. Then [`check_loss`] checks what
//! the others see when a member leaves. A failure is described in a sentence.
//!
//! ```
//! use grawa_comm::{conformance, threads};
//! let members = threads::group(0..4, vec![0.0; conformance::STATE], std::time::Duration::from_secs(60));
//! std::thread::scope(|scope| {
//!     let ends: Vec<_> = (members.into_iter())
//!         .map(|mut member| scope.spawn(move || conformance::check(&mut member)))
//!         .collect();
//!     ends.into_iter().for_each(|end| assert_eq!(end.join().expect("no panic"), Ok(())));
//! });
//! ```

use crate::{Collective, Error, Outcome};
use grawa_core::{Key, Layout, Memory, Method, Plan, Purpose, Report, mix, plan, pull_part};
use std::sync::Arc;

/// The length of the vectors.
pub const LENGTH: usize = 1003;

/// The length of what the group keeps: the centre, and the velocity of an outer optimizer.
pub const STATE: usize = 2 * LENGTH;

/// Methods whose plans differ in kind: weights by worker, by span, one-hot, a centre that moves, pulls to the old centre,
/// gradients, an outer optimizer, a push.
const METHODS: [&str; 11] = [
    "mean:pull=1",
    "mgrawa",
    "lgrawa:pull=0.3",
    "lsgd",
    "easgd",
    "easgd:preset=reference",
    "dp-sgd",
    "mean:pull=0",
    "mean:pull=1,centre=outer",
    "lgrawa:centre=outer,momentum=0.5,nesterov=false,by_rate=true,by=steps",
    "mean:push=0.5",
];

fn layout() -> Result<Layout, grawa_core::Error> {
    Layout::new([("a", vec![500]), ("b", vec![3]), ("c", vec![LENGTH - 503])])
}

/// The vector of a worker at a step of the check. Every member can compute it.
fn vector(worker: u32, step: u64) -> Vec<f32> {
    let mut draws = Key::new(1, Purpose::Problem).worker(worker).step(step).stream();
    (0..LENGTH).map(|_| draws.normal() as f32).collect()
}

fn reports(method: &Method, layout: &Layout, members: &[u32], lost: Option<u32>) -> Vec<Report> {
    let scores = method.scores(layout.spans().len());
    let score = |worker: u32, span: usize| 1.0 + f64::from(worker) + 0.25 * span as f64;
    (members.iter())
        .map(|&worker| Report {
            worker,
            scores: (0..scores).map(|span| score(worker, span)).collect(),
            finite: Some(worker) != lost,
            steps: 4,
        })
        .collect()
}

/// Runs all operations. Every member of the group must call it at the same time.
pub fn check<C: Collective>(member: &mut C) -> Result<(), String> {
    messages(member).map_err(|why| format!("gather: {why}"))?;
    let outcome = member.barrier().map_err(|error| format!("barrier: {error}"))?;
    whole(&outcome, member).map_err(|why| format!("barrier: {why}"))?;
    // Of the last check, if there was one.
    let mut centre = member.centre().to_vec();
    for (step, text) in (0..).zip(METHODS) {
        mixing(member, text, step, &mut centre).map_err(|why| format!("mix of {text}: {why}"))?;
    }
    Ok(())
}

fn messages<C: Collective>(member: &mut C) -> Result<(), String> {
    for length in [0, 1, 1000] {
        // Lengths differ from member to member.
        let message = |worker: u32| vec![worker as u8; length + worker as usize % 3];
        let found = member.gather(&message(member.id())).map_err(|error| error.to_string())?;
        whole(&found.outcome, member)?;
        let expected: Vec<(u32, Vec<u8>)> =
            member.members().iter().map(|&worker| (worker, message(worker))).collect();
        ensure(found.messages == expected, || format!("{:?} is not in order or not whole", found.messages))?;
        let bytes = message(member.id()).len() as u64;
        ensure(found.outcome.bytes == bytes, || {
            format!("{} bytes counted, not {bytes}", found.outcome.bytes)
        })?;
        let handed = member.hand_in(message(member.id())).map_err(|error| error.to_string())?;
        let is_first = member.members().first() == Some(&member.id());
        let expected = if is_first { expected } else { Vec::new() };
        ensure(handed.messages == expected, || format!("handed in were {:?}", handed.messages))?;
    }
    Ok(())
}

fn mixing<C: Collective>(member: &mut C, text: &str, step: u64, centre: &mut Vec<f32>) -> Result<(), String> {
    let words = |error: grawa_core::Error| error.to_string();
    let (method, layout): (Method, Layout) = (text.parse().map_err(words)?, layout().map_err(words)?);
    let members = member.members().to_vec();
    // Once with all workers, once with one whose vector is not finite.
    for (step, lost) in
        [(2 * step, None), (2 * step + 1, members.last().copied().filter(|_| members.len() > 1))]
    {
        let reports = reports(&method, &layout, &members, lost);
        let plan: Plan = plan(&method, &layout, &Memory::default(), &reports).map_err(words)?;
        let start = |worker| match lost == Some(worker) {
            true => vec![f32::NAN; LENGTH],
            false => vector(worker, step),
        };
        let mut mine = start(member.id());
        let before = Arc::clone(member.centre());
        let outcome = member.mix(&plan, &layout, &mine).map_err(|error| error.to_string())?;
        whole(&outcome, member)?;
        ensure(outcome.bytes == 4 * LENGTH as u64, || format!("{} bytes counted", outcome.bytes))?;

        let mut vectors: Vec<Vec<f32>> = members.iter().map(|&worker| start(worker)).collect();
        let mut slices: Vec<&mut [f32]> = vectors.iter_mut().map(Vec::as_mut_slice).collect();
        mix(&plan, &layout, &mut slices, centre).map_err(words)?;
        let rank = members.iter().position(|&worker| worker == member.id()).unwrap_or(0);
        pull_part(&plan, rank, &mut mine, &before, member.centre());
        ensure(**member.centre() == *centre, || "the centre has other bits than the plain mix".into())?;
        ensure(mine == vectors[rank], || "a pull to it has other bits than the plain mix".into())?;
    }
    Ok(())
}

/// The last member leaves by `leave` (dropping it, ending its process, …). The others must learn who it was, continue without it,
/// and not have carried out a plan that it was part of.
pub fn check_loss<C: Collective>(mut member: C, leave: impl FnOnce(C)) -> Result<(), String> {
    let words = |error: grawa_core::Error| error.to_string();
    let members = member.members().to_vec();
    let Some((&last, rest)) = members.split_last().filter(|(_, rest)| !rest.is_empty()) else {
        return Err("a loss can be seen in a group of two or more only".into());
    };
    let (method, layout): (Method, Layout) = ("mean".parse().map_err(words)?, layout().map_err(words)?);
    let plan_of = |members: &[u32]| {
        plan(&method, &layout, &Memory::default(), &reports(&method, &layout, members, None)).map_err(words)
    };
    member.barrier().map_err(|error| error.to_string())?;
    if member.id() == last {
        leave(member);
        return Ok(());
    }
    let (mine, before) = (vector(member.id(), 0), Arc::clone(member.centre()));
    // The plan was made while the last member was still there.
    match member.mix(&plan_of(&members)?, &layout, &mine) {
        Err(Error::Shrunk { lost }) => {
            ensure(lost.len() == 1 && lost[0].worker == last, || {
                format!("{lost:?} instead of worker {last}")
            })?;
        }
        other => return Err(format!("a plan with a lost worker gave {other:?}")),
    }
    ensure(*member.centre() == before, || "a plan that was refused changed the centre".into())?;
    ensure(member.members() == rest, || format!("{:?} should be {rest:?}", member.members()))?;
    let outcome = member.mix(&plan_of(rest)?, &layout, &mine).map_err(|error| error.to_string())?;
    ensure(outcome.members == rest && outcome.lost.is_empty(), || format!("{outcome:?}"))
}

fn whole<C: Collective>(outcome: &Outcome, member: &C) -> Result<(), String> {
    ensure(outcome.members == member.members() && outcome.lost.is_empty(), || format!("{outcome:?}"))
}

fn ensure(holds: bool, why: impl FnOnce() -> String) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why()) }
}
