//! Makes leadsman's own image from its program.
//!
//! The file system of the image is one file, `/leadsman`. The other files that leadsman reads are mounted by the kubelet:
//! `/etc/resolv.conf` and `/etc/hosts`, and the CA and token of its service account. It needs no list of users, no time
//! zones and no folder to write to.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::BufWriter;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use clap::Parser;
use leadsman_image::{Config, Image, Layer, StaticProgram};

/// User and group of the process: not root, and a number that no user of a node has. By custom, images without a shell use
/// this one.
const USER: &str = "65532:65532";

/// Makes the image of leadsman as an OCI archive and prints its digest.
#[derive(Parser)]
#[command(version)]
struct Arguments {
    /// The program, linked statically
    #[arg(long, value_name = "FILE")]
    program: PathBuf,
    /// Where to write the archive
    #[arg(long, value_name = "FILE")]
    output: PathBuf,
    /// The time of the image and its files, in seconds since 1970
    #[arg(long, value_name = "SECONDS")]
    created: i64,
    /// The tag of the image
    #[arg(long, value_name = "TAG", default_value = env!("CARGO_PKG_VERSION"))]
    tag: String,
    /// The commit that the program was built from
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
    let path = arguments.program.display();
    let program = fs::read(&arguments.program).with_context(|| format!("reading {path}"))?;
    let program = StaticProgram::new(program)
        .with_context(|| format!("{path} cannot be the program of the image"))?;
    Ok(Image {
        repository: "docker.io/library/leadsman".to_owned(),
        tag: arguments.tag.clone(),
        architecture: program.architecture(),
        created: jiff::Timestamp::from_second(arguments.created)?,
        config: Config {
            user: USER.to_owned(),
            entrypoint: vec!["/leadsman".to_owned()],
            environment: Vec::new(),
            labels: labels(arguments.revision.as_deref()),
        },
        layer: Layer::new().file("leadsman", 0o755, program.into_content()),
        compression: arguments.compression,
    })
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

/// Writes the archive beside its place and moves it there, so that nobody imports half of one.
fn write(image: &Image, place: &Path) -> Result<String> {
    if let Some(folder) = place.parent() {
        fs::create_dir_all(folder)?;
    }
    let partial = place.with_extension("partial");
    let digest = image.write(BufWriter::new(File::create(&partial)?))?;
    fs::rename(&partial, place)?;
    Ok(digest)
}

#[cfg(test)]
mod tests {
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
        for line in [format!("USER {USER}"), "ENTRYPOINT [\"/leadsman\"]".into()] {
            assert!(DOCKERFILE.lines().any(|it| it == line), "no {line}");
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
