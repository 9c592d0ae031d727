//! `cargo xtask image`: leadsman's image as an OCI archive, made without Docker by the program `leadsman-image`.
//!
//! What lives here: how the programs of the image are built. They are linked statically against glibc, and two builds of one
//! commit by one toolchain give the same bytes wherever their folders are. Everything that ends up in a program by its
//! path is remapped: the workspace, the sources and build scripts' output of the dependencies, and the standard library.

mod architecture;
mod paths;

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};

pub(crate) use architecture::Architecture;

use crate::cargo::{self, cargo};
use crate::commit::Commit;

/// Has a build folder of its own: other flags would throw away what the workspace has compiled.
const BUILD: &str = "target/static";

/// Arguments of `image`.
#[derive(clap::Args)]
pub(crate) struct Arguments {
    /// `dev` makes the same image of an unoptimised build, in seconds, for the test bed
    #[arg(long, value_enum, default_value = "release")]
    profile: Profile,
    /// The nodes' architecture; this machine's when left out
    #[arg(long, value_enum)]
    arch: Option<Architecture>,
}

/// How the programs of an image are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum Profile {
    Release,
    Dev,
}

/// An image that was made.
pub(crate) struct Archive {
    /// Its file.
    pub(crate) path: PathBuf,
    /// The programs that were built for it, and the plugin.
    pub(crate) programs: Programs,
    /// The digest of the image's manifest.
    pub(crate) digest: String,
}

/// The programs of the package `leadsman` that containers run. The plugin is for people's machines.
const IN_IMAGE: [&str; 2] = ["leadsman", "leadsman-agent"];

/// All programs of the package `leadsman`, in one folder. At commits of before the split it has one.
pub(crate) struct Programs(Vec<PathBuf>);

impl Programs {
    /// The one of this name.
    pub(crate) fn find(&self, name: &str) -> Result<&Path> {
        let found = self.0.iter().find(|path| path.ends_with(name));
        let found = found.map(PathBuf::as_path);
        found.with_context(|| format!("the package leadsman has no program `{name}`"))
    }

    fn in_image(&self) -> impl Iterator<Item = &Path> {
        IN_IMAGE.iter().filter_map(|name| self.find(name).ok())
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let architecture = match arguments.arch {
        Some(architecture) => architecture,
        None => Architecture::native()?,
    };
    let image = make(arguments.profile, architecture)?;
    let size = std::fs::metadata(&image.path)?.len();
    eprintln!(
        "image docker.io/library/leadsman:{}, {architecture}, {:.1} MB, {}",
        env!("CARGO_PKG_VERSION"),
        megabytes(size),
        image.digest
    );
    for program in image.programs.in_image() {
        let name = program.file_name().unwrap_or_default().display();
        let size = megabytes(std::fs::metadata(program)?.len());
        eprintln!("  /{name}, {size:.2} MB");
    }
    eprintln!("import it on a node: ctr --namespace k8s.io images import FILE");
    println!("{}", image.path.display());
    Ok(ExitCode::SUCCESS)
}

/// Builds leadsman and makes its image.
pub(crate) fn make(profile: Profile, architecture: Architecture) -> Result<Archive> {
    let programs = match profile {
        Profile::Dev if architecture == Architecture::native()? => dev_programs()?,
        _ => static_programs(cargo::root(), profile, architecture)?,
    };
    let tag = env!("CARGO_PKG_VERSION");
    archive(programs, profile, architecture, tag, &Commit::read()?)
}

/// Builds leadsman from the sources of another commit, for this machine's test bed, and makes an image of this tag.
pub(crate) fn make_of(sources: &Path, commit: &Commit, tag: &str) -> Result<Archive> {
    let (profile, architecture) = (Profile::Dev, Architecture::native()?);
    let programs = static_programs(sources, profile, architecture)?;
    archive(programs, profile, architecture, tag, commit)
}

fn archive(
    programs: Programs,
    profile: Profile,
    architecture: Architecture,
    tag: &str,
    commit: &Commit,
) -> Result<Archive> {
    let built = cargo::build(&["--bin", "leadsman-image"])?;
    let path = cargo::root()
        .canonicalize()?
        .join("target/image")
        .join(profile.folder())
        .join(format!("leadsman-{tag}-{architecture}.tar"));
    let mut maker = Command::new(cargo::program(&built, "leadsman-image")?);
    for program in programs.in_image() {
        maker.arg("--program").arg(program);
    }
    maker.arg("--output").arg(&path);
    maker.args(["--tag", tag, "--created", &commit.time]);
    maker.args(["--compression", profile.compression()]);
    if let Some(revision) = &commit.revision {
        maker.args(["--revision", revision]);
    }
    let output = maker.stderr(Stdio::inherit()).output();
    let output = output.context("running leadsman-image")?;
    if !output.status.success() {
        bail!("the image could not be made, the reason is above");
    }
    let digest = String::from_utf8(output.stdout).context("what leadsman-image printed")?;
    Ok(Archive {
        path,
        programs,
        digest: digest.trim().to_owned(),
    })
}

/// Builds the programs for this machine as they are shipped.
pub(crate) fn shipped_programs() -> Result<Programs> {
    static_programs(cargo::root(), Profile::Release, Architecture::native()?)
}

/// Builds leadsman for this machine's test bed, with what the tests have compiled.
fn dev_programs() -> Result<Programs> {
    let names = ["leadsman", "leadsman-agent", "kubectl-leadsman"];
    let built = cargo::build(&names.map(|name| ["--bin", name]).concat())?;
    let programs = names.map(|name| cargo::program(&built, name));
    Ok(Programs(programs.into_iter().collect::<Result<_>>()?))
}

/// Builds leadsman so that its programs run without any other file. Sources of another commit are built with the same
/// flags, in a folder among themselves: in a shared one cargo would take their crates for ours, since it knows those by
/// their places in the workspace.
fn static_programs(
    sources: &Path,
    profile: Profile,
    architecture: Architecture,
) -> Result<Programs> {
    architecture.check()?;
    let mut command = cargo();
    command
        .current_dir(sources)
        .args(["build", "--locked", "--package", "leadsman"])
        .args(["--target", architecture.triple(), "--target-dir", BUILD])
        .args(profile.arguments())
        // Flags are separated by this character, since paths may hold blanks.
        .env(
            "CARGO_ENCODED_RUSTFLAGS",
            flags(profile)?.join("\u{1f}".as_ref()),
        );
    let triple = architecture.triple().to_uppercase().replace('-', "_");
    command.env(
        format!("CARGO_TARGET_{triple}_LINKER"),
        architecture.linker().program,
    );
    let built = cargo::build_by(&mut command)?;
    let programs: Vec<_> = built.into_iter().map(|it| it.path).collect();
    if profile == Profile::Release {
        for program in &programs {
            paths::check(profile, program)?;
        }
    }
    Ok(Programs(programs))
}

/// Links everything in, and leaves no path of this machine behind.
fn flags(profile: Profile) -> Result<Vec<OsString>> {
    let mut flags = vec![cargo::STATIC.into()];
    flags.extend(paths::flags(profile)?);
    Ok(flags)
}

impl Profile {
    /// Only what is shipped is named as such.
    fn folder(self) -> &'static str {
        match self {
            Self::Release => "",
            Self::Dev => "dev",
        }
    }

    /// Without symbols and debug information a dev build is a fourth of its size.
    fn arguments(self) -> &'static [&'static str] {
        match self {
            Self::Release => &["--release"],
            Self::Dev => &[
                "--config=profile.dev.debug=false",
                "--config=profile.dev.strip='symbols'",
            ],
        }
    }

    fn compression(self) -> &'static str {
        match self {
            Self::Release => "9",
            Self::Dev => "1",
        }
    }
}

/// For a reader: three digits are enough.
#[expect(
    clippy::cast_precision_loss,
    reason = "a size in megabytes with one decimal"
)]
pub(crate) fn megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}
