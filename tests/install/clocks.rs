//! Clocks that differ. Those of running managers and agents are moved, in their pods.
//!
//! There is no namespace for the time of day, and nothing can be preloaded into a static program. But it asks for the time
//! of day by a function that the kernel maps into each process (`vdso(7)`), and who may trace a process may write to its
//! mapping, which is then its own.

use std::fs::File;
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;

use anyhow::{Context, Result, ensure};
use jiff::{SignedDuration, Timestamp};
use k8s_openapi::api::coordination::v1::Lease;
use k8s_openapi::api::core::v1::Pod;
use kube::Api;
use leadsman_testkit::Release;
use leadsman_testkit::release::Component;
use leadsman_tests::{now, wait_for_answer};
use object::{Object as _, ObjectSymbol as _};
use procfs::process::{MMapPath, Process, all_processes};
use serde_json::json;
use tokio::time::Instant;

use crate::managers::{AT_ONCE, LEASE, container_id, kill, leader, node_name};
use crate::room::{flip, roles_were};
use crate::{Room, install, marked_pods};

const MINUTE: SignedDuration = SignedDuration::from_mins(1);

// PPM-11
pub(crate) async fn clocks_a_minute_apart_move_no_mark_and_no_lease(
    release: Arc<Release>,
) -> Result<()> {
    if !cfg!(target_arch = "x86_64") {
        eprintln!("SKIPPED: the clock that is put into a process is machine code of x86-64");
        return Ok(());
    }
    install(&release, json!({})).await?;
    let (room, history) = marked_pods(&release, "clocks").await?;
    // By the time in it the Lease would have expired long ago for the manager that stands by.
    let leader = leader(&release).await?;
    for manager in release.pods(Component::Manager).await? {
        let leads = manager.metadata.name == leader.metadata.name;
        move_clock(&manager, if leads { -MINUTE } else { MINUTE })?;
    }
    for agent in release.pods(Component::Agent).await? {
        let is_first = node_name(&agent) == Some(release.bed.node_name());
        move_clock(&agent, if is_first { MINUTE } else { -MINUTE })?;
    }
    let holder = release.lease_holder().await?;
    for pod in ["first", "second"] {
        flip(&room, pod, false).await?;
    }
    // The times that are written are those of their writers.
    is_ahead("the first agent", marked_at(&room, "first").await?)?;
    is_behind("the second agent", marked_at(&room, "second").await?)?;
    wait_for_renewals(&release).await?;
    is_behind("the leader", renewed_at(&release).await?)?;
    ensure!(
        release.lease_holder().await? == holder,
        "{holder:?} lost the Lease"
    );
    kill(&release, &leader).await?;
    let killed = Instant::now();
    flip(&room, "first", true).await?;
    let took = killed.elapsed();
    eprintln!("with clocks two minutes apart, a flip after the leader was killed took {took:?}");
    ensure!(took < LEASE + AT_ONCE, "it took {took:?}");
    is_ahead("the successor", renewed_at(&release).await?)?;
    flip(&room, "second", true).await?;
    roles_were(&history, [&["main", "secondary", "main"]; 2]).await
}

fn is_ahead(who: &str, time: Timestamp) -> Result<()> {
    ensure!(time > now() + MINUTE / 2, "{who} wrote {time}");
    Ok(())
}

fn is_behind(who: &str, time: Timestamp) -> Result<()> {
    ensure!(time < now() - MINUTE / 2, "{who} wrote {time}");
    Ok(())
}

/// When the verdict of a pod last changed, by the clock of its node's agent.
async fn marked_at(room: &Room, pod: &str) -> Result<Timestamp> {
    let status = room.scene.pods().get(pod).await?.status.unwrap_or_default();
    let mut conditions = status.conditions.into_iter().flatten();
    let role = conditions.find(|condition| condition.type_ == "t.io/role");
    let changed = role.and_then(|role| role.last_transition_time);
    Ok(changed.context("the pod has no condition with a time")?.0)
}

/// When the Lease was last renewed, by the leader's clock.
async fn renewed_at(release: &Release) -> Result<Timestamp> {
    let leases: Api<Lease> = Api::namespaced(release.client.clone(), "kube-system");
    let spec = leases.get("leadsman-manager").await?.spec;
    let renewed = spec.and_then(|spec| spec.renew_time);
    Ok(renewed.context("the Lease was never renewed")?.0)
}

/// Waits until the leader has renewed its Lease twice.
async fn wait_for_renewals(release: &Release) -> Result<()> {
    for _ in 0..2 {
        let before = renewed_at(release).await?;
        wait_for_answer("a renewal of the Lease", || async {
            Ok((renewed_at(release).await? != before).then_some(()))
        })
        .await?;
    }
    Ok(())
}

/// Moves the time of day of the only process in a pod's only container.
fn move_clock(pod: &Pod, by: SignedDuration) -> Result<()> {
    let (itself, process) = (Process::myself()?, process_in(&container_id(pod)?)?);
    // All processes have the same.
    let (start, end) = vdso_of(&itself)?;
    let mut image = vec![0; usize::try_from(end - start)?];
    itself.mem()?.read_exact_at(&mut image, start)?;
    let image = object::File::parse(&*image).context("the vDSO")?;
    let mut symbols = image.dynamic_symbols();
    let clock = symbols.find(|symbol| symbol.name() == Ok("__vdso_clock_gettime"));
    let clock = clock.context("the vDSO has no clock")?.address();
    let memory = format!("/proc/{}/mem", process.pid());
    let memory = File::options().write(true).open(memory)?;
    let code = moved_clock(i32::try_from(by.as_secs())?);
    memory.write_all_at(&code, vdso_of(&process)?.0 + clock)?;
    Ok(())
}

/// The process in a container, whose id is in the name of its cgroup.
fn process_in(container: &str) -> Result<Process> {
    let id = container.trim_start_matches("containerd://");
    let is_in = |process: &Process| {
        let cgroups = process.cgroups().map(|cgroups| cgroups.0);
        // A process that has just ended has none.
        cgroups.is_ok_and(|all| all.iter().any(|cgroup| cgroup.pathname.contains(id)))
    };
    let mut processes = all_processes()?.flatten();
    let found = processes.find(is_in);
    found.with_context(|| format!("no process in {container}"))
}

/// Where the vDSO is in a process's memory.
fn vdso_of(process: &Process) -> Result<(u64, u64)> {
    let mut maps = process.maps()?.into_iter();
    let vdso = maps.find(|map| map.pathname == MMapPath::Vdso);
    Ok(vdso.context("it has no vDSO")?.address)
}

/// `clock_gettime` of x86-64, which asks the kernel and adds seconds to the time of day, the clock 0.
fn moved_clock(seconds: i32) -> Vec<u8> {
    let mut code = vec![
        0xb8, 228, 0, 0, 0, // mov eax, SYS_clock_gettime
        0x0f, 0x05, // syscall
        0x85, 0xff, // test edi, edi
        0x75, 0x07, // jnz end
        0x48, 0x81, 0x06, // add qword [rsi], seconds
    ];
    code.extend(seconds.to_le_bytes());
    code.push(0xc3); // end: ret
    code
}
