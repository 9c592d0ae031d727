use std::time::Duration;

use leadsman_process::Readiness;
use leadsman_process::watch::WatchEvent::{
    Changed, Deleted, Failed, Following, ListComplete, ListItem, ListStarted,
};
use serde_json::json;

use super::*;

type Item = WatchEvent<CustomResourceDefinition>;

fn ours() -> CustomResourceDefinition {
    let mut crds = leadsman_api::crd::crds().into_iter();
    let ours = crds.find(|crd| crd.metadata.name.as_deref() == Some(CRDS[1]));
    serde_json::from_value(serde_json::to_value(ours).unwrap()).unwrap()
}

fn theirs() -> CustomResourceDefinition {
    let version =
        json!({"name": leadsman_api::VERSION, "schema": {"openAPIV3Schema": {"type": "object"}}});
    let crd = json!({"metadata": {"name": CRDS[1]}, "spec": {"versions": [version]}});
    serde_json::from_value(crd).unwrap()
}

fn failed(phase: WatchPhase, cause: Cause) -> Item {
    let (after, reason) = (None, "the words".to_owned());
    let disposition = Disposition::Retry {
        cause,
        after,
        reason,
    };
    let retry_in = Duration::from_secs(5);
    Failed(WatchFailure {
        phase,
        disposition,
        retry_in,
    })
}

const NAME: &str = "schema";
const READY: &str = "[+] schema";

/// After each item, whether our fields are said to be kept, and what readiness says.
fn followed(items: impl IntoIterator<Item = Item>) -> Vec<(Option<bool>, String)> {
    let readiness = Readiness::default();
    let condition = readiness.condition(NAME, "not read yet");
    let mut schema = Schema::new(Kind::NodePodProbe, condition);
    let takes = items.into_iter().map(|item| {
        let said = schema.take(item).map(|event| match event {
            Event::FieldsKept(Kind::NodePodProbe, kept) => kept,
            other => panic!("{other:?}"),
        });
        (said, readiness.text().trim_end().to_owned())
    });
    takes.collect()
}

#[test]
fn each_change_of_what_is_kept_is_told_once() {
    let items = [
        ListStarted,
        ListItem(ours()),
        ListComplete("1".to_owned()),
        Following,
        Changed(ours()),
        Changed(theirs()),
        ListStarted,
        ListItem(theirs()),
        ListComplete("1".to_owned()),
        Changed(ours()),
    ];
    let said: Vec<_> = followed(items).into_iter().map(|(said, _)| said).collect();
    let (same, kept, dropped) = (None, Some(true), Some(false));
    let expected = [
        same, kept, same, same, same, dropped, same, same, same, kept,
    ];
    assert_eq!(said, expected);
}

#[test]
fn readiness_holds_while_the_crd_is_there_and_followed() {
    let items = [
        failed(WatchPhase::Listing, Cause::NoRight),
        ListStarted,
        ListComplete("1".to_owned()),
        Following,
        Changed(ours()),
        failed(WatchPhase::Watching, Cause::Unavailable),
        Following,
        Deleted(ours()),
        Changed(theirs()),
    ];
    let shown: Vec<_> = followed(items).into_iter().map(|(_, text)| text).collect();
    let no_right = format!(
        "[-] schema: cannot list the CRD {}: the API server does not accept the credentials of this process (the words): check \
         the kubeconfig, or the token of the pod's service account",
        CRDS[1]
    );
    let none = format!(
        "[-] schema: there is no CRD {}: apply the output of `leadsman manifests`",
        CRDS[1]
    );
    let broken = format!("[-] schema: cannot watch the CRD {}: the words", CRDS[1]);
    let expected = [
        &no_right, &no_right, &none, &none, READY, &broken, READY, &none, READY,
    ];
    assert_eq!(shown, expected);
}
