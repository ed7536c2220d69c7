//! A coordinator at its desk: it listens for workers, writes down what they tell, and says how the run stands.

use crate::ending::Ending;
use crate::failure::Failure;
use crate::identity::Identity;
use crate::page::Page;
use crate::say::{say, warn};
use clap::Args;
use grawa_comm::group::{Host, Notice, Settings, Standing, State, Told, Wire};
use grawa_comm::{Lost, Why};
use grawa_train::observe::{About, EVENTS, Files, Repeats, Screen, Turns, read};
use grawa_train::recipe::Pace;
use grawa_train::{Event, Fault, Finished, Observer, Place, Reason, Recipe, folder, objection, told};
use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// What the coordinator itself must not forget.
const LOG: &str = "coordinator.log";
/// From one word about what is waited for to the next, before the run begins.
const PATIENCE: Duration = Duration::from_secs(10);
/// How often it is looked whether all are gone, and for how long what they told may be on its way after that.
const LOOK: Duration = Duration::from_millis(100);
const LAST: Duration = Duration::from_secs(1);
/// How long workers may take to leave when the run is over.
const LEAVE: Duration = Duration::from_secs(5);

/// How a run is watched.
#[derive(Args)]
pub(crate) struct Look {
    /// Where to serve the page that shows the run live, to whoever reaches it; port 0 is any, `none` is no page [default: 127.0.0.1:0, none
    /// with --quiet]
    #[arg(long, value_name = "HOST:PORT", value_parser = crate::address::address_or_none)]
    page: Option<String>,
}

/// A run that is being coordinated.
pub(crate) struct Desk {
    pub(crate) host: Arc<Host>,
    pub(crate) place: PathBuf,
    pub(crate) workers: u32,
    files: Files,
    page: Option<Page>,
    /// What was told to a coordinator before this one, and when.
    so_far: Vec<(Event, f64)>,
    identity: Identity,
    hold: folder::Hold,
}

impl Look {
    /// Where the page is to be served, if it is.
    pub(crate) fn at(&self, quiet: bool) -> Option<&str> {
        let at = self.page.as_deref().unwrap_or(if quiet { "none" } else { "127.0.0.1:0" });
        (at != "none").then_some(at)
    }
}

impl Desk {
    /// Begins to coordinate a new run in its folder.
    pub(crate) fn begin(
        recipe: &Recipe,
        place: &Path,
        listen: &str,
        wire: Wire,
        patience: Duration,
    ) -> Result<Self, Failure> {
        let (run, keyed) = (Identity::number(), matches!(wire, Wire::Tls(_)));
        let hold = folder::hold(place, false)?;
        let host = host(recipe, place, listen, wire, (run, patience))?;
        let identity = Identity::create(place, run, host.address().to_string(), keyed)?;
        let files = Files::create(place, &about())?;
        let (host, place, workers) = (Arc::new(host), place.into(), recipe.train.workers);
        Ok(Desk { host, place, workers, files, page: None, so_far: Vec::new(), identity, hold })
    }

    /// Goes on in the place of a coordinator that has ended, where it listened unless another place is given. Nothing if the run is
    /// finished.
    pub(crate) fn go_on(
        place: &Path,
        listen: Option<&str>,
        wire: Wire,
        patience: Duration,
    ) -> Result<Option<Self>, Failure> {
        let identity = Identity::read(place, matches!(wire, Wire::Tls(_)))?;
        let recipe = folder::recipe(place)?;
        let hold = folder::hold(place, false)?;
        if let Some(why) = objection(&recipe) {
            return Err(grawa_train::Error::NotElastic { why }.into());
        }
        let files = match place.join(EVENTS).exists() {
            true => Files::reopen(place)?,
            false => Files::create(place, &about())?,
        };
        let so_far = read(place)?;
        if so_far
            .iter()
            .any(|(event, _)| matches!(event, Event::Finished(end) if end.reason == Reason::Spent))
        {
            return Ok(None);
        }
        let host = host(&recipe, place, listen.unwrap_or(&identity.address), wire, (identity.run, patience))?;
        let (host, place, workers) = (Arc::new(host), place.into(), recipe.train.workers);
        Ok(Some(Desk { host, place, workers, files, page: None, so_far, identity, hold }))
    }

    /// Serves the page that was asked for, and says where.
    pub(crate) fn show(&mut self, look: &Look, quiet: bool) -> Result<(), Failure> {
        if let Some(at) = look.at(quiet) {
            let page = Page::after(&self.so_far);
            say(&format!("watch it at http://{}/", page.serve(at, &self.host)?));
            self.page = Some(page);
        }
        Ok(())
    }

    /// Takes note of what the workers tell, until the run is finished, or it `is_over` and nothing more is told. Returns how it ended, if
    /// it was told, and whether a checkpoint was kept.
    pub(crate) fn follow(
        self,
        quiet: bool,
        is_stopped: impl Fn() -> bool,
        is_over: impl Fn() -> bool,
    ) -> Result<(Option<Finished>, bool), Failure> {
        let Desk { host, place, files, page, so_far, .. } = self;
        // Both hold until the end.
        let _held = (self.identity, self.hold);
        let so_far: Vec<Event> = so_far.into_iter().map(|(event, _)| event).collect();
        let (mut repeats, mut turns) = (so_far.iter().collect::<Repeats>(), Turns::after(&so_far));
        let mut has_started = so_far.iter().any(|event| matches!(event, Event::Started(_)));
        let mut is_kept = so_far.iter().any(|event| matches!(event, Event::Checkpoint { .. }));
        let mut at = so_far.last().map_or(Place::default(), |event| *event.place());
        let mut observers: Vec<Box<dyn Observer>> = vec![Box::new(files)];
        if let Some(page) = page {
            observers.push(Box::new(page));
        }
        if !quiet {
            observers.push(Box::new(Screen::after(&so_far)));
        }
        let mut tell = |event: &Event| observers.iter_mut().try_for_each(|observer| observer.event(event));
        if has_started {
            let what = "the coordinator was gone; another goes on from its log".into();
            tell(&Event::Fault(Fault { at, worker: None, what }))?;
        }
        drop(so_far);
        let (began, mut last) = (Instant::now(), Instant::now());
        let (mut looked, mut over) = (Instant::now(), None);
        let mut last_word: Option<(Instant, Event)> = None;
        let (mut ending, mut is_agreed) = (Ending::default(), false);
        // At the end all leave: that is no fault.
        let mut left: Vec<(Instant, Notice)> = Vec::new();
        loop {
            let told = host.next(LOOK);
            if told.is_none() || looked.elapsed() > LOOK {
                looked = Instant::now();
                if is_over() {
                    over.get_or_insert(looked);
                }
            }
            // What those told who are gone is still heard, and what others have to tell when one says that the run is over. Who asks for
            // a stop does not wait for it.
            let is_last = match &last_word {
                Some((came, _)) => {
                    let at_work = |one: &Standing| one.state == State::Active;
                    told.is_none() && !host.status().workers.iter().any(at_work) || came.elapsed() > LEAVE
                }
                None => told.is_none() && over.is_some_and(|over: Instant| over.elapsed() > LAST),
            };
            if is_last || is_stopped() {
                turns.rest().iter().try_for_each(&mut tell)?;
                let Some((_, event)) = last_word else { return Ok((None, is_kept)) };
                tell(&event)?;
                let overshot = host.status().overshot;
                if overshot > 0 && !quiet {
                    say(&format!(
                        "{overshot} steps more than the pace asks for were taken before all had heard of a round; they count"
                    ));
                }
                let end = if let Event::Finished(end) = event { Some(end) } else { None };
                return Ok((end, is_kept));
            }
            let mut due = match told {
                None => {
                    if last.elapsed() > PATIENCE && !quiet {
                        last = Instant::now();
                        let status = host.status();
                        if status.workers.is_empty() {
                            warn(&format!("no worker is here; listening at {}", host.address()));
                        } else if status.truth.is_none() {
                            warn(&status.reason);
                        }
                    }
                    turns.due(began.elapsed())
                }
                Some(Told::Word { worker, what }) => match told::unpack(&what) {
                    // Every worker says that the run is over; one alone is not believed.
                    Ok(Event::Finished(end)) => {
                        ending.say(worker, end);
                        Vec::new()
                    }
                    // Every worker says that it begins; the run begins once.
                    Ok(Event::Started(_)) if std::mem::replace(&mut has_started, true) => continue,
                    Ok(event) if repeats.is_new(&event) => {
                        if matches!(event, Event::Round(_)) {
                            ending.goes_on(|| voters(&host));
                        }
                        turns.take(event, began.elapsed())
                    }
                    _ => continue,
                },
                Some(Told::Notice(Notice::Joined { .. })) => {
                    ending.goes_on(|| voters(&host));
                    continue;
                }
                Some(Told::Notice(Notice::Overshot { .. })) => continue,
                // Who goes when the run is over is not missed, whether its last word was heard or not.
                Some(Told::Notice(Notice::Lost(_))) if last_word.is_some() => continue,
                Some(Told::Notice(Notice::Lost(Lost { worker, why: Why::Left })))
                    if ending.is_said_by(worker) =>
                {
                    continue;
                }
                Some(Told::Notice(notice @ Notice::Lost(Lost { why: Why::Left, .. }))) => {
                    left.push((Instant::now(), notice));
                    continue;
                }
                Some(Told::Notice(notice)) => vec![fault(&notice, at, &place)],
                Some(Told::Stranger { from, why }) => {
                    let what = format!("a connection from {from} was refused: {why}");
                    vec![Event::Fault(Fault { at, worker: None, what })]
                }
                Some(Told::Failed { why }) => return Err(Failure::Coordinator { why }),
            };
            if !is_agreed && let Some(end) = ending.agreed(|| voters(&host)) {
                is_agreed = true;
                due.extend(turns.take(Event::Finished(end.clone()), began.elapsed()));
            }
            let is_fault = |(at, _): &(Instant, Notice)| last_word.is_none() && at.elapsed() > LAST;
            let faults =
                left.extract_if(.., |one| is_fault(one)).map(|(_, notice)| fault(&notice, at, &place));
            let due: Vec<Event> = faults.chain(due).collect();
            for event in due {
                at = *event.place();
                is_kept |= matches!(event, Event::Checkpoint { .. });
                match event {
                    Event::Finished(_) => drop(last_word.get_or_insert((Instant::now(), event))),
                    event => tell(&event)?,
                }
            }
        }
    }
}

/// Those of whom most must say that the run is over.
fn voters(host: &Host) -> BTreeSet<u32> {
    host.status().workers.iter().filter(|one| one.has_vote).map(|one| one.worker).collect()
}

fn host(
    recipe: &Recipe,
    place: &Path,
    listen: &str,
    wire: Wire,
    (run, succession): (u64, Duration),
) -> Result<Host, Failure> {
    let trigger = (recipe.train.pace == Pace::Free).then(|| u64::from(recipe.method.cycle().max(1)));
    let usual = Settings::default();
    // At a free pace a round is called for by signs of life: the seldomer they are, the more is taken beyond it.
    let beat = if trigger.is_some() { usual.beat / 5 } else { usual.beat };
    let settings = Settings { founders: recipe.train.workers, succession, trigger, beat, ..usual };
    let charter = recipe.to_toml().into_bytes();
    Ok(Host::new(listen, wire, settings, run, charter, Some(&place.join(LOG)))?)
}

fn about() -> About {
    About::here(concat!("grawa ", env!("CARGO_PKG_VERSION")), option_env!("GRAWA_COMMIT"))
}

fn fault(notice: &Notice, at: Place, place: &Path) -> Event {
    let worker = if let Notice::Lost(lost) = notice { Some(lost.worker) } else { None };
    let mut what = notice.to_string();
    if matches!(notice, Notice::Orphaned { .. }) && place.join("checkpoints").exists() {
        what += &format!(
            "; if none will come, start workers with --out {0}, which bring back what its last checkpoint holds, or end this and \
             go on without them: grawa train --resume {0}",
            place.display()
        );
    }
    Event::Fault(Fault { at, worker, what })
}
