//! The command that was given, with a model that is whole in the place of one that is damaged.

use crate::failure::Failure;
use grawa_train::{Error, folder, shell};
use std::ffi::OsString;
use std::path::Path;

/// The commands to give instead of these words, if the error is a damaged checkpoint: the best model first.
pub(crate) fn commands(error: &Failure, words: &[OsString]) -> Vec<String> {
    let Failure::Train(error) = error else { return Vec::new() };
    let (run, best, older) = match error {
        Error::NewestUnusable { run, best, older, .. } => (run, best, Some(older)),
        Error::NoUsableCheckpoint { path, best, .. } => (path, best, None),
        Error::OnlyTheStart { run, best, .. } => (run, best, None),
        _ => return Vec::new(),
    };
    let best = best.as_ref().map(|(path, _)| path);
    if words.iter().any(|word| word == "--resume") {
        // Another run, from the best model.
        let recipe = run.join(folder::RECIPE);
        let start = |best: &Path| {
            let given = [("--recipe", recipe.as_os_str()), ("--init", best.as_os_str())];
            let given = given.map(|(option, value)| format!("{option} {}", shell::word(value)));
            format!("grawa train {}", given.join(" "))
        };
        return best.into_iter().map(|best| start(best)).collect();
    }
    best.into_iter().chain(older).filter_map(|model| with_model(words, run, model)).collect()
}

/// The words with another model, if they name this one.
fn with_model(words: &[OsString], run: &Path, model: &Path) -> Option<String> {
    let mut is_named = false;
    // Where something is written is no model.
    let is_output =
        |at: usize| words[at].to_string_lossy().starts_with("--out=") || at > 0 && words[at - 1] == *"--out";
    let mut replaced = |(at, word): (usize, &OsString)| {
        let text = word.to_string_lossy();
        // `RUN`, `--init=RUN` and `model.init=RUN`.
        let value = text.rsplit_once('=').map(|(_, value)| value).filter(|_| !Path::new(word).exists());
        match value {
            _ if is_output(at) => word.clone(),
            _ if Path::new(word) == run => {
                is_named = true;
                model.into()
            }
            Some(value) if Path::new(value) == run => {
                is_named = true;
                OsString::from(format!("{}{}", &text[..text.len() - value.len()], model.display()))
            }
            _ => word.clone(),
        }
    };
    let words: Vec<OsString> = words.iter().enumerate().map(&mut replaced).collect();
    is_named.then(|| shell::command(std::iter::once(OsString::from("grawa")).chain(words)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_names_what_is_whole() {
        let error = || {
            Failure::Train(Error::NewestUnusable {
                run: "runs/my run".into(),
                why: "why".into(),
                older: "runs/my run/checkpoints/step-8".into(),
                steps: 8,
                best: Some(("runs/my run/best".into(), 0.1)),
            })
        };
        let given = |words: &[&str]| commands(&error(), &words.iter().map(Into::into).collect::<Vec<_>>());
        assert_eq!(
            given(&["predict", "runs/my run/", "a b.png"]),
            [
                "grawa predict 'runs/my run/best' 'a b.png'",
                "grawa predict 'runs/my run/checkpoints/step-8' 'a b.png'"
            ]
        );
        assert_eq!(given(&["train", "--init=runs/my run"])[0], "grawa train '--init=runs/my run/best'");
        assert_eq!(given(&["train", "--recipe", "x.toml"]), [""; 0]);
        assert_eq!(given(&["join", "host:7117", "--out", "runs/my run"]), [""; 0]);
        assert_eq!(given(&["join", "host:7117", "--out=runs/my run"]), [""; 0]);
        assert_eq!(
            given(&["train", "--init", "runs/my run", "--out", "runs/my run"])[0],
            "grawa train --init 'runs/my run/best' --out 'runs/my run'"
        );
        assert_eq!(
            given(&["train", "--resume", "runs/my run"]),
            ["grawa train --recipe 'runs/my run/recipe.toml' --init 'runs/my run/best'"]
        );
    }
}
