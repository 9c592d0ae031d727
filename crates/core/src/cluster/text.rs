//! Texts that must fit somewhere.

/// At most `bytes` of a text, truncated on the boundary of a character.
pub fn truncate(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    // PRB-17, DEF-23
    #[rstest]
    #[case("", 0, "")]
    #[case("abc", 0, "")]
    #[case("abc", 3, "abc")]
    #[case("abc", 9, "abc")]
    #[case("aßc", 2, "a")]
    #[case("aßc", 3, "aß")]
    #[case("🦀", 3, "")]
    fn text_is_truncated_between_characters(
        #[case] text: &str,
        #[case] max: usize,
        #[case] expected: &str,
    ) {
        assert_eq!(truncate(text, max), expected);
    }

    proptest! {
        // PRB-17, DEF-23
        #[test]
        fn the_result_is_the_longest_prefix_that_fits(text in ".{0,40}", max in 0_usize..60) {
            let cut = truncate(&text, max);
            prop_assert!(text.starts_with(cut) && cut.len() <= max);
            if let Some(next) = text[cut.len()..].chars().next() {
                prop_assert!(cut.len() + next.len_utf8() > max);
            }
        }
    }
}
