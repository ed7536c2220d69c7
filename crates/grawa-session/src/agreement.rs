//! That all workers of a run have the same settings: the settings by name, and the first one that differs.

use crate::settings::milliseconds;
use crate::{Error, Settings};
use grawa_comm::{Error as CommError, Transport};
use grawa_core::{Layout, Method};
use serde_json::{Map, Value, json};

/// Settings by name.
pub(crate) type Entries = Map<String, Value>;

impl Settings {
    /// The settings by name, as a coordinator gives them to those who join. Tensors have their number, too: parameters
    /// and statistics are averaged by their place.
    pub(crate) fn entries(&self) -> Entries {
        let mut entries = Entries::new();
        let all = [("tensor", Some(&self.layout)), ("statistics", self.statistics.as_ref())];
        for (kind, layout) in all {
            for (span, number) in layout.into_iter().flat_map(Layout::spans).zip(1..) {
                let place = format!("number {number} of shape {:?}", span.shape());
                entries.insert(format!("{kind} {}", span.name()), json!(place));
            }
        }
        entries.extend(of_method(&self.method));
        for (name, value) in [
            ("name", json!(self.name)),
            ("workers", json!(self.workers)),
            ("budget", json!(self.budget)),
            ("evaluate", json!(self.evaluate)),
            ("batch", json!(self.batch)),
            ("examples", json!(self.examples)),
            ("seed", json!(self.seed)),
            ("pace", json!(self.pace.as_str())),
            ("wire", json!(self.wire.as_str())),
        ] {
            entries.insert(name.into(), value);
        }
        // Runs that were begun before there was this setting have none.
        entries.extend(self.wait.map(|wait| ("wait".into(), json!(milliseconds(wait)))));
        entries.extend(self.buffers.as_ref().map(|buffers| ("buffers".into(), json!(buffers))));
        entries
    }

    /// That all processes of a transport have the same settings and bring as many parameters. All get the same error,
    /// also one whose own settings are wrong: nobody waits for it. To be called before anything that can fail.
    pub(crate) fn agree_over(&self, transport: &dyn Transport, parameters: usize) -> Result<(), Error> {
        let mut mine = self.entries();
        mine.insert("the number of parameters".into(), json!(parameters));
        let mut all =
            transport.group(0..transport.size(), Vec::new())?.ok_or(Error::Comm(CommError::NotInGroup))?;
        let gathered = all.gather(Value::Object(mine).to_string().as_bytes())?.messages;
        let mut first: Option<(u32, Entries)> = None;
        for (worker, message) in gathered {
            let found = serde_json::from_slice(&message)
                .map_err(|_| Error::Garbled { worker, found: message.len() })?;
            let Some((one, expected)) = &first else {
                first = Some((worker, found));
                continue;
            };
            if let Some((what, found, expected)) = first_difference(&found, expected) {
                return Err(Error::WorkersDiffer { what, worker, found, other: *one, expected });
            }
        }
        Ok(())
    }
}

/// Each knob by itself: what the method's name alone means may change.
fn of_method(method: &Method) -> impl Iterator<Item = (String, Value)> {
    method.to_knobs().into_iter().map(|(knob, value)| (format!("method.{knob}"), json!(value)))
}

/// The settings that were recorded, also those of an older program, which has written the method as a text, and of statistics the shape.
#[cfg(feature = "group")]
pub(crate) fn recorded(charter: &[u8]) -> Option<Entries> {
    let mut entries: Entries = serde_json::from_slice(charter).ok()?;
    if let Some(method) = entries.remove("method") {
        entries.extend(of_method(&Method::recorded_before(method.as_str()?).ok()?));
    }
    Some(entries)
}

/// The name of the first setting that differs, and both values.
pub(crate) fn first_difference(found: &Entries, expected: &Entries) -> Option<(String, String, String)> {
    let missing = Value::from("missing");
    // Another method differs in many knobs; its name says it.
    let names = ["method.name"].into_iter().chain(found.keys().chain(expected.keys()).map(String::as_str));
    names.into_iter().find_map(|name| {
        let (here, there) = (found.get(name).unwrap_or(&missing), expected.get(name).unwrap_or(&missing));
        // An older program has recorded the shape of statistics without their number.
        let is_same_shape = name.starts_with("statistics ")
            && here.as_str().zip(there.as_str()).is_some_and(|(here, there)| {
                there.starts_with('[') && here.ends_with(&format!(" of shape {there}"))
            });
        (here != there && !is_same_shape).then(|| (name.to_owned(), here.to_string(), there.to_string()))
    })
}

#[cfg(all(test, feature = "group"))]
mod tests {
    use super::*;

    /// A coordinator's journal of an older program: its run has the method that the text meant then, and no other one
    /// joins it.
    #[test]
    fn a_recorded_charter_keeps_its_method() {
        let settings = |method: &str| {
            let (method, budget) = (method.parse().unwrap(), "40step".parse().unwrap());
            Settings::new(method, Layout::flat(2), 3, budget)
        };
        let mut old = settings("mean").entries();
        old.retain(|name, _| !name.starts_with("method."));
        old.insert("method".into(), json!("mean:period=4"));
        let old = recorded(Value::Object(old).to_string().as_bytes()).unwrap();
        assert_eq!(first_difference(&settings("mean:period=4,pull=0.5,prox=0.01").entries(), &old), None);
        let (what, found, expected) = first_difference(&settings("mean:period=4").entries(), &old).unwrap();
        assert_eq!(
            (what.as_str(), found.as_str(), expected.as_str()),
            ("method.prox", "\"0.0\"", "\"0.01\"")
        );
        // Of statistics it has recorded the shape alone.
        let averaged = |width| {
            let statistics = Layout::new([("bn.mean", vec![width]), ("bn.var", vec![width])]).ok();
            Settings { statistics, ..settings("mean:period=4,pull=0.5,prox=0.01") }.entries()
        };
        let mut counted = old.clone();
        counted.extend(["bn.mean", "bn.var"].map(|name| (format!("statistics {name}"), json!("[64]"))));
        assert_eq!(first_difference(&averaged(64), &counted), None);
        let (what, _, expected) = first_difference(&averaged(4), &counted).unwrap();
        assert_eq!((what.as_str(), expected.as_str()), ("statistics bn.mean", "\"[64]\""));
        // A wait is a setting like the others; runs of before have none.
        let patient = Settings { wait: Some(std::time::Duration::from_secs(30)), ..settings("mean") };
        let found = first_difference(&patient.entries(), &settings("mean").entries()).unwrap();
        assert_eq!((found.0.as_str(), found.1.as_str()), ("wait", "30000"));
        // What is written now is read back.
        let now = settings("diloco:momentum=0.3");
        assert_eq!(recorded(Value::Object(now.entries()).to_string().as_bytes()), Some(now.entries()));
        assert_eq!(recorded(b"a recipe"), None);
    }
}
