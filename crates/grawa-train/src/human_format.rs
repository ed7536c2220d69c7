//! Numbers as people read them.

/// A number with its thousands parted.
pub(crate) fn group(number: u64) -> String {
    match number {
        0..1_000 => number.to_string(),
        _ => format!("{},{:03}", group(number / 1_000), number % 1_000),
    }
}

/// Bytes in the unit that suits them.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.1} GB", count as f64 / 1e9),
    }
}

/// Seconds as 0:07, 2:13, 1:02:03.
pub(crate) fn clock(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    let (h, m, s) = (seconds / 3600, seconds / 60 % 60, seconds % 60);
    if h > 0 { format!("{h}:{m:02}:{s:02}") } else { format!("{m}:{s:02}") }
}

/// A share as a whole percentage.
pub(crate) fn percent(share: f64) -> String {
    format!("{:.0} %", 100.0 * share)
}

/// A share as a percentage with two decimals, as errors are given.
pub(crate) fn precise(share: f64) -> String {
    format!("{:.2} %", 100.0 * share)
}

/// A rate without the digits that a product of factors leaves behind.
pub(crate) fn rate(number: f64) -> String {
    let text = format!("{number:.6}");
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_easy_to_read() {
        assert_eq!([0, 7, 1000, 1_234_567].map(group), ["0", "7", "1,000", "1,234,567"]);
        assert_eq!([999, 1500, 2_000_000, 3_000_000_000].map(bytes), ["999 B", "1.5 kB", "2.0 MB", "3.0 GB"]);
        assert_eq!([7.4, 133.0, 3_723.0].map(clock), ["0:07", "2:13", "1:02:03"]);
        assert_eq!([0.1, 0.001_000_000_000_000_000_2, 0.0].map(rate), ["0.1", "0.001", "0"]);
        assert_eq!((percent(0.666), precise(0.0893)), ("67 %".into(), "8.93 %".into()));
    }
}
