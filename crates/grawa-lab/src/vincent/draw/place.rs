//! Coordinates in words, for legends and titles: short whatever the numbers are.

/// A point as `(7.71, −0.30)`; numbers too long for that are written with an exponent.
pub(super) fn place([x, y]: [f64; 2]) -> String {
    format!("({}, {})", part(x), part(y))
}

fn part(value: f64) -> String {
    let text = match value.abs() {
        size if size.is_nan() => "?".to_string(),
        f64::INFINITY => "∞".to_string(),
        size if size >= 1e4 => format!("{size:.1e}"),
        size => format!("{size:.2}"),
    };
    let negative = value < 0.0 && text != "0.00";
    if negative { format!("−{text}") } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn any_number_is_short() {
        assert_eq!(place([7.706, -0.3]), "(7.71, −0.30)");
        assert_eq!(place([-0.001, f64::NAN]), "(0.00, ?)");
        assert_eq!(place([-1e300, f64::NEG_INFINITY]), "(−1.0e300, −∞)");
    }
}
