//! File probes: each reading on a thread that may block, and the watches by which a change is noticed at once.
//!
//! A watch is of the folder of a file, since files are replaced by renaming. It fires once (`IN_ONESHOT`, inotify(7)), and the run
//! that follows sets it again before it reads. So no change between two runs is lost, and a container that writes without end
//! costs the agent no more than the runs, which the machine limits. Watches belong to root on the whole node, so they are few;
//! the other files are looked at each period.

mod readings;

use std::collections::HashMap;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use leadsman_core::podprobe::node::{ProbeKey, ProbeRun};
use leadsman_core::podprobe::{CannotProbe, Outcome, VolumeFile};
use leadsman_probe::{PodFolders, TimeLimit};
use leadsman_process::clock;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent, WatchDescriptor};
use tokio::io::unix::AsyncFd;

use self::readings::Readings;

/// Probes whose files are watched.
const WATCHES: usize = 256;
/// Watched probes of one namespace: at ten changes a second of each file, 320 runs a second.
const WATCHES_PER_NAMESPACE: usize = 32;

/// How often the watch of a folder is set again if others have fired meanwhile.
const WATCH_ATTEMPTS: usize = 3;

/// Events after which a file may be another one. It is closed or replaced whole, and not read while it is being written.
const CHANGES: AddWatchFlags = AddWatchFlags::IN_CLOSE_WRITE
    .union(AddWatchFlags::IN_MOVED_FROM)
    .union(AddWatchFlags::IN_MOVED_TO)
    .union(AddWatchFlags::IN_DELETE)
    .union(AddWatchFlags::IN_ATTRIB)
    .union(AddWatchFlags::IN_DELETE_SELF)
    .union(AddWatchFlags::IN_MOVE_SELF)
    .union(AddWatchFlags::IN_ONLYDIR)
    .union(AddWatchFlags::IN_ONESHOT);

/// Reads the files of probes.
pub(crate) struct FileReader {
    /// `--file-probes`.
    root: PathBuf,
    readings: Arc<Readings>,
    watches: FolderWatches,
}

impl FileReader {
    pub(crate) fn new(root: PathBuf) -> Self {
        Self {
            root,
            readings: Arc::new(Readings::new()),
            watches: FolderWatches::new(),
        }
    }

    pub(crate) fn watches(&self) -> &FolderWatches {
        &self.watches
    }

    /// Reads the file of a run, whose pod and container the runtime has reported, and watches it from then on.
    pub(crate) async fn read_file(
        self: &Arc<Self>,
        run: &ProbeRun,
        file: &VolumeFile,
        limit: TimeLimit<'_>,
    ) -> Result<Outcome, CannotProbe> {
        let (reader, key, read) = (self.clone(), run.key.clone(), file.clone());
        let reading = move || {
            let folders = PodFolders {
                root: &reader.root,
                now: clock::now(),
            };
            let watch = |folder: BorrowedFd<'_>| reader.watches.watch_folder(&key, folder);
            folders.read_file(&key.pod.uid, &read, watch)
        };
        let outcome = self.readings.run_reading(&run.key, limit, reading).await?;
        Ok(outcome.unwrap_or_else(|| {
            Outcome::Failed(format!(
                "reading file {:?} of volume {:?} did not end within {:?}",
                file.path,
                file.volume,
                run.probe.timeout()
            ))
        }))
    }
}

/// The watches of the folders of files.
pub(crate) struct FolderWatches {
    /// Delivers the events; None if the kernel has no room for it.
    queue: Option<AsyncFd<WatchQueue>>,
    watched: Mutex<WatchedFolders>,
}

struct WatchQueue(Inotify);

impl AsRawFd for WatchQueue {
    fn as_raw_fd(&self) -> RawFd {
        self.0.as_fd().as_raw_fd()
    }
}

#[derive(Debug, Default)]
struct WatchedFolders {
    /// The probes with a file in each folder that is watched.
    folders: HashMap<WatchDescriptor, Vec<Arc<ProbeKey>>>,
    /// Probes that have a place, each with the watch of its folder; None once that has fired.
    probes: HashMap<Arc<ProbeKey>, Option<WatchDescriptor>>,
    /// How often watches have fired, by which one that fires before it is noted here is told.
    fired: u64,
}

impl FolderWatches {
    fn new() -> Self {
        let flags = InitFlags::IN_CLOEXEC | InitFlags::IN_NONBLOCK;
        let queue = Inotify::init(flags).map_err(std::io::Error::from);
        #[expect(
            deprecated,
            reason = "what replaces it is unsafe, since not every type answers with one descriptor that is its own; this does"
        )]
        let queue = queue.and_then(|queue| AsyncFd::new(WatchQueue(queue))).inspect_err(|error| {
            tracing::warn!(
                %error,
                "inotify cannot be used, files are looked at each period; raise fs.inotify.max_user_instances"
            );
        });
        Self {
            queue: queue.ok(),
            watched: Mutex::default(),
        }
    }

    /// Watches the folder of a probe's file, if there is a place for it, until something changes in it.
    fn watch_folder(&self, probe: &Arc<ProbeKey>, folder: BorrowedFd<'_>) {
        // The descriptor names it: the path may lead elsewhere by now.
        let path = format!("/proc/self/fd/{}", folder.as_raw_fd());
        self.add_watch(probe, |queue| queue.add_watch(path.as_str(), CHANGES));
    }

    fn add_watch(
        &self,
        probe: &Arc<ProbeKey>,
        add: impl Fn(&Inotify) -> nix::Result<WatchDescriptor>,
    ) {
        let Some(queue) = &self.queue else {
            return;
        };
        let queue = &queue.get_ref().0;
        for attempt in 1..=WATCH_ATTEMPTS {
            let Some(fired) = self.lock_watched().take_place(probe) else {
                return;
            };
            // The file system is asked here, and may hang: without the lock, for which the main loop waits.
            let added = add(queue).inspect_err(|error| {
                tracing::debug!(%probe, %error, "a file is not watched, but looked at each period");
            });
            let mut watched = self.lock_watched();
            // Perhaps by this watch, which is gone then. What has changed is seen, since the file is looked for afterwards.
            if watched.fired != fired && attempt < WATCH_ATTEMPTS {
                continue;
            }
            if let Some(unused) = watched.set_watch(probe, added.ok()) {
                // A watch that has fired is gone.
                let _gone = queue.rm_watch(unused);
            }
            return;
        }
    }

    /// Waits for changes, for ever if nothing is watched. Returns the probes whose files may have changed.
    pub(crate) async fn next_changed(&self) -> Vec<Arc<ProbeKey>> {
        let Some(queue) = &self.queue else {
            return std::future::pending().await;
        };
        loop {
            let Ok(mut ready) = queue.readable().await else {
                return std::future::pending().await;
            };
            match queue.get_ref().0.read_events() {
                Ok(events) => {
                    let changed = self.lock_watched().take_fired(&events);
                    if !changed.is_empty() {
                        return changed;
                    }
                }
                Err(_) => ready.clear_ready(),
            }
        }
    }

    /// Gives up the places of the other probes.
    pub(crate) fn keep_only(&self, is_kept: impl Fn(&ProbeKey) -> bool) {
        let mut watched = self.lock_watched();
        let probes = watched.probes.keys().filter(|probe| !is_kept(probe));
        for probe in probes.cloned().collect::<Vec<_>>() {
            let unused = watched.set_watch(&probe, None);
            watched.probes.remove(&probe);
            if let (Some(unused), Some(queue)) = (unused, &self.queue) {
                let _gone = queue.get_ref().0.rm_watch(unused);
            }
        }
    }

    fn lock_watched(&self) -> MutexGuard<'_, WatchedFolders> {
        self.watched.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl WatchedFolders {
    /// Gives a probe a place, unless there is none. Returns how often watches have fired by now.
    fn take_place(&mut self, probe: &Arc<ProbeKey>) -> Option<u64> {
        if !self.probes.contains_key(probe) {
            let namespace = &probe.pod.namespace;
            let same = self
                .probes
                .keys()
                .filter(|known| known.pod.namespace == *namespace);
            if self.probes.len() >= WATCHES || same.count() >= WATCHES_PER_NAMESPACE {
                return None;
            }
            self.probes.insert(probe.clone(), None);
        }
        Some(self.fired)
    }

    /// Notes the watch of a probe's folder. Returns one that no probe needs any more.
    fn set_watch(
        &mut self,
        probe: &Arc<ProbeKey>,
        watch: Option<WatchDescriptor>,
    ) -> Option<WatchDescriptor> {
        let before = self.probes.insert(probe.clone(), watch).flatten();
        if before == watch {
            return None;
        }
        if let Some(watch) = watch {
            self.folders.entry(watch).or_default().push(probe.clone());
        }
        let before = before?;
        let sharing = self.folders.get_mut(&before)?;
        sharing.retain(|one| one != probe);
        if !sharing.is_empty() {
            return None;
        }
        self.folders.remove(&before);
        Some(before)
    }

    /// The probes of the folders whose watches have fired.
    fn take_fired(&mut self, events: &[InotifyEvent]) -> Vec<Arc<ProbeKey>> {
        let mut changed = Vec::new();
        for event in events {
            self.fired += 1;
            // Each is followed by `IN_IGNORED`: the watch is gone.
            let probes = self.folders.remove(&event.wd).unwrap_or_default();
            for probe in probes {
                self.probes.insert(probe.clone(), None);
                changed.push(probe);
            }
        }
        changed
    }
}

#[cfg(test)]
mod tests;
