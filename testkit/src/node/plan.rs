//! The parts of a node bed and their flags. Each node's run in namespaces of its own, so ports and paths under `/run` are
//! its own; everything else lies in its folder. The first node has the control plane too.

use std::fs;
use std::iter;
use std::net::Ipv4Addr;

use anyhow::Result;
use serde_json::json;

use super::outside::{Addresses, Network};
use super::{commands, vm};
use crate::pki::{Authority, Identity};
use crate::plan::{Core, Part, Ports, Ready, Work};
use crate::request::Node;

/// The network is the bed's own, so the usual ports are free.
pub(crate) const PORTS: Ports = Ports {
    etcd: 2379,
    etcd_peer: 2380,
    api: 6443,
};

/// The part after which the API server answers: itself for the first node, a look at it for all others.
const API: &str = "kube-apiserver";

const NO_GROUP: &[&str] = &[];
const ALL_RIGHTS: &[&str] = &["system:masters"];

/// The facts of the node of this number that a test may want.
pub(crate) fn facts(core: &Core<'_>, bed: &str, network: Network, number: u8) -> Node {
    let (name, folder) = match number {
        1 => (bed.to_owned(), core.folder.to_owned()),
        _ => (
            format!("{bed}-{number}"),
            core.folder.join(format!("node-{number}")),
        ),
    };
    Node {
        number,
        name,
        address: network.node(number).node,
        host_address: network.node(1).gateway,
        folder,
        is_vm: core.request.options.is_vm && number > 1,
    }
}

/// Certificates and kubeconfigs of the control plane's parts that only a node bed has.
pub(crate) fn certificates(authority: &Authority, server: &str) -> Result<()> {
    let clients = [
        (
            "controller-manager",
            "system:kube-controller-manager",
            ALL_RIGHTS,
        ),
        ("scheduler", "system:kube-scheduler", NO_GROUP),
        ("proxy", "system:kube-proxy", NO_GROUP),
    ];
    for (file, user, groups) in clients {
        authority.kubeconfig(file, server, Identity { user, groups })?;
    }
    authority.client(
        "kubelet-client",
        Identity {
            user: "kube-apiserver",
            groups: &["system:masters"],
        },
    )
}

/// The parts of the control plane, in the namespaces of the first node.
pub(crate) fn control_plane(core: &Core<'_>, address: Ipv4Addr) -> Vec<Part> {
    vec![
        core.etcd(&["namespaces"]),
        apiserver(core, address),
        controller_manager(core),
        scheduler(core),
    ]
}

/// A node about to be planned.
pub(crate) struct NodePlan<'a> {
    pub(crate) core: &'a Core<'a>,
    pub(crate) node: &'a Node,
    pub(crate) addresses: Addresses,
    /// Where its pods' cgroups are.
    pub(crate) cgroup: String,
}

impl NodePlan<'_> {
    /// Writes what the node's programs read, and returns its parts.
    pub(crate) fn parts(&self, authority: &Authority, server: &str) -> Result<Vec<Part>> {
        fs::create_dir_all(&self.node.folder)?;
        self.certificates(authority, server)?;
        self.write_configuration()?;
        let ready = || Ready::Interface {
            name: "eth0".into(),
        };
        let mut parts = vec![
            self.part("link", &[], Work::Wait(ready())),
            self.namespaces(),
        ];
        if self.core.request.options.is_vm && !self.node.is_vm {
            return Ok(parts);
        }
        if self.node.is_vm {
            let command = commands::server(self.core.folder, self.node)?;
            let ready = ready();
            let work = Work::Program { command, ready };
            parts.push(self.part("commands", &["namespaces"], work));
        }
        parts.extend([
            self.containerd(),
            self.images(),
            self.kubelet(),
            self.proxy(),
            self.part(
                "node",
                &["kubelet"],
                Work::Wait(Ready::Registered {
                    node: self.node.name.clone(),
                }),
            ),
        ]);
        if self.node.number > 1 {
            let path = "/readyz".into();
            parts.push(self.part(API, &["namespaces"], Work::Wait(Ready::Api { path })));
        }
        Ok(parts)
    }

    /// A part of this node, after others of it.
    fn part(&self, kind: &str, after: &[&str], work: Work) -> Part {
        Part {
            name: self.node.part(kind),
            after: after.iter().map(|kind| self.node.part(kind)).collect(),
            work,
        }
    }

    fn file(&self, name: &str) -> String {
        self.node.folder.join(name).display().to_string()
    }

    /// A kubeconfig and a server's certificate for the kubelet, both called like it.
    fn certificates(&self, authority: &Authority, server: &str) -> Result<()> {
        let (kubelet, name) = (self.node.part("kubelet"), &self.node.name);
        let identity = Identity {
            user: &format!("system:node:{name}"),
            groups: &["system:nodes"],
        };
        authority.kubeconfig(&kubelet, server, identity)?;
        let names = [name, &self.node.address.to_string(), "127.0.0.1"];
        authority.server(&format!("{kubelet}-server"), &names)
    }

    /// Mounts and addresses. Where the programs insist on fixed paths, the node gets layers of its own
    /// over the machine's folders, which stay readable below.
    fn namespaces(&self) -> Part {
        let layers = self.file("layers");
        let sockets = self.node.runtime_sockets().display().to_string();
        let of_vm = vm::IN_MEMORY.iter().flat_map(|folder| {
            let folder = self.file(folder);
            [
                format!("mkdir -p {folder}"),
                format!("mount -t tmpfs -o mode=755 tmpfs {folder}"),
            ]
        });
        // What systemd does elsewhere, and container runtimes rely on.
        let of_vm = iter::once("mount --make-rshared /".to_owned()).chain(of_vm);
        let of_vm = of_vm.filter(|_| self.node.is_vm);
        let lines = [
            format!("hostname {}", self.node.name),
            "mount -t tmpfs -o mode=755 tmpfs /run".into(),
            "mkdir /run/lock /run/netns /run/containerd".into(),
            // A node that is started again finds the folder, and in it nothing of what was mounted there.
            format!("mkdir -p {layers}"),
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
            // containerd's socket is where its users expect it, and at a path that is the same outside.
            format!("mkdir -p {sockets}"),
            format!("mount --bind {sockets} /run/containerd"),
            "ip link set lo up".into(),
            format!("ip addr add {}/30 dev eth0", self.addresses.node),
            "ip link set eth0 up".into(),
            format!("ip route add default via {}", self.addresses.gateway),
            "sysctl -q -w net.ipv4.ip_forward=1".into(),
        ];
        let commands = of_vm
            .chain(lines)
            .map(|line| line.split(' ').map(str::to_owned).collect())
            .collect();
        self.part("namespaces", &["link"], Work::Commands(commands))
    }

    fn containerd(&self) -> Part {
        let mut command = vec![
            "containerd".into(),
            "--config".into(),
            self.file("containerd.toml"),
        ];
        command.extend(self.core.request.options.arguments_of("containerd"));
        let ready = Ready::Listens {
            socket: self.node.runtime_socket(),
        };
        self.part(
            "containerd",
            &["namespaces"],
            Work::Program { command, ready },
        )
    }

    fn images(&self) -> Part {
        let socket = self.node.runtime_socket().display().to_string();
        let import = self.core.request.images.iter().map(|archive| {
            let archive = archive.display().to_string();
            let words = [
                "ctr",
                "--address",
                &socket,
                "--namespace",
                "k8s.io",
                "images",
                "import",
                &archive,
            ];
            words.map(ToOwned::to_owned).into()
        });
        self.part("images", &["containerd"], Work::Commands(import.collect()))
    }

    fn kubelet(&self) -> Part {
        let kubeconfig = format!("{}.kubeconfig", self.node.part("kubelet"));
        let flags = [
            format!("--kubeconfig={}", self.core.pki(&kubeconfig)),
            format!("--config={}", self.file("kubelet.json")),
            format!("--hostname-override={}", self.node.name),
            format!("--node-ip={}", self.addresses.node),
            format!("--root-dir={}", self.file("kubelet")),
        ];
        let ready = Ready::Answers {
            server: "http://127.0.0.1:10248".into(),
            path: "/healthz".into(),
        };
        let command = self.core.command("kubelet", flags);
        self.part(
            "kubelet",
            &[API, "images"],
            Work::Program { command, ready },
        )
    }

    fn proxy(&self) -> Part {
        let flags = [
            format!("--kubeconfig={}", self.core.pki("proxy.kubeconfig")),
            "--proxy-mode=iptables".into(),
            "--conntrack-max-per-core=0".into(),
            format!("--cluster-cidr={}/24", self.addresses.pods),
            format!("--hostname-override={}", self.node.name),
        ];
        let ready = Ready::Answers {
            server: "http://127.0.0.1:10256".into(),
            path: "/healthz".into(),
        };
        let command = self.core.command("kube-proxy", flags);
        // It programs nothing until its Node object exists, and says so only by waiting.
        self.part("kube-proxy", &["kubelet"], Work::Program { command, ready })
    }

    fn write_configuration(&self) -> Result<()> {
        let folder = &self.node.folder;
        fs::create_dir(folder.join("cni"))?;
        fs::create_dir(self.node.static_pods())?;
        fs::write(folder.join("cni/10-bed.conflist"), self.cni().to_string())?;
        fs::write(folder.join("containerd.toml"), self.containerd_config())?;
        fs::write(
            folder.join("kubelet.json"),
            self.kubelet_config().to_string(),
        )?;
        Ok(())
    }

    /// `ptp` routes every packet, so a pod reaches a Service whose pod is its neighbour; on a bridge
    /// that takes a kernel module. No masquerading: between nodes there are routes, and the host has one too.
    fn cni(&self) -> serde_json::Value {
        json!({
            "cniVersion": "0.4.0",
            "name": "bed",
            "plugins": [
                {
                    "type": "ptp",
                    "ipam": {
                        "type": "host-local",
                        "ranges": [[{ "subnet": format!("{}/24", self.addresses.pods) }]],
                        "routes": [{ "dst": "0.0.0.0/0" }],
                    },
                },
                { "type": "portmap", "capabilities": { "portMappings": true } },
            ],
        })
    }

    fn containerd_config(&self) -> String {
        let folder = self.node.folder.display();
        let socket = self.node.runtime_socket();
        let socket = socket.display();
        // `restrict_oom_score_adj`: without CAP_SYS_RESOURCE a sandbox cannot lower its own score.
        format!(
            r#"version = 2
root = "{folder}/containerd"
state = "/run/containerd-state"
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

    fn kubelet_config(&self) -> serde_json::Value {
        let certificate = format!("{}-server", self.node.part("kubelet"));
        json!({
            "apiVersion": "kubelet.config.k8s.io/v1beta1",
            "kind": "KubeletConfiguration",
            "cgroupDriver": "cgroupfs",
            "cgroupRoot": self.cgroup,
            "cgroupsPerQOS": true,
            "enforceNodeAllocatable": [],
            "failSwapOn": false,
            "localStorageCapacityIsolation": false,
            "evictionHard": {},
            "imageGCHighThresholdPercent": 100,
            "maxPods": 250,
            "registerNode": true,
            "resolvConf": "",
            "containerRuntimeEndpoint": format!("unix://{}", self.node.runtime_socket().display()),
            "podLogsDir": self.file("pod-logs"),
            "staticPodPath": self.node.static_pods(),
            "volumePluginDir": self.file("volume-plugins"),
            "tlsCertFile": self.core.pki(&format!("{certificate}.crt")),
            "tlsPrivateKeyFile": self.core.pki(&format!("{certificate}.key")),
            "authentication": {
                "anonymous": { "enabled": false },
                "webhook": { "enabled": true },
                "x509": { "clientCAFile": self.core.pki("ca.crt") },
            },
            "authorization": { "mode": "Webhook" },
            // A test deletes many pods; the defaults throttle for clusters with many nodes.
            "kubeAPIQPS": 200,
            "kubeAPIBurst": 400,
            "serializeImagePulls": false,
            "syncFrequency": "10s",
        })
    }
}

fn apiserver(core: &Core<'_>, address: Ipv4Addr) -> Part {
    core.apiserver([
        "--bind-address=0.0.0.0".into(),
        format!("--advertise-address={address}"),
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
