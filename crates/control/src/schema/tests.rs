use leadsman_process::reply::{Disposition, RetryCause};
use std::time::Duration;

use leadsman_process::Readiness;
use leadsman_process::watcher::WatchEvent::{
    Changed, Deleted, Failed, Following, ListComplete, ListItem, ListStarted,
};
use serde_json::{Value, json};

use super::*;

type Item = WatchEvent<CustomResourceDefinition>;

const CRD: &str = "lamps.example.com";
const FIELDS: OptionalFields = OptionalFields {
    paths: &["status.colours[].name"],
    content: "the colours of a lamp",
    later: &[],
};

fn crd(status: &Value) -> CustomResourceDefinition {
    let schema = json!({"type": "object", "properties": {"status": status}});
    let version = json!({"name": "v1", "schema": {"openAPIV3Schema": schema}});
    let crd = json!({"metadata": {"name": CRD}, "spec": {"versions": [version]}});
    serde_json::from_value(crd).unwrap()
}

fn ours() -> CustomResourceDefinition {
    let items = json!({"type": "object", "properties": {"name": {"type": "string"}}});
    crd(&json!({"properties": {"colours": {"items": items}}}))
}

fn theirs() -> CustomResourceDefinition {
    crd(&json!({"type": "object"}))
}

#[test]
fn a_field_is_kept_if_the_schema_names_it_or_preserves_what_it_does_not_name() {
    let open = json!({"type": "object", "x-kubernetes-preserve-unknown-fields": true});
    for (crd, version, expected) in [
        (ours(), "v1", true),
        (ours(), "v2", false),
        (theirs(), "v1", false),
        (
            crd(&json!({"properties": {"colours": {"items": {}}}})),
            "v1",
            false,
        ),
        (crd(&open), "v1", true),
    ] {
        assert_eq!(
            FIELDS.are_kept(&crd, version),
            expected,
            "{version} {crd:?}"
        );
    }
}

fn failed(phase: WatchPhase, cause: RetryCause) -> Item {
    let (after, reason) = (None, "the reply".to_owned());
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

/// After each item, the change of whether fields are kept, and what readiness says.
fn followed(items: impl IntoIterator<Item = Item>) -> Vec<(Option<bool>, String)> {
    let readiness = Readiness::default();
    let check = readiness.add_check(NAME, "not read yet");
    let mut schema = Schema::new(CRD.to_owned(), "v1".into(), FIELDS, check);
    let changes = items.into_iter().map(|item| {
        let change = schema.observe_crd(item);
        (change, readiness.to_text().trim_end().to_owned())
    });
    changes.collect()
}

#[test]
fn each_change_of_what_is_kept_is_one_event() {
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
        failed(WatchPhase::Listing, RetryCause::NoRight),
        ListStarted,
        ListComplete("1".to_owned()),
        Following,
        Changed(ours()),
        failed(WatchPhase::Watching, RetryCause::Unavailable),
        Following,
        Deleted(ours()),
        Changed(theirs()),
    ];
    let shown: Vec<_> = followed(items).into_iter().map(|(_, text)| text).collect();
    let no_right = format!(
        "[-] schema: cannot list the CRD {CRD}: the API server does not accept the credentials of this process (the reply): check \
         the kubeconfig, or the token of the pod's service account"
    );
    let none = format!(
        "[-] schema: there is no CRD {CRD}: install leadsman's CRDs, by its Helm chart or `leadsman manifests`"
    );
    let broken = format!("[-] schema: cannot watch the CRD {CRD}: the reply");
    let expected = [
        &no_right, &no_right, &none, &none, READY, &broken, READY, &none, READY,
    ];
    assert_eq!(shown, expected);
}
