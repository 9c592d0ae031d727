//! The documentation is true: the API server takes each manifest of its pages, and each command of its pages works and prints
//! what they show.
//!
//! [`COMMANDS`] says of each command how it is checked, or why it is not.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::process::Output;
use std::sync::Arc;

use anyhow::{Context, Result, bail, ensure};
use leadsman_testkit::{ControlPlane, leadsman};
use leadsman_tests::document::{self, Block, Exchange};
use leadsman_tests::scene::merge;
use leadsman_tests::{Scene, wait_for_object};
use serde_json::{Value, json};
use tokio::process::Command;

use crate::Installation;
use crate::broadcast::serve_jobs;
use crate::inject::serve_sidecar_sets;
use crate::stage::PLACES;

/// How a command is checked.
enum Check {
    /// It is run. It prints what the page shows, if that shows anything, and succeeds otherwise.
    Run,
    /// The same, with these words behind it, by which it changes nothing.
    RunWith(&'static str),
    /// A case of this file has what it takes to run it, and compares its output.
    By(&'static str),
    /// It is not run.
    Not(&'static str),
}
use Check::{By, Not, Run, RunWith};

const DRY: &str = "--dry-run=server";
const NO_RELEASE: &str =
    "takes a release with its hook's Job, which takes a kubelet: tests/install has both";
const OF_THE_OPERATOR: &str = "helm upgrade leadsman charts/leadsman --namespace leadsman-system --reset-then-reuse-values \\\n    --set metrics.podMonitor";
const NO_KUBELET: &str = "no kubelet runs pods here: tests/install has the same";
const NO_OPENKRUISE: &str = "takes OpenKruise's own chart";
const NO_PROGRAM: &str = "takes a program that neither Kubernetes nor leadsman has";

/// The commands of all pages by what they begin with; the first row that fits is a command's.
#[rustfmt::skip]
const COMMANDS: &[(&str, Check)] = &[
    ("cargo ", Not("a chore of the repository: .ci/run runs those that a change must pass")),
    ("docker ", Not(NO_PROGRAM)),
    ("ctr ", Not(NO_PROGRAM)),
    ("podman ", Not(NO_PROGRAM)),
    ("oc ", Not(NO_PROGRAM)),
    ("kubectl krew ", Not(NO_PROGRAM)),
    ("jq ", Not(NO_PROGRAM)),
    ("curl ", Not(NO_KUBELET)),
    ("helm upgrade kruise ", Not(NO_OPENKRUISE)),
    ("helm uninstall kruise", Not(NO_OPENKRUISE)),
    ("kubectl -n kruise-system ", Not(NO_OPENKRUISE)),
    (OF_THE_OPERATOR, Not("takes the CRDs of Prometheus' operator: tests/chart renders it with these values")),
    // The API server has leadsman's objects already, by no release.
    ("helm install leadsman ", RunWith("--take-ownership --dry-run=client")),
    ("helm upgrade leadsman ", RunWith("--install --take-ownership --dry-run=client")),
    ("helm rollback ", Not(NO_RELEASE)),
    ("helm uninstall leadsman ", Not(NO_RELEASE)),
    ("leadsman preflight", By("tests/api/openkruise.rs")),
    ("leadsman manifests --only=access,workloads", RunWith("--dry-run=server --ignore-not-found")),
    ("leadsman manifests", RunWith(DRY)),
    ("kubectl annotate crd ", RunWith(DRY)),
    ("kubectl patch crd sidecarsets.", By("tests/api/sidecarset_schema.rs")),
    ("kubectl patch crd clonesets.", Not("takes the CRD of a gate that is off here; the same is tried with that of the row above")),
    ("kubectl get sidecarsets ", Not("takes the CRD of a gate that is off here: tests/api/sidecarset_schema.rs reads sets")),
    ("kubectl run any ", Run),
    ("kubectl apply --server-side -k ", RunWith(DRY)),
    ("kubectl delete ", RunWith(DRY)),
    ("kubectl -n kube-system delete ", RunWith(DRY)),
    ("kubectl -n leadsman-system rollout status ", Not(NO_KUBELET)),
    ("kubectl -n leadsman-system rollout restart ", Not("takes a release's Deployment and DaemonSet")),
    ("kubectl -n leadsman-system logs ", Not(NO_KUBELET)),
    ("kubectl -n leadsman-system port-forward ", Not(NO_KUBELET)),
    ("kubectl -n leadsman-system scale ", Not(NO_KUBELET)),
    ("kubectl -n leadsman-system get ", Run),
    ("kubectl wait --for=delete crd/", Not("takes the CRDs of all other cases")),
    ("kubectl get podprobemarkers -A --no-headers", Not("takes the finalizers of all markers, those of other cases too")),
    ("kubectl get ", Run),
    ("kubectl -n ns patch ", RunWith(DRY)),
    ("kubectl -n ns ", Run),
    ("kubectl auth can-i ", Run),
    ("kubectl leadsman status -A -w", Not("goes on until it is stopped; tests/api/watch.rs does so")),
    ("kubectl leadsman try ", By("tests/node/trial.rs")),
    ("kubectl leadsman doctor", By("tests/api/doctor.rs")),
    ("kubectl leadsman top", Not("asks agents in their pods, which takes a kubelet: tests/install/recent_runs.rs does so")),
    ("kubectl leadsman ", Run),
    ("install ", Not("writes into a home folder; tests/api/explain.rs runs the program by that name")),
    ("ln ", Not("as the row above")),
];

/// The pages whose commands a case of [`TYPIST`] types one after another, on a cluster with a node.
const TYPED: [&str; 7] = [
    "docs/tutorial.md",
    "docs/tutorial-sidecars.md",
    "examples/README.md",
    "examples/game-server/README.md",
    "examples/database-role/README.md",
    "examples/worker-drain/README.md",
    "examples/busy-worker/README.md",
];
const TYPIST: &str = "tests/node/examples.rs";

/// What pages write for what is another in each cluster.
const PLACEHOLDERS: [(&str, &str); 5] = [
    ("NAMESPACE", "ns"),
    ("POD", "game-0"),
    ("NODE", "ns"),
    (" NAME", " game-server-probe"),
    ("GATES", "PodProbeMarkerGate=true"),
];

/// What is to be done with a command.
fn check(exchange: &Exchange) -> Result<&'static Check> {
    let Exchange { page, command, .. } = exchange;
    if TYPED.contains(&&**page) {
        return Ok(&By(TYPIST));
    }
    let mut rows = COMMANDS.iter();
    let row = rows.find(|(start, _)| command.starts_with(start));
    let (_, check) = row.with_context(|| {
        format!("no row of COMMANDS says how `{command}` is checked, or why it is not")
    })?;
    Ok(check)
}

/// On a control plane of its own: what pages show of pods and markers would change with those of other cases.
pub(crate) async fn commands_of_the_pages_print_what_they_show(
    _world: Arc<Installation>,
) -> Result<()> {
    let _place = PLACES.acquire().await?;
    let installation = Installation::raise().await?;
    let exchanges = document::exchanges()?;
    for (start, _) in COMMANDS {
        let is_used = exchanges.iter().any(|it| it.command.starts_with(start));
        ensure!(is_used, "no page has a command that begins with `{start}`");
    }
    serve_jobs(&installation.client).await?;
    let scene = Scene::new(&installation.client, "ns").await?;
    let shell = Shell::new(&installation.plane)?;
    shell
        .type_in("kubectl config set-context --current --namespace=ns")
        .await?;
    act_as_the_pages_assume(&installation.plane, &scene).await?;
    let mut problems = Vec::new();
    for exchange in &exchanges {
        let outcome = match check(exchange)? {
            Run => shell.run(exchange, "").await,
            RunWith(words) => shell.run(exchange, words).await,
            By(file) => is_compared_in(file, exchange),
            Not(_) if exchange.output.is_empty() => Ok(()),
            Not(reason) => Err(anyhow::anyhow!(
                "shows an output that nothing checks: {reason}"
            )),
        };
        if let Err(problem) = outcome {
            problems.push(format!("{}:{}: {problem:#}", exchange.page, exchange.line));
        }
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    installation.end().await;
    Ok(())
}

/// Fails unless the file has the command of a page that shows an output, or names the page, all of whose commands are typed then.
fn is_compared_in(file: &str, exchange: &Exchange) -> Result<()> {
    let text = std::fs::read_to_string(document::root().join(file)).context(file.to_owned())?;
    let Exchange { page, command, .. } = exchange;
    let is_there = exchange.output.is_empty() || text.contains(command) || text.contains(&**page);
    ensure!(is_there, "{file} does not compare `{command}`");
    Ok(())
}

/// What the pages' commands ask about: the README's marker, a pod with its marks, one without a verdict, one that it does not
/// match, and their Deployment.
async fn act_as_the_pages_assume(plane: &ControlPlane, scene: &Scene) -> Result<()> {
    let blocks = document::blocks()?;
    let marker = blocks
        .iter()
        .find(|block| block.text.contains("name: game-server-probe"));
    let marker = marker.context("no page has the marker `game-server-probe`")?;
    let of_game = |label: &str| {
        let containers = json!([{"name": "game-server", "image": "none"}]);
        json!({"metadata": {"labels": {"app": label}}, "spec": {"containers": containers}})
    };
    scene.pod_with("game-0", of_game("game-server")).await?;
    // It does not become due while this runs, however long that takes.
    let mut starting = of_game("game-server");
    starting["spec"]["containers"][0]["startupProbe"] = json!({"tcpSocket": {"port": 7777}});
    scene.pod_with("game-1", starting).await?;
    let not_started = json!({"name": "game-server", "ready": false, "started": false, "restartCount": 0,
        "image": "none", "imageID": "", "containerID": "containerd://game-1",
        "state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}});
    let status = json!({"containerStatuses": [not_started]});
    scene.report_pod_status("game-1", status).await?;
    let agents = Scene {
        client: scene.client.clone(),
        ns: "leadsman-system".to_owned(),
        node: scene.node.clone(),
    };
    let labels = json!({"metadata": {"labels": leadsman::agent_labels()}});
    agents.pod_with("agent-ns", labels).await?;
    let ready = json!({"conditions": [{"type": "Ready", "status": "True"}]});
    agents.report_pod_status("agent-ns", ready).await?;
    scene.pod_with("game-2", of_game("game-servr")).await?;
    let mut template = of_game("game-server");
    template["spec"]["containers"][0]["readinessProbe"] =
        json!({"httpGet": {"path": "/ready", "port": 8080}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "game", "namespace": "ns"},
        "spec": {"selector": {"matchLabels": {"app": "game-server"}}, "template": template}});
    plane
        .kubectl_with(&["create", "-f", "-"], deployment.to_string().as_bytes())
        .await?;
    plane
        .kubectl_with(&["create", "-f", "-"], marker.text.as_bytes())
        .await?;
    scene
        .report_verdict_with("game-0", "game-server-probe#Idle", "Succeeded", "idle")
        .await?;
    let markers = scene.markers();
    let counted = "the counts that docs/kubectl.md shows";
    wait_for_object(&markers, "game-server-probe", counted, |marker| {
        let status = serde_json::to_value(&marker.status)?;
        ensure!(
            status.to_string().contains("1 pending: 1 StartupProbe"),
            "{status}"
        );
        Ok(())
    })
    .await?;
    let effect = blocks.iter().find(|block| {
        block
            .text
            .starts_with("metadata:\n  labels:\n    gameserver-idle")
    });
    let effect = effect.context("the README shows what the marker does to a pod")?;
    let effect: Value = serde_norway::from_str(&effect.text)?;
    let pods = scene.pods();
    wait_for_object(&pods, "game-0", "the marks that the README shows", |pod| {
        includes(&serde_json::to_value(pod)?, &effect)
    })
    .await
}

/// Fails unless all of `part` is in `whole`; of lists, each element in one of the other's.
fn includes(whole: &Value, part: &Value) -> Result<()> {
    match (whole, part) {
        (Value::Object(whole), Value::Object(part)) => {
            for (key, part) in part {
                let whole = whole.get(key).with_context(|| format!("no {key}"))?;
                includes(whole, part).with_context(|| key.clone())?;
            }
            Ok(())
        }
        (Value::Array(whole), Value::Array(part)) => {
            for part in part {
                let is_there = whole.iter().any(|whole| includes(whole, part).is_ok());
                ensure!(is_there, "no {part} in {whole:?}");
            }
            Ok(())
        }
        _ => {
            ensure!(whole == part, "{whole} is not {part}");
            Ok(())
        }
    }
}

/// The files that commands of pages name and no page has its reader save.
fn files_of_the_pages() -> Result<[(&'static str, String); 3]> {
    let blocks = document::blocks()?;
    let mut shown = blocks.iter().filter(|it| it.page == "docs/sidecarset.md");
    let set = shown.find(|it| it.text.contains("kind: SidecarSet"));
    let set = set.context("docs/sidecarset.md shows a set")?;
    let template = json!({"metadata": {"labels": {"app": "web"}}, "spec": {"containers": [{"name": "web", "image": "web:1"}]}});
    let deployment = json!({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web", "namespace": "shop"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template}});
    let namespace = json!({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "shop", "labels": {"logging": "enabled"}}});
    // As `kubectl get sidecarsets -o json` saves what docs/migrate.md looks for.
    let resize = json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
    let init = json!({"name": "setup", "image": "setup:1", "resizePolicy": resize});
    let refused = json!({"apiVersion": "apps.kruise.io/v1alpha1", "kind": "SidecarSet", "metadata": {"name": "setup"},
        "spec": {"selector": {"matchLabels": {"app": "web"}}, "initContainers": [init]}});
    let list =
        |items: Value| json!({"apiVersion": "v1", "kind": "List", "items": items}).to_string();
    Ok([
        ("sidecarset.yaml", set.text.clone()),
        ("deployment.yaml", list(json!([deployment, namespace]))),
        ("sidecarsets.json", list(json!([refused]))),
    ])
}

/// A shell of an administrator who has kubectl, helm and leadsman.
struct Shell {
    /// Of those programs.
    path: String,
    kubeconfig: PathBuf,
    /// Where commands are typed; it has what they name of the repository.
    folder: PathBuf,
}

impl Shell {
    fn new(plane: &ControlPlane) -> Result<Self> {
        let folder = plane.folder().join("documents");
        std::fs::create_dir_all(&folder)?;
        let program = leadsman::program()?;
        let beside = program.parent().context("a program is in a folder")?;
        for name in ["charts", "kustomize"] {
            link(
                &document::root().canonicalize()?.join(name),
                &folder.join(name),
            )?;
        }
        let path = std::env::var("PATH").unwrap_or_default();
        let kubeconfig = folder.join("kubeconfig");
        std::fs::copy(plane.admin_kubeconfig(), &kubeconfig)?;
        for (name, text) in files_of_the_pages()? {
            std::fs::write(folder.join(name), text)?;
        }
        Ok(Self {
            path: format!("{}:{}:{path}", plane.tools()?.display(), beside.display()),
            kubeconfig,
            folder,
        })
    }

    /// Runs a command with these words behind it and compares what it prints with what the page shows.
    async fn run(&self, exchange: &Exchange, words: &str) -> Result<()> {
        let mut command = exchange.command.clone();
        for (placeholder, value) in PLACEHOLDERS {
            command = command.replace(placeholder, value);
        }
        let output = self.type_in(&format!("{command} {words}")).await?;
        let (printed, problem) = (text(&output.stdout), text(&output.stderr));
        if exchange.output.is_empty() {
            ensure!(
                output.status.success(),
                "`{command} {words}` fails: {problem}"
            );
            return Ok(());
        }
        // An answer such as "no" has an exit status of its own.
        exchange.expect(&printed).context(problem)
    }

    async fn type_in(&self, command: &str) -> Result<Output> {
        let output = Command::new("bash")
            .args(["-o", "pipefail", "-c", command])
            .current_dir(&self.folder)
            .env("PATH", &self.path)
            .env("KUBECONFIG", &self.kubeconfig)
            .env("HOME", &self.folder)
            .stdin(std::process::Stdio::null())
            .kill_on_drop(true)
            .output();
        let limit = std::time::Duration::from_mins(1);
        let output = tokio::time::timeout(limit, output).await;
        Ok(output.with_context(|| format!("`{command}` does not end within {limit:?}"))??)
    }
}

fn link(target: &Path, place: &Path) -> Result<()> {
    std::os::unix::fs::symlink(target, place).with_context(|| place.display().to_string())
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// The blocks that show neither manifests nor commands, by their pages, with the reason why no test here reads them.
const OTHERS: &[(&str, &str)] = &[
    (
        "CONTRIBUTING.md",
        "which crate uses which: the lint `layers` reads it",
    ),
    ("ARCHITECTURE.md", "a drawing"),
    (
        "docs/reference/commands.md",
        "written by the program: the lint `book` compares it",
    ),
    (
        "docs/kubectl.md",
        "a part of an answer, as an example: tests/install/recent_runs.rs looks for single words of such answers",
    ),
    (
        "docs/sidecarset.md",
        "a part of an answer: tests/api/inject.rs looks for the words of such answers",
    ),
    (
        "docs/howto/openkruise-game.md",
        "a part of a GameServerSet, which is OpenKruise-Game's",
    ),
];

pub(crate) async fn every_other_block_is_named(_: Arc<Installation>) -> Result<()> {
    let blocks = document::blocks()?;
    let others = blocks
        .iter()
        .filter(|block| !["yaml", "console"].contains(&&*block.language));
    let pages: BTreeSet<_> = others.map(|block| &*block.page).collect();
    let named: BTreeSet<_> = OTHERS.iter().map(|(page, _)| *page).collect();
    ensure!(
        pages == named,
        "{pages:?} have such blocks, named are {named:?}"
    );
    Ok(())
}

/// What a block is a part of, if it is no whole manifest, by its first line.
#[rustfmt::skip]
const FRAGMENTS: &[(&str, Fragment)] = &[
    ("metadata:", Fragment::Shown),
    ("spec:", Fragment::Fields),
    ("kruise.io/podprobe: ", Fragment::Annotations),
];

enum Fragment {
    /// Applied as a part of a pod.
    Fields,
    Annotations,
    /// What a pod becomes, which [`act_as_the_pages_assume`] sees.
    Shown,
}

pub(crate) async fn the_api_server_takes_every_manifest_of_the_pages(
    installation: Arc<Installation>,
) -> Result<()> {
    let mut manifests = Vec::new();
    for block in document::blocks()?
        .into_iter()
        .filter(|block| block.language == "yaml")
    {
        let place = format!("{}:{}", block.page, block.line);
        manifests.extend(whole(&block)?.into_iter().map(|it| (place.clone(), it)));
    }
    for file in document::manifests()? {
        let objects = objects(&std::fs::read_to_string(&file)?)?;
        manifests.extend(
            objects
                .into_iter()
                .map(|it| (file.display().to_string(), it)),
        );
    }
    serve_sidecar_sets(&installation.client).await?;
    serve_jobs(&installation.client).await?;
    ensure!(manifests.len() > 10, "{} manifests", manifests.len());
    let mut problems = Vec::new();
    for (place, manifest) in &manifests {
        if let Err(problem) = try_out(&installation.plane, manifest).await {
            problems.push(format!("{place}: {problem:#}"));
        }
    }
    ensure!(problems.is_empty(), "{}", problems.join("\n"));
    Ok(())
}

/// The objects of a block; of a fragment, what it is a part of.
fn whole(block: &Block) -> Result<Vec<Value>> {
    let objects = objects(&block.text)?;
    if objects.iter().all(|object| object["kind"].is_string()) {
        return Ok(objects);
    }
    let mut fragments = FRAGMENTS.iter();
    let fragment = fragments.find(|(start, _)| block.text.starts_with(start));
    let Some((_, fragment)) = fragment else {
        bail!(
            "{}:{}: no row of FRAGMENTS says what this is a part of",
            block.page,
            block.line
        );
    };
    let [part] = objects.as_slice() else {
        bail!("{}:{}: one fragment, not several", block.page, block.line);
    };
    let mut pod = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "fragment"},
        "spec": {"containers": [{"name": "main", "image": "none"}]}});
    match fragment {
        Fragment::Shown => return Ok(Vec::new()),
        Fragment::Fields => merge(&mut pod, part.clone()),
        Fragment::Annotations => pod["metadata"]["annotations"] = part.clone(),
    }
    Ok(vec![pod])
}

fn objects(text: &str) -> Result<Vec<Value>> {
    use serde::Deserialize as _;
    let documents = serde_norway::Deserializer::from_str(text);
    let objects = documents.map(Value::deserialize);
    Ok(objects.collect::<Result<Vec<_>, _>>()?)
}

/// Has the API server apply an object for a try, in the namespace `default`, since others may not be there. An unknown field
/// is an error.
async fn try_out(plane: &ControlPlane, manifest: &Value) -> Result<()> {
    let mut manifest = manifest.clone();
    let meta = manifest["metadata"].as_object_mut();
    meta.context("an object has metadata")?.remove("namespace");
    let apply = [
        "apply",
        "--server-side",
        "--dry-run=server",
        "--validate=strict",
        "-f",
        "-",
    ];
    plane
        .kubectl_with(&apply, manifest.to_string().as_bytes())
        .await?;
    Ok(())
}

/// The comparison itself fails where it should.
pub(crate) async fn another_output_is_noticed(_: Arc<Installation>) -> Result<()> {
    let exchange = |output: &str| Exchange {
        page: "page.md".to_owned(),
        line: 1,
        command: "kubectl get pods".to_owned(),
        output: output.to_owned(),
    };
    let shown = "NAME      AGE\ngame-7d4b9c6f5d-x2x7p   12s\n…\nlast … line of 3m12s\n";
    let same = "NAME                         AGE\ngame-5b8f7c9d4c-q9z8w        3d\n\nmore\nlast 5th line of 4s\n";
    exchange(shown).expect(same)?;
    let rows = ["game-7d4b9c6f5d-x2x7p yes\n", "game-7d4b9c6f5d-bvz7k no\n"];
    exchange(&rows.concat()).expect(&format!("{}{}", rows[1], rows[0]))?;
    for (shown, other) in [
        ("a b", "a c"),
        ("a", "a\nb"),
        ("a\nb", "a"),
        ("a … c", "a b"),
        ("game-0 4s", "game-1 4s"),
        ("4 pods", "5 pods"),
    ] {
        ensure!(
            exchange(shown).expect(other).is_err(),
            "{other:?} is taken for {shown:?}"
        );
    }
    Ok(())
}
