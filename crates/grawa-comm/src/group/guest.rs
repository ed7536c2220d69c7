//! A worker that asks to be let in, and begins to take part.

use super::door::{Door, Held};
use super::flight::Travel;
use super::key::Wire;
use super::line::{Anchor, Contact, Shared, State, Teller, lock};
use super::member::{Deed, Member};
use super::participant::{Core, Participant};
use crate::{Collective, Error};
use std::collections::{HashMap, VecDeque};
use std::hash::{BuildHasher, Hasher};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// A worker that was let in, and does not take part yet.
#[derive(Debug)]
pub struct Guest {
    shared: Arc<Shared>,
    anchor: Arc<Anchor>,
    /// What defines the run.
    pub charter: Vec<u8>,
    /// The worker's number.
    pub worker: u32,
}

impl Guest {
    /// Asks the coordinator at `address` to be let in. Others reach this worker at `listen`; port 0 is any. If others know it
    /// by another host than the one it listens at, `host` says which.
    pub fn new(
        address: &str,
        wire: Wire,
        listen: &str,
        host: Option<&str>,
        patience: Duration,
    ) -> Result<Self, Error> {
        let wire = wire.of_another()?;
        let door = Door::open(listen, wire.clone())?;
        let reached = match host {
            None => door.address.to_string(),
            Some(host) => format!("{host}:{}", door.address.port()),
        };
        // In the clear: random, and never twice. What it is worth is that no two processes have the same.
        let random = || std::hash::RandomState::new().build_hasher().finish() | 1;
        let token = wire.token().unwrap_or_else(random);
        let member = Member::new(token, reached);
        let state = State {
            member,
            out: None,
            deeds: VecDeque::new(),
            told: VecDeque::new(),
            unheard: 0,
            since: Some(Instant::now()),
            trouble: None,
            is_strange: false,
        };
        let shared = Arc::new(Shared {
            address: address.into(),
            token,
            wire,
            door,
            state: Mutex::new(state),
            changed: Condvar::new(),
            beat: AtomicU64::new(500),
            steps: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            is_over: AtomicBool::new(false),
            flight: Mutex::default(),
        });
        let (keeper, beater) = (Arc::clone(&shared), Arc::clone(&shared));
        std::thread::Builder::new().name("grawa-line".into()).spawn(move || keeper.keep_line())?;
        std::thread::Builder::new().name("grawa-beat".into()).spawn(move || beater.give_signs())?;
        let began = Instant::now();
        loop {
            match shared.next(&|state| began.elapsed() < patience && !state.is_strange) {
                Some(Deed::Known { charter: Some(charter), .. }) => {
                    let state = lock(&shared.state);
                    shared.door.belongs_to(state.member.run());
                    let worker = state.member.worker().unwrap_or(u32::MAX);
                    drop(state);
                    let anchor = Arc::new(Anchor(Arc::clone(&shared)));
                    return Ok(Guest { shared, anchor, charter, worker });
                }
                Some(Deed::Refused { why }) => {
                    shared.end();
                    return Err(Error::Refused { why });
                }
                Some(_) => {}
                None => {
                    shared.end();
                    let state = lock(&shared.state);
                    let trouble = state.trouble.as_deref().unwrap_or("nothing was heard");
                    let after = patience.as_secs_f64();
                    let why = match state.is_strange {
                        false => format!(
                            "no coordinator answers at {address} within {after:.0} s: {trouble}; do both have the same key, or none?"
                        ),
                        true => format!("{trouble}; give the key of the run that {address} coordinates"),
                    };
                    return Err(Error::Connection { why });
                }
            }
        }
    }

    /// A way to tell whoever watches the run.
    pub fn teller(&self) -> Teller {
        Teller { anchor: Arc::clone(&self.anchor) }
    }

    /// A way to know whether the coordinator is in reach.
    pub fn contact(&self) -> Contact {
        Contact(Arc::downgrade(&self.shared))
    }

    /// The run.
    pub fn run(&self) -> u64 {
        lock(&self.shared.state).member.run()
    }

    /// Begins to take part, with this memory and this centre if the run is about to begin. Returns the ends of the group, the
    /// first with this centre and one more for each length in `others`, and, where the run has begun, what the others remember.
    /// Only the first may overlap.
    pub fn enter(
        self,
        memory: Vec<u8>,
        centre: Vec<f32>,
        others: &[usize],
        travel: Travel,
    ) -> Result<(Vec<Participant>, Option<Vec<u8>>), Error> {
        self.enter_from(0, memory, centre, others, travel)
    }

    /// The same for one that holds what all held before a meeting of this number, if it was kept: should nobody hold anything
    /// newer, the run goes on from there.
    pub fn enter_from(
        self,
        op: u64,
        memory: Vec<u8>,
        centre: Vec<f32>,
        others: &[usize],
        travel: Travel,
    ) -> Result<(Vec<Participant>, Option<Vec<u8>>), Error> {
        let Guest { shared, anchor, worker, .. } = self;
        let held = Arc::new(Held::new(op, memory, Arc::new(centre)));
        shared.door.hold(Arc::clone(&held));
        shared.tell(|member| member.enter(held.stand));
        let core = Core { outs: HashMap::new(), spare: Vec::new(), is_clean: true, due: None, bytes: 0 };
        let core = Arc::new(Mutex::new(core));
        let end = |number: u8, centre: Arc<Vec<f32>>| Participant {
            core: Arc::clone(&core),
            shared: Arc::clone(&shared),
            _anchor: Some(Arc::clone(&anchor)),
            number,
            worker,
            members: Vec::new(),
            centre,
            version: 0,
            travel: Travel { overlap: travel.overlap && number == 0, ..travel },
            flight: None,
            luggage: Vec::new(),
            lost: Vec::new(),
        };
        let mut ends = vec![end(0, Arc::clone(&held.centre))];
        ends.extend((1..).zip(others).map(|(number, len)| end(number, Arc::new(vec![0.0; *len]))));
        loop {
            match shared.next(&|_| true) {
                Some(Deed::Ready) => return Ok((ends, (op > 0).then(|| held.memory.clone()))),
                Some(deed @ (Deed::Take { .. } | Deed::Back)) => {
                    lock(&core).due = Some(deed);
                    let memory = ends[0].rejoin()?;
                    return Ok((ends, Some(memory)));
                }
                Some(Deed::Refused { why }) => return Err(Error::Refused { why }),
                Some(_) | None => {}
            }
        }
    }
}
