//! The keeper: the process between a bed's owner and its supervisors, outside the bed's namespaces.
//!
//! It makes what a bed leaves outside (a folder, and for a node bed a link and cgroups), starts a
//! supervisor for each node, passes the owner's orders on, and takes everything away again when the
//! owner's pipe closes, a signal arrives, or a supervisor ends by itself. Since the kernel closes a
//! dead owner's pipe, this holds for SIGKILL too. The keeper adopts what supervisors leave behind, so
//! nothing of a bed outlives it.

use std::path::{Path, PathBuf};
use std::process::ExitStatus;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::future::try_join_all;
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use nix::unistd::Pid;
use tokio::io::{AsyncBufReadExt as _, BufReader};
use tokio::signal::unix::{SignalKind, signal};

use crate::cache;
use crate::clock;
use crate::leftovers::{self, FOLDER_PREFIX};
use crate::node;
use crate::node::outside::{self, Network};
use crate::node::plan::NodePlan;
use crate::pki::{Authority, Identity};
use crate::plan::{AUDIT_POLICY, Core, Plan, Ports};
use crate::ports::free_addresses;
use crate::processes;
use crate::progress::Progress;
use crate::request::{Bed, Event, Kind, Node, Order, Request, report};
use crate::supervised::{GRACE, Running, Supervised, first_end};

const ADMINISTRATOR: Identity<'_> = Identity {
    user: "bed-administrator",
    groups: &["system:masters"],
};

/// Raises the bed that is asked for, keeps it until its end, and takes everything away.
pub async fn keep(request: &str) -> Result<()> {
    let request: Request = serde_json::from_str(request).context("the request")?;
    nix::sys::prctl::set_child_subreaper(true)?;
    match leftovers::sweep() {
        Ok(swept) => swept.into_iter().for_each(|name| {
            report(&Event::Progress(Progress::Note(format!(
                "took away what {name} had left, whose owner and keeper were killed"
            ))));
        }),
        // It is tried again by the next bed; this one is not in its way.
        Err(error) => report(&Event::Progress(Progress::Note(format!("{error:#}")))),
    }
    let (name, folder) = new_folder()?;
    let kept = leftovers::keep(&folder, request.kind)?;
    let outcome = Keeper {
        request: &request,
        name: &name,
        folder: &folder,
    }
    .run()
    .await;
    if let Err(error) = &outcome {
        report(&Event::Failed(format!("{error:#}")));
    }
    let failed = outcome.is_err() || outcome.as_ref().is_ok_and(|fine| !fine);
    reap_all();
    if failed {
        save_logs(&folder.join("logs"), &request.logs_after_failure);
    }
    let outside = if request.kind == Kind::Node {
        outside::remove(&name)
    } else {
        Ok(())
    };
    let removed = outside.and(cache::remove(&folder));
    drop(kept);
    removed.and(outcome.map(|_| ()))
}

/// Removes what a bed whose keeper is dead has left.
pub(crate) fn sweep(bed: &Bed) -> Result<()> {
    let outside = if bed.nodes.is_empty() {
        Ok(())
    } else {
        outside::remove(&bed.name)
    };
    outside.and(cache::remove(&bed.folder))
}

struct Keeper<'a> {
    request: &'a Request,
    name: &'a str,
    folder: &'a Path,
}

impl Keeper<'_> {
    /// Whether the supervisors ended well.
    async fn run(&self) -> Result<bool> {
        for folder in ["logs", "pki"] {
            std::fs::create_dir(self.folder.join(folder))?;
        }
        std::fs::write(self.folder.join("audit-policy.json"), AUDIT_POLICY)?;
        let first = Running::start(self.request.kind, self.folder).await?;
        let (mut supervised, network) = match self.request.kind {
            Kind::ControlPlane => (self.control_plane(first).await?, None),
            Kind::Node => {
                let (supervised, network) = self.nodes(first).await?;
                (supervised, Some(network))
            }
        };
        tokio::select! {
            () = self.obey(&mut supervised, network) => {}
            () = asked_to_end() => {}
        }
        let ends = try_join_all(supervised.into_iter().map(Supervised::end)).await?;
        Ok(ends.iter().flatten().all(ExitStatus::success))
    }

    /// Carries out orders until the owner's pipe closes or a supervisor ends by itself.
    async fn obey(&self, supervised: &mut [Supervised], network: Option<Network>) {
        let mut orders = BufReader::new(tokio::io::stdin()).lines();
        let mut detached = false;
        loop {
            let line = tokio::select! {
                line = orders.next_line(), if !detached => line,
                () = first_end(supervised) => return,
            };
            let Ok(Some(line)) = line else { return };
            let order = serde_json::from_str(&line).context("an order");
            detached = order.as_ref().is_ok_and(|order| *order == Order::Detach);
            let carried_out = match order {
                Ok(order) => self.carry_out(&order, supervised, network).await,
                Err(error) => Err(error),
            };
            if let Err(error) = carried_out {
                report(&Event::Refused(format!("{error:#}")));
            }
        }
    }

    /// Who carries an order out reports that to the owner: the keeper, or the supervisor that it is passed on to.
    async fn carry_out(
        &self,
        order: &Order,
        supervised: &mut [Supervised],
        network: Option<Network>,
    ) -> Result<()> {
        match order {
            Order::Detach => report(&Event::Done),
            Order::Stop(part) | Order::Start(part) => {
                let whose = supervised.iter_mut().find(|it| it.has(part));
                let whose = whose.with_context(|| format!("this bed has no part {part}"))?;
                whose.pass(order).await?;
            }
            Order::KillNode(name) => {
                worker(supervised, name)?.kill().await?;
                report(&Event::Done);
            }
            Order::StartNode(name) => {
                let first = supervised.first().and_then(Supervised::first_process);
                let worker = worker(supervised, name)?;
                if worker.first_process().is_some() {
                    bail!("{name} is running already");
                }
                let place = worker.node.as_ref().zip(network).zip(first);
                let ((node, network), first) = place.context("this bed has no nodes")?;
                let running = self.start_worker(node, network, first).await?;
                worker.begin_again(running).await?;
            }
        }
        Ok(())
    }

    async fn control_plane(&self, supervisor: Running) -> Result<Vec<Supervised>> {
        let ports = free_ports()?;
        let server = format!("https://127.0.0.1:{}", ports.api);
        self.certificates(&server, &[])?;
        let core = Core {
            request: self.request,
            folder: self.folder,
            ports,
        };
        report(&Event::Bed(Box::new(self.bed(server, Vec::new()))));
        let plan = self.plan(core.control_plane());
        Ok(vec![Supervised::begin(supervisor, None, plan).await?])
    }

    async fn nodes(&self, first: Running) -> Result<(Vec<Supervised>, Network)> {
        let count = self.request.supervisors();
        let network = outside::connect(self.name, first.first_process, count)?;
        let address = network.node(1).node;
        let core = Core {
            request: self.request,
            folder: self.folder,
            ports: node::plan::PORTS,
        };
        let facts = |number| node::plan::facts(&core, self.name, network, number);
        let nodes: Vec<Node> = (1..=count).map(facts).collect();
        let workers = nodes.iter().skip(1).filter(|node| !node.is_vm);
        let workers: Vec<_> = workers.map(Node::link).collect();
        outside::make_cgroups(self.name, &workers)?;
        let server = format!("https://{address}:{}", core.ports.api);
        let authority = self.certificates(&server, &[&address.to_string()])?;
        node::plan::certificates(&authority, &server)?;
        let planned = |node: &Node| {
            let of_node = NodePlan {
                core: &core,
                node,
                addresses: network.node(node.number),
                cgroup: self.cgroup(node),
            };
            of_node.parts(&authority, &server)
        };
        report(&Event::Bed(Box::new(
            self.bed(server.clone(), nodes.clone()),
        )));
        let first_process = first.first_process;
        let mut first = Some(first);
        let mut supervised = Vec::new();
        for node in nodes {
            let mut parts = planned(&node)?;
            let running = match first.take() {
                Some(first) => {
                    parts.extend(node::plan::control_plane(&core, address));
                    node.write_first_process(first_process)?;
                    first
                }
                None => self.start_worker(&node, network, first_process).await?,
            };
            supervised.push(Supervised::begin(running, Some(node), self.plan(parts)).await?);
        }
        Ok((supervised, network))
    }

    /// Starts the supervisor of a node beside the first, whose first process is `first`, and links the two.
    async fn start_worker(&self, node: &Node, network: Network, first: Pid) -> Result<Running> {
        let addresses = network.node(node.number);
        if node.is_vm {
            outside::connect_worker(&node.link(), first, &addresses, None)?;
            return Running::spawn(node::vm::command(self.folder, node, first)?, false).await;
        }
        let running = Running::start(Kind::Node, self.folder).await?;
        let inside = running.first_process;
        outside::connect_worker(&node.link(), first, &addresses, Some(inside))?;
        node.write_first_process(inside)?;
        Ok(running)
    }

    fn cgroup(&self, node: &Node) -> String {
        match node.number {
            1 => format!("/{}", self.name),
            _ if node.is_vm => "/".to_owned(),
            _ => format!("/{}/{}", self.name, node.link()),
        }
    }

    fn certificates(&self, server: &str, addresses: &[&str]) -> Result<Authority> {
        let authority = Authority::create(&self.folder.join("pki"))?;
        let mut names = vec![
            "127.0.0.1",
            "10.96.0.1",
            "localhost",
            "kubernetes",
            "kubernetes.default.svc",
        ];
        names.extend(addresses);
        authority.server("apiserver", &names)?;
        authority.client(
            "front-proxy",
            Identity {
                user: "front-proxy",
                groups: &[],
            },
        )?;
        authority.kubeconfig("admin", server, ADMINISTRATOR)?;
        Ok(authority)
    }

    fn bed(&self, server: String, nodes: Vec<Node>) -> Bed {
        let keeper = std::process::id();
        Bed {
            name: self.name.into(),
            folder: self.folder.into(),
            server,
            keeper,
            nodes,
        }
    }

    fn plan(&self, parts: Vec<crate::plan::Part>) -> Plan {
        Plan {
            logs: self.folder.join("logs"),
            logs_after_failure: self.request.logs_after_failure.clone(),
            parts,
        }
    }
}

/// A folder of the bed's own; its random name is the bed's, and short enough for an interface.
fn new_folder() -> Result<(String, PathBuf)> {
    use std::hash::{BuildHasher as _, RandomState};
    use std::os::unix::fs::DirBuilderExt as _;
    let parent = std::env::temp_dir();
    for prefix in outside::COVERED {
        if parent.starts_with(prefix) {
            bail!(
                "the temporary folder {} is under {prefix}, which a bed covers: set TMPDIR",
                parent.display()
            );
        }
    }
    for _ in 0..100 {
        let number = RandomState::new().hash_one(std::process::id()) & 0xff_ffff;
        let name = format!("{}{number:06x}", outside::PREFIX);
        let folder = parent.join(format!("{FOLDER_PREFIX}{name}"));
        match std::fs::DirBuilder::new().mode(0o755).create(&folder) {
            Ok(()) => return Ok((name, folder)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {}
            Err(error) => {
                return Err(error).with_context(|| format!("creating {}", folder.display()));
            }
        }
    }
    bail!("found no free name for a bed in {}", parent.display())
}

fn free_ports() -> Result<Ports> {
    let [etcd, etcd_peer, api] = free_addresses()?.map(|address| address.port());
    Ok(Ports {
        etcd,
        etcd_peer,
        api,
    })
}

/// The supervisor of the node of this name, which is not the first.
fn worker<'a>(supervised: &'a mut [Supervised], name: &str) -> Result<&'a mut Supervised> {
    let mut workers = supervised.iter_mut().skip(1);
    workers
        .find(|it| it.node.as_ref().is_some_and(|node| node.name == name))
        .with_context(|| {
            format!("{name} is no node of this bed, or the first one, which ends with the bed only")
        })
}

async fn asked_to_end() {
    let listen = |kind| signal(kind).context("listening for a signal");
    let (Ok(mut terminate), Ok(mut interrupt)) = (
        listen(SignalKind::terminate()),
        listen(SignalKind::interrupt()),
    ) else {
        return std::future::pending().await;
    };
    tokio::select! {
        _ = terminate.recv() => {}
        _ = interrupt.recv() => {}
    }
}

/// Kills and reaps every process that the supervisor left behind.
fn reap_all() {
    let deadline = clock::now() + GRACE;
    while clock::now() < deadline {
        let children = processes::children();
        if children.is_empty() {
            return;
        }
        for child in children {
            let _ = kill(child, Signal::SIGKILL);
            let _ = waitpid(child, Some(WaitPidFlag::WNOHANG));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn save_logs(logs: &Path, place: &Path) {
    let copy = || -> Result<()> {
        cache::remove(place)?;
        std::fs::create_dir_all(place)?;
        for log in std::fs::read_dir(logs)? {
            let log = log?;
            std::fs::copy(log.path(), place.join(log.file_name()))?;
        }
        cache::hand_over(place)
    };
    // Only the error that led here is reported; its message has the log's last lines.
    let _ = copy();
}
