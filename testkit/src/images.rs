//! Container images, made here from the static busybox and the target server; no registry is asked.
//!
//! [`TARGET`] has busybox with all its applets, `/target` (its entrypoint) and
//! `/home/game/idle.sh`, which exits 0 with "idle" while there is no file `/home/game/match`, and
//! else 1 with "in a match". [`PAUSE`] holds a sandbox open.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result};

use crate::cache;
use crate::clock;
use crate::packages;
use crate::processes::{self, run};
use crate::progress::Progress;
use crate::request::ImageArchive;

/// The image of probe targets.
pub const TARGET: &str = "docker.io/local/target:1";
/// The image of sandboxes.
pub const PAUSE: &str = "docker.io/local/pause:1";

const IDLE: &str = "#!/bin/sh
if [ -e /home/game/match ]; then
  echo 'in a match'
  exit 1
fi
echo idle
";

/// The archives of both images, made first if need be.
pub(crate) fn ensure(progress: &mut dyn FnMut(Progress)) -> Result<Vec<ImageArchive>> {
    let target = target_program(progress)?;
    let busybox = packages::find("busybox").context("busybox is not installed")?;
    let started = clock::now();
    let recipe = include_bytes!("images.rs");
    let key = cache::key([&fs::read(&target)?[..], &fs::read(&busybox)?, recipe]);
    let mut made = false;
    let folder = cache::entry(&format!("images-{key}"), |folder| {
        made = true;
        image(folder, "pause", &["/target", "pause"], &|root| {
            install(&target, &root.join("target"))
        })?;
        image(folder, "target", &["/target"], &|root| {
            install(&target, &root.join("target"))?;
            busybox_with_applets(&busybox, root)?;
            let game = root.join("home/game");
            fs::create_dir_all(&game)?;
            fs::write(game.join("idle.sh"), IDLE)?;
            fs::set_permissions(game.join("idle.sh"), fs::Permissions::from_mode(0o755))?;
            fs::create_dir(root.join("tmp"))?;
            fs::set_permissions(root.join("tmp"), fs::Permissions::from_mode(0o1777))?;
            Ok(())
        })
    })?;
    if made {
        progress(Progress::Step {
            name: "images".into(),
            seconds: started.elapsed().as_secs_f64(),
        });
    }
    let archive = |name: &str| ImageArchive {
        name: format!("docker.io/local/{name}"),
        archive: folder.join(format!("{name}.tar")),
    };
    Ok(vec![archive("pause"), archive("target")])
}

/// Writes `NAME.tar`, an OCI archive whose one image has tag 1.
fn image(
    folder: &Path,
    name: &str,
    entrypoint: &[&str],
    fill: &dyn Fn(&Path) -> Result<()>,
) -> Result<()> {
    let layout = folder.join(format!("{name}-layout"));
    let bundle = folder.join(format!("{name}-bundle"));
    let (layout_arg, bundle_arg) = (layout.display().to_string(), bundle.display().to_string());
    let image = format!("{layout_arg}:1");
    run("umoci", &["init", "--layout", &layout_arg])?;
    run("umoci", &["new", "--image", &image])?;
    let mut unpack = vec!["unpack", "--image", &image, &bundle_arg];
    if !nix::unistd::Uid::effective().is_root() {
        // In the image the files are root's all the same.
        unpack.push("--rootless");
    }
    run("umoci", &unpack)?;
    fill(&bundle.join("rootfs"))?;
    run("umoci", &["repack", "--image", &image, &bundle_arg])?;
    let mut config = vec!["config", "--image", &image];
    config.extend(
        entrypoint
            .iter()
            .flat_map(|word| ["--config.entrypoint", word]),
    );
    config.extend(["--config.env", "PATH=/bin:/sbin:/usr/bin:/usr/sbin"]);
    run("umoci", &config)?;
    let archive = folder.join(format!("{name}.tar")).display().to_string();
    run("tar", &["-C", &layout_arg, "-cf", &archive, "."])?;
    cache::remove(&layout)?;
    cache::remove(&bundle)
}

fn busybox_with_applets(busybox: &Path, root: &Path) -> Result<()> {
    let bin = root.join("bin");
    fs::create_dir(&bin)?;
    install(busybox, &bin.join("busybox"))?;
    let applets = run(&busybox.display().to_string(), &["--list"])?;
    // A link of this name would point to itself.
    for applet in applets.lines().filter(|applet| *applet != "busybox") {
        symlink("/bin/busybox", bin.join(applet))?;
    }
    Ok(())
}

fn install(program: &Path, place: &Path) -> Result<()> {
    fs::copy(program, place).with_context(|| format!("copying {}", program.display()))?;
    fs::set_permissions(place, fs::Permissions::from_mode(0o755))?;
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
