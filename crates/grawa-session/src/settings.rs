//! What all processes of a run must agree on.

#[cfg(feature = "group")]
use crate::agreement::{first_difference, recorded};
use crate::milestones::{MilestoneSettings, Milestones};
use crate::{Error, Format, Pace};
#[cfg(feature = "group")]
use grawa_comm::group::{self, CoordinatorServer, Joiner, Proposal, Security};
use grawa_core::{Amount, Layout, Method, Score, Share, Source};
#[cfg(feature = "group")]
use serde_json::Value;
#[cfg(feature = "group")]
use std::path::Path;
use std::time::Duration;

/// Why [`Method::qsr`] needs an even pace.
#[doc(hidden)]
pub const QSR_AT_A_FREE_PACE: &str = "qsr changes the period during the run, and at a free pace workers share out a fixed number of steps; set pace = 'even' or qsr = 0";

/// A run of sessions: all of its processes give the same settings.
#[derive(Clone, Debug, PartialEq)]
pub struct Settings {
    /// A name for the model, for records.
    pub name: String,
    /// The method.
    pub method: Method,
    /// The parameters that are shared: one span for each tensor.
    pub layout: Layout,
    /// Running statistics that are averaged for the evaluated model, such as those of batch norm: see [`crate::Session::evaluate`]. None by
    /// default.
    pub statistics: Option<Layout>,
    /// Workers that the run begins with. More may join an elastic group later.
    pub workers: u32,
    /// How much to train. Steps are those of each worker; epochs are passes of all workers over the data.
    pub budget: Amount,
    /// How often all make the model to be evaluated, see [`crate::Due::Evaluate`]. It is also made at the end.
    pub evaluate: Option<Amount>,
    /// Examples of a local step.
    pub batch: u32,
    /// Examples of the training set.
    pub examples: usize,
    /// The seed of the run.
    pub seed: u64,
    /// Who takes how many steps between two rounds.
    pub pace: Pace,
    /// How numbers are sent in an elastic group.
    pub wire: Format,
    /// An elastic group waits at least this long in a round for workers that are late; one that it goes on without loses its steps since the last
    /// round. By default 2 s, longer where rounds vary or are rare. In milliseconds.
    pub wait: Option<Duration>,
    /// What workers do with buffers that are not shared, in words of the program: all must give the same. None by default.
    pub buffers: Option<String>,
}

impl Settings {
    /// Settings of a run in steps, with the other settings at their defaults.
    ///
    /// ```
    /// use grawa_core::Layout;
    /// use grawa_session::Settings;
    /// let layout = Layout::new([("fc.weight", vec![10, 64]), ("fc.bias", vec![10])])?;
    /// let settings = Settings::new("mean:period=8".parse()?, layout, 4, "400step".parse()?);
    /// assert_eq!(settings.method.period, 8);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn new(method: Method, layout: Layout, workers: u32, budget: Amount) -> Self {
        Settings {
            name: "a model".into(),
            method,
            layout,
            statistics: None,
            workers,
            budget,
            evaluate: None,
            batch: 1,
            examples: 1,
            seed: 0,
            pace: Pace::Even,
            wire: Format::F32,
            wait: None,
            buffers: None,
        }
    }

    /// Whether a session can carry this out.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.method.check()?;
        for (what, found) in
            [("workers", self.workers as usize), ("batch", self.batch as usize), ("examples", self.examples)]
        {
            if found == 0 {
                return Err(Error::Zero { what });
            }
        }
        let refuse = |why| Err(Error::NotInSession { method: self.method.to_string(), why });
        match () {
            () if self.method.share == Share::Gradients => refuse(
                "it shares gradients at every step, which a session does not see; use a method that shares parameters, such as mean",
            ),
            () if self.method.inner.is_some() => {
                refuse("groups inside groups are scored twice in a round; remove inner.group")
            }
            () if self.method.qsr > 0.0 && self.pace == Pace::Free => refuse(QSR_AT_A_FREE_PACE),
            () => Ok(()),
        }
    }

    /// Whether rounds need the norms of a score batch's gradient.
    pub(crate) fn scores_batches(&self) -> bool {
        matches!(self.method.score, Score::Norm { from: Source::Batch { .. }, .. })
    }

    pub(crate) fn milestones(&self) -> Milestones {
        Milestones::new(&MilestoneSettings {
            method: &self.method,
            workers: self.workers,
            batch: self.batch,
            examples: self.examples,
            budget: self.budget,
            evaluate: self.evaluate,
            checkpoint: None,
        })
    }
}

#[cfg(feature = "group")]
impl Settings {
    /// The settings as bytes, for the charter of a coordinator.
    pub fn charter(&self) -> Vec<u8> {
        Value::Object(self.entries()).to_string().into_bytes()
    }

    /// That a coordinator's run has the same settings; names the first that differs. A coordinator that has no charter yet gets this one.
    pub(crate) fn agree_with(&self, joiner: &mut Joiner) -> Result<(), Error> {
        if joiner.charter.is_empty() {
            let trigger = trigger(&self.method, self.pace);
            joiner.propose(Proposal {
                charter: self.charter(),
                trigger,
                wait: self.wait.map(milliseconds),
            })?;
        }
        let charter = &joiner.charter;
        let Some(expected) = recorded(charter) else {
            let there = "one of grawa's own models (start the coordinator without a recipe and its options, with --workers only)";
            let (what, found) = ("the run".into(), "a session of this program".into());
            return Err(Error::AnotherRun { what, found, expected: there.into() });
        };
        let mut mine = self.entries();
        if !expected.contains_key("buffers") {
            // A run that was begun before this was compared.
            mine.remove("buffers");
        }
        match first_difference(&mine, &expected) {
            Some((what, found, expected)) => Err(Error::AnotherRun { what, found, expected }),
            None => Ok(()),
        }
    }

    /// Starts a coordinator of such a run. It must be kept alive while workers train; its events are read with
    /// [`CoordinatorServer::next`]. With a log, another coordinator can continue where this one ended.
    pub fn coordinate(
        &self,
        listen: &str,
        security: Security,
        run: u64,
        log: Option<&Path>,
    ) -> Result<CoordinatorServer, Error> {
        self.check()?;
        if let Some(why) = crate::elastic::objection(&self.method) {
            return Err(Error::NotElastic { why });
        }
        let usual = coordinator_settings(&self.method, self.workers, self.pace);
        let settings = group::Settings { wait: self.wait, ..usual };
        Ok(CoordinatorServer::new(listen, security, settings, run, self.charter(), log)?)
    }
}

/// Whole milliseconds, as settings are compared and sent.
pub(crate) fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

/// At a free pace: local steps per worker and round.
#[cfg(feature = "group")]
fn trigger(method: &Method, pace: Pace) -> Option<u64> {
    (pace == Pace::Free).then(|| u64::from(method.cycle().max(1)))
}

/// How a coordinator of such a run works.
#[cfg(feature = "group")]
#[doc(hidden)]
pub fn coordinator_settings(method: &Method, workers: u32, pace: Pace) -> group::Settings {
    let usual = group::Settings { founders: workers, ..group::Settings::default() };
    trigger(method, pace).map_or(usual, |steps| usual.at_free_pace(steps))
}
