//! Notes the commit that the program is built from, where there is one: a run's folder tells it.

use std::process::Command;

fn main() {
    let git = |arguments: &[&str]| {
        let output = Command::new("git").args(arguments).output().ok()?;
        let text = output.status.success().then(|| String::from_utf8(output.stdout).ok())??;
        Some(text.trim().to_owned())
    };
    if let Some(log) = git(&["rev-parse", "--path-format=absolute", "--git-path", "logs/HEAD"]) {
        println!("cargo::rerun-if-changed={log}");
    }
    let changed =
        git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|text| !text.is_empty());
    if let Some(commit) = git(&["rev-parse", "HEAD"]) {
        println!("cargo::rustc-env=GRAWA_COMMIT={commit}{}", if changed { " and changes" } else { "" });
    }
}
