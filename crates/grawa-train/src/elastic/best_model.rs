//! The best model of a group, when the worker that keeps it leaves and another one takes over.

use super::*;
use crate::recipe::Overrides;
use crate::{Event, folder, make_room};
use grawa_comm::group::{CoordinatorServer, Security, Settings};
use std::sync::Mutex;
use std::sync::atomic::Ordering;
use std::time::Duration;

const LONG: Duration = Duration::from_secs(120);
/// After so many evaluations the first worker leaves.
const LEAVES: usize = 3;

/// Notes the errors that a worker reports, and makes it leave.
struct Errors(Arc<Mutex<Vec<f64>>>, Stop);

impl Observer for Errors {
    fn event(&mut self, event: &Event) -> Result<(), Error> {
        if let Event::Evaluated(evaluated) = event {
            let mut errors = self.0.lock().unwrap();
            errors.extend(evaluated.error());
            self.1.asked.fetch_or(errors.len() >= LEAVES, Ordering::Relaxed);
        }
        Ok(())
    }
}

/// A run of two workers with these folders, the first of which leaves. Returns the errors that each of them reported: the first while it
/// was there, then the second.
fn errors_of(folders: [&Path; 2]) -> [Vec<f64>; 2] {
    let data = grawa_data::digits().unwrap();
    // From the third evaluation on the model hardly changes: those that follow are not better than all before them.
    let settings = [
        "model.width=4",
        "train.workers=2",
        "train.batch=16",
        "train.budget=64step",
        "train.rate=0.1, x1e-6 at 12step",
        "evaluate.every=4step",
        "machine.threads=1",
    ];
    let said = Overrides::default().method("mean:period=4", "test").unwrap();
    let said = settings.iter().fold(said, |said, setting| said.set(setting).unwrap());
    let recipe = Recipe::resolve(&said).unwrap();
    let settings = Settings { founders: 2, silence: LONG, ..Settings::default() };
    let charter = recipe.to_toml().into_bytes();
    let server = CoordinatorServer::new("127.0.0.1:0", Security::Plain, settings, 1, charter, None).unwrap();
    let errors = [(); 2].map(|()| Arc::<Mutex<Vec<f64>>>::default());
    std::thread::scope(|scope| {
        let workers = [0, 1].map(|number| {
            let address = server.address().to_string();
            let joiner = Joiner::new(&address, Security::Plain, "127.0.0.1:0", None, LONG).unwrap();
            let (_hold, _) = make_room(folders[number], &recipe, joiner.run()).unwrap();
            // Only the first is asked to leave.
            let (stop, asked) = (Stop::default(), Stop::default());
            let asked = if number == 0 { stop.clone() } else { asked };
            let observer = Errors(Arc::clone(&errors[number]), asked);
            let (recipe, data) = (recipe.clone(), &data);
            scope.spawn(move || {
                join(recipe, data, joiner, Some(folders[number]), stop, &mut [Box::new(observer)])
            })
        });
        let [first, second] = workers.map(|worker| worker.join().unwrap());
        assert!(matches!(first, Err(Error::Session(grawa_session::Error::Left))), "{first:?}");
        second.unwrap();
    });
    let errors = errors.map(|errors| errors.lock().unwrap().clone());
    assert!(errors[0].len() >= LEAVES && !errors[1].is_empty(), "{errors:?}");
    errors
}

fn lowest(errors: &[f64]) -> f64 {
    errors.iter().copied().fold(f64::INFINITY, f64::min)
}

fn best(folder: &Path) -> Option<f64> {
    folder::best(folder).unwrap().map(|(_, error)| error)
}

/// In one folder the best of all is kept, whoever found it. In folders of their own, each has the best since it wrote.
#[test]
fn the_best_model_survives_a_change_of_its_keeper() {
    let place = tempfile::tempdir().unwrap();
    let [shared, first, second] = ["shared", "first", "second"].map(|name| place.path().join(name));
    let errors = errors_of([&shared, &shared]);
    assert_eq!(best(&shared), Some(lowest(&errors.concat())));
    let errors = errors_of([&first, &second]);
    assert_eq!([best(&first), best(&second)], errors.map(|errors| Some(lowest(&errors))));
}
