//! The committed CRDs are those of the types.

use std::path::Path;

#[test]
fn crds_are_up_to_date() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../charts/leadsman/files/crds");
    let rendered = leadsman_api::crd::render();
    for (name, yaml) in &rendered {
        let committed = std::fs::read_to_string(folder.join(name)).unwrap_or_default();
        assert_eq!(
            &committed, yaml,
            "run: cargo run -p leadsman-api --example crds"
        );
    }
    // Each gate that adds CRDs has a folder.
    let entries = std::fs::read_dir(&folder).unwrap();
    let entries: Vec<_> = entries.map(|entry| entry.unwrap().path()).collect();
    let folders = entries.iter().filter(|entry| entry.is_dir());
    let in_folders = folders.flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let in_folders = in_folders.map(|entry| entry.unwrap().path());
    let files = entries.iter().cloned().chain(in_folders);
    let files = files.filter(|file| file.is_file());
    assert_eq!(
        files
            .filter(|file| !file.ends_with("kustomization.yaml"))
            .count(),
        rendered.len(),
        "a file in {} is no CRD of ours",
        folder.display()
    );
}
