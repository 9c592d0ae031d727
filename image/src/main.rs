//! Makes leadsman's own image from its programs.
//!
//! The file system of the image is two files, `/leadsman` and `/leadsman-agent`. The other files that they read are mounted
//! by the kubelet: `/etc/resolv.conf` and `/etc/hosts`, and the CA and token of a service account. They need no list of
//! users, no time zones and no folder to write to.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Parser;
use leadsman_image::{Architecture, Config, Image, Layer, StaticProgram};

/// User and group of the process: not root, and a number that no user of a node has. By custom, images without a shell use
/// this one.
const USER: &str = "65532:65532";
/// The program of a container that names none. An agent's names its own.
const ENTRYPOINT: &str = "/leadsman";

/// Makes the image of leadsman as an OCI archive and prints its digest.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// A program, linked statically, which keeps its name in the image; may be given several times
    #[arg(long = "program", value_name = "FILE", required = true)]
    programs: Vec<PathBuf>,
    /// File to write the archive to
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// The time of the image and its files, in seconds since 1970
    #[arg(long, value_name = "SECONDS")]
    created: i64,
    /// The tag of the image
    #[arg(long, value_name = "TAG", default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// The commit that the programs were built from
    #[arg(long, value_name = "COMMIT")]
    revision: Option<String>,
    /// How hard to compress, from 0 to 9
    #[arg(long, value_name = "LEVEL", default_value_t = 9, value_parser = clap::value_parser!(u32).range(0..=9))]
    compression: u32,
}

fn main() -> Result<()> {
    let arguments = Arguments::parse();
    let image = image(&arguments)?;
    let digest = write(&image, &arguments.output)
        .with_context(|| format!("writing {}", arguments.output.display()))?;
    println!("{digest}");
    Ok(())
}

fn image(arguments: &Arguments) -> Result<Image> {
    let (layer, architecture) = read_programs(&arguments.programs)?;
    Ok(Image {
        repository: "docker.io/library/leadsman".to_owned(),
        tag: arguments.tag.clone(),
        architecture,
        created: jiff::Timestamp::from_second(arguments.created)?,
        config: Config {
            user: USER.to_owned(),
            entrypoint: vec![ENTRYPOINT.to_owned()],
            environment: Vec::new(),
            labels: labels(arguments.revision.as_deref()),
        },
        layer,
        compression: arguments.compression,
    })
}

/// The programs as files of the image, and the one architecture that they are built for.
fn read_programs(paths: &[PathBuf]) -> Result<(Layer, Architecture)> {
    let mut layer = Layer::new();
    let mut architectures = Vec::new();
    let mut names = BTreeSet::new();
    for path in paths {
        let shown = path.display();
        let content = fs::read(path).with_context(|| format!("reading {shown}"))?;
        let program = StaticProgram::new(content)
            .with_context(|| format!("{shown} cannot be a program of the image"))?;
        let name = path.file_name().and_then(OsStr::to_str);
        let name = name.with_context(|| format!("{shown} has no name for the image"))?;
        ensure!(names.insert(format!("/{name}")), "{name} is given twice");
        architectures.push(program.architecture());
        layer = layer.file(name, 0o755, program.into_content());
    }
    ensure!(names.contains(ENTRYPOINT), "the image needs {ENTRYPOINT}");
    architectures.dedup();
    match architectures[..] {
        [architecture] => Ok((layer, architecture)),
        _ => bail!("the programs are built for several architectures"),
    }
}

/// OCI's `annotations.md`. `Dockerfile` sets the same.
fn labels(revision: Option<&str>) -> BTreeMap<String, String> {
    let labels = [
        ("title", Some("leadsman")),
        ("version", Some(env!("CARGO_PKG_VERSION"))),
        ("revision", revision),
        ("licenses", Some(env!("CARGO_PKG_LICENSE"))),
    ];
    let labels = labels.into_iter().filter_map(|(name, value)| {
        let name = format!("org.opencontainers.image.{name}");
        Some((name, value?.to_owned()))
    });
    labels.collect()
}

/// Writes the archive beside its place and moves it there, so that nobody imports half of one; two processes may do so at once.
fn write(image: &Image, place: &Path) -> Result<String> {
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = place.with_extension(format!("{}.partial", std::process::id()));
    let digest = image.write(BufWriter::new(File::create(&partial)?))?;
    fs::rename(&partial, place)?;
    Ok(digest)
}

#[cfg(test)]
mod tests {
    use tempfile::TempDir;

    use super::*;

    const DOCKERFILE: &str = include_str!("../../Dockerfile");

    #[test]
    fn the_dockerfile_makes_an_image_like_this_one() {
        let labels = labels(Some("$REVISION"));
        for (name, value) in &labels {
            let label = format!("{name}=\"{value}\"");
            assert!(DOCKERFILE.contains(&label), "no {label} in the Dockerfile");
        }
        let count = DOCKERFILE.matches("org.opencontainers.image.").count();
        assert_eq!(count, labels.len());
        for line in [
            format!("USER {USER}"),
            format!("ENTRYPOINT [\"{ENTRYPOINT}\"]"),
            "COPY --from=build /programs/ /".to_owned(),
        ] {
            assert!(DOCKERFILE.lines().any(|it| it == line), "no {line}");
        }
        for program in ["leadsman", "leadsman-agent"] {
            let built = format!("\"target/$host/release/{program}\"");
            assert!(DOCKERFILE.contains(&built), "no {built} in the Dockerfile");
        }
    }

    /// A file that begins as a program does of which nothing but the header counts: `e_machine` of `elf(5)`.
    fn write_program(folder: &Path, name: &str, machine: u8) -> PathBuf {
        let mut header = vec![0; 64];
        header[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        header[18] = machine;
        let path = folder.join(name);
        fs::write(&path, header).unwrap();
        path
    }

    #[test]
    fn the_programs_are_in_the_image_by_their_names() {
        let (here, there) = (TempDir::new().unwrap(), TempDir::new().unwrap());
        let manager = write_program(here.path(), "leadsman", 62);
        let agent = write_program(here.path(), "leadsman-agent", 62);
        let foreign = write_program(there.path(), "leadsman-agent", 183);
        let read = |paths: &[&PathBuf]| {
            let paths: Vec<_> = paths.iter().map(|&path| path.clone()).collect();
            read_programs(&paths).map_err(|error| error.to_string())
        };
        let (layer, architecture) = read(&[&manager, &agent]).unwrap();
        assert_eq!(architecture, Architecture::Amd64);
        assert_eq!(
            layer.paths().collect::<Vec<_>>(),
            ["leadsman", "leadsman-agent"]
        );
        for (paths, error) in [
            (&[&agent][..], "the image needs /leadsman"),
            (&[&manager, &agent, &agent], "leadsman-agent is given twice"),
            (
                &[&manager, &foreign],
                "the programs are built for several architectures",
            ),
        ] {
            assert_eq!(read(paths).unwrap_err(), error);
        }
    }

    #[test]
    fn the_dockerfile_has_the_toolchain_of_the_workspace() {
        let toolchain = include_str!("../../rust-toolchain.toml");
        let mut lines = toolchain.lines();
        let channel = lines.find_map(|line| line.strip_prefix("channel = "));
        let channel = channel.unwrap().trim_matches('"');
        for line in [
            format!("FROM rust:{channel}-bookworm AS build"),
            format!("ENV RUSTUP_TOOLCHAIN={channel}"),
        ] {
            assert!(DOCKERFILE.lines().any(|it| it == line), "no {line}");
        }
    }
}
