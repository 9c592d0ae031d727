//! Writes the CRDs into `charts/leadsman/files/crds`. With `--check` it compares them with the files instead, and fails on a
//! difference. With `--fields` it prints their fields as a page of the documentation.

mod fields;

use std::path::Path;
use std::process::ExitCode;

use leadsman_api::crd;

fn main() -> std::io::Result<ExitCode> {
    let has = |flag: &str| std::env::args().any(|argument| argument == flag);
    if has("--fields") {
        let mut crds = crd::podprobe_crds().to_vec();
        crds.extend([
            crd::sidecar_set_crd(),
            crd::broadcast_job_crd(),
            crd::clone_set_crd(),
            crd::advanced_cron_job_crd(),
        ]);
        print!("{}", fields::page(&crds));
        return Ok(ExitCode::SUCCESS);
    }
    let check = has("--check");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/leadsman/files/crds");
    let mut stale = false;
    for (name, yaml) in crd::render() {
        let file = folder.join(name);
        if !check {
            std::fs::create_dir_all(file.parent().unwrap_or(&folder))?;
            std::fs::write(file, yaml)?;
        } else if std::fs::read_to_string(&file).ok() != Some(yaml) {
            eprintln!("{} differs from the CRD of the types", file.display());
            stale = true;
        }
    }
    if stale {
        eprintln!("run: cargo run -p leadsman-api --example crds");
    }
    Ok(ExitCode::from(u8::from(stale)))
}
