//! Every decoder of what other machines send: frames, messages of both sides, greetings, what a donor gives, heads of pieces, words
//! and their heads, what workers say at meetings and what all remember, events that are told, the lengths of TLS records, the coordinator's log. The
//! charter is a recipe, and has its own target; what is encrypted is opened by rustls and ring.
#![no_main]

use grawa_comm::group::message::{Call, Down, End, Peer, Record, Stand, Up, VERSION, decode, encode};
use grawa_comm::group::{Greeting, HEAD, Head, frame, fuzz, log, words};
use grawa_comm::{Lost, Why};
use libfuzzer_sys::fuzz_target;
use serde::Serialize;
use serde::de::DeserializeOwned;
use std::time::Duration;

/// What is read is written and read back the same.
fn both_ways<T: Serialize + DeserializeOwned + PartialEq + std::fmt::Debug>(bytes: &[u8]) {
    if let Ok(found) = decode::<T>(bytes) {
        assert_eq!(decode::<T>(&encode(&found).unwrap()).unwrap(), found);
    }
}

fuzz_target!(init: seeds(), |bytes: &[u8]| {
    let mut numbers = frame::Numbers::default();
    let mut stream = bytes;
    while let Ok(Some(body)) = frame::read(&mut stream, &mut numbers, 1 << 16) {
        assert!(body.len() <= bytes.len());
        let _ = decode::<Up>(&body);
    }
    let (records, _, good) = log::records(&mut &bytes[..]);
    assert!(good as usize <= bytes.len() && records.len() <= bytes.len() / frame::HEAD);
    both_ways::<Up>(bytes);
    both_ways::<Down>(bytes);
    both_ways::<Greeting>(bytes);
    both_ways::<Record>(bytes);
    both_ways::<Option<(Vec<u8>, u64)>>(bytes);
    if let Some(head) = bytes.first_chunk::<HEAD>()
        && let Ok(head) = Head::decode(head)
    {
        assert_eq!(Head::decode(&head.encode()).unwrap(), head);
    }
    if let Some(head) = bytes.first_chunk::<{ words::HEAD }>()
        && let Ok(part) = words::Part::decode(head)
    {
        assert_eq!(words::Part::decode(&part.encode()).unwrap(), part);
    }
    hear_word(bytes);
    fuzz::records(bytes);
    grawa_train::fuzz::hear(bytes);
});

/// Heads, each with the part it announces: what is taken is no more than came, and one part more.
fn hear_word(mut bytes: &[u8]) {
    let (mut coming, mut came) = (words::Coming::default(), 0);
    while let Some((head, rest)) = bytes.split_first_chunk::<{ words::HEAD }>() {
        let Ok(room) = coming.room((1, 2, 1), head) else { return };
        came += room.len();
        assert!(room.len() <= words::PART && came <= words::LONGEST);
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
    let stand = Stand { op: 7, digest: u64::MAX };
    let peer = Peer { worker: 3, token: 9, address: "[::1]:4000".into() };
    let lost = vec![
        Lost { worker: 1, why: Why::Disconnected },
        Lost { worker: 2, why: Why::Late { after: Duration::from_millis(2500) } },
    ];
    let mix = Call::Mix { plan: 5, centre: 1 };
    let ups = [
        Up::Hello { version: VERSION, run: 7, token: 9, worker: Some(3), address: "10.0.0.1:4000".into() },
        Up::Enter(stand),
        Up::Stands(stand),
        Up::Arrive { op: 2, call: mix, steps: 4, knows: 1 },
        Up::Arrive { op: 2, call: Call::Broadcast { leader: 2 }, steps: 0, knows: 0 },
        Up::Done { epoch: 1, op: 2, attempt: 1, digest: 77 },
        Up::Broken { epoch: 1, op: 2, attempt: 1, peer: 2, why: "gone".into() },
        Up::Took(stand),
        Up::NotTaken { donor: 1 },
        Up::Beat { steps: 300, progress: 70_000 },
        Up::Tell(b"{}".to_vec()),
        Up::Leave,
    ];
    let downs = [
        Down::Welcome { run: 7, worker: 1, known: true, beat: 500, charter: Some(b"[data]".to_vec()) },
        Down::Refused { why: "no".into() },
        Down::Ready { op: 7 },
        Down::Take { donor: peer.clone(), stand },
        Down::Beat,
        Down::Heard,
        Down::Round { op: 7 },
        Down::Met {
            epoch: 1,
            op: 2,
            members: Some(vec![peer.clone(), peer]),
            lost: lost.clone(),
            attempt: Some(1),
        },
        Down::Closed { op: 1, end: End::Shrunk { lost: lost.clone() } },
        Down::Closed { op: 1, end: End::Commit { lost } },
        Down::Closed { op: 1, end: End::OutOfStep { calls: vec![(0, mix), (1, Call::Gather)] } },
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
    keep("pieces", encode(&Greeting::Pieces { run: 7, token: 9, tag: (1, 2, 1) }).unwrap());
    keep("asks", encode(&Greeting::Asks { run: 7, stand }).unwrap());
    keep("gift", encode(&Some((vec![1u8, 2, 3], 40u64))).unwrap());
    let head = Head { is_sum: true, tag: (1, 2, 1), start: 64, floats: 16 };
    keep("head", head.encode().into());
    let part = words::Part { tag: (1, 2, 1), start: 0, whole: 5 };
    keep("word", [&part.encode()[..], b"hello"].concat());
    let (mut log, mut numbers) = (Vec::new(), frame::Numbers::default());
    for op in 0..3 {
        let record = Record { run: 7, epoch: op, stand: Stand { op, ..stand }, members: 3, tokens: vec![op] };
        keep("record", encode(&record).unwrap());
        frame::write(&mut log, &mut numbers, &encode(&record).unwrap()).unwrap();
    }
    keep("log", log);
    for (number, bytes) in grawa_train::fuzz::said().into_iter().enumerate() {
        keep(&format!("said-{number}"), bytes);
    }
}
