//! What is shown when something expected was not seen.

use leadsman_testkit::cache;

use crate::cluster::Demo;

/// A line per marker.
const MARKER_STATUS: &str =
    r#"jsonpath={range .items[*]}{.metadata.name}{": "}{.status}{"\n"}{end}"#;
const LAST_LINES: usize = 25;

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
    ] {
        println!("\n-- kubectl {}", arguments.join(" "));
        match cluster.kubectl(arguments).await {
            Ok(words) => println!("{}", words.trim_end()),
            Err(error) => println!("{error:#}"),
        }
    }
    for name in ["manager", "agent"] {
        let log = cluster.log(name);
        println!("\n-- the last lines of {}", log.display());
        let text = std::fs::read(&log).unwrap_or_default();
        let text = String::from_utf8_lossy(&text);
        let lines: Vec<&str> = text.lines().collect();
        println!(
            "{}",
            lines[lines.len().saturating_sub(LAST_LINES)..].join("\n")
        );
    }
    keep_logs_of_the_bed(cluster);
    println!("\n-- all logs: {}", cluster.logs().display());
}

/// The bed's folder goes with it; its logs are worth keeping now.
fn keep_logs_of_the_bed(cluster: &Demo) {
    let logs = std::fs::read_dir(cluster.bed.folder().join("logs"))
        .into_iter()
        .flatten()
        .flatten();
    for log in logs {
        let place = cluster.logs().join(log.file_name());
        let copied = std::fs::copy(log.path(), &place).map_err(anyhow::Error::from);
        if let Err(error) = copied.and_then(|_| cache::hand_over(&place)) {
            println!("-- {} could not be kept: {error}", log.path().display());
        }
    }
}
