//! How far the roll-out of a set is, and the wait for its end.

use std::pin::pin;
use std::time::Duration;

use futures::{Stream, StreamExt};
use leadsman_api::CloneSet;
use leadsman_process::RandomSource;
use leadsman_process::list::ListTarget;
use leadsman_process::watcher::{WatchEvent, list_and_watch};

use super::{ReadSet, RolloutStatusArgs};
use crate::VerbError;
use crate::output;

/// How far a roll-out is, in a line for people.
#[derive(Debug, PartialEq, Eq)]
enum RolloutProgress {
    /// The roll-out goes on.
    Waits(String),
    Done(String),
    /// The roll-out does not go on by itself.
    Stuck(String),
}

use RolloutProgress::{Done, Stuck, Waits};

/// Reasons of conditions with which a roll-out does not end before somebody acts. Their messages say what to do.
const FINAL: [&str; 4] = [
    "Invalid",
    "NotInPlace",
    "TooManyDeletions",
    "ProgressDeadlineExceeded",
];

/// Says how far it is, in the order in which `kubectl rollout status` looks (`DeploymentStatusViewer`,
/// `k8s.io/kubectl/pkg/polymorphichelpers/rollout_status.go`).
fn progress_of(name: &str, set: &CloneSet) -> RolloutProgress {
    let (spec, status) = (&set.spec, set.status.clone().unwrap_or_default());
    let strategy = &spec.update_strategy;
    if strategy.type_.as_deref() == Some("OnDelete") {
        return Stuck(
            "with spec.updateStrategy.type OnDelete pods follow as somebody deletes them: there is no roll-out to wait for"
                .to_owned(),
        );
    }
    if set.metadata.generation.unwrap_or_default() > status.observed_generation {
        return Waits("Waiting for cloneset spec update to be observed...".to_owned());
    }
    let mut conditions = status.conditions.iter();
    let is_final =
        |reason: &Option<String>| reason.as_deref().is_some_and(|it| FINAL.contains(&it));
    if let Some(condition) = conditions.find(|one| is_final(&one.reason)) {
        let message = condition.message.as_deref().unwrap_or_default();
        return Stuck(format!("cloneset {name:?} is not rolled out: {message}"));
    }
    let (replicas, wanted) = (spec.replicas.unwrap_or(1), status.expected_updated_replicas);
    let [updated, available] = [status.updated_replicas, status.updated_available_replicas];
    let left = if updated < wanted {
        format!("{updated} out of {wanted} new pods have been updated")
    } else if status.replicas > replicas {
        format!(
            "{} old pods are pending deletion",
            status.replicas - replicas
        )
    } else if available < wanted {
        format!("{available} of {wanted} updated pods are available")
    } else if wanted < replicas {
        return Done(format!(
            "partitioned roll out complete: {updated} new pods have been updated..."
        ));
    } else {
        return Done(format!("cloneset {name:?} successfully rolled out"));
    };
    let problems = status
        .conditions
        .iter()
        .filter(|one| one.type_.starts_with("Failed"));
    let mut reasons: Vec<_> = problems.filter_map(|one| one.message.clone()).collect();
    if strategy.settings().paused && updated < wanted {
        reasons.push("it is paused".to_owned());
    }
    let why = match reasons.as_slice() {
        [] => String::new(),
        reasons => format!(" ({})", reasons.join("; ")),
    };
    Waits(format!(
        "Waiting for cloneset {name:?} rollout to finish: {left}...{why}"
    ))
}

/// Shows how far it is, or waits for its end.
pub(super) async fn show(set: ReadSet, args: &RolloutStatusArgs) -> Result<(), VerbError> {
    let mut print = |line: &str| output::print_text(&format!("{line}\n"));
    if !args.watch {
        return match progress_of(&set.name, &set.set) {
            Waits(line) | Done(line) => print(&line),
            Stuck(why) => Err(VerbError::Found(why)),
        };
    }
    let target = ListTarget::in_namespace::<CloneSet>(&set.namespace).only_named(&set.name);
    let events = list_and_watch::<CloneSet>(
        set.reader.server,
        target,
        |text| serde_json::from_str(text),
        RandomSource::from_entropy().fork_rng(),
    );
    let followed = follow(&set.name, events, &mut print);
    match Duration::try_from(args.timeout) {
        Ok(Duration::ZERO) | Err(_) => followed.await,
        Ok(timeout) => tokio::time::timeout(timeout, followed)
            .await
            .unwrap_or_else(|_| {
                Err(VerbError::Found(
                    "timed out waiting for the condition".to_owned(),
                ))
            }),
    }
}

/// Prints each step until the roll-out ends.
async fn follow(
    name: &str,
    events: impl Stream<Item = WatchEvent<CloneSet>>,
    print: &mut impl FnMut(&str) -> Result<(), VerbError>,
) -> Result<(), VerbError> {
    let gone = || VerbError::Found(format!("cloneset {name:?} was deleted"));
    let mut events = pin!(events);
    let (mut last, mut is_listed) = (String::new(), false);
    while let Some(event) = events.next().await {
        match event {
            WatchEvent::ListItem(set) | WatchEvent::Changed(set) => {
                is_listed = true;
                match progress_of(name, &set) {
                    Waits(line) if line == last => {}
                    Waits(line) => {
                        print(&line)?;
                        last = line;
                    }
                    Done(line) => return print(&line),
                    Stuck(why) => return Err(VerbError::Found(why)),
                }
            }
            WatchEvent::ListStarted => is_listed = false,
            WatchEvent::ListComplete(_) if !is_listed => return Err(gone()),
            WatchEvent::Deleted(_) => return Err(gone()),
            WatchEvent::Failed(failure) => {
                let why = failure.disposition.explain_reason();
                output::print_remark(&format!("{why}; trying again"));
            }
            WatchEvent::ListComplete(_) | WatchEvent::ListPage(_) | WatchEvent::Following => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use futures::stream;
    use rstest::rstest;
    use serde_json::{Value, json};

    use super::super::tests::set;
    use super::*;

    /// The generation that is observed, N, and pods: wanted new, new, new and available, all.
    fn status([generation, wanted, updated, available, all]: [i32; 5]) -> Value {
        json!({"observedGeneration": generation, "expectedUpdatedReplicas": wanted, "updatedReplicas": updated,
            "updatedAvailableReplicas": available, "replicas": all})
    }

    #[rstest]
    #[case([3, 5, 5, 5, 5], json!({}), "waits: Waiting for cloneset spec update to be observed...")]
    #[case([4, 5, 2, 2, 5], json!({}), "waits: Waiting for cloneset \"web\" rollout to finish: 2 out of 5 new pods have been updated...")]
    #[case([4, 5, 2, 2, 5], json!({"paused": true}), "waits: Waiting for cloneset \"web\" rollout to finish: 2 out of 5 new pods have been updated... (it is paused)")]
    #[case([4, 5, 5, 4, 6], json!({}), "waits: Waiting for cloneset \"web\" rollout to finish: 1 old pods are pending deletion...")]
    #[case([4, 5, 5, 4, 5], json!({}), "waits: Waiting for cloneset \"web\" rollout to finish: 4 of 5 updated pods are available...")]
    #[case([4, 5, 5, 5, 5], json!({}), "done: cloneset \"web\" successfully rolled out")]
    #[case([4, 2, 2, 2, 5], json!({"partition": 3}), "done: partitioned roll out complete: 2 new pods have been updated...")]
    #[case([4, 5, 5, 5, 5], json!({"type": "OnDelete"}), "stuck: with spec.updateStrategy.type OnDelete pods follow as somebody deletes them: there is no roll-out to wait for")]
    fn progress_is_said_as_kubectl_says_it(
        #[case] numbers: [i32; 5],
        #[case] strategy: Value,
        #[case] expected: &str,
    ) {
        let spec = json!({"replicas": 5, "updateStrategy": strategy});
        let found = match progress_of("web", &set(&spec, &status(numbers))) {
            Waits(line) => format!("waits: {line}"),
            Done(line) => format!("done: {line}"),
            Stuck(why) => format!("stuck: {why}"),
        };
        assert_eq!(found, expected);
    }

    #[test]
    fn a_condition_is_said_and_ends_the_wait_where_only_an_edit_helps() {
        let of = |type_: &str, reason: &str| {
            let mut status = status([4, 5, 2, 2, 5]);
            status["conditions"] =
                json!([{"type": type_, "status": "True", "reason": reason, "message": "no"}]);
            progress_of("web", &set(&json!({"replicas": 5}), &status))
        };
        let stuck = Stuck("cloneset \"web\" is not rolled out: no".to_owned());
        assert_eq!(of("FailedUpdate", "NotInPlace"), stuck);
        assert_eq!(of("FailedScale", "TooManyDeletions"), stuck);
        let Waits(line) = of("FailedScale", "Refused") else {
            panic!("a quota may be raised");
        };
        assert!(line.ends_with("updated... (no)"), "{line}");
        let late = of("Progressing", "ProgressDeadlineExceeded");
        assert_eq!(late, of("FailedUpdate", "NotInPlace"));
        let Waits(line) = of("Progressing", "CloneSetUpdated") else {
            panic!("it is no problem");
        };
        assert!(line.ends_with("updated..."), "{line}");
    }

    async fn lines_of(events: Vec<WatchEvent<CloneSet>>) -> (Vec<String>, Option<String>) {
        let mut lines = Vec::new();
        let mut print = |line: &str| {
            lines.push(line.to_owned());
            Ok(())
        };
        let ended = follow("web", stream::iter(events), &mut print).await;
        (lines, ended.err().map(|error| error.to_string()))
    }

    #[tokio::test]
    async fn each_step_is_printed_once_until_the_end() {
        let of = |numbers| set(&json!({"replicas": 5}), &status(numbers));
        let (first, last) = (of([4, 5, 2, 2, 5]), of([4, 5, 5, 5, 5]));
        let listed = || {
            vec![
                WatchEvent::ListStarted,
                WatchEvent::ListItem(first.clone()),
                WatchEvent::ListComplete("1".to_owned()),
                WatchEvent::Following,
                WatchEvent::Changed(first.clone()),
            ]
        };
        let mut events = listed();
        events.extend([
            WatchEvent::Changed(last),
            WatchEvent::Changed(first.clone()),
        ]);
        let (lines, error) = lines_of(events).await;
        assert_eq!((lines.len(), error), (2, None), "{lines:?}");
        assert_eq!(lines[1], "cloneset \"web\" successfully rolled out");
        let gone = Some("cloneset \"web\" was deleted".to_owned());
        let mut events = listed();
        events.push(WatchEvent::Deleted(first.clone()));
        assert_eq!(lines_of(events).await.1, gone);
        // It went while no watch was there.
        let mut events = listed();
        events.extend([
            WatchEvent::ListStarted,
            WatchEvent::ListComplete("9".to_owned()),
        ]);
        assert_eq!(lines_of(events).await.1, gone);
    }
}
