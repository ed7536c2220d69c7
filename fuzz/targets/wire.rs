//! Every decoder of what other machines send: frames, messages of both sides, greetings, states of donors, headers of pieces and of
//! parts, messages of workers, reports, the lengths of TLS records, the coordinator's journal. The charter is a recipe, and has
//! its own target. rustls and ring decrypt what is encrypted.
#![no_main]

use grawa_comm::group::internals::all_gather::{HEADER, Header, Kind};
use grawa_comm::group::internals::messages::{
    Call, End, Entry, Hello, Peer, Proposal, Record, StateVersion, ToCoordinator, ToMember, VERSION, decode, encode,
};
use grawa_comm::group::internals::{Gift, Greeting, all_gather, frame, journal, whole_record};
use grawa_comm::{Lost, Why};
use grawa_session::elastic::{self, Remembered};
use grawa_session::event_codec::Report;
use grawa_session::event_codec::examples::examples;
use grawa_session::reporter::SharedReports;
use grawa_session::round_message::{self, ProcessMessage, RoundMessage};
use grawa_session::snapshot::GroupCheckpoint;
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::io::Read;
use std::time::Duration;

/// What is decoded is encoded and decoded the same.
fn both_ways<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(found) = decode::<T>(bytes) {
        assert_eq!(decode::<T>(&encode(&found).unwrap()).unwrap(), found);
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let mut numbers = frame::Numbers::default();
    let mut stream = bytes;
    while let Ok(Some(body)) = frame::read(|buffer| stream.read(buffer), &mut numbers, 1 << 16) {
        assert!(body.len() <= bytes.len());
        let _ = decode::<ToCoordinator>(&body);
    }
    let content = journal::content(bytes);
    assert!(content.good <= bytes.len() && content.entries.len() <= bytes.len() / frame::HEADER);
    both_ways::<ToCoordinator>(bytes);
    both_ways::<ToMember>(bytes);
    both_ways::<Greeting>(bytes);
    if let Ok(entry) = Entry::decode(bytes) {
        assert_eq!(Entry::decode(&entry.encode().unwrap()).unwrap(), entry);
    }
    both_ways::<Option<Gift>>(bytes);
    let _ = SharedReports::of(bytes);
    if let Some(head) = bytes.first_chunk::<HEADER>()
        && let Ok(head) = Header::decode(head)
    {
        assert_eq!(Header::decode(&head.encode()).unwrap(), head);
    }
    receive_message(bytes);
    tls_records(bytes);
    read_as_worker(bytes);
});

/// TLS records, a few bytes at a time. Nothing is lost, and nothing beyond a record is read.
fn tls_records(bytes: &[u8]) {
    let (mut rest, mut taken) = (bytes, 0);
    let mut record = frame::Partial::default();
    while let Ok(true) = record.read(whole_record, |buffer| {
        let few = buffer.len().min(7);
        rest.read(&mut buffer[..few])
    }) {
        let len = usize::from(u16::from_be_bytes([record.bytes[3], record.bytes[4]]));
        assert_eq!(record.bytes.len(), 5 + len);
        assert_eq!(record.bytes, bytes[taken..taken + 5 + len]);
        taken += record.bytes.len();
        record.bytes.clear();
    }
}

/// Headers, each with the part it announces. Memory for no more than one part beyond what arrived is used.
fn receive_message(mut bytes: &[u8]) {
    let (mut coming, mut came) = (all_gather::PartialMessage::default(), 0);
    while let Some((head, rest)) = bytes.split_first_chunk::<HEADER>() {
        let Ok(room) = coming.room((1, 2, 1), head) else { return };
        came += room.len();
        assert!(room.len() <= all_gather::PART && came <= all_gather::LONGEST);
        let Some((part, rest)) = rest.split_at_checked(room.len()) else { return };
        room.copy_from_slice(part);
        bytes = rest;
    }
}

/// One of everything, to begin with.
fn seeds() {
    let Some(folder) = std::env::var_os("SEEDS") else { return };
    let folder = std::path::Path::new(&folder);
    let keep = |name: &str, bytes: Vec<u8>| std::fs::write(folder.join(name), bytes).unwrap();
    let stand = StateVersion { op: 7, digest: u64::MAX };
    let peer = Peer { worker: 3, token: 9, address: "[::1]:4000".into() };
    let lost = vec![
        Lost { worker: 1, why: Why::Disconnected },
        Lost { worker: 2, why: Why::Late { after: Duration::from_millis(2500) } },
    ];
    let proposal = Proposal { charter: b"{}".to_vec(), trigger: Some(8), wait: Some(500) };
    let mix = Call::Mix { plan: 5, centre: 1 };
    let ups = [
        ToCoordinator::Hello(Hello { version: VERSION, run: 7, token: 9, worker: Some(3), address: "10.0.0.1:4000".into() }),
        ToCoordinator::Enter(stand),
        ToCoordinator::Holds(stand),
        ToCoordinator::Arrive { op: 2, call: mix, steps: 4, known_epoch: 1 },
        ToCoordinator::Arrive { op: 2, call: Call::Gather, steps: 0, known_epoch: 0 },
        ToCoordinator::Done { attempt: (1, 2, 1), digest: 77 },
        ToCoordinator::Failed { attempt: (1, 2, 1), peer: 2, why: "gone".into() },
        ToCoordinator::NotRestored { donor: 1 },
        ToCoordinator::Heartbeat { steps: 300, progress: 70_000, workers: 2 },
        ToCoordinator::Report(b"{}".to_vec()),
        ToCoordinator::Leave,
        ToCoordinator::Propose(proposal.clone()),
        ToCoordinator::Unreadable { attempt: (1, 2, 1), peer: 2, why: "short".into() },
        ToCoordinator::Build { fingerprint: 5 },
        ToCoordinator::Stop,
    ];
    let downs = [
        ToMember::Welcome { run: 7, worker: 1, known: true, heartbeat: 500, charter: Some(b"[data]".to_vec()), founders: 4 },
        ToMember::Charter { charter: b"{}".to_vec(), heartbeat: 100 },
        ToMember::Refused { why: "no".into() },
        ToMember::Ready { op: 7 },
        ToMember::Restore { donor: peer.clone(), version: stand },
        ToMember::HeartbeatAck,
        ToMember::ReportAck,
        ToMember::StartRound { op: 7 },
        ToMember::Begin {
            epoch: 1,
            op: 2,
            members: Some(vec![peer.clone(), peer]),
            lost: lost.clone(),
            attempt: Some(1),
        },
        ToMember::Ended { op: 1, end: End::Shrunk { lost: lost.clone() } },
        ToMember::Ended { op: 1, end: End::Commit { lost } },
        ToMember::Ended { op: 1, end: End::OutOfStep { calls: vec![(0, mix), (1, Call::Gather)] } },
        ToMember::Stop,
        ToMember::Over,
        ToMember::Joined { workers: 3 },
    ];
    let (mut framed, mut numbers) = (Vec::new(), frame::Numbers::default());
    for (number, up) in ups.iter().enumerate() {
        keep(&format!("up-{number}"), encode(up).unwrap());
        frame::write(&mut framed, &mut numbers, &encode(up).unwrap()).unwrap();
    }
    keep("frames", framed);
    for (number, down) in downs.iter().enumerate() {
        keep(&format!("down-{number}"), encode(down).unwrap());
    }
    keep("pieces", encode(&Greeting::Transfer { run: 7, token: 9, attempt: (1, 2, 1) }).unwrap());
    keep("asks", encode(&Greeting::Fetch { run: 7, version: stand }).unwrap());
    keep("gift", encode(&Some(Gift { memory: vec![1, 2, 3], reports: 9, floats: 40 })).unwrap());
    let head = Header { kind: Kind::Result, attempt: (1, 2, 1), start: 64, len: 16 };
    keep("head", head.encode().into());
    let part = Header { kind: Kind::Message, attempt: (1, 2, 1), start: 0, len: 5 };
    keep("word", [&part.encode()[..], b"hello"].concat());
    // A journal in its old form, and in the present one.
    let (mut log, mut numbers) = (Vec::new(), frame::Numbers::default());
    let mut entries = journal::MAGIC.to_vec();
    for op in 0..3 {
        let record = Record { run: 7, epoch: op, version: StateVersion { op, ..stand }, members: 3, tokens: vec![op] };
        keep("record", encode(&record).unwrap());
        frame::write(&mut log, &mut numbers, &encode(&record).unwrap()).unwrap();
        journal::write(&mut entries, op as u32, &Entry::Committed(record).encode().unwrap());
    }
    let adopted = Entry::Adopted { run: 7, proposal }.encode().unwrap();
    frame::write(&mut log, &mut numbers, &adopted).unwrap();
    keep("adopted", adopted);
    keep("log", log);
    keep("entries", entries);
    for (number, bytes) in sent_by_workers().into_iter().enumerate() {
        keep(&format!("said-{number}"), bytes);
    }
}

/// Reads bytes as everything that a worker or a coordinator receives from another worker.
fn read_as_worker(bytes: &[u8]) {
    if let Ok(message) = round_message::decode::<ProcessMessage>(0, bytes) {
        let written = round_message::encode(&message).expect("what was read can be written");
        // Scores may be no numbers: the bytes are compared.
        let again: ProcessMessage = round_message::decode(0, &written).expect("what was written can be read");
        assert_eq!(round_message::encode(&again).expect("what was read can be written"), written);
    }
    if let Ok(numbers) = round_message::decode::<Vec<(u32, Vec<f64>)>>(0, bytes) {
        round_message::encode(&numbers).expect("what was read can be written");
    }
    let _ = round_message::decode::<(GroupCheckpoint, Vec<f32>)>(0, bytes);
    if let Ok(remembered) = serde_json::from_slice::<Remembered>(bytes) {
        let written = elastic::encode(&remembered).expect("what was read can be written");
        serde_json::from_slice::<Remembered>(&written).expect("what was written can be read");
    }
    if let Ok(report) = Report::decode(bytes) {
        let written = report.encode().expect("what was read can be written");
        Report::decode(&written).expect("what was written can be read");
    }
}

/// One of each, to begin with.
fn sent_by_workers() -> Vec<Vec<u8>> {
    let worker = RoundMessage { scores: vec![1.0, f64::NAN], ..RoundMessage::default() };
    let message = ProcessMessage { workers: vec![(3, worker)], ..ProcessMessage::default() };
    let remembered = elastic::encode(&Remembered::default());
    let own = |event| Report::Own { sender: 1, number: 1, event }.encode().ok();
    let events = examples().map(own);
    [round_message::encode(&message).ok(), remembered.ok()].into_iter().chain(events).flatten().collect()
}
