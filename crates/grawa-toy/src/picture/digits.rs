//! Numbers with enough digits to distinguish them.

/// Numbers that differ by less than this share of the larger are equal: losses are sums of f32, and their last digits are noise.
const SAME: f64 = 1e-5;

/// Whether two numbers are equal up to rounding.
pub fn same(a: f64, b: f64) -> bool {
    (a - b).abs() <= SAME * a.abs().max(b.abs())
}

/// The numbers as texts: with three digits, or as many more as distinguish different ones.
pub fn distinct(numbers: &[f64]) -> Vec<String> {
    let texts = |digits: usize| numbers.iter().map(|&x| text(x, digits)).collect::<Vec<_>>();
    let is_clear = |texts: &Vec<String>| {
        let pairs = (0..texts.len()).flat_map(|b| (0..b).map(move |a| (a, b)));
        pairs.into_iter().all(|(a, b)| texts[a] != texts[b] || numbers[a] == numbers[b])
    };
    // Seventeen digits distinguish any two doubles.
    (3..17).map(texts).find(is_clear).unwrap_or_else(|| texts(17))
}

/// A number with this many significant digits.
fn text(x: f64, digits: usize) -> String {
    let size = x.abs();
    let text = match (1e-3..1e4).contains(&size) || size == 0.0 {
        true => {
            let before = libm::floor(libm::log10(size.max(1e-3))) as i32 + 1;
            format!("{x:.*}", (digits as i32 - before).max(0) as usize)
        }
        false => format!("{x:.*e}", digits - 2),
    };
    text.replace('-', "−")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn as_many_digits_as_are_needed() {
        assert_eq!(distinct(&[0.002, 1.5, 20.0, 12_000.0]), ["0.00200", "1.50", "20.0", "1.2e4"]);
        assert_eq!(distinct(&[0.0019912, 0.0019934, 0.0020001]), ["0.001991", "0.001993", "0.002000"]);
        assert_eq!(distinct(&[-1.0, 0.0, 1.0]), ["−1.00", "0.00000", "1.00"]);
        // Equal numbers are equal texts.
        assert_eq!(distinct(&[2.0, 2.0]), ["2.00", "2.00"]);
        assert_eq!(distinct(&[]), [""; 0]);
        assert!(same(0.002, 0.002 * (1.0 + 1e-7)) && !same(0.002, 0.0021) && same(0.0, 0.0));
    }
}
