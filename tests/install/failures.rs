//! Something is missing or broken. Pods, events, logs and `/readyz` say what, in the words of `docs/install.md`; no mark moves
//! that should not; and once the cause is gone leadsman goes on by itself.

use std::fs::File;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use k8s_openapi::api::rbac::v1::ClusterRole;
use kube::Api;
use kube::api::PostParams;
use leadsman_image::{Architecture, Config, Image, Layer};
use leadsman_testkit::Release;
use leadsman_testkit::leadsman::{AGENT, MANAGER};
use leadsman_testkit::release::Component;
use leadsman_tests::room::is_main;
use leadsman_tests::{Way, kubectl_leadsman, wait_for_answer};
use serde_json::{Value, json};

use crate::room::{PODS, flip, roles_were, values};
use crate::shown::{identities, is_documented, shown_pods, stuck_pod};
use crate::{install, marked_pods};

/// A folder that no node has, in one that all have.
const ELSEWHERE: &str = "/run/containerd/elsewhere";
/// The tag of an image for another architecture.
const FOREIGN: &str = "foreign";

// PRB-13
pub(crate) async fn a_missing_runtime_socket_stops_the_roll_out_until_it_is_there(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "socket").await?;
    let socket = format!("{ELSEWHERE}/containerd.sock");
    release
        .install(&values(json!({"agent": {"runtime": {"socket": socket}}})))
        .await?;
    let agent = stuck_pod(&release, Component::Agent).await?;
    agent.wait_for_row("0/1 ContainerCreating 0").await?;
    let said = "hostPath type check failed";
    agent.wait_for_event("FailedMount", said, ELSEWHERE).await?;

    for node in release.bed.nodes() {
        node.run_inside("mkdir", &["-p", ELSEWHERE]).await?;
    }
    agent.wait_for_row("0/1 Running 0").await?;
    let said = "cannot be reached: No such file or directory";
    let mounted = format!("the container runtime at /host{socket}");
    agent.wait_for_readyz("runtime", said, &mounted).await?;
    agent.wait_for_log(said, &mounted).await?;
    // The other node's agent is not replaced before this one is ready.
    let (there, elsewhere) = neighbours(&release, agent.node.as_deref());
    flip(&room, elsewhere, false).await?;
    people_are_told(&release, there, &agent.name).await?;

    for node in release.bed.nodes() {
        // The same socket by another name: a mount or a link out of the folder would not be seen in the pod.
        let known = "/run/containerd/containerd.sock";
        node.run_inside("ln", &["-f", known, &socket]).await?;
    }
    release.wait_for_rollout().await?;
    agent.wait_for_row("1/1 Running 0").await?;
    flip(&room, there, false).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

/// Whoever asks about a pod of the node reads which agent is not Ready, and doctor finds it too.
async fn people_are_told(release: &Release, pod: &str, agent: &str) -> Result<()> {
    let kubeconfig = release.bed.admin_kubeconfig();
    let words = ["explain", pod, "-n", "socket", "-o", "json"];
    let explained = kubectl_leadsman(kubeconfig, &words, "").await?;
    let explained: Value = serde_json::from_str(&explained.out).context(explained.err)?;
    let cause = &explained["causes"][0];
    // After two minutes it is silent, in the words of the marker's status.
    if cause["reason"] != "AgentSilent" {
        Way::BrokenSocket.is_told(cause)?;
        ensure!(cause.to_string().contains(agent), "{cause:#}");
    }
    let examined = kubectl_leadsman(kubeconfig, &["doctor"], "").await?;
    eprintln!("{}", examined.out);
    let found = examined
        .out
        .lines()
        .any(|line| line.contains("problem") && line.contains(&format!("{agent} on node")));
    ensure!(found && !examined.success, "{}", examined.out);
    Ok(())
}

/// Which of [`PODS`] is on this node, and which on the other.
fn neighbours(release: &Release, node: Option<&str>) -> (&'static str, &'static str) {
    let [first, second] = PODS;
    if node == Some(release.bed.node_name()) {
        (first, second)
    } else {
        (second, first)
    }
}

pub(crate) async fn without_crds_all_wait_for_them(release: Arc<Release>) -> Result<()> {
    // In the foreground, or pods wait for the garbage collector.
    let uninstall = [
        "uninstall",
        "leadsman",
        "--ignore-not-found",
        "--wait",
        "--cascade=foreground",
    ];
    release.helm(&uninstall).await?;
    let crds = [
        "podprobemarkers.apps.kruise.io",
        "nodepodprobes.apps.kruise.io",
    ];
    let delete = ["delete", "crd", "--ignore-not-found", crds[0], crds[1]];
    release.kubectl(&delete).await?;
    release
        .install(&values(json!({"crds": {"install": false}})))
        .await?;
    let said = "the API server does not serve";
    let todo = "install leadsman's CRDs, by its Helm chart or `leadsman manifests`";
    for manager in shown_pods(&release, Component::Manager).await? {
        manager.wait_for_row("0/1 Running 0").await?;
        for crd in crds {
            let served = format!("{said} {crd}: {todo}");
            manager.wait_for_readyz(crd, said, &served).await?;
            let check = format!("schema of {crd}");
            let missing = format!("there is no CRD {crd}: {todo}");
            manager
                .wait_for_readyz(&check, "there is no CRD", &missing)
                .await?;
            manager.wait_for_log(said, &served).await?;
        }
    }
    for agent in shown_pods(&release, Component::Agent).await? {
        let served = format!("{said} {}: {todo}", crds[1]);
        agent.wait_for_row("0/1 Running 0").await?;
        agent.wait_for_readyz("nodepodprobe", said, &served).await?;
        agent.wait_for_log(said, &served).await?;
    }
    let before = identities(&release).await?;
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "crds").await?;
    flip(&room, "first", false).await?;
    ensure!(identities(&release).await? == before, "pods were restarted");
    roles_were(&history, [&["main", "secondary"], &["main"]]).await
}

pub(crate) async fn a_missing_right_is_named_until_it_is_granted(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "right").await?;
    let leader = release.leader().await?.context("nobody leads")?;
    let managers = shown_pods(&release, Component::Manager).await?;
    let manager = managers.iter().find(|it| it.name == leader);
    let manager = manager.context("the leader is no pod")?;
    let said = "missing right: User \"system:serviceaccount:leadsman-system:leadsman-";
    let marks = Right {
        role: "leadsman-manager-podprobe",
        user: MANAGER,
        group: "",
        resource: "pods",
    };
    marks
        .taken_away(&release, async {
            room.set("first", "role=secondary").await?;
            let right = "manager\" cannot patch resource \"pods/status\" in API group \"\" in the namespace \"right\". \
                Grant it by RBAC, as leadsman's Helm chart and `leadsman manifests` do";
            manager.wait_for_readyz("rights to write", said, right).await?;
            manager.wait_for_log(said, right).await
        })
        .await?;
    room.scene.wait_for_marks("first", is_main(false)).await?;

    let node = room.node_of("second").await?.name();
    let agents = shown_pods(&release, Component::Agent).await?;
    let agent = agents.iter().find(|it| it.node.as_deref() == Some(node));
    let agent = agent.context("the node has no agent")?;
    let verdicts = Right {
        role: "leadsman-agent",
        user: AGENT,
        group: "apps.kruise.io",
        resource: "nodepodprobes",
    };
    verdicts
        .taken_away(&release, async {
            room.set("second", "role=secondary").await?;
            let right = "agent\" cannot patch resource \"nodepodprobes/status\" in API group \"apps.kruise.io\"";
            agent.wait_for_log(said, right).await
        })
        .await?;
    room.scene.wait_for_marks("second", is_main(false)).await?;
    roles_were(&history, [&["main", "secondary"]; 2]).await
}

/// The right of a user to patch the status of a resource, by a `ClusterRole`.
struct Right {
    role: &'static str,
    user: &'static str,
    group: &'static str,
    resource: &'static str,
}

impl Right {
    /// Takes it out of its role, waits for the end of `meanwhile`, and puts it back.
    async fn taken_away(
        &self,
        release: &Release,
        meanwhile: impl Future<Output = Result<()>>,
    ) -> Result<()> {
        let roles: Api<ClusterRole> = Api::all(release.client.clone());
        let mut role = roles.get(self.role).await?;
        let whole = role.rules.clone();
        let status = format!("{}/status", self.resource);
        let granted = role.rules.get_or_insert_default();
        granted.retain(|rule| !rule.resources.iter().flatten().any(|it| *it == status));
        let params = PostParams::default();
        let mut role = roles.replace(self.role, &params, &role).await?;
        self.wait_until_denied(release).await?;
        let ended = meanwhile.await;
        role.rules = whole;
        roles.replace(self.role, &params, &role).await?;
        ended
    }

    /// The API server's authorizer learns of a changed role by a watch.
    async fn wait_until_denied(&self, release: &Release) -> Result<()> {
        let reviews: Api<SubjectAccessReview> = Api::all(release.client.clone());
        let text = |text: &str| Some(text.to_owned());
        let review = SubjectAccessReview {
            spec: SubjectAccessReviewSpec {
                user: text(self.user),
                resource_attributes: Some(ResourceAttributes {
                    verb: text("patch"),
                    group: text(self.group),
                    resource: text(self.resource),
                    subresource: text("status"),
                    ..ResourceAttributes::default()
                }),
                ..SubjectAccessReviewSpec::default()
            },
            ..SubjectAccessReview::default()
        };
        wait_for_answer("the right to be gone", || async {
            let answer = reviews.create(&PostParams::default(), &review).await?;
            let is_allowed = answer.status.is_some_and(|status| status.allowed);
            Ok((!is_allowed).then_some(()))
        })
        .await
    }
}

/// An image for another architecture, and a port that the kubelet has.
pub(crate) async fn a_roll_out_of_what_cannot_run_stops_at_its_first_pods(
    release: Arc<Release>,
) -> Result<()> {
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "stops").await?;
    let archive = release.bed.folder().join("foreign.tar");
    let [here, foreign] = match std::env::consts::ARCH {
        "x86_64" => [Architecture::Amd64, Architecture::Arm64],
        _ => [Architecture::Arm64, Architecture::Amd64],
    };
    // An image that says what it is for is not even imported.
    write_image(&archive, foreign, foreign)?;
    let refused = release.bed.import_image(&archive).await;
    let said = "image might be filtered out";
    is_documented(said)?;
    let refused = refused.err().context("it was imported")?.to_string();
    ensure!(refused.contains(said), "{refused}");
    write_image(&archive, here, foreign)?;
    for node in release.bed.nodes() {
        node.import_image(&archive).await?;
    }
    let faults = [
        Fault {
            values: json!({"image": {"tag": FOREIGN}}),
            components: &[
                (Component::Manager, "exec /leadsman:"),
                (Component::Agent, "exec /leadsman-agent:"),
            ],
            said: "exec format error",
        },
        Fault {
            values: json!({"agent": {"port": 10250}}),
            components: &[(Component::Agent, "cannot listen on :10250")],
            said: "(--metrics-bind-address)",
        },
    ];
    for (fault, main) in faults.into_iter().zip([false, true]) {
        release.install(&values(fault.values)).await?;
        for (component, about) in fault.components {
            let pod = stuck_pod(&release, *component).await?;
            pod.wait_for_log(fault.said, about).await?;
            pod.wait_for_row("0/1 CrashLoopBackOff").await?;
        }
        // The managers before it go on, and so does the other node's agent.
        let agent = stuck_pod(&release, Component::Agent).await?;
        let (there, elsewhere) = neighbours(&release, agent.node.as_deref());
        flip(&room, elsewhere, main).await?;
        release.helm(&["rollback", "leadsman"]).await?;
        release.wait_for_rollout().await?;
        flip(&room, there, main).await?;
    }
    roles_were(&history, [&["main", "secondary", "main"]; 2]).await
}

/// Values with which nothing can run, and what the logs of components' pods then say, each with what it is about.
struct Fault {
    values: Value,
    components: &'static [(Component, &'static str)],
    said: &'static str,
}

/// An image like leadsman's that is said to be for one architecture, and whose programs are for one.
fn write_image(archive: &Path, said: Architecture, program: Architecture) -> Result<()> {
    let header = header_of_a_program(program);
    let image = Image {
        repository: "docker.io/library/leadsman".to_owned(),
        tag: FOREIGN.to_owned(),
        architecture: said,
        created: jiff::Timestamp::UNIX_EPOCH,
        config: Config {
            user: "65532:65532".to_owned(),
            entrypoint: vec!["/leadsman".to_owned()],
            ..Config::default()
        },
        layer: Layer::new().file("leadsman", 0o755, header.clone()).file(
            "leadsman-agent",
            0o755,
            header,
        ),
        compression: 1,
    };
    image.write(File::create(archive)?)?;
    Ok(())
}

/// An ELF file of which there is only the header: of 64 bits, little-endian, a program (`elf(5)`).
fn header_of_a_program(architecture: Architecture) -> Vec<u8> {
    const EXECUTABLE: u8 = 2;
    let machine = match architecture {
        Architecture::Amd64 => 62,
        Architecture::Arm64 => 183,
    };
    let mut header = vec![0; 64];
    header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
    (header[16], header[18], header[20], header[52]) = (EXECUTABLE, machine, 1, 64);
    header
}
