//! Writes the CRDs into `crates/api/crds`; with `--check` says whether what is there is what would be written.

use std::path::Path;
use std::process::ExitCode;

fn main() -> std::io::Result<ExitCode> {
    let check = std::env::args().any(|argument| argument == "--check");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("crds");
    let mut stale = false;
    for (name, yaml) in leadsman_api::crd::render() {
        let file = folder.join(name);
        if !check {
            std::fs::create_dir_all(&folder)?;
            std::fs::write(file, yaml)?;
        } else if std::fs::read_to_string(&file).ok() != Some(yaml) {
            eprintln!("{} is not what the types say", file.display());
            stale = true;
        }
    }
    if stale {
        eprintln!("run: cargo run -p leadsman-api --example crds");
    }
    Ok(ExitCode::from(u8::from(stale)))
}
