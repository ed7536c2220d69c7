//! A program that `grawa launch -- COMMAND` or `grawa join … -- COMMAND` has started finds its group in the environment.

use super::join::Joiner;
use crate::Error;
use crate::group::wire::tls::Security;
use std::path::Path;
use std::time::Duration;

/// The variables: where the coordinator listens, the key (none where there is no encryption), how many workers the process has, and where
/// it listens for other members.
pub const COORDINATOR: &str = "GRAWA_COORDINATOR";
/// See [`COORDINATOR`].
pub const KEY: &str = "GRAWA_KEY";
/// See [`COORDINATOR`]: `plain` where there is no key, so that a forgotten key is not taken for a network without encryption.
pub const WIRE: &str = "GRAWA_WIRE";
/// See [`COORDINATOR`].
pub const WORKERS: &str = "GRAWA_WORKERS";
/// See [`COORDINATOR`].
pub const LISTEN: &str = "GRAWA_LISTEN";
/// See [`COORDINATOR`]: the host by which other members reach this one, if it is another.
pub const HOST: &str = "GRAWA_HOST";

/// See [`COORDINATOR`]: the number that its first worker gets if it is free.
pub const WORKER: &str = "GRAWA_WORKER";

/// How long to wait for the coordinator.
const PATIENCE: Duration = Duration::from_secs(60);

impl Joiner {
    /// Joins the run of the command that has started this program. `None` if it was started otherwise.
    pub fn from_environment() -> Result<Option<Self>, Error> {
        Self::from_environment_within(PATIENCE)
    }

    /// The same with another time to wait for the coordinator.
    pub fn from_environment_within(patience: Duration) -> Result<Option<Self>, Error> {
        Self::from_variables(|name| std::env::var(name).ok().filter(|value| !value.is_empty()), patience)
    }

    fn from_variables(
        read: impl Fn(&str) -> Option<String>,
        patience: Duration,
    ) -> Result<Option<Self>, Error> {
        let Some(address) = read(COORDINATOR) else { return Ok(None) };
        let security = match (read(KEY), read(WIRE).as_deref()) {
            (Some(path), None) => Security::with_key(Path::new(&path))?,
            (None, Some("plain")) => Security::Plain,
            (key, wire) => {
                let found = match (key, wire) {
                    (Some(_), _) => format!("both {KEY} and {WIRE} are set"),
                    (None, Some(wire)) => format!("{WIRE} is '{wire}'"),
                    (None, None) => format!("neither {KEY} nor {WIRE} is set"),
                };
                let why = format!(
                    "{found}: set {KEY} to the run's key file, or {WIRE}=plain for a trusted network"
                );
                return Err(Error::Connection { why });
            }
        };
        let workers = match read(WORKERS) {
            None => 1,
            Some(text) => text.parse().ok().filter(|workers| *workers > 0).ok_or_else(|| {
                let why = format!("{WORKERS} is '{text}', and must be a number of workers");
                Error::Connection { why }
            })?,
        };
        let wish = read(WORKER).and_then(|text| text.parse().ok());
        let listen = read(LISTEN).unwrap_or_else(|| "127.0.0.1:0".into());
        let host = read(HOST);
        let place = (listen.as_str(), host.as_deref());
        Self::with_numbers((wish, workers), &address, security, place, patience).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::group::{CoordinatorServer, Settings};

    #[test]
    fn a_program_finds_its_group() {
        let settings = Settings { founders: 3, ..Settings::default() };
        let server =
            CoordinatorServer::new("127.0.0.1:0", Security::Plain, settings, 5, b"charter".to_vec(), None)
                .unwrap();
        let address = server.address().to_string();
        let read = |workers: &'static str| {
            let address = address.clone();
            move |name: &str| match name {
                COORDINATOR => Some(address.clone()),
                WORKERS => Some(workers.into()),
                WIRE => Some("plain".into()),
                _ => None,
            }
        };
        let joiner = Joiner::from_variables(read("3"), PATIENCE).unwrap().unwrap();
        assert_eq!((joiner.workers, &joiner.charter[..]), (3, &b"charter"[..]));
        assert!(Joiner::from_variables(|_| None, PATIENCE).unwrap().is_none());
        let error = Joiner::from_variables(read("none"), PATIENCE).unwrap_err().to_string();
        assert!(error.contains("GRAWA_WORKERS is 'none'"), "{error}");
        // No encryption is a choice.
        for (wire, words) in
            [(None, "neither GRAWA_KEY nor GRAWA_WIRE is set"), (Some("none"), "GRAWA_WIRE is 'none'")]
        {
            let read = |name: &str| match name {
                COORDINATOR => Some(address.clone()),
                WIRE => wire.map(String::from),
                _ => None,
            };
            let error = Joiner::from_variables(read, PATIENCE).unwrap_err().to_string();
            assert!(error.contains(words) && error.contains("GRAWA_WIRE=plain"), "{error}");
        }
    }
}
