//! The coordinator's page as a user meets it: live in a real browser, on a phone, and after a restart.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod group;

use group::{Group, ask, until};
use std::path::{Path, PathBuf};
use std::process::Command;
use tempfile::TempDir;

/// The browser; none, with a printed note, where there is none and none is required.
fn browser() -> Option<PathBuf> {
    let names = ["chromium", "chromium-browser", "google-chrome"];
    let folders: Vec<PathBuf> =
        std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default()).collect();
    let found = names
        .iter()
        .flat_map(|name| folders.iter().map(move |folder| folder.join(name)))
        .find(|path| path.exists());
    if found.is_none() {
        assert!(
            std::env::var_os("GRAWA_NEEDS_BROWSER").is_none(),
            "no chromium, and GRAWA_NEEDS_BROWSER is set"
        );
        eprintln!("SKIPPED: there is no chromium here, so the page was not opened in a browser");
    }
    found
}

/// What a page has become after it has looked a few times. A browser may hang when it starts on a busy machine: it is given a few chances.
fn dom(browser: &Path, address: &str, width: u32) -> String {
    for _ in 0..3 {
        let profile = TempDir::new().unwrap();
        let output = Command::new("timeout")
            .args(["--signal=KILL", "20"])
            .arg(browser)
            .args([
                "--headless=new",
                "--no-sandbox",
                "--disable-gpu",
                "--disable-dev-shm-usage",
                "--dump-dom",
            ])
            .arg(format!("--user-data-dir={}", profile.path().display()))
            .arg(format!("--window-size={width},900"))
            .args(["--virtual-time-budget=2500", address])
            .output()
            .unwrap();
        if output.status.success() {
            return String::from_utf8_lossy(&output.stdout).into_owned();
        }
        eprintln!("the browser ended with {}", output.status);
    }
    panic!("the browser did not open {address} three times");
}

#[test]
fn a_run_can_be_watched() {
    let mut group = Group::begin(3, "10000000step", &["--wire", "plain"], &["evaluate.every=40step"]);
    let waits = "0 of 3 workers have arrived for the first round";
    until(waits, || group.ask("/status.json").contains(waits));
    let (mut dies, _stay) = (group.join(), [group.join(), group.join()]);
    group.wait_members(3);
    dies.kill();
    group.wait_members(2);
    group.wait_rounds(20);
    let status = group.ask("/status.json");
    let json: serde_json::Value = serde_json::from_str(&status).unwrap();
    assert_eq!(json["method"], "mgrawa:period=4");
    assert_eq!(json["members"].as_array().unwrap().len(), 2);
    let weights = json["members"].as_array().unwrap().iter().map(|one| one["weight"].as_f64().unwrap());
    assert!((weights.sum::<f64>() - 1.0).abs() < 1e-5, "{status}");
    for (curve, least) in [("rounds", 20), ("losses", 20), ("errors", 1)] {
        assert!(json[curve].as_array().unwrap().len() >= least, "{curve}: {status}");
    }
    for traffic in ["traffic", "reports"] {
        assert!(json[traffic].as_f64().unwrap() > 0.0, "{traffic}: {status}");
    }
    assert!(json["fault_count"].as_u64().unwrap() > 0 && status.contains("lost its connection"));
    // Nothing is fetched from elsewhere: the only address is the name of the SVG name space.
    let html = group.ask("/");
    assert_eq!(html.matches("http").count(), html.matches("http://www.w3.org/2000/svg").count());
    for wrong in ["/nothing", "/../coordinator.log"] {
        assert_eq!(group.ask(wrong), "Not Found\n");
    }
    // After a restart all of it is there again.
    group.coordinator.kill();
    group.resume();
    group.wait_rounds(3);
    let again: serde_json::Value = serde_json::from_str(&ask(&group.page, "/status.json")).unwrap();
    let first = |json: &serde_json::Value| json["rounds"][0][1].as_f64().unwrap();
    assert_eq!((first(&again), first(&json)), (1.0, 1.0));
    assert!(again["fault_count"].as_u64() > json["fault_count"].as_u64());
    let Some(browser) = browser() else { return };
    until("the restarted one has its members again", || group.last_round().1.len() == 2);
    let dom_text = dom(&browser, &group.page, 1200);
    for words in [
        "mgrawa:period=4",
        "Workers: 2 take part",
        "worker 1",
        "worker 2",
        ">live<",
        "lost its connection",
        "<path d=\"M",
    ] {
        assert!(dom_text.contains(words), "{words} is not on the page: {dom_text}");
    }
    assert_eq!(dom_text.matches("class=\"member").count(), 2);
    fits_a_phone(&browser, &html, &status);
}

/// The page with these facts, 360 pixels wide: no error, nothing is cut off, and what came from elsewhere stays text.
fn fits_a_phone(browser: &Path, html: &str, status: &str) {
    let folder = TempDir::new().unwrap();
    let bad = status.replacen("lost its connection", "<img src=x onerror=errors.push(1)> lost", 1);
    let early = format!(
        "<head><script>window.errors = []; addEventListener('error', event => errors.push(event.message));\
         const facts = {bad}; window.fetch = async () => ({{ json: async () => facts }});</script>"
    );
    let late = "<script>document.documentElement.style.width = document.body.style.width = '360px';\
        setTimeout(() => { const wide = [...document.querySelectorAll('body *')].filter(node => node.getBoundingClientRect().right > 361);\
        const pre = document.createElement('pre'); pre.id = 'probe';\
        pre.textContent = JSON.stringify({ errors, wide: wide.map(node => node.tagName + node.id), images: document.images.length });\
        document.body.append(pre); }, 500);</script></body>";
    let page = folder.path().join("page.html");
    std::fs::write(&page, html.replacen("<head>", &early, 1).replacen("</body>", late, 1)).unwrap();
    let dom = dom(browser, &format!("file://{}", page.display()), 500);
    let start = dom.find("<pre id=\"probe\">").unwrap_or_else(|| panic!("no probe: {dom}")) + 16;
    let found = &dom[start..start + dom[start..].find("</pre>").unwrap()];
    assert_eq!(found, "{\"errors\":[],\"wide\":[],\"images\":0}");
}
