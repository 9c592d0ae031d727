use std::fs::{self, File};
use std::slice::from_ref;
use std::time::Duration;

use leadsman_core::podprobe::ProbeId;
use leadsman_core::podprobe::node::PodIdentity;
use tempfile::TempDir;

use super::*;

pub(super) fn probe(namespace: &str, number: usize) -> Arc<ProbeKey> {
    Arc::new(ProbeKey {
        pod: PodIdentity {
            namespace: namespace.into(),
            name: "pod".into(),
            uid: "u".into(),
        },
        container: "main".into(),
        id: ProbeId {
            marker: "m".into(),
            probe: number.to_string().into(),
        },
    })
}

fn watch(watches: &FolderWatches, probe: &Arc<ProbeKey>, folder: &TempDir) {
    let folder = File::open(folder.path()).unwrap();
    watches.watch_folder(probe, folder.as_fd());
}

/// The probes that have changed, none if nothing changes for a while.
async fn changed(watches: &FolderWatches) -> Vec<Arc<ProbeKey>> {
    let patience = Duration::from_millis(200);
    let changed = tokio::time::timeout(patience, watches.next_changed()).await;
    changed.unwrap_or_default()
}

// PRB-32
#[tokio::test]
async fn each_change_of_a_file_is_noticed_once_it_is_whole() {
    let watches = FolderWatches::new();
    let (folder, one) = (TempDir::new().unwrap(), probe("a", 1));
    let path = folder.path().join("beat");
    let other = folder.path().join("new");
    fs::write(&other, "new").unwrap();
    let write = || fs::write(&path, "beat").unwrap();
    let rename = || fs::rename(&other, &path).unwrap();
    let touch = || {
        let file = File::options().append(true).open(&path).unwrap();
        file.set_modified(std::time::SystemTime::UNIX_EPOCH)
            .unwrap();
    };
    let remove = || fs::remove_file(&path).unwrap();
    for change in [&write as &dyn Fn(), &rename, &touch, &remove, &write] {
        watch(&watches, &one, &folder);
        change();
        assert_eq!(changed(&watches).await, from_ref(&one));
        assert_eq!(changed(&watches).await, [], "until it is watched again");
    }
    // What is read, or is written and not closed, changes nothing.
    watch(&watches, &one, &folder);
    fs::read(&path).unwrap();
    let open = File::options().append(true).open(&path).unwrap();
    std::io::Write::write_all(&mut &open, b"half").unwrap();
    assert_eq!(changed(&watches).await, []);
    drop(open);
    assert_eq!(changed(&watches).await, from_ref(&one));
    // With its folder.
    watch(&watches, &one, &folder);
    drop(folder);
    assert_eq!(changed(&watches).await, [one]);
}

// PRB-32
#[tokio::test]
async fn probes_of_one_folder_share_a_watch_that_goes_with_the_last() {
    let watches = FolderWatches::new();
    let (folder, one, two) = (TempDir::new().unwrap(), probe("a", 1), probe("a", 2));
    let write = || fs::write(folder.path().join("beat"), "x").unwrap();
    watch(&watches, &one, &folder);
    watch(&watches, &two, &folder);
    watch(&watches, &two, &folder);
    assert_eq!(watches.lock_watched().folders.len(), 1);
    write();
    assert_eq!(changed(&watches).await, [one.clone(), two.clone()]);
    watch(&watches, &one, &folder);
    watch(&watches, &two, &folder);
    watches.keep_only(|probe| *probe == *two);
    write();
    assert_eq!(changed(&watches).await, from_ref(&two));
    watch(&watches, &two, &folder);
    watches.keep_only(|_| false);
    write();
    assert_eq!(changed(&watches).await, []);
    // Its folder is another one now.
    let second = TempDir::new().unwrap();
    watch(&watches, &one, &folder);
    watch(&watches, &one, &second);
    write();
    assert_eq!(changed(&watches).await, []);
    fs::write(second.path().join("beat"), "x").unwrap();
    assert_eq!(changed(&watches).await, [one]);
    let left = watches.lock_watched();
    assert!(left.folders.is_empty() && left.probes.len() == 1);
}

// PRB-32
#[tokio::test]
async fn a_namespace_has_its_share_of_the_watches_and_writing_without_end_fires_once() {
    let watches = FolderWatches::new();
    let folder = TempDir::new().unwrap();
    for number in 0..2 * WATCHES_PER_NAMESPACE {
        watch(&watches, &probe("greedy", number), &folder);
    }
    assert_eq!(watches.lock_watched().probes.len(), WATCHES_PER_NAMESPACE);
    let other = TempDir::new().unwrap();
    let modest = probe("modest", 1);
    watch(&watches, &modest, &other);
    for round in 0..2_000 {
        fs::write(folder.path().join((round % 2).to_string()), "x").unwrap();
    }
    fs::write(other.path().join("beat"), "x").unwrap();
    // One event each, and that the watch is gone.
    let events = watches.queue.as_ref().unwrap().get_ref().0.read_events();
    let events = events.unwrap();
    assert_eq!(events.len(), 4);
    let changed = watches.lock_watched().take_fired(&events);
    assert_eq!(changed.len(), WATCHES_PER_NAMESPACE + 1);
    assert!(changed.contains(&modest));
    for namespace in 0..WATCHES {
        watch(&watches, &probe(&namespace.to_string(), 1), &folder);
    }
    assert_eq!(watches.lock_watched().probes.len(), WATCHES);
}

// PRB-32
#[tokio::test]
async fn a_watch_that_fires_while_it_is_set_is_set_again_and_nobody_waits_for_it() {
    let watches = FolderWatches::new();
    let (folder, one, two) = (TempDir::new().unwrap(), probe("a", 1), probe("a", 2));
    let write = || fs::write(folder.path().join("beat"), "x").unwrap();
    watch(&watches, &one, &folder);
    let attempts = std::cell::Cell::new(0);
    watches.add_watch(&two, |queue| {
        let added = queue.add_watch(folder.path(), CHANGES);
        attempts.update(|attempts| attempts + 1);
        if attempts.get() == 1 {
            // The main loop, which sees a change before this thread goes on, and does not wait for it.
            write();
            let events = queue.read_events().unwrap();
            let mut state = watches.watched.try_lock().unwrap();
            assert_eq!(state.take_fired(&events), from_ref(&one));
        }
        added
    });
    assert_eq!(attempts.get(), 2);
    write();
    assert_eq!(changed(&watches).await, [two]);
}
