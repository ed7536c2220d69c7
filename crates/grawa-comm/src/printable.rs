//! Makes text of other processes safe for a terminal, a log and an event.

/// Longer text is truncated. No error message is that long.
const LONGEST: usize = 4096;

/// The same text on one line, without control characters (C0, DEL and C1, and so every escape sequence) and characters that change
/// the direction of writing.
pub fn printable(text: &str) -> String {
    let plain = |char: char| match char {
        '\t' | '\n' | '\r' | '\u{2028}' | '\u{2029}' => ' ',
        '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}' => char::REPLACEMENT_CHARACTER,
        char if char.is_control() => char::REPLACEMENT_CHARACTER,
        char => char,
    };
    let cut = if text.chars().nth(LONGEST).is_some() { "…" } else { "" };
    text.chars().take(LONGEST).map(plain).chain(cut.chars()).collect()
}

/// For `serde(deserialize_with)`.
#[cfg(feature = "group")]
pub(crate) fn text<'de, D: serde::Deserializer<'de>>(from: D) -> Result<String, D::Error> {
    Ok(printable(&<String as serde::Deserialize>::deserialize(from)?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn escape_sequences_are_defused() {
        for (found, expected) in [
            // Colours and the cursor; a window's title; a link; a bell.
            ("\u{1b}[31mred\u{1b}[2J", "\u{fffd}[31mred\u{fffd}[2J"),
            ("\u{1b}]0;title\u{7}", "\u{fffd}]0;title\u{fffd}"),
            ("\u{1b}]8;;http://x\u{1b}\\link", "\u{fffd}]8;;http://x\u{fffd}\\link"),
            // The same in one character each (C1: CSI, OSC, ST), DEL and NUL.
            ("\u{9b}31m\u{9d}0;t\u{9c}\u{7f}\0", "\u{fffd}31m\u{fffd}0;t\u{fffd}\u{fffd}\u{fffd}"),
            // A line that looks like another message, and text that runs backwards.
            ("fine\r\ndone; see run", "fine  done; see run"),
            ("a\u{202e}b\u{2066}c\u{2028}d", "a\u{fffd}b\u{fffd}c d"),
            ("worker 3: größer als λ", "worker 3: größer als λ"),
        ] {
            assert_eq!(printable(found), expected);
        }
        assert_eq!(printable(&"x".repeat(5000)).chars().count(), LONGEST + 1);
    }

    proptest! {
        #[test]
        fn nothing_that_a_terminal_obeys_is_left(text in proptest::collection::vec(any::<char>(), 0..50)) {
            let text: String = text.into_iter().chain(['\u{1b}']).collect();
            prop_assert!(!printable(&text).chars().any(char::is_control));
        }
    }
}
