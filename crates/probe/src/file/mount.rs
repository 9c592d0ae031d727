//! The type of a mount, as the kernel itself knows it: `fstatfs` would ask the file system, which may be a program.

use std::fs::File;
use std::io::{self, BufRead, BufReader};
use std::os::fd::{AsRawFd, OwnedFd};

/// Mounts of the kubelet on the folder of an `emptyDir`: `medium: Memory` and `HugePages`. No program answers for them.
const OF_KUBELET: [&str; 2] = ["tmpfs", "hugetlbfs"];

/// The type of the mount that a descriptor is within, if it is none that the kubelet makes for an `emptyDir`.
pub(super) fn foreign_type(opened: &OwnedFd) -> io::Result<Option<String>> {
    // The thread has mounts of its own in tests.
    let path = format!("/proc/thread-self/fdinfo/{}", opened.as_raw_fd());
    let info = std::fs::read_to_string(path)?;
    let mounts = BufReader::new(File::open("/proc/thread-self/mountinfo")?);
    let listed = match mount_id(&info) {
        Some(id) => find_type(mounts, id)?,
        None => None,
    };
    // One that has been unmounted meanwhile is not listed.
    let kind = listed.unwrap_or_else(|| "unknown".to_owned());
    Ok((!OF_KUBELET.contains(&kind.as_str())).then_some(kind))
}

/// `mnt_id` of `/proc/PID/fdinfo/FD` (`proc_pid_fdinfo(5)`).
fn mount_id(info: &str) -> Option<&str> {
    let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
    Some(id.trim())
}

/// The type of a mount in `/proc/PID/mountinfo` (`proc_pid_mountinfo(5)`).
fn find_type(mounts: impl BufRead, id: &str) -> io::Result<Option<String>> {
    for line in mounts.split(b'\n') {
        let bytes = line?;
        // A path of it may be no UTF-8. Spaces in it are escaped.
        let line = String::from_utf8_lossy(&bytes);
        let mut fields = line.split(' ');
        if fields.next() == Some(id) {
            // Six fields and any number of tags, a dash, and the type.
            let mut rest = fields.skip(5).skip_while(|field| *field != "-");
            return Ok(rest.nth(1).map(str::to_owned));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use super::*;

    // PRB-31
    #[test]
    fn the_type_of_a_mount_is_that_of_its_line_whatever_its_paths_and_tags_say() {
        let mounts: &[u8] = b"\
21 1 0:20 / / rw,relatime shared:1 master:2 - overlay overlay rw,lowerdir=/a
211 21 0:45 / /pods/u/work rw,relatime - tmpfs tmpfs rw,size=1024k
212 21 0:46 / /pods/u/-\\040tmpfs\\040x rw,nosuid - fuse.s3fs tmpfs rw,user_id=0
213 21 0:47 / /pods/u/caf\xe9 rw shared:7 - fuse.tmpfs - rw
214 21 0:48 / /pods/u/huge rw - hugetlbfs nodev rw,pagesize=2M
215 21 8:1 /- /pods/u/tmpfs rw master:1 - ext4 /dev/sda1 rw
216 21 8:1 / /pods/u/cut rw
";
        for (id, kind) in [
            ("21", Some("overlay")),
            ("211", Some("tmpfs")),
            ("212", Some("fuse.s3fs")),
            ("213", Some("fuse.tmpfs")),
            ("214", Some("hugetlbfs")),
            ("215", Some("ext4")),
            ("216", None),
            ("2", None),
            ("", None),
        ] {
            let found = find_type(mounts, id).unwrap();
            assert_eq!(found.as_deref(), kind, "{id}");
        }
        let info = "pos:\t0\nflags:\t012200000\nmnt_id:\t211\nino:\t7\n";
        assert_eq!(mount_id(info), Some("211"));
        assert_eq!(mount_id("pos:\t0\n"), None);
    }
}
