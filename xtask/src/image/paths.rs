//! The paths of this machine that rustc writes into a program, for its panics to name: what stands for them instead, so that
//! everybody gets the same bytes.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, Result, ensure};

use super::Profile;
use crate::cargo;

/// A folder of this machine, and what stands for it.
type Remapped = (PathBuf, String);

/// rustc's flags that replace them. What is built for the test bed stays on this machine, and keeps the library's sources.
pub(super) fn flags(profile: Profile) -> Result<Vec<OsString>> {
    let flags = remapped(profile)?.into_iter().map(|(from, to)| {
        let mut flag = OsString::from("--remap-path-prefix=");
        flag.push(from);
        flag.push("=");
        flag.push(to);
        flag
    });
    Ok(flags.collect())
}

/// Fails if a program has such a path all the same.
pub(super) fn check(profile: Profile, program: &Path) -> Result<()> {
    let bytes = std::fs::read(program)?;
    for (folder, _) in remapped(profile)? {
        ensure!(
            !has_path_below(&bytes, &folder),
            "{} names files below {}: nobody else can build the same",
            program.display(),
            folder.display()
        );
    }
    Ok(())
}

fn has_path_below(bytes: &[u8], folder: &Path) -> bool {
    let mut path = folder.as_os_str().as_encoded_bytes().to_vec();
    path.push(b'/');
    bytes.windows(path.len()).any(|window| window == path)
}

fn remapped(profile: Profile) -> Result<Vec<Remapped>> {
    let cargo_home = std::env::var_os("CARGO_HOME")
        .map(PathBuf::from)
        .or_else(|| Some(PathBuf::from(std::env::var_os("HOME")?).join(".cargo")))
        .context("neither CARGO_HOME nor HOME is set")?;
    let root = cargo::root().canonicalize()?;
    let mut remapped = vec![
        (cargo_home, "/cargo".to_owned()),
        (root, "/leadsman".to_owned()),
    ];
    if profile == Profile::Release {
        remapped.push(standard_library()?);
    }
    Ok(remapped)
}

/// Where the component rust-src is installed, rustc names the sources of the standard library by their place on this machine,
/// and elsewhere by the place that stands here (`rust.remap-debuginfo` of rustc's bootstrap; RFC 3127 maps one to the other too).
fn standard_library() -> Result<Remapped> {
    let sysroot = rustc(&["--print", "sysroot"])?;
    let version = rustc(&["--version", "--verbose"])?;
    let sources = Path::new(sysroot.trim()).join("lib/rustlib/src/rust");
    Ok((sources, format!("/rustc/{}", revision(&version)?)))
}

/// Of what `rustc --version --verbose` prints: the commit, or the release where a distribution built it without git.
fn revision(version: &str) -> Result<&str> {
    let field = |name: &str| {
        let mut lines = version.lines();
        lines.find_map(|line| line.strip_prefix(name)?.strip_prefix(": "))
    };
    let commit = field("commit-hash").filter(|commit| *commit != "unknown");
    let revision = commit.or_else(|| field("release"));
    revision.with_context(|| format!("rustc does not name its release: {version}"))
}

fn rustc(words: &[&str]) -> Result<String> {
    let output = Command::new("rustc")
        .args(words)
        .current_dir(cargo::root())
        .output()
        .context("running rustc")?;
    ensure!(
        output.status.success(),
        "rustc ended with {}",
        output.status
    );
    String::from_utf8(output.stdout).context("what rustc printed")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_below_a_folder_is_found() {
        let folder = Path::new("/home/me/rust");
        for (program, is_there) in [
            ("..\0/home/me/rust/library/core.rs\0..", true),
            ("..\0/home/me/rustc/library/core.rs\0..", false),
            ("/home/me/rust", false),
            ("", false),
        ] {
            assert_eq!(
                has_path_below(program.as_bytes(), folder),
                is_there,
                "{program:?}"
            );
        }
    }

    #[test]
    fn the_library_is_named_by_the_commit_or_else_by_the_release() {
        let of = |commit: &str| {
            format!("rustc 1.95.0\nbinary: rustc\ncommit-hash: {commit}\nrelease: 1.95.0\n")
        };
        assert_eq!(revision(&of("59807616")).unwrap(), "59807616");
        assert_eq!(revision(&of("unknown")).unwrap(), "1.95.0");
        assert!(revision("rustc 1.95.0\n").is_err());
    }

    /// Compiled by a program of a few lines: the standard library's generic code names its sources where it panics.
    #[test]
    fn the_sources_of_the_standard_library_are_renamed() {
        let folder = tempfile::tempdir().unwrap();
        let [source, program] = ["main.rs", "main"].map(|name| folder.path().join(name));
        let text = "fn main() { let mut m = std::collections::BTreeMap::new(); m.insert(std::env::args().count(), 1); \
                    println!(\"{}\", m.range(3..std::env::args().count()).count()); }";
        std::fs::write(&source, text).unwrap();
        let compiled = Command::new("rustc")
            .args(["-O", "-Cstrip=symbols", "--edition=2024", "-o"])
            .args([&program, &source])
            .args(flags(Profile::Release).unwrap())
            .current_dir(cargo::root())
            .status();
        assert!(compiled.unwrap().success());
        check(Profile::Release, &program).unwrap();
        let (_, named) = standard_library().unwrap();
        let bytes = std::fs::read(&program).unwrap();
        assert!(has_path_below(&bytes, Path::new(&named)));
    }
}
