//! `grawa report` as a user meets it: a page in a real browser, and what is refused.

#![allow(clippy::unwrap_used)]

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tempfile::TempDir;

fn grawa(place: &Path, arguments: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_grawa")).args(arguments).current_dir(place).output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A short run in `place/NAME`.
fn train(place: &Path, name: &str, method: &str, seed: &str, settings: &[&str]) {
    let mut arguments =
        vec!["train", "--quiet", "--method", method, "--seed", seed, "--out", name, "--budget", "24step"];
    for setting in ["train.batch=16", "model.width=4", "evaluate.every=4step", "checkpoint.every=end"]
        .iter()
        .chain(settings)
    {
        arguments.extend(["--set", setting]);
    }
    let output = grawa(place, &arguments);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
}

/// Runs of four methods.
fn runs(place: &Path) -> Vec<&'static str> {
    let all = [
        ("layers", "lgrawa:period=2"),
        ("model", "mgrawa:period=2"),
        ("leader", "lsgd:period=2"),
        ("gradients", "dp-sgd"),
    ];
    for (name, method) in all {
        train(place, name, method, "1", &[]);
    }
    all.map(|(name, _)| name).to_vec()
}

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
        eprintln!("SKIPPED: there is no chromium here, so the report was not opened in a browser");
    }
    found
}

/// Opens a page with a script in it that returns an object, and gives that as JSON.
fn probe(browser: &Path, page: &Path, size: &str, script: &str) -> String {
    let html = fs::read_to_string(page).unwrap();
    let early = "<head><script>window.errors = []; addEventListener('error', event => errors.push(event.message));</script>";
    let late = format!(
        "<script>addEventListener('load', () => {{ const opened = performance.now(); const found = (() => {{ {script} }})();\
         const pre = document.createElement('pre'); pre.id = 'probe'; pre.textContent = JSON.stringify({{ opened, errors, ...found }});\
         document.body.append(pre); }});</script></body>"
    );
    let copy = page.with_extension("probe.html");
    fs::write(&copy, html.replacen("<head>", early, 1).replacen("</body>", &late, 1)).unwrap();
    let profile = TempDir::new().unwrap();
    let output = Command::new(browser)
        .args(["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--dump-dom"])
        .arg(format!("--user-data-dir={}", profile.path().display()))
        .arg(format!("--window-size={size}"))
        .arg(format!("file://{}", copy.display()))
        .output()
        .unwrap();
    let dom = text(&output.stdout);
    let start =
        dom.find("<pre id=\"probe\">").unwrap_or_else(|| panic!("no probe: {}", text(&output.stderr))) + 16;
    let end = start + dom[start..].find("</pre>").unwrap();
    dom[start..end].replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
}

/// What the browser found under a key.
fn field<'a>(json: &'a str, key: &str) -> &'a str {
    let start =
        json.find(&format!("\"{key}\":")).unwrap_or_else(|| panic!("no {key}: {json}")) + key.len() + 3;
    let rest = &json[start..];
    let end = if let Some(list) = rest.strip_prefix('[') {
        list.find(']').unwrap() + 2
    } else {
        rest.find([',', '}']).unwrap()
    };
    &rest[..end]
}

const USE: &str = r"
    const paths = () => [...document.querySelectorAll('#curves path')].map(path => path.getAttribute('d'));
    const input = (id, change) => { const node = document.getElementById(id); change(node); node.dispatchEvent(new Event('input')); };
    const all = paths();
    const signs = new Set([...document.querySelectorAll('#methods polygon')].map(node => node.getAttribute('points') + node.getAttribute('fill')));
    const marked = new Set([...document.querySelectorAll('#curves polygon')].map(node => node.getAttribute('points')));
    document.querySelector('[data-method=LGRAWA]').click();
    const without = paths().length;
    document.querySelector('[data-method=LGRAWA]').click();
    input('log', node => { node.checked = true; });
    const log = paths();
    input('log', node => { node.checked = false; });
    input('metric', node => { node.value = 'training loss on digits'; });
    const rough = paths();
    input('smoothing', node => { node.value = '0.9'; });
    const smooth = paths();
    input('axis', node => { node.value = 'seconds'; });
    const seconds = paths();
    input('mean', node => { node.checked = true; });
    const means = paths().length;
    const svg = document.querySelector('#curves svg'), frame = svg.getBoundingClientRect();
    const [x, y] = document.querySelector('#curves path').getAttribute('d').match(/M([\d.]+) ([\d.]+)/).slice(1).map(Number);
    const zoom = frame.width / svg.viewBox.baseVal.width;
    svg.dispatchEvent(new PointerEvent('pointermove', { clientX: frame.left + x * zoom, clientY: frame.top + y * zoom }));
    const tip = document.querySelector('#curves .tip');
    const hover = getComputedStyle(tip).display === 'block' && tip.textContent.includes('LSGD') && tip.textContent.includes('training loss');
    const canvas = document.querySelector('#weights canvas'), map = `${canvas.width}x${canvas.height}`;
    const box = canvas.getBoundingClientRect();
    canvas.dispatchEvent(new PointerEvent('pointermove', { clientX: box.left + 1, clientY: box.top + 1 }));
    const layer = document.querySelector('#weights .tip').textContent;
    const which = [...document.getElementById('which').options].map(option => option.textContent);
    input('which', node => { node.value = String(which.indexOf('model')); });
    const lines = document.querySelectorAll('#weights path').length, gone = !document.querySelector('#weights canvas');
    return {
        curves: all.length, signs: signs.size, marked: marked.size, without, means, isLog: log.join() !== all.join(), isSmooth: smooth.join() !== rough.join(),
        isSeconds: seconds.join() !== smooth.join(), hover, map, lines, gone, layer: layer.replace(/[,:].*/, ''), weighted: which.length,
        bars: document.querySelectorAll('#split .parts').length, fetched: performance.getEntriesByType('resource').length,
    };
";

#[test]
fn a_page_can_be_used_in_a_browser() {
    let place = TempDir::new().unwrap();
    let names = runs(place.path());
    let output = grawa(place.path(), &[&["report"], &names[..], &["--out", "report.html"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = place.path().join("report.html");
    let html = fs::read_to_string(&page).unwrap();
    // Tables do not need the script, and nothing is fetched.
    for words in [
        "<td>layers</td>",
        "<td>lgrawa:period=2</td>",
        "<th scope=\"col\">method.period</th>",
        "train.workers = 4",
    ] {
        assert!(html.contains(words), "{words}");
    }
    assert_eq!(html.matches("http").count(), html.matches("http://www.w3.org/2000/svg").count());
    let Some(browser) = browser() else { return };
    let found = probe(&browser, &page, "1200,900", USE);
    for (key, expected) in [
        ("errors", "[]"),
        ("curves", "4"),
        ("signs", "4"),
        ("marked", "4"),
        ("without", "3"),
        ("means", "4"),
        ("isLog", "true"),
        ("isSmooth", "true"),
        ("isSeconds", "true"),
        ("hover", "true"),
        // Twelve rounds; the digits' network has eight tensors.
        ("map", "\"12x8\""),
        ("layer", "\"conv1.weight\""),
        ("lines", "4"),
        ("gone", "true"),
        ("bars", "4"),
        ("fetched", "0"),
    ] {
        assert_eq!(field(&found, key), expected, "{key} of {found}");
    }
}

/// Fifty runs open in under a second, and nothing but tables is wider than a phone.
#[test]
fn fifty_runs_open_quickly_and_fit_a_phone() {
    let place = TempDir::new().unwrap();
    for (name, method) in [("lgrawa", "lgrawa:period=1"), ("mgrawa", "mgrawa:period=1")] {
        train(place.path(), name, method, "1", &["train.budget=300step"]);
    }
    let mut names = Vec::new();
    for number in 0..50 {
        let (from, name) = (["lgrawa", "mgrawa"][number % 2], format!("run-{number}"));
        fs::create_dir(place.path().join(&name)).unwrap();
        for file in ["recipe.toml", "events.jsonl", "journal.jsonl"] {
            fs::copy(place.path().join(from).join(file), place.path().join(&name).join(file)).unwrap();
        }
        names.push(name);
    }
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let output = grawa(place.path(), &[&["report"], &names[..], &["--out", "report.html"]].concat());
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    let page = place.path().join("report.html");
    assert!(fs::metadata(&page).unwrap().len() < 4_000_000);
    let Some(browser) = browser() else { return };
    let script = r"
        document.documentElement.style.width = document.body.style.width = '360px';
        dispatchEvent(new Event('resize'));
        const wide = [...document.querySelectorAll('main > *, section > *:not(.wide)')].filter(node => node.getBoundingClientRect().right > 361);
        return { wide: wide.map(node => node.id || node.tagName), curves: document.querySelectorAll('#curves path').length };
    ";
    let found = probe(&browser, &page, "500,900", script);
    let opened: f64 = field(&found, "opened").parse().unwrap();
    println!("fifty runs: {} bytes, opened in {opened:.0} ms", fs::metadata(&page).unwrap().len());
    assert!(opened < 1000.0, "{opened} ms");
    assert_eq!(
        (field(&found, "errors"), field(&found, "wide"), field(&found, "curves")),
        ("[]", "[]", "2"),
        "{found}"
    );
}

/// Patterns may overlap: a run is one, however often and by whichever path it is named.
#[test]
fn a_run_that_is_named_again_counts_once() {
    let place = TempDir::new().unwrap();
    train(place.path(), "one", "mean", "1", &[]);
    train(place.path(), "two", "mean", "2", &[]);
    let output = grawa(place.path(), &["report", "two", "one", "./one", "one/", "two", "--out", "page.html"]);
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    assert!(text(&output.stdout).contains("holds 2 runs"), "{}", text(&output.stdout));
    let html = fs::read_to_string(place.path().join("page.html")).unwrap();
    assert!(html.contains("<td>one</td>") && html.contains("<td>two</td>") && html.contains("2 runs:"));
}

#[test]
fn what_cannot_be_reported_is_refused_and_nothing_is_overwritten() {
    let place = TempDir::new().unwrap();
    train(place.path(), "digits", "mean", "1", &[]);
    // A run of another set: the same files, and a recipe with its name.
    for name in ["clothes", "blank"] {
        fs::create_dir(place.path().join(name)).unwrap();
        for file in ["recipe.toml", "events.jsonl", "journal.jsonl"] {
            fs::copy(place.path().join("digits").join(file), place.path().join(name).join(file)).unwrap();
        }
    }
    let recipe = place.path().join("clothes/recipe.toml");
    let other = fs::read_to_string(&recipe).unwrap().replace("kind = \"digits\"", "kind = \"fashion-mnist\"");
    fs::write(&recipe, other).unwrap();
    // One that has measured nothing yet: its first line is its start.
    for file in ["events.jsonl", "journal.jsonl"] {
        let path = place.path().join("blank").join(file);
        let first = fs::read_to_string(&path).unwrap().lines().next().unwrap().to_owned() + "\n";
        fs::write(path, first).unwrap();
    }
    fs::create_dir(place.path().join("empty")).unwrap();
    fs::write(place.path().join("mine.html"), "mine").unwrap();
    for (arguments, words) in [
        (&["digits", "nowhere", "--out", "page.html"][..], "nowhere is not a run: there is nothing"),
        (&["empty", "--out", "page.html"], "empty is not a run: it holds no recipe.toml"),
        (&["mine.html", "--out", "page.html"], "mine.html is not a run: it is a file"),
        (&["digits", "clothes", "--out", "page.html"], "share no metric"),
        (&["digits", "clothes", "--out", "page.html"], "test error on fashion-mnist"),
        (&["digits", "blank", "--out", "page.html"], "nothing measured yet"),
        (&["digits", "--out", "mine.html"], "mine.html is there already"),
        (&["digits", "--out", "empty"], "is a folder"),
        (&["--out", "page.html"], "RUN"),
        (&["digits"], "--out"),
    ] {
        let output = grawa(place.path(), &[&["report"], arguments].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(2), "{arguments:?}: {error}");
        assert!(error.contains(words), "{arguments:?} should mention '{words}': {error}");
        assert!(!place.path().join("page.html").exists(), "{arguments:?}");
        assert_eq!(fs::read_to_string(place.path().join("mine.html")).unwrap(), "mine");
    }
    // A damaged line in the midst is a failure that names the line.
    let path = place.path().join("clothes/events.jsonl");
    let torn = fs::read_to_string(&path).unwrap().replacen("\"event\":\"round\"", "\"event\":\"rou", 1);
    fs::write(&path, torn).unwrap();
    let output = grawa(place.path(), &["report", "clothes", "--out", "page.html"]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stderr).contains("line 2"), "{}", text(&output.stderr));
    // The same page again is no loss; a changed one is.
    for code in [0, 0] {
        assert_eq!(
            grawa(place.path(), &["report", "digits", "--out", "page.html"]).status.code(),
            Some(code)
        );
    }
}
