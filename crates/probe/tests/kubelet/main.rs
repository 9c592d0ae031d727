//! The same probes of the same servers by the agent's executors and by the kubelet's prober, which is compiled from
//! `testbed/prober-1.37` with Go: their verdicts are compared.
//!
//! `cargo test -p leadsman-probe --features loopback --test kubelet` runs it alone.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a failure is what a test reports"
)]

mod rows;
mod server;

use std::net::SocketAddr;
use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use futures::future::join_all;
use leadsman_core::podprobe::{Handler, Outcome, Scheme};
use leadsman_probe::{Exec, ExecError, Execution, ProbeTarget, run_probe};
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use rows::{Row, Verdicts};

const MODULE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../testbed/prober-1.37");

struct NoRuntime;

impl Exec for NoRuntime {
    async fn exec(&self, _: &str, _: &[String], _: Duration) -> Result<Execution, ExecError> {
        Err(ExecError::Runtime("not asked".to_owned()))
    }
}

/// A verdict and its message.
type Verdict = (bool, String);

// PRB-18, PRB-19, PRB-20, PRB-22, PRB-29
#[tokio::test]
async fn verdicts_are_those_of_the_kubelet() {
    let program = compile().await;
    let rows = rows::all();
    // Two servers of each kind, so that neither prober finds what the other has left behind.
    let ours = probe_by_ours(&rows).await;
    let kubelet = probe_by_kubelet(&program, &rows).await;
    let mut wrong = Vec::new();
    for (row, (ours, kubelet)) in rows.iter().zip(ours.iter().zip(&kubelet)) {
        let expected = match row.verdicts {
            Verdicts::Both(both) => (both, both),
            Verdicts::Differ { ours, kubelet } => (ours, kubelet),
        };
        println!("{}\n  ours    {ours:?}\n  kubelet {kubelet:?}", row.name);
        if (ours.0, kubelet.0) != expected {
            wrong.push(format!("{}: ours {ours:?}, kubelet {kubelet:?}", row.name));
        }
    }
    assert!(
        wrong.is_empty(),
        "not as expected (whether each succeeded):\n{}",
        wrong.join("\n")
    );
    println!("{} probes compared", rows.len());
}

async fn probe_by_ours(rows: &[Row]) -> Vec<Verdict> {
    // All servers first: making a certificate holds up what this thread probes.
    let addresses = join_all(rows.iter().map(Row::start)).await;
    let runs = rows.iter().zip(addresses);
    join_all(runs.map(|(row, address)| run(row, address))).await
}

async fn run(row: &Row, address: SocketAddr) -> Verdict {
    let target = ProbeTarget::unchecked(address.ip(), "container");
    let handler = row.probe.handler(address);
    match run_probe(&handler, &target, row.timeout, &NoRuntime).await {
        Ok(Outcome::Succeeded(message)) => (true, message),
        Ok(Outcome::Failed(message)) => (false, message),
        other => panic!("{}: {other:?}", row.name),
    }
}

async fn probe_by_kubelet(program: &Path, rows: &[Row]) -> Vec<Verdict> {
    let mut questions = String::new();
    for row in rows {
        let address = row.start().await;
        let handler = row.probe.handler(address);
        questions += &question(&handler, address, row.timeout).to_string();
        questions.push('\n');
    }
    let mut child = Command::new(program)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(questions.as_bytes()).await.unwrap();
    drop(stdin);
    let output = child.wait_with_output().await.unwrap();
    assert!(output.status.success(), "{}", output.status);
    let answers = String::from_utf8(output.stdout).unwrap();
    let answers: Vec<_> = answers.lines().map(verdict).collect();
    assert_eq!(answers.len(), rows.len());
    answers
}

fn verdict(answer: &str) -> Verdict {
    let answer: Value = serde_json::from_str(answer).unwrap();
    let message = answer["message"].as_str().unwrap();
    // Some of it is a long body.
    let message = message.chars().take(200).collect();
    (answer["succeeded"].as_bool().unwrap(), message)
}

/// A probe in the fields of `v1.Probe`.
fn question(handler: &Handler, address: SocketAddr, timeout: Duration) -> Value {
    let mut question = json!({"podIP": address.ip(), "timeoutMillis": timeout.as_millis()});
    match handler {
        Handler::HttpGet(get) => {
            let headers = get.headers.iter();
            let headers: Vec<_> = headers
                .map(|(name, value)| json!({"name": name, "value": value}))
                .collect();
            question["httpGet"] =
                json!({"path": get.path, "port": get.port, "httpHeaders": headers});
            match get.scheme {
                Scheme::Http => {}
                Scheme::H2c => question["httpGet"]["protocol"] = "HTTP2".into(),
                Scheme::Https => question["httpGet"]["scheme"] = "HTTPS".into(),
            }
        }
        Handler::Grpc {
            port,
            service,
            over_tls,
        } => {
            let mode = if *over_tls { "TLS" } else { "Plaintext" };
            question["grpc"] = json!({"port": port, "service": service, "mode": mode});
        }
        other => panic!("not compared: {other:?}"),
    }
    question
}

/// Compiles the kubelet's prober. Go keeps what it has compiled.
async fn compile() -> std::path::PathBuf {
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("kubelet-prober");
    let version = "k8s.io/component-base/version";
    let flags = format!("-X {version}.gitMajor=1 -X {version}.gitMinor=37");
    let status = Command::new("go")
        .args(["build", "-ldflags", &flags, "-o"])
        .arg(&program)
        .current_dir(MODULE)
        .status()
        .await
        .expect(
            "this comparison compiles the kubelet's prober: put Go on PATH (https://go.dev/dl)",
        );
    assert!(status.success(), "go build: {status}");
    program
}
