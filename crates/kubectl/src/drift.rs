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
use serde::Serialize;
use serde_json::Value;

use crate::connection::ConnectionFlags;
use crate::output::{Colors, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::report::{
    Report, Text, TextTable, bad, bold, cut, good, line, or_dash, print_report, row, waiting,
};
use crate::resources::{PODS, SIDECAR_SETS};
use crate::sidecar_sets::{FoundSets, Needs, WantedNamespaces};
use crate::targets::no_such_object;
use crate::{VerbError, completion};

/// Values longer than this are cut, unless they are asked for as JSON or YAML.
const VALUE_CHARS: usize = 80;

/// The flags of `drift`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman drift log-agent\n  kubectl leadsman drift log-agent -n prod -o wide"
)]
pub struct DriftArgs {
    /// Name of the SidecarSet
    #[arg(value_name = "NAME", add = ArgValueCompleter::new(completion::complete_sidecar_sets))]
    set: String,
    /// Output format; wide names the pods, with each value before and after
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(args: &DriftArgs) -> Result<(), VerbError> {
    // `sidecarset/NAME`, as other verbs and kubectl take it, is the same.
    let name = args.set.rsplit('/').next().unwrap_or_default();
    let (reader, _) = args.connection.connect_reader().await?;
    let now = reader.cluster_time().await;
    let needs = Needs {
        set: Some(name),
        // The revision that a pod was injected by is found by its name, whichever that is.
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
    let pods = reader.map_pod_objects(&selection, drift).await?;
    let report = DriftReport::new(known, pods);
    let set = SetDrift {
        report,
        known,
        unread: &unread,
    };
    print_report(args.output, now, &set)
}

/// How the pods of a set differ from what it would make of them.
#[derive(Serialize)]
struct SetDrift<'a> {
    #[serde(flatten)]
    report: DriftReport,
    #[serde(skip)]
    known: &'a KnownSet,
    #[serde(skip)]
    unread: &'a [String],
}

impl Reader {
    /// The pods that were injected by a set which is gone.
    async fn read_left_behind(
        &self,
        set: &str,
        namespace: Option<&str>,
    ) -> Result<Vec<String>, VerbError> {
        let selection = ListSelection::of(namespace, 250);
        let pods = self.read_pod_objects(&selection).await?.into_iter();
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
        let pod = self
            .get_object::<Value>(PODS, Some(&name.namespace), &name.name)
            .await?
            .ok_or_else(|| Unread(format!("pod {name} was deleted")))?;
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

    /// Maps the pods of a selection, which are not kept themselves: a set may have tens of thousands.
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
        labels: Some(known.set.selector.to_string()),
        ..ListSelection::of(namespace.or(own), 250)
    }
}

/// The pods that have the same revision and differ in the same fields.
struct DriftGroup<'a> {
    revision: Option<&'a str>,
    takes: DriftRemedy,
    differs: Vec<&'a str>,
    pods: Vec<&'a PodDrift>,
}

fn group_by_remedy(report: &DriftReport) -> Vec<DriftGroup<'_>> {
    let mut groups = BTreeMap::<_, Vec<_>>::new();
    for pod in &report.pods {
        let differs: Vec<_> = pod.differs.iter().map(|one| one.field.as_str()).collect();
        // First in the key: the pods of the newest revision are shown first.
        let is_old = pod.revision.as_deref() != Some(&report.revision);
        let key = (is_old, pod.revision.as_deref(), pod.takes, differs);
        groups.entry(key).or_default().push(pod);
    }
    let group = |((_, revision, takes, differs), pods)| DriftGroup {
        revision,
        takes,
        differs,
        pods,
    };
    groups.into_iter().map(group).collect()
}

impl Report for SetDrift<'_> {
    fn add_text(&self, text: &mut Text) {
        let DriftReport {
            set,
            revision,
            pods,
        } = &self.report;
        let is_current = |pod: &&PodDrift| pod.takes == DriftRemedy::Nothing;
        let (current, all) = (pods.iter().filter(is_current).count(), pods.len());
        let style = if current == all { good } else { bad };
        let (set, count) = (
            bold(format!("SidecarSet {set}")),
            style(format!("{current} of {all} pods")),
        );
        line!(text, 0 => "{set}, revision {revision}: {count} are as they would be created now");
        if self.known.set.is_injection_paused {
            let paused = waiting("its injection is paused");
            line!(text, 2 => "{paused}: a pod that is created again gets nothing until it is resumed");
        }
        let groups = group_by_remedy(&self.report);
        if all > 0 {
            text.add_gap();
            text.add_table(0, &self.groups_table(&groups));
        }
        let is_wide = text.is_wide;
        for group in groups.iter().filter(|_| is_wide) {
            add_pods(text, group);
        }
        text.add_unread(self.unread);
    }

    fn names(&self) -> Vec<String> {
        let pods = self.report.pods.iter();
        pods.map(|pod| format!("pod/{}", pod.name)).collect()
    }
}

impl SetDrift<'_> {
    fn groups_table(&self, groups: &[DriftGroup<'_>]) -> TextTable {
        let mut table = TextTable::new(&["REVISION", "VERSION", "PODS", "TAKES", "DIFFERS IN"]);
        for group in groups {
            let version = if group.revision == Some(&self.report.revision) {
                self.known.set.custom_version.as_deref()
            } else {
                let mut revisions = self.known.history.revisions.iter();
                let of_pod = revisions.find(|known| Some(&*known.revision.name) == group.revision);
                of_pod.and_then(|of_pod| of_pod.custom_version.as_deref())
            };
            let takes = match group.takes {
                DriftRemedy::Nothing => good("nothing"),
                DriftRemedy::Upgrade => waiting("an upgrade"),
                DriftRemedy::UpgradeAndRecreation => bad("an upgrade, and re-creation"),
                DriftRemedy::Recreation => bad("re-creation"),
            };
            let revision = group.revision.unwrap_or("unknown");
            let differs = Some(group.differs.join(", ")).filter(|fields| !fields.is_empty());
            let (version, differs) = (or_dash(version), or_dash(differs));
            row!(table => revision, version, group.pods.len(), takes, differs);
        }
        table
    }
}

/// The pods of a group, and the values of the first one.
fn add_pods(text: &mut Text, group: &DriftGroup<'_>) {
    let Some(first) = group.pods.first().filter(|pod| !pod.differs.is_empty()) else {
        return;
    };
    let names = group
        .pods
        .iter()
        .map(|pod| format!("{}/{}", pod.namespace, pod.name));
    text.add_heading(names.collect::<Vec<_>>().join(", "));
    for difference in &first.differs {
        add_field(text, difference);
    }
}

/// A field as a diff has it.
pub(crate) fn add_field(text: &mut Text, difference: &FieldDifference) {
    let field = &difference.field;
    let value = |sign: char, value: &str| format!("{sign} {field}: {}", cut(value, VALUE_CHARS));
    match (&difference.has, &difference.would_get) {
        (None, None) => text.add_line(2, bad(format!("~ {field}"))),
        (has, would_get) => {
            let has = has.iter().map(|it| bad(value('-', it)));
            let would_get = would_get.iter().map(|it| good(value('+', it)));
            has.chain(would_get).for_each(|it| text.add_line(2, it));
        }
    }
}
