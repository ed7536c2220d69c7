//! Observers of a run: files and a terminal.
//!
//! [`Files`] writes the record to a run's folder: what is reproducible (`events.jsonl`, `metrics.csv`), and apart from it times and
//! sessions. [`Screen`] shows a run on a terminal, or prints plain lines where there is none; what it shows is a pure function of a
//! [`View`].

mod about;
mod appended;
mod files;
mod lines;
mod log;
mod metrics;
mod render;
#[cfg(test)]
pub(crate) mod sample;
mod screen;
mod tensorboard;
mod view;

pub use about::{ABOUT, About};
pub use files::Files;
pub use lines::LinePace;
pub use log::{EVENTS, Entry, JOURNAL, Log, read};
pub(crate) use log::{goes_back, read_all, record_continues_from};
pub use metrics::METRICS;
pub use render::{line, render};
pub use screen::Screen;
pub use tensorboard::TENSORBOARD;
pub use view::{View, Worker};
