//! Beds that outlive the command that raised them: `leadsman-bed up --detach` and `down`.
//!
//! A record per bed in the cache folder names its keeper and when that process began, so a number
//! that has been given to another process is never mistaken for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use serde::{Deserialize, Serialize};

use crate::cache;
use crate::clock;
use crate::control_plane::ControlPlane;
use crate::keep;
use crate::node::NodeBed;
use crate::progress::Progress;
use crate::request::{Bed, Options};

#[derive(Serialize, Deserialize)]
struct Record {
    bed: Bed,
    keeper_began: String,
}

/// Raises a bed and leaves it, to be ended by [`down`]. Returns its name and its kubeconfig.
pub fn up(control_plane: bool, progress: impl FnMut(Progress)) -> Result<(String, PathBuf)> {
    let plane = if control_plane {
        ControlPlane::start_blocking(Options::default(), progress, true)?
    } else {
        NodeBed::start_blocking(Options::default(), progress, true)?.into_plane()
    };
    let bed = plane.bed.clone();
    let began = began(bed.keeper).context("the keeper has ended")?;
    let folder = records()?;
    fs::create_dir_all(&folder)?;
    let kubeconfig = plane.admin_kubeconfig().to_owned();
    let record = Record {
        bed: bed.clone(),
        keeper_began: began,
    };
    fs::write(
        folder.join(format!("{}.json", bed.name)),
        serde_json::to_vec_pretty(&record)?,
    )?;
    plane.leave()?;
    Ok((bed.name, kubeconfig))
}

/// Ends the bed of this name, or all detached beds, and waits until they are gone. Returns the
/// names of those that were ended.
pub fn down(name: Option<&str>) -> Result<Vec<String>> {
    let folder = records()?;
    let mut ended = Vec::new();
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let text = fs::read_to_string(&path)?;
        let record: Record =
            serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        if name.is_none_or(|name| name == record.bed.name) {
            end(&record, &path)?;
            ended.push(record.bed.name);
        }
    }
    if let (Some(name), []) = (name, ended.as_slice()) {
        bail!("no detached bed is called {name}");
    }
    Ok(ended)
}

fn end(record: &Record, path: &Path) -> Result<()> {
    let alive = || began(record.bed.keeper).is_some_and(|began| began == record.keeper_began);
    if alive() {
        kill(
            Pid::from_raw(record.bed.keeper.cast_signed()),
            Signal::SIGTERM,
        )?;
    }
    let deadline = clock::now() + Duration::from_mins(1);
    while alive() {
        if clock::now() > deadline {
            bail!(
                "the keeper of {}, process {}, does not end",
                record.bed.name,
                record.bed.keeper
            );
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    keep::sweep(&record.bed)?;
    fs::remove_file(path)?;
    Ok(())
}

fn records() -> Result<PathBuf> {
    Ok(cache::folder()?.join("beds"))
}

/// When a living process began, in the kernel's ticks since boot.
fn began(process: u32) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{process}/stat")).ok()?;
    // The name, in parentheses, may hold anything; the state follows it, the beginning is 19 later.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?;
    (state != "Z").then(|| fields.nth(18).map(str::to_owned))?
}
