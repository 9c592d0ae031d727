//! `kubectl leadsman drift`: the pods of a `SidecarSet` by revision, and what a re-creation would change in them. Nothing is
//! written.

use std::collections::BTreeMap;

use clap_complete::engine::ArgValueCompleter;
use leadsman_core::cluster::ObjectName;
use leadsman_core::podprobe::explain::Unread;
use leadsman_core::sidecarset::explain::{
    DriftRemedy, DriftReport, FieldDifference, KnownSet, PodDrift, PodObject,
};
use leadsman_core::sidecarset::set::Namespaces;
use serde_json::Value;

use crate::connection::Connection;
use crate::explain::no_such_object;
use crate::output::{self, Colors, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::resources::{PODS, SIDECAR_SETS};
use crate::sidecar_sets::{FoundSets, Needs, WantedNamespaces};
use crate::table::{BAD, Cell, GOOD, HEADING, TextTable, WAITING};
use crate::text::{self, TextLines};
use crate::{VerbError, completion};

/// Values longer than this are cut, unless they are asked for as JSON or YAML.
const VALUE_CHARS: usize = 80;

/// The flags of `drift`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman drift log-agent\n  kubectl leadsman drift log-agent -n prod -o wide"
)]
pub struct Args {
    /// Name of the SidecarSet
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::complete_sidecar_sets))]
    set: String,
    /// Output format; wide names the pods, with each value before and after
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: Connection,
}

pub(crate) async fn run(args: &Args) -> Result<(), VerbError> {
    // `sidecarset/NAME`, as other verbs and kubectl take it, is the same.
    let name = args.set.rsplit('/').next().unwrap_or_default();
    let (reader, _) = args.connection.connect_reader().await?;
    let now = reader.cluster_time().await;
    let needs = Needs {
        set: Some(name),
        // What a pod was injected by is found by the name of its revision, whichever that is.
        all_revisions: true,
        namespaces: match args.connection.namespace.as_deref() {
            Some(namespace) => WantedNamespaces::These([namespace].into()),
            None => WantedNamespaces::All,
        },
    };
    let FoundSets { sets, unread, .. } = reader.read_sidecar_sets(&needs, Vec::new(), now).await?;
    if let Some(invalid) = sets.invalid.first() {
        let errors = invalid.errors.join("; ");
        return Err(VerbError::Found(format!(
            "SidecarSet {name} is invalid and not acted on: {errors}"
        )));
    }
    let namespace = args.connection.namespace.as_deref();
    let Some(known) = sets.valid.first() else {
        return Err(match reader.read_left_behind(name, namespace).await? {
            pods if pods.is_empty() => {
                no_such_object(&reader, SIDECAR_SETS, "sidecarset", name, None).await
            }
            pods => VerbError::Found(format!(
                "there is no SidecarSet {name} any more; until they are created again, its containers are in these pods:\n{}",
                pods.join("\n")
            )),
        });
    };
    let selection = selected_pods(known, namespace);
    let drift = |pod: PodObject| PodDrift::of(known, &pod, &sets, now);
    let pods = reader.map_pod_objects(&selection, drift).await;
    let report = DriftReport::new(known, pods.map_err(VerbError::Unread)?);
    let printed = match output::format_structured(args.output, &report) {
        Some(text) => text?,
        None if args.output == OutputFormat::Name => {
            let names = report.pods.iter().map(|pod| format!("pod/{}\n", pod.name));
            names.collect()
        }
        None => drift_table(&report, known, &unread, args.output == OutputFormat::Wide),
    };
    output::print_text(&printed)
}

impl Reader {
    /// The pods that were injected by a set which is gone.
    async fn read_left_behind(
        &self,
        set: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<String>, VerbError> {
        let selection = ListSelection {
            namespace,
            page: 250,
            ..ListSelection::default()
        };
        let pods = self.read_pod_objects(&selection).await;
        let pods = pods.map_err(VerbError::Unread)?.into_iter();
        let own = pods.filter(|pod| pod.observed.is_active() && pod.sets().contains(set));
        Ok(own.map(|pod| pod.observed.name.to_string()).collect())
    }

    /// The pods that a set selects by their labels, in a namespace or in all.
    pub(crate) async fn read_pods_of_set(
        &self,
        known: &KnownSet,
        namespace: Option<&str>,
    ) -> Result<Vec<PodObject>, Unread> {
        self.read_pod_objects(&selected_pods(known, namespace))
            .await
    }

    /// A pod, with all that is in it.
    pub(crate) async fn read_pod_object(&self, name: &ObjectName) -> Result<PodObject, Unread> {
        let pod = self.get_object::<Value>(PODS, Some(&name.namespace), &name.name);
        let pod = pod.await?;
        let pod = pod.ok_or_else(|| Unread(format!("pod {name} was deleted")))?;
        PodObject::read(pod)
            .map_err(|error| Unread(format!("pod {name} cannot be decoded: {error}")))
    }

    /// The pods of a selection, with all that is in them.
    pub(crate) async fn read_pod_objects(
        &self,
        selection: &ListSelection<'_>,
    ) -> Result<Vec<PodObject>, Unread> {
        self.map_pod_objects(selection, Some).await
    }

    /// What is made of them. They are not kept themselves: a set may have tens of thousands.
    async fn map_pod_objects<T>(
        &self,
        selection: &ListSelection<'_>,
        map: impl Fn(PodObject) -> Option<T>,
    ) -> Result<Vec<T>, Unread> {
        let undecodable = |error| Unread(format!("cannot decode a pod: {error}"));
        let read = |pod: Value| match PodObject::read(pod) {
            Ok(pod) => map(pod).map(Ok),
            Err(error) => Some(Err(undecodable(error))),
        };
        let pods = self.map_objects(PODS, selection, read).await?;
        pods.into_iter().collect()
    }
}

/// The pods that a set selects by their labels, in a namespace or in all.
fn selected_pods<'a>(known: &'a KnownSet, namespace: Option<&'a str>) -> ListSelection<'a> {
    // A set that names its namespace selects no pod of another one.
    let own = match &known.set.namespaces {
        Namespaces::Named(name) => Some(&**name),
        Namespaces::All | Namespaces::Selected(_) => None,
    };
    ListSelection {
        namespace: namespace.or(own),
        labels: Some(known.set.selector.to_string()),
        page: 250,
        ..ListSelection::default()
    }
}

/// The pods that have the same revision and differ in the same fields.
struct DriftGroup<'a> {
    differs: Vec<&'a str>,
    pods: Vec<&'a PodDrift>,
}

fn group_by_remedy(report: &DriftReport) -> Vec<(Option<&str>, DriftRemedy, DriftGroup<'_>)> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for pod in &report.pods {
        let differs: Vec<_> = pod.differs.iter().map(|one| one.field.as_str()).collect();
        // First in the key: the pods of the newest revision are shown first.
        let is_old = pod.revision.as_deref() != Some(&report.revision);
        let key = (is_old, pod.revision.as_deref(), pod.takes, differs);
        groups.entry(key).or_default().push(pod);
    }
    let groups = groups.into_iter();
    let groups = groups.map(|((_, revision, takes, differs), pods)| {
        (revision, takes, DriftGroup { differs, pods })
    });
    groups.collect()
}

fn drift_table(report: &DriftReport, known: &KnownSet, unread: &[String], is_wide: bool) -> String {
    let mut lines = TextLines::default();
    let all = report.pods.len();
    let current = report.pods.iter();
    let current = current
        .filter(|pod| pod.takes == DriftRemedy::Nothing)
        .count();
    let style = if current == all { GOOD } else { BAD };
    lines.add_line(format_args!(
        "{HEADING}SidecarSet {}{HEADING:#}, revision {}: {style}{current} of {all} pods{style:#} are as they would be created now",
        report.set, report.revision
    ));
    if known.set.is_injection_paused {
        lines.add_line(format_args!(
            "  {WAITING}its injection is paused{WAITING:#}: a pod that is created again gets nothing until it is resumed"
        ));
    }
    let groups = group_by_remedy(report);
    if all > 0 {
        lines.add_line("");
        lines
            .0
            .push_str(&group_rows(&groups, known, &report.revision));
    }
    if is_wide {
        for (_, _, group) in &groups {
            add_pods(&mut lines, group);
        }
    }
    text::add_unread(&mut lines, unread);
    lines.0
}

fn group_rows(
    groups: &[(Option<&str>, DriftRemedy, DriftGroup<'_>)],
    known: &KnownSet,
    newest: &str,
) -> String {
    let mut table = TextTable::new(&["REVISION", "VERSION", "PODS", "TAKES", "DIFFERS IN"]);
    for (revision, takes, group) in groups {
        let version = if *revision == Some(newest) {
            known.set.custom_version.as_deref()
        } else {
            let mut revisions = known.history.revisions.iter();
            let of_pod = revisions.find(|known| Some(&*known.revision.name) == *revision);
            of_pod.and_then(|of_pod| of_pod.custom_version.as_deref())
        };
        let mut differs = group.differs.join(", ");
        if differs.is_empty() {
            differs.push('-');
        }
        let takes = match takes {
            DriftRemedy::Nothing => Cell::with_style("nothing", GOOD),
            DriftRemedy::Upgrade => Cell::with_style("an upgrade", WAITING),
            DriftRemedy::UpgradeAndRecreation => {
                Cell::with_style("an upgrade, and re-creation", BAD)
            }
            DriftRemedy::Recreation => Cell::with_style("re-creation", BAD),
        };
        table.add_row(vec![
            revision.unwrap_or("unknown").into(),
            version.unwrap_or("-").into(),
            group.pods.len().to_string().into(),
            takes,
            differs.into(),
        ]);
    }
    table.to_text("", true)
}

/// The pods of a group, and the values of the first one.
fn add_pods(lines: &mut TextLines, group: &DriftGroup<'_>) {
    let Some(first) = group.pods.first().filter(|pod| !pod.differs.is_empty()) else {
        return;
    };
    let names = group.pods.iter();
    let names: Vec<_> = names
        .map(|pod| format!("{}/{}", pod.namespace, pod.name))
        .collect();
    lines.add_line(format_args!("\n{HEADING}{}{HEADING:#}", names.join(", ")));
    for difference in &first.differs {
        add_field(lines, difference);
    }
}

/// A field as a diff has it.
pub(crate) fn add_field(lines: &mut TextLines, difference: &FieldDifference) {
    let FieldDifference {
        field,
        has,
        would_get,
    } = difference;
    if has.is_none() && would_get.is_none() {
        lines.add_line(format_args!("  {BAD}~ {field}{BAD:#}"));
    }
    if let Some(has) = has {
        lines.add_line(format_args!("  {BAD}- {field}: {}{BAD:#}", cut_value(has)));
    }
    if let Some(would_get) = would_get {
        lines.add_line(format_args!(
            "  {GOOD}+ {field}: {}{GOOD:#}",
            cut_value(would_get)
        ));
    }
}

fn cut_value(value: &str) -> String {
    let mut chars = value.chars();
    let short: String = chars.by_ref().take(VALUE_CHARS).collect();
    if chars.next().is_some() {
        format!("{short}…")
    } else {
        short
    }
}
