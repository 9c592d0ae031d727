//! What a node bed has outside its namespaces: a link to the host and cgroups; and the links between its nodes. Made
//! and removed by the keeper; everything on the host carries the bed's name.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::unistd::Pid;

use crate::cache;
use crate::clock;
use crate::processes::run;

/// What names of beds begin with. With six digits after it a name still fits an interface.
pub(crate) const PREFIX: &str = "lmbed-";

/// Folders a bed covers with mounts of its own, so its folder must not be in there.
pub(crate) const COVERED: [&str; 3] = ["/run", "/var/lib", "/var/log"];

const CGROUPS: &str = "/sys/fs/cgroup";

/// The addresses of one bed: `10.231.NUMBER.0/24` for its links, `10.232.NUMBER.0/24` and those after it for its pods.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    number: u8,
}

/// The addresses of one node.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Addresses {
    /// The node's own, at the inner end of its link. The first node's is the API server's too.
    pub(crate) node: Ipv4Addr,
    /// The other end of the link: the host for the first node, the first node for all others.
    pub(crate) gateway: Ipv4Addr,
    /// The first of the 256 addresses of its pods.
    pub(crate) pods: Ipv4Addr,
}

impl Network {
    /// The addresses of the node of this number, from 1 on. Each link takes four addresses.
    pub(crate) fn node(self, node: u8) -> Addresses {
        let link = 4 * (node - 1);
        Addresses {
            gateway: Ipv4Addr::new(10, 231, self.number, link + 1),
            node: Ipv4Addr::new(10, 231, self.number, link + 2),
            pods: Ipv4Addr::new(10, 231 + node, self.number, 0),
        }
    }

    fn is_free(self, nodes: u8, taken: &[&str]) -> bool {
        (1..=nodes)
            .map(|node| self.node(node))
            .flat_map(|of_node| [of_node.node, of_node.pods])
            .all(|address| {
                let [first, second, third, _] = address.octets();
                let prefix = format!("{first}.{second}.{third}.");
                !taken.iter().any(|word| word.starts_with(&prefix))
            })
    }
}

/// Lays a link from the host into the network namespace of `first`, with addresses for so many nodes that nobody uses
/// yet. The end inside is called `eth0` and has no address yet.
pub(crate) fn connect(name: &str, first: Pid, nodes: u8) -> Result<Network> {
    let _one_at_a_time = cache::lock("network")?;
    let taken = [
        run("ip", &["-o", "-4", "addr"])?,
        run("ip", &["-4", "route"])?,
    ]
    .concat();
    let taken: Vec<&str> = taken.split_whitespace().collect();
    let network = (1..=254)
        .map(|number| Network { number })
        .find(|network| network.is_free(nodes, &taken))
        .context("all of 10.231.0.0/16 and 10.232.0.0/16 is in use")?;
    let first_node = network.node(1);
    lay_link("ip", name, &first_node, Some(first))?;
    // The host reaches other nodes and their pods through the first. These routes go with the link, too.
    for node in (2..=nodes).map(|node| network.node(node)) {
        for place in [format!("{}/32", node.node), format!("{}/24", node.pods)] {
            let line = format!(
                "ip route add {place} via {} dev {name} onlink",
                first_node.node
            );
            run_line(&line)?;
        }
    }
    Ok(network)
}

/// Lays a link called `name` from the network of the first node, whose first process is `first`, to that of another, or for
/// a virtual machine that has yet to start.
pub(crate) fn connect_worker(
    name: &str,
    first: Pid,
    addresses: &Addresses,
    worker: Option<Pid>,
) -> Result<()> {
    let ip = format!("nsenter --net --target {first} ip");
    // The end of a node that was killed goes with its namespace, but the kernel takes its time.
    let _ = run_line(&format!("{ip} link del {name}"));
    lay_link(&ip, name, addresses, worker)
}

/// Lays a link called `name` from the network in which the command `ip` acts into that of the process `inside`, or for a
/// machine that takes it by name. Pods behind it are reached by a route that goes with the link.
fn lay_link(ip: &str, name: &str, addresses: &Addresses, inside: Option<Pid>) -> Result<()> {
    let Addresses {
        node,
        gateway,
        pods,
    } = addresses;
    let add = match inside {
        Some(inside) => format!("{ip} link add {name} type veth peer name eth0 netns {inside}"),
        None => format!("{ip} tuntap add dev {name} mode tap"),
    };
    for line in [
        add,
        format!("{ip} addr add {gateway}/30 dev {name}"),
        format!("{ip} link set {name} up"),
        format!("{ip} route add {pods}/24 via {node} dev {name} onlink"),
    ] {
        run_line(&line)?;
    }
    Ok(())
}

fn run_line(line: &str) -> Result<()> {
    let (program, arguments) = line.split_once(' ').unwrap_or((line, ""));
    run(program, &arguments.split(' ').collect::<Vec<_>>()).map(drop)
}

/// Makes a cgroup named like the bed under every root, and below it one for each node but the first. Without one of its
/// own, a kubelet takes the pods of the machine's other kubelets for orphans and kills them.
pub(crate) fn make_cgroups(name: &str, workers: &[String]) -> Result<()> {
    for root in roots() {
        let bed = make_cgroup(&root, name)?;
        for worker in workers {
            make_cgroup(&bed, worker)?;
        }
    }
    Ok(())
}

fn make_cgroup(parent: &Path, name: &str) -> Result<PathBuf> {
    let cgroup = parent.join(name);
    fs::create_dir(&cgroup).with_context(|| format!("creating the cgroup {}", cgroup.display()))?;
    if parent.join("cgroup.controllers").exists() {
        delegate(parent, &cgroup);
    }
    // A new cpuset of version 1 is empty, and an empty one takes no process.
    for file in ["cpuset.cpus", "cpuset.mems"] {
        if let Ok(all) = fs::read_to_string(parent.join(file)) {
            fs::write(cgroup.join(file), all).with_context(|| format!("copying {file}"))?;
        }
    }
    Ok(cgroup)
}

/// Version 2 hands a controller down only where every parent says so.
fn delegate(parent: &Path, cgroup: &Path) {
    let controllers = fs::read_to_string(parent.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        for place in [parent, cgroup] {
            // A controller that cannot be handed down is missed by the kubelet, with its own words.
            let _ = fs::write(
                place.join("cgroup.subtree_control"),
                format!("+{controller}"),
            );
        }
    }
}

/// Removes the link and the cgroups of a bed; it is fine if some are gone.
pub(crate) fn remove(name: &str) -> Result<()> {
    if Path::new("/sys/class/net").join(name).exists()
        && let Err(error) = run("ip", &["link", "del", name])
        && Path::new("/sys/class/net").join(name).exists()
    {
        return Err(error);
    }
    let deadline = clock::now() + Duration::from_secs(10);
    for root in roots() {
        let cgroup = root.join(name);
        // A cgroup is busy until its last process has been reaped.
        while cgroup.exists() && remove_cgroup(&cgroup).is_err() {
            if clock::now() > deadline {
                bail!(
                    "the cgroup {} cannot be removed, processes are in it",
                    cgroup.display()
                );
            }
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    Ok(())
}

fn remove_cgroup(cgroup: &Path) -> std::io::Result<()> {
    for child in fs::read_dir(cgroup)?.flatten() {
        if child.file_type()?.is_dir() {
            remove_cgroup(&child.path())?;
        }
    }
    fs::remove_dir(cgroup)
}

/// The root of the one hierarchy of version 2, or those of all of version 1.
fn roots() -> Vec<PathBuf> {
    let top = Path::new(CGROUPS);
    if top.join("cgroup.controllers").exists() {
        return vec![top.to_owned()];
    }
    let entries = fs::read_dir(top).into_iter().flatten().flatten();
    // `cpu` and `cpuacct` may be links to one hierarchy.
    entries
        .filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir()))
        .map(|entry| entry.path())
        .collect()
}
