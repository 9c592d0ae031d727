//! `leadsman preflight`: prints the findings of the manager's module `preflight`, and those of the node it runs on.

use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::ValueEnum;
use leadsman_manager::StandingRule;
use leadsman_manager::preflight::{
    CheckResult, Finding, InstallPart, PreflightScope, evaluate, read_facts,
};
use leadsman_process::{Component, client};
use serde_json::{Value, json};

use super::install::InstallArgs;

/// Check whether the cluster is ready for leadsman, and print what to do first
///
/// Prints one line for each check: the API server, the CRDs, another installation of leadsman, an OpenKruise manager of the
/// same objects, CloneSets that would go with its release, the markers and the owners of their marks, and the rights of the
/// account that is used. Nothing is changed. The exit status is 0 if nothing has to be done, and 1 otherwise.
#[derive(clap::Args)]
pub(crate) struct PreflightArgs {
    /// Check only what an installation does not bring itself: not the CRDs, rights and markers
    #[arg(long, env = "LEADSMAN_BEFORE_INSTALL")]
    before_install: bool,
    /// Check the rights that an agent needs, instead of the manager's
    #[arg(long, env = "LEADSMAN_AGENT", conflicts_with = "before_install")]
    agent: bool,
    #[command(flatten)]
    install: InstallArgs,
    /// Standing rule that the manager runs with: of fail, a note says which pods cannot be created without a manager
    #[arg(
        long,
        env = "LEADSMAN_SIDECARSET_STANDING_RULE",
        value_name = "RULE",
        default_value = "none"
    )]
    sidecarset_standing_rule: StandingRule,
    /// Check the container runtime at this socket too, when run on a node
    #[arg(long, env = "LEADSMAN_RUNTIME_ENDPOINT", value_name = "ENDPOINT")]
    runtime_endpoint: Option<String>,
    /// Output format
    #[arg(
        short,
        long,
        env = "LEADSMAN_OUTPUT",
        value_name = "FORMAT",
        default_value = "text"
    )]
    output: Output,
    #[command(flatten)]
    client: client::ClientArgs,
}

#[derive(Clone, Copy, ValueEnum)]
enum Output {
    /// One line for each check, with what to do below it
    Text,
    /// One JSON object: `ready`, and `checks` with `check`, `result` (ok, note, todo), `message` and `do`
    Json,
}

/// Runs the checks and prints the findings.
pub(crate) fn run(args: &PreflightArgs) -> ExitCode {
    match read_findings(args)
        .and_then(|findings| print_findings(&findings, args.output).map(|()| findings))
    {
        Ok(findings) if is_ready(&findings) => ExitCode::SUCCESS,
        Ok(_) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("leadsman: {error}");
            ExitCode::FAILURE
        }
    }
}

fn read_findings(args: &PreflightArgs) -> io::Result<Vec<Finding>> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let part = match args {
        PreflightArgs {
            before_install: true,
            ..
        } => InstallPart::BeforeInstall,
        PreflightArgs { agent: true, .. } => InstallPart::Agent(leadsman_agent::RIGHTS.to_vec()),
        _ => InstallPart::Manager,
    };
    let scope = PreflightScope {
        namespace: args.install.namespace.clone(),
        gates: args.install.feature_gates,
        standing_rule: args.sidecarset_standing_rule.policy(),
        part,
    };
    runtime.block_on(async {
        let client = args
            .client
            .build_client(Component::Preflight)
            .await
            .map_err(io::Error::other)?;
        let mut findings = match read_facts(&client, &scope).await {
            Ok(facts) => evaluate(&facts, &scope),
            Err(error) => vec![Finding::no_answer_finding(&error)],
        };
        // The node alone is asked, so this is checked even where no API server answers.
        if let Some(endpoint) = &args.runtime_endpoint {
            findings.push(check_container_runtime(endpoint).await);
        }
        Ok(findings)
    })
}

async fn check_container_runtime(endpoint: &str) -> Finding {
    const CHECK: &str = "container-runtime";
    match leadsman_agent::runtime_version(endpoint).await {
        Ok(version) => Finding::new(
            CHECK,
            CheckResult::Ok,
            format!("{version} answers at {endpoint}"),
        ),
        Err(why) => Finding::new(CHECK, CheckResult::Todo, why)
            .with_command("give the socket that the kubelet uses (--runtime-endpoint), and run preflight as root on the node"),
    }
}

fn is_ready(findings: &[Finding]) -> bool {
    findings
        .iter()
        .all(|finding| finding.result < CheckResult::Unread)
}

fn result_name(result: CheckResult) -> &'static str {
    match result {
        CheckResult::Ok => "ok",
        CheckResult::Note => "note",
        CheckResult::Unread | CheckResult::Todo => "todo",
    }
}

fn print_findings(findings: &[Finding], output: Output) -> io::Result<()> {
    let text = match output {
        Output::Text => findings_text(findings),
        Output::Json => format!("{:#}\n", findings_json(findings)),
    };
    let mut out = io::stdout().lock();
    out.write_all(text.as_bytes())?;
    out.flush()
}

fn findings_text(findings: &[Finding]) -> String {
    let mut text = String::new();
    for finding in findings {
        let (result, check) = (result_name(finding.result), finding.check);
        let mut written = writeln!(text, "{result:<5} {check:<20} {}", finding.message);
        for command in &finding.commands {
            written = written.and_then(|()| writeln!(text, "{:<26} -> {command}", ""));
        }
        written.expect("writing to a String cannot fail");
    }
    let todo = findings
        .iter()
        .filter(|finding| finding.result >= CheckResult::Unread);
    let last = match todo.count() {
        0 => "ready".to_owned(),
        1 => "not ready: 1 thing to do first".to_owned(),
        count => format!("not ready: {count} things to do first"),
    };
    text + &last + "\n"
}

fn findings_json(findings: &[Finding]) -> Value {
    let checks = findings.iter().map(|finding| {
        json!({"check": finding.check, "result": result_name(finding.result), "message": finding.message,
            "do": finding.commands})
    });
    json!({"ready": is_ready(findings), "checks": checks.collect::<Vec<_>>()})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings() -> Vec<Finding> {
        vec![
            Finding::new("api-server", CheckResult::Ok, "Kubernetes v1.34.4"),
            Finding::new("crds", CheckResult::Todo, "not installed").with_command("install it"),
        ]
    }

    #[test]
    fn each_finding_is_a_line_with_what_to_do_below_it() {
        let expected = "ok    api-server           Kubernetes v1.34.4\n\
                        todo  crds                 not installed\n\
                        \u{20}                          -> install it\n\
                        not ready: 1 thing to do first\n";
        assert_eq!(findings_text(&findings()), expected);
        assert!(findings_text(&findings()[..1]).ends_with("ready\n"));
    }

    #[test]
    fn the_json_has_all_findings() {
        let expected = json!({"ready": false, "checks": [
            {"check": "api-server", "result": "ok", "message": "Kubernetes v1.34.4", "do": []},
            {"check": "crds", "result": "todo", "message": "not installed", "do": ["install it"]}]});
        assert_eq!(findings_json(&findings()), expected);
    }
}
