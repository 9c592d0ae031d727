//! `cargo xtask dist`: what a release consists of, in `target/dist`.
//!
//! | file | what it is |
//! |---|---|
//! | `leadsman-VERSION-ARCH.tar` | the image, an OCI archive |
//! | `leadsman-VERSION-linux-ARCH` | `leadsman` alone, for `manifests` and `preflight` away from the cluster |
//! | `leadsman-VERSION-ARCH.cdx.json` | the bill of materials of `leadsman`, `leadsman-agent` and the plugin |
//! | `leadsman-VERSION-ARCH-licenses.txt` | the licences of what these programs link, in their own words |
//! | `kubectl-leadsman-VERSION-linux-ARCH.tar.gz` | the plugin of kubectl |
//! | `leadsman.krew.yaml` | Krew's manifest of these archives, if `--download` says where they will be |
//! | `leadsman-VERSION.tgz` | the Helm chart; helm writes the time of packing into it, all else depends on the commit alone |
//! | `leadsman-VERSION.yaml` | what `leadsman manifests` prints |
//! | `SHA256SUMS` | the checksums of all of them |

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode, Stdio};

use anyhow::{Context as _, Result, bail};

use crate::commit::Commit;
use crate::image::{self, Architecture, Profile, megabytes};
use crate::lint::deny;
use crate::sbom::Materials;
use crate::{bed, cargo, clock, krew};

const VERSION: &str = env!("CARGO_PKG_VERSION");
const CHART: &str = "charts/leadsman";

/// A step's name, and what it writes into the folder.
type Step = (&'static str, fn(&mut Release) -> Result<()>);

const STEPS: &[Step] = &[
    ("advisories", Release::advisories),
    ("images", Release::images),
    ("plugin", Release::plugin),
    ("manifests", Release::manifests),
    ("chart", Release::chart),
    ("checksums", Release::checksums),
];

/// Where the release will be found; nothing of it depends on that but Krew's manifest.
#[derive(Debug, clap::Args)]
pub(crate) struct Arguments {
    /// The URL below which the files of target/dist can be downloaded, for Krew's manifest; without it none is written
    #[arg(long, value_name = "URL", requires = "homepage")]
    download: Option<String>,
    /// The project's page, for Krew's manifest
    #[arg(long, value_name = "URL", requires = "download")]
    homepage: Option<String>,
}

/// A release in the making.
struct Release {
    folder: PathBuf,
    commit: Commit,
    /// Download and homepage, if they are known.
    place_on_web: Option<(String, String)>,
    /// The plugin for each architecture that was built.
    plugins: Vec<(Architecture, PathBuf)>,
    /// What somebody may expect in a release and will not find, each with the reason.
    left_out: Vec<String>,
}

pub(crate) fn run(arguments: Arguments) -> Result<ExitCode> {
    let mut release = Release {
        folder: cargo::root().canonicalize()?.join("target/dist"),
        commit: Commit::read()?,
        place_on_web: arguments.download.zip(arguments.homepage),
        plugins: Vec::new(),
        left_out: Vec::new(),
    };
    if release.folder.exists() {
        fs::remove_dir_all(&release.folder)?;
    }
    fs::create_dir_all(&release.folder)?;
    for (number, (name, step)) in STEPS.iter().enumerate() {
        let started = clock::now();
        eprintln!("dist: {}/{} {name}", number + 1, STEPS.len());
        step(&mut release).with_context(|| format!("making the {name}"))?;
        let seconds = started.elapsed().as_secs_f64();
        eprintln!(
            "dist: {}/{} {name} ({seconds:.1} s)",
            number + 1,
            STEPS.len()
        );
    }
    release.report()
}

impl Release {
    /// Checked before anything is built. If their database cannot be fetched, the release is made nevertheless, and its report
    /// says so.
    fn advisories(&mut self) -> Result<()> {
        if !deny::advisories()? {
            let reason = "advisories: not checked, their database cannot be fetched from here";
            self.left_out.push(reason.to_owned());
        }
        Ok(())
    }

    /// Image, program and bill of materials, for each architecture that can be linked here.
    fn images(&mut self) -> Result<()> {
        let native = Architecture::native()?;
        for architecture in [Architecture::Amd64, Architecture::Arm64] {
            let missing = architecture.missing();
            if architecture != native && !missing.is_empty() {
                let missing = missing.join("; ");
                self.left_out.push(format!(
                    "the {architecture} image: this machine lacks {missing}"
                ));
                continue;
            }
            let image = image::make(Profile::Release, architecture)?;
            let name = image.path.file_name().context("an archive has a name")?;
            fs::copy(&image.path, self.folder.join(name))?;
            fs::copy(
                image.programs.find("leadsman")?,
                self.place(&format!("leadsman-{VERSION}-linux-{architecture}")),
            )?;
            let plugin = image.programs.find("kubectl-leadsman")?.to_owned();
            self.plugins.push((architecture, plugin));
            let materials = Materials::read(architecture, &self.commit)?;
            let name = format!("leadsman-{VERSION}-{architecture}");
            fs::write(
                self.place(&format!("{name}.cdx.json")),
                format!("{:#}\n", materials.bill),
            )?;
            fs::write(
                self.place(&format!("{name}-licenses.txt")),
                materials.notices,
            )?;
        }
        Ok(())
    }

    /// The plugin's archives, and the manifest by which Krew finds them.
    fn plugin(&mut self) -> Result<()> {
        let mut platforms = Vec::new();
        for (architecture, program) in &self.plugins {
            let file = format!("kubectl-leadsman-{VERSION}-linux-{architecture}.tar.gz");
            let archive = self.place(&file);
            krew::pack(program, &archive, &self.commit.time)?;
            platforms.push(krew::Platform {
                architecture: architecture.to_string(),
                sha256: krew::checksum(&archive)?,
                file,
            });
        }
        let Some((download, homepage)) = &self.place_on_web else {
            let reason =
                "Krew's manifest: --download and --homepage say where the archives will be";
            self.left_out.push(reason.to_owned());
            return Ok(());
        };
        let manifest = krew::manifest(VERSION, homepage, download, &platforms);
        fs::write(self.place("leadsman.krew.yaml"), format!("{manifest:#}\n"))?;
        Ok(())
    }

    /// Printed by the `leadsman` that is in the image.
    fn manifests(&mut self) -> Result<()> {
        let native = Architecture::native()?;
        let program = self.place(&format!("leadsman-{VERSION}-linux-{native}"));
        let printed = output(Command::new(program).arg("manifests"))?;
        fs::write(self.place(&format!("leadsman-{VERSION}.yaml")), printed)?;
        Ok(())
    }

    /// Packed by the Helm that the tests use.
    fn chart(&mut self) -> Result<()> {
        let built = cargo::build(&["--bin", "leadsman-bed"])?;
        let programs = bed::programs(&cargo::program(&built, "leadsman-bed")?)?;
        let mut helm = Command::new(programs.join("helm"));
        helm.args([
            "package",
            CHART,
            "--version",
            VERSION,
            "--app-version",
            VERSION,
        ])
        .arg("--destination")
        .arg(&self.folder)
        .current_dir(cargo::root());
        output(&mut helm)?;
        Ok(())
    }

    /// Written in the form that `sha256sum --check` reads.
    fn checksums(&mut self) -> Result<()> {
        let mut sum = Command::new("sha256sum");
        sum.args(self.files()?).current_dir(&self.folder);
        let sums = output(&mut sum)?;
        fs::write(self.place("SHA256SUMS"), sums)?;
        Ok(())
    }

    fn place(&self, name: &str) -> PathBuf {
        self.folder.join(name)
    }

    /// The names of all files, sorted.
    fn files(&self) -> Result<Vec<String>> {
        let mut names = Vec::new();
        for entry in fs::read_dir(&self.folder)? {
            names.push(entry?.file_name().to_string_lossy().into_owned());
        }
        names.sort();
        Ok(names)
    }

    fn report(&self) -> Result<ExitCode> {
        for name in self.files()? {
            let size = fs::metadata(self.place(&name))?.len();
            println!("{:>8.2} MB  {name}", megabytes(size));
        }
        let revision = self.commit.revision.as_deref().unwrap_or("no git commit");
        println!(
            "\nleadsman {VERSION}, {revision}, in {}",
            self.folder.display()
        );
        if revision.ends_with("-dirty") {
            println!("Files differ from the commit: nobody else can build the same.");
        }
        println!("\nNot in it:");
        for what in &self.left_out {
            println!("  {what}");
        }
        println!("{}", NEXT.replace("VERSION", VERSION));
        Ok(ExitCode::SUCCESS)
    }
}

const NEXT: &str = "
Next:
  sha256sum --check SHA256SUMS
  ctr --namespace k8s.io images import leadsman-VERSION-amd64.tar     on each node, or push it to your registry
  helm install leadsman leadsman-VERSION.tgz --namespace leadsman-system --create-namespace";

/// What a command prints to stdout. If it fails, what it printed to stderr is the error.
fn output(command: &mut Command) -> Result<Vec<u8>> {
    let program = Path::new(command.get_program()).display().to_string();
    let output = command
        .stdin(Stdio::null())
        .output()
        .with_context(|| format!("running {program}"))?;
    if !output.status.success() {
        let words = String::from_utf8_lossy(&output.stderr).trim().to_owned();
        bail!("{program} ended with {}: {words}", output.status);
    }
    Ok(output.stdout)
}
