//! A transport of one's own: processes that are connected by channels. It passes the conformance suite, and a run trains across it. Replace
//! the channels by anything that moves bytes.
//!
//!     cargo run --release -p grawa-train --example 04_own_collective

use grawa_comm::{Collective, Error, Gathered, Outcome, Transport, conformance};
use grawa_core::{Layout, Plan, centre_part, finish_centre};
use grawa_train::recipe::Overrides;
use grawa_train::{Finished, Recipe, Run};
use std::ops::Range;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};

type Failure = Box<dyn std::error::Error + Send + Sync>;

/// What goes to a member, and what comes from it.
type Link = (Sender<Vec<u8>>, Receiver<Vec<u8>>);

/// One end of a group: what it sends to each member, and what it receives from each.
#[derive(Debug)]
pub struct Member {
    id: u32,
    members: Vec<u32>,
    links: Vec<Link>,
    centre: Arc<Vec<f32>>,
}

/// Connects these members, each with each.
fn connect(members: Range<u32>, centre: &[f32]) -> Vec<Member> {
    let mut ends: Vec<(Vec<Sender<_>>, Vec<Receiver<_>>)> =
        members.clone().map(|_| Default::default()).collect();
    for from in 0..members.len() {
        for to in 0..members.len() {
            let (sender, receiver) = channel();
            ends[from].0.push(sender);
            ends[to].1.push(receiver);
        }
    }
    let member = |(id, (senders, receivers)): (u32, (Vec<_>, Vec<_>))| Member {
        id,
        members: members.clone().collect(),
        links: senders.into_iter().zip(receivers).collect(),
        centre: Arc::new(centre.to_vec()),
    };
    members.clone().zip(ends).map(member).collect()
}

fn to_bytes(vector: &[f32]) -> Vec<u8> {
    vector.iter().flat_map(|x| x.to_le_bytes()).collect()
}

fn to_floats(bytes: &[u8]) -> Vec<f32> {
    bytes.as_chunks::<4>().0.iter().map(|x| f32::from_le_bytes(*x)).collect()
}

impl Collective for Member {
    fn id(&self) -> u32 {
        self.id
    }

    fn members(&self) -> &[u32] {
        &self.members
    }

    fn gather(&mut self, message: &[u8]) -> Result<Gathered, Error> {
        let gone = || Error::Connection { why: "a member has ended".into() };
        for (sender, _) in &self.links {
            sender.send(message.to_vec()).map_err(|_| gone())?;
        }
        let mut messages = Vec::new();
        for (id, (_, receiver)) in self.members.iter().zip(&self.links) {
            messages.push((*id, receiver.recv().map_err(|_| gone())?));
        }
        let (members, bytes) = (self.members.clone(), message.len() as u64);
        Ok(Gathered { messages, outcome: Outcome { members, bytes, ..Outcome::default() } })
    }

    fn mix(&mut self, plan: &Plan, layout: &Layout, mine: &[f32]) -> Result<Outcome, Error> {
        let Gathered { messages, outcome } = self.gather(&to_bytes(mine))?;
        let vectors: Vec<Vec<f32>> = messages.iter().map(|(_, bytes)| to_floats(bytes)).collect();
        let vectors: Vec<&[f32]> = vectors.iter().map(Vec::as_slice).collect();
        let mut centre = self.centre[..layout.len()].to_vec();
        centre_part(plan, layout, 0, &vectors, &mut centre)?;
        self.centre = Arc::new(finish_centre(plan, &self.centre, centre));
        Ok(outcome)
    }

    fn centre(&self) -> &Arc<Vec<f32>> {
        &self.centre
    }
}

/// The members of every group that one process asked for and the others have not taken yet, by the number of the call.
type Groups = Arc<Mutex<Vec<Vec<Member>>>>;

/// One process.
struct Process {
    rank: u32,
    size: u32,
    calls: Mutex<usize>,
    groups: Groups,
}

impl Transport for Process {
    fn rank(&self) -> u32 {
        self.rank
    }

    fn size(&self) -> u32 {
        self.size
    }

    fn group(&self, ranks: Range<u32>, centre: Vec<f32>) -> Result<Option<Box<dyn Collective>>, Error> {
        let poisoned = |_| Error::Connection { why: "another process panicked".into() };
        let mut calls = self.calls.lock().map_err(poisoned)?;
        let mut groups = self.groups.lock().map_err(|_| Error::NotInGroup)?;
        if groups.len() == *calls {
            groups.push(connect(ranks, &centre));
        }
        let group = &mut groups[*calls];
        *calls += 1;
        let own = group.iter().position(|member| member.id == self.rank);
        Ok(own.map(|own| Box::new(group.swap_remove(own)) as Box<dyn Collective>))
    }
}

/// Runs the conformance suite on a group of this many.
pub fn check(members: u32) -> Result<(), Failure> {
    std::thread::scope(|scope| {
        let members = connect(0..members, &[0.0; conformance::STATE]).into_iter();
        let ends: Vec<_> =
            members.map(|mut member| scope.spawn(move || conformance::check(&mut member))).collect();
        for end in ends {
            end.join().map_err(|_| "a member panicked")??;
        }
        Ok(())
    })
}

/// Trains the digits in two processes with two workers each. Returns how it ended.
pub fn learn() -> Result<Finished, Failure> {
    let groups = Groups::default();
    std::thread::scope(|scope| {
        let process = |rank| Process { rank, size: 2, calls: Mutex::default(), groups: Arc::clone(&groups) };
        let work = |process: Process| -> Result<Finished, Failure> {
            let overrides = Overrides::default()
                .method("lgrawa:period=8", "here")?
                .set("train.workers=4")?
                .set("train.budget=32step")?;
            let data = grawa_data::load("digits", ".".as_ref())?;
            let run = Run::in_process(Recipe::resolve(&overrides)?, &data, (process.rank, 2), 2)?;
            Ok(run.go_across(&process, &mut [])?)
        };
        let ends = [0, 1].map(|rank| {
            let process = process(rank);
            scope.spawn(move || work(process))
        });
        let [first, second] = ends.map(|end| end.join().map_err(|_| "a process panicked"));
        second??;
        first?
    })
}

fn main() -> Result<(), Failure> {
    check(4)?;
    let end = learn()?;
    println!("the collective conforms; {} rounds of {} workers", end.at.rounds, end.workers.len());
    Ok(())
}
