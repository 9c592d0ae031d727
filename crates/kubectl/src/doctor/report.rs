//! Findings in groups, as text and JSON.

use leadsman_manager::preflight::{CheckResult, Finding};
use serde::Serialize;

use crate::table::{BAD, GOOD, HEADING, WAITING};
use crate::text::TextLines;

/// What a check is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(super) enum FindingGroup {
    Cluster,
    OpenKruise,
    Manager,
    Agents,
    Webhook,
    Markers,
    Versions,
}

impl FindingGroup {
    /// Where a check of preflight belongs.
    pub(super) fn from_preflight_check(check: &str) -> Self {
        match check {
            "markers" | "field-managers" => Self::Markers,
            check if check.starts_with("openkruise") => Self::OpenKruise,
            _ => Self::Cluster,
        }
    }

    fn as_heading(self) -> &'static str {
        match self {
            Self::Cluster => "Cluster",
            Self::OpenKruise => "OpenKruise",
            Self::Manager => "Manager",
            Self::Agents => "Agents",
            Self::Webhook => "Webhook",
            Self::Markers => "Markers",
            Self::Versions => "Versions",
        }
    }
}

/// All that was checked.
#[derive(Debug, Serialize)]
pub(super) struct Report {
    /// Whether no problem was found. What could not be read is none.
    pub(super) healthy: bool,
    checks: Vec<CheckRow>,
}

#[derive(Debug, Serialize)]
struct CheckRow {
    group: FindingGroup,
    #[serde(rename = "check")]
    name: &'static str,
    result: &'static str,
    message: String,
    #[serde(rename = "do")]
    commands: Vec<String>,
}

const PROBLEM: &str = "problem";
const UNREAD: &str = "unread";

impl Report {
    pub(super) fn from_groups(groups: Vec<(FindingGroup, Vec<Finding>)>) -> Self {
        let checks = groups.into_iter().flat_map(|(group, findings)| {
            findings.into_iter().map(move |finding| CheckRow {
                group,
                name: finding.check,
                result: match finding.result {
                    CheckResult::Ok => "ok",
                    CheckResult::Note => "note",
                    CheckResult::Unread => UNREAD,
                    CheckResult::Todo => PROBLEM,
                },
                message: finding.message,
                commands: finding.commands,
            })
        });
        let checks: Vec<_> = checks.collect();
        Self {
            healthy: checks.iter().all(|check| check.result != PROBLEM),
            checks,
        }
    }

    fn count_result(&self, result: &str) -> usize {
        let same = self.checks.iter().filter(|check| check.result == result);
        same.count()
    }

    /// The checks that found a problem.
    pub(super) fn names_of_problems(&self) -> String {
        let mut names = TextLines::default();
        for check in self.checks.iter().filter(|check| check.result == PROBLEM) {
            names.add_line(check.name);
        }
        names.0
    }

    pub(super) fn to_text(&self) -> String {
        let mut lines = TextLines::default();
        for group in self.checks.chunk_by(|one, next| one.group == next.group) {
            let heading = group[0].group.as_heading();
            lines.add_line(format_args!("{HEADING}{heading}{HEADING:#}"));
            for check in group {
                check.add_to_lines(&mut lines);
            }
        }
        let unread = match self.count_result(UNREAD) {
            0 => String::new(),
            1 => "; 1 check could not be made".to_owned(),
            count => format!("; {count} checks could not be made"),
        };
        lines.add_line(match self.count_result(PROBLEM) {
            0 => format!("\n{GOOD}no problem found{GOOD:#}{unread}"),
            1 => format!("\n{BAD}1 problem found{BAD:#}{unread}"),
            count => format!("\n{BAD}{count} problems found{BAD:#}{unread}"),
        });
        lines.0
    }
}

impl CheckRow {
    fn add_to_lines(&self, lines: &mut TextLines) {
        let style = match self.result {
            PROBLEM => BAD,
            "ok" => GOOD,
            _ => WAITING,
        };
        let (result, check, message) = (self.result, self.name, &self.message);
        lines.add_line(format_args!(
            "  {style}{result:<8}{style:#} {check:<19} {message}"
        ));
        for command in &self.commands {
            lines.add_line(format_args!("{:<30} -> {command}", ""));
        }
    }
}
