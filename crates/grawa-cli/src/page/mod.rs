//! The coordinator's web page: the state of the run, live, in any browser that can connect.
//!
//! It is read-only. It runs in its own threads, answers `GET /` and `GET /status.json`, and nothing in the run waits for it.

mod http;
mod series;

use crate::failure::Failure;
use clap::Args;
use grawa_comm::group::{CoordinatorServer, MemberState, MemberStatus, Status, Traffic};
use grawa_train::observe::View;
use grawa_train::{Error, Event, Observer, Place};
use serde::Serialize;
use series::Series;
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{SystemTime, UNIX_EPOCH};

/// Where the page is served.
#[derive(Args)]
// Commands flatten this beside the options of `train`.
#[group(skip)]
pub(crate) struct Arguments {
    /// Address of the web page that shows the run live, to everyone that can connect to it; port 0 is any free one, `none` is no page
    /// [default: 127.0.0.1:0, none with --quiet]
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::address::address_or_none)]
    page: Option<String>,
}

impl Arguments {
    /// Where the page is to be served, if it is.
    pub(crate) fn address(&self, quiet: bool) -> Option<&str> {
        let address = self.page.as_deref().unwrap_or(if quiet { "none" } else { "127.0.0.1:0" });
        (address != "none").then_some(address)
    }
}

const HTML: &str = include_str!("page.html");
/// Faults that are shown; all are counted.
const FAULTS: usize = 40;

/// What the page shows besides what the coordinator knows.
#[derive(Debug, Default)]
struct Shown {
    view: View,
    /// When the first event came, in seconds since 1970.
    began: Option<f64>,
    rounds: Series,
    losses: Series,
    errors: Series,
    faults: VecDeque<Fault>,
    fault_count: u64,
    stretch: VecDeque<(f64, u64)>,
}

#[derive(Clone, Debug, Serialize)]
struct Fault {
    wall: f64,
    steps: u64,
    what: String,
}

/// What is sent to the browser.
#[derive(Serialize)]
struct Sent<'a> {
    now: f64,
    method: Option<&'a str>,
    network: Option<&'a str>,
    data: Option<&'a str>,
    budget: Option<String>,
    founders: Option<u32>,
    at: Place,
    left: Option<f64>,
    rate: f64,
    loss: Option<f64>,
    error: Option<f64>,
    best: Option<f64>,
    model: &'a str,
    is_over: bool,
    reason: String,
    epoch: u64,
    meeting: u64,
    /// Rounds per second, of the last rounds.
    pace: Option<f64>,
    /// Control bytes for each worker, per second.
    traffic: f64,
    told: f64,
    /// At a free pace: steps beyond what rounds asked for.
    overshot: Option<u64>,
    members: Vec<Member>,
    rounds: Vec<(f64, f64)>,
    losses: Vec<(f64, f64)>,
    errors: Vec<(f64, f64)>,
    faults: &'a VecDeque<Fault>,
    fault_count: u64,
}

#[derive(Serialize)]
struct Member {
    worker: u32,
    state: &'static str,
    address: String,
    steps: u64,
    total: Option<u64>,
    loss: Option<f64>,
    /// β of the last round, the mean over layers, and how many of them have one of their own.
    weight: Option<f64>,
    layers: usize,
    silent: f64,
    has_come: bool,
    is_awaited: bool,
    traffic: f64,
    told: f64,
}

/// An observer that keeps the page up to date.
#[derive(Debug, Default)]
pub(crate) struct Page {
    shown: Arc<Mutex<Shown>>,
}

impl Page {
    /// A page of a run with these events so far.
    pub(crate) fn after(so_far: &[(Event, f64)]) -> Self {
        let mut shown = Shown::default();
        so_far.iter().for_each(|(event, wall)| shown.event(event, *wall));
        Page { shown: Arc::new(Mutex::new(shown)) }
    }

    /// Serves the page at an address; port 0 is any. Returns where.
    pub(crate) fn serve(&self, address: &str, host: &Arc<CoordinatorServer>) -> Result<SocketAddr, Failure> {
        let wrong = |error: std::io::Error| Failure::Page { address: address.into(), why: error.to_string() };
        let listener = TcpListener::bind(address).map_err(wrong)?;
        let at = listener.local_addr().map_err(wrong)?;
        let (shown, host): (_, Weak<CoordinatorServer>) = (Arc::clone(&self.shown), Arc::downgrade(host));
        let status = move || {
            let status = host.upgrade().map(|host| host.status()).unwrap_or_default();
            shown.lock().unwrap_or_else(PoisonError::into_inner).sent(&status, now())
        };
        let name = address.to_owned();
        let serve = move || http::serve(&listener, &name, HTML, status);
        std::thread::Builder::new().name("grawa-page".into()).spawn(serve).map_err(wrong)?;
        Ok(at)
    }
}

impl Observer for Page {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.shown.lock().unwrap_or_else(PoisonError::into_inner).event(event, now());
        Ok(())
    }
}

impl Shown {
    fn event(&mut self, event: &Event, wall: f64) {
        self.view.event(event);
        let since = wall - *self.began.get_or_insert(wall);
        let at = event.place();
        match event {
            Event::Round(round) => {
                self.rounds.push(since, at.rounds as f64);
                if let Some(loss) = round.loss {
                    self.losses.push(at.steps as f64, loss);
                }
                if self.stretch.len() == 32 {
                    self.stretch.pop_front();
                }
                self.stretch.push_back((wall, at.rounds));
            }
            Event::Evaluated(_) => {
                if let Some(error) = self.view.errors.last() {
                    self.errors.push(at.steps as f64, *error);
                }
            }
            Event::Fault(fault) => {
                self.fault_count += 1;
                self.faults.push_front(Fault { wall, steps: at.steps, what: fault.what.clone() });
                self.faults.truncate(FAULTS);
            }
            _ => {}
        }
    }

    fn sent(&self, status: &Status, now: f64) -> String {
        let view = &self.view;
        let started = view.started.as_ref();
        let pace = self.stretch.front().zip(self.stretch.back()).and_then(|(first, last)| {
            let rounds = last.1.saturating_sub(first.1) as f64;
            // As long as the last round took longer than those before, it counts.
            let seconds = last.0.max(now.min(last.0 + 60.0)) - first.0;
            (rounds > 0.0 && seconds > 0.0).then(|| rounds / seconds)
        });
        let sent = Sent {
            now,
            method: started.map(|started| started.method.as_str()),
            network: started.map(|started| started.network.as_str()),
            data: started.map(|started| started.data.as_str()),
            budget: started.map(|started| started.budget.to_string()),
            founders: started.map(|started| started.workers),
            at: view.at,
            left: view.at.left().map(|left| left.as_secs_f64()),
            rate: view.rate,
            loss: view.loss,
            error: view.errors.last().copied(),
            best: view.best(),
            model: &view.model,
            is_over: view.over.is_some(),
            reason: status.reason.clone(),
            epoch: status.epoch,
            meeting: status.op,
            pace,
            traffic: a_second(status.traffic.control, status.traffic),
            told: a_second(status.traffic.reports, status.traffic),
            overshot: Some(status.extra_steps).filter(|steps| *steps > 0),
            members: status.workers.iter().map(|standing| self.member(standing)).collect(),
            rounds: self.rounds.points(),
            losses: self.losses.points(),
            errors: self.errors.points(),
            faults: &self.faults,
            fault_count: self.fault_count,
        };
        // Numbers and words are always JSON; what is not finite becomes null.
        serde_json::to_string(&sent).unwrap_or_else(|_| "{}".into())
    }

    fn member(&self, standing: &MemberStatus) -> Member {
        let known = self.view.workers.iter().find(|worker| worker.worker == standing.worker);
        let weights = known.map_or(&[][..], |worker| &worker.weights);
        let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        Member {
            worker: standing.worker,
            state: match standing.state {
                MemberState::Greeted => "has said hello",
                MemberState::Waiting => "waits for a donor",
                MemberState::Restoring(_) => "takes over",
                MemberState::Ready => "ready",
                MemberState::Active => "takes part",
            },
            address: standing.address.clone(),
            steps: standing.steps,
            total: known.map(|worker| worker.steps),
            loss: known.and_then(|worker| worker.loss),
            weight: (!weights.is_empty()).then(|| sum / weights.len() as f64),
            layers: weights.len(),
            silent: standing.silent.as_secs_f64(),
            has_come: standing.has_arrived,
            is_awaited: standing.is_awaited,
            traffic: a_second(standing.traffic.control, standing.traffic),
            told: a_second(standing.traffic.reports, standing.traffic),
        }
    }
}

fn a_second(bytes: u64, traffic: Traffic) -> f64 {
    bytes as f64 / traffic.open.as_secs_f64().max(1.0)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}
