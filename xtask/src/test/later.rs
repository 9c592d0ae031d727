//! What `cargo xtask test` leaves to `cargo xtask test --all`: one table, which `--list` prints.
//!
//! The gate is to answer within a quarter of an hour, so that everybody waits for it. What leaves it takes a minute or more of
//! waiting, or proves what few changes can break. It runs before a release, and whenever a change concerns it.

use std::path::Path;
use std::process::Command;

use anyhow::{Result, ensure};

/// Cases of a test program that are run later, by the whole name or, with a `*` at the end, by how it begins.
pub(super) struct Later {
    program: &'static str,
    cases: &'static [&'static str],
    why: &'static str,
}

/// A further run of `cargo xtask`, whose arguments are these.
pub(super) struct Again {
    pub(super) words: &'static [&'static str],
    pub(super) why: &'static str,
}

/// What `--all` runs after the suites.
pub(super) const AGAIN: &[Again] = &[
    Again {
        words: &["test", "api", "--all", "--kubernetes", "1.31"],
        why: "the oldest API server that is supported",
    },
    Again {
        words: &["test", "api", "--all", "--kubernetes", "1.36"],
        why: "the newest API server",
    },
    Again {
        words: &["test", "node", "--containerd", "2"],
        why: "another containerd",
    },
    Again {
        words: &["test", "node", "--runtime", "crun"],
        why: "another OCI runtime",
    },
    Again {
        words: &["test", "install", "skew", "--earlier", "HEAD~30"],
        why: "two versions on one cluster",
    },
    Again {
        words: &["lint", "--all"],
        why: "the documentation of the code, and the checks of the gate",
    },
    Again {
        words: &["fuzz", "--seconds", "0"],
        why: "the fuzz targets, with the inputs that are committed",
    },
    Again {
        words: &["dist"],
        why: "images for all architectures, bills of materials, licences",
    },
];

/// Everything else runs in the gate.
const LATER: &[Later] = &[
    Later {
        program: "api",
        cases: &[
            "outages::after_64_seconds_without_an_api_server_marks_are_right_at_once",
            "outages::after_25_seconds_without_an_api_server_marks_are_right_at_once",
            "restore::after_etcd_was_restored_pods_get_the_sets_that_are_stored",
        ],
        why: "real outages, and a restore of etcd, that take minutes",
    },
    Later {
        program: "api",
        cases: &["cloneset::one_percent_of_lost_replies_makes_no_pod_too_many_in_twenty_rounds"],
        why: "twenty roll-outs, of which two with more faults are in the gate",
    },
    Later {
        program: "api",
        cases: &[
            "webhook::certificates_rotate_while_pods_are_created",
            "sidecarset_webhook::certificates_rotate_while_pods_of_sets_are_created",
        ],
        why: "certificates live for a minute",
    },
    Later {
        program: "api",
        cases: &["serverless::a_creation_waits_little_for_the_webhook"],
        why: "beside other suites and compilers a latency says how loaded the machine is",
    },
    Later {
        program: "beds",
        cases: &["*"],
        why: "the test bed itself, whose faults the other suites show too",
    },
    Later {
        program: "clean",
        cases: &["*"],
        why: "the test bed itself: what is left when it is killed",
    },
    Later {
        program: "kubelet",
        cases: &["*"],
        why: "the kubelet's prober is compiled with Go, which stage `pure` does without; only executors of probes can break it",
    },
    Later {
        program: "install",
        cases: &[
            "release::an_uninstall_keeps_marks_and_the_next_install_goes_on",
            "release::a_gate_that_is_off_stops_marks_until_it_is_on",
            "agents::*",
            "recent_runs::*",
            "managers::a_killed_leader_is_succeeded_when_its_lease_ends",
            "managers::a_leader_that_is_cut_off_is_succeeded_and_writes_no_more",
            "metrics::every_query_of_alerts_and_dashboards_has_data",
            "clocks::*",
            "failures::*",
            "outages::*",
            "upgrade::*",
        ],
        why: "an installed release takes half a minute to a minute for each fault; suite `api` raises most of them in processes",
    },
];

/// Of the cases of a test program, those that are left out. A row of the table that names no case is an error.
pub(super) fn left_out(program: &str, path: &Path) -> Result<Vec<String>> {
    let patterns: Vec<_> = LATER
        .iter()
        .filter(|row| row.program == program)
        .flat_map(|row| row.cases)
        .collect();
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let output = Command::new(path)
        .args(["--list", "--format=terse"])
        .output()?;
    ensure!(
        output.status.success(),
        "{program} --list ended with {}",
        output.status
    );
    let text = String::from_utf8_lossy(&output.stdout);
    let names: Vec<_> = text
        .lines()
        .filter_map(|line| line.strip_suffix(": test"))
        .collect();
    for pattern in &patterns {
        ensure!(
            names.iter().any(|name| fits(pattern, name)),
            "the table in xtask/src/test/later.rs names {pattern}, which is no case of {program}"
        );
    }
    let is_left_out = |name: &&str| patterns.iter().any(|pattern| fits(pattern, name));
    Ok(names
        .into_iter()
        .filter(is_left_out)
        .map(ToOwned::to_owned)
        .collect())
}

fn fits(pattern: &str, name: &str) -> bool {
    match pattern.strip_suffix('*') {
        Some(beginning) => name.starts_with(beginning),
        None => name == pattern,
    }
}

/// Prints the table.
pub(super) fn print() {
    println!(
        "`cargo xtask test` runs every case but these. `cargo xtask test --all` runs them too."
    );
    for row in LATER {
        println!("\n{}: {}", row.program, row.why);
        for case in row.cases {
            println!("  {case}");
        }
    }
    println!("\n`cargo xtask test --all` also runs");
    for again in AGAIN {
        println!("  {}: {}", again.words.join(" "), again.why);
    }
}

#[cfg(test)]
mod tests {
    use super::fits;

    #[test]
    fn a_star_stands_for_the_rest_of_a_name() {
        for (pattern, name, expected) in [
            ("outages::a", "outages::a", true),
            ("outages::a", "outages::a_restart", false),
            ("outages::*", "outages::a_restart", true),
            ("*", "outages::a_restart", true),
            ("agents::*", "outages::a_restart", false),
        ] {
            assert_eq!(fits(pattern, name), expected, "{pattern} {name}");
        }
    }
}
