//! Every order of messages, deaths, broken connections and passing time, to a depth: the real coordinator and three
//! real members, with two faults. Where the simulation draws schedules, this leaves none out.
//!
//! A state is explored once: those that continue alike have one [number](World::canonical). What must hold is checked
//! in each, and from a part of them the group must come back into rounds. `GRAWA_DEPTH=n cargo test -p grawa-comm
//! explor` goes deeper.

mod world;

use crate::group::simulate::Mutation;
use std::collections::HashSet;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use world::{Event, World, settings};

/// Events from the beginning to the end of a path.
const DEPTH: u32 = 6;
/// Faults, and ticks of the clock, on a path.
const FAULTS: u32 = 2;
const TICKS: u32 = 2;
/// Of so many states, one must come back into rounds.
const SETTLES: u64 = 16;

/// Where paths begin.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Beginning {
    /// Three founders have entered.
    Founders,
    /// Three members train, after their first round.
    Members,
    /// Two members train, and a third process starts.
    Joiner,
    /// The three are in the transfer of a gather.
    Gather,
    /// The three are in the transfer of a mix.
    Mix,
    /// Two members train, and a third process fetches their state.
    Restore,
}

/// Goes on by these events, the first of them at each step, until this holds.
fn drive(world: &mut World, is_there: impl Fn(&World) -> bool, may_be: impl Fn(&World, Event) -> bool) {
    for _ in 0..1000 {
        if is_there(world) {
            return;
        }
        let event = world.events().into_iter().find(|event| may_be(world, *event));
        world.apply(event.expect("an event that leads there"));
    }
    unreachable!("it never comes there");
}

fn begin(beginning: Beginning, mutation: Option<Mutation>, (faults, ticks): (u32, u32)) -> World {
    let has_two = matches!(beginning, Beginning::Joiner | Beginning::Restore);
    let founders = if has_two { 2 } else { 3 };
    let mut world = World::new(settings(founders), founders as usize);
    let may_begin = |world: &World| world.events().iter().all(|event| matches!(event, Event::Begin(_)));
    let is_there =
        |world: &World| may_begin(world) && (beginning == Beginning::Founders || world.has_held(1));
    // No node begins a round before the others have entered.
    drive(&mut world, is_there, |world, event| !matches!(event, Event::Begin(_)) || may_begin(world));
    if has_two {
        world.add_node();
    }
    match beginning {
        Beginning::Founders | Beginning::Members | Beginning::Joiner => {}
        Beginning::Gather => {
            let may_be = |_: &World, event| matches!(event, Event::Begin(_) | Event::Deliver(_));
            drive(&mut world, |world| world.all_transfer(false), may_be);
        }
        Beginning::Mix => {
            let may_be = |world: &World, event| match event {
                Event::Begin(_) | Event::Deliver(_) => true,
                Event::Finish(i) => world.gathers_at(i),
                _ => false,
            };
            drive(&mut world, |world| world.all_transfer(true), may_be);
        }
        Beginning::Restore => {
            let may_be = |_: &World, event| matches!(event, Event::Connect(2) | Event::Deliver(2));
            drive(&mut world, |world| world.restores(2), may_be);
        }
    }
    assert_eq!(world.broken, None);
    world.plant(mutation);
    world.with(faults, ticks)
}

/// What was found: how many states, and the path to the first that must not be.
#[derive(Debug, Default)]
struct Explored {
    states: usize,
    settled: usize,
    /// Steps by which a member used the result of a gather, and by which one ended a round.
    gathers: usize,
    rounds: usize,
    broken: Option<(String, Vec<Event>)>,
}

/// Explores to this depth, or until so many states are known.
fn explore(start: World, depth: u32, most: usize) -> Explored {
    let mut explored = Explored::default();
    let mut seen = HashSet::from([start.canonical()]);
    // How each state was reached: from which, and by what.
    let mut reached: Vec<(usize, Option<Event>)> = vec![(0, None)];
    let mut frontier = vec![(start, 0)];
    for events in 1..=depth {
        if frontier.is_empty() {
            break;
        }
        let mut next = Vec::new();
        for (world, at) in frontier {
            for event in world.events() {
                let mut after = world.clone();
                after.apply(event);
                let number = after.canonical();
                if seen.len() >= most {
                    return Explored { states: seen.len(), ..explored };
                }
                if !seen.insert(number) {
                    continue;
                }
                explored.gathers += usize::from(after.gathers > world.gathers);
                explored.rounds += usize::from(after.rounds > world.rounds);
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
                // Nothing follows the last.
                if events < depth {
                    next.push((after, here));
                }
            }
        }
        frontier = next;
    }
    Explored { states: seen.len(), ..explored }
}

fn depth() -> u32 {
    std::env::var("GRAWA_DEPTH").ok().map_or(DEPTH, |text| text.parse().expect("a number"))
}

const BEGINNINGS: [Beginning; 6] = [
    Beginning::Founders,
    Beginning::Members,
    Beginning::Joiner,
    Beginning::Gather,
    Beginning::Mix,
    Beginning::Restore,
];

/// Explores from several beginnings at once, and returns what was found from each in their order.
fn explore_all(starts: &[World], depth: u32, most: usize) -> Vec<Explored> {
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let next = AtomicUsize::new(0);
    let found = Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        let work = || {
            loop {
                let number = next.fetch_add(1, Ordering::Relaxed);
                let Some(start) = starts.get(number) else { return };
                let explored = explore(start.clone(), depth, most);
                found.lock().unwrap().push((number, explored));
            }
        };
        (0..cores).for_each(|_| drop(scope.spawn(work)));
    });
    let mut found = found.into_inner().unwrap();
    found.sort_by_key(|(number, _)| *number);
    found.into_iter().map(|(_, explored)| explored).collect()
}

/// To a depth, with all faults. What is never sent here: that all stop, and the two gathers that end a run.
#[test]
fn every_order_of_events_is_explored() {
    let depth = depth();
    let starts = BEGINNINGS.map(|beginning| begin(beginning, None, (FAULTS, TICKS)));
    let found = explore_all(&starts, depth, usize::MAX);
    for (beginning, found) in BEGINNINGS.into_iter().zip(&found) {
        println!(
            "{beginning:?}: {} states within {depth} events with up to {FAULTS} faults; {} came back into rounds; results of \
             gathers were used {} times, and {} times a round ended",
            found.states, found.settled, found.gathers, found.rounds
        );
        assert_eq!(found.broken, None, "from {beginning:?}");
        // An exploration of little would prove nothing.
        if depth >= DEPTH {
            assert!(
                found.states > LEAST && found.settled > LEAST / (2 * SETTLES as usize),
                "{beginning:?}: {found:?}"
            );
            let used = match beginning {
                Beginning::Gather => found.gathers,
                Beginning::Mix => found.rounds,
                _ => usize::MAX,
            };
            assert!(used >= 3, "from {beginning:?} no result was used: {found:?}");
        }
    }
}

/// A path of eight events, deeper than the usual exploration goes: a member inside a round gives up a coordinator that has died, and calls the next
/// operation before it hears where the one after it continues.
#[test]
fn who_calls_before_it_hears_of_another_coordinator_stays() {
    use world::Event::{Abandon, Connect, Crash, Die, Notice, Start, Tick};
    let mut world = begin(Beginning::Gather, None, (FAULTS, TICKS));
    for event in [Crash(0), Notice(0), Tick, Die, Abandon(1), Start, Connect(1)] {
        world.apply(event);
    }
    assert_eq!(world.settle(), Ok(()));
}

/// States within [`DEPTH`] events of each beginning: at least so many.
const LEAST: usize = 1000;

/// States within which each planted defect must show, with this many faults and ticks: the fewer there are, the longer
/// are the paths.
const ENOUGH: usize = 30_000;
const BUDGETS: [(u32, u32); 3] = [(1, 0), (1, 1), (2, 1)];

/// The same search finds nothing where nothing is planted.
#[test]
fn what_finds_every_defect_finds_none_without_one() {
    let tried: Vec<(Beginning, (u32, u32))> =
        BUDGETS.into_iter().flat_map(|budget| BEGINNINGS.map(|beginning| (beginning, budget))).collect();
    let starts: Vec<World> =
        tried.iter().map(|(beginning, budget)| begin(*beginning, None, *budget)).collect();
    let found = explore_all(&starts, u32::MAX, ENOUGH);
    for ((beginning, (faults, ticks)), found) in tried.iter().zip(&found) {
        println!("{beginning:?}, {faults} faults and {ticks} ticks: {found:?}");
        assert_eq!(found.broken, None, "from {beginning:?} with {faults} faults and {ticks} ticks");
    }
    let sum = |of: fn(&Explored) -> usize| found.iter().map(of).sum::<usize>();
    let (states, settled) = (sum(|it| it.states), sum(|it| it.settled));
    let (gathers, rounds) = (sum(|it| it.gathers), sum(|it| it.rounds));
    println!(
        "{states} states, {settled} came back into rounds; {gathers} results of gathers were used, {rounds} rounds ended"
    );
    assert!(states > 10 * ENOUGH && settled > 10_000, "{states} states, {settled} came back");
    assert!(gathers > 500 && rounds > 100, "{gathers} results of gathers were used, {rounds} rounds ended");
}

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
