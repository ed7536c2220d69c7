//! A member of a group on sockets: it calls operations, and transfers data until they end.
//!
//! This runs on the worker's own thread. [`Member`](super::Member) decides what is to be done. The operations are in
//! [`collective`](super::collective).

use super::control_connection::{Anchor, Client, State};
use super::peer_listener::{connect, connect_wait};
use super::{Member, MemberAction};
use crate::call::out_of_step;
use crate::group::environment::lock;
use crate::group::messages::{AttemptId, Call, End, Peer};
use crate::group::transfer::overlap::{Finished, Overlap};
use crate::group::transfer::{Links, TransferError, TransferOptions};
use crate::group::wire::connection::{CONNECT_TIMEOUT, Reader, STALL, Writer};
use crate::{Error, Lost, Outcome};
use std::collections::HashMap;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// A worker's end of a group: the operations on one of its centres.
#[derive(Debug)]
pub struct SocketMember {
    pub(crate) caller: Caller,
    pub(super) _anchor: Arc<Anchor>,
    /// The transfer that overlaps with training, a buffer for the next, and members lost during the last.
    pub(super) overlap: Option<Arc<Overlap>>,
    pub(super) send_buffer: Vec<f32>,
    pub(super) lost: Vec<Lost>,
}

/// Calls operations. One that overlaps with training has a caller of its own, which does not keep the worker in the group.
#[derive(Clone, Debug)]
pub(crate) struct Caller {
    pub(super) connections: Arc<Mutex<Connections>>,
    pub(crate) client: Arc<Client>,
    pub(super) number: u8,
    pub(super) members: Vec<u32>,
    pub(crate) centre: Arc<Vec<f32>>,
    /// The centre before, or the result of an operation that was aborted: the memory is used again when nobody reads it any more.
    pub(super) retired: Arc<Vec<f32>>,
    pub(super) options: TransferOptions,
}

/// What the operations on all centres share.
#[derive(Debug, Default)]
pub(super) struct Connections {
    /// Connections to other members, by token.
    writers: HashMap<u64, Writer>,
    /// The last attempt was committed. Otherwise bytes of it may be left in the connections, and they are made again.
    pub(super) is_clean: bool,
    /// What must be done before the next operation.
    pub(super) deferred: Option<MemberAction>,
    bytes: u64,
    /// Memory of the transfers.
    scratch: Vec<Vec<f32>>,
}

/// How an operation ended: all members hold the same result, or there is none; and who was lost.
pub(super) enum Ended<T> {
    Committed(T, Outcome),
    Aborted(Vec<Lost>),
}

impl SocketMember {
    /// Waits for the transfer that overlaps with training, and takes its result.
    pub(super) fn finish_overlap(&mut self) -> Result<(), Error> {
        let other = lock(&self.caller.client.overlap).take();
        other.iter().for_each(|overlap| overlap.wait());
        if let Some(overlap) = self.overlap.take() {
            let Finished { caller, lost, send_buffer } = overlap.take()?;
            (self.caller, self.lost, self.send_buffer) = (caller, lost, send_buffer);
        }
        Ok(())
    }

    /// Bytes sent to other members so far.
    pub fn bytes(&self) -> u64 {
        lock(&self.caller.connections).bytes
    }

    /// Connections to and from other members that are kept.
    #[cfg(test)]
    pub(crate) fn connections(&self) -> usize {
        lock(&self.caller.connections).writers.len() + self.caller.client.listener.connections()
    }
}

impl Caller {
    /// Publishes the state after a round: this memory, and the centre.
    pub(crate) fn publish(&self, memory: Vec<u8>) {
        self.client.publish(memory, Arc::clone(&self.centre));
    }

    pub(super) fn replace_centre(&mut self, centre: Arc<Vec<f32>>) {
        self.retired = std::mem::replace(&mut self.centre, centre);
    }

    /// Calls the next operation.
    fn call(&self, connections: &mut Connections, call: Call) -> Result<(), Error> {
        if connections.deferred.is_some() {
            return Err(Error::Behind);
        }
        let mut state = self.client.state.lock();
        let (message, action) = state.member.call(call, self.client.progress().1);
        self.client.send(&mut state, message);
        if let Some(action) = action {
            state.actions.push_front(action);
        }
        Ok(())
    }

    /// The next action of an operation. If `may_leave`, a member without contact that nobody counts on stops waiting.
    fn next_action(
        &self,
        connections: &mut Connections,
        may_leave: bool,
        since: Duration,
    ) -> Result<MemberAction, Error> {
        let Client { founding_patience, environment, .. } = &*self.client;
        let patience = Duration::from_millis(founding_patience.load(Ordering::Relaxed));
        let is_short = |state: &State| {
            let Member { op, founders, joined, .. } = state.member;
            op == 0 && joined < founders && environment.now() - since > patience
        };
        loop {
            let action = self.client.next_action(&|state| {
                let is_free = may_leave && !state.member.is_bound();
                let is_cut_off =
                    is_free && self.client.has_lost_contact(state) || self.client.has_given_up(state);
                !is_short(state) && !is_cut_off
            })?;
            match action {
                Some(action @ (MemberAction::Restore { .. } | MemberAction::RollBack)) => {
                    connections.deferred = Some(action);
                    return Err(Error::Behind);
                }
                Some(MemberAction::Ended(End::OutOfStep { calls })) => return Err(out_of_step(&calls)),
                Some(MemberAction::Welcomed { .. } | MemberAction::Ready) => {}
                Some(action) => return Ok(action),
                None => {
                    let mut state = self.client.state.lock();
                    // A message may have arrived at the last moment.
                    if state.actions.is_empty() {
                        if is_short(&state) {
                            let Member { founders, joined, .. } = state.member;
                            let waited = environment.now() - since;
                            return Err(Error::TooFew { joined, founders, waited });
                        }
                        state.member.abandon();
                        return Err(Error::OutOfContact);
                    }
                }
            }
        }
    }

    fn update_members(&mut self) -> Vec<u32> {
        self.members = self.client.state.lock().member.members.iter().map(|peer| peer.worker).collect();
        self.members.clone()
    }

    /// Calls an operation, and runs `transfer` as often as the coordinator asks for it, until the operation ends.
    pub(super) fn run_operation(
        &mut self,
        call: Call,
        mut transfer: impl FnMut(Links<'_>, &[Peer]) -> Result<u32, TransferError>,
    ) -> Result<Ended<()>, Error> {
        let environment = self.client.environment.clone();
        let start = environment.now();
        let (mut wait, mut before) = (None, Vec::new());
        let shared = Arc::clone(&self.connections);
        let mut connections = lock(&shared);
        let begins_round = {
            let state = self.client.state.lock();
            state.member.version.is_some_and(|version| version.op == state.member.op)
        };
        self.call(&mut connections, call)?;
        loop {
            match self.next_action(&mut connections, begins_round, start)? {
                MemberAction::Skipped { lost } => {
                    self.update_members();
                    return Ok(Ended::Aborted(lost));
                }
                MemberAction::Transfer { attempt, lost } => {
                    wait.get_or_insert_with(|| environment.now() - start);
                    before = lost;
                    let result = self.attempt(&mut connections, attempt, &mut transfer);
                    connections.is_clean = false;
                    match result {
                        Ok(()) => {}
                        // What interrupted it is the next action.
                        Err(_) if !self.client.is_current(attempt) => {}
                        Err(TransferError { rank: Some(rank), why: Error::Message { why } }) => {
                            self.client.send_from(|member| {
                                let peer = member.members.get(rank)?.worker;
                                member.unreadable(attempt, peer, why)
                            });
                        }
                        Err(TransferError { rank: Some(rank), why }) => self.client.send_from(|member| {
                            let peer = member.members.get(rank)?.worker;
                            member.failed(attempt, peer, why.to_string())
                        }),
                        // The others would wait for a member that cannot continue. It leaves, and they are told.
                        Err(TransferError { rank: None, why }) => return Err(why),
                    }
                }
                MemberAction::Ended(End::Commit { lost }) => {
                    connections.is_clean = true;
                    let Some(wait) = wait else {
                        return Err(Error::Message { why: "an operation ended that had not begun".into() });
                    };
                    before.extend(lost);
                    let (members, work) = (self.update_members(), environment.now() - start - wait);
                    let outcome = Outcome { members, lost: before, bytes: 0, wait, work };
                    return Ok(Ended::Committed((), outcome));
                }
                MemberAction::Ended(End::Shrunk { lost }) => {
                    before.extend(lost);
                    self.update_members();
                    return Ok(Ended::Aborted(before));
                }
                other => {
                    return Err(Error::Message { why: format!("{other:?} is no answer to {}", call.name()) });
                }
            }
        }
    }

    /// One attempt. Reports to the coordinator that it is done.
    fn attempt(
        &self,
        connections: &mut Connections,
        attempt: AttemptId,
        transfer: &mut impl FnMut(Links<'_>, &[Peer]) -> Result<u32, TransferError>,
    ) -> Result<(), TransferError> {
        let Client { environment, listener, security, token, state, .. } = &*self.client;
        let Member { run, members: peers, .. } = state.lock().member.clone();
        // Without a place among the members there is nothing to do until the coordinator says so.
        let Some(rank) = peers.iter().position(|peer| peer.token == *token) else { return Ok(()) };
        #[cfg(test)]
        if environment.mutation() == Some(crate::group::simulate::Mutation::KeepConnections) {
            connections.is_clean = true;
        }
        if !connections.is_clean {
            connections.writers.clear();
            listener.forget_before(attempt);
        }
        let keep_going = || self.client.is_current(attempt);
        let (mut writers, mut readers): (Vec<Option<Writer>>, Vec<_>) = (Vec::new(), Vec::new());
        writers.resize_with(peers.len(), || None);
        let (began, wait) = (environment.now(), connect_wait(peers.len(), attempt.2));
        listener.wait_for_peers(wait);
        let mut is_new = !connections.is_clean;
        // Each begins with the next one, so that not all connect to the first at once.
        for index in (1..peers.len()).map(|n| (rank + n) % peers.len()) {
            let peer = &peers[index];
            writers[index] = Some(match connections.writers.remove(&peer.token) {
                Some(writer) => writer,
                None => loop {
                    let dialled = environment.now();
                    let connected = connect(environment, peer, security, (run, *token), attempt);
                    // A peer that is there and busy may need longer than one handshake may take. What was connected so far is kept.
                    let is_busy = environment.now() - dialled >= CONNECT_TIMEOUT;
                    if connected.is_err() && is_busy && environment.now() - began < wait && keep_going() {
                        continue;
                    }
                    is_new = true;
                    break connected.map_err(TransferError::with(index))?;
                },
            });
        }
        for (index, peer) in peers.iter().enumerate() {
            let reader = (index != rank).then(|| listener.reader_from(peer, attempt, wait, &keep_going));
            readers.push(reader.transpose().map_err(TransferError::with(index))?);
        }
        // Others may still make their connections when this member has all of its own.
        let stall = if is_new { STALL.max(wait) } else { STALL };
        readers.iter_mut().flatten().for_each(|reader: &mut Reader| reader.stall = stall);
        let links = Links {
            environment,
            attempt,
            rank,
            writers: &mut writers,
            readers: &mut readers,
            scratch: &mut connections.scratch,
            keep_going: &keep_going,
        };
        let digest = transfer(links, &peers)?;
        connections.writers.clear();
        listener.keep_only(&peers, attempt);
        for ((peer, writer), reader) in peers.iter().zip(writers).zip(readers) {
            if let (Some(mut writer), Some(reader)) = (writer, reader) {
                connections.bytes += std::mem::take(&mut writer.sent);
                connections.writers.insert(peer.token, writer);
                listener.keep(peer, attempt, reader);
            }
        }
        self.client.send_from(|member| member.done(attempt, digest.into()));
        Ok(())
    }
}
