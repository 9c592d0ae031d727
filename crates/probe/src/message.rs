//! Text of bounded length from any bytes that a target sent.

use leadsman_core::cluster::truncate;

/// Most bytes of a command's output, a response's body and any message: the kubelet's limit (`maxReadLength`,
/// `pkg/probe/exec/exec.go`; `maxRespBodyLength`, `pkg/probe/http/http.go`).
pub const MAX_OUTPUT: usize = 10 * 1024;

/// The parts, joined, as text of at most [`MAX_OUTPUT`] bytes. What is not UTF-8 becomes U+FFFD; a character that crosses the
/// limit is left out.
pub(crate) fn lossy_text(parts: &[&[u8]]) -> String {
    let mut text = String::new();
    for part in parts {
        // Text is never shorter than its bytes, so bytes past the limit cannot matter; four more show whether a character
        // that crosses the limit is whole.
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

/// Appends what fits; whether that was all of it.
fn push_bounded(text: &mut String, more: &str) -> bool {
    let room = MAX_OUTPUT - text.len();
    text.push_str(truncate(more, room));
    more.len() <= room
}

/// The text, truncated in place to [`MAX_OUTPUT`].
pub(crate) fn truncate_message(mut text: String) -> String {
    text.truncate(truncate(&text, MAX_OUTPUT).len());
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    // PRB-17
    #[test]
    fn keeps_ten_kibibytes_of_text() {
        let long = vec![b'x'; MAX_OUTPUT + 1];
        assert_eq!(lossy_text(&[&long]), "x".repeat(MAX_OUTPUT));
        assert_eq!(lossy_text(&[b"out", b"err"]), "outerr");
        assert_eq!(lossy_text(&[b"a\xffb", b"\xc3"]), "a\u{fffd}b\u{fffd}");
        let mut cut = vec![b'x'; MAX_OUTPUT - 1];
        cut.extend("ß".bytes());
        assert_eq!(lossy_text(&[&cut]), "x".repeat(MAX_OUTPUT - 1));
        assert_eq!(lossy_text(&[&cut, b"more"]), "x".repeat(MAX_OUTPUT - 1));
    }

    proptest! {
        #[test]
        fn text_of_any_bytes_is_bounded(
            byte in any::<u8>(), count in 0_usize..MAX_OUTPUT * 2, rest in prop::collection::vec(any::<u8>(), 0..64)
        ) {
            let mut bytes = vec![byte; count];
            bytes.extend(rest);
            let text = lossy_text(&[&bytes, &bytes]);
            prop_assert!(text.len() <= MAX_OUTPUT);
            let whole = String::from_utf8_lossy(&bytes);
            let expected = format!("{whole}{whole}");
            prop_assert_eq!(text, truncate(&expected, MAX_OUTPUT));
        }
    }
}
