use clap::Parser as _;
use rstest::rstest;
use serde_json::json;

use super::*;
use crate::CommandLine;
use crate::report::plain_text;

const SET: &str = "
apiVersion: apps.kruise.io/v1beta1
kind: SidecarSet
metadata: {name: log-agent}
spec:
  selector: {matchLabels: {app: web}}
  containers:
  - {name: log-agent, image: 'log-agent:1.0', volumeMounts: [{name: logs, mountPath: /logs}]}
  volumes: [{name: logs, emptyDir: {}}]
";
const POD: &str = "
kind: Pod
metadata: {name: web, labels: {app: web}}
spec: {containers: [{name: main, image: 'web:1'}]}
status: {phase: Running}
";
const DEPLOYMENT: &str = "
kind: Deployment
metadata: {name: web, namespace: shop}
spec:
  template:
    metadata: {labels: {app: web}, annotations: {a: b}}
    spec: {containers: [{name: main, image: 'web:1'}]}
";
const STATEFUL_SET: &str = "
kind: StatefulSet
metadata: {name: db}
spec:
  template:
    metadata: {labels: {app: web}}
    spec: {containers: [{name: main, image: 'db:1'}], volumes: [{name: logs, emptyDir: {}}]}
  volumeClaimTemplates: [{metadata: {name: logs}}]
";
const CRON_JOB: &str = "
kind: CronJob
metadata: {name: nightly}
spec: {jobTemplate: {spec: {template: {spec: {containers: [{name: main}]}}}}}
";
const SERVICE: &str = "kind: Service\nmetadata: {name: web}\nspec: {}\n";

/// As the verb does it: Namespaces of the pods' files count too.
fn sets_of(sets: &[&str], documents: &[&str]) -> FoundSets {
    let mut sets = documents::parse_objects(&sets.join("\n---\n")).unwrap();
    sets.extend(namespaces(
        &documents::parse_objects(&documents.join("\n---\n")).unwrap(),
    ));
    sidecar_sets::sets_of_files(sets).unwrap()
}

fn found(documents: &[&str], is_given: bool) -> Result<Vec<FilePod>, VerbError> {
    let objects = documents::parse_objects(&documents.join("\n---\n"))?;
    pods::find_pods(objects, "ns", is_given)
}

fn injected(documents: &[&str], sets: &[&str]) -> String {
    let pods = found(documents, false).unwrap();
    let found = sets_of(sets, documents);
    let now = "2026-11-22T01:58:33Z";
    let reports = report_all(pods, &found.sets, now.parse().unwrap());
    let all = FileReports {
        reports: &reports,
        unread: &found.unread,
    };
    plain_text(&all, false, now)
}

#[test]
fn pods_are_found_in_files_and_in_the_templates_of_workloads() {
    let pods = found(&[POD, DEPLOYMENT, CRON_JOB, SERVICE], false).unwrap();
    let names = pods.iter().map(|pod| {
        let metadata = &pod.object["metadata"];
        let name = metadata["name"]
            .as_str()
            .or(metadata["generateName"].as_str());
        format!("{} {}/{}", pod.kind, pod.namespace, name.unwrap())
    });
    let expected = ["Pod ns/web", "Deployment shop/web-", "CronJob ns/nightly-"];
    assert_eq!(names.collect::<Vec<_>>(), expected);
    assert!(!pods[0].object.contains_key("status"));
    let metadata = json!({"generateName": "web-", "namespace": "shop", "labels": {"app": "web"}, "annotations": {"a": "b"}});
    assert_eq!(pods[1].object["metadata"], metadata);
}

#[rstest]
#[case(&[SERVICE], false, "no pod to inject into: the file has Service")]
#[case(&[SET], false, "-f takes pods and workloads; give SidecarSets by --set")]
#[case(&[DEPLOYMENT], true, "Deployment web is of namespace shop, and -n says ns")]
#[case(&[""], false, "the file has no object")]
fn a_file_without_a_pod_says_what_to_give(
    #[case] documents: &[&str],
    #[case] is_given: bool,
    #[case] expected: &str,
) {
    assert_eq!(
        found(documents, is_given).unwrap_err().to_string(),
        expected
    );
}

#[test]
fn sets_of_files_are_those_that_can_be_known_from_them() {
    let objects = documents::parse_objects(POD).unwrap();
    let error = sidecar_sets::sets_of_files(objects)
        .unwrap_err()
        .to_string();
    assert!(error.starts_with("--set takes SidecarSets"), "{error}");
    // The last one of a name counts.
    let edited = SET.replace("log-agent:1.0", "log-agent:2.0");
    let objects = documents::parse_objects(&format!("{SET}\n---\n{edited}")).unwrap();
    let found = sidecar_sets::sets_of_files(objects).unwrap();
    let images = found.sets.valid.iter().map(|known| {
        let containers = &known.set.template.containers;
        containers[0].image.to_string()
    });
    assert_eq!(images.collect::<Vec<_>>(), ["log-agent:2.0"]);
}

// SCS-9, SCS-15
#[test]
fn the_diff_has_what_is_added_and_where() {
    let text = injected(&[DEPLOYMENT], &[SET]);
    let expected = [
        "Deployment shop/web, by its template: the SidecarSet is injected\n",
        "  log-agent  injected, revision log-agent-",
        "+     kruise.io/sidecarset-injected-list: log-agent\n",
        "+   - env:\n+     - name: IS_INJECTED\n",
        "    - image: web:1\n      name: main\n",
        "+   volumes:\n+   - emptyDir: {}\n+     name: logs\n",
    ];
    for words in expected {
        assert!(text.contains(words), "{words}: {text}");
    }
    assert!(!text.contains("\n- "), "nothing is removed: {text}");
}

// SDF-12
#[test]
fn a_claim_of_a_stateful_set_is_a_volume_of_the_pod_itself() {
    let text = injected(&[STATEFUL_SET], &[SET]);
    let words = "mounts the pod's own volume \"logs\", which differs from that of the set";
    assert!(text.contains(words), "{text}");
}

#[test]
fn what_is_in_the_way_is_told_set_by_set() {
    let other = SET
        .replace("app: web", "app: wbe")
        .replace("log-agent", "other");
    let namespaces = SET
        .replace(
            "selector:",
            "namespaceSelector: {matchLabels: {tier: gold}}\n  selector:",
        )
        .replace("log-agent", "tiers");
    let broken = SET
        .replace("image: 'log-agent:1.0'", "image: ''")
        .replace("log-agent", "broken");
    let unknown = injected(&[POD], &[SET, &other, &namespaces, &broken]);
    for words in [
        "Pod ns/web: 1 of 4 SidecarSets is injected\n",
        "  broken  invalid\n    spec.containers[0].image: must not be empty\n",
        "  other  does not select it\n    its selector does not match the pod's labels\n    no   app=wbe   the pod has app=web\n",
        "  tiers  does not select it\n    it is for namespaces with labels tier=gold, and those of namespace ns are not known\n",
    ] {
        assert!(unknown.contains(words), "{words}: {unknown}");
    }
    let namespace = "kind: Namespace\nmetadata: {name: ns, labels: {tier: tin}}";
    let known = injected(&[POD], &[&namespaces, namespace]);
    let words = "labels of namespace ns\n    no   tier=gold   namespace ns has tier=tin\n";
    assert!(known.contains(words), "{known}");
    let beside_the_pod = injected(&[POD, namespace], &[&namespaces]);
    assert!(beside_the_pod.contains(words), "{beside_the_pod}");
}

#[test]
fn the_sets_of_a_cluster_count_beside_given_ones_on_demand() {
    for (words, is_accepted) in [
        (&["inject", "-f", "a"][..], true),
        (&["inject", "-f", "a", "--set", "b", "--with-cluster"], true),
        (&["inject", "-f", "a", "--with-cluster"], false),
        (&["inject", "--set", "a"], false),
    ] {
        let parsed = CommandLine::<InjectArgs>::try_parse_from(words);
        assert_eq!(parsed.is_ok(), is_accepted, "{words:?}");
    }
}

#[test]
fn init_containers_are_in_the_order_of_the_managers_flag() {
    let set =
        format!("{SET}  initContainers: [{{name: z, image: 'i:1'}}, {{name: a, image: 'i:1'}}]\n");
    let sets = documents::parse_objects(&set).unwrap();
    let mut found = sidecar_sets::sets_of_files(sets).unwrap();
    let now = "2026-11-22T01:58:33Z".parse().unwrap();
    for (with, expected) in [
        (CompatibleWith::Kubernetes, ["z", "a"]),
        (CompatibleWith::Openkruise, ["a", "z"]),
    ] {
        found.sets.render = with.into();
        let pods = pods::find_pods(documents::parse_objects(POD).unwrap(), "ns", false).unwrap();
        let reports = report_all(pods, &found.sets, now);
        let containers = &reports[0].report.pod["spec"]["initContainers"];
        let names = containers.as_array().unwrap().iter();
        let names: Vec<_> = names.map(|one| one["name"].as_str().unwrap()).collect();
        assert_eq!(names, expected, "{with:?}");
    }
    assert!(order_not_known(&found.sets).is_some());
    found.sets.valid.clear();
    assert!(order_not_known(&found.sets).is_none());
}
