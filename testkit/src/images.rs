//! Container images, made here from the static busybox and the target server; no registry is asked.
//!
//! [`TARGET`] has busybox with all its applets, `/target` (its entrypoint) and
//! `/home/game/idle.sh`, which exits 0 with "idle" while there is no file `/home/game/match`, and
//! else 1 with "in a match". [`PAUSE`] holds a sandbox open. [`SIDECAR`] serves HTTP at port 7000, with the release
//! as body of `/healthz`, and hands its listening socket over to the next release; its tag `sick` answers `/healthz` with
//! 503, and `empty` does nothing, for the idle container of a hot upgrade.

use std::fs::{self, File};
use std::io::BufWriter;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};
use leadsman_image::{Architecture, Config, Image, Layer, StaticProgram};

use crate::cache;
use crate::clock;
use crate::packages;
use crate::processes::{self, run};
use crate::progress::Progress;

/// The image of probe targets.
pub const TARGET: &str = "docker.io/local/target:1";
/// The image of sandboxes.
pub const PAUSE: &str = "docker.io/local/pause:1";

/// The image of sidecars, without a tag: the releases are `1`, `2` and `sick`.
pub const SIDECAR: &str = "docker.io/local/sidecar";

/// Permissions of a program.
const EXECUTABLE: u32 = 0o755;

const IDLE: &str = "#!/bin/sh
if [ -e /home/game/match ]; then
  echo 'in a match'
  exit 1
fi
echo idle
";

/// The archives of both images, made first if need be.
pub(crate) fn ensure(progress: &mut dyn FnMut(Progress)) -> Result<Vec<PathBuf>> {
    let target = fs::read(target_program(progress)?)?;
    let busybox = packages::find("busybox").context("busybox is not installed")?;
    let started = clock::now();
    let recipe = include_bytes!("images.rs");
    let key = cache::key([&target[..], &fs::read(&busybox)?, recipe]);
    let mut made = false;
    let folder = cache::entry(&format!("images-{key}"), |folder| {
        made = true;
        let program = StaticProgram::new(target).context("the target server")?;
        let architecture = program.architecture();
        let program = Layer::new().file("target", EXECUTABLE, program.into_content());
        let write = |name: &str, tag: &str, entrypoint: &[&str], layer: Layer| {
            write(folder, (name, tag), architecture, entrypoint, layer)
        };
        write("pause", "1", &["/target", "pause"], program.clone())?;
        for release in ["1", "2"] {
            let body = format!("body={release}");
            let entrypoint = ["/target", "handover", "--set", &body];
            write("sidecar", release, &entrypoint, program.clone())?;
        }
        let entrypoint = ["/target", "handover", "--set", "healthz=503"];
        write("sidecar", "sick", &entrypoint, program.clone())?;
        write("sidecar", "empty", &["/target", "pause"], program.clone())?;
        let idle = IDLE.as_bytes().to_owned();
        let files = busybox_with_applets(&busybox, program)?
            .file("home/game/idle.sh", EXECUTABLE, idle)
            .directory("tmp", 0o1777);
        write("target", "1", &["/target"], files)
    })?;
    if made {
        progress(Progress::Step {
            name: "images".into(),
            seconds: started.elapsed().as_secs_f64(),
        });
    }
    let mut archives = Vec::new();
    for entry in fs::read_dir(folder)? {
        archives.push(entry?.path());
    }
    Ok(archives)
}

/// Writes `NAME-TAG.tar`, the archive of an image `docker.io/local/NAME:TAG`.
fn write(
    folder: &Path,
    (name, tag): (&str, &str),
    architecture: Architecture,
    entrypoint: &[&str],
    layer: Layer,
) -> Result<()> {
    let image = Image {
        repository: format!("docker.io/local/{name}"),
        tag: tag.into(),
        architecture,
        created: jiff::Timestamp::UNIX_EPOCH,
        config: Config {
            entrypoint: entrypoint.iter().map(ToString::to_string).collect(),
            environment: vec!["PATH=/bin:/sbin:/usr/bin:/usr/sbin".into()],
            ..Config::default()
        },
        layer,
        compression: 1,
    };
    let path = folder.join(format!("{name}-{tag}.tar"));
    let written = image.write(BufWriter::new(File::create(&path)?));
    written.with_context(|| format!("writing {}", path.display()))?;
    Ok(())
}

fn busybox_with_applets(busybox: &Path, files: Layer) -> Result<Layer> {
    let files = files.file("bin/busybox", EXECUTABLE, fs::read(busybox)?);
    let applets = run(&busybox.display().to_string(), &["--list"])?;
    // A link of this name would point to itself.
    let applets = applets.lines().filter(|applet| *applet != "busybox");
    Ok(applets.fold(files, |files, applet| {
        files.link(&format!("bin/{applet}"), "/bin/busybox")
    }))
}

fn install(program: &Path, place: &Path) -> Result<()> {
    fs::copy(program, place).with_context(|| format!("copying {}", program.display()))?;
    fs::set_permissions(place, fs::Permissions::from_mode(EXECUTABLE))?;
    Ok(())
}

/// The target server, linked statically for an image without a libc; kept by its sources.
pub(crate) fn target_program(progress: &mut dyn FnMut(Progress)) -> Result<PathBuf> {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let sources = workspace.join("testkit/target");
    let mut ingredients = vec![
        fs::read(sources.join("Cargo.toml"))?,
        fs::read(workspace.join("Cargo.toml"))?,
    ];
    let mut files: Vec<PathBuf> = fs::read_dir(sources.join("src"))?
        .flatten()
        .map(|file| file.path())
        .collect();
    files.sort();
    for file in files {
        ingredients.push(fs::read(file)?);
    }
    let key = cache::key(ingredients.iter().map(Vec::as_slice));
    let folder = cache::entry(&format!("target-{key}"), |folder| {
        progress(Progress::Note("compiling the target server".into()));
        let started = clock::now();
        let version = run("rustc", &["-vV"])?;
        let host = version
            .lines()
            .find_map(|line| line.strip_prefix("host: "))
            .context("rustc names no host")?;
        // A folder of its own: other flags would throw away what the workspace has compiled.
        let build = workspace.join("target/static");
        let manifest = workspace.join("Cargo.toml");
        let output = processes::cargo()
            .args([
                "build",
                "--quiet",
                "-p",
                "leadsman-target",
                "--config",
                "profile.dev.opt-level=1",
                "--target",
                host,
            ])
            .arg("--manifest-path")
            .arg(&manifest)
            .arg("--target-dir")
            .arg(&build)
            .env(
                "RUSTFLAGS",
                "-C target-feature=+crt-static -C strip=symbols",
            )
            .output()
            .context("cannot run cargo")?;
        if !output.status.success() {
            anyhow::bail!(
                "the target server does not compile:\n{}",
                String::from_utf8_lossy(&output.stderr)
            );
        }
        install(
            &build.join(host).join("debug/leadsman-target"),
            &folder.join("target"),
        )?;
        progress(Progress::Step {
            name: "target server".into(),
            seconds: started.elapsed().as_secs_f64(),
        });
        Ok(())
    })?;
    Ok(folder.join("target"))
}
