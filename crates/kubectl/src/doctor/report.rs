//! Findings in groups, as text and JSON.

use leadsman_manager::preflight::{CheckResult, Finding};
use serde::Serialize;

use crate::report::{Text, bad, bold, good, line, waiting};

/// The subject of a check.
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
    /// The group of a check of preflight.
    pub(super) fn from_preflight_check(check: &str) -> Self {
        match check {
            "markers" | "field-managers" => Self::Markers,
            check if check.starts_with("openkruise") => Self::OpenKruise,
            _ => Self::Cluster,
        }
    }
}

/// All that was checked.
#[derive(Debug, Serialize)]
pub(super) struct DoctorReport {
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

impl DoctorReport {
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
}

impl crate::report::Report for DoctorReport {
    fn add_text(&self, text: &mut Text) {
        for group in self.checks.chunk_by(|one, next| one.group == next.group) {
            text.add_line(0, bold(format_args!("{:?}", group[0].group)));
            for check in group {
                check.add_text(text);
            }
        }
        let unread = match self.count_result(UNREAD) {
            0 => String::new(),
            1 => "; 1 check could not be made".to_owned(),
            count => format!("; {count} checks could not be made"),
        };
        let found = match self.count_result(PROBLEM) {
            0 => good("no problem found"),
            1 => bad("1 problem found"),
            count => bad(format!("{count} problems found")),
        };
        line!(text, 0 => "\n{found}{unread}");
    }

    /// The checks that found a problem.
    fn names(&self) -> Vec<String> {
        let problems = self.checks.iter().filter(|check| check.result == PROBLEM);
        problems.map(|check| check.name.to_owned()).collect()
    }
}

impl CheckRow {
    fn add_text(&self, text: &mut Text) {
        let style = match self.result {
            PROBLEM => bad,
            "ok" => good,
            _ => waiting,
        };
        let result = style(format!("{:<8}", self.result));
        line!(text, 2 => "{result} {:<19} {}", self.name, self.message);
        for command in &self.commands {
            line!(text, 0 => "{:<30} -> {command}", "");
        }
    }
}
