//! The headings of the reference that are rules: `### PPM-8 What a marker governs`, `### PPM-16 … (planned)`.

use std::collections::BTreeSet;

/// A rule that the reference lists.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Rule {
    /// `PPM-8`.
    pub(super) id: String,
    pub(super) title: String,
    /// Said of what is not there yet, and has no test therefore.
    pub(super) planned: bool,
}

const HEADING: &str = "### ";
const PLANNED: &str = " (planned)";

/// The rules in their order, or what is wrong with a heading.
pub(super) fn rules(text: &str) -> Result<Vec<Rule>, String> {
    let mut rules = Vec::new();
    let mut known = BTreeSet::new();
    for heading in text.lines().filter_map(|line| line.strip_prefix(HEADING)) {
        let (id, title) = heading.split_once(' ').unwrap_or((heading, ""));
        if !is_id(id) || title.is_empty() {
            return Err(format!("`{HEADING}{heading}` is no id with a title"));
        }
        if !known.insert(id) {
            return Err(format!("{id} is listed twice"));
        }
        let open = title.strip_suffix(PLANNED);
        rules.push(Rule {
            id: id.to_owned(),
            title: open.unwrap_or(title).to_owned(),
            planned: open.is_some(),
        });
    }
    Ok(rules)
}

/// Letters, a hyphen, digits: `PPM-8`.
pub(super) fn is_id(word: &str) -> bool {
    word.split_once('-').is_some_and(|(family, number)| {
        family.len() == 3
            && family.bytes().all(|byte| byte.is_ascii_uppercase())
            && !number.is_empty()
            && !number.starts_with('0')
            && number.bytes().all(|byte| byte.is_ascii_digit())
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headings_are_rules_and_some_are_planned() {
        let text = "# Title\n## Part\n### PPM-1 Which pods match\nWords.\n### PPM-16 Serverless (planned)\n";
        let rule = |id: &str, title: &str, planned| Rule {
            id: id.to_owned(),
            title: title.to_owned(),
            planned,
        };
        assert_eq!(
            rules(text),
            Ok(vec![
                rule("PPM-1", "Which pods match", false),
                rule("PPM-16", "Serverless", true)
            ])
        );
    }

    #[test]
    fn a_heading_that_is_no_rule_or_one_listed_twice_is_an_error() {
        for text in [
            "### PPM-1",
            "### Words",
            "### PPM-01 Zero",
            "### PPM-1 A\n### PPM-1 B",
        ] {
            assert!(rules(text).is_err(), "{text}");
        }
    }
}
