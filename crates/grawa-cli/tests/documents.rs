//! The documentation names what exists: pages are reached, links and headings are there, files that are named are in the tree,
//! and lines are not too wide. Means and intervals of results are those of the errors beside them.

#![allow(clippy::unwrap_used)]

use grawa_lab::statistics::{CONFIDENCE, deviation, interval, mean};
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Component, Path, PathBuf};

const WIDTH: usize = 120;

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap()
}

/// All files and folders of the repository, relative to it; not what is built or downloaded.
fn tree() -> BTreeSet<PathBuf> {
    let (root, mut found) = (root(), BTreeSet::new());
    let mut open = vec![root.clone()];
    while let Some(folder) = open.pop() {
        for entry in fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            let name = path.file_name().unwrap().to_string_lossy().into_owned();
            if ["target", ".git", ".venv", "shared", "node_modules"].contains(&&*name) {
                continue;
            }
            if path.is_dir() && !path.is_symlink() {
                open.push(path.clone());
            }
            found.insert(path.strip_prefix(&root).unwrap().to_owned());
        }
    }
    found
}

fn pages(tree: &BTreeSet<PathBuf>) -> BTreeMap<PathBuf, String> {
    let is_page = |path: &&PathBuf| path.extension().is_some_and(|it| it == "md");
    tree.iter()
        .filter(is_page)
        .map(|path| (path.clone(), fs::read_to_string(root().join(path)).unwrap()))
        .collect()
}

/// The lines outside of blocks of code, with their numbers.
fn prose(page: &str) -> Vec<(usize, &str)> {
    let mut is_code = false;
    let lines = page.lines().enumerate();
    let mut keep = |line: &str| {
        let is_fence = line.trim_start().starts_with("```");
        is_code ^= is_fence;
        !is_code && !is_fence
    };
    lines.filter(|(_, line)| keep(line)).map(|(number, line)| (number + 1, line)).collect()
}

/// The paths in back-ticks.
fn named(line: &str) -> impl Iterator<Item = &str> {
    line.split('`').skip(1).step_by(2).filter(|it| is_path(it))
}

/// `a/../b` as `b`.
fn plain(path: &Path) -> PathBuf {
    let mut found = PathBuf::new();
    for part in path.components() {
        if part == Component::ParentDir {
            found.pop();
        } else {
            found.push(part)
        }
    }
    found
}

/// The anchors of a page's headings, as GitHub makes them.
fn anchors(page: &str) -> BTreeSet<String> {
    let headings = prose(page).into_iter().filter_map(|(_, line)| line.strip_prefix('#'));
    let anchor = |heading: &str| {
        let text = heading.trim_start_matches('#').trim().to_lowercase().replace(' ', "-");
        text.chars().filter(|it| it.is_alphanumeric() || "-_".contains(*it)).collect()
    };
    headings.map(anchor).collect()
}

#[test]
fn links_lead_somewhere_and_every_page_is_reached() {
    let tree = tree();
    let pages = pages(&tree);
    let (mut reached, mut open) = (BTreeSet::new(), vec![PathBuf::from("README.md")]);
    let mut wrong = Vec::new();
    while let Some(path) = open.pop() {
        let page = &pages[&path];
        if !reached.insert(path.clone()) {
            continue;
        }
        // A link may be broken over two lines.
        let text = prose(page).into_iter().map(|(_, line)| line).collect::<Vec<_>>().join("\n");
        let links = text.split("](").skip(1).filter_map(|rest| Some(rest.split_once(')')?.0));
        for link in links.filter(|link| !link.contains("://")) {
            let link = link.replace(char::is_whitespace, "");
            let (file, anchor) = link.split_once('#').unwrap_or((&link, ""));
            let target = match file {
                "" => path.clone(),
                file => plain(&path.parent().unwrap().join(file)),
            };
            let is_there = tree.contains(&target);
            if !is_there || !anchor.is_empty() && !anchors(&pages[&target]).contains(anchor) {
                wrong.push(format!("{}: there is no {link}", path.display()));
            } else if pages.contains_key(&target) {
                open.push(target);
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    let lost: Vec<_> = pages.keys().filter(|it| it.starts_with("docs") && !reached.contains(*it)).collect();
    assert!(lost.is_empty(), "no link leads from README.md to {lost:?}");
}

/// What looks like a path: no spaces, with a folder or the ending of a source file. `NAME` stands for something.
fn is_path(text: &str) -> bool {
    let allowed = |it: char| it.is_ascii_alphanumeric() || "._/-".contains(it);
    let is_source =
        [".rs", ".toml", ".md", ".py", ".cu"].iter().any(|end| text.ends_with(end) && text.len() > 4);
    let stands_for = ["NAME", "TARGET", "CRATE", "NUMBER"].iter().any(|word| text.contains(word));
    text.chars().all(allowed)
        && (text.contains('/') || is_source)
        && !text.starts_with(['-', '/'])
        && !stands_for
}

#[test]
fn named_files_exist() {
    let tree = tree();
    let mut wrong = Vec::new();
    let mut checked = 0;
    for (path, page) in &pages(&tree) {
        let crate_folder =
            path.parent().filter(|it| it.starts_with("crates") && it.components().count() == 2);
        let is_map = path.ends_with("CONTRIBUTING.md") || path.ends_with("docs/architecture.md");
        if !is_map && (crate_folder.is_none() || !path.ends_with("README.md")) {
            continue;
        }
        for (number, line) in prose(page) {
            for name in named(line) {
                checked += 1;
                let name = Path::new(name);
                let below = crate_folder.unwrap_or(Path::new(""));
                // Built or written by a command of the page.
                let is_made = ["out", "runs", "target"].iter().any(|it| name.starts_with(it));
                if !is_made
                    && !tree.iter().any(|it| it == name || it.starts_with(below) && it.ends_with(name))
                {
                    wrong.push(format!("{}:{number}: there is no {}", path.display(), name.display()));
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(checked > 100, "only {checked} names were found: the pages or this test have changed");
}

/// The map of `docs/architecture.md` has a path for each concept, below the crate that it names.
#[test]
fn the_map_of_the_code_is_right() {
    let tree = tree();
    let page = fs::read_to_string(root().join("docs/architecture.md")).unwrap();
    let mut rows = 0;
    for (number, line) in prose(&page) {
        let cells: Vec<&str> = line.split('|').map(str::trim).collect();
        let [_, _, crates, places, _] = cells[..] else { continue };
        let sources: Vec<String> = crates.split("; ").map(|it| format!("crates/grawa-{it}/src")).collect();
        if !sources.iter().all(|it| tree.contains(Path::new(it))) {
            continue;
        }
        rows += 1;
        for name in named(places) {
            let is_there = sources.iter().any(|it| tree.contains(&Path::new(it).join(name)));
            assert!(is_there, "docs/architecture.md:{number}: {name} is not in {sources:?}");
        }
    }
    assert!(rows > 30, "only {rows} rows were found: the page or this test has changed");
}

/// Tables may be wider; the changelog keeps its lines.
#[test]
fn lines_are_not_too_wide() {
    let mut wide = Vec::new();
    for (path, page) in pages(&tree()) {
        let lines = page.lines().enumerate().filter(|(_, line)| !line.trim_start().starts_with('|'));
        let found =
            lines.filter(|(_, line)| line.chars().count() > WIDTH && path != Path::new("CHANGELOG.md"));
        wide.extend(found.map(|(number, _)| format!("{}:{}", path.display(), number + 1)));
    }
    assert!(wide.is_empty(), "more than {WIDTH} characters: {}", wide.join(", "));
}

/// The numbers of a cell; its minus is that of typography.
fn numbers(cell: &str) -> Vec<f64> {
    let plain = cell.replace('−', "-");
    let parts = plain.split(|it: char| !it.is_ascii_digit() && !".+-".contains(it));
    parts.filter_map(|part| part.parse().ok()).collect()
}

/// The tables of a page that have a figure of each seed in the second column, as rows of cells.
fn tables_of_seeds(page: &str) -> Vec<Vec<Vec<&str>>> {
    page.split("\n\n")
        .map(|table| {
            let rows = table.lines().filter(|line| line.starts_with('|')).skip(2);
            let cells = rows.map(|row| row.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
            cells.filter(|cells| cells[1].contains(" / ")).collect::<Vec<_>>()
        })
        .filter(|rows| !rows.is_empty())
        .collect()
}

/// Means, deviations and differences of the runs with ResNet-20 follow from the errors beside them, and the figure of the
/// README from all pairs.
#[test]
fn the_figures_follow_from_the_errors() {
    let read = |name: &str| fs::read_to_string(root().join(name)).unwrap();
    let [page, unlike] = ["cifar10-resnet20", "unlike-data"].map(|it| read(&format!("docs/results/{it}.md")));
    // Printed with two places.
    let expect = |row: &[&str], cell: &str, found: &[f64]| {
        let is_right =
            numbers(cell).iter().zip(found).all(|(printed, found)| (printed - found).abs() < 0.005_01);
        assert!(is_right && numbers(cell).len() == found.len(), "{row:?} has {cell}; computed: {found:?}");
    };
    let (mut of_tables, mut pairs) = (Vec::new(), Vec::new());
    for table in [tables_of_seeds(&page), tables_of_seeds(&unlike)].concat() {
        if table[0].len() == 3 {
            for row in &table {
                expect(row, row[2], &[mean(&numbers(row[1]))]);
                pairs.extend(numbers(row[1]));
            }
            continue;
        }
        let errors: BTreeMap<&str, Vec<f64>> = table.iter().map(|row| (row[0], numbers(row[1]))).collect();
        let minus_mean = |name| -> Vec<f64> {
            errors[name].iter().zip(&errors["`mean`"]).map(|(error, mean)| error - mean).collect()
        };
        for row in &table {
            let errors = &errors[row[0]];
            expect(row, row[2], &[mean(errors), deviation(errors).unwrap()]);
            if row[0] != "`mean`" {
                let found = interval(&minus_mean(row[0]), CONFIDENCE).unwrap();
                expect(row, row[3], &[found.mean, found.mean - found.half, found.mean + found.half]);
            }
        }
        of_tables.push(minus_mean("`lgrawa`"));
    }
    // The paper's setting, and data alike at two commits; not different classes and wrong labels.
    assert_eq!(of_tables.len(), 5, "a table was added or removed");
    let differences = [&of_tables[0][..], &of_tables[3], &of_tables[4]].concat();
    assert_eq!(differences.len(), pairs.len());
    assert!(differences.iter().zip(&pairs).all(|(a, b)| (a - b).abs() < 1e-9), "{differences:?}, {pairs:?}");
    let found = interval(&pairs, CONFIDENCE).unwrap();
    let [middle, low, high] = [found.mean, found.mean - found.half, found.mean + found.half]
        .map(|it| format!("{it:+.2}").replace('-', "−"));
    let words = |page: &str| page.split_whitespace().collect::<Vec<_>>().join(" ");
    let count = pairs.len();
    let in_readme =
        format!("LGRAWA is at {middle} points, 95 % interval [{low}, {high}], in [{count} pairs of runs]");
    assert!(words(&read("README.md")).contains(&in_readme), "README.md: {in_readme}");
    let in_page =
        format!("**{middle} on average, 95 % interval [{low}, {high}]** ({count} pairs, standard deviation ");
    assert!(words(&page).contains(&in_page), "cifar10-resnet20.md: {in_page}");
}

/// Without this a build on Windows fails, which nothing here would notice.
#[test]
fn what_only_unix_has_is_for_unix_only() {
    for path in tree().iter().filter(|path| path.extension().is_some_and(|it| it == "rs")) {
        if !path.starts_with("crates") || !path.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        let text = fs::read_to_string(root().join(path)).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        for at in (0..lines.len()).filter(|at| lines[*at].contains("::os::unix")) {
            let before = &lines[at.saturating_sub(5)..at];
            let is_marked = ["#[cfg(unix)]", "#[cfg(all(test, unix))]"];
            assert!(
                before.iter().any(|line| is_marked.contains(&line.trim())),
                "{}:{}: #[cfg(unix)] is missing: {}",
                path.display(),
                at + 1,
                lines[at].trim()
            );
        }
    }
}

/// A path in a command that is printed is a word of a shell: `Path::display` does not quote it.
#[test]
fn paths_in_commands_are_quoted() {
    let mut found = Vec::new();
    for path in tree().iter().filter(|path| path.extension().is_some_and(|it| it == "rs")) {
        if !path.components().any(|part| part.as_os_str() == "src") {
            continue;
        }
        let text = fs::read_to_string(root().join(path)).unwrap();
        let options = ["--resume {", "--out {", "--init {", "--recipe {", "grawa eval {"];
        let is_bare = |code: &&str| {
            options.iter().any(|option| code.contains(option))
                && code.contains("display()")
                && !code.contains("shell::")
        };
        found.extend(text.split(';').filter(is_bare).map(|code| format!("{}: {code}", path.display())));
    }
    assert!(found.is_empty(), "{}", found.join("\n"));
}
