//! Texts of bounded length out of whatever bytes a target sent.

/// Most bytes kept of a command's output or a response's body, and of any message; the kubelet's limit.
pub const MAX_OUTPUT: usize = 10 * 1024;

/// The longest beginning of a text that is no longer than `max_bytes` and ends between two characters.
pub fn truncate_message(text: &str, max_bytes: usize) -> &str {
    &text[..text.floor_char_boundary(max_bytes)]
}

/// The parts one after the other as text of at most [`MAX_OUTPUT`] bytes. What is not UTF-8 becomes U+FFFD; a character cut
/// by the limit is left out.
pub(crate) fn bounded_text(parts: &[&[u8]]) -> String {
    let mut text = String::new();
    for part in parts {
        // Text is never shorter than its bytes, so bytes past the limit cannot matter; four more let a character
        // cut by the limit be seen whole.
        for chunk in part[..part.len().min(MAX_OUTPUT + 4)].utf8_chunks() {
            if !push_bounded(&mut text, chunk.valid()) {
                return text;
            }
            if !chunk.invalid().is_empty() && !push_bounded(&mut text, "\u{fffd}") {
                return text;
            }
        }
    }
    text
}

/// Whether it all fitted.
fn push_bounded(text: &mut String, more: &str) -> bool {
    let room = MAX_OUTPUT - text.len();
    text.push_str(truncate_message(more, room));
    more.len() <= room
}

/// A text as a message: cut to [`MAX_OUTPUT`] in place.
pub(crate) fn bounded(mut text: String) -> String {
    text.truncate(truncate_message(&text, MAX_OUTPUT).len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use rstest::rstest;

    // PRB-17, DEF-23
    #[rstest]
    #[case("", 0, "")]
    #[case("abc", 0, "")]
    #[case("abc", 3, "abc")]
    #[case("abc", 9, "abc")]
    #[case("aßc", 2, "a")]
    #[case("aßc", 3, "aß")]
    #[case("🦀", 3, "")]
    fn cuts_between_characters(#[case] text: &str, #[case] max: usize, #[case] expected: &str) {
        assert_eq!(truncate_message(text, max), expected);
    }

    // PRB-17
    #[test]
    fn keeps_ten_kibibytes_of_text() {
        let long = vec![b'x'; MAX_OUTPUT + 1];
        assert_eq!(bounded_text(&[&long]), "x".repeat(MAX_OUTPUT));
        assert_eq!(bounded_text(&[b"out", b"err"]), "outerr");
        assert_eq!(bounded_text(&[b"a\xffb", b"\xc3"]), "a\u{fffd}b\u{fffd}");
        let mut cut = vec![b'x'; MAX_OUTPUT - 1];
        cut.extend("ß".bytes());
        assert_eq!(bounded_text(&[&cut]), "x".repeat(MAX_OUTPUT - 1));
        assert_eq!(bounded_text(&[&cut, b"more"]), "x".repeat(MAX_OUTPUT - 1));
    }

    proptest! {
        // PRB-17, DEF-23
        #[test]
        fn the_cut_is_the_longest_that_fits(text in ".{0,40}", max in 0_usize..60) {
            let cut = truncate_message(&text, max);
            prop_assert!(text.starts_with(cut) && cut.len() <= max);
            if let Some(next) = text[cut.len()..].chars().next() {
                prop_assert!(cut.len() + next.len_utf8() > max);
            }
        }

        #[test]
        fn text_of_any_bytes_is_bounded(
            byte in any::<u8>(), count in 0_usize..MAX_OUTPUT * 2, rest in prop::collection::vec(any::<u8>(), 0..64)
        ) {
            let mut bytes = vec![byte; count];
            bytes.extend(rest);
            let text = bounded_text(&[&bytes, &bytes]);
            prop_assert!(text.len() <= MAX_OUTPUT);
            let whole = String::from_utf8_lossy(&bytes);
            let expected = format!("{whole}{whole}");
            prop_assert_eq!(text, truncate_message(&expected, MAX_OUTPUT));
        }
    }
}
