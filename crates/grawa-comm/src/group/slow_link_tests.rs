//! An all-reduce on slow links sends the bytes of the protocol, and takes the time of these.
//!
//! Every member is reached through a relay of a fixed rate: a link of its own.

use super::Settings;
use super::coordinator::server::CoordinatorServer;
use super::member::join::Joiner;
use super::member::socket_member::SocketMember;
use super::transfer::TransferOptions;
use super::transfer::all_reduce::SHARD;
use super::transfer::header::HEADER;
use super::wire::tls::Security;
use crate::Collective;
use crate::shard::{shard, stripes};
use grawa_core::{Layout, Memory, Method, Report, plan};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How much a relay that wakes up late may catch up: the machine may be busy.
const LATE: Duration = Duration::from_millis(20);

/// Listens at another address of this machine, and forwards to the same port of the usual one. Returns the port.
fn relay(rate: f64) -> u16 {
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let free = Arc::new(Mutex::new(Instant::now()));
    std::thread::spawn(move || {
        for from in listener.incoming() {
            let (free, mut from) = (Arc::clone(&free), from.unwrap());
            std::thread::spawn(move || {
                let mut to = TcpStream::connect(("127.0.0.1", port)).unwrap();
                let mut buffer = vec![0; 1 << 14];
                while let Ok(n @ 1..) = from.read(&mut buffer) {
                    let until = {
                        let mut free = free.lock().unwrap();
                        let earliest = Instant::now().checked_sub(LATE).unwrap();
                        *free = (*free).max(earliest) + Duration::from_secs_f64(n as f64 / rate);
                        *free
                    };
                    std::thread::sleep(until.saturating_duration_since(Instant::now()));
                    if to.write_all(&buffer[..n]).is_err() {
                        return;
                    }
                }
            });
        }
    });
    port
}

/// The bytes that a member sent in a round, and the time of the shortest round. The first, which connects, does not count.
fn rounds(end: &mut SocketMember, method: &Method, floats: usize) -> (u64, f64) {
    let layout = Layout::flat(floats);
    let reports = |members: &[u32]| -> Vec<Report> {
        let report = |&worker: &u32| Report {
            worker,
            scores: vec![f64::from(1 + worker); method.scores(1)],
            finite: true,
            steps: 1,
        };
        members.iter().map(report).collect()
    };
    let mut mine = vec![end.id() as f32; floats];
    let (mut sent, mut shortest) = (0, f64::INFINITY);
    for round in 0..3 {
        end.barrier().unwrap();
        let plan = plan(method, &layout, &Memory::default(), &reports(end.members())).unwrap();
        let (began, before) = (Instant::now(), end.bytes());
        end.mix_and_pull(&plan, &layout, &mut mine).unwrap();
        if round > 0 {
            sent = end.bytes() - before;
            shortest = shortest.min(began.elapsed().as_secs_f64());
        }
    }
    (sent, shortest)
}

/// Bytes that every member sends and receives, by rank. Those that have weight send their summands, and all send results.
fn traffic(has_weight: &[bool], floats: usize) -> (Vec<u64>, Vec<u64>) {
    let members = has_weight.len();
    let (mut sent, mut received) = (vec![0; members], vec![0; members]);
    for stripe in stripes(floats, SHARD * members) {
        for (from, to) in (0..members).flat_map(|from| (0..members).map(move |to| (from, to))) {
            let summand = shard(&stripe, to, members).len() * usize::from(has_weight[from]);
            let result = shard(&stripe, from, members).len();
            for piece in [summand, result].into_iter().filter(|piece| *piece > 0 && from != to) {
                sent[from] += (HEADER + 8 + 4 * piece) as u64;
                received[to] += (HEADER + 8 + 4 * piece) as u64;
            }
        }
    }
    (sent, received)
}

/// The bytes that each member of a new group sent in a round, by number, and the seconds of the slowest.
fn measure(members: u32, floats: usize, method: &Method, rate: f64) -> (Vec<u64>, f64) {
    let settings = Settings { founders: members, ..Settings::default() };
    let host = CoordinatorServer::new("127.0.0.1:0", Security::Plain, settings, 7, Vec::new(), None).unwrap();
    let address = host.address().to_string();
    let one = || {
        let guest = std::iter::repeat_with(|| {
            let listen = format!("127.0.0.1:{}", relay(rate));
            Joiner::new(&address, Security::Plain, &listen, Some("127.0.0.2"), Duration::from_secs(60))
        });
        // The port may be taken at the usual address.
        let guest = guest.take(20).find_map(Result::ok).unwrap();
        let (mut ends, _) =
            guest.enter(Vec::new(), vec![0.0; floats], &[], TransferOptions::default()).unwrap();
        let mut end = ends.remove(0);
        (end.id(), rounds(&mut end, method, floats))
    };
    let mut found: Vec<_> = std::thread::scope(|scope| {
        let threads: Vec<_> = (0..members).map(|_| scope.spawn(one)).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    found.sort_by_key(|(worker, _)| *worker);
    let seconds = found.iter().map(|(_, (_, seconds))| *seconds).fold(0.0, f64::max);
    (found.iter().map(|(_, (bytes, _))| *bytes).collect(), seconds)
}

#[cfg(target_os = "linux")]
#[test]
fn slow_links_take_the_time_of_the_bytes() {
    let rate = 8e6;
    // One stripe and several; all have weight, or one leads.
    for (members, floats, method) in [(3, 1 << 20, "mean"), (4, 300_001, "mean"), (4, 1 << 20, "lsgd")] {
        let method: Method = method.parse().unwrap();
        let what = format!("{members} members, {floats} floats, {}", method.name);
        let adds: Vec<bool> =
            (0..members).map(|worker| method.name != grawa_core::Name::Lsgd || worker == 0).collect();
        let (bytes, received) = traffic(&adds, floats);
        // Relays limit what is received.
        let expected = *received.iter().max().unwrap() as f64 / rate;
        let is_in_time = |seconds: f64| seconds < 1.5 * expected + 0.5;
        // The machine may be busy, and the other tests of this program are: what takes longer than its bytes always does.
        let mut fastest = f64::INFINITY;
        for _ in 0..6 {
            let (sent, seconds) = measure(members, floats, &method, rate);
            assert_eq!(sent, bytes, "{what}");
            assert!(seconds > 0.9 * expected, "{what}: {seconds} s, where {expected} s are expected");
            fastest = fastest.min(seconds);
            if is_in_time(fastest) {
                break;
            }
        }
        println!("{what}: {fastest:.3} s of {expected:.3} s");
        assert!(is_in_time(fastest), "{what}: {fastest} s, where {expected} s are expected");
    }
}
