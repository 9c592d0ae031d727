//! `leadsman-exec`: a process that enters a container, becomes whom the plan says, and then executes the command in its own
//! place.
//!
//! The agent starts it within the container's process namespace, with the agent's rights, mounts and cgroup, the output of
//! the command as its own, and a socket as its input. It reads the request from the socket to the end and answers there:
//! [`READY`] just before the command replaces it, and then nothing; or why it cannot, as a [`Detour`]'s label.
//!
//! From its first moment it can be seen by the container's processes. So it cannot be traced or read by them (it is not
//! dumpable, and has capabilities that they lack), its arguments say nothing, nothing of the container is executed or
//! trusted before it has become the container's user, and all that it opened is closed by the execution.

use std::convert::Infallible;
use std::ffi::CString;
use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd, RawFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use rustix::fs::{Gid, Mode, OFlags, Uid};
use rustix::process::{DumpableBehavior, Pid, PidfdFlags, Resource, Rlimit};
use rustix::thread::{CapabilitySet, CapabilitySets, ThreadNameSpaceType};
use serde::Deserialize;

use crate::detour::Detour;
use crate::plan::{MAX_REQUEST_BYTES, Plan};

/// The answer before the command replaces this process.
pub(crate) const READY: &[u8] = b"+";

/// The root of the node's first process. The agent shares its process namespace.
const NODE: &str = "/proc/1/root";
/// The largest list of users that is read.
const MAX_PASSWD: u64 = 1024 * 1024;

/// All that a container's first process is in, but for its process namespace, in which this one was started.
const NAMESPACES: ThreadNameSpaceType = ThreadNameSpaceType::MOUNT
    .union(ThreadNameSpaceType::NETWORK)
    .union(ThreadNameSpaceType::INTER_PROCESS_COMMUNICATION)
    .union(ThreadNameSpaceType::HOST_NAME_AND_NIS_DOMAIN_NAME)
    .union(ThreadNameSpaceType::CONTROL_GROUP);

const RESOURCES: [Resource; 16] = [
    Resource::Cpu,
    Resource::Fsize,
    Resource::Data,
    Resource::Stack,
    Resource::Core,
    Resource::Rss,
    Resource::Nproc,
    Resource::Nofile,
    Resource::Memlock,
    Resource::As,
    Resource::Locks,
    Resource::Sigpending,
    Resource::Msgqueue,
    Resource::Nice,
    Resource::Rtprio,
    Resource::Rttime,
];

#[derive(Deserialize)]
struct ReceivedRequest {
    plan: Plan,
    command: Vec<String>,
}

/// Reads what `leadsman-exec` has answered until it closed its socket.
///
/// # Errors
/// Why it did not become the command. One that ended without an answer has failed.
pub fn parse_answer(answer: &[u8]) -> Result<(), Detour> {
    if answer == READY {
        return Ok(());
    }
    let text = answer.strip_prefix(READY).unwrap_or(answer);
    let label = text.split(|byte| *byte == b' ').next().unwrap_or_default();
    let detours = Detour::ALL.into_iter();
    let named = detours
        .into_iter()
        .find(|detour| detour.label().as_bytes() == label);
    Err(named.unwrap_or(Detour::Helper))
}

/// A step that failed.
struct Failure {
    detour: Detour,
    step: &'static str,
    cause: String,
}

type Step<T> = Result<T, Failure>;

/// Makes an error one of this step.
fn failed<E: ToString>(detour: Detour, step: &'static str) -> impl Fn(E) -> Failure {
    move |error| Failure {
        detour,
        step,
        cause: error.to_string(),
    }
}

/// Reads the request, enters the container and becomes the command. Returns only if that failed.
pub fn enter_and_execute() -> ExitCode {
    // The agent, like every Rust program, ignores the signal, and a command would inherit that.
    sigpipe::reset();
    let Ok(mut channel) = take_channel() else {
        return ExitCode::FAILURE;
    };
    let Err(Failure {
        detour,
        step,
        cause,
    }) = become_command(&mut channel);
    let answer = format!("{} {step}: {cause}", detour.label());
    // If nobody reads it, there is nobody to tell.
    let _ = channel.write_all(answer.as_bytes());
    ExitCode::FAILURE
}

/// Takes the socket from where the command's input will be.
fn take_channel() -> std::io::Result<UnixStream> {
    rustix::process::set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    let channel: OwnedFd = std::io::stdin().as_fd().try_clone_to_owned()?;
    rustix::stdio::dup2_stdin(File::open("/dev/null")?)?;
    Ok(channel.into())
}

fn become_command(channel: &mut UnixStream) -> Step<Infallible> {
    let request = read_request(channel)?;
    let plan = &request.plan;
    close_inherited(channel)?;
    let kernel = |step| failed(Detour::Kernel, step);
    std::fs::write("/proc/self/oom_score_adj", plan.oom_score_adj.to_string())
        .map_err(failed(Detour::Kernel, "oom_score_adj"))?;
    for file in &plan.cgroups {
        std::fs::write(format!("{NODE}{file}"), "0").map_err(failed(Detour::Kernel, "cgroup"))?;
    }
    rustix::process::setsid().map_err(kernel("setsid"))?;
    keyutils::Keyring::join_session(&plan.keyring).map_err(failed(Detour::Kernel, "keyring"))?;
    // The first process of this namespace is the container's: the agent has proved that of the namespace.
    let init = rustix::process::pidfd_open(Pid::INIT, PidfdFlags::empty());
    let init = init.map_err(kernel("pidfd_open"))?;
    rustix::thread::move_into_thread_name_spaces(init.as_fd(), NAMESPACES)
        .map_err(kernel("setns"))?;
    drop(init);
    let env = environment(plan)?;
    for (resource, [soft, hard]) in RESOURCES.into_iter().zip(&plan.limits) {
        let finite = |limit: u64| (limit != u64::MAX).then_some(limit);
        let limit = Rlimit {
            current: finite(*soft),
            maximum: finite(*hard),
        };
        rustix::process::setrlimit(resource, limit).map_err(kernel("setrlimit"))?;
    }
    become_user(plan)?;
    rustix::process::umask(Mode::from_raw_mode(0o022));
    execute(channel, plan, &request.command, &env)
}

fn read_request(channel: &mut UnixStream) -> Step<ReceivedRequest> {
    let mut bytes = Vec::with_capacity(8 * 1024);
    let limit = u64::try_from(MAX_REQUEST_BYTES).unwrap_or(u64::MAX);
    let read = channel.take(limit).read_to_end(&mut bytes);
    read.map_err(failed(Detour::Helper, "reading the request"))?;
    serde_json::from_slice(&bytes).map_err(failed(Detour::Helper, "reading the request"))
}

/// Closes whatever the agent itself was started with: it would be the command's.
fn close_inherited(channel: &UnixStream) -> Step<()> {
    let open = std::fs::read_dir("/proc/self/fd").map_err(failed(Detour::Helper, "open files"))?;
    let numbers = open
        .flatten()
        .filter_map(|file| file.file_name().to_str()?.parse().ok());
    let numbers: Vec<RawFd> = numbers.collect();
    for number in numbers {
        if number > 2 && number != channel.as_raw_fd() {
            // The folder that was read is not open any more.
            let _closed = nix::unistd::close(number);
        }
    }
    Ok(())
}

/// Sets user, groups and capabilities in runc's order (`finalizeNamespace`, `libcontainer/init_linux.go`).
fn become_user(plan: &Plan) -> Step<()> {
    let kernel = |step| failed(Detour::Kernel, step);
    // The root of the container may enter the folder, or else the user may.
    let entered = rustix::process::chdir(&plan.cwd).is_ok();
    let bounding = CapabilitySet::from_bits_retain(plan.bounding);
    for bit in 0..64 {
        let one = CapabilitySet::from_bits_retain(1 << bit);
        if bounding.contains(one) {
            continue;
        }
        match rustix::thread::remove_capability_from_bounding_set(one) {
            Ok(()) => {}
            // The kernel knows none of this number, and no higher one.
            Err(rustix::io::Errno::INVAL) => break,
            Err(error) => return Err(kernel("bounding set")(error)),
        }
    }
    let (uid, gid) = (Uid::from_raw(plan.uid), Gid::from_raw(plan.gid));
    if !uid.is_root() {
        // The command may open its output by name (`fixStdioPermissions`).
        rustix::fs::fchown(std::io::stdout(), Some(uid), None).map_err(kernel("fchown"))?;
        rustix::fs::fchown(std::io::stderr(), Some(uid), None).map_err(kernel("fchown"))?;
    }
    rustix::thread::set_keep_capabilities(true).map_err(kernel("keepcaps"))?;
    let groups: Vec<Gid> = plan.groups.iter().map(|gid| Gid::from_raw(*gid)).collect();
    rustix::thread::set_thread_groups(&groups).map_err(kernel("setgroups"))?;
    rustix::thread::set_thread_res_gid(gid, gid, gid).map_err(kernel("setgid"))?;
    rustix::thread::set_thread_res_uid(uid, uid, uid).map_err(kernel("setuid"))?;
    if !entered {
        rustix::process::chdir(&plan.cwd).map_err(failed(Detour::Start, "chdir"))?;
    }
    rustix::thread::set_keep_capabilities(false).map_err(kernel("keepcaps"))?;
    if plan.no_new_privileges {
        rustix::thread::set_no_new_privs(true).map_err(kernel("no_new_privs"))?;
    }
    let sets = CapabilitySets {
        effective: CapabilitySet::from_bits_retain(plan.effective),
        permitted: CapabilitySet::from_bits_retain(plan.permitted),
        inheritable: CapabilitySet::from_bits_retain(plan.inheritable),
    };
    rustix::thread::set_capabilities(None, sets).map_err(kernel("capset"))?;
    for one in CapabilitySet::from_bits_retain(plan.ambient).iter() {
        rustix::thread::configure_capability_in_ambient_set(one, true)
            .map_err(kernel("ambient set"))?;
    }
    Ok(())
}

/// The environment, with the user's home folder where the specification has none (`setupUser`).
fn environment(plan: &Plan) -> Step<Vec<String>> {
    let mut env = plan.env.clone();
    if !env.iter().any(|variable| variable.starts_with("HOME=")) {
        env.push(format!("HOME={}", home_of(plan.uid)?));
    }
    Ok(env)
}

fn home_of(uid: u32) -> Step<String> {
    let start = |step| failed(Detour::Start, step);
    // The container may have put anything in this place, a pipe for instance.
    let flags = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = flags.bits().cast_signed();
    let file = std::fs::File::options()
        .read(true)
        .custom_flags(flags)
        .open("/etc/passwd");
    let file = match file {
        Ok(file) => file,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok("/".to_owned()),
        Err(error) => return Err(failed(Detour::Start, "/etc/passwd")(error)),
    };
    let metadata = file
        .metadata()
        .map_err(failed(Detour::Start, "/etc/passwd"))?;
    if !metadata.is_file() || metadata.size() > MAX_PASSWD {
        return Err(start("/etc/passwd")("it is too large, or no file"));
    }
    let mut text = String::new();
    let read = file.take(MAX_PASSWD).read_to_string(&mut text);
    read.map_err(failed(Detour::Start, "/etc/passwd"))?;
    match find_home(&text, uid) {
        Some("") => Err(start("/etc/passwd")("the user has no home folder")),
        home => Ok(home.unwrap_or("/").to_owned()),
    }
}

/// The home folder of the first user of this id (`GetExecUser`, `libcontainer/user` of runc).
fn find_home(passwd: &str, uid: u32) -> Option<&str> {
    passwd.lines().find_map(|line| {
        let fields: Vec<&str> = line.trim().split(':').collect();
        let is_wanted = fields.get(2)?.parse() == Ok(uid);
        is_wanted.then(|| fields.get(5).copied().unwrap_or_default())
    })
}

/// Executes the command. Whatever does not work is left to the runtime, whose message people know.
fn execute(
    channel: &mut UnixStream,
    plan: &Plan,
    command: &[String],
    env: &[String],
) -> Step<Infallible> {
    let start = |step| failed(Detour::Start, step);
    let name = command.first().map_or("", String::as_str);
    let program =
        find_program(name, &plan.env).ok_or_else(|| start("looking it up")("not found"))?;
    let to_c = |text: &str| CString::new(text).map_err(failed(Detour::Start, "a zero byte"));
    let program = to_c(program.to_str().unwrap_or_default())?;
    let all = |texts: &[String]| {
        texts
            .iter()
            .map(|text| to_c(text))
            .collect::<Step<Vec<_>>>()
    };
    let (arguments, variables) = (all(command)?, all(env)?);
    channel
        .write_all(READY)
        .map_err(failed(Detour::Helper, "answering"))?;
    // Not `execvp`, which makes a script of a file that the kernel does not know.
    nix::unistd::execve(&program, &arguments, &variables).map_err(failed(Detour::Start, "execve"))
}

/// Looks a program up in the container's `PATH` (`LookPath`, Go's `os/exec`). The first file that anybody may execute is
/// taken: if this user may not, runtimes differ, and the one at hand will say.
fn find_program(name: &str, env: &[String]) -> Option<PathBuf> {
    if name.is_empty() {
        return None;
    }
    if name.contains('/') {
        return Some(PathBuf::from(name));
    }
    let path = env
        .iter()
        .find_map(|variable| variable.strip_prefix("PATH="))?;
    let mut folders = path.split(':').map(Path::new);
    folders.find_map(|folder| {
        if !folder.is_absolute() {
            // Go refuses what it finds relative to the working directory.
            return Some(None);
        }
        let program = folder.join(name);
        let metadata = std::fs::metadata(&program).ok()?;
        let executable = metadata.permissions().mode() & 0o111 != 0;
        (metadata.is_file() && executable).then_some(Some(program))
    })?
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_one_answer_means_that_the_command_runs() {
        for (answer, meaning) in [
            ("+", Ok(())),
            ("", Err(Detour::Helper)),
            ("++", Err(Detour::Helper)),
            ("+start execve: no such file", Err(Detour::Start)),
            ("kernel setns: not permitted", Err(Detour::Kernel)),
            ("nonsense", Err(Detour::Helper)),
        ] {
            assert_eq!(parse_answer(answer.as_bytes()), meaning, "{answer}");
        }
    }

    #[test]
    fn the_home_folder_is_that_of_the_first_user_of_the_id() {
        let passwd = "root:x:0:0:root:/root:/bin/sh\n# a comment\n\nbad\nalso:x:0:0::/other:\nme:x:1000:1000::/home/me:/bin/sh\nnone:x:7:7\n";
        for (uid, home) in [
            (0, Some("/root")),
            (1000, Some("/home/me")),
            (7, Some("")),
            (8, None),
        ] {
            assert_eq!(find_home(passwd, uid), home, "{uid}");
        }
    }

    #[test]
    fn a_program_is_looked_up_as_runtimes_do() {
        let folder = std::env::temp_dir().join(format!("leadsman-direct-{}", std::process::id()));
        let (first, second) = (folder.join("1"), folder.join("2"));
        for place in [&first, &second] {
            std::fs::create_dir_all(place.join("folder")).unwrap();
        }
        for (place, name, mode) in [
            (&first, "plain", 0o644),
            (&second, "plain", 0o755),
            (&first, "both", 0o100),
            (&second, "both", 0o755),
        ] {
            let file = place.join(name);
            std::fs::write(&file, "").unwrap();
            std::fs::set_permissions(&file, std::fs::Permissions::from_mode(mode)).unwrap();
        }
        let path = |path: &str| vec!["A=1".to_owned(), format!("PATH={path}")];
        let both = path(&format!("{}:{}", first.display(), second.display()));
        for (name, env, found) in [
            ("plain", &both, Some(second.join("plain"))),
            ("both", &both, Some(first.join("both"))),
            ("folder", &both, None),
            ("nosuch", &both, None),
            ("", &both, None),
            ("./x", &both, Some("./x".into())),
            ("plain", &path(&format!(":{}", second.display())), None),
            ("plain", &vec![], None),
        ] {
            assert_eq!(find_program(name, env), found, "{name} {env:?}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}
