use std::ffi::CString;
use std::fs;
use std::num::NonZeroU32;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::path::PathBuf;
use std::time::{Duration, SystemTime};

use nix::mount::{MsFlags, mount};
use nix::sched::{CloneFlags, unshare};
use nix::sys::stat::Mode;
use nix::unistd::{Uid, mkfifo, setfsuid};
use rstest::rstest;
use tempfile::TempDir;

use super::*;

const UID: &str = "0f2f9c1e-0000-4000-8000-000000000001";
/// Before any file was made here.
const NOW: i64 = 1_700_000_000;
const SECRET: &str = "not of this volume";

/// The kubelet's folder of pods, with a pod that has one volume, `work`, and a secret beside it.
struct Node {
    pods: TempDir,
}

impl Node {
    fn new() -> Self {
        let pods = TempDir::new().unwrap();
        let node = Self { pods };
        fs::create_dir_all(node.volume()).unwrap();
        fs::write(node.pod().join("volumes/secret"), SECRET).unwrap();
        node
    }

    fn pod(&self) -> PathBuf {
        self.pods.path().join(UID)
    }

    fn volume(&self) -> PathBuf {
        self.pod().join(EMPTY_DIRS).join("work")
    }

    fn read(&self, path: &str, age: Option<u32>) -> Result<Outcome, CannotProbe> {
        self.read_of(UID, "work", path, age)
    }

    fn read_of(
        &self,
        uid: &str,
        volume: &str,
        path: &str,
        age: Option<u32>,
    ) -> Result<Outcome, CannotProbe> {
        let file = VolumeFile {
            volume: volume.to_owned(),
            path: path.to_owned(),
            not_older_than_seconds: age.and_then(NonZeroU32::new),
        };
        let folders = PodFolders {
            root: self.pods.path(),
            now: Timestamp::from_second(NOW).unwrap(),
        };
        folders.read_file(uid, &file, |_| ())
    }

    /// The message of a failure.
    fn failure(&self, path: &str) -> String {
        match self.read(path, None) {
            Ok(Outcome::Failed(message)) => message,
            other => panic!("{other:?}"),
        }
    }
}

#[expect(clippy::unnecessary_wraps, reason = "it is compared with what is")]
fn succeeded(content: &str) -> Result<Outcome, CannotProbe> {
    Ok(Outcome::Succeeded(content.to_owned()))
}

// PRB-30
#[test]
fn a_file_that_is_there_succeeds_with_its_content() {
    let node = Node::new();
    assert!(node.failure("beat").contains("is not there"));
    fs::write(node.volume().join("beat"), "primary 7\n").unwrap();
    assert_eq!(node.read("beat", None), succeeded("primary 7\n"));
    fs::create_dir_all(node.volume().join("a/b")).unwrap();
    assert!(node.failure("a/b/c").contains("is not there"));
    assert!(node.failure("a/x/c").contains("is not there"));
    fs::write(node.volume().join("a/b/c"), b"a\xffb").unwrap();
    assert_eq!(node.read("a/b/c", None), succeeded("a\u{fffd}b"));
    // Replaced by a rename, and gone.
    fs::write(node.volume().join("new"), "primary 8").unwrap();
    fs::rename(node.volume().join("new"), node.volume().join("beat")).unwrap();
    assert_eq!(node.read("beat", None), succeeded("primary 8"));
    fs::remove_file(node.volume().join("beat")).unwrap();
    assert!(node.failure("beat").contains("is not there"));
}

// PRB-30
#[test]
fn of_a_huge_file_only_the_beginning_is_read() {
    let node = Node::new();
    let huge = File::create(node.volume().join("huge")).unwrap();
    huge.set_len(1 << 40).unwrap();
    assert_eq!(node.read("huge", None), succeeded(&"\0".repeat(MAX_OUTPUT)));
}

// PRB-31
#[test]
fn nothing_outside_of_the_volume_is_read() {
    let node = Node::new();
    let volume = node.volume();
    fs::create_dir(volume.join("folder")).unwrap();
    fs::write(volume.join("inside"), "inside").unwrap();
    let secret = node.pod().join("volumes/secret");
    symlink(&secret, volume.join("absolute")).unwrap();
    symlink("../../secret", volume.join("relative")).unwrap();
    symlink("../..", volume.join("up")).unwrap();
    symlink("/proc/self/root", volume.join("magic")).unwrap();
    symlink("inside", volume.join("within")).unwrap();
    symlink(".", volume.join("dot")).unwrap();
    symlink("nowhere", volume.join("dangling")).unwrap();
    let absolute = secret.display().to_string();
    for (path, what) in [
        ("absolute", "symbolic link"),
        ("relative", "symbolic link"),
        ("dangling", "symbolic link"),
        ("within", "symbolic link"),
        ("up/secret", "symbolic link"),
        ("dot/inside", "symbolic link"),
        ("magic/etc/passwd", "symbolic link"),
        ("inside/x", "through something that is no folder"),
        ("folder", "is a folder, not a file"),
        // As no parser lets them through.
        ("../../secret", "leads to another file system"),
        ("folder/../../../secret", "leads to another file system"),
        (absolute.as_str(), "leads to another file system"),
    ] {
        let message = node.failure(path);
        assert!(message.contains(what), "{path}: {message}");
        assert!(!message.contains(SECRET), "{path}: {message}");
    }
    assert_eq!(node.read("inside", None), succeeded("inside"));
}

// PRB-31
#[test]
fn of_mounts_on_the_volume_only_memory_is_read() {
    // Nothing can be mounted otherwise.
    if !Uid::effective().is_root() || unshare(CloneFlags::CLONE_NEWNS).is_err() {
        return;
    }
    let unset = None::<&str>;
    mount(
        unset,
        "/",
        unset,
        MsFlags::MS_REC | MsFlags::MS_PRIVATE,
        unset,
    )
    .unwrap();
    let node = Node::new();
    let mount_on = |path: &Path, kind| {
        fs::create_dir_all(path).unwrap();
        mount(Some(kind), path, Some(kind), MsFlags::empty(), unset).unwrap();
        fs::write(path.join("beat"), kind).unwrap();
    };
    mount_on(&node.volume(), "tmpfs");
    assert_eq!(node.read("beat", None), succeeded("tmpfs"));
    mount_on(&node.volume().join("a"), "tmpfs");
    assert!(node.failure("a/beat").contains("another file system"));
    // In place of one that a program answers for.
    mount_on(&node.volume(), "ramfs");
    let cannot = node.read("beat", None).unwrap_err().to_string();
    assert!(cannot.contains("is a mount of type \"ramfs\""), "{cannot}");
}

// PRB-31
#[test]
fn what_is_no_file_is_never_opened() {
    let node = Node::new();
    let fifo = node.volume().join("fifo");
    mkfifo(&fifo, Mode::S_IRWXU).unwrap();
    let _socket = UnixListener::bind(node.volume().join("socket")).unwrap();
    assert!(node.failure("fifo").contains("is a FIFO"));
    assert!(node.failure("socket").contains("is a socket"));
    // Nobody reads it, or this would succeed.
    let path = CString::new(fifo.display().to_string()).unwrap();
    let writer = open(
        path.as_c_str(),
        OFlag::O_WRONLY | OFlag::O_NONBLOCK,
        Mode::empty(),
    );
    assert_eq!(writer.err(), Some(Errno::ENXIO));
}

// PRB-30
#[test]
fn a_file_that_is_too_old_fails_with_the_time_of_its_last_write() {
    let node = Node::new();
    let path = node.volume().join("beat");
    let beat = |ago: i64| {
        let file = File::create(&path).unwrap();
        let at = Duration::from_secs((NOW - ago).unsigned_abs());
        file.set_modified(SystemTime::UNIX_EPOCH + at).unwrap();
        node.read("beat", Some(30))
    };
    assert_eq!(beat(0), succeeded(""));
    assert_eq!(beat(29), succeeded(""));
    assert_eq!(beat(-1_000), succeeded(""));
    // A second each: no new message.
    let Ok(Outcome::Failed(message)) = beat(31) else {
        panic!("it is new");
    };
    assert!(message.contains("was last written at 2"), "{message}");
    assert!(message.contains("more than 30 s ago"), "{message}");
    assert_eq!(node.read("beat", None), succeeded(""));
}

// PRB-30
#[test]
fn a_file_that_may_not_be_read_is_too_old_all_the_same() {
    let node = Node::new();
    let path = node.volume().join("beat");
    let file = File::create(&path).unwrap();
    let old = SystemTime::UNIX_EPOCH + Duration::from_secs(NOW.unsigned_abs() - 31);
    file.set_modified(old).unwrap();
    file.set_permissions(fs::Permissions::from_mode(0o000))
        .unwrap();
    let read = fs::Permissions::from_mode(0o755);
    fs::set_permissions(node.pods.path(), read).unwrap();
    // Of this thread alone: root would read any file.
    let before = setfsuid(Uid::from_raw(65_534));
    let (too_old, new) = (node.read("beat", Some(30)), node.read("beat", Some(31)));
    setfsuid(before);
    let Ok(Outcome::Failed(message)) = too_old else {
        panic!("{too_old:?}");
    };
    assert!(message.contains("more than 30 s ago"), "{message}");
    let cannot = new.unwrap_err().to_string();
    assert!(cannot.contains("give it mode o+r"), "{cannot}");
}

// PRB-31
#[test]
fn what_is_not_the_files_fault_says_nothing_about_the_container() {
    let node = Node::new();
    let Ok(Outcome::Failed(message)) = node.read_of(UID, "other", "beat", None) else {
        panic!("there is no such volume");
    };
    assert_eq!(message, "the pod has no emptyDir volume named \"other\"");
    for uid in ["", ".", "..", "../x", "a/b"] {
        let cannot = node.read_of(uid, "work", "beat", None).unwrap_err();
        assert!(cannot.to_string().contains("is no uid"), "{cannot}");
    }
    let cannot = node.read_of("another", "work", "beat", None).unwrap_err();
    assert!(cannot.to_string().contains("agent.kubeletDir"), "{cannot}");
    let nowhere = PodFolders {
        root: Path::new("/nowhere"),
        now: Timestamp::UNIX_EPOCH,
    };
    let file = VolumeFile {
        volume: "work".to_owned(),
        path: "beat".to_owned(),
        not_older_than_seconds: None,
    };
    let cannot = nowhere.read_file(UID, &file, |_| ()).unwrap_err();
    assert!(cannot.to_string().contains("agent.fileProbes"), "{cannot}");
    // A volume that is a link would be the kubelet's doing, and is not followed either.
    symlink("work", node.volume().with_file_name("link")).unwrap();
    let cannot = node.read_of(UID, "link", "beat", None).unwrap_err();
    assert!(matches!(cannot, CannotProbe::File(_)), "{cannot}");
}

// PRB-30
#[rstest]
#[case::denied(Errno::EACCES, "mode o+r")]
#[case::descriptors(Errno::EMFILE, "the agent itself failed")]
fn what_the_agent_lacks_is_no_failure(#[case] error: Errno, #[case] what: &str) {
    let file = VolumeFile {
        volume: "work".to_owned(),
        path: "x".repeat(256),
        not_older_than_seconds: None,
    };
    let cannot = explain_error(&file, &error.into()).unwrap_err();
    // The node's status has 256 bytes of it.
    let cannot = cannot.to_string();
    assert!(cannot[..cannot.len().min(256)].contains(what), "{cannot}");
}

// PRB-30
#[test]
fn the_folder_is_shown_before_the_file_is_looked_for() {
    let node = Node::new();
    fs::create_dir(node.volume().join("a")).unwrap();
    fs::set_permissions(node.volume(), fs::Permissions::from_mode(0o777)).unwrap();
    let file = VolumeFile {
        volume: "work".to_owned(),
        path: "a/beat".to_owned(),
        not_older_than_seconds: None,
    };
    let folders = PodFolders {
        root: node.pods.path(),
        now: Timestamp::UNIX_EPOCH,
    };
    // What is written from then on is seen.
    let read = folders.read_file(UID, &file, |folder| {
        let path = fs::read_link(format!("/proc/self/fd/{}", folder.as_raw_fd())).unwrap();
        assert_eq!(path, node.volume().canonicalize().unwrap().join("a"));
        fs::write(path.join("beat"), "now").unwrap();
    });
    assert_eq!(read, succeeded("now"));
}
