//! Certificates, keys and kubeconfigs of a bed: one authority for all, generated for every bed and
//! removed with it.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context as _, Result, bail};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair, KeyUsagePurpose, date_time_ymd,
};
use serde_json::json;

/// The bed's authority and the folder it writes to.
pub(crate) struct Authority {
    folder: PathBuf,
    issuer: Issuer<'static, KeyPair>,
}

/// Who a client is: its user name and its groups.
#[derive(Clone, Copy)]
pub(crate) struct Identity<'a> {
    pub(crate) user: &'a str,
    pub(crate) groups: &'a [&'a str],
}

impl Authority {
    /// A new authority; `ca.crt`, `ca.key` and the service accounts' `sa.key`, `sa.pub` are written.
    pub(crate) fn create(folder: &Path) -> Result<Self> {
        fs::create_dir_all(folder)?;
        let mut params = CertificateParams::default();
        params.distinguished_name = name(Identity {
            user: "leadsman-bed",
            groups: &[],
        })?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        validity(&mut params);
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?;
        write(&folder.join("ca.crt"), &certificate.pem())?;
        write(&folder.join("ca.key"), &key.serialize_pem())?;
        let service_accounts = KeyPair::generate()?;
        write(&folder.join("sa.key"), &service_accounts.serialize_pem())?;
        write(&folder.join("sa.pub"), &service_accounts.public_key_pem())?;
        Self::open(folder)
    }

    /// The authority another process created in `folder`.
    pub(crate) fn open(folder: &Path) -> Result<Self> {
        let read = |name: &str| {
            let path = folder.join(name);
            fs::read_to_string(&path).with_context(|| format!("reading {}", path.display()))
        };
        let issuer =
            Issuer::from_ca_cert_pem(&read("ca.crt")?, KeyPair::from_pem(&read("ca.key")?)?)?;
        Ok(Self {
            folder: folder.to_owned(),
            issuer,
        })
    }

    /// Writes `FILE.crt` and `FILE.key` of a server known by these names and addresses.
    pub(crate) fn server(&self, file: &str, names: &[&str]) -> Result<()> {
        let mut params =
            CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
        params.distinguished_name = name(Identity {
            user: file,
            groups: &[],
        })?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(file, params)
    }

    /// Writes `FILE.crt` and `FILE.key` of a client.
    pub(crate) fn client(&self, file: &str, identity: Identity<'_>) -> Result<()> {
        let mut params = CertificateParams::default();
        params.distinguished_name = name(identity)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(file, params)
    }

    /// Writes `FILE.kubeconfig` of a client with a certificate, all data inside, and returns its path.
    pub(crate) fn kubeconfig(
        &self,
        file: &str,
        server: &str,
        identity: Identity<'_>,
    ) -> Result<PathBuf> {
        self.client(file, identity)?;
        let key = fs::read_to_string(self.path(&format!("{file}.key")))?;
        let certificate = fs::read_to_string(self.path(&format!("{file}.crt")))?;
        let user = json!({
            "client-certificate-data": base64(certificate.as_bytes()),
            "client-key-data": base64(key.as_bytes()),
        });
        self.write_kubeconfig(file, server, &user)
    }

    /// Writes `FILE.kubeconfig` of a client with a bearer token and returns its path.
    pub(crate) fn token_kubeconfig(
        &self,
        file: &str,
        server: &str,
        token: &str,
    ) -> Result<PathBuf> {
        self.write_kubeconfig(file, server, &json!({ "token": token }))
    }

    /// The path of a file of this authority.
    pub(crate) fn path(&self, file: &str) -> PathBuf {
        self.folder.join(file)
    }

    fn write_kubeconfig(
        &self,
        file: &str,
        server: &str,
        user: &serde_json::Value,
    ) -> Result<PathBuf> {
        let authority = base64(&fs::read(self.path("ca.crt"))?);
        let config = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{ "name": "bed", "cluster": { "server": server, "certificate-authority-data": authority } }],
            "users": [{ "name": "bed", "user": user }],
            "contexts": [{ "name": "bed", "context": { "cluster": "bed", "user": "bed" } }],
            "current-context": "bed",
        });
        let path = self.path(&format!("{file}.kubeconfig"));
        write(&path, &serde_json::to_string_pretty(&config)?)?;
        Ok(path)
    }

    fn sign(&self, file: &str, mut params: CertificateParams) -> Result<()> {
        validity(&mut params);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyEncipherment,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.signed_by(&key, &self.issuer)?;
        write(&self.path(&format!("{file}.crt")), &certificate.pem())?;
        write(&self.path(&format!("{file}.key")), &key.serialize_pem())
    }
}

/// A bed lives for hours; a wide fixed span spares it a look at the clock.
fn validity(params: &mut CertificateParams) {
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2099, 1, 1);
}

fn name(identity: Identity<'_>) -> Result<DistinguishedName> {
    // A name holds one value per type here, so a second group goes in under the type's raw number.
    let types = [
        DnType::OrganizationName,
        DnType::CustomDnType(vec![2, 5, 4, 10]),
    ];
    if identity.groups.len() > types.len() {
        bail!(
            "{}: a client certificate of the bed holds two groups at most",
            identity.user
        );
    }
    let mut name = DistinguishedName::new();
    for (kind, group) in types.into_iter().zip(identity.groups) {
        name.push(kind, *group);
    }
    name.push(DnType::CommonName, identity.user);
    Ok(name)
}

fn write(path: &Path, text: &str) -> Result<()> {
    use std::io::Write as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    let mut file = fs::OpenOptions::new()
        .create(true)
        .truncate(true)
        .write(true)
        .mode(0o600)
        .open(path)
        .with_context(|| format!("creating {}", path.display()))?;
    file.write_all(text.as_bytes())
        .with_context(|| format!("writing {}", path.display()))
}

/// Kubeconfigs carry their data in this form.
fn base64(bytes: &[u8]) -> String {
    const ALPHABET: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut text = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for chunk in bytes.chunks(3) {
        let group = (0..3).fold(0u32, |group, at| {
            group << 8 | u32::from(chunk.get(at).copied().unwrap_or(0))
        });
        for at in 0..4usize {
            if at <= chunk.len() {
                text.push(char::from(ALPHABET[(group >> (18 - 6 * at)) as usize & 63]));
            } else {
                text.push('=');
            }
        }
    }
    text
}

#[cfg(test)]
mod tests {
    #[test]
    fn base64_pads_as_the_standard_says() {
        for (plain, coded) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(super::base64(plain.as_bytes()), coded);
        }
    }
}
