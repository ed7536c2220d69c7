//! `about.toml`: what made a run. With the recipe beside it, a run's folder holds all that is needed to judge it.

use crate::shell;
use serde::Serialize;
use std::fs;
use std::thread::available_parallelism;
use toml::Table;

/// The file's name.
pub const ABOUT: &str = "about.toml";

/// The program and the machine of a run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct About {
    /// The program's name and version.
    pub program: String,
    /// The commit it was built from, where that is known.
    pub commit: Option<String>,
    /// The command that started the run.
    pub command: String,
    /// The processor.
    pub processor: String,
    /// Cores that may be used.
    pub cores: usize,
    /// Bytes of memory, where that is known.
    pub memory: Option<u64>,
    /// System and architecture.
    pub system: String,
}

impl About {
    /// This machine, and the name of the program.
    pub fn here(program: &str, commit: Option<&str>) -> Self {
        let info = |file: &str, key: &str| {
            let text = fs::read_to_string(file).ok()?;
            let line = text.lines().find(|line| line.starts_with(key))?;
            Some(line.split_once(':')?.1.trim().to_owned())
        };
        let kilobytes =
            info("/proc/meminfo", "MemTotal").and_then(|text| text.split(' ').next()?.parse::<u64>().ok());
        About {
            program: program.into(),
            commit: commit.map(str::to_owned),
            command: shell::command(std::env::args_os()),
            processor: info("/proc/cpuinfo", "model name").unwrap_or_else(|| "unknown".into()),
            cores: available_parallelism().map_or(1, usize::from),
            memory: kilobytes.map(|kilobytes| kilobytes * 1024),
            system: format!("{} {}", std::env::consts::OS, std::env::consts::ARCH),
        }
    }

    /// As TOML, with the time of day the run started at (seconds since 1970).
    pub fn to_toml(&self, started: f64) -> String {
        let table = Table::try_from(self);
        let mut table = table.unwrap_or_else(|error| unreachable!("TOML holds words and numbers: {error}"));
        table.entry("commit").or_insert_with(|| "unknown".into());
        table.insert("started".into(), date(started).into());
        table.to_string()
    }
}

/// Seconds since 1970 as `2026-11-15T06:24:09Z`.
pub(super) fn date(seconds: f64) -> String {
    let seconds = seconds as i64;
    let (days, time) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // The civil calendar from days: years are counted from March, so that leap days come last.
    let days = days + 719_468;
    let era = days.div_euclid(146_097);
    let day_of_era = days.rem_euclid(146_097);
    let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let month = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}T{:02}:{:02}:{:02}Z", time / 3_600, time / 60 % 60, time % 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Against `date -u -d @SECONDS`.
    #[test]
    fn dates_are_those_of_the_calendar() {
        for (seconds, known) in [
            (0.0, "1970-01-01T00:00:00Z"),
            (951_782_400.0, "2000-02-29T00:00:00Z"),
            (1_709_251_199.9, "2024-02-29T23:59:59Z"),
            (1_735_689_600.0, "2025-01-01T00:00:00Z"),
            (4_107_542_400.0, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(date(seconds), known);
        }
    }

    #[test]
    fn the_machine_describes_itself_as_toml() {
        let about = About::here("grawa 0.1.0", Some("abc"));
        let table: Table = about.to_toml(0.0).parse().unwrap();
        assert_eq!((table["program"].as_str(), table["commit"].as_str()), (Some("grawa 0.1.0"), Some("abc")));
        assert!(table["cores"].as_integer().unwrap() >= 1);
    }
}
