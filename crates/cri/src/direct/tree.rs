//! The end of a command with all of its processes.
//!
//! A command begins a session. Its processes are those of the session, and those below one of them that have begun a session
//! of their own. They are stopped until no further one is found, so that none can start another meanwhile, and then killed.
//! What has left both session and parents is a process of the container like any other.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;

use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};

use super::container::process_namespace;

/// The number of generations that one that forks without end can be ahead of us, and more.
const MAX_ROUNDS: usize = 64;

/// A process, by `/proc/PID/stat`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Process {
    id: u32,
    parent: u32,
    session: u32,
}

/// Kills the processes of this session, and those below them. Only processes of this namespace are: the session's number may
/// be another one's by now.
pub(super) fn kill_session(session: u32, namespace: &str) {
    let mut tree: BTreeMap<u32, OwnedFd> = BTreeMap::new();
    for _ in 0..MAX_ROUNDS {
        let before = tree.len();
        for process in read_processes() {
            if !belongs(process, session, |id| tree.contains_key(&id)) {
                continue;
            }
            if let Some(found) = stop(process, namespace) {
                tree.insert(process.id, found);
            }
        }
        if tree.len() == before {
            break;
        }
    }
    for process in tree.values() {
        // One that has ended is what was wanted.
        let _ended = pidfd_send_signal(process, Signal::KILL);
    }
}

fn belongs(process: Process, session: u32, is_known: impl Fn(u32) -> bool) -> bool {
    !is_known(process.id) && (process.session == session || is_known(process.parent))
}

/// Stops a process, if it is still the one that was read.
fn stop(process: Process, namespace: &str) -> Option<OwnedFd> {
    let id = Pid::from_raw(i32::try_from(process.id).ok()?)?;
    let descriptor = pidfd_open(id, PidfdFlags::empty()).ok()?;
    let is_same = read_process(process.id) == Some(process)
        && process_namespace(process.id).is_ok_and(|it| it == namespace);
    (is_same && pidfd_send_signal(&descriptor, Signal::STOP).is_ok()).then_some(descriptor)
}

fn read_processes() -> impl Iterator<Item = Process> {
    let folders = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    folders.filter_map(|folder| read_process(folder.file_name().to_str()?.parse().ok()?))
}

fn read_process(id: u32) -> Option<Process> {
    parse_stat(&std::fs::read_to_string(format!("/proc/{id}/stat")).ok()?)
}

/// `ID (NAME) STATE PARENT GROUP SESSION …`; a name may hold anything.
fn parse_stat(stat: &str) -> Option<Process> {
    let (id, _) = stat.split_once(' ')?;
    let (_, rest) = stat.rsplit_once(") ")?;
    let mut fields = rest.split(' ').skip(1);
    Some(Process {
        id: id.parse().ok()?,
        parent: fields.next()?.parse().ok()?,
        session: fields.nth(1)?.parse().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead as _, BufReader};
    use std::process::{Command, Stdio};

    use super::*;

    #[test]
    fn a_process_is_read_whatever_its_name() {
        let of = |id, parent, session| {
            Some(Process {
                id,
                parent,
                session,
            })
        };
        for (stat, process) in [
            ("7 (sleep) S 3 5 4 0 -1 1", of(7, 3, 4)),
            ("7 (a) R 1 (b) S 3 5 4 0", of(7, 3, 4)),
            ("7 (sleep) S 3", None),
            ("", None),
        ] {
            assert_eq!(parse_stat(stat), process, "{stat}");
        }
    }

    #[test]
    fn all_of_a_session_and_what_is_below_it_ends_and_nothing_else() {
        // A child, one in a session of its own, and one of the session whose parent has ended.
        let script = "sleep 60 & setsid sh -c 'sleep 60 & echo $!; wait' & (sleep 60 & echo $!); echo $!; wait";
        let mut shell = Command::new("setsid");
        let mut shell = shell
            .args(["sh", "-c", script])
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut other = Command::new("sleep").arg("60").spawn().unwrap();
        let lines = BufReader::new(shell.stdout.take().unwrap()).lines();
        let ids: Vec<u32> = lines
            .take(3)
            .map(|line| line.unwrap().parse().unwrap())
            .collect();
        let namespace = process_namespace(std::process::id()).unwrap();
        kill_session(shell.id(), "pid:[1]");
        assert!(ids.iter().all(|id| read_process(*id).is_some()), "{ids:?}");
        kill_session(shell.id(), &namespace);
        assert!(!shell.wait().unwrap().success());
        // Whose parent has ended, somebody else reaps.
        let is_gone = |id: &u32| {
            let stat = std::fs::read_to_string(format!("/proc/{id}/stat"));
            stat.is_err() || stat.is_ok_and(|stat| stat.contains(") Z "))
        };
        let pause = std::time::Duration::from_millis(10);
        let mut pauses = (0..2_000).take_while(|_| !ids.iter().all(is_gone));
        pauses.by_ref().for_each(|_| std::thread::sleep(pause));
        assert!(ids.iter().all(is_gone), "{ids:?}");
        assert!(other.try_wait().unwrap().is_none());
        other.kill().unwrap();
        other.wait().unwrap();
    }
}
