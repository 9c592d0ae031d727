//! `kubectl leadsman rollout`: the roll-outs of a `CloneSet`, in the words of `kubectl rollout`, which does not know the kind.
//!
//! `undo`, `pause`, `resume` and `restart` write the set, by the rights of whoever asks. Each of them is one patch.
//!
//! | module | holds |
//! |---|---|
//! | `progress` | how far a roll-out is, for `status` |
//! | `revisions` | the templates that a set had, for `history` and `undo` |

mod progress;
mod revisions;

use clap::{Subcommand, ValueEnum};
use clap_complete::engine::ArgValueCompleter;
use jiff::SignedDuration;
use leadsman_api::CloneSet;
use serde_json::{Value, json};

use crate::connection::ConnectionFlags;
use crate::output::{self, Colors, OutputFormat};
use crate::reader::Reader;
use crate::report::print_report;
use crate::resources::{CLONE_SETS, KINDS};
use crate::{VerbError, completion};

/// The flags of `rollout`.
#[derive(Clone, Debug, clap::Args)]
#[command(
    after_help = "Examples:\n  kubectl leadsman rollout status cloneset/web --timeout 10m\n  kubectl leadsman rollout history cloneset/web\n  kubectl leadsman rollout undo cloneset/web --to-revision 3"
)]
pub struct RolloutArgs {
    #[command(subcommand)]
    verb: RolloutVerb,
}

#[derive(Clone, Debug, Subcommand)]
enum RolloutVerb {
    /// Show how far a roll-out is, and wait for its end
    ///
    /// The end is that as many pods are of the present template, and available, as partition lets. The exit status is 1 if the
    /// roll-out cannot go on, or if the time is over.
    Status(RolloutStatusArgs),
    /// Show the templates that a set had
    History(RolloutHistoryArgs),
    /// Give a set an earlier template again
    ///
    /// Nothing but the template changes: partition, replicas and paused stay. Pods that were not updated yet stay as they are, and
    /// up to partition pods keep the template that is left.
    Undo(UndoArgs),
    /// Stop a roll-out: no further pod is updated
    Pause(RolloutTarget),
    /// Let a roll-out that is paused go on
    Resume(RolloutTarget),
    /// Replace all pods by others of the same template
    ///
    /// The template gets the annotation kubectl.kubernetes.io/restartedAt. Claims of the replaced pods are deleted, with their data, and
    /// partition keeps so many pods as they are. A set that updates in place would change the annotation
    /// and restart nothing, so it is refused.
    Restart(RolloutTarget),
}

/// A set.
#[derive(Clone, Debug, clap::Args)]
struct RolloutTarget {
    /// The set: cloneset/NAME or clone NAME
    #[arg(value_name = "CLONESET", required = true, num_args = 1..=2, add = ArgValueCompleter::new(completion::complete_clone_sets))]
    set: Vec<String>,
    #[command(flatten)]
    colors: Colors,
    #[command(flatten)]
    connection: ConnectionFlags,
}

#[derive(Clone, Debug, clap::Args)]
struct RolloutStatusArgs {
    /// Wait for the end; false shows how far it is now
    #[arg(short, long, value_name = "BOOL", default_value_t = true, action = clap::ArgAction::Set,
        num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    watch: bool,
    /// Longest time to wait, such as 30s or 10m; 0s waits as long as it takes
    #[arg(long, value_name = "DURATION", default_value = "0s")]
    timeout: SignedDuration,
    #[command(flatten)]
    target: RolloutTarget,
}

#[derive(Clone, Debug, clap::Args)]
struct RolloutHistoryArgs {
    /// Show the template of this revision
    #[arg(long, value_name = "NUMBER")]
    revision: Option<i64>,
    /// Output format
    #[arg(short, long, value_name = "FORMAT", default_value = "table")]
    output: OutputFormat,
    #[command(flatten)]
    target: RolloutTarget,
}

#[derive(Clone, Debug, clap::Args)]
struct UndoArgs {
    /// The revision to go back to; 0 is the one before the present one
    #[arg(long, value_name = "NUMBER", default_value_t = 0)]
    to_revision: i64,
    /// client: show the template; server: send the request, and store nothing
    #[arg(long, value_name = "WHEN", default_value = "none")]
    dry_run: DryRun,
    #[command(flatten)]
    target: RolloutTarget,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum DryRun {
    None,
    Client,
    Server,
}

impl RolloutArgs {
    pub(crate) fn colors(&self) -> Colors {
        let target = match &self.verb {
            RolloutVerb::Status(args) => &args.target,
            RolloutVerb::History(args) => &args.target,
            RolloutVerb::Undo(args) => &args.target,
            RolloutVerb::Pause(target)
            | RolloutVerb::Resume(target)
            | RolloutVerb::Restart(target) => target,
        };
        target.colors
    }
}

pub(crate) async fn run(args: &RolloutArgs) -> Result<(), VerbError> {
    match &args.verb {
        RolloutVerb::Status(args) => {
            let set = args.target.read().await?;
            progress::show(set, args).await
        }
        RolloutVerb::History(args) => {
            let set = args.target.read().await?;
            let history = set.read_history().await?.of_revision(args.revision)?;
            print_report(args.output, set.reader.cluster_time().await, &history)
        }
        RolloutVerb::Undo(args) => {
            let set = args.target.read().await?;
            let history = set.read_history().await?;
            let undo = history.undo(&set.set, args.to_revision)?;
            if args.dry_run == DryRun::Client {
                return output::print_text(&undo.to_text()?);
            }
            if set.set.spec.update_strategy.settings().paused {
                let name = &set.name;
                output::print_remark(&format!(
                    "the set is paused: pods follow after kubectl leadsman rollout resume cloneset/{name}"
                ));
            }
            set.patch(&undo.change, args.dry_run).await
        }
        RolloutVerb::Pause(target) => change(target, |name, set| pause(name, set, true)).await,
        RolloutVerb::Resume(target) => change(target, |name, set| pause(name, set, false)).await,
        RolloutVerb::Restart(target) => {
            let set = target.read().await?;
            let now = set.reader.cluster_time().await;
            let change = restart(&set.name, &set.set, now)?;
            set.patch(&change, DryRun::None).await
        }
    }
}

/// A set as it was read.
struct ReadSet {
    reader: Reader,
    namespace: String,
    name: String,
    set: CloneSet,
}

/// A change of a set.
#[derive(Debug, PartialEq)]
struct SetChange {
    /// A JSON merge patch (RFC 7396), or a JSON patch (RFC 6902) where it is a list.
    patch: Value,
    /// The word for what has become of the set, as kubectl says it.
    done: &'static str,
}

impl RolloutTarget {
    async fn read(&self) -> Result<ReadSet, VerbError> {
        let words: Vec<_> = self.set.iter().map(String::as_str).collect();
        let name = set_name(&words)?.to_owned();
        let (reader, namespace) = self.connection.connect_reader().await?;
        let set = reader
            .require(CLONE_SETS, "cloneset", &name, Some(&namespace))
            .await?;
        Ok(ReadSet {
            reader,
            namespace,
            name,
            set,
        })
    }
}

impl ReadSet {
    async fn patch(&self, change: &SetChange, dry_run: DryRun) -> Result<(), VerbError> {
        let is_dry = dry_run == DryRun::Server;
        let of = (self.namespace.as_str(), self.name.as_str());
        self.reader
            .patch_object(CLONE_SETS, of, &change.patch, is_dry)
            .await?;
        let (name, done) = (&self.name, change.done);
        let how = if is_dry { " (server dry run)" } else { "" };
        output::print_text(&format!("cloneset.apps.kruise.io/{name} {done}{how}\n"))
    }
}

async fn change(
    target: &RolloutTarget,
    change: impl Fn(&str, &CloneSet) -> Result<SetChange, VerbError>,
) -> Result<(), VerbError> {
    let set = target.read().await?;
    set.patch(&change(&set.name, &set.set)?, DryRun::None).await
}

/// `cloneset/NAME` or `cloneset NAME`, as kubectl takes them.
fn set_name<'a>(words: &[&'a str]) -> Result<&'a str, VerbError> {
    let pair = match words {
        [both] => both.split_once('/'),
        [kind, name] => Some((*kind, *name)),
        _ => None,
    };
    let is_of_sets = |kind: &str| {
        let mut kinds = KINDS.iter();
        kinds.any(|(resource, names)| *resource == CLONE_SETS && names.contains(&kind))
    };
    match pair {
        Some((kind, name)) if is_of_sets(kind) && !name.is_empty() && !name.contains('/') => {
            Ok(name)
        }
        Some((kind, name)) if !is_of_sets(kind) => Err(VerbError::Usage(format!(
            "{kind} is no cloneset: kubectl rollout is for deployments, daemonsets and statefulsets, as in kubectl rollout status {kind}/{name}"
        ))),
        _ => Err(VerbError::Usage("name a set: cloneset/NAME".to_owned())),
    }
}

/// Stops a roll-out, or lets it go on.
fn pause(name: &str, set: &CloneSet, paused: bool) -> Result<SetChange, VerbError> {
    let strategy = &set.spec.update_strategy;
    if strategy.settings().paused == paused {
        let already = if paused { "already" } else { "not" };
        return Err(VerbError::Found(format!(
            "clonesets.apps.kruise.io \"{name}\" is {already} paused"
        )));
    }
    let mut field = json!({"paused": paused});
    if strategy.is_of_v1beta1() {
        field = json!({"rollingUpdate": field});
    }
    Ok(SetChange {
        patch: json!({"spec": {"updateStrategy": field}}),
        done: if paused { "paused" } else { "resumed" },
    })
}

/// Makes another template of the same pods, as `kubectl rollout restart` does (`defaultObjectRestarter`,
/// `k8s.io/kubectl/pkg/polymorphichelpers/objectrestarter.go`).
fn restart(name: &str, set: &CloneSet, now: jiff::Timestamp) -> Result<SetChange, VerbError> {
    let strategy = &set.spec.update_strategy;
    let refused = |why: String| {
        VerbError::Found(format!(
            "clonesets.apps.kruise.io \"{name}\" cannot be restarted: {why}"
        ))
    };
    if strategy.settings().paused {
        return Err(refused(format!(
            "it is paused; run kubectl leadsman rollout resume cloneset/{name} first"
        )));
    }
    let policy = strategy.policy().unwrap_or("ReCreate");
    if policy.starts_with("InPlace") {
        return Err(refused(format!(
            "with {policy} an annotation changes in the pods as they are, and no container restarts; \
             set ReCreate, or name the pods in spec.scaleStrategy.podsToDelete"
        )));
    }
    let at = now.strftime("%Y-%m-%dT%H:%M:%SZ").to_string();
    let annotations = json!({"kubectl.kubernetes.io/restartedAt": at});
    Ok(SetChange {
        patch: json!({"spec": {"template": {"metadata": {"annotations": annotations}}}}),
        done: "restarted",
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser as _;
    use rstest::rstest;

    use super::*;
    use crate::CommandLine;
    use crate::reader::FakeServer;

    pub(super) fn set(spec: &Value, status: &Value) -> CloneSet {
        let mut set = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "CloneSet",
            "metadata": {"name": "web", "uid": "u", "generation": 4}, "spec": spec, "status": status});
        for field in ["selector", "template"] {
            if set["spec"][field].is_null() {
                set["spec"][field] = json!({});
            }
        }
        // As text, of which a template is kept.
        serde_json::from_str(&set.to_string()).unwrap()
    }

    #[rstest]
    #[case(&["cloneset/web"], "web")]
    #[case(&["clone", "web"], "web")]
    #[case(&["web"], "name a set: cloneset/NAME")]
    #[case(&["cloneset/web/status"], "name a set: cloneset/NAME")]
    #[case(&["deploy/web"], "deploy is no cloneset: kubectl rollout is for deployments, daemonsets and statefulsets, as in kubectl rollout status deploy/web")]
    fn a_set_is_named_as_for_kubectl(#[case] words: &[&str], #[case] expected: &str) {
        let found = set_name(words).map_or_else(|error| error.to_string(), str::to_owned);
        assert_eq!(found, expected);
    }

    #[test]
    fn flags_are_those_of_kubectl() {
        let status = |words: &[&str]| {
            let words = ["rollout", "status", "cloneset/web"].iter().chain(words);
            match CommandLine::<RolloutArgs>::try_parse_from(words)
                .unwrap()
                .args
                .verb
            {
                RolloutVerb::Status(args) => (args.watch, args.timeout.as_secs()),
                other => panic!("{other:?}"),
            }
        };
        assert_eq!(status(&[]), (true, 0));
        assert_eq!(status(&["-w"]), (true, 0));
        assert_eq!(status(&["--watch=false", "--timeout=1m30s"]), (false, 90));
    }

    #[test]
    fn a_set_is_paused_and_resumed_once() {
        let running = set(&json!({}), &json!({}));
        let paused = set(&json!({"updateStrategy": {"paused": true}}), &json!({}));
        for (set, to, done) in [(&running, true, "paused"), (&paused, false, "resumed")] {
            let wanted = SetChange {
                patch: json!({"spec": {"updateStrategy": {"paused": to}}}),
                done,
            };
            assert_eq!(pause("web", set, to).unwrap(), wanted);
        }
        let strategy =
            json!({"updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"paused": true}}});
        let change = pause("web", &set(&strategy, &json!({})), false).unwrap();
        let resumed = json!({"spec": {"updateStrategy": {"rollingUpdate": {"paused": false}}}});
        assert_eq!(change.patch, resumed);
        let error = pause("web", &paused, true).unwrap_err().to_string();
        assert_eq!(error, "clonesets.apps.kruise.io \"web\" is already paused");
        let error = pause("web", &running, false).unwrap_err().to_string();
        assert_eq!(error, "clonesets.apps.kruise.io \"web\" is not paused");
    }

    #[test]
    fn a_restart_is_an_annotation_and_is_refused_where_it_would_restart_nothing() {
        let now = "2026-01-02T03:04:05.6Z".parse().unwrap();
        let of = |strategy: Value| {
            restart(
                "web",
                &set(&json!({"updateStrategy": strategy}), &json!({})),
                now,
            )
        };
        assert_eq!(
            of(json!({})).unwrap().patch,
            json!({"spec": {"template": {"metadata": {"annotations": {"kubectl.kubernetes.io/restartedAt": "2026-01-02T03:04:05Z"}}}}})
        );
        for (strategy, word) in [
            (json!({"paused": true}), "it is paused"),
            (json!({"type": "InPlaceIfPossible"}), "InPlaceIfPossible"),
            (json!({"type": "InPlaceOnly"}), "InPlaceOnly"),
        ] {
            let error = of(strategy).unwrap_err().to_string();
            assert!(error.contains(word), "{error}");
        }
    }

    #[tokio::test]
    async fn a_patch_is_sent_in_its_form_and_dry_where_that_is_asked_for() {
        let path = "/apis/apps.kruise.io/v1alpha1/namespaces/ns/clonesets/web";
        let server = FakeServer::new([(path, json!({}))]);
        let read = |name: &str| ReadSet {
            reader: server.reader(),
            namespace: "ns".to_owned(),
            name: name.to_owned(),
            set: set(&json!({}), &json!({})),
        };
        let change = |patch: Value| SetChange {
            patch,
            done: "paused",
        };
        let merge = change(json!({"spec": {}}));
        read("web").patch(&merge, DryRun::None).await.unwrap();
        let list = change(json!([]));
        read("web").patch(&list, DryRun::Server).await.unwrap();
        let error = read("other").patch(&merge, DryRun::None).await.unwrap_err();
        assert_eq!(
            error.to_string(),
            "cannot patch clonesets.apps.kruise.io in namespace ns: not found"
        );
        let patches = server.patches();
        let sent: Vec<_> = patches
            .iter()
            .map(|(how, body)| (how.as_str(), body))
            .collect();
        let of =
            |form: &str, query: &str| format!("{form} {path}?fieldManager=kubectl-leadsman{query}");
        let wanted = [
            of("application/merge-patch+json", ""),
            of("application/json-patch+json", "&dryRun=All"),
        ];
        assert_eq!(
            sent[..2],
            [(&*wanted[0], &merge.patch), (&*wanted[1], &list.patch)]
        );
    }
}
