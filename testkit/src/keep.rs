//! The keeper: the process between a bed's owner and its supervisor, outside the bed's namespaces.
//!
//! It makes what a bed leaves outside (a folder, and for a node bed a link and cgroups), starts the
//! supervisor, passes the owner's orders on, and takes everything away again when the owner's pipe
//! closes, a signal arrives, or the supervisor ends. Since the kernel closes a dead owner's pipe,
//! this holds for SIGKILL too. The keeper adopts what the supervisor leaves behind, so nothing of a
//! bed outlives it.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::sys::wait::{WaitPidFlag, waitpid};
use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
use tokio::process::{Child, Command};
use tokio::signal::unix::{SignalKind, signal};

use crate::cache;
use crate::clock;
use crate::leftovers::{self, FOLDER_PREFIX};
use crate::node::{self, outside};
use crate::pki::{Authority, Identity};
use crate::plan::{AUDIT_POLICY, Core, Plan, Ports};
use crate::processes;
use crate::progress::Progress;
use crate::request::{Bed, Event, Kind, Order, Request, report};

const ADMINISTRATOR: Identity<'_> = Identity {
    user: "bed-administrator",
    groups: &["system:masters"],
};

/// How long the supervisor gets to end by itself.
const GRACE: Duration = Duration::from_secs(10);

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
    let outside = if bed.node.is_some() {
        outside::remove(&bed.name)
    } else {
        Ok(())
    };
    outside.and(cache::remove(&bed.folder))
}

struct Keeper<'a> {
    request: &'a Request,
    name: &'a str,
    folder: &'a Path,
}

impl Keeper<'_> {
    /// Whether the supervisor ended well.
    async fn run(&self) -> Result<bool> {
        for folder in ["logs", "pki"] {
            std::fs::create_dir(self.folder.join(folder))?;
        }
        std::fs::write(self.folder.join("audit-policy.json"), AUDIT_POLICY)?;
        let mut supervisor = self.spawn_supervisor()?;
        let (bed, plan) = match self.request.kind {
            Kind::ControlPlane => self.control_plane(&supervisor)?,
            Kind::Node => self.node(&supervisor).await?,
        };
        report(&Event::Bed(Box::new(bed)));
        let mut input = supervisor
            .stdin
            .take()
            .context("the supervisor's stdin is a pipe")?;
        input
            .write_all(format!("{}\n", serde_json::to_string(&plan)?).as_bytes())
            .await?;
        let forward = async {
            let mut orders = BufReader::new(tokio::io::stdin()).lines();
            let mut detached = false;
            while let Ok(Some(order)) = orders.next_line().await {
                if serde_json::from_str::<Order>(&order).is_ok_and(|order| order == Order::Detach) {
                    detached = true;
                    report(&Event::Done);
                } else if input
                    .write_all(format!("{order}\n").as_bytes())
                    .await
                    .is_err()
                {
                    break;
                }
            }
            if detached {
                std::future::pending::<()>().await;
            }
        };
        let ended = tokio::select! {
            () = forward => None,
            () = asked_to_end() => None,
            status = supervisor.wait() => Some(status?),
        };
        drop(input);
        let status = match ended {
            Some(status) => status,
            None => end(&mut supervisor).await?,
        };
        Ok(status.success())
    }

    fn spawn_supervisor(&self) -> Result<Child> {
        let itself = std::env::current_exe()?;
        let mut command = match self.request.kind {
            Kind::ControlPlane => Command::new(&itself),
            Kind::Node => {
                let mut command = Command::new("unshare");
                command
                    .args([
                        "--net",
                        "--mount",
                        "--pid",
                        "--ipc",
                        "--uts",
                        "--fork",
                        "--mount-proc",
                        "--kill-child",
                    ])
                    .arg(&itself);
                command
            }
        };
        command
            .arg("supervise")
            .arg(self.folder)
            .env("PATH", processes::search_path())
            // The bed must not follow what its owner's working folder or proxies are.
            .env_remove("KUBECONFIG")
            .current_dir(self.folder)
            .stdin(Stdio::piped())
            .spawn()
            .context("cannot start the supervisor")
    }

    fn control_plane(&self, supervisor: &Child) -> Result<(Bed, Plan)> {
        let ports = free_ports()?;
        let server = format!("https://127.0.0.1:{}", ports.api);
        self.certificates(&server, &[])?;
        let core = Core {
            request: self.request,
            folder: self.folder,
            ports,
        };
        let supervisor = supervisor
            .id()
            .context("the supervisor has ended")?
            .cast_signed();
        let bed = self.bed(server, supervisor, None);
        Ok((bed, self.plan(core.control_plane())))
    }

    async fn node(&self, supervisor: &Child) -> Result<(Bed, Plan)> {
        let first = first_process(supervisor).await?;
        let network = outside::connect(self.name, first)?;
        outside::make_cgroups(self.name)?;
        let server = format!("https://{}:{}", network.address, node::plan::PORTS.api);
        let authority = self.certificates(&server, &[&network.address.to_string()])?;
        node::plan::certificates(&authority, self.name, &server, network.address)?;
        let core = Core {
            request: self.request,
            folder: self.folder,
            ports: node::plan::PORTS,
        };
        let parts = node::plan::parts(&core, self.name, &network)?;
        let facts = node::plan::facts(&core, self.name, &network);
        Ok((
            self.bed(server, first.as_raw(), Some(facts)),
            self.plan(parts),
        ))
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

    fn bed(&self, server: String, supervisor: i32, node: Option<crate::request::Node>) -> Bed {
        let keeper = std::process::id();
        Bed {
            name: self.name.into(),
            folder: self.folder.into(),
            server,
            keeper,
            supervisor,
            node,
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

/// Below the range from which the kernel takes ports for outgoing connections (`ip_local_port_range`, from 32768 on): one
/// of those may be taken by any client between this moment and the start of the program that is to listen there.
const LISTEN_PORTS: std::ops::Range<u16> = 10_000..32_000;

fn free_ports() -> Result<Ports> {
    use std::hash::{BuildHasher as _, RandomState};
    let random = RandomState::new();
    // Held together, so that the three differ.
    let mut listeners = Vec::new();
    for attempt in 0..1_000_u32 {
        let span = u64::try_from(LISTEN_PORTS.len())?;
        let port = LISTEN_PORTS.start + u16::try_from(random.hash_one(attempt) % span)?;
        listeners.extend(std::net::TcpListener::bind(("127.0.0.1", port)).ok());
        if let [etcd, etcd_peer, api] = &listeners[..] {
            return Ok(Ports {
                etcd: etcd.local_addr()?.port(),
                etcd_peer: etcd_peer.local_addr()?.port(),
                api: api.local_addr()?.port(),
            });
        }
    }
    bail!("found no three free ports in {LISTEN_PORTS:?} of 127.0.0.1")
}

/// The supervisor's process id as seen from here; its direct parent is `unshare`.
async fn first_process(unshare: &Child) -> Result<nix::unistd::Pid> {
    let deadline = clock::now() + GRACE;
    while clock::now() < deadline {
        let Some(parent) = unshare.id() else { break };
        if let Some(first) = processes::children_of(parent).first() {
            return Ok(*first);
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    bail!("`unshare` could not make the bed's namespaces (its message is above)")
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

async fn end(supervisor: &mut Child) -> Result<std::process::ExitStatus> {
    if let Ok(status) = tokio::time::timeout(GRACE, supervisor.wait()).await {
        return Ok(status?);
    }
    supervisor.kill().await?;
    Ok(supervisor.wait().await?)
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
