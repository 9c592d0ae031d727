//! What the pods may do on their nodes.

use serde_json::{Value, json};

use crate::render::{Objects, template};

fn rendered() -> Objects {
    template("leadsman-system", &[]).unwrap()
}

fn pod(objects: &Objects, key: &str) -> Value {
    objects[key]["spec"]["template"]["spec"].clone()
}

/// Of every container.
fn assert_contained(pod: &Value) {
    for container in pod["containers"].as_array().unwrap() {
        let context = &container["securityContext"];
        assert_eq!(context["allowPrivilegeEscalation"], false);
        assert_eq!(context["readOnlyRootFilesystem"], true);
        assert_eq!(context["capabilities"], json!({"drop": ["ALL"]}));
        assert_eq!(context["privileged"], Value::Null);
    }
    assert_eq!(
        pod["securityContext"]["seccompProfile"]["type"],
        "RuntimeDefault"
    );
    assert_eq!(pod["hostPID"], Value::Null);
    assert_eq!(pod["hostIPC"], Value::Null);
    // Variables of Services are not flags: LEADSMAN_METRICS_PORT would look like one.
    assert_eq!(pod["enableServiceLinks"], false);
}

/// The level "restricted" of the Pod Security Standards.
#[test]
fn manager_and_preflight_are_restricted() {
    let objects = rendered();
    for key in ["Deployment/leadsman-manager", "Job/leadsman-preflight"] {
        let pod = pod(&objects, key);
        assert_contained(&pod);
        assert_eq!(pod["securityContext"]["runAsNonRoot"], true, "{key}");
        assert_eq!(pod["hostNetwork"], Value::Null, "{key}");
        assert_eq!(pod["volumes"], Value::Null, "{key}");
    }
}

#[test]
fn an_agent_has_the_socket_and_the_network_of_its_node_and_nothing_else() {
    let objects = rendered();
    let agent = pod(&objects, "DaemonSet/leadsman-agent");
    assert_contained(&agent);
    assert_eq!(agent["hostNetwork"], true);
    let folder = json!({"path": "/run/containerd", "type": "Directory"});
    assert_eq!(
        agent["volumes"],
        json!([
            {"name": "runtime", "hostPath": folder},
            {"name": "history", "emptyDir": {"medium": "Memory", "sizeLimit": "1Mi"}},
        ])
    );
    let mounts = &agent["containers"][0]["volumeMounts"];
    assert_eq!(mounts[0]["readOnly"], true);
    assert_eq!(
        mounts[1],
        json!({"name": "history", "mountPath": "/run/leadsman"})
    );
    let command = &agent["containers"][0]["command"];
    assert_eq!(*command, json!(["/leadsman-agent"]), "not all of leadsman");
    let user = &agent["securityContext"]["runAsUser"];
    assert_eq!(*user, 0, "the socket is root's");
    assert_eq!(agent["tolerations"], json!([{"operator": "Exists"}]));
}

#[test]
fn nothing_of_the_preflight_hook_outlives_it() {
    let objects = rendered();
    let of_hook: Vec<_> = objects
        .iter()
        .filter(|(key, _)| key.ends_with("/leadsman-preflight"))
        .collect();
    assert_eq!(of_hook.len(), 4);
    for (key, object) in of_hook {
        let annotations = &object["metadata"]["annotations"];
        assert_eq!(
            annotations["helm.sh/hook"], "pre-install,pre-upgrade",
            "{key}"
        );
        let policy = annotations["helm.sh/hook-delete-policy"].as_str().unwrap();
        assert!(policy.contains("hook-succeeded"), "{key}");
    }
}
