//! A run on a terminal: drawn in place, at most ten times a second. Where standard error is no terminal, plain
//! lines are printed.

use super::lines::{LinePace, Lines};
use super::{View, line, render};
use crate::{Error, Event, Observer};
use console::Term;
use std::io;
use std::time::{Duration, Instant};

/// The time between two pictures.
const PAUSE: Duration = Duration::from_millis(100);

/// An observer that shows a run on standard error.
#[derive(Debug)]
pub struct Screen {
    view: View,
    term: Term,
    live: bool,
    /// One of many runs: who decides which of them make a line.
    passing: Option<LinePace>,
    drawn: usize,
    last: Option<Instant>,
    began: Instant,
    lines: Lines,
}

impl Screen {
    /// On standard error: in place if it is a terminal, else in plain lines.
    pub fn new() -> Self {
        let term = Term::buffered_stderr();
        let live = term.is_term();
        Screen {
            view: View::default(),
            term,
            live,
            passing: None,
            drawn: 0,
            last: None,
            began: Instant::now(),
            lines: Lines::default(),
        }
    }

    /// The same for a run of which this much has happened.
    pub fn after<'a>(so_far: impl IntoIterator<Item = &'a Event>) -> Self {
        let mut screen = Screen::new();
        so_far.into_iter().for_each(|event| screen.view.event(event));
        screen.lines = Lines::after(screen.view.at.share);
        screen
    }

    /// The same, and when the run is over one line of it is left: for one of many runs. Without a terminal at most one line a second.
    pub fn passing(pace: &LinePace) -> Self {
        Screen { passing: Some(pace.clone()), ..Screen::new() }
    }

    /// Takes the picture away and leaves one line.
    fn pass(&mut self) -> io::Result<()> {
        if !self.live && self.passing.as_ref().is_some_and(|pace| !pace.is_due()) {
            return Ok(());
        }
        self.term.clear_last_lines(std::mem::take(&mut self.drawn))?;
        let name = self.view.started.as_ref().map_or("", |started| started.method.as_str());
        self.term.write_line(&format!("{name:<28}  {}", line(&self.view)))?;
        self.term.flush()
    }

    fn draw(&mut self) -> io::Result<()> {
        let (height, width) = self.term.size();
        // One column and one line less: a full one would scroll.
        let lines =
            render(&self.view, usize::from(width).saturating_sub(1), usize::from(height).saturating_sub(1));
        self.term.clear_last_lines(self.drawn)?;
        for line in &lines {
            self.term.write_line(line)?;
        }
        self.drawn = lines.len();
        self.last = Some(Instant::now());
        self.term.flush()
    }

    fn tell(&mut self, event: &Event) -> io::Result<()> {
        for line in self.lines.event(event, &self.view, self.began.elapsed()) {
            self.term.write_line(&line)?;
        }
        self.term.flush()
    }
}

impl Default for Screen {
    fn default() -> Self {
        Screen::new()
    }
}

impl Observer for Screen {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        self.view.event(event);
        let urgent =
            !matches!(event, Event::Round(_) | Event::Checkpoint { .. } | Event::CheckpointWritten { .. });
        // A closed terminal does not stop the run: its record is elsewhere.
        let _ = match (self.passing.is_some(), self.live) {
            (true, _) if matches!(event, Event::Finished(_)) => self.pass(),
            (true, false) => Ok(()),
            (false, false) => self.tell(event),
            (_, true) if urgent || self.last.is_none_or(|last| last.elapsed() >= PAUSE) => self.draw(),
            (_, true) => Ok(()),
        };
        Ok(())
    }
}
