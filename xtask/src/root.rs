//! Root: whether we are, and how to become it without asking for a password in the middle of things.

use std::ffi::OsString;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Result, bail};

/// Whether this process may do what only root may.
pub(crate) fn is_root() -> bool {
    std::fs::metadata("/proc/self").is_ok_and(|of_process| of_process.uid() == 0)
}

/// How long a user has waited so far. Passed on, but not part of a line to type: that begins a new wait.
pub(crate) const MOMENTARY: &str = "LEADSMAN_DEMO_SPENT";

/// What a program keeps of this user's environment when it runs as root. Not HOME: programs write there, and what root
/// has written the user could not write any more.
fn kept() -> impl Iterator<Item = (OsString, OsString)> {
    std::env::vars_os().filter(|(name, _)| {
        let name = name.to_string_lossy();
        matches!(&*name, "PATH" | "NO_COLOR" | "TERM" | "CI") || name.starts_with("LEADSMAN_")
    })
}

/// A command that runs `program` as root: as it is for root, else through sudo if sudo asks nothing. Otherwise an error
/// with the line to type; `arguments` are part of that line.
pub(crate) fn command(
    program: &Path,
    arguments: &[&str],
    environment: &[(String, OsString)],
) -> Result<Command> {
    if is_root() {
        let mut command = Command::new(program);
        command.args(arguments).envs(environment.iter().cloned());
        return Ok(command);
    }
    let assignments: Vec<OsString> = kept()
        .chain(
            environment
                .iter()
                .map(|(name, value)| (name.into(), value.clone())),
        )
        .map(|(mut name, value)| {
            name.push("=");
            name.push(value);
            name
        })
        .collect();
    if let Err(why_not) = sudo_without_a_question() {
        let quoted = assignments
            .iter()
            .map(|it| it.to_string_lossy())
            .filter(|it| !it.starts_with(MOMENTARY))
            .map(|it| quote(&it))
            .collect::<Vec<_>>()
            .join(" ");
        bail!(
            "a node needs root, and {why_not}:\n\n  sudo -H env {quoted} {}\n",
            std::iter::once(quote(&program.to_string_lossy()))
                .chain(arguments.iter().map(|it| quote(it)))
                .collect::<Vec<_>>()
                .join(" "),
        );
    }
    let mut command = Command::new("sudo");
    command
        .args(["-n", "-H", "env"])
        .args(assignments)
        .arg(program)
        .args(arguments);
    Ok(command)
}

/// An error says why not, and goes on to the line to type.
fn sudo_without_a_question() -> Result<(), &'static str> {
    let status = Command::new("sudo")
        .args(["-n", "true"])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err("sudo would ask for a password here. All is built; type this line"),
        Err(_) => Err(
            "there is no sudo here. All is built; install it and type this line, or become root and leave `sudo -H` out",
        ),
    }
}

/// `text` as one word of a POSIX shell.
fn quote(text: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-./=:,@%+".contains(c);
    if !text.is_empty() && text.chars().all(plain) {
        text.to_owned()
    } else {
        format!("'{}'", text.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn what_a_shell_would_split_is_quoted() {
        for (text, quoted) in [
            ("A=/b/c:d", "A=/b/c:d"),
            ("", "''"),
            ("a b", "'a b'"),
            ("it's", r"'it'\''s'"),
        ] {
            assert_eq!(super::quote(text), quoted);
        }
    }
}
