//! An archive, read back by what the OCI image specification says of it.

use std::io::Read as _;

use flate2::read::GzDecoder;
use tar::EntryType::{Directory, Regular, Symlink};

use super::*;

const TIME: i64 = 1_763_800_000;

fn image(layer: Layer) -> Image {
    Image {
        repository: "docker.io/library/sample".into(),
        tag: "1.2.3".into(),
        architecture: Architecture::Arm64,
        created: jiff::Timestamp::from_second(TIME).unwrap(),
        config: Config {
            user: "65532:65532".into(),
            entrypoint: vec!["/bin/sample".into(), "run".into()],
            environment: vec!["PATH=/bin".into()],
            labels: BTreeMap::from([("a.label".into(), "its value".into())]),
        },
        layer,
        compression: 6,
    }
}

fn layer() -> Layer {
    Layer::new()
        .file("bin/sample", 0o755, b"program".to_vec())
        .link("bin/alias", "/bin/sample")
        .directory("tmp", 0o1777)
}

/// The archive of an image, and what `write` says its digest is.
fn archive(image: &Image) -> (Vec<u8>, String) {
    let mut archive = Vec::new();
    let digest = image.write(&mut archive).unwrap();
    (archive, digest)
}

fn files(archive: &[u8]) -> BTreeMap<String, Vec<u8>> {
    let mut archive = tar::Archive::new(archive);
    let files = archive.entries().unwrap().map(|entry| {
        let mut entry = entry.unwrap();
        let mut content = Vec::new();
        entry.read_to_end(&mut content).unwrap();
        let path = entry.path().unwrap().display().to_string();
        (path.trim_end_matches('/').to_owned(), content)
    });
    files.collect()
}

/// The file that a descriptor is about, after its size and its digest were compared.
fn blob<'a>(files: &'a BTreeMap<String, Vec<u8>>, descriptor: &Value) -> &'a [u8] {
    let digest = descriptor["digest"].as_str().unwrap();
    let content = &files[&format!("blobs/{}", digest.replace(':', "/"))];
    assert_eq!(digest, sha256(content));
    assert_eq!(descriptor["size"], content.len());
    content
}

fn parsed(json: &[u8]) -> Value {
    serde_json::from_slice(json).unwrap()
}

#[test]
fn every_descriptor_leads_to_its_blob() {
    let (archive, digest) = archive(&image(layer()));
    let files = files(&archive);
    assert_eq!(parsed(&files["oci-layout"])["imageLayoutVersion"], "1.0.0");
    let index = parsed(&files["index.json"]);
    assert_eq!(index["manifests"][0]["digest"], digest);
    let manifest = parsed(blob(&files, &index["manifests"][0]));
    let config = parsed(blob(&files, &manifest["config"]));
    let compressed = blob(&files, &manifest["layers"][0]);
    let mut layer = Vec::new();
    GzDecoder::new(compressed).read_to_end(&mut layer).unwrap();
    assert_eq!(config["rootfs"]["diff_ids"], json!([sha256(&layer)]));
}

#[test]
fn a_digest_is_the_sha256_in_hexadecimal() {
    // FIPS 180-2, appendix B.1.
    let expected = "sha256:ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
    assert_eq!(sha256(b"abc"), expected);
}

#[test]
fn the_image_is_named_for_containerd_and_for_docker() {
    let files = files(&archive(&image(layer())).0);
    let index = parsed(&files["index.json"]);
    let descriptor = &index["manifests"][0];
    assert_eq!(
        descriptor["annotations"],
        json!({
            "io.containerd.image.name": "docker.io/library/sample:1.2.3",
            "org.opencontainers.image.ref.name": "1.2.3",
        })
    );
    assert_eq!(
        descriptor["platform"],
        json!({"architecture": "arm64", "os": "linux"})
    );
    let docker = parsed(&files["manifest.json"]);
    assert_eq!(docker[0]["RepoTags"], json!(["sample:1.2.3"]));
    let manifest = parsed(blob(&files, descriptor));
    let path = |descriptor: &Value| {
        format!(
            "blobs/{}",
            descriptor["digest"].as_str().unwrap().replace(':', "/")
        )
    };
    assert_eq!(docker[0]["Config"], path(&manifest["config"]));
    assert_eq!(docker[0]["Layers"], json!([path(&manifest["layers"][0])]));
}

#[test]
fn the_config_says_how_a_container_is_run() {
    let files = files(&archive(&image(layer())).0);
    let index = parsed(&files["index.json"]);
    let manifest = parsed(blob(&files, &index["manifests"][0]));
    let config = parsed(blob(&files, &manifest["config"]));
    assert_eq!(config["created"], "2025-11-22T08:26:40Z");
    assert_eq!(
        (&config["os"], &config["architecture"]),
        (&json!("linux"), &json!("arm64"))
    );
    assert_eq!(
        config["config"],
        json!({
            "User": "65532:65532",
            "Env": ["PATH=/bin"],
            "Entrypoint": ["/bin/sample", "run"],
            "Labels": {"a.label": "its value"},
        })
    );
}

#[test]
fn files_belong_to_root_and_have_the_images_time() {
    let files = files(&archive(&image(layer())).0);
    let index = parsed(&files["index.json"]);
    let manifest = parsed(blob(&files, &index["manifests"][0]));
    let mut layer = tar::Archive::new(GzDecoder::new(blob(&files, &manifest["layers"][0])));
    let mut found = Vec::new();
    for entry in layer.entries().unwrap() {
        let entry = entry.unwrap();
        let header = entry.header();
        assert_eq!((header.uid().unwrap(), header.gid().unwrap()), (0, 0));
        assert_eq!(header.mtime().unwrap(), TIME.unsigned_abs());
        let path = entry.path().unwrap().display().to_string();
        found.push((path, header.entry_type(), header.mode().unwrap()));
    }
    let expected = [
        ("bin/", Directory, 0o755),
        ("bin/alias", Symlink, 0o777),
        ("bin/sample", Regular, 0o755),
        ("tmp/", Directory, 0o1777),
    ];
    assert_eq!(
        found,
        expected.map(|(path, kind, mode)| (path.to_owned(), kind, mode))
    );
}

#[test]
fn the_same_files_give_the_same_bytes_in_whichever_order() {
    let other = Layer::new()
        .directory("tmp", 0o1777)
        .link("bin/alias", "/bin/sample")
        .file("bin/sample", 0o755, b"program".to_vec());
    assert_eq!(archive(&image(layer())), archive(&image(other)));
    let changed = layer().file("bin/sample", 0o755, b"Program".to_vec());
    assert_ne!(archive(&image(layer())).1, archive(&image(changed)).1);
}
