//! Those who lie to a real coordinator: they do not end the run, and do not fill its record.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use grawa_comm::group::fingerprint;
use grawa_comm::group::internals::frame::{self, Numbers};
use grawa_comm::group::internals::messages::{Hello, StateVersion, ToCoordinator, VERSION, encode};
use grawa_train::event_codec::Report;
use grawa_train::{Event, Finished, Place, Reason};
use group::relay::{HOST, Relay};
use group::{Group, Process, until};
use std::net::TcpStream;
use std::time::Duration;

const PLAIN: [&str; 2] = ["--wire", "plain"];
const ENDLESS: &str = "10000000step";

/// Longer than workers may take to leave when the run is over (5 s): a coordinator that believed it has ended by then.
const BELIEVED: Duration = Duration::from_secs(8);

fn over() -> ToCoordinator {
    // Reported rounds: what comes after others is held back for a while.
    let at = Place { steps: 10_000_000, rounds: 1, share: 1.0, ..Place::default() };
    let end = Finished { at, reason: Reason::Spent, workers: Vec::new(), bytes: 0, diverged: false };
    report(Event::Finished(end))
}

fn report(event: Event) -> ToCoordinator {
    ToCoordinator::Report(Report::Own { sender: 1, number: 1, event }.encode().unwrap())
}

/// A connection to the coordinator on which anything may be sent.
struct Liar(TcpStream, Numbers);

impl Liar {
    fn to(group: &Group) -> Self {
        let mut liar = Liar(TcpStream::connect(&group.address).unwrap(), Numbers::default());
        let address = "127.0.0.1:9".into();
        liar.say(&ToCoordinator::Hello(Hello { version: VERSION, run: 0, token: 1, worker: None, address }))
            .unwrap();
        liar.say(&ToCoordinator::Build { fingerprint: fingerprint() }).unwrap();
        liar
    }

    fn say(&mut self, up: &ToCoordinator) -> Result<(), grawa_comm::Error> {
        frame::write(&mut self.0, &mut self.1, &encode(up).unwrap())
    }
}

/// Neither a peer that has only sent its hello, nor one of two members, ends a run by reporting that it is over.
#[test]
fn nobody_ends_a_run_alone() {
    let mut group = Group::begin(2, ENDLESS, &PLAIN, &[]);
    let relay = Relay::to(&group.address);
    let _workers = [group.join(), Process::start(group.joining(&relay.address).args(["--host", HOST]))];
    group.wait_rounds(3);
    let mut liar = Liar::to(&group);
    liar.say(&over()).unwrap();
    liar.say(&ToCoordinator::Enter(StateVersion { op: 0, digest: 1 })).unwrap();
    liar.say(&over()).unwrap();
    *relay.faults.lie.lock().unwrap() = Some(over());
    until("the lie is sent", || relay.faults.lie.lock().unwrap().is_none());
    std::thread::sleep(BELIEVED);
    assert!(group.coordinator.0.try_wait().unwrap().is_none(), "the coordinator believed a liar");
    group.wait_rounds(5);
    let is_over = |(event, _): &(Event, f64)| matches!(event, Event::Finished(_));
    assert!(!group.events().iter().any(is_over), "{:?}", group.events().last());
}

/// A peer that sends a hello and reports without end: the connection ends, and the record holds nothing of it.
#[test]
fn a_flood_of_reports_is_not_recorded() {
    let group = Group::begin(1, ENDLESS, &PLAIN, &[]);
    let _worker = group.join();
    group.wait_rounds(3);
    let fault = grawa_train::Fault { at: Place::default(), worker: None, what: "flood ".repeat(100_000) };
    let report = report(Event::Fault(fault));
    let mut liar = Liar::to(&group);
    let sent = (0..1000).take_while(|_| liar.say(&report).is_ok()).count();
    assert!(sent < 1000, "{sent} reports of 600 kB were taken");
    group.wait_rounds(5);
    let faults = group.faults();
    assert!(!faults.iter().any(|fault| fault.contains("flood")), "{} faults", faults.len());
    assert!(faults.iter().any(|fault| fault.contains("sent more than a member may")), "{faults:#?}");
}
