//! Runs commands in containers of the node on which it is started, each once through the container runtime and once directly.
//! It stands where the agent does: in the node's process namespace, with its rights.
//!
//! `leadsman-differ ENDPOINT HELPER` reads a JSON array of [`Order`] and writes one of [`Answer`].
//! `leadsman-differ ENDPOINT HELPER CONTAINER WAY COUNT PER_SECOND COMMAND…` runs one command many times and says what that cost.

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use futures::stream::{FuturesUnordered, StreamExt as _};
use leadsman_cri::{Detour, DirectExec, Runtime};
use leadsman_probe::{Exec, ExecError, Execution};
use leadsman_tests::differ::{Answer, Cost, Order, Run};

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [endpoint, helper, rest @ ..] = arguments.as_slice() else {
        bail!("leadsman-differ ENDPOINT HELPER [CONTAINER WAY COUNT PER_SECOND COMMAND…]");
    };
    let runtime = Runtime::connect_lazily(endpoint)?;
    let way = Arc::new(Mutex::new(Ok(())));
    let latest = Arc::clone(&way);
    let observer = move |run: Result<(), Detour>| {
        *latest.lock().expect("nobody panics") = run;
    };
    let direct = DirectExec::new(runtime.clone(), Path::new(helper), observer)?;
    match rest {
        [] => {
            let orders: Vec<Order> = serde_json::from_reader(std::io::stdin())?;
            let mut answers = Vec::new();
            for order in orders {
                let through_runtime = run(&runtime, &order).await;
                let directly = run(&direct, &order).await;
                let way = *way.lock().expect("nobody panics");
                answers.push(Answer {
                    runtime: through_runtime,
                    direct: directly,
                    way: way.map_or_else(Detour::label, |()| "direct").to_owned(),
                });
            }
            serde_json::to_writer(std::io::stdout(), &answers)?;
        }
        [container, way, count, per_second, command @ ..] => {
            let order = Order {
                container: container.clone(),
                command: command.to_vec(),
                timeout: Duration::from_secs(10),
            };
            let (count, per_second) = (count.parse()?, per_second.parse()?);
            let cost = match way.as_str() {
                "direct" => measure(&direct, &order, count, per_second).await?,
                _ => measure(&runtime, &order, count, per_second).await?,
            };
            println!("{}", serde_json::to_string(&cost)?);
        }
        _ => bail!("COUNT, PER_SECOND or COMMAND is missing"),
    }
    Ok(())
}

async fn run(exec: &impl Exec, order: &Order) -> Run {
    let ended = exec.exec(&order.container, &order.command, order.timeout);
    match ended.await {
        Ok(Execution {
            exit_code,
            stdout,
            stderr,
        }) => Run {
            end: format!("exited {exit_code}"),
            stdout: String::from_utf8_lossy(&stdout).into_owned(),
            stderr: String::from_utf8_lossy(&stderr).into_owned(),
        },
        Err(error) => Run {
            end: match error {
                ExecError::TimedOut => "timed out".to_owned(),
                other => other.to_string(),
            },
            ..Run::default()
        },
    }
}

async fn measure(exec: &impl Exec, order: &Order, count: u32, per_second: u32) -> Result<Cost> {
    // The first one in a container is looked at.
    run(exec, order).await;
    let (processes, machine) = (cpu_of_processes()?, cpu_of_machine()?);
    let mut ticks = tokio::time::interval(Duration::from_secs(1) / per_second);
    let mut runs = FuturesUnordered::new();
    let (mut started, mut failed, mut took) = (0, 0, Vec::new());
    let timed = async || {
        let began = tokio::time::Instant::now();
        let ended = run(exec, order).await;
        (began.elapsed(), ended)
    };
    while started < count || !runs.is_empty() {
        tokio::select! {
            _ = ticks.tick(), if started < count => {
                started += 1;
                runs.push(timed());
            }
            Some((elapsed, ended)) = runs.next() => {
                took.push(elapsed);
                failed += u32::from(ended.end != "exited 0");
            }
        }
    }
    took.sort_unstable();
    let each = |before: f64, after: f64| (after - before) / f64::from(count);
    Ok(Cost {
        count,
        failed,
        processes_ms: each(processes, cpu_of_processes()?),
        machine_ms: each(machine, cpu_of_machine()?),
        median_ms: took[took.len() / 2].as_secs_f64() * 1e3,
        p99_ms: took[took.len() * 99 / 100].as_secs_f64() * 1e3,
    })
}

/// CPU time of this process, the runtime and its shims, and all of their children that have ended, in milliseconds.
fn cpu_of_processes() -> Result<f64> {
    let mut ticks = 0;
    for folder in std::fs::read_dir("/proc")?.flatten() {
        let is_process = folder.file_name().to_string_lossy().parse::<u32>().is_ok();
        let Ok(stat) = std::fs::read_to_string(folder.path().join("stat")) else {
            continue;
        };
        let ours = ["containerd", "leadsman-differ", "crio", "conmon"];
        if is_process && ours.iter().any(|name| stat.contains(&format!("({name}"))) {
            let (_, fields) = stat.rsplit_once(") ").context("no name")?;
            // utime, stime, cutime, cstime: fields 14 to 17.
            let fields = fields.split(' ').skip(11).take(4);
            ticks += fields
                .map(|field| field.parse::<u64>().unwrap_or_default())
                .sum::<u64>();
        }
    }
    Ok(to_milliseconds(ticks))
}

/// CPU time that this machine has spent on anything, in milliseconds.
fn cpu_of_machine() -> Result<f64> {
    let stat = std::fs::read_to_string("/proc/stat")?;
    let fields: Vec<u64> = stat
        .lines()
        .next()
        .context("/proc/stat is empty")?
        .split_whitespace()
        .skip(1)
        .map(|field| field.parse().unwrap_or_default())
        .collect();
    // All but idle, waiting for disks, and what is in other fields already.
    let busy = fields.iter().take(8).sum::<u64>() - fields[3] - fields[4];
    Ok(to_milliseconds(busy))
}

/// The kernel tells processes of hundredths of a second (`USER_HZ`).
#[expect(clippy::cast_precision_loss, reason = "a time for people")]
fn to_milliseconds(ticks: u64) -> f64 {
    ticks as f64 * 10.0
}
