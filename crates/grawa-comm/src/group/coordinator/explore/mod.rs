//! Every order of messages, deaths, broken connections and passing time, to a depth: the real coordinator and three
//! real members, with two faults. Where the simulation draws schedules, this leaves none out.
//!
//! A state is explored once: those that continue alike have one [number](World::canonical). What must hold is checked
//! in each, and from a part of them the group must come back into rounds. `GRAWA_DEPTH=n cargo test -p grawa-comm
//! explor` goes deeper.

mod world;

use crate::group::simulate::Mutation;
use std::collections::HashSet;
use world::{Event, World, settings};

/// Events from the beginning to the end of a path.
const DEPTH: u32 = 6;
/// Faults, and ticks of the clock, on a path.
const FAULTS: u32 = 2;
const TICKS: u32 = 2;
/// Of so many states, one must come back into rounds.
const SETTLES: u64 = 16;

/// Where paths begin.
#[derive(Clone, Copy, Debug)]
enum Beginning {
    /// Three founders have entered.
    Founders,
    /// Three members train, after their first round.
    Members,
    /// Two members train, and a third process starts.
    Joiner,
}

fn begin(beginning: Beginning, mutation: Option<Mutation>, (faults, ticks): (u32, u32)) -> World {
    let founders = if matches!(beginning, Beginning::Joiner) { 2 } else { 3 };
    let mut world = World::new(settings(founders), founders as usize);
    let is_there = |world: &World| match beginning {
        Beginning::Founders => world.events().iter().all(|event| matches!(event, Event::Begin(_))),
        Beginning::Members | Beginning::Joiner => {
            world.has_held(1) && world.events().iter().all(|event| matches!(event, Event::Begin(_)))
        }
    };
    while !is_there(&world) {
        // The last event first: no node begins a round before the others have entered.
        let event = world.events().into_iter().min_by_key(|event| matches!(event, Event::Begin(_)));
        event.into_iter().for_each(|event| world.apply(event));
    }
    assert_eq!(world.broken, None);
    if let Beginning::Joiner = beginning {
        world.add_node();
    }
    world.plant(mutation);
    world.with(faults, ticks)
}

/// What was found: how many states, and the path to the first that must not be.
#[derive(Debug, Default)]
struct Explored {
    states: usize,
    settled: usize,
    broken: Option<(String, Vec<Event>)>,
}

/// Explores to this depth, or until so many states are known.
fn explore(start: World, depth: u32, most: usize) -> Explored {
    let mut explored = Explored::default();
    let mut seen = HashSet::from([start.canonical()]);
    // How each state was reached: from which, and by what.
    let mut reached: Vec<(usize, Option<Event>)> = vec![(0, None)];
    let mut frontier = vec![(start, 0)];
    for _ in 0..depth {
        if frontier.is_empty() {
            break;
        }
        let mut next = Vec::new();
        for (world, at) in frontier {
            for event in world.events() {
                let mut after = world.clone();
                after.apply(event);
                let number = after.canonical();
                if seen.len() >= most || !seen.insert(number) {
                    continue;
                }
                reached.push((at, Some(event)));
                let here = reached.len() - 1;
                let mut broken = after.broken.clone();
                if broken.is_none() && number % SETTLES == 0 {
                    explored.settled += 1;
                    broken = after.clone().settle().err();
                }
                if let Some(why) = broken {
                    let mut path: Vec<Event> = Vec::new();
                    let mut state = here;
                    while let (before, Some(event)) = reached[state] {
                        path.push(event);
                        state = before;
                    }
                    path.reverse();
                    explored.states = seen.len();
                    return Explored { broken: Some((why, path)), ..explored };
                }
                next.push((after, here));
            }
        }
        frontier = next;
    }
    Explored { states: seen.len(), ..explored }
}

fn depth() -> u32 {
    std::env::var("GRAWA_DEPTH").ok().map_or(DEPTH, |text| text.parse().expect("a number"))
}

const BEGINNINGS: [Beginning; 3] = [Beginning::Founders, Beginning::Members, Beginning::Joiner];

#[test]
fn every_order_of_events_is_explored() {
    let depth = depth();
    for beginning in BEGINNINGS {
        let found = explore(begin(beginning, None, (FAULTS, TICKS)), depth, usize::MAX);
        println!(
            "{beginning:?}: {} states within {depth} events with up to {FAULTS} faults; {} came back into rounds",
            found.states, found.settled
        );
        assert_eq!(found.broken, None);
    }
}

/// States within which each planted defect must show, with this many faults and ticks: the fewer there are, the longer
/// are the paths.
const ENOUGH: usize = 30_000;
const BUDGETS: [(u32, u32); 3] = [(1, 0), (1, 1), (2, 1)];

#[test]
fn every_defect_is_explored() {
    let mut missed = Vec::new();
    for (defect, _) in Mutation::FOUND_BY.into_iter().filter(|(_, [_, is_explored])| *is_explored) {
        let worlds = BUDGETS.into_iter().flat_map(|budget| BEGINNINGS.map(|beginning| (beginning, budget)));
        let found = worlds.into_iter().find_map(|(beginning, budget)| {
            let explored = explore(begin(beginning, Some(defect), budget), u32::MAX, ENOUGH);
            explored.broken.map(|broken| (beginning, budget, explored.states, broken))
        });
        println!("{defect:?}: {found:?}");
        missed.extend(found.is_none().then_some(defect));
    }
    assert!(missed.is_empty(), "{missed:?} were not found");
}
