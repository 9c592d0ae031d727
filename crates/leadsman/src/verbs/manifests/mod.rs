//! `leadsman manifests`: all objects of an installation as YAML, in an order in which a single `kubectl apply` succeeds.
//!
//! Rights follow from tables of the crates that use them (`access`). The workloads are the chart's templates as Helm
//! renders them, kept in `kustomize/workloads.yaml` (`workloads`). The other way round, the chart takes its CRDs and its
//! access from files that `cargo xtask manifests` writes with this verb: so each object is written down once.

mod access;
mod policies;
mod workloads;

use std::collections::BTreeMap;
use std::io::{self, Write as _};
use std::process::ExitCode;

use clap::ValueEnum;
use leadsman_manager::Gates;
use serde_json::{Value, json};

use super::install::InstallArgs;

const MANAGER: &str = "leadsman-manager";
const AGENT: &str = "leadsman-agent";

/// Print all objects of an installation as YAML
///
/// These are the namespace, the CRDs, accounts and rights of manager and agents, roles by which people may read and write
/// markers, the policies by which an agent may report for its own node only and the manager may change of pods only what
/// sets of sidecars ask for, and manager and agents themselves, as the Helm chart installs them with its default values. The
/// same flags give the same output.
#[derive(clap::Args)]
pub(crate) struct ManifestsArgs {
    #[command(flatten)]
    install: InstallArgs,
    /// Image of manager and agents [default: leadsman, with this program's version as its tag]
    #[arg(long, value_name = "IMAGE")]
    image: Option<String>,
    /// Allow everybody with the role `edit` to write markers, not only those with `admin`. Whoever writes a marker
    /// runs commands in the pods of its namespace
    #[arg(long, env = "LEADSMAN_AGGREGATE_TO_EDIT")]
    aggregate_to_edit: bool,
    /// Print only these parts, separated by commas
    #[arg(
        long,
        value_name = "PARTS",
        value_delimiter = ',',
        default_values_t = [ManifestPart::Namespace, ManifestPart::Crds, ManifestPart::Access, ManifestPart::Workloads]
    )]
    only: Vec<ManifestPart>,
    /// Print the gates instead, each with whether it is on by default: what the chart takes its gates from
    #[arg(long, hide = true)]
    gates: bool,
}

/// A part of an installation. Administrators can apply all but the workloads, and leave these to others.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum)]
enum ManifestPart {
    /// The namespace
    Namespace,
    /// The CRDs
    Crds,
    /// Accounts, roles, bindings, and the policies of agents and manager
    Access,
    /// Manager and agents, and the Service of the webhook
    Workloads,
    /// The account that `leadsman preflight --before-install` runs as, with its rights; printed on request alone
    Preflight,
}

impl std::fmt::Display for ManifestPart {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let value = self.to_possible_value().expect("no part is skipped");
        f.write_str(value.get_name())
    }
}

/// Prints the objects to stdout.
pub(crate) fn run(args: &ManifestsArgs) -> ExitCode {
    let printed = manifests_text(args).and_then(|text| {
        let mut out = io::stdout().lock();
        out.write_all(text.as_bytes())?;
        out.flush()
    });
    match printed {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("leadsman: cannot print the manifests: {error}");
            ExitCode::FAILURE
        }
    }
}

fn manifests_text(args: &ManifestsArgs) -> io::Result<String> {
    if args.gates {
        let gates: BTreeMap<_, _> = Gates::default().all().collect();
        return to_yaml(&json!(gates));
    }
    let mut parts = args.only.clone();
    // The parts are printed in the order in which one `kubectl apply` succeeds, whichever they were
    // named in.
    parts.sort();
    parts.dedup();
    let mut documents = Vec::new();
    let InstallArgs {
        namespace,
        feature_gates: gates,
    } = &args.install;
    for part in parts {
        let objects = match part {
            ManifestPart::Namespace => vec![namespace_object(namespace)],
            ManifestPart::Crds => {
                documents.extend(leadsman_api::PODPROBE_CRDS.map(str::to_owned));
                let of_sets = gates.sidecar_set.then_some(leadsman_api::SIDECAR_SET_CRD);
                documents.extend(of_sets.map(str::to_owned));
                let of_systems = gates.systems.iter().flat_map(|system| system.crd_texts);
                documents.extend(of_systems.map(|text| (*text).to_owned()));
                continue;
            }
            ManifestPart::Access => {
                access::access_objects(namespace, *gates, args.aggregate_to_edit)
            }
            ManifestPart::Workloads => {
                workloads::workloads(namespace, *gates, args.image.as_deref())?
            }
            ManifestPart::Preflight => access::preflight_objects(namespace),
        };
        for object in &objects {
            documents.push(to_yaml(object)?);
        }
    }
    let documents = documents.iter().map(|yaml| format!("---\n{yaml}"));
    Ok(documents.collect())
}

fn to_yaml(object: &Value) -> io::Result<String> {
    serde_norway::to_string(object).map_err(io::Error::other)
}

fn namespace_object(namespace: &str) -> Value {
    let mut labels = object_labels(None);
    // An agent mounts the folder of the runtime's socket and shares the node's network, which no stricter level admits
    // (Pod Security Standards). The manager's pods conform to `restricted`.
    labels["pod-security.kubernetes.io/enforce"] = json!("privileged");
    json!({
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {"name": namespace, "labels": labels},
    })
}

fn object_labels(component: Option<&str>) -> Value {
    match component {
        Some(component) => json!({
            "app.kubernetes.io/name": "leadsman",
            "app.kubernetes.io/component": component,
        }),
        None => json!({"app.kubernetes.io/name": "leadsman"}),
    }
}

#[cfg(test)]
mod tests;
