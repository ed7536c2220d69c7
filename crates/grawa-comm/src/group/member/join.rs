//! A worker joins a group.

use super::control_connection::{Anchor, Client, Contact, Reporter, State};
use super::peer_listener::{HeldState, PeerListener};
use super::socket_member::{Caller, Connections, SocketMember};
use super::{Member, MemberAction};
use crate::group::environment::{Environment, Monitor};
use crate::group::messages::{LONGEST_CHARTER, Proposal};
use crate::group::transfer::TransferOptions;
use crate::group::wire::tls::Security;
use crate::{Elastic, Error};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A worker that the coordinator has welcomed, and that does not take part yet.
#[derive(Debug)]
pub struct Joiner {
    client: Arc<Client>,
    anchor: Arc<Anchor>,
    /// The definition of the run; empty if the coordinator has none yet, see [`Joiner::propose`].
    pub charter: Vec<u8>,
    /// Workers that the run begins with.
    pub founders: u32,
    /// The number of its first worker.
    pub worker: u32,
    /// How many workers it has.
    pub workers: u32,
    /// How long it waited, or would have waited, for the coordinator.
    pub patience: Duration,
}

impl Joiner {
    /// Joins the run of the coordinator at `address`. The worker listens for other members at `listen`; port 0 is any. If they
    /// reach it at another host than the one it listens at, `host` is that one.
    pub fn new(
        address: &str,
        security: Security,
        listen: &str,
        host: Option<&str>,
        patience: Duration,
    ) -> Result<Self, Error> {
        Self::with_workers(1, address, security, (listen, host), patience)
    }

    /// The same for a process with several workers.
    pub fn with_workers(
        workers: u32,
        address: &str,
        security: Security,
        listen_and_host: (&str, Option<&str>),
        patience: Duration,
    ) -> Result<Self, Error> {
        Self::with_numbers((None, workers), address, security, listen_and_host, patience)
    }

    /// The same for a process that wishes for this number for its first worker. If it is another's, it gets the lowest free one.
    pub fn with_numbers(
        wish_and_workers: (Option<u32>, u32),
        address: &str,
        security: Security,
        listen_and_host: (&str, Option<&str>),
        patience: Duration,
    ) -> Result<Self, Error> {
        // A slip that no patience mends. Whether the host exists may change.
        let is_address = address
            .rsplit_once(':')
            .is_some_and(|(host, port)| !host.is_empty() && port.parse::<u16>().is_ok_and(|port| port > 0));
        if !is_address {
            return Err(Error::Address { found: address.into() });
        }
        Self::start(&Environment::System, wish_and_workers, address, security, listen_and_host, patience)
    }

    pub(crate) fn start(
        environment: &Environment,
        (wish, workers): (Option<u32>, u32),
        address: &str,
        security: Security,
        (listen, host): (&str, Option<&str>),
        patience: Duration,
    ) -> Result<Self, Error> {
        let security = security.with_new_certificate()?;
        let (listener, own) = PeerListener::open(environment, listen, security.clone())?;
        let reached = match host {
            None => own.to_string(),
            Some(host) => format!("{host}:{}", own.port()),
        };
        // Without certificates a random number identifies the process.
        let token = security.token().unwrap_or_else(|| environment.random() | 1);
        let (member, lost_since) = (Member::new(token, reached, workers, wish), Some(environment.now()));
        let state = State { member, lost_since, ..State::default() };
        let client = Arc::new(Client {
            environment: environment.clone(),
            address: address.into(),
            token,
            worker: AtomicU32::new(u32::MAX),
            security,
            listener,
            state: Monitor::new(environment, state),
            heartbeat: AtomicU64::new(500),
            steps: AtomicU64::new(0),
            counted: AtomicU64::new(0),
            reports: Mutex::default(),
            is_over: AtomicBool::new(false),
            contact_patience: AtomicU64::new(u64::MAX),
            founding_patience: AtomicU64::new(u64::MAX),
            overlap: Mutex::default(),
        });
        let (connects, beats) = (Arc::clone(&client), Arc::clone(&client));
        environment.spawn("control", move || connects.keep_connected())?;
        environment.spawn("heartbeat", move || beats.send_heartbeats())?;
        let anchor = Arc::new(Anchor::new(Arc::clone(&client)));
        let began = environment.now();
        let keep_going = |state: &State| environment.now() - began < patience && !state.has_wrong_key;
        loop {
            match client.next_action(&keep_going)? {
                Some(MemberAction::Welcomed { charter: Some(charter), .. }) => {
                    let state = client.state.lock();
                    client.listener.set_run(state.member.run);
                    let (worker, founders) = (state.member.worker.unwrap_or(u32::MAX), state.member.founders);
                    drop(state);
                    client.worker.store(worker, Ordering::Relaxed);
                    return Ok(Joiner { client, anchor, charter, founders, worker, workers, patience });
                }
                Some(_) => {}
                None => {
                    let state = client.state.lock();
                    let why = match &state.last_error {
                        None => "nothing was received".into(),
                        // Its words are those of the whole.
                        Some(Error::Connection { why }) => why.clone(),
                        Some(error) => error.to_string(),
                    };
                    let after = patience.as_secs_f64();
                    // A listener with a key ends a connection that does not begin with a handshake.
                    let is_plain = matches!(client.security, Security::Plain);
                    let is_ended = is_plain && state.was_connected;
                    let why = match state.has_wrong_key {
                        false if is_ended => format!(
                            "what listens at {address} ends every connection without an answer: the run has a key, most likely; give it with --key FILE (GRAWA_KEY in programs) in place of plain"
                        ),
                        false => format!(
                            "no coordinator answers at {address} within {after:.0} s: {why}; is one running at that address and port, and do both have the same key, or none?"
                        ),
                        true => format!("{why}; give the key of the run that {address} coordinates"),
                    };
                    drop(state);
                    return Err(Error::Connection { why });
                }
            }
        }
    }

    /// Proposes the definition of the run to a coordinator that has none. The first proposal of all workers counts: afterwards `charter` is
    /// that one.
    pub fn propose(&mut self, proposal: Proposal) -> Result<(), Error> {
        let found = proposal.charter.len();
        if !(1..=LONGEST_CHARTER).contains(&found) {
            let why = format!("a charter of {found} bytes, where 1 to {LONGEST_CHARTER} are allowed");
            return Err(Error::Message { why });
        }
        self.client.send_from(|member| member.propose(proposal));
        loop {
            match self.client.next_action(&|state| !self.client.has_given_up(state))? {
                None => return Err(Error::OutOfContact),
                Some(MemberAction::Welcomed { charter: Some(charter), .. }) if !charter.is_empty() => {
                    self.charter = charter;
                    return Ok(());
                }
                _ => {}
            }
        }
    }

    /// From now on this worker waits no longer than this inside an operation when the coordinator is out of reach
    /// ([`Error::OutOfContact`]), and for the workers that the run begins with ([`Error::TooFew`]). Without a call it waits without
    /// limit. By then the coordinator counts a worker without contact as lost: no shorter than 5 s.
    pub fn wait_at_most(&self, contact: Duration, founding: Duration) {
        let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
        let contact = contact.max(Duration::from_secs(5));
        self.client.contact_patience.store(milliseconds(contact), Ordering::Relaxed);
        self.client.founding_patience.store(milliseconds(founding), Ordering::Relaxed);
    }

    /// A handle that sends reports.
    pub fn reporter(&self) -> Reporter {
        Reporter { anchor: Arc::clone(&self.anchor) }
    }

    /// A handle that tells whether the coordinator can be reached.
    pub fn contact(&self) -> Contact {
        Contact(Arc::downgrade(&self.client))
    }

    /// The run.
    pub fn run(&self) -> u64 {
        self.client.state.lock().member.run
    }

    /// Takes part, with this memory and this centre if the run is about to begin. Returns one member for this centre, and one
    /// more for each length in `others`; and, if the run has begun, the memory of the others. Only the first may overlap. Only its centre
    /// is committed state, which those that join later get: each operation of another one begins with that centre.
    pub fn enter(
        self,
        memory: Vec<u8>,
        centre: Vec<f32>,
        others: &[usize],
        options: TransferOptions,
    ) -> Result<(Vec<SocketMember>, Option<Vec<u8>>), Error> {
        self.enter_from(0, memory, centre, others, options)
    }

    /// The same for a worker that holds the state before operation `op`. If no member holds a newer one, the run continues from
    /// it.
    pub fn enter_from(
        self,
        op: u64,
        memory: Vec<u8>,
        centre: Vec<f32>,
        others: &[usize],
        options: TransferOptions,
    ) -> Result<(Vec<SocketMember>, Option<Vec<u8>>), Error> {
        let Joiner { client, anchor, .. } = self;
        let held = Arc::new(HeldState::new(op, memory, Arc::new(centre)));
        client.listener.hold(Arc::clone(&held));
        client.send_from(|member| member.enter(held.version));
        let connections = Arc::new(Mutex::new(Connections::default()));
        let caller = |number: u8, centre: Arc<Vec<f32>>| Caller {
            connections: Arc::clone(&connections),
            client: Arc::clone(&client),
            number,
            members: Vec::new(),
            centre,
            retired: Arc::default(),
            options: TransferOptions { overlap: options.overlap && number == 0, ..options },
        };
        let member = |number: u8, centre: Arc<Vec<f32>>| SocketMember {
            caller: caller(number, centre),
            _anchor: Arc::clone(&anchor),
            overlap: None,
            send_buffer: Vec::new(),
            lost: Vec::new(),
        };
        let mut members = vec![member(0, Arc::clone(&held.centre))];
        members.extend((1..).zip(others).map(|(number, len)| member(number, Arc::new(vec![0.0; *len]))));
        loop {
            match client.next_action(&|state| !client.has_given_up(state))? {
                None => return Err(Error::OutOfContact),
                Some(MemberAction::Ready) => return Ok((members, (op > 0).then(|| held.memory.clone()))),
                Some(action @ (MemberAction::Restore { .. } | MemberAction::RollBack)) => {
                    crate::group::environment::lock(&connections).deferred = Some(action);
                    let memory = members[0].rejoin()?;
                    return Ok((members, Some(memory)));
                }
                _ => {}
            }
        }
    }
}
