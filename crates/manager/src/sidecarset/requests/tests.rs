use http::header::CONTENT_TYPE;

use super::*;

const NOW: &str = "2026-11-22T20:00:00.123456Z";

fn pod() -> ObjectName {
    ObjectName {
        namespace: "shop".into(),
        name: "a".into(),
    }
}

fn revision() -> ObjectName {
    ObjectName {
        namespace: "leadsman-system".into(),
        name: "log-1".into(),
    }
}

/// One write of each kind.
fn writes() -> Vec<Write> {
    let patch = || Box::new(json!({"metadata": {"uid": "u"}}));
    let set = || "log".to_owned();
    let note = |regarding| EventNote {
        regarding,
        uid: "u".into(),
        is_warning: false,
        reason: "NotUpgradablePods",
        note: "2 pods".into(),
    };
    let of_set = ObjectName {
        namespace: String::new(),
        name: "log".into(),
    };
    vec![
        Write::Pod {
            pod: pod(),
            patch: patch(),
        },
        Write::PodCondition {
            pod: pod(),
            patch: patch(),
        },
        Write::SetStatus {
            set: set(),
            patch: patch(),
        },
        Write::SetHashes {
            set: set(),
            patch: patch(),
        },
        Write::CreateRevision(Box::new(json!({"metadata": {"name": "log-1"}}))),
        Write::PatchRevision {
            revision: revision(),
            patch: patch(),
        },
        Write::DeleteRevision {
            revision: revision(),
            uid: "u".into(),
            resource_version: Some("7".into()),
        },
        Write::Event(Box::new(note(of_set))),
        Write::Event(Box::new(note(pod()))),
    ]
}

fn sent(write: &Write) -> HttpRequest<Vec<u8>> {
    request_of_write(write, "leadsman-system", NOW.parse().unwrap()).unwrap()
}

fn body(request: &HttpRequest<Vec<u8>>) -> Value {
    serde_json::from_slice(request.body()).unwrap()
}

// SCS-33, SCS-53, SDF-44
#[test]
fn a_write_is_this_request() {
    const PODS: &str = "/api/v1/namespaces/shop/pods/a";
    const SETS: &str = "/apis/apps.kruise.io/v1beta1/sidecarsets/log";
    const REVISIONS: &str = "/apis/apps/v1/namespaces/leadsman-system/controllerrevisions";
    let by = "?fieldManager=leadsman-sidecarset";
    let (json, strategic, merge) = (
        "application/json",
        "application/strategic-merge-patch+json",
        "application/merge-patch+json",
    );
    let event =
        |namespace: &str| format!("/apis/events.k8s.io/v1/namespaces/{namespace}/events{by}");
    let expected = [
        ("PATCH", format!("{PODS}{by}"), strategic),
        ("PATCH", format!("{PODS}/status{by}"), strategic),
        ("PATCH", format!("{SETS}/status{by}"), merge),
        ("PATCH", format!("{SETS}{by}"), merge),
        ("POST", format!("{REVISIONS}{by}"), json),
        ("PATCH", format!("{REVISIONS}/log-1{by}"), merge),
        ("DELETE", format!("{REVISIONS}/log-1?"), json),
        ("POST", event("default"), json),
        ("POST", event("shop"), json),
    ];
    let shown = writes()
        .into_iter()
        .map(|write| sent(&write))
        .map(|request| {
            let media = request.headers().get(CONTENT_TYPE).unwrap();
            (
                request.method().to_string(),
                request.uri().to_string().replace("?&", "?"),
                media.to_str().unwrap().to_owned(),
            )
        });
    let expected =
        expected.map(|(method, path, media)| (method.to_owned(), path, media.to_owned()));
    assert_eq!(shown.collect::<Vec<_>>(), expected);
}

#[test]
fn a_deletion_names_what_it_deletes() {
    assert_eq!(
        body(&sent(&writes()[6])),
        json!({
            "propagationPolicy": "Background",
            "preconditions": {"uid": "u", "resourceVersion": "7"},
        })
    );
}

// SCS-67, SCS-68
#[test]
fn an_event_of_a_set_is_in_the_default_namespace() {
    let of_set = body(&sent(&writes()[7]));
    assert_eq!(
        of_set["metadata"],
        json!({"generateName": "log-", "namespace": "default"})
    );
    assert_eq!(of_set["eventTime"], NOW);
    assert_eq!(
        of_set["regarding"],
        json!({"apiVersion": "apps.kruise.io/v1beta1", "kind": "SidecarSet", "name": "log", "uid": "u"})
    );
    let of_pod = body(&sent(&writes()[8]));
    assert_eq!(of_pod["metadata"]["namespace"], "shop");
    assert_eq!(
        of_pod["regarding"],
        json!({"apiVersion": "v1", "kind": "Pod", "namespace": "shop", "name": "a", "uid": "u"})
    );
    // What an API server demands (`ValidateEventCreate` in `pkg/apis/core/validation/events.go`).
    for field in [
        "reportingController",
        "reportingInstance",
        "action",
        "reason",
        "type",
    ] {
        assert!(
            of_pod[field].as_str().is_some_and(|text| !text.is_empty()),
            "{field}"
        );
    }
}

/// Only rights for what is sent, and a right for all that is.
#[test]
fn what_is_declared_is_what_is_sent() {
    let mut kinds: Vec<_> = writes().iter().map(request_kind).collect();
    kinds.dedup();
    kinds.insert(6, READ_REVISION);
    let in_order = |mut kinds: Vec<RequestKind>| {
        kinds.sort();
        kinds
    };
    assert_eq!(in_order(kinds), in_order(ALL.to_vec()));
    let read = read_back_request(&writes()[4], "leadsman-system").unwrap();
    assert!(read.uri().path().ends_with("/controllerrevisions/log-1"));
}
