//! An image and its archive: a tar file of the layout `blobs/sha256/DIGEST`, `index.json`, `oci-layout`.
//!
//! `manifest.json` beside them names the same blobs in the older form, by which `docker load` with Docker's own image
//! store and `kind load image-archive` find an image. containerd and podman prefer the OCI layout where there is one
//! (containerd, `images/archive/importer.go`).

use std::collections::BTreeMap;
use std::io::{self, Write};

use flate2::{Compression, GzBuilder};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use crate::layer::Layer;
use crate::program::Architecture;

/// An image of one layer.
#[derive(Debug)]
pub struct Image {
    /// The full name of its repository, as containerd keeps it: `docker.io/library/leadsman`.
    pub repository: String,
    /// The image's tag.
    pub tag: String,
    /// The architecture of its programs, which run on Linux.
    pub architecture: Architecture,
    /// The time of the image and of all its files.
    pub created: jiff::Timestamp,
    /// How a container of it is run.
    pub config: Config,
    /// The image's files.
    pub layer: Layer,
    /// How hard to compress, from 0 (not at all) to 9.
    pub compression: u32,
}

/// How a container is run where its pod says nothing else.
#[derive(Debug, Default)]
pub struct Config {
    /// User and group, as numbers: the kubelet can tell from these alone that a container is not root's (`runAsNonRoot`).
    pub user: String,
    /// The program and its first arguments.
    pub entrypoint: Vec<String>,
    /// `NAME=VALUE`.
    pub environment: Vec<String>,
    /// Labels, such as those of OCI's `annotations.md`.
    pub labels: BTreeMap<String, String>,
}

/// A part of an archive. Each blob is a file named by its digest.
struct Blob {
    digest: String,
    content: Vec<u8>,
}

impl Image {
    /// Writes the archive and returns the digest of the image's manifest, as `sha256:HEX`.
    pub fn write(&self, archive: impl Write) -> io::Result<String> {
        let time = u64::try_from(self.created.as_second()).unwrap_or_default();
        let files = self.layer.archive(time)?;
        let layer = Blob::new(self.compressed(&files)?);
        let config = Blob::json(&self.config_file(&sha256(&files)));
        let manifest = Blob::json(&manifest(&config, &layer));
        let digest = manifest.digest.clone();
        let named = [
            ("index.json", self.index(&manifest)),
            ("manifest.json", self.docker_manifest(&config, &layer)),
            ("oci-layout", json!({"imageLayoutVersion": "1.0.0"})),
        ];
        let mut all = Layer::new();
        for blob in [config, layer, manifest] {
            all = all.file(&blob.path(), 0o644, blob.content);
        }
        for (name, json) in named {
            all = all.file(name, 0o644, json.to_string().into_bytes());
        }
        let mut archive = archive;
        archive.write_all(&all.archive(time)?)?;
        archive.flush()?;
        Ok(digest)
    }

    fn compressed(&self, files: &[u8]) -> io::Result<Vec<u8>> {
        let level = Compression::new(self.compression);
        let mut encoder = GzBuilder::new().write(Vec::new(), level);
        encoder.write_all(files)?;
        encoder.finish()
    }

    fn config_file(&self, diff_id: &str) -> Value {
        json!({
            "created": self.created.to_string(),
            "architecture": self.architecture.to_string(),
            "os": "linux",
            "config": {
                "User": self.config.user,
                "Env": self.config.environment,
                "Entrypoint": self.config.entrypoint,
                "Labels": self.config.labels,
            },
            "rootfs": {"type": "layers", "diff_ids": [diff_id]},
        })
    }

    fn index(&self, manifest: &Blob) -> Value {
        let mut descriptor = manifest.descriptor("application/vnd.oci.image.manifest.v1+json");
        descriptor["platform"] =
            json!({"architecture": self.architecture.to_string(), "os": "linux"});
        // The first is OCI's, the second is how containerd's importer learns the whole name.
        descriptor["annotations"] = json!({
            "org.opencontainers.image.ref.name": self.tag,
            "io.containerd.image.name": format!("{}:{}", self.repository, self.tag),
        });
        json!({
            "schemaVersion": 2,
            "mediaType": "application/vnd.oci.image.index.v1+json",
            "manifests": [descriptor],
        })
    }

    fn docker_manifest(&self, config: &Blob, layer: &Blob) -> Value {
        let repository = self.repository.as_str();
        // Docker itself leaves out what it would add.
        let familiar = repository.strip_prefix("docker.io/library/");
        let name = format!("{}:{}", familiar.unwrap_or(repository), self.tag);
        json!([{"Config": config.path(), "RepoTags": [name], "Layers": [layer.path()]}])
    }
}

fn manifest(config: &Blob, layer: &Blob) -> Value {
    json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config.descriptor("application/vnd.oci.image.config.v1+json"),
        "layers": [layer.descriptor("application/vnd.oci.image.layer.v1.tar+gzip")],
    })
}

impl Blob {
    fn new(content: Vec<u8>) -> Self {
        Self {
            digest: sha256(&content),
            content,
        }
    }

    fn json(value: &Value) -> Self {
        Self::new(value.to_string().into_bytes())
    }

    fn path(&self) -> String {
        format!("blobs/{}", self.digest.replace(':', "/"))
    }

    fn descriptor(&self, media_type: &str) -> Value {
        json!({"mediaType": media_type, "digest": self.digest, "size": self.content.len()})
    }
}

/// The digest of these bytes, as `sha256:HEX`.
fn sha256(content: &[u8]) -> String {
    use std::fmt::Write as _;
    let hash = Sha256::digest(content);
    hash.iter().fold("sha256:".to_owned(), |mut digest, byte| {
        write!(digest, "{byte:02x}").expect("a String takes all");
        digest
    })
}

#[cfg(test)]
mod tests;
