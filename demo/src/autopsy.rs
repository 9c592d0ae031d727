//! What is shown when something expected was not seen.

use std::path::PathBuf;

use anyhow::Result;
use leadsman_testkit::cache;

use crate::cluster::Demo;

/// A line per marker.
const MARKER_STATUS: &str =
    r#"jsonpath={range .items[*]}{.metadata.name}{": "}{.status}{"\n"}{end}"#;
const MANAGER: &str = "deployment/leadsman-manager";
const AGENT: &str = "daemonset/leadsman-agent";
const LAST_LINES: &str = "--tail=25";

pub(crate) async fn print(cluster: &Demo, error: &anyhow::Error) {
    println!("\n== Not seen: {error:#}");
    for arguments in [
        &[
            "get",
            "pods",
            "--all-namespaces",
            "--show-labels",
            "-o",
            "wide",
        ][..],
        &["-n", "ns", "get", "podprobemarkers", "-o", MARKER_STATUS],
        &["get", "nodepodprobes", "-o", "yaml"],
        // A test bed has no DNS, which the kubelet mentions for each pod.
        &[
            "-n",
            "ns",
            "get",
            "events",
            "--sort-by=.lastTimestamp",
            "--field-selector=reason!=MissingClusterDNS",
        ],
        // A container that does not start says why in its pod's status and events, one that ends in its log.
        &["-n", "leadsman-system", "describe", "pods"],
        &["-n", "leadsman-system", "logs", MANAGER, LAST_LINES],
        &["-n", "leadsman-system", "logs", AGENT, LAST_LINES],
    ] {
        println!("\n-- kubectl {}", arguments.join(" "));
        match cluster.kubectl(arguments).await {
            Ok(words) => println!("{}", words.trim_end()),
            Err(error) => println!("{error:#}"),
        }
    }
    match keep_logs(cluster).await {
        Ok(folder) => println!("\n-- all logs: {}", folder.display()),
        Err(error) => println!("\n-- the logs could not be kept: {error:#}"),
    }
}

/// The bed's folder goes with it; the logs in it and those of manager and agent are worth keeping now.
async fn keep_logs(cluster: &Demo) -> Result<PathBuf> {
    let folder = Demo::logs()?;
    cluster.save_logs(&folder).await?;
    for log in std::fs::read_dir(cluster.bed.folder().join("logs"))? {
        let log = log?;
        std::fs::copy(log.path(), folder.join(log.file_name()))?;
    }
    cache::hand_over(&folder)?;
    Ok(folder)
}
