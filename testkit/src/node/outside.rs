//! What a node bed has outside its namespaces: a link to the host and cgroups. Made and removed by
//! the keeper; everything carries the bed's name.

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

/// The addresses of one bed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Network {
    /// The node's, inside; the API server's too.
    pub(crate) address: Ipv4Addr,
    /// The other end of the link, on the host.
    pub(crate) host_address: Ipv4Addr,
    /// The first of the pods' 256 addresses.
    pub(crate) pods: Ipv4Addr,
}

impl Network {
    fn number(number: u8) -> Self {
        Self {
            host_address: Ipv4Addr::new(10, 231, number, 1),
            address: Ipv4Addr::new(10, 231, number, 2),
            pods: Ipv4Addr::new(10, 232, number, 0),
        }
    }
}

/// Lays a link from the host into the network namespace of `first`, with addresses nobody uses yet.
/// The end inside is called `eth0` and has no address yet.
pub(crate) fn connect(name: &str, first: Pid) -> Result<Network> {
    let _one_at_a_time = cache::lock("network")?;
    let taken = [
        run("ip", &["-o", "-4", "addr"])?,
        run("ip", &["-4", "route"])?,
    ]
    .concat();
    let taken: Vec<&str> = taken.split_whitespace().collect();
    let free = (1..=254).map(Network::number).find(|network| {
        [network.address, network.pods].iter().all(|address| {
            let [first, second, third, _] = address.octets();
            let prefix = format!("{first}.{second}.{third}.");
            !taken.iter().any(|word| word.starts_with(&prefix))
        })
    });
    let network = free.context("all of 10.231.0.0/16 and 10.232.0.0/16 is in use")?;
    let process = first.to_string();
    run(
        "ip",
        &[
            "link", "add", name, "type", "veth", "peer", "name", "eth0", "netns", &process,
        ],
    )?;
    run(
        "ip",
        &[
            "addr",
            "add",
            &format!("{}/30", network.host_address),
            "dev",
            name,
        ],
    )?;
    run("ip", &["link", "set", name, "up"])?;
    // So that agents and clients on the host reach pods. The route goes with the link.
    let (pods, node) = (format!("{}/24", network.pods), network.address.to_string());
    run(
        "ip",
        &["route", "add", &pods, "via", &node, "dev", name, "onlink"],
    )?;
    Ok(network)
}

/// Makes a cgroup named like the bed under every root. Without one of its own, a kubelet takes the
/// pods of the machine's other kubelets for orphans and kills them.
pub(crate) fn make_cgroups(name: &str) -> Result<()> {
    for root in roots() {
        let cgroup = root.join(name);
        fs::create_dir(&cgroup)
            .with_context(|| format!("creating the cgroup {}", cgroup.display()))?;
        if root.join("cgroup.controllers").exists() {
            delegate(&root, &cgroup);
        }
        // A new cpuset of version 1 is empty, and an empty one takes no process.
        for file in ["cpuset.cpus", "cpuset.mems"] {
            if let Ok(all) = fs::read_to_string(root.join(file)) {
                fs::write(cgroup.join(file), all).with_context(|| format!("copying {file}"))?;
            }
        }
    }
    Ok(())
}

/// Version 2 hands a controller down only where every parent says so.
fn delegate(root: &Path, cgroup: &Path) {
    let controllers = fs::read_to_string(root.join("cgroup.controllers")).unwrap_or_default();
    for controller in controllers.split_whitespace() {
        for place in [root, cgroup] {
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
