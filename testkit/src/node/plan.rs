//! The parts of a node bed and their flags. Everything runs in the bed's namespaces, so ports and
//! paths under `/run` are its own; everything else lies in the bed's folder.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use anyhow::Result;
use serde_json::json;

use super::outside::Network;
use crate::pki::{Authority, Identity};
use crate::plan::{Core, Part, Ports, Ready, Work};
use crate::request::Node;

/// The network is the bed's own, so the usual ports are free.
pub(crate) const PORTS: Ports = Ports {
    etcd: 2379,
    etcd_peer: 2380,
    api: 6443,
};

const NO_GROUP: &[&str] = &[];
const ALL_RIGHTS: &[&str] = &["system:masters"];

/// The facts of the node a test may want.
pub(crate) fn facts(core: &Core<'_>, name: &str, network: &Network) -> Node {
    Node {
        name: name.into(),
        address: network.address,
        host_address: network.host_address,
        runtime_socket: socket(core),
    }
}

/// Certificates and kubeconfigs of the parts that only a node bed has.
pub(crate) fn certificates(
    authority: &Authority,
    name: &str,
    server: &str,
    address: Ipv4Addr,
) -> Result<()> {
    let clients = [
        (
            "controller-manager",
            "system:kube-controller-manager",
            ALL_RIGHTS,
        ),
        ("scheduler", "system:kube-scheduler", NO_GROUP),
        ("proxy", "system:kube-proxy", NO_GROUP),
        ("kubelet", &format!("system:node:{name}"), &["system:nodes"]),
    ];
    for (file, user, groups) in clients {
        authority.kubeconfig(file, server, Identity { user, groups })?;
    }
    authority.server("kubelet-server", &[name, &address.to_string(), "127.0.0.1"])?;
    authority.client(
        "kubelet-client",
        Identity {
            user: "kube-apiserver",
            groups: &["system:masters"],
        },
    )
}

/// All parts.
pub(crate) fn parts(core: &Core<'_>, name: &str, network: &Network) -> Result<Vec<Part>> {
    write_configuration(core, name, network)?;
    Ok(vec![
        Part::new(
            "link",
            &[],
            Work::Wait(Ready::Interface {
                name: "eth0".into(),
            }),
        ),
        namespaces(core, name, network),
        core.etcd(&["namespaces"]),
        apiserver(core, network),
        controller_manager(core),
        scheduler(core),
        containerd(core),
        images(core),
        kubelet(core, name, network),
        proxy(core, name, network),
        Part::new(
            "node",
            &["kubelet"],
            Work::Wait(Ready::Registered { node: name.into() }),
        ),
    ])
}

fn socket(core: &Core<'_>) -> PathBuf {
    core.folder.join("containerd.sock")
}

/// Mounts and addresses. Where the programs insist on fixed paths, the bed gets layers of its own
/// over the machine's folders, which stay readable below.
fn namespaces(core: &Core<'_>, name: &str, network: &Network) -> Part {
    let layers = core.folder.join("layers").display().to_string();
    let lines = [
        format!("hostname {name}"),
        "mount -t tmpfs -o mode=755 tmpfs /run".into(),
        "mkdir /run/lock /run/netns".into(),
        format!("mkdir {layers}"),
        format!("mount -t tmpfs -o mode=755 tmpfs {layers}"),
        format!("mkdir {layers}/lib {layers}/lib-work {layers}/log {layers}/log-work"),
        format!(
            "mount -t overlay overlay -o lowerdir=/var/lib,upperdir={layers}/lib,workdir={layers}/lib-work /var/lib"
        ),
        format!(
            "mount -t overlay overlay -o lowerdir=/var/log,upperdir={layers}/log,workdir={layers}/log-work /var/log"
        ),
        // The machine's own kubelet and CNI state must not be seen in here.
        "mkdir -p /var/lib/cni /var/lib/kubelet".into(),
        "mount -t tmpfs tmpfs /var/lib/cni".into(),
        "mount -t tmpfs tmpfs /var/lib/kubelet".into(),
        "ip link set lo up".into(),
        format!("ip addr add {}/30 dev eth0", network.address),
        "ip link set eth0 up".into(),
        format!("ip route add default via {}", network.host_address),
        "sysctl -q -w net.ipv4.ip_forward=1".into(),
    ];
    let commands = lines
        .iter()
        .map(|line| line.split(' ').map(str::to_owned).collect())
        .collect();
    Part::new("namespaces", &["link"], Work::Commands(commands))
}

fn apiserver(core: &Core<'_>, network: &Network) -> Part {
    core.apiserver([
        "--bind-address=0.0.0.0".into(),
        format!("--advertise-address={}", network.address),
        "--authorization-mode=Node,RBAC".into(),
        "--enable-admission-plugins=NodeRestriction".into(),
        format!(
            "--kubelet-client-certificate={}",
            core.pki("kubelet-client.crt")
        ),
        format!("--kubelet-client-key={}", core.pki("kubelet-client.key")),
        "--kubelet-preferred-address-types=InternalIP".into(),
    ])
}

fn controller_manager(core: &Core<'_>) -> Part {
    let flags = [
        format!("--kubeconfig={}", core.pki("controller-manager.kubeconfig")),
        format!("--service-account-private-key-file={}", core.pki("sa.key")),
        format!("--root-ca-file={}", core.pki("ca.crt")),
        format!("--cluster-signing-cert-file={}", core.pki("ca.crt")),
        format!("--cluster-signing-key-file={}", core.pki("ca.key")),
        // Not each controller under an account of its own: making those takes seconds.
        "--use-service-account-credentials=false".into(),
        "--leader-elect=false".into(),
    ];
    // Its work is what a test needs: without this account no pod can be made.
    let ready = Ready::Api {
        path: "/api/v1/namespaces/default/serviceaccounts/default".into(),
    };
    let command = core.command("kube-controller-manager", flags);
    Part::program(
        "kube-controller-manager",
        &["kube-apiserver"],
        command,
        ready,
    )
}

fn scheduler(core: &Core<'_>) -> Part {
    let flags = [
        format!("--kubeconfig={}", core.pki("scheduler.kubeconfig")),
        "--leader-elect=false".into(),
    ];
    let ready = Ready::Answers {
        server: "https://127.0.0.1:10259".into(),
        path: "/readyz".into(),
    };
    Part::program(
        "kube-scheduler",
        &["kube-apiserver"],
        core.command("kube-scheduler", flags),
        ready,
    )
}

fn containerd(core: &Core<'_>) -> Part {
    let config = core.folder.join("containerd.toml").display().to_string();
    let mut command = vec!["containerd".into(), "--config".into(), config];
    command.extend(core.request.options.arguments_of("containerd"));
    Part::program(
        "containerd",
        &["namespaces"],
        command,
        Ready::Listens {
            socket: socket(core),
        },
    )
}

fn images(core: &Core<'_>) -> Part {
    let import = core.request.images.iter().map(|image| {
        let socket = socket(core).display().to_string();
        let archive = image.archive.display().to_string();
        let words = [
            "ctr",
            "--address",
            &socket,
            "--namespace",
            "k8s.io",
            "images",
            "import",
            "--base-name",
            &image.name,
            &archive,
        ];
        words.iter().map(ToString::to_string).collect()
    });
    Part::new("images", &["containerd"], Work::Commands(import.collect()))
}

fn kubelet(core: &Core<'_>, name: &str, network: &Network) -> Part {
    let flags = [
        format!("--kubeconfig={}", core.pki("kubelet.kubeconfig")),
        format!("--config={}", core.folder.join("kubelet.json").display()),
        format!("--hostname-override={name}"),
        format!("--node-ip={}", network.address),
        format!("--root-dir={}", core.folder.join("kubelet").display()),
    ];
    let ready = Ready::Answers {
        server: "http://127.0.0.1:10248".into(),
        path: "/healthz".into(),
    };
    Part::program(
        "kubelet",
        &["kube-apiserver", "images"],
        core.command("kubelet", flags),
        ready,
    )
}

fn proxy(core: &Core<'_>, name: &str, network: &Network) -> Part {
    let flags = [
        format!("--kubeconfig={}", core.pki("proxy.kubeconfig")),
        "--proxy-mode=iptables".into(),
        "--conntrack-max-per-core=0".into(),
        format!("--cluster-cidr={}/24", network.pods),
        format!("--hostname-override={name}"),
    ];
    let ready = Ready::Answers {
        server: "http://127.0.0.1:10256".into(),
        path: "/healthz".into(),
    };
    // It programs nothing until its Node object exists, and says so only by waiting.
    Part::program(
        "kube-proxy",
        &["kubelet"],
        core.command("kube-proxy", flags),
        ready,
    )
}

fn write_configuration(core: &Core<'_>, name: &str, network: &Network) -> Result<()> {
    let folder = core.folder;
    fs::create_dir(folder.join("cni"))?;
    fs::create_dir(static_pods(folder))?;
    fs::write(folder.join("cni/10-bed.conflist"), cni(network).to_string())?;
    fs::write(folder.join("containerd.toml"), containerd_config(core))?;
    fs::write(
        folder.join("kubelet.json"),
        kubelet_config(core, name).to_string(),
    )?;
    Ok(())
}

/// Where the kubelet looks for static pods.
pub(super) fn static_pods(folder: &Path) -> PathBuf {
    folder.join("static-pods")
}

/// `ptp` routes every packet, so a pod reaches a Service whose pod is its neighbour; on a bridge
/// that takes a kernel module.
fn cni(network: &Network) -> serde_json::Value {
    json!({
        "cniVersion": "0.4.0",
        "name": "bed",
        "plugins": [
            {
                "type": "ptp",
                "ipMasq": true,
                "ipam": {
                    "type": "host-local",
                    "ranges": [[{ "subnet": format!("{}/24", network.pods) }]],
                    "routes": [{ "dst": "0.0.0.0/0" }],
                },
            },
            { "type": "portmap", "capabilities": { "portMappings": true } },
        ],
    })
}

fn containerd_config(core: &Core<'_>) -> String {
    let folder = core.folder.display();
    let socket = socket(core);
    let socket = socket.display();
    // `restrict_oom_score_adj`: without CAP_SYS_RESOURCE a sandbox cannot lower its own score.
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "/run/containerd"
oom_score = 0
[grpc]
  address = "{socket}"
[ttrpc]
  address = "{socket}.ttrpc"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{sandbox}"
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "/usr/lib/cni"
    conf_dir = "{folder}/cni"
[plugins."io.containerd.internal.v1.opt"]
  path = "{folder}/opt"
"#,
        sandbox = crate::images::PAUSE,
    )
}

fn kubelet_config(core: &Core<'_>, name: &str) -> serde_json::Value {
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": format!("/{name}"),
        "cgroupsPerQOS": true,
        "enforceNodeAllocatable": [],
        "failSwapOn": false,
        "localStorageCapacityIsolation": false,
        "evictionHard": {},
        "imageGCHighThresholdPercent": 100,
        "maxPods": 250,
        "registerNode": true,
        "resolvConf": "",
        "containerRuntimeEndpoint": format!("unix://{}", socket(core).display()),
        "podLogsDir": core.folder.join("pod-logs"),
        "staticPodPath": static_pods(core.folder),
        "volumePluginDir": core.folder.join("volume-plugins"),
        "tlsCertFile": core.pki("kubelet-server.crt"),
        "tlsPrivateKeyFile": core.pki("kubelet-server.key"),
        "authentication": {
            "anonymous": { "enabled": false },
            "webhook": { "enabled": true },
            "x509": { "clientCAFile": core.pki("ca.crt") },
        },
        "authorization": { "mode": "Webhook" },
        // A test deletes many pods; the defaults throttle for clusters with many nodes.
        "kubeAPIQPS": 200,
        "kubeAPIBurst": 400,
        "serializeImagePulls": false,
        "syncFrequency": "10s",
    })
}
