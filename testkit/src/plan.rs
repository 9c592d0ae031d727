//! What a bed consists of, as data: parts, what each comes after, its command lines, and what
//! tells that it is ready. The keeper writes a plan, the supervisor carries it out.

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use crate::request::Request;

/// All parts of one bed.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    /// Where each part's log goes, as `PART.log`.
    pub(crate) logs: PathBuf,
    /// Where the keeper puts the logs if a part fails; only named here, in the error.
    pub(crate) logs_after_failure: PathBuf,
    /// The parts, in any order.
    pub(crate) parts: Vec<Part>,
}

/// One part: a program that stays, or commands that run to their end.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Part {
    pub(crate) name: String,
    pub(crate) after: Vec<String>,
    pub(crate) work: Work,
}

/// What a part does.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Work {
    /// Command lines, one after the other; ready when the last has ended with 0.
    Commands(Vec<Vec<String>>),
    /// A program that stays; ready by its own sign.
    Program { command: Vec<String>, ready: Ready },
    /// Nothing to run, only something to wait for.
    Wait(Ready),
}

/// The sign by which a part is ready.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) enum Ready {
    /// `path` of a server answers 200; its certificate is not checked.
    Answers { server: String, path: String },
    /// `path` of the API server answers 200 to the administrator.
    Api { path: String },
    /// The node is there and its condition Ready is true.
    Registered { node: String },
    /// A unix socket accepts connections.
    Listens { socket: PathBuf },
    /// A network interface is there.
    Interface { name: String },
}

impl Part {
    pub(crate) fn new(name: &str, after: &[&str], work: Work) -> Self {
        Self {
            name: name.into(),
            after: after.iter().map(ToString::to_string).collect(),
            work,
        }
    }

    pub(crate) fn program(name: &str, after: &[&str], command: Vec<String>, ready: Ready) -> Self {
        Self::new(name, after, Work::Program { command, ready })
    }
}

/// The two parts every bed has, and where their servers are.
pub(crate) struct Core<'a> {
    pub(crate) request: &'a Request,
    pub(crate) folder: &'a Path,
    pub(crate) ports: Ports,
}

/// The ports of etcd and the API server.
#[derive(Clone, Copy)]
pub(crate) struct Ports {
    pub(crate) etcd: u16,
    pub(crate) etcd_peer: u16,
    pub(crate) api: u16,
}

impl Core<'_> {
    /// The command line of one of the cluster's programs: its flags, then what the options add.
    pub(crate) fn command(
        &self,
        program: &str,
        flags: impl IntoIterator<Item = String>,
    ) -> Vec<String> {
        let mut command = vec![self.request.programs.join(program).display().to_string()];
        command.extend(flags);
        command.extend(self.request.options.arguments_of(program));
        command
    }

    pub(crate) fn pki(&self, file: &str) -> String {
        self.folder.join("pki").join(file).display().to_string()
    }

    pub(crate) fn etcd(&self, after: &[&str]) -> Part {
        let client = format!("http://127.0.0.1:{}", self.ports.etcd);
        let peer = format!("http://127.0.0.1:{}", self.ports.etcd_peer);
        let flags = [
            format!("--data-dir={}", self.folder.join("etcd").display()),
            "--unsafe-no-fsync".into(),
            // The bench of the largest cluster needs more than the 2 GiB of etcd's own.
            "--quota-backend-bytes=8589934592".into(),
            format!("--listen-client-urls={client}"),
            format!("--advertise-client-urls={client}"),
            format!("--listen-peer-urls={peer}"),
            format!("--initial-advertise-peer-urls={peer}"),
            format!("--initial-cluster=default={peer}"),
            "--log-level=warn".into(),
        ];
        let ready = Ready::Answers {
            server: client,
            path: "/health".into(),
        };
        Part::program("etcd", after, self.command("etcd", flags), ready)
    }

    pub(crate) fn apiserver(&self, own: impl IntoIterator<Item = String>) -> Part {
        let flags = [
            format!("--etcd-servers=http://127.0.0.1:{}", self.ports.etcd),
            format!("--secure-port={}", self.ports.api),
            format!("--tls-cert-file={}", self.pki("apiserver.crt")),
            format!("--tls-private-key-file={}", self.pki("apiserver.key")),
            format!("--client-ca-file={}", self.pki("ca.crt")),
            format!("--service-account-key-file={}", self.pki("sa.pub")),
            format!("--service-account-signing-key-file={}", self.pki("sa.key")),
            "--service-account-issuer=https://kubernetes.default.svc".into(),
            "--service-cluster-ip-range=10.96.0.0/16".into(),
            "--allow-privileged=true".into(),
            format!("--requestheader-client-ca-file={}", self.pki("ca.crt")),
            "--requestheader-allowed-names=front-proxy".into(),
            format!("--proxy-client-cert-file={}", self.pki("front-proxy.crt")),
            format!("--proxy-client-key-file={}", self.pki("front-proxy.key")),
            "--requestheader-username-headers=X-Remote-User".into(),
            "--requestheader-group-headers=X-Remote-Group".into(),
            "--requestheader-extra-headers-prefix=X-Remote-Extra-".into(),
            format!(
                "--audit-policy-file={}",
                self.folder.join("audit-policy.json").display()
            ),
            format!("--audit-log-path={}", audit_log(self.folder).display()),
            // One file, so that a mark in it stays valid.
            "--audit-log-maxsize=100000".into(),
        ];
        let command = self.command("kube-apiserver", flags.into_iter().chain(own));
        Part::program(
            "kube-apiserver",
            &["etcd"],
            command,
            Ready::Api {
                path: "/readyz".into(),
            },
        )
    }

    /// A control plane alone, on 127.0.0.1, for an owner who need not be root.
    pub(crate) fn control_plane(&self) -> Vec<Part> {
        let address = Ipv4Addr::LOCALHOST;
        let apiserver = self.apiserver([
            format!("--bind-address={address}"),
            format!("--advertise-address={address}"),
            "--authorization-mode=RBAC".into(),
            // No controller makes the `default` service accounts here, so pods must do without.
            "--disable-admission-plugins=ServiceAccount".into(),
            // The endpoints of the Service `kubernetes` refuse a loopback address.
            "--endpoint-reconciler-type=none".into(),
        ]);
        vec![self.etcd(&[]), apiserver]
    }
}

/// The API server's audit log.
pub(crate) fn audit_log(folder: &Path) -> PathBuf {
    folder.join("audit.log")
}

/// Every request is logged once, when it is answered; a watch when it starts.
pub(crate) const AUDIT_POLICY: &str = r#"{
  "apiVersion": "audit.k8s.io/v1",
  "kind": "Policy",
  "omitStages": ["RequestReceived"],
  "rules": [{ "level": "Metadata" }]
}"#;
