//! Beds that outlive the command that raised them: `leadsman-bed up --detach` and `down`.
//!
//! A record per bed in the cache folder names its keeper and when that process began, so a number
//! that has been given to another process is never mistaken for it.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, Uid};
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
    by_root: bool,
}

/// Raises a bed and leaves it, to be ended by [`down`]. Returns its name and its kubeconfig.
pub fn up(
    control_plane: bool,
    options: Options,
    progress: impl FnMut(Progress),
) -> Result<(String, PathBuf)> {
    let plane = if control_plane {
        ControlPlane::start_blocking(options, progress, true)?
    } else {
        NodeBed::start_blocking(options, progress, true)?.into_plane()?
    };
    let bed = plane.bed.clone();
    let began = began(bed.keeper).context("the keeper has ended")?;
    let folder = records()?;
    fs::create_dir_all(&folder)?;
    let kubeconfig = plane.admin_kubeconfig().to_owned();
    let record = Record {
        bed: bed.clone(),
        keeper_began: began,
        by_root: Uid::effective().is_root(),
    };
    fs::write(
        folder.join(format!("{}.json", bed.name)),
        serde_json::to_vec_pretty(&record)?,
    )?;
    cache::hand_over(&folder)?;
    plane.leave()?;
    Ok((bed.name, kubeconfig))
}

/// What [`down`] has come to: names of beds.
#[derive(Debug, Default)]
pub struct Ended {
    /// They are gone.
    pub ended: Vec<String>,
    /// They were raised by root, and only root can end them.
    pub left_to_root: Vec<String>,
}

/// Ends the bed of this name, or all detached beds, and waits until they are gone.
pub fn down(name: Option<&str>) -> Result<Ended> {
    let folder = records()?;
    let mut beds = Ended::default();
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let path = entry.path();
        let text = fs::read_to_string(&path)?;
        let record: Record =
            serde_json::from_str(&text).with_context(|| format!("reading {}", path.display()))?;
        if name.is_some_and(|name| name != record.bed.name) {
            continue;
        }
        if record.by_root && !Uid::effective().is_root() {
            beds.left_to_root.push(record.bed.name);
        } else {
            end(&record, &path)?;
            beds.ended.push(record.bed.name);
        }
    }
    match name {
        Some(name) if beds.ended.is_empty() && beds.left_to_root.is_empty() => {
            bail!("no detached bed is called {name}")
        }
        _ => Ok(beds),
    }
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
