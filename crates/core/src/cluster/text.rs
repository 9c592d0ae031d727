//! Texts that must fit somewhere.

/// Truncates a text to at most `bytes`, on the boundary of a character.
pub fn truncate(text: &str, bytes: usize) -> &str {
    &text[..text.floor_char_boundary(bytes)]
}

/// The candidate that somebody who wrote `text` most probably meant, if one is near: at most a third of its characters
/// have to be changed, added or removed.
pub fn nearest<'a>(text: &str, candidates: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let candidates = candidates.into_iter().map(|candidate| {
        let distance = edit_distance(text, candidate);
        (distance, candidate)
    });
    let near = candidates.filter(|(distance, candidate)| {
        *distance > 0 && 3 * distance <= text.chars().count().max(candidate.chars().count())
    });
    // The first by name of those equally near, whatever the order of the candidates.
    near.min().map(|(_, candidate)| candidate)
}

/// The number of characters to be changed, added or removed, or pairs of neighbours to be swapped (the restricted
/// distance of Damerau and Levenshtein).
pub(crate) fn edit_distance(one: &str, other: &str) -> usize {
    let (one, other): (Vec<_>, Vec<_>) = (one.chars().collect(), other.chars().collect());
    let mut rows: Vec<Vec<usize>> = vec![(0..=other.len()).collect()];
    for (above, char) in one.iter().enumerate() {
        let mut row = vec![above + 1];
        for (place, theirs) in other.iter().enumerate() {
            let changed = rows[above][place] + usize::from(char != theirs);
            let added_or_removed = row[place].min(rows[above][place + 1]) + 1;
            let is_swapped =
                above > 0 && place > 0 && one[above - 1] == *theirs && *char == other[place - 1];
            let swapped = if is_swapped {
                rows[above - 1][place - 1] + 1
            } else {
                usize::MAX
            };
            row.push(changed.min(added_or_removed).min(swapped));
        }
        rows.push(row);
    }
    rows[one.len()][other.len()]
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("gme-server", Some("game-server"))]
    #[case("game-servr", Some("game-server"))]
    #[case("sidecra", Some("sidecar"))]
    #[case("mian", Some("main"))]
    #[case("database", None)]
    #[case("game-server", None)]
    #[case("", None)]
    fn the_nearest_name_is_what_was_meant(#[case] text: &str, #[case] expected: Option<&str>) {
        assert_eq!(nearest(text, ["game-server", "main", "sidecar"]), expected);
    }

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
