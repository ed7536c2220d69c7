//! The group on real sockets, coordinator and members in one process.

use super::Settings;
use super::coordinator::event::CoordinatorEvent;
use super::coordinator::server::{CoordinatorServer, ServerEvent};
use super::member::join::Joiner;
use super::member::socket_member::SocketMember;
use super::transfer::TransferOptions;
use super::wire::tls::{Security, new_key};
use crate::{Collective, Elastic, Error, conformance};
use grawa_core::{Layout, Memory, Method, Plan, Report, plan};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn settings(founders: u32) -> Settings {
    Settings { founders, ..Settings::default() }
}

fn host(founders: u32, wire: &Security) -> CoordinatorServer {
    CoordinatorServer::new("127.0.0.1:0", wire.clone(), settings(founders), 7, b"charter".to_vec(), None)
        .unwrap()
}

fn guest(host: &CoordinatorServer, wire: &Security) -> Joiner {
    Joiner::new(&host.address().to_string(), wire.clone(), "127.0.0.1:0", None, LONG).unwrap()
}

/// Runs a function for every one of so many participants, each in a thread of its own.
fn each<T: Send>(
    host: &CoordinatorServer,
    wire: &Security,
    workers: u32,
    len: usize,
    work: impl Fn(SocketMember) -> T + Sync,
) -> Vec<T> {
    each_travelling(host, wire, workers, len, TransferOptions::default(), work)
}

fn each_travelling<T: Send>(
    host: &CoordinatorServer,
    wire: &Security,
    workers: u32,
    len: usize,
    travel: TransferOptions,
    work: impl Fn(SocketMember) -> T + Sync,
) -> Vec<T> {
    std::thread::scope(|scope| {
        let work = &work;
        let one = move || {
            let guest = guest(host, wire);
            assert_eq!(guest.charter, b"charter");
            let (mut ends, memory) = guest.enter(b"start".to_vec(), vec![0.0; len], &[], travel).unwrap();
            assert_eq!(memory, None);
            let mut end = ends.remove(0);
            // The members are known from the first meeting on.
            end.barrier().unwrap();
            (end.id(), work(end))
        };
        let threads: Vec<_> = (0..workers).map(|_| scope.spawn(one)).collect();
        let mut found: Vec<_> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        found.sort_by_key(|(worker, _)| *worker);
        found.into_iter().map(|(_, found)| found).collect()
    })
}

fn tls() -> Security {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("key");
    new_key(&path).unwrap();
    assert!(new_key(&path).is_err(), "a key is never overwritten");
    Security::with_key(&path).unwrap()
}

#[test]
fn groups_conform() {
    for (workers, wire) in [(1, Security::Plain), (2, Security::Plain), (5, Security::Plain), (3, tls())] {
        let host = host(workers, &wire);
        let check = |mut end: SocketMember| conformance::check(&mut end);
        for found in each(&host, &wire, workers, conformance::STATE, check) {
            assert_eq!(found, Ok(()), "{workers} workers");
        }
    }
}

#[test]
fn who_leaves_is_named() {
    for workers in [2, 4] {
        let host = host(workers, &Security::Plain);
        let check = |end: SocketMember| conformance::check_loss(end, drop);
        for found in each(&host, &Security::Plain, workers, conformance::STATE, check) {
            assert_eq!(found, Ok(()));
        }
    }
}

/// An address that no coordinator can have is refused at once, however patient the worker is.
#[test]
fn an_address_without_a_port_is_refused_at_once() {
    for address in ["nonsense", "", "host:", ":7117", "host:0", "host:70000", "host:port", "192.0.2.1"] {
        let begun = Instant::now();
        let error = Joiner::new(address, Security::Plain, "127.0.0.1:0", None, LONG).unwrap_err().to_string();
        assert!(error.contains("expected HOST:PORT") && error.contains(&format!("'{address}'")), "{error}");
        assert!(begun.elapsed() < Duration::from_secs(10));
    }
}

#[test]
fn a_stranger_is_turned_away_and_does_no_harm() {
    let (ours, theirs) = (tls(), tls());
    let host = host(1, &ours);
    let address = host.address().to_string();
    let patience = Duration::from_secs(1);
    for (wire, expected) in [
        (theirs, "give the key of the run"),
        (Security::Plain, "the run has a key, most likely; give it with --key FILE"),
    ] {
        let error = Joiner::new(&address, wire, "127.0.0.1:0", None, patience).unwrap_err();
        assert!(error.to_string().contains(expected), "{error}");
    }
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let error = Joiner::new(&free, Security::Plain, "127.0.0.1:0", None, patience).unwrap_err().to_string();
    assert!(error.contains("no coordinator answers") && error.contains("refused"), "{error}");
    assert_eq!(error.matches("the connection failed").count(), 1, "{error}");
    let why = std::iter::from_fn(|| host.next(LONG)).find_map(|told| match told {
        ServerEvent::RejectedPeer { why, .. } => Some(why),
        _ => None,
    });
    assert!(why.is_some());
    assert_eq!(each(&host, &ours, 1, 4, |mut end| end.barrier().unwrap().members), [[0]]);
}

fn mean(members: &[u32], layout: &Layout) -> Plan {
    let method: Method = "mean:pull=1".parse().unwrap();
    let reports: Vec<Report> =
        members.iter().map(|&worker| Report { worker, scores: vec![], finite: true, steps: 1 }).collect();
    plan(&method, layout, &Memory::default(), &reports).unwrap()
}

/// A cycle as a worker does it: a meeting, a round, and what it stands at.
fn cycle(end: &mut SocketMember, layout: &Layout, mine: &mut [f32], number: u8) -> Result<Vec<u32>, Error> {
    let members = end.gather(&[number])?.outcome.members;
    loop {
        let here = end.members().to_vec();
        match end.mix_and_pull(&mean(&here, layout), layout, mine) {
            Ok(_) => break,
            Err(Error::Shrunk { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    end.publish(&[number])?;
    // Local steps.
    std::thread::sleep(Duration::from_millis(5));
    Ok(members)
}

/// A newcomer gets the centre and what is remembered with it from one who has them, and takes part from then on.
#[test]
fn a_newcomer_takes_over_what_the_others_hold() {
    let layout = Layout::flat(5000);
    let host = host(2, &Security::Plain);
    let host = &host;
    let (begin, begins) = std::sync::mpsc::channel::<()>();
    std::thread::scope(|scope| {
        let newcomer = scope.spawn(move || {
            begins.recv().unwrap();
            let (mut ends, memory) = guest(host, &Security::Plain)
                .enter(b"start".to_vec(), vec![0.0; 5000], &[], TransferOptions::default())
                .unwrap();
            assert!(memory.is_some_and(|memory| memory[0] >= 3));
            let mut end = ends.remove(0);
            assert_eq!(**end.centre(), [0.5; 5000]);
            let mut mine = vec![2.0; 5000];
            let members = loop {
                match cycle(&mut end, &layout, &mut mine, 99) {
                    Ok(members) => break members,
                    Err(Error::Behind) => drop(end.rejoin().unwrap()),
                    Err(error) => panic!("{error}"),
                }
            };
            assert_eq!((members, mine), (vec![0, 1, 2], vec![1.0; 5000]));
        });
        let found = each(host, &Security::Plain, 2, 5000, |mut end| {
            let layout = Layout::flat(5000);
            let mut mine = vec![end.id() as f32; 5000];
            end.publish(&[0]).unwrap();
            for number in 1.. {
                let members = cycle(&mut end, &layout, &mut mine, if number < 90 { number } else { 99 });
                if number == 3 {
                    let _ = begin.send(());
                }
                if members.as_ref().is_ok_and(|members| members.len() == 3) {
                    return members.unwrap();
                }
                assert!(members.is_ok(), "{members:?}");
                std::thread::sleep(Duration::from_millis(20));
                if number > 80 {
                    break;
                }
            }
            Vec::new()
        });
        newcomer.join().unwrap();
        assert_eq!(found, [[0, 1, 2], [0, 1, 2]]);
    });
}

/// A coordinator that dies in the middle is replaced, from its log, and everyone goes on.
#[test]
fn a_coordinator_may_die() {
    let folder = tempfile::tempdir().unwrap();
    let log = folder.path().join("log");
    let start = |address: &str| {
        let began = Instant::now();
        loop {
            match CoordinatorServer::new(
                address,
                Security::Plain,
                settings(3),
                7,
                b"charter".to_vec(),
                Some(&log),
            ) {
                Ok(host) => return host,
                // The port of the one before may still be closing.
                Err(_) if began.elapsed() < LONG => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => panic!("{error}"),
            }
        }
    };
    let first = start("127.0.0.1:0");
    let address = first.address().to_string();
    let rounds = std::sync::atomic::AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (address, rounds, start) = (&address, &rounds, &start);
        scope.spawn(move || {
            while rounds.load(std::sync::atomic::Ordering::Relaxed) < 9 {
                std::thread::sleep(Duration::from_millis(1));
            }
            drop(first);
            let second = start(address);
            while rounds.load(std::sync::atomic::Ordering::Relaxed) < 60 {
                std::thread::sleep(Duration::from_millis(10));
            }
            assert!(second.status().epoch >= 1 << 32);
        });
        let work = || {
            let layout = Layout::flat(100);
            let guest = Joiner::new(address, Security::Plain, "127.0.0.1:0", None, LONG).unwrap();
            let (mut ends, _) =
                guest.enter(vec![0], vec![0.0; 100], &[], TransferOptions::default()).unwrap();
            let mut end = ends.remove(0);
            let mut mine = vec![end.id() as f32; 100];
            let mut number = 0;
            while number < 20 {
                match cycle(&mut end, &layout, &mut mine, number + 1) {
                    Ok(_) => {
                        number += 1;
                        rounds.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                    }
                    Err(Error::Behind) => number = end.rejoin().unwrap()[0],
                    Err(Error::OutOfContact) => std::thread::sleep(Duration::from_millis(10)),
                    Err(error) => panic!("{error}"),
                }
            }
            mine
        };
        let threads: Vec<_> = (0..3).map(|_| scope.spawn(work)).collect();
        let found: Vec<Vec<f32>> = threads.into_iter().map(|thread| thread.join().unwrap()).collect();
        assert!(found.iter().all(|vector| *vector == found[0]));
        rounds.store(1000, std::sync::atomic::Ordering::Relaxed);
    });
}

/// What workers hold after a few rounds on their way, against the same on plain slices: every round pulls toward the centre of
/// the round before.
#[test]
fn vectors_travel_while_workers_go_on() {
    let (len, rounds, layout) = (3000, 5, Layout::flat(3000));
    let method: Method = "mgrawa:pull=0.5,score_momentum=0".parse().unwrap();
    let reports = |members: &[u32], round: u32| -> Vec<Report> {
        let score = |worker: u32| f64::from(1 + (worker + round) % 3);
        let report = |&worker| Report { worker, scores: vec![score(worker)], finite: true, steps: 1 };
        members.iter().map(report).collect()
    };
    let plan_of = |members: &[u32], round| {
        plan(&method, &layout, &Memory::default(), &reports(members, round)).unwrap()
    };
    let step = |x: &mut [f32], worker: u32, round: u32| {
        (0..).zip(x).for_each(|(n, x)| *x += (n as f32 * 0.01 + worker as f32 + round as f32).sin());
    };

    let mut workers = [(); 3].map(|()| vec![0.0f32; len]);
    let (mut centre, mut expected) = (vec![0.0f32; len], Vec::new());
    for round in 0..rounds {
        (0..).zip(&mut workers).for_each(|(worker, x)| step(x, worker, round));
        let plan = plan_of(&[0, 1, 2], round);
        let mut next = vec![0.0; len];
        let summands: Vec<&[f32]> = workers.iter().map(|x| &x[..]).collect();
        grawa_core::centre_part(&plan, &layout, 0, &summands, &mut next).unwrap();
        (0..).zip(&mut workers).for_each(|(seat, x)| grawa_core::pull_part(&plan, seat, x, &centre, &centre));
        centre = next;
        expected.push((workers.clone(), centre.clone()));
    }

    let host = host(3, &Security::Plain);
    let travel = TransferOptions { overlap: true, bf16: false };
    let found = each_travelling(&host, &Security::Plain, 3, len, travel, |mut end| {
        let (me, mut mine) = (end.id(), vec![0.0; len]);
        for round in 0..rounds {
            step(&mut mine, me, round);
            let members = end.gather(&[round as u8]).unwrap().outcome.members;
            if round > 0 {
                assert_eq!(**end.centre(), expected[round as usize - 1].1, "the centre of the round before");
            }
            end.mix_and_pull(&plan_of(&members, round), &layout, &mut mine).unwrap();
            assert_eq!(mine, expected[round as usize].0[me as usize], "worker {me}, round {round}");
            end.publish(&[round as u8]).unwrap();
        }
        end.barrier().unwrap();
        end.centre().to_vec()
    });
    found.into_iter().for_each(|found| assert_eq!(found, centre));
}

/// Vectors of half their length: everyone holds the same bits, near those of whole ones, and what one round rounds off the next
/// makes good.
#[test]
fn halves_give_the_same_bits_to_all_and_are_close() {
    let (len, layout) = (40_000, Layout::flat(40_000));
    let host = host(3, &Security::Plain);
    let travel = TransferOptions { overlap: false, bf16: true };
    let far = |n: usize, worker: u32| 1000.0 + (n as f32 * 0.37 + worker as f32).sin();
    let found = each_travelling(&host, &Security::Plain, 3, len, travel, |mut end| {
        let mut mine: Vec<f32> = (0..len).map(|n| far(n, end.id())).collect();
        let start = mine.clone();
        let mut centres = Vec::new();
        for round in 0..4 {
            let here = end.gather(&[]).unwrap().outcome.members;
            mine.copy_from_slice(&start);
            // The first is near the centre of zeros, to which there are no differences.
            (0..len).filter(|_| round == 0).for_each(|n| mine[n] = far(n, end.id() + 7) - 1000.0);
            end.mix_and_pull(&mean(&here, &layout), &layout, &mut mine).unwrap();
            assert_eq!(mine, **end.centre());
            centres.push(end.centre().to_vec());
        }
        assert!(end.bytes() < 4 * 4 * len as u64, "{} bytes for four rounds", end.bytes());
        centres
    });
    assert!(found.iter().all(|other| *other == found[0]));
    let off = |centre: &[f32]| {
        let exact = |n| (far(n, 0) + far(n, 1) + far(n, 2)) / 3.0;
        (0..).zip(centre).map(|(n, x)| (x - exact(n)).abs()).fold(0.0f32, f32::max)
    };
    let offs: Vec<f32> = found[0][1..].iter().map(|centre| off(centre)).collect();
    // The first is a difference of 1000 to a centre near zero; later ones are of what the first one missed.
    assert!(offs[0] > 0.1 && offs[0] < 4.0 && offs[1] < 0.02 && offs[2] < 0.01, "{offs:?}");
}

/// The same until it comes to something, on a machine that may be busy.
fn persist(end: &mut SocketMember, layout: &Layout, mine: &mut [f32]) -> Vec<u32> {
    loop {
        match cycle(end, layout, mine, 0) {
            Ok(members) => return members,
            Err(Error::Behind) => drop(end.rejoin().unwrap()),
            Err(Error::OutOfContact) => std::thread::sleep(Duration::from_millis(10)),
            Err(error) => panic!("{error}"),
        }
    }
}

/// Workers that come and go leave no connections behind: a run of days would run out of them.
#[test]
fn who_is_gone_is_let_go() {
    let layout = Layout::flat(64);
    let host = host(2, &Security::Plain);
    let (host, layout) = (&host, &layout);
    let guests = std::sync::atomic::AtomicU32::new(0);
    let guests = &guests;
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // The founders come first.
            while host.status().op == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            for number in 1..=4 {
                let (mut ends, _) = guest(host, &Security::Plain)
                    .enter(vec![0], vec![0.0; 64], &[], TransferOptions::default())
                    .unwrap();
                let (mut end, mut mine) = (ends.remove(0), vec![2.0; 64]);
                (0..3).for_each(|_| drop(persist(&mut end, layout, &mut mine)));
                drop((end, ends));
                guests.store(number, std::sync::atomic::Ordering::Relaxed);
            }
        });
        let found = each(host, &Security::Plain, 2, 64, |mut end| {
            let mut mine = vec![end.id() as f32; 64];
            end.publish(&[0]).unwrap();
            let mut after = 0;
            // A few rounds after the last one has left.
            while after < 3 {
                let members = persist(&mut end, layout, &mut mine);
                let all_gone = guests.load(std::sync::atomic::Ordering::Relaxed) == 4 && members.len() <= 2;
                after += u32::from(all_gone);
            }
            end.connections()
        });
        // At most one to the other and one from it; if that one has ended before, none.
        assert!(found.iter().all(|&connections| connections <= 2), "{found:?}");
    });
}

/// What was reported before the first round is passed on at the first round, however long that takes, and whether the coordinator
/// was replaced meanwhile or not.
#[test]
fn what_waits_for_the_first_round_is_not_lost() {
    let first = host(2, &Security::Plain);
    let address = first.address().to_string();
    std::thread::scope(|scope| {
        let address = &address;
        let work = move || {
            let guest = Joiner::new(address, Security::Plain, "127.0.0.1:0", None, LONG).unwrap();
            guest.reporter().report(b"begins".to_vec()).unwrap();
            let (mut ends, _) = guest.enter(vec![0], vec![0.0; 4], &[], TransferOptions::default()).unwrap();
            while let Err(error) = ends[0].barrier() {
                match error {
                    Error::OutOfContact => std::thread::sleep(Duration::from_millis(10)),
                    // The other worker may have got its number from the second coordinator.
                    Error::Behind => drop(ends[0].rejoin().unwrap()),
                    error => panic!("{error}"),
                }
            }
        };
        let early = scope.spawn(work);
        // Longer ago than what is reported again although it was answered.
        std::thread::sleep(Duration::from_millis(1500));
        let reports = |host: &CoordinatorServer| {
            let told = std::iter::from_fn(|| host.next(Duration::from_millis(300)));
            told.filter(|told| matches!(told, ServerEvent::Report { report: what, .. } if what == b"begins"))
                .count()
        };
        assert_eq!(reports(&first), 0);
        drop(first);
        let began = Instant::now();
        let second = loop {
            match CoordinatorServer::new(address, Security::Plain, settings(2), 7, b"charter".to_vec(), None)
            {
                Ok(host) => break host,
                // The port of the one before may still be closing.
                Err(_) if began.elapsed() < LONG => std::thread::sleep(Duration::from_millis(20)),
                Err(error) => panic!("{error}"),
            }
        };
        let late = scope.spawn(work);
        early.join().unwrap();
        late.join().unwrap();
        assert_eq!(reports(&second), 2);
    });
}

/// A member whose message the others cannot read is dropped, named, and in the end refused; they continue.
#[test]
fn who_cannot_be_read_does_not_end_the_others() {
    let host = host(3, &Security::Plain);
    let check = |_, bytes: &[u8]| match bytes {
        b"good" => Ok(()),
        other => Err(format!("{} bytes cannot be read", other.len())),
    };
    let work = |mut end: SocketMember| {
        if end.id() == 1 {
            return end.gather(&[7; 100]).map(|gathered| gathered.outcome.members);
        }
        end.gather_readable(b"good", &check).map(|gathered| gathered.outcome.members)
    };
    let found = each(&host, &Security::Plain, 3, 4, work);
    let good = found.iter().filter(|found| **found == Ok(vec![0, 2])).count();
    assert_eq!(good, 2, "{found:?}");
    let told = std::iter::from_fn(|| host.next(LONG)).find_map(|told| match told {
        ServerEvent::Decision(CoordinatorEvent::Unreadable { worker, why }) => Some((worker, why)),
        _ => None,
    });
    assert!(matches!(&told, Some((1, why)) if why.contains("100 bytes cannot be read")), "{told:?}");
}
