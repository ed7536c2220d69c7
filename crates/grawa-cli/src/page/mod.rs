//! The coordinator's web page: the state of the run, live, in any browser that can connect.
//!
//! It is read-only. It runs in its own threads, answers `GET /` and `GET /status.json`, and nothing in the run waits for it.

mod http;

use crate::failure::Failure;
use clap::Args;
use grawa_comm::group::{CoordinatorServer, MemberState, MemberStatus, Status, Traffic};
use grawa_train::observe::View;
use grawa_train::{Error, Event, Observer};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::net::{SocketAddr, TcpListener};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

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
/// The most points of a curve that are sent, besides the last.
const POINTS: usize = 240;
/// How long a status is good for.
const FRESH: Duration = Duration::from_millis(200);
/// Faults that are shown; all are counted.
const FAULTS: usize = 40;

/// A curve, from left to right.
type Curve = Vec<(f64, f64)>;

/// What the page shows besides what the coordinator knows.
#[derive(Debug, Default)]
struct Shown {
    view: View,
    /// When the first event came, in seconds since 1970.
    began: Option<f64>,
    rounds: Curve,
    losses: Curve,
    errors: Curve,
    faults: VecDeque<Value>,
    fault_count: u64,
    stretch: VecDeque<(f64, u64)>,
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
    pub(crate) fn serve(
        &self,
        address: &str,
        server: &Arc<CoordinatorServer>,
    ) -> Result<SocketAddr, Failure> {
        let wrong = |error: std::io::Error| {
            Failure::Machine(format!(
                "cannot serve the page at {address}: {error}; choose another place with --page, or none with --page none"
            ))
        };
        let listener = TcpListener::bind(address).map_err(wrong)?;
        let at = listener.local_addr().map_err(wrong)?;
        let (shown, server) = (Arc::clone(&self.shown), Arc::downgrade(server));
        let status = recent(FRESH, move || {
            let status = server.upgrade().map(|server| server.status()).unwrap_or_default();
            shown.lock().unwrap_or_else(PoisonError::into_inner).sent(&status, now())
        });
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
                self.rounds.push((since, at.rounds as f64));
                self.losses.extend(round.loss.map(|loss| (at.steps as f64, loss)));
                self.stretch.push_front((wall, at.rounds));
                self.stretch.truncate(32);
            }
            Event::Evaluated(_) => {
                self.errors.extend(self.view.errors.last().map(|error| (at.steps as f64, *error)));
            }
            Event::Fault(fault) => {
                self.fault_count += 1;
                self.faults.push_front(json!({ "wall": wall, "steps": at.steps, "what": fault.what }));
                self.faults.truncate(FAULTS);
            }
            _ => {}
        }
    }

    /// What is sent to the browser. What is not finite becomes null.
    fn sent(&self, status: &Status, now: f64) -> String {
        let view = &self.view;
        let started = view.started.as_ref();
        // Rounds per second, of the last rounds.
        let pace = self.stretch.back().zip(self.stretch.front()).and_then(|(first, last)| {
            let rounds = last.1.saturating_sub(first.1) as f64;
            // As long as the last round took longer than those before, it counts.
            let seconds = last.0.max(now.min(last.0 + 60.0)) - first.0;
            (rounds > 0.0 && seconds > 0.0).then(|| rounds / seconds)
        });
        json!({
            "now": now,
            "method": started.map(|started| &started.method),
            "network": started.map(|started| &started.network),
            "data": started.map(|started| &started.data),
            "budget": started.map(|started| started.budget.to_string()),
            "founders": started.map(|started| started.workers),
            "at": view.at,
            "left": view.at.left().map(|left| left.as_secs_f64()),
            "rate": view.rate,
            "loss": view.loss,
            "error": view.errors.last(),
            "best": view.best(),
            "model": view.model,
            "is_over": view.over.is_some(),
            "reason": status.reason,
            "epoch": status.epoch,
            "operation": status.op,
            "pace": pace,
            "traffic": per_second(status.traffic.control, status.traffic),
            "reports": per_second(status.traffic.reports, status.traffic),
            // At a free pace: steps beyond what rounds asked for.
            "overshot": Some(status.extra_steps).filter(|steps| *steps > 0),
            "members": status.workers.iter().map(|member| self.member(member)).collect::<Value>(),
            "rounds": thinned(&self.rounds),
            "losses": thinned(&self.losses),
            "errors": thinned(&self.errors),
            "faults": self.faults,
            "fault_count": self.fault_count,
        })
        .to_string()
    }

    fn member(&self, member: &MemberStatus) -> Value {
        let known = self.view.workers.iter().find(|worker| worker.worker == member.worker);
        let weights = known.map_or(&[][..], |worker| &worker.weights);
        let sum: f64 = weights.iter().map(|&weight| f64::from(weight)).sum();
        let state = match member.state {
            MemberState::Greeted => "connected",
            MemberState::Waiting => "waits for a donor",
            MemberState::Restoring(_) => "takes over",
            MemberState::Ready => "ready",
            MemberState::Active => "takes part",
        };
        json!({
            "worker": member.worker,
            "state": state,
            "address": member.address,
            "steps": member.steps,
            "total": known.map(|worker| worker.steps),
            "loss": known.and_then(|worker| worker.loss),
            // β of the last round, the mean over layers, and how many of them have one of their own.
            "weight": (!weights.is_empty()).then(|| sum / weights.len() as f64),
            "layers": weights.len(),
            "silent": member.silent.as_secs_f64(),
            "has_arrived": member.has_arrived,
            "is_awaited": member.is_awaited,
            "traffic": per_second(member.traffic.control, member.traffic),
            "reports": per_second(member.traffic.reports, member.traffic),
        })
    }
}

/// What `make` returns, made again at most once in this time, however many ask and however often: none of them can slow the run.
fn recent(time: Duration, make: impl Fn() -> String) -> impl Fn() -> String {
    let last: Mutex<Option<(Instant, String)>> = Mutex::new(None);
    move || {
        let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
        match &*last {
            Some((at, text)) if at.elapsed() < time => text.clone(),
            _ => {
                let text = make();
                *last = Some((Instant::now(), text.clone()));
                text
            }
        }
    }
}

/// A curve in few points, the last one among them.
fn thinned(curve: &Curve) -> Curve {
    let step = curve.len().div_ceil(POINTS).max(1);
    let last = curve.last().filter(|_| !(curve.len().max(1) - 1).is_multiple_of(step));
    curve.iter().step_by(step).chain(last).copied().collect()
}

fn per_second(bytes: u64, traffic: Traffic) -> f64 {
    bytes as f64 / traffic.open.as_secs_f64().max(1.0)
}

fn now() -> f64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0.0, |since| since.as_secs_f64())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::sync::atomic::{AtomicU32, Ordering};

    /// However many ask, the coordinator is asked a few times a second.
    #[test]
    fn a_status_is_made_seldom() {
        let made = AtomicU32::new(0);
        let began = Instant::now();
        let status = recent(Duration::from_millis(50), || made.fetch_add(1, Ordering::Relaxed).to_string());
        assert_eq!((status(), status()), ("0".into(), "0".into()));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| (0..1000).for_each(|_| drop(status())));
            }
        });
        std::thread::sleep(Duration::from_millis(50));
        let last: u32 = status().parse().unwrap();
        let most = began.elapsed().as_millis() / 50;
        assert!((1..=most).contains(&last.into()), "{last} in {:?}", began.elapsed());
    }

    proptest! {
        #[test]
        fn a_curve_is_short_even_and_ends_where_it_ends(count in 1u32..5000) {
            let points = thinned(&(0..count).map(|n| (f64::from(n), -f64::from(n))).collect());
            prop_assert!(points.len() <= POINTS + 1 && points.len() >= (POINTS / 2).min(count as usize));
            prop_assert_eq!(points[0], (0.0, 0.0));
            prop_assert_eq!(points[points.len() - 1].0, f64::from(count - 1));
            let gaps: Vec<f64> = points[..points.len() - 1].windows(2).map(|two| two[1].0 - two[0].0).collect();
            prop_assert!(gaps.iter().all(|gap| *gap == gaps[0]));
        }
    }
}
