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

use leadsman_manager::Gates;
use leadsman_manager::preflight::{self, CheckResult, Finding, InstallPart, PreflightScope};

use self::facts::{InstallHealth, read_health};
use self::report::{Group, Report};
use crate::VerbError;
use crate::connection::Connection;
use crate::output::{self, Colors, Format};
use crate::reader::Reader;

/// The flags of `doctor`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman doctor\n  kubectl leadsman doctor -o json | jq '.checks[] | select(.result == \"problem\")'"
)]
pub struct Args {
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: Format,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, VerbError> {
    let reader = args.connection.reader().await?.0;
    let report = examine(&reader).await;
    let printed = match output::structured(args.output, &report) {
        Some(text) => text?,
        None if args.output == Format::Name => report.names_of_problems(),
        None => report.text(),
    };
    output::print(&printed)?;
    Ok(if report.healthy {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    })
}

async fn examine(reader: &Reader) -> Report {
    let install = reader.install(reader.now().await).await;
    let scope = PreflightScope {
        namespace: install.config.agent_namespace.clone(),
        gates: Gates::default(),
        part: InstallPart::Person,
    };
    let client = &reader.server.client;
    let cluster = match preflight::read_facts(client, &scope).await {
        Ok(facts) => preflight::evaluate(&facts, &scope),
        Err(error) => {
            let nobody = vec![Finding::no_answer_finding(&error)];
            return Report::of(vec![(Group::Cluster, nobody)]);
        }
    };
    let health = read_health(reader, install).await;
    Report::of(vec![
        (Group::Cluster, of_group(&cluster, Group::Cluster)),
        (Group::OpenKruise, of_group(&cluster, Group::OpenKruise)),
        (Group::Manager, health.managers()),
        (Group::Agents, health.agents()),
        (Group::Webhook, health.webhook()),
        (
            Group::Markers,
            [of_group(&cluster, Group::Markers), health.markers()].concat(),
        ),
        (Group::Versions, vec![health.versions()]),
    ])
}

/// The findings of preflight that belong to a group. Notes about markers are for a migration: how timing that is left out
/// was understood by another manager.
fn of_group(findings: &[Finding], group: Group) -> Vec<Finding> {
    let own = findings.iter().filter(|finding| {
        let is_of_migration = group == Group::Markers && finding.result == CheckResult::Note;
        Group::of_preflight(finding.check) == group && !is_of_migration
    });
    own.cloned().collect()
}

impl InstallHealth {
    /// Its namespace.
    fn namespace(&self) -> &str {
        &self.install.config.agent_namespace
    }
}
