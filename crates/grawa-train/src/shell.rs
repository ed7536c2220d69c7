//! Commands that are printed to be pasted into a shell: the one place that quotes their words.

use std::ffi::OsStr;
use std::path::Path;

/// A word as a shell reads it back. What cannot be printed, such as the control characters of a terminal, is written as
/// `$'\033'`, so that it stays visible.
pub fn word(word: impl AsRef<OsStr>) -> String {
    let word = word.as_ref();
    let is_plain = |c: char| c.is_ascii_alphanumeric() || "-_./:@%+,=".contains(c);
    match word.to_str().filter(|text| text.chars().all(is_visible)) {
        // zsh reads `=word` as the path of a program.
        Some(text) if !text.is_empty() && !text.starts_with('=') && text.chars().all(is_plain) => text.into(),
        Some(text) => format!("'{}'", text.replace('\'', "'\\''")),
        None => escaped(word),
    }
}

/// The words of a command.
pub fn command(words: impl IntoIterator<Item = impl AsRef<OsStr>>) -> String {
    words.into_iter().map(word).collect::<Vec<_>>().join(" ")
}

/// A path as a word.
pub fn path(path: &Path) -> String {
    word(path.as_os_str())
}

fn is_visible(c: char) -> bool {
    // Rust escapes what has no picture of its own; quotes and the backslash are escaped for another reason.
    matches!(c, '\'' | '"' | '\\') || c.escape_debug().count() == 1
}

fn escaped(word: &OsStr) -> String {
    let mut text = String::from("$'");
    for chunk in word.as_encoded_bytes().utf8_chunks() {
        for c in chunk.valid().chars() {
            match c {
                '\'' | '\\' => text.extend(['\\', c]),
                c if is_visible(c) => text.push(c),
                c => text.extend(c.encode_utf8(&mut [0; 4]).bytes().map(octal)),
            }
        }
        text.extend(chunk.invalid().iter().copied().map(octal));
    }
    text.push('\'');
    text
}

fn octal(byte: u8) -> String {
    // Always three digits: no digit that follows is read as one of them.
    format!("\\{byte:03o}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_words_stay_and_others_are_quoted() {
        for (text, expected) in [
            ("runs/first-2_a.b:7117", "runs/first-2_a.b:7117"),
            ("runs/sp ace", "'runs/sp ace'"),
            ("$(rm -rf ~)", "'$(rm -rf ~)'"),
            ("", "''"),
            ("bild ü 日本", "'bild ü 日本'"),
            ("a\u{1b}[2Jb", "$'a\\033[2Jb'"),
            ("it's", r"'it'\''s'"),
            ("it's\n", "$'it\\'s\\012'"),
            ("a\u{202e}b", "$'a\\342\\200\\256b'"),
        ] {
            assert_eq!(word(text), expected, "{text:?}");
        }
        assert_eq!(command(["grawa", "eval", "a b"]), "grawa eval 'a b'");
    }

    /// Whatever a folder is called: bash reads the word back as it was, and nothing of it reaches the terminal as a
    /// control character.
    #[cfg(unix)]
    #[test]
    fn a_shell_reads_the_words_back() {
        use std::os::unix::ffi::OsStrExt;
        let mut words: Vec<Vec<u8>> = (1..=255u8).map(|byte| vec![b'a', byte, b'7']).collect();
        words.extend(
            ["'", "''", "a'b\"c", "!x", "~", "*", "a\\", "#", "-n", "é\u{301}", "\u{feff}"].map(Into::into),
        );
        words.push((1..=255).collect());
        for bytes in words {
            let quoted = word(OsStr::from_bytes(&bytes));
            assert!(quoted.chars().all(|c| !c.is_control()), "{quoted:?}");
            let run =
                std::process::Command::new("bash").args(["-c", &format!("printf %s {quoted}")]).output();
            // Not every machine has bash.
            let Ok(out) = run else { return };
            assert_eq!(out.stdout, bytes, "{quoted}");
        }
    }
}
