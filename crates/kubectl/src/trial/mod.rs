//! `kubectl leadsman try`: what a marker would do, before it is applied. Nothing is written.
//!
//! | module | holds |
//! |---|---|
//! | here | the verb: reading, and the runs in between |
//! | `documents` | markers from files |
//! | `server` | what the API server says of a marker (`dryRun=All`) |
//! | `pod` | one run of a probe in a pod, through the API server |
//! | `report` | the answer, and whether something is wrong |
//! | `text` | the answer as text |

pub(crate) mod documents;
mod pod;
mod report;
mod server;
mod text;

use std::collections::BTreeMap;
use std::path::PathBuf;

use clap::builder::ValueHint;
use clap_complete::engine::ArgValueCompleter;
use futures::future::join_all;
use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use leadsman_api::slim::Pod;
use leadsman_api::{Guarded, PodProbeMarker};
use leadsman_core::cluster::ObjectName;
use leadsman_core::podprobe::Marker;
use leadsman_core::podprobe::explain::{
    ObservedCluster, ObservedObjects, TrialReport, TrialTarget,
};
use serde::Serialize;

use self::documents::MarkerCandidate;
use self::pod::ReachedPod;
use self::report::{MarkerTrial, MarkerValidation, PodTrial, ProbeTrial};
use self::server::DryRunAnswer;
use crate::connection::ConnectionFlags;
use crate::explain::observe_pods;
use crate::output::{Colors, OutputFormat};
use crate::reader::{ListSelection, Reader};
use crate::report::print_report;
use crate::resources::PODS;
use crate::{VerbError, completion};

/// The most pods in which probes are run side by side; those of a pod follow each other.
const PODS_AT_ONCE: usize = 8;

/// The flags of `try`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman try -f marker.yaml\n  kubectl leadsman try -f marker.yaml pod/game-0\n  kustomize build . | kubectl leadsman try -f - --sample 10"
)]
pub struct TryArgs {
    /// pod/NAME: run the probes in this pod [default: in a few of those that match]
    #[arg(value_name = "POD", add = ArgValueCompleter::new(completion::complete_pods))]
    pod: Option<String>,
    /// File with the markers, - for standard input; may be repeated
    #[arg(short = 'f', long = "filename", value_name = "FILE", required = true, value_hint = ValueHint::FilePath)]
    files: Vec<PathBuf>,
    /// Number of matching pods in which the probes are run; 0 runs none
    #[arg(long, value_name = "PODS", default_value_t = 3)]
    sample: usize,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    pub(crate) colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

pub(crate) async fn run(args: &TryArgs) -> Result<(), VerbError> {
    let mut objects = Vec::new();
    for file in &args.files {
        objects.extend(documents::parse_objects(&documents::read_file(file)?)?);
    }
    let (reader, namespace) = args.connection.connect_reader().await?;
    let is_given = args.connection.namespace.is_some();
    let candidates = documents::find_markers(objects, &namespace, is_given)?;
    // Markers of two namespaces have nothing to do with each other.
    let mut by_namespace = BTreeMap::<_, Vec<_>>::new();
    for candidate in candidates {
        let namespace = candidate.namespace.clone();
        by_namespace.entry(namespace).or_default().push(candidate);
    }
    let mut trials = Vec::new();
    for (namespace, candidates) in by_namespace {
        let attempt = Attempt {
            reader: &reader,
            namespace: &namespace,
            now: reader.cluster_time().await,
        };
        trials.extend(attempt.run(candidates, args).await?);
    }
    let trials = Trials { markers: trials };
    print_report(args.output, reader.cluster_time().await, &trials)?;
    match report::count_problems(&trials.markers) {
        0 => Ok(()),
        1 => Err(VerbError::Found("one thing is wrong".to_owned())),
        count => Err(VerbError::Found(format!("{count} things are wrong"))),
    }
}

/// The answer, as `status` has it.
#[derive(Serialize)]
struct Trials {
    markers: Vec<MarkerTrial>,
}

/// The trial of the markers of a namespace, all at once: they may conflict with one another.
struct Attempt<'a> {
    reader: &'a Reader,
    namespace: &'a str,
    now: Timestamp,
}

impl Attempt<'_> {
    async fn run(
        &self,
        candidates: Vec<MarkerCandidate>,
        args: &TryArgs,
    ) -> Result<Vec<MarkerTrial>, VerbError> {
        let pods = self.read_pods(args.pod.as_deref()).await?;
        let observed = observe_pods(self.reader, pods, Some(self.namespace), self.now).await?;
        let checks = candidates
            .iter()
            .map(|candidate| self.validate_marker(candidate, &observed));
        let validations = join_all(checks).await;
        // All of them at once: markers that are applied together may conflict with one another.
        let mut proposed = observed;
        for (candidate, validation) in candidates.iter().zip(&validations) {
            if let Some(marker) = validation.usable_marker(candidate) {
                proposed.propose_marker(marker.clone(), self.now);
            }
        }
        let sample = match args.pod {
            Some(_) => args.sample.min(1),
            None => args.sample,
        };
        let mut trials = Vec::new();
        for (candidate, validation) in candidates.iter().zip(validations) {
            trials.push(self.try_out(candidate, validation, &proposed, sample).await);
        }
        Ok(trials)
    }

    /// The pods of the namespace, or the one that is named.
    async fn read_pods(&self, pod: Option<&str>) -> Result<Vec<Pod>, VerbError> {
        let namespace = Some(self.namespace);
        let Some(words) = pod else {
            let selection = ListSelection::of(namespace, 500);
            return Ok(self.reader.list_objects(PODS, &selection).await?);
        };
        let name = match words.split_once('/') {
            Some(("pod" | "pods" | "po", name)) => name,
            Some((kind, name)) => {
                return Err(VerbError::Usage(format!(
                    "probes are run in a pod, not in a {kind}; did you mean pod/{name}?"
                )));
            }
            None => words,
        };
        let pod = self.reader.require(PODS, "pod", name, namespace).await?;
        Ok(vec![pod])
    }

    /// Finds what is wrong with a marker itself: by the parser that manager and webhook use, and by the API server.
    async fn validate_marker(
        &self,
        candidate: &MarkerCandidate,
        observed: &ObservedObjects,
    ) -> MarkerValidation {
        let mut own = Vec::new();
        if let Ok(marker) = &candidate.decoded {
            let parsed = Marker::parse(marker, observed.config.compatibility);
            own.extend(parsed.err().into_iter().flatten());
        }
        let known = known_version(&observed.markers, &candidate.name);
        let answer = server::ask_api_server(self.reader, candidate, known).await;
        let (theirs, not_asked) = match answer {
            DryRunAnswer::Accepted => (Vec::new(), None),
            DryRunAnswer::Refused(errors) => (errors, None),
            DryRunAnswer::NotAsked(why) => (Vec::new(), Some(why)),
        };
        MarkerValidation::new(
            candidate,
            known.is_some(),
            server::merge_errors(own, theirs),
            not_asked,
        )
    }

    /// Finds the pods of a marker, and runs its probes in a sample of them.
    async fn try_out(
        &self,
        candidate: &MarkerCandidate,
        validation: MarkerValidation,
        proposed: &ObservedObjects,
        sample: usize,
    ) -> MarkerTrial {
        let marker = ObjectName {
            namespace: self.namespace.to_owned(),
            name: candidate.name.clone(),
        };
        let cluster = ObservedCluster::new(proposed.clone(), self.now);
        if validation.usable_marker(candidate).is_none() {
            return MarkerTrial::invalid_trial(validation);
        }
        let pods = cluster.try_marker(&marker);
        let targets = pods.selected.iter().filter_map(|pod| {
            let name = ObjectName {
                namespace: marker.namespace.clone(),
                name: pod.name.clone(),
            };
            let target = cluster.trial_target(&name, &marker)?;
            (!target.runs.is_empty()).then_some((name, target))
        });
        let targets: Vec<_> = targets.collect();
        let can_run = targets.len();
        let sampled = targets.iter().take(sample);
        let runs = sampled.map(|(pod, target)| self.run_probes(pod, target));
        let tried: Vec<_> = stream::iter(runs).buffered(PODS_AT_ONCE).collect().await;
        // The outcomes as verdicts, so that the index itself says which marks would follow.
        let mut recorded = proposed.clone();
        for ((pod, target), results) in targets.iter().zip(&tried) {
            let outcomes = results.iter().filter_map(|result| {
                let outcome = result.outcome.as_ref()?;
                Some((result.probe.clone(), outcome.clone()))
            });
            let report = TrialReport {
                pod,
                uid: &target.uid,
                node: &target.node,
                marker: &marker.name,
                outcomes: outcomes.collect(),
            };
            recorded.record_outcomes(&report, self.now);
        }
        let cluster = ObservedCluster::new(recorded, self.now);
        let after = cluster.try_marker(&marker);
        let tried = targets.iter().zip(tried).map(|((name, _), runs)| {
            let of_pod = after.selected.iter().find(|pod| pod.name == name.name);
            let causes = of_pod.map(|pod| pod.causes.clone());
            PodTrial {
                pod: name.name.clone(),
                runs,
                causes: causes.unwrap_or_default(),
                changes: cluster.mark_changes(name, &marker),
            }
        });
        MarkerTrial {
            validation,
            pods,
            can_run,
            tried: tried.collect(),
            unread: cluster.unread_kinds().to_vec(),
        }
    }

    async fn run_probes(&self, pod: &ObjectName, target: &TrialTarget) -> Vec<ProbeTrial> {
        let reached = ReachedPod::new(self.reader, &pod.namespace, &pod.name);
        let mut results = Vec::new();
        for run in &target.runs {
            let outcome = reached.run_probe(run, &target.ip).await;
            results.push(ProbeTrial::new(run, outcome));
        }
        results
    }
}

/// The resourceVersion of a marker that exists.
fn known_version<'a>(markers: &'a [Guarded<PodProbeMarker>], name: &str) -> Option<&'a str> {
    let mut known = markers.iter().map(|marker| match marker {
        Guarded::Decoded(marker) => &marker.metadata,
        Guarded::Undecodable { metadata, .. } => metadata,
    });
    let known = known.find(|metadata| metadata.name.as_deref() == Some(name))?;
    known.resource_version.as_deref()
}
