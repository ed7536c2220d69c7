//! A view as lines of text: a pure function of what is to be seen and the room there is.

use super::View;
use crate::human_format::{bytes, clock, group, percent, precise, rate};
use std::time::Duration;

/// Bars, eighth by eighth.
const EIGHTHS: [char; 9] = [' ', '▏', '▎', '▍', '▌', '▋', '▊', '▉', '█'];
/// Heights, eighth by eighth.
const HEIGHTS: [char; 8] = ['▁', '▂', '▃', '▄', '▅', '▆', '▇', '█'];

/// The view in at most `height` lines of at most `width` characters.
pub fn render(view: &View, width: usize, height: usize) -> Vec<String> {
    let (width, height) = (width.max(20), height.max(1));
    let mut lines = vec![title(view, width), progress(view, width), figures(view, width)];
    lines.extend(view.fault.as_ref().map(|fault| format!("! {fault}")));
    let foot = times(view, width);
    let room = height.saturating_sub(lines.len() + foot.len());
    lines.extend(workers(view, width, room));
    lines.extend(foot);
    lines.truncate(height);
    lines.iter().map(|line| cut(line, width)).collect()
}

/// The view as one line, for where there is no terminal.
pub fn line(view: &View) -> String {
    let at = &view.at;
    let mut parts =
        vec![format!("step {}", group(at.steps)), format!("epoch {:.1}", at.epochs), percent(at.share)];
    parts.extend(view.loss.map(|loss| format!("loss {loss:.4}")));
    // An error belongs to the step it was measured at.
    let error = view.errors.last().filter(|_| view.evaluated == Some(at.steps));
    parts.extend(error.map(|error| format!("test error {}", precise(*error))));
    parts.extend(left(view).map(|left| format!("{left} left")));
    parts.join("  ")
}

fn title(view: &View, width: usize) -> String {
    let Some(started) = &view.started else { return "starting".into() };
    let what = format!(
        "{}  {} on {}, {} workers, seed {}",
        started.method, started.network, started.data, started.workers, started.seed
    );
    let right = match (view.over, left(view)) {
        (Some(crate::Reason::Spent), _) => format!("done in {}", clock(view.at.elapsed)),
        (Some(crate::Reason::Interrupted), _) => "stopped".into(),
        (None, Some(left)) => format!("{left} left"),
        (None, None) => String::new(),
    };
    spread(&what, &right, width)
}

fn progress(view: &View, width: usize) -> String {
    let at = &view.at;
    let of = view.started.as_ref().and_then(|started| started.steps).map(|all| format!(" of {}", group(all)));
    let figures = format!(
        " {:>5}  step {}{}  round {}  epoch {:.1}",
        percent(at.share),
        group(at.steps),
        of.unwrap_or_default(),
        group(at.rounds),
        at.epochs
    );
    let room = width.saturating_sub(figures.chars().count() + 2).clamp(4, 40);
    format!("[{}]{figures}", bar(at.share, room))
}

fn figures(view: &View, width: usize) -> String {
    let mut parts = vec![format!("rate {}", rate(view.rate))];
    parts.extend(view.loss.map(|loss| format!("loss {loss:.4}")));
    if let (Some(last), Some(best)) = (view.errors.last(), view.best()) {
        let earlier = view.evaluated.filter(|&step| step != view.at.steps);
        let at = earlier.map(|step| format!(" at step {}", group(step))).unwrap_or_default();
        // `mean`, `centre`, `best (worker 2)`, or `worker 2`.
        let the = if view.model.starts_with("worker") { "" } else { "the " };
        let model = format!("{the}{}", view.model);
        parts.push(format!("test error of {model} {}{at} (best {})", precise(*last), precise(best)));
    }
    let line = parts.join("  ");
    let room = width.saturating_sub(line.chars().count() + 2).min(40);
    if view.errors.len() > 1 { format!("{line}  {}", curve(&view.errors, room)) } else { line }
}

/// A line for each worker: steps, loss, and its weights as a bar, or as a strip of one height a layer.
fn workers(view: &View, width: usize, room: usize) -> Vec<String> {
    if room < 3 || view.workers.is_empty() {
        return Vec::new();
    }
    let shown = view.workers.len().min(room - 2);
    // The last line says how many more there are.
    let shown = if shown < view.workers.len() { shown - 1 } else { shown };
    let layers = view.workers.iter().map(|worker| worker.weights.len()).max().unwrap_or(0);
    let about = match (layers, &view.started) {
        (0, _) => String::new(),
        (1, _) => "weight β".into(),
        (_, Some(started)) => match (started.spans.first(), started.spans.last()) {
            (Some(first), Some(last)) => format!("β by layer: {first} … {last}"),
            _ => "β by layer".into(),
        },
        (_, None) => "β by layer".into(),
    };
    let mut lines = vec![String::new(), format!("{:>6} {:>9} {:>9}  {about}", "worker", "steps", "loss")];
    let space = width.saturating_sub(6 + 1 + 9 + 1 + 9 + 2 + 6);
    // A share of 1/M is half the height, or half the bar: what is above average stands out.
    let scale = view.workers.len() as f64 / 2.0;
    for worker in &view.workers[..shown] {
        let loss = worker.loss.map_or("–".into(), |loss| format!("{loss:.4}"));
        let weights = match worker.weights.as_slice() {
            [] => String::new(),
            [one] => format!("{:5.3} {}", one, bar(f64::from(*one) * scale, space.min(40)).trim_end()),
            many => {
                format!("{:5.3} {}", many.iter().sum::<f32>() / many.len() as f32, strip(many, scale, space))
            }
        };
        lines.push(format!("{:>6} {:>9} {loss:>9}  {weights}", worker.worker, group(worker.steps)));
    }
    if shown < view.workers.len() {
        lines.push(format!("{:>6} and {} more", "…", view.workers.len() - shown));
    }
    lines
}

/// Where the time went: the parts that are more than a hundredth, largest first.
fn times(view: &View, width: usize) -> Vec<String> {
    let parts = view.times.parts();
    // Evaluation too is time of the workers, though no budget counts it.
    let total: f64 = parts.iter().map(|(_, seconds)| seconds).sum();
    if total <= 0.0 {
        return Vec::new();
    }
    let mut parts: Vec<(&str, f64)> =
        parts.into_iter().map(|(name, seconds)| (name, seconds / total)).collect();
    parts.retain(|(_, share)| *share >= 0.005);
    parts.sort_by(|a, b| b.1.total_cmp(&a.1));
    let words: Vec<String> =
        parts.iter().map(|(name, share)| format!("{name} {}", percent(*share))).collect();
    let line = format!("time of the workers: {}", words.join(", "));
    vec![String::new(), spread(&line, &format!("{} handed over", bytes(view.bytes)), width)]
}

/// A text on the left and one on the right, if both fit.
fn spread(left: &str, right: &str, width: usize) -> String {
    let used = left.chars().count() + right.chars().count();
    if used + 2 > width { left.into() } else { format!("{left}{}{right}", " ".repeat(width - used)) }
}

/// A bar of `room` characters, full at a share of 1.
fn bar(share: f64, room: usize) -> String {
    let eighths = (share.clamp(0.0, 1.0) * (room * 8) as f64).round() as usize;
    (0..room).map(|at| EIGHTHS[eighths.saturating_sub(at * 8).min(8)]).collect()
}

/// Numbers as heights: the largest full, zero lowest.
fn curve(values: &[f64], room: usize) -> String {
    let recent = &values[values.len().saturating_sub(room)..];
    let top = recent.iter().copied().fold(f64::MIN_POSITIVE, f64::max);
    recent.iter().map(|value| level(value / top)).collect()
}

/// The weights of the layers as heights, several characters a layer or several layers a character.
fn strip(weights: &[f32], scale: f64, room: usize) -> String {
    let room = room.max(1);
    let each = (room / weights.len()).clamp(1, 6);
    let cells = (weights.len() * each).min(room);
    let cell = |at: usize| {
        let (from, to) = (at * weights.len() / cells, ((at + 1) * weights.len()).div_ceil(cells));
        let part = &weights[from..to.max(from + 1)];
        level(f64::from(part.iter().sum::<f32>()) / part.len() as f64 * scale)
    };
    (0..cells).map(cell).collect()
}

fn level(share: f64) -> char {
    // NaN becomes the lowest.
    HEIGHTS[((share * 8.0) as usize).min(7)]
}

fn left(view: &View) -> Option<String> {
    view.at.left().filter(|_| view.at.share < 1.0).map(|left: Duration| clock(left.as_secs_f64()))
}

fn cut(line: &str, width: usize) -> String {
    line.chars().take(width).collect::<String>().trim_end().to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::observe::sample;
    use proptest::prelude::*;

    fn view(method: &str, workers: u32, events: usize) -> View {
        let mut view = View::default();
        sample::run(method, workers, 6).iter().take(events).for_each(|event| view.event(event));
        view
    }

    #[test]
    fn bars_for_one_weight() {
        let found = render(&view("mgrawa", 3, 10), 80, 24);
        let expected = [
            "mgrawa  digits on digits, 3 workers, seed 7                            0:03 left",
            "[████████████████████████▋            ]  67 %  step 16 of 24  round 4  epoch 1.0",
            "rate 0.1  loss 0.4000  test error of the mean 33.43 % at step 8 (best 33.43 %)",
            "! worker 1 lost its parameters and starts again from the centre",
            "",
            "worker     steps      loss  weight β",
            "     0        16    0.4000  0.167 ██████████",
            "     1        16    0.3333  0.333 ████████████████████",
            "     2        16    0.2857  0.500 ██████████████████████████████",
            "",
            "time of the workers: compute 75 %, score 17 %, wait 8 %      80.0 kB handed over",
        ];
        assert_eq!(found, expected, "\n{}", found.join("\n"));
    }

    #[test]
    fn a_strip_for_weights_by_layer() {
        let found = render(&view("lgrawa", 2, 20), 72, 24);
        assert!(
            found.iter().any(|line| line.ends_with("β by layer: conv1.weight … linear.weight")),
            "{found:#?}"
        );
        let first = found.iter().find(|line| line.trim_start().starts_with("0 ")).unwrap();
        assert!(first.ends_with("0.333 ▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃▃"), "{first}");
        assert!(found[0].ends_with("done in 0:09"), "{}", found[0]);
        assert!(found[2].ends_with("(best 14.21 %)  █▆"), "{}", found[2]);
    }

    #[test]
    fn many_layers_share_the_characters() {
        let weights: Vec<f32> = (0..100).map(|at| at as f32 / 100.0).collect();
        let drawn = strip(&weights, 1.0, 8);
        assert_eq!(drawn, "▁▂▃▄▅▆▇█");
        assert_eq!(strip(&[0.5, 1.0], 1.0, 5), "▅▅██");
    }

    /// Every part is a share of the whole, evaluation too.
    #[test]
    fn shares_of_time_add_up() {
        let spent = crate::Times {
            compute: 4.7,
            score: 0.1,
            queue: 4.2,
            data: 0.5,
            wait: 0.5,
            evaluate: 2.1,
            ..crate::Times::default()
        };
        let found = times(&View { times: spent, ..View::default() }, 200).join(" ");
        let shares: Vec<f64> =
            (found.split(" %")).filter_map(|words| words.rsplit(' ').next()?.parse().ok()).collect();
        assert_eq!(shares.len(), 6, "{found}");
        // Six roundings are off by half a percent each at most.
        assert!((shares.iter().sum::<f64>() - 100.0).abs() <= 3.0, "{found}");
        assert!(found.contains("compute 39 %") && found.contains("evaluate 17 %"), "{found}");
    }

    #[test]
    fn more_workers_than_lines_are_counted() {
        let found = render(&view("mean", 64, 4), 80, 12);
        assert_eq!(found.len(), 12);
        assert!(found.iter().any(|line| line.ends_with("… and 60 more")), "{found:#?}");
    }

    #[test]
    fn a_line_where_there_is_no_terminal() {
        assert_eq!(line(&view("mgrawa", 3, 10)), "step 16  epoch 1.0  67 %  loss 0.4000  0:03 left");
        assert_eq!(
            line(&view("mgrawa", 3, 11)),
            "step 16  epoch 1.0  67 %  loss 0.4000  test error 20.06 %  0:03 left"
        );
        assert_eq!(line(&View::default()), "step 0  epoch 0.0  0 %");
    }

    proptest! {
        /// Whatever the room, nothing is wider or longer than it, and nothing panics.
        #[test]
        fn a_view_fits_its_room(width in 0usize..200, height in 0usize..40, workers in 1u32..70, events in 0usize..20,
                                method in proptest::sample::select(vec!["lgrawa", "mean"])) {
            let lines = render(&view(method, workers, events), width, height);
            prop_assert!(lines.len() <= height.max(1));
            prop_assert!(lines.iter().all(|line| line.chars().count() <= width.max(20)));
        }
    }
}
