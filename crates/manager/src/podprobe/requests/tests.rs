use http::header::CONTENT_TYPE;
use leadsman_api::node_pod_probe::{ContainerProbe, PodProbe};
use leadsman_api::{NodePodProbeSpec, PodProbeMarkerStatus};
use serde_json::{Value, json};

use super::*;
use leadsman_core::cluster::{ObjectName, Refusal};

fn name(name: &str) -> ObjectName {
    ObjectName {
        namespace: "shop".into(),
        name: name.into(),
    }
}

fn object(revision: Option<&str>) -> NodePodProbe {
    let probe = ContainerProbe {
        name: "m#p".into(),
        revision: revision.map(Into::into),
        ..ContainerProbe::default()
    };
    let pod = PodProbe {
        name: "a".into(),
        probes: vec![probe],
        ..PodProbe::default()
    };
    let pod_probes = vec![pod];
    NodePodProbe::new("node-1", NodePodProbeSpec { pod_probes })
}

fn marks(remove: Option<Value>, apply: Option<Value>) -> Write {
    let uid = "u".into();
    Write::PodMarks(Box::new(PodMarks {
        pod: name("a"),
        uid,
        remove,
        apply,
    }))
}

/// Method, path with query, media type and body of each request.
fn shown(write: &Write) -> Vec<(String, String, String, Value)> {
    let shown = |request: &HttpRequest<Vec<u8>>| {
        let media = request.headers().get(CONTENT_TYPE).unwrap();
        (
            request.method().to_string(),
            request.uri().to_string().replace("?&", "?"),
            media.to_str().unwrap().to_owned(),
            serde_json::from_slice(request.body()).unwrap(),
        )
    };
    request_steps(write).unwrap().iter().map(shown).collect()
}

#[test]
fn a_write_is_these_requests() {
    const NODES: &str = "/apis/apps.kruise.io/v1alpha1/nodepodprobes";
    let object = object(None);
    let wire = serde_json::to_value(&object).unwrap();
    assert_eq!(wire["kind"], "NodePodProbe");
    let status = Write::MarkerStatus {
        marker: name("m"),
        uid: "u".into(),
        resource_version: Some("7".into()),
        status: Box::new(PodProbeMarkerStatus::default()),
    };
    let finalizers = Write::MarkerFinalizers {
        marker: name("m"),
        uid: "u".into(),
        resource_version: Some("7".into()),
        finalizers: vec!["example.com/other".into()],
    };
    let delete = Write::DeleteNodePodProbe {
        name: "node-1".into(),
        uid: "u".into(),
    };
    let json = "application/json";
    let merge = "application/merge-patch+json";
    let manager = "fieldManager=leadsman-podprobe";
    let table = [
        (
            Write::CreateNodePodProbe(Box::new(object.clone())),
            vec![(
                "POST".into(),
                format!("{NODES}?{manager}"),
                json.into(),
                wire.clone(),
            )],
        ),
        (
            Write::ReplaceNodePodProbe(Box::new(object)),
            vec![(
                "PUT".into(),
                format!("{NODES}/node-1?{manager}"),
                json.into(),
                wire,
            )],
        ),
        (
            delete,
            vec![(
                "DELETE".into(),
                format!("{NODES}/node-1?"),
                json.into(),
                json!({"preconditions": {"uid": "u"}}),
            )],
        ),
        (
            status,
            vec![(
                "PATCH".into(),
                format!(
                    "/apis/apps.kruise.io/v1alpha1/namespaces/shop/podprobemarkers/m/status?{manager}"
                ),
                merge.into(),
                json!({"metadata": {"uid": "u", "resourceVersion": "7"}, "status": {"observedGeneration": 0}}),
            )],
        ),
        (
            finalizers,
            vec![(
                "PATCH".into(),
                format!(
                    "/apis/apps.kruise.io/v1alpha1/namespaces/shop/podprobemarkers/m?{manager}"
                ),
                merge.into(),
                json!({"metadata": {
                    "uid": "u", "resourceVersion": "7", "finalizers": ["example.com/other"],
                }}),
            )],
        ),
    ];
    for (write, expected) in table {
        assert_eq!(shown(&write), expected, "{write:?}");
    }
}

// PPM-8, DEF-17
#[test]
fn marks_are_these_patches() {
    const POD: &str = "/api/v1/namespaces/shop/pods/a/status?";
    let (remove, apply) = (json!({"r": 1}), json!({"a": 1}));
    let strategic = "application/strategic-merge-patch+json";
    let server_side = "application/apply-patch+yaml";
    let manager = "fieldManager=leadsman-podprobe";
    let patch = |media: &str, force: &str, body: &Value| {
        (
            "PATCH".to_owned(),
            format!("{POD}{force}{manager}"),
            media.to_owned(),
            body.clone(),
        )
    };
    let table = [
        (
            marks(Some(remove.clone()), Some(apply.clone())),
            vec![
                patch(strategic, "", &remove),
                patch(server_side, "force=true&", &apply),
            ],
        ),
        (
            marks(Some(remove.clone()), None),
            vec![patch(strategic, "", &remove)],
        ),
        (
            marks(None, Some(apply.clone())),
            vec![patch(server_side, "force=true&", &apply)],
        ),
    ];
    for (write, expected) in table {
        assert_eq!(shown(&write), expected, "{write:?}");
    }
}

#[test]
fn every_request_is_of_a_declared_kind() {
    let verbs = [
        ("POST", "create"),
        ("PUT", "update"),
        ("DELETE", "delete"),
        ("PATCH", "patch"),
        ("GET", "get"),
    ];
    let writes = [
        Write::CreateNodePodProbe(Box::new(object(None))),
        Write::ReplaceNodePodProbe(Box::new(object(None))),
        Write::DeleteNodePodProbe {
            name: "node-1".into(),
            uid: "u".into(),
        },
        marks(Some(json!({})), Some(json!({}))),
        Write::MarkerStatus {
            marker: name("m"),
            uid: "u".into(),
            resource_version: None,
            status: Box::default(),
        },
        Write::MarkerFinalizers {
            marker: name("m"),
            uid: "u".into(),
            resource_version: None,
            finalizers: Vec::new(),
        },
    ];
    let create = build_request(
        WriteTarget::NodePodProbe("node-1".into()),
        writes[0].clone(),
    );
    let read_back = create.read_back.unwrap();
    let read_back = (read_back.method().to_string(), read_back.uri().to_string());
    let sent = writes.iter().flat_map(shown);
    let sent = sent.map(|(method, path, ..)| (method, path));
    let mut needed = std::collections::BTreeSet::new();
    for (method, path) in sent.chain([read_back]) {
        let verb = verbs.iter().find(|(of, _)| *of == method).unwrap().1;
        let path = path.split('?').next().unwrap();
        let parts: Vec<_> = path.split('/').collect();
        let group = if parts[1] == "api" { "" } else { parts[2] };
        let resource = parts
            .iter()
            .find(|part| ["pods", "nodepodprobes", "podprobemarkers"].contains(part))
            .unwrap();
        let suffix = if path.ends_with("/status") {
            "/status"
        } else {
            ""
        };
        needed.insert((
            group.to_owned(),
            format!("{resource}{suffix}"),
            verb.to_owned(),
        ));
    }
    let declared = ALL.iter().map(|kind| {
        let RequestKind {
            group,
            resource,
            verb,
            ..
        } = kind;
        ((*group).into(), (*resource).into(), (*verb).into())
    });
    assert_eq!(needed, declared.collect());
}

#[test]
fn a_write_and_its_request_are_of_the_same_kind() {
    let write = Write::DeleteNodePodProbe {
        name: "node-1".into(),
        uid: "u".into(),
    };
    let request = build_request(WriteTarget::NodePodProbe("node-1".into()), write.clone());
    assert_eq!(request.kind, DELETE_NODE_POD_PROBE);
    assert!(request.reply.is_none(), "the watch tells of its end");
    let Event::Refused(WriteTarget::NodePodProbe(name), refused, refusal) =
        (request.refused)(Refusal::TooLarge("no".into()))
    else {
        panic!("the event of a refusal");
    };
    let expected = Refusal::TooLarge("no".into());
    assert_eq!((&*name, *refused, refusal), ("node-1", write, expected));
}

#[test]
fn what_is_in_the_way_of_a_creation_is_read_back() {
    let create = Write::CreateNodePodProbe(Box::new(object(None)));
    let request = build_request(WriteTarget::NodePodProbe("node-1".into()), create);
    let get = request.read_back.unwrap();
    assert_eq!(get.method(), "GET");
    let path = "/apis/apps.kruise.io/v1alpha1/nodepodprobes/node-1";
    assert_eq!(get.uri().path(), path);
    let theirs = serde_json::to_vec(&object(Some("theirs"))).unwrap();
    let Ok(Event::NodePodProbe(shown, Source::Reply)) = request.reply.unwrap()(&theirs) else {
        panic!("the reply shows the object");
    };
    assert_eq!(*shown, object(Some("theirs")));
}
