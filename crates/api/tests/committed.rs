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
    let names = std::fs::read_dir(&folder).unwrap();
    let names = names.map(|file| file.unwrap().file_name());
    let files = names.filter(|name| name != "kustomization.yaml");
    assert_eq!(
        files.count(),
        rendered.len(),
        "a file in {} is no CRD of ours",
        folder.display()
    );
}
