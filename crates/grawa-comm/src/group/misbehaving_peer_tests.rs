//! A peer that speaks the protocol to a real coordinator and does not follow it. The members continue, and it gains nothing.

use super::Settings;
use super::coordinator::server::{CoordinatorServer, ServerEvent, Traffic};
use super::environment::Environment;
use super::member::join::Joiner;
use super::messages::{Hello, LONGEST, StateVersion, ToCoordinator, ToMember, VERSION, decode, encode};
use super::transfer::TransferOptions;
use super::wire::connection::{Reader, Writer, dial};
use super::wire::frame::HEADER;
use super::wire::tls::{Security, new_key};
use crate::{Collective, Error};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const LONG: Duration = Duration::from_secs(60);

fn host(founders: u32, wire: &Security) -> CoordinatorServer {
    let settings = Settings { founders, ..Settings::default() };
    CoordinatorServer::new("127.0.0.1:0", wire.clone(), settings, 7, vec![0; 1000], None).unwrap()
}

fn tls() -> Security {
    let folder = tempfile::tempdir().unwrap();
    new_key(&folder.path().join("key")).unwrap();
    Security::with_key(&folder.path().join("key")).unwrap()
}

struct Outsider(Writer, Reader);

impl Outsider {
    fn new(host: &CoordinatorServer, wire: &Security, token: u64) -> Self {
        let (out, from) = dial(&Environment::System, &host.address().to_string(), wire).unwrap();
        let mut outsider = Outsider(out, from);
        let address = "127.0.0.1:9".into();
        outsider
            .say(&ToCoordinator::Hello(Hello { version: VERSION, run: 0, token, worker: None, address }))
            .unwrap();
        outsider.say(&ToCoordinator::Build { fingerprint: crate::group::fingerprint() }).unwrap();
        outsider
    }

    fn say(&mut self, up: &ToCoordinator) -> Result<(), Error> {
        let began = Instant::now();
        self.0.send(&encode(up).unwrap(), &|| began.elapsed() < LONG / 4)
    }

    /// The next message; none if the connection ended.
    fn hear(&mut self) -> Option<ToMember> {
        let began = Instant::now();
        let heard = self.1.receive(LONGEST, &|| began.elapsed() < LONG);
        assert!(began.elapsed() < LONG, "nothing arrives, and the connection does not end");
        heard.ok().flatten().map(|bytes| decode(&bytes).unwrap())
    }

    fn is_ended(&mut self) -> bool {
        while self.hear().is_some() {}
        true
    }
}

/// Meanwhile two members continue. They are not held up for long.
fn beside_two_members(host: &CoordinatorServer, wire: &Security, act: impl FnOnce()) {
    let (rounds, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    let work = || {
        let address = host.address().to_string();
        let guest = Joiner::new(&address, wire.clone(), "127.0.0.1:0", None, LONG).unwrap();
        let teller = guest.reporter();
        teller.report(b"begins".to_vec()).unwrap();
        let (mut ends, _) = guest.enter(vec![0], vec![0.0; 4], &[], TransferOptions::default()).unwrap();
        let mut last = Instant::now();
        loop {
            let over = is_over.load(Ordering::Relaxed);
            let found = ends[0].gather(&[over.into()]).unwrap();
            assert!(found.outcome.lost.is_empty(), "{:?}", found.outcome.lost);
            assert!(last.elapsed() < Duration::from_secs(5), "a round took {:?}", last.elapsed());
            last = Instant::now();
            rounds.fetch_add(1, Ordering::Relaxed);
            if found.messages.iter().any(|(_, message)| message == &[1]) {
                teller.report(b"ends".to_vec()).unwrap();
                return;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
    };
    let wait = |more: u64| {
        let (began, from) = (Instant::now(), rounds.load(Ordering::Relaxed));
        while rounds.load(Ordering::Relaxed) < from + more {
            assert!(began.elapsed() < LONG, "the members do not continue");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    std::thread::scope(|scope| {
        let members = [scope.spawn(work), scope.spawn(work)];
        wait(10);
        // A panic here must end the members, too.
        let done = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            act();
            wait(20);
        }));
        is_over.store(true, Ordering::Relaxed);
        members.into_iter().for_each(|member| member.join().unwrap());
        done.unwrap();
    });
}

/// All reports so far.
fn reports(host: &CoordinatorServer) -> Vec<Vec<u8>> {
    let told = std::iter::from_fn(|| host.next(Duration::from_millis(300)));
    told.filter_map(
        |told| if let ServerEvent::Report { report: what, .. } = told { Some(what) } else { None },
    )
    .collect()
}

#[test]
fn a_peer_that_takes_no_part_reports_nothing() {
    for wire in [Security::Plain, tls()] {
        let host = host(2, &wire);
        beside_two_members(&host, &wire, || {
            let mut outsider = Outsider::new(&host, &wire, wire.token().unwrap_or(1));
            outsider.say(&ToCoordinator::Report(b"the run is over".to_vec())).unwrap();
            outsider.say(&ToCoordinator::Enter(StateVersion { op: 0, digest: 1 })).unwrap();
            outsider.say(&ToCoordinator::Report(b"the run is over".to_vec())).unwrap();
            assert!(matches!(outsider.hear(), Some(ToMember::Welcome { .. })));
        });
        let found = reports(&host);
        // What members reported before they took part arrives once.
        let count = |what: &[u8]| found.iter().filter(|found| *found == what).count();
        assert_eq!((count(b"begins"), count(b"ends")), (2, 2), "{found:?}");
        assert_eq!(found.len(), 4, "{found:?}");
    }
}

/// Reports, heartbeats and long messages without end: its own connection ends, and little of it is kept.
#[test]
fn a_peer_that_sends_too_much_is_refused() {
    let floods: [fn(u64) -> ToCoordinator; 4] = [
        |_| ToCoordinator::Report(vec![7; 1 << 20]),
        |_| ToCoordinator::Report(Vec::new()),
        |number| ToCoordinator::Heartbeat { steps: number, progress: number, workers: 1 },
        // Longer than any honest one.
        |_| ToCoordinator::Failed { attempt: (0, 0, 0), peer: 0, why: "long ".repeat(1000) },
    ];
    for flood in floods {
        let host = host(2, &Security::Plain);
        beside_two_members(&host, &Security::Plain, || {
            let mut outsider = Outsider::new(&host, &Security::Plain, 1);
            let began = Instant::now();
            let sent = (0..).take_while(|number| {
                assert!(began.elapsed() < LONG, "{number} messages were taken");
                outsider.say(&flood(*number)).is_ok()
            });
            let sent = sent.count();
            assert!(outsider.is_ended());
            // What was on its way when it was refused does not count.
            let Traffic { control, reports, .. } = host.status().traffic;
            let (message, answer) = (flood(10_000), HEADER as u64 + 1);
            let size = (HEADER + encode(&message).unwrap().len()) as u64;
            let is_report = matches!(message, ToCoordinator::Report(_));
            let taken = if is_report { reports / size } else { control / (size + answer) };
            let most = (32 << 20) as f64 + (2 << 20) as f64 * began.elapsed().as_secs_f64();
            assert!(128.0 * (taken as f64) < 1.5 * most, "{taken} messages of {sent} were taken");
        });
        let found: usize = reports(&host).iter().map(Vec::len).sum();
        assert!(found < 100, "{found} bytes of an outsider's reports were passed on");
    }
}

/// With a key nobody can say hello as another: the token must be that of the certificate.
#[test]
fn a_certificate_has_one_token_and_one_place() {
    let wire = tls();
    let host = host(2, &wire);
    beside_two_members(&host, &wire, || {
        let own = wire.clone().with_new_certificate().unwrap();
        let token = own.token().unwrap();
        for token in [token ^ 1, wire.token().unwrap(), 1] {
            assert_eq!(Outsider::new(&host, &own, token).hear(), None, "it was accepted as another");
        }
        let mut first = Outsider::new(&host, &own, token);
        let Some(ToMember::Welcome { worker, .. }) = first.hear() else { panic!("it was not accepted") };
        let mut others: Vec<Outsider> = (0..5).map(|_| Outsider::new(&host, &own, token)).collect();
        for other in &mut others {
            let heard = other.hear();
            assert!(
                matches!(heard, Some(ToMember::Welcome { worker: same, .. }) if same == worker),
                "{heard:?}"
            );
        }
        assert!(first.is_ended(), "the first connection is replaced");
        let workers = host.status().workers;
        assert_eq!(workers.len(), 3, "{workers:?}");
    });
}

/// Another build is refused with a sentence that names both, and so is another version; one that names none gets no place.
#[test]
fn another_build_is_refused() {
    let ours = crate::group::fingerprint();
    let host = host(1, &Security::Plain);
    let greet = |version: u16, build: Option<u64>| {
        let address = host.address().to_string();
        let (out, from) = dial(&Environment::System, &address, &Security::Plain).unwrap();
        let mut peer = Outsider(out, from);
        let hello = Hello { version, run: 0, token: 5, worker: None, address: "127.0.0.1:9".into() };
        peer.say(&ToCoordinator::Hello(hello)).unwrap();
        if let Some(fingerprint) = build {
            peer.say(&ToCoordinator::Build { fingerprint }).unwrap();
        }
        peer.hear()
    };
    let Some(ToMember::Refused { why }) = greet(VERSION, Some(ours ^ 1)) else {
        panic!("it was not refused")
    };
    assert!(why.contains(&format!("{ours:016x}")) && why.contains(&format!("{:016x}", ours ^ 1)), "{why}");
    assert!(matches!(greet(VERSION - 1, None), Some(ToMember::Refused { why }) if why.contains("version")));
    assert_eq!(greet(VERSION, None), None);
    assert_eq!(host.status().workers.len(), 0);
    assert!(matches!(greet(VERSION, Some(ours)), Some(ToMember::Welcome { .. })));
}
