//! `kubectl leadsman doctor`: is the cluster ready for leadsman, and is leadsman well?
//!
//! The cluster's side is checked by the manager's `preflight`. Here are the checks of what runs: pods, Lease, webhook,
//! reports, versions.
//!
//! | module | holds |
//! |---|---|
//! | `facts` | reading what runs |
//! | `pods` | what is wrong with a pod of leadsman's, and which version it runs |
//! | `running` | the findings about managers, agents and what they report; pure |
//! | `webhook` | the findings about the webhook and its certificate; pure |
//! | `report` | findings in groups, as text and JSON |

mod facts;
mod pods;
mod report;
mod running;
#[cfg(test)]
mod tests;
mod webhook;

use std::process::ExitCode;

use leadsman_manager::preflight::{self, CheckResult, Finding, InstallPart, PreflightScope};

use self::facts::{InstallHealth, read_health};
use self::report::{DoctorReport, FindingGroup};
use crate::VerbError;
use crate::connection::ConnectionFlags;
use crate::output::{Colors, OutputFormat};
use crate::reader::Reader;
use crate::report::print_report;

/// The flags of `doctor`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman doctor\n  kubectl leadsman doctor -o json | jq '.checks[] | select(.result == \"problem\")'"
)]
pub struct DoctorArgs {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(args: &DoctorArgs) -> Result<ExitCode, VerbError> {
    let reader = args.connection.connect_reader().await?.0;
    let report = examine(&reader).await;
    print_report(args.output, reader.cluster_time().await, &report)?;
    Ok(if report.healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn examine(reader: &Reader) -> DoctorReport {
    let install = reader.read_install(reader.cluster_time().await).await;
    let scope = PreflightScope {
        namespace: install.config.agent_namespace.clone(),
        gates: install.gates,
        standing_rule: install.sidecar_sets.standing_rule,
        part: InstallPart::Person,
    };
    let client = &reader.server.client;
    let mut facts = match preflight::read_facts(client, &scope).await {
        Ok(facts) => facts,
        Err(error) => {
            let nobody = vec![Finding::no_answer_finding(&error)];
            return DoctorReport::from_groups(vec![(FindingGroup::Cluster, nobody)]);
        }
    };
    let health = read_health(reader, install).await;
    if let Some(install) = &mut facts.install {
        let survey = health
            .reports
            .as_ref()
            .map(|reports| reports.survey.clone());
        install.markers = survey.map_err(|why| why.0.clone());
    }
    let cluster = preflight::evaluate(&facts, &scope);
    let of = |group| (group, of_group(&cluster, group));
    let markers = of_group(&cluster, FindingGroup::Markers);
    DoctorReport::from_groups(vec![
        of(FindingGroup::Cluster),
        of(FindingGroup::OpenKruise),
        (FindingGroup::Manager, health.check_managers()),
        (FindingGroup::Agents, health.check_agents()),
        (FindingGroup::Webhook, health.check_webhooks()),
        (
            FindingGroup::Markers,
            [markers, health.check_markers()].concat(),
        ),
        (FindingGroup::Versions, health.check_versions()),
    ])
}

/// The findings of preflight that belong to a group. Notes about markers are for a migration: how timing that is left out
/// was understood by another manager. That markers cannot be read is said by the reports.
fn of_group(findings: &[Finding], group: FindingGroup) -> Vec<Finding> {
    let is_left_out = |finding: &Finding| {
        group == FindingGroup::Markers
            && matches!(finding.result, CheckResult::Note | CheckResult::Unread)
    };
    let own = findings.iter().filter(|finding| {
        FindingGroup::from_preflight_check(finding.check) == group && !is_left_out(finding)
    });
    own.cloned().collect()
}

impl InstallHealth {
    /// The namespace of the installation.
    fn namespace(&self) -> &str {
        &self.install.config.agent_namespace
    }
}
