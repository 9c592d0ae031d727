//! `kubectl leadsman inject`: what pods would get from `SidecarSet`s, before they are created. Nothing is written.
//!
//! What a pod gets is decided in `leadsman_core::sidecarset`, by the function that the webhook calls.
//!
//! | module | holds |
//! |---|---|
//! | here | the verb |
//! | `pods` | pods and templates of pods from files |
//! | `text` | the answer as text, with a diff |

mod pods;
#[cfg(test)]
mod tests;
mod text;

use std::path::PathBuf;

use clap::builder::ValueHint;
use jiff::Timestamp;
use leadsman_core::sidecarset::explain::{InjectionReport, KnownSets, SetOutcome, report};
use leadsman_manager::CompatibleWith;
use leadsman_process::clock;
use serde::Serialize;
use serde_json::Value;

use self::pods::FilePod;
use crate::VerbError;
use crate::connection::ConnectionFlags;
use crate::output::{self, Colors, OutputFormat};
use crate::report::print_report;
use crate::sidecar_sets::{self, FoundSets, Needs, WantedNamespaces};
use crate::trial::documents;

/// The namespace of objects that name none where no cluster is asked, as in a kubeconfig that names none.
const DEFAULT_NAMESPACE: &str = "default";

/// The flags of `inject`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman inject -f pod.yaml\n  kubectl leadsman inject -f deployment.yaml --set sidecarset.yaml\n  kubectl leadsman inject -f deployment.yaml --set edited.yaml --with-cluster\n  kustomize build . | kubectl leadsman inject -f - -o yaml"
)]
pub struct InjectArgs {
    /// File with pods, or with workloads, whose pod template is used; - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// File with SidecarSets, which replaces those of a cluster: no cluster is asked. The file may also contain Namespaces,
    /// ControllerRevisions of the sets, and the ConfigMap kruise-configuration with the whitelist of annotations. May be
    /// repeated
    #[arg(long = "set", value_name = "FILE", value_hint = ValueHint::FilePath)]
    sets: Vec<PathBuf>,
    /// Use the sets of the cluster too, except those whose names occur in the files of --set
    #[arg(long, requires = "sets")]
    with_cluster: bool,
    /// The manager's --compatibility [default: the one of the cluster's manager; without a cluster, kubernetes]
    #[arg(long, value_name = "WITH", hide_possible_values = true)]
    compatibility: Option<CompatibleWith>,
    /// Output format; json and yaml print the pods as they would be created
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

/// A pod of a file, and the report on what it would get.
#[derive(Debug)]
struct FileReport {
    pod: FilePod,
    report: InjectionReport,
}

pub(crate) async fn run(args: &InjectArgs) -> Result<(), VerbError> {
    let objects = read_all(&args.files)?;
    let mut sets = read_all(&args.sets)?;
    sets.extend(namespaces(&objects));
    let mut now = clock::now();
    let given = args.connection.namespace.as_deref();
    let (pods, found) = if args.sets.is_empty() || args.with_cluster {
        let (reader, namespace) = args.connection.connect_reader().await?;
        now = reader.cluster_time().await;
        let pods = pods::find_pods(objects, &namespace, given.is_some())?;
        let namespaces = pods.iter().map(|pod| pod.namespace.as_str());
        let needs = Needs {
            set: None,
            all_revisions: false,
            namespaces: WantedNamespaces::These(namespaces.collect()),
        };
        let found = reader.read_sidecar_sets(&needs, sets, now).await?;
        (pods, found)
    } else {
        let namespace = given.unwrap_or(DEFAULT_NAMESPACE);
        let pods = pods::find_pods(objects, namespace, given.is_some())?;
        (pods, sidecar_sets::sets_of_files(sets)?)
    };
    let FoundSets {
        mut sets,
        mut unread,
        ..
    } = found;
    if let Some(with) = args.compatibility {
        sets.render = with.into();
    }
    unread.extend(not_known(&sets, &unread));
    let asks_cluster = args.sets.is_empty() || args.with_cluster;
    let knows_order = asks_cluster || args.compatibility.is_some();
    unread.extend(order_not_known(&sets).filter(|_| !knows_order));
    let reports = report_all(pods, &sets, now);
    print(args.output, &reports, &unread, now)?;
    match sets.invalid.len() {
        0 => Ok(()),
        1 => Err(VerbError::Found("one SidecarSet is invalid".to_owned())),
        count => Err(VerbError::Found(format!("{count} SidecarSets are invalid"))),
    }
}

/// The Namespaces among the objects, by which sets may select pods.
fn namespaces(objects: &[Value]) -> impl Iterator<Item = Value> {
    let namespaces = objects.iter().filter(|it| it["kind"] == "Namespace");
    namespaces.cloned()
}

fn read_all(files: &[PathBuf]) -> Result<Vec<Value>, VerbError> {
    let mut objects = Vec::new();
    for file in files {
        objects.extend(documents::parse_objects(&documents::read_file(file)?)?);
    }
    Ok(objects)
}

/// A remark that the whitelist of annotations is not known, if sets need it and no file has it. A failed read of a cluster's
/// whitelist is told already.
fn not_known(sets: &KnownSets, unread: &[String]) -> Option<String> {
    let has_patch = |known: &leadsman_core::sidecarset::explain::KnownSet| {
        !known.set.template.patches.is_empty()
    };
    let is_assumed = unread.is_empty() && sets.whitelist.is_none();
    (is_assumed && sets.valid.iter().any(has_patch)).then(|| {
        "which annotations sets may patch is not known: all are taken for allowed; give the ConfigMap kruise-configuration by --set".to_owned()
    })
}

/// A remark that init containers are taken to be ordered as by a manager with its defaults, if there are several.
fn order_not_known(sets: &KnownSets) -> Option<String> {
    let sets = sets.valid.iter().map(|known| &known.set);
    sidecar_sets::has_order_of_init_containers(sets).then(|| {
        "how the manager orders init containers is not known: as declared is assumed; give --compatibility=openkruise if yours has that flag".to_owned()
    })
}

fn report_all(pods: Vec<FilePod>, sets: &KnownSets, now: Timestamp) -> Vec<FileReport> {
    let reports = pods.into_iter().map(|pod| {
        let report = report(&pod.object, &pod.namespace, sets, now);
        FileReport { pod, report }
    });
    reports.collect()
}

/// The reports on all pods, and what is not known of them.
#[derive(Serialize)]
struct FileReports<'a> {
    #[serde(skip)]
    reports: &'a [FileReport],
    #[serde(skip)]
    unread: &'a [String],
}

fn print(
    format: OutputFormat,
    reports: &[FileReport],
    unread: &[String],
    now: Timestamp,
) -> Result<(), VerbError> {
    let all = FileReports { reports, unread };
    if matches!(format, OutputFormat::Table | OutputFormat::Wide) {
        return print_report(format, now, &all);
    }
    // Not to standard output, which may be piped into `kubectl apply`.
    let remarks = reports.iter().flat_map(remarks);
    for remark in remarks.chain(unread.iter().cloned()) {
        output::print_remark(&format!("warning: {remark}"));
    }
    let pods = reports
        .iter()
        .map(|one| Value::from(one.report.pod.clone()));
    match output::objects(format, &pods.collect::<Vec<_>>()) {
        Some(document) => output::print_text(&document?),
        None => print_report(format, now, &all),
    }
}

/// The lines about what does not take effect.
fn remarks(report: &FileReport) -> Vec<String> {
    let mut lines = Vec::new();
    for set in &report.report.sets {
        let errors = match &set.outcome {
            SetOutcome::Invalid { errors } => errors.as_slice(),
            _ => &[],
        };
        let of_set = set.remarks.iter().chain(errors);
        lines.extend(of_set.map(|remark| format!("SidecarSet {} {remark}", set.set)));
    }
    lines
}
