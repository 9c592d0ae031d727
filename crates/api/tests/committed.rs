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
    let folders = ["", "SidecarSetGate", "BroadcastJobGate"].map(|gate| folder.join(gate));
    let files = folders
        .iter()
        .flat_map(|folder| std::fs::read_dir(folder).unwrap());
    let files = files.map(|file| file.unwrap());
    let files = files.filter(|file| file.file_type().unwrap().is_file());
    assert_eq!(
        files
            .filter(|file| file.file_name() != "kustomization.yaml")
            .count(),
        rendered.len(),
        "a file in {} is no CRD of ours",
        folder.display()
    );
}
