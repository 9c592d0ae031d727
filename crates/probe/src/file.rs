//! Files in `emptyDir` volumes, read where the kubelet keeps them.
//!
//! Whoever runs in the container chooses what is in the volume, so nothing in it is followed out of it: no symbolic link, no
//! `..`, no mount (`openat2`, Linux 5.6); on its own folder only one as the kubelet makes it. What is no regular file is never opened, since to open a FIFO or a device does
//! something. Only `emptyDir`s are read: what is in one was written by the pod itself, where a volume of a Secret would show its
//! content to whoever may write a marker and not read the Secret.

mod mount;

use std::fs::{File, FileType, Metadata};
use std::io::{self, Read};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use jiff::Timestamp;
use leadsman_core::podprobe::{CannotProbe, Outcome, VolumeFile};
use nix::errno::Errno;
use nix::fcntl::{OFlag, OpenHow, ResolveFlag, open, openat2};
use nix::sys::stat::Mode;

use crate::message::{MAX_OUTPUT, lossy_text};

/// The folder of a pod's `emptyDir` volumes in the pod's own (`GetPodVolumeDir`, `pkg/kubelet/kubelet_getters.go`; the name of
/// the plugin with `~` in place of `/`).
const EMPTY_DIRS: &str = "volumes/kubernetes.io~empty-dir";

/// The folders of all pods of a node.
#[derive(Clone, Copy, Debug)]
pub struct PodFolders<'a> {
    /// The folder that holds them: the kubelet's `--root-dir`, and `pods` in it.
    pub root: &'a Path,
    /// The time by which the age of a file is told.
    pub now: Timestamp,
}

impl PodFolders<'_> {
    /// Reads a file of a pod, whose uid the container runtime has reported. Blocks as long as the file system does. `on_folder` is
    /// called with the folder of the file before that is looked for, so that no later change in it goes unnoticed.
    ///
    /// # Errors
    /// The file could not be looked at, whether it is there or not.
    pub fn read_file(
        &self,
        pod_uid: &str,
        file: &VolumeFile,
        on_folder: impl FnOnce(BorrowedFd<'_>),
    ) -> Result<Outcome, CannotProbe> {
        let volume = match self.open_volume(pod_uid, &file.volume)? {
            Ok(volume) => volume,
            Err(failed) => return Ok(failed),
        };
        let (folder, name) = file.path.rsplit_once('/').unwrap_or((".", &file.path));
        let found = open_within(&volume, folder, OFlag::O_DIRECTORY).and_then(|folder| {
            on_folder(folder.as_fd());
            open_within(&folder, name, OFlag::O_NOFOLLOW)
        });
        let read = found.map_err(io::Error::from).and_then(|found| {
            let found = File::from(found);
            let metadata = found.metadata()?;
            let kind = metadata.file_type();
            if !kind.is_file() {
                let what = format!("is {}, not a file", kind_name(kind));
                return Ok(failed(file, what));
            }
            // The age comes before the content: one that may not be read can be too old all the same.
            if let Some(too_old) = self.judge_age(file, &metadata) {
                return Ok(too_old);
            }
            let content = read_opened(&found)?;
            Ok(Outcome::Succeeded(lossy_text(&[&content])))
        });
        read.or_else(|error| explain_error(file, &error))
    }

    /// The folder of a volume, or why there is none.
    fn open_volume(
        &self,
        pod_uid: &str,
        volume: &str,
    ) -> Result<Result<OwnedFd, Outcome>, CannotProbe> {
        let root = self.root.display();
        // The agent has it from labels of the container; the kubelet would make no such folder.
        if pod_uid.is_empty() || pod_uid.starts_with('.') || pod_uid.contains('/') {
            let message = format!("{pod_uid:?} is no uid that names a folder below {root}");
            return Err(CannotProbe::File(message));
        }
        let flags = OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC;
        let folders = open(self.root, flags, Mode::empty()).map_err(|error| {
            let what =
                "mount the kubelet's folder of pods there, as agent.fileProbes of the chart does";
            CannotProbe::File(format!("--file-probes={root}: {}; {what}", error.desc()))
        })?;
        let path = format!("{pod_uid}/{EMPTY_DIRS}/{volume}");
        let opened = match open_within(&folders, &path, OFlag::O_DIRECTORY) {
            Err(Errno::EXDEV) => return open_mount(&folders, &path, volume).map(Ok),
            opened => opened,
        };
        match opened {
            Ok(opened) => Ok(Ok(opened)),
            Err(Errno::ENOENT) if open_within(&folders, pod_uid, OFlag::O_DIRECTORY).is_ok() => {
                let message = format!("the pod has no emptyDir volume named {volume:?}");
                Ok(Err(Outcome::Failed(message)))
            }
            Err(Errno::ENOENT) => {
                let what = "it has to be the kubelet's --root-dir and \"pods\" (agent.kubeletDir of the chart)";
                let message = format!("{root} has no folder of the pod ({pod_uid}); {what}");
                Err(CannotProbe::File(message))
            }
            Err(Errno::ENOSYS | Errno::EPERM) => {
                let message = "file probes need the system call openat2, of Linux 5.6 and allowed by the agent's seccomp profile";
                Err(CannotProbe::File(message.to_owned()))
            }
            Err(error) => Err(unopened(volume, error.desc())),
        }
    }

    /// The failure of a file that is too old.
    fn judge_age(&self, file: &VolumeFile, metadata: &Metadata) -> Option<Outcome> {
        let most = file.not_older_than_seconds?;
        // Beyond what a timestamp holds: whoever may write to the file chooses its time. One in the future is new.
        let seconds = metadata.mtime();
        let written = i128::from(seconds) * 1_000_000_000 + i128::from(metadata.mtime_nsec());
        let age = self.now.as_nanosecond() - written;
        if age <= i128::from(most.get()) * 1_000_000_000 {
            return None;
        }
        // The message has its time and not its age, by which it would be another one each second.
        let time = Timestamp::from_second(seconds);
        let at = time.map_or_else(|_| format!("second {seconds}"), |at| at.to_string());
        let what = format!("was last written at {at}, more than {most} s ago");
        Some(failed(file, what))
    }
}

/// Opens the folder of a volume that is a mount, as those in memory are. A container can have made it by mount propagation; if a
/// program answered for it, that would be asked, and could hang.
fn open_mount(folders: &OwnedFd, path: &str, volume: &str) -> Result<OwnedFd, CannotProbe> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_DIRECTORY | OFlag::O_CLOEXEC)
        .resolve(ResolveFlag::RESOLVE_BENEATH | ResolveFlag::RESOLVE_NO_SYMLINKS);
    let opened = openat2(folders, path, how).map_err(|error| unopened(volume, error.desc()))?;
    match mount::foreign_type(&opened) {
        Ok(None) => Ok(opened),
        Ok(Some(kind)) => {
            let what = "only those on the node's disk and in memory (tmpfs) are read";
            let message =
                format!("volume {volume:?} of the pod is a mount of type {kind:?}: {what}");
            Err(CannotProbe::File(message))
        }
        Err(error) => Err(unopened(volume, &error.to_string())),
    }
}

fn unopened(volume: &str, why: &str) -> CannotProbe {
    CannotProbe::File(format!(
        "volume {volume:?} of the pod cannot be opened: {why}"
    ))
}

/// Opens what a path leads to within a folder, to look at it: nothing is read or written by that.
fn open_within(folder: &OwnedFd, path: &str, flags: OFlag) -> Result<OwnedFd, Errno> {
    let how = OpenHow::new()
        .flags(OFlag::O_PATH | OFlag::O_CLOEXEC | flags)
        .resolve(
            ResolveFlag::RESOLVE_BENEATH
                | ResolveFlag::RESOLVE_NO_SYMLINKS
                | ResolveFlag::RESOLVE_NO_MAGICLINKS
                | ResolveFlag::RESOLVE_NO_XDEV,
        );
    openat2(folder, path, how)
}

/// The first bytes of a regular file.
fn read_opened(found: &File) -> io::Result<Vec<u8>> {
    // The descriptor names it: a path could lead to something else by now. `O_NONBLOCK`, since a file may have a lease, whose
    // holder has 45 seconds to give it up (`F_SETLEASE`, fcntl(2)).
    let opened = File::options()
        .read(true)
        .custom_flags((OFlag::O_NONBLOCK | OFlag::O_NOCTTY).bits())
        .open(format!("/proc/self/fd/{}", found.as_raw_fd()))?;
    let mut content = Vec::new();
    // Four bytes more show whether a character that crosses the limit is whole.
    opened
        .take(MAX_OUTPUT as u64 + 4)
        .read_to_end(&mut content)?;
    Ok(content)
}

/// Judges why a file of the volume cannot be opened: whatever the container can bring about is its failure.
fn explain_error(file: &VolumeFile, error: &io::Error) -> Result<Outcome, CannotProbe> {
    let what = match error.raw_os_error().map_or(Errno::EIO, Errno::from_raw) {
        Errno::ENOENT => "is not there".to_owned(),
        Errno::ELOOP => "leads through a symbolic link, which is not followed".to_owned(),
        Errno::EXDEV => "leads to another file system, where nothing is read".to_owned(),
        Errno::ENOTDIR => "leads through something that is no folder".to_owned(),
        Errno::EAGAIN => {
            "is leased by a process (F_SETLEASE), or its folder was being renamed".to_owned()
        }
        Errno::EACCES | Errno::EPERM => {
            return Err(CannotProbe::File(format!(
                "the agent, root without capabilities, may not read the file: give it mode o+r, and its folders o+x: {:?} in volume {:?}",
                file.path, file.volume
            )));
        }
        Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM => {
            return Err(CannotProbe::Local(error.to_string()));
        }
        error => format!("cannot be read: {}", error.desc()),
    };
    Ok(failed(file, what))
}

fn failed(file: &VolumeFile, what: impl std::fmt::Display) -> Outcome {
    Outcome::Failed(format!(
        "file {:?} of volume {:?} {what}",
        file.path, file.volume
    ))
}

fn kind_name(kind: FileType) -> &'static str {
    match () {
        () if kind.is_dir() => "a folder",
        () if kind.is_symlink() => "a symbolic link",
        () if kind.is_fifo() => "a FIFO",
        () if kind.is_socket() => "a socket",
        () => "a device",
    }
}

#[cfg(test)]
mod tests;
