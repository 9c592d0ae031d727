//! A mounted directory with `tls.crt`, `tls.key` and `ca.crt`, as cert-manager names them in a Secret. It is watched:
//! the kubelet replaces the symlink `..data` atomically (`pkg/volume/util/atomic_writer.go`), other tools write or
//! rename the files.
//!
//! Without `ca.crt` (an issuer that the API server trusts anyway), and where cert-manager's cainjector fills it in, the
//! bundle of the webhook configuration is left alone. The files are served as soon as they change: the transition to a
//! new CA is cert-manager's task.

use std::io;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::Duration;

use jiff::Timestamp;
use leadsman_process::clock;
use leadsman_process::watch;
use nix::sys::inotify::{AddWatchFlags, InitFlags, Inotify, InotifyEvent};

use super::publish::CertificatePublisher;
use super::{CaBundle, Certificate, CertificateError, Pem};

/// The interval of checks of the expiry, since the time of day may jump.
const LOOK: Duration = Duration::from_hours(1);

/// Why the certificate in a directory cannot be served.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DirectoryError {
    #[error("cannot watch {}: {source}", path.display())]
    Watch { path: PathBuf, source: io::Error },
    #[error("cannot read {}: {source}", path.display())]
    Read { path: PathBuf, source: io::Error },
    #[error("{} is empty: write the CA, or remove the file if the API server trusts it anyway", path.display())]
    EmptyBundle { path: PathBuf },
    #[error("the certificate in {} cannot be served: {source}", path.display())]
    Certificate {
        path: PathBuf,
        source: CertificateError,
    },
}

/// The loop that follows a directory.
pub(crate) struct Directory {
    path: PathBuf,
    names: Vec<String>,
    publisher: CertificatePublisher,
    events: watch::Receiver<()>,
    /// The expiry of the served certificate.
    served_until: Option<Timestamp>,
}

impl Directory {
    /// Watches a directory that has a certificate for these names.
    pub(crate) fn watch_directory(
        path: PathBuf,
        names: Vec<String>,
        publisher: CertificatePublisher,
    ) -> Result<Self, DirectoryError> {
        match watch_files(&path) {
            Ok(events) => Ok(Self {
                path,
                names,
                publisher,
                events,
                served_until: None,
            }),
            Err(source) => Err(DirectoryError::Watch { path, source }),
        }
    }

    /// Never returns.
    pub(crate) async fn run(mut self) {
        loop {
            self.serve_current_files();
            let expires = self.served_until.map(|not_after| {
                let left = not_after.duration_since(clock::now());
                clock::monotonic() + Duration::try_from(left).unwrap_or_default().min(LOOK)
            });
            tokio::select! {
                // Either leads to a look at the files, which also sees whether the certificate has expired.
                biased;
                changed = self.events.changed() => if changed.is_err() {
                    break;
                },
                () = clock::sleep_until(expires) => {}
            }
        }
        let path = self.path.display();
        let reason = format!("the directory {path} was removed or cannot be watched any more");
        tracing::error!(
            reason,
            "no longer watching the webhooks' certificate directory; restart the manager when it is back"
        );
        self.publisher.set_not_ready(reason);
    }

    /// Serves the certificate in the directory, or keeps the one before. Another event follows when a half-written file
    /// is complete.
    fn serve_current_files(&mut self) {
        let read = self.read_pair();
        let trouble = match read {
            Ok((certificate, bundle)) => {
                self.publisher.publish_certificate(&certificate, bundle);
                self.served_until = Some(certificate.not_after);
                format!("the certificate expired at {}", certificate.not_after)
            }
            Err(error) => {
                tracing::warn!(%error, "cannot load the webhooks' new certificate, the old one is served until it expires");
                error.to_string()
            }
        };
        let now = clock::now();
        self.served_until = self.served_until.filter(|not_after| now < *not_after);
        if self.served_until.is_some() {
            self.publisher.set_ready();
        } else {
            self.publisher.set_not_ready(trouble);
        }
    }

    fn read_pair(&self) -> Result<(Certificate, CaBundle), DirectoryError> {
        let file = |name: &str| {
            let path = self.path.join(name);
            std::fs::read(&path).map_err(|source| DirectoryError::Read { path, source })
        };
        let bundle = match file("ca.crt") {
            Ok(bundle) if bundle.trim_ascii().is_empty() => {
                let path = self.path.join("ca.crt");
                return Err(DirectoryError::EmptyBundle { path });
            }
            Ok(bundle) => CaBundle::Pem(bundle),
            Err(DirectoryError::Read { source, .. })
                if source.kind() == io::ErrorKind::NotFound =>
            {
                CaBundle::Elsewhere
            }
            Err(error) => return Err(error),
        };
        let pem = Pem {
            chain: file("tls.crt")?,
            key: file("tls.key")?,
        };
        let usable = || {
            let certificate = Certificate::from_pem(&pem)?;
            certificate.check_names(&self.names)?;
            if let CaBundle::Pem(bundle) = &bundle {
                certificate.check_trusted_by(bundle)?;
            }
            Ok(certificate)
        };
        match usable() {
            Ok(certificate) => Ok((certificate, bundle)),
            Err(source) => {
                let path = self.path.clone();
                Err(DirectoryError::Certificate { path, source })
            }
        }
    }
}

/// Starts a thread that waits for events in a directory, and returns a receiver that changes with each event and closes
/// when the directory is gone. A thread, since registering the descriptor with the runtime would be unsafe (tokio's
/// `AsyncFd`).
fn watch_files(path: &Path) -> io::Result<watch::Receiver<()>> {
    let inotify = Inotify::init(InitFlags::IN_CLOEXEC)?;
    // A symlink that is made anew is only created (man 7 inotify): nothing writes or closes it.
    let changes = AddWatchFlags::IN_CLOSE_WRITE
        | AddWatchFlags::IN_MOVED_TO
        | AddWatchFlags::IN_CREATE
        | AddWatchFlags::IN_ONLYDIR;
    inotify.add_watch(path, changes)?;
    let (sender, receiver) = watch::channel(());
    thread::Builder::new()
        .name("webhook-certs".to_owned())
        .spawn(move || {
            let gone = |event: &InotifyEvent| event.mask.contains(AddWatchFlags::IN_IGNORED);
            while let Ok(events) = inotify.read_events() {
                if events.iter().any(gone) || sender.send(()).is_err() {
                    return;
                }
            }
        })?;
    Ok(receiver)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use leadsman_process::{Metrics as Registry, Readiness};

    use super::*;
    use crate::certificate::tests::{YEAR, names};
    use crate::certificate::{KeySource, issue_certificate};
    use crate::metrics::AdmissionMetrics;

    fn write(folder: &Path, name: &str) -> Vec<u8> {
        let issued =
            issue_certificate(&names(&[name]), clock::now(), YEAR, &mut KeySource::System).unwrap();
        fs::create_dir_all(folder).unwrap();
        fs::write(folder.join("tls.crt"), &issued.pem.chain).unwrap();
        fs::write(folder.join("tls.key"), &issued.pem.key).unwrap();
        fs::write(folder.join("ca.crt"), &issued.ca).unwrap();
        issued.ca
    }

    /// As the kubelet does it.
    fn swap(root: &Path, version: &str) {
        symlink(version, root.join("..data_tmp")).unwrap();
        fs::rename(root.join("..data_tmp"), root.join("..data")).unwrap();
    }

    #[tokio::test]
    async fn what_the_kubelet_swaps_in_is_served_and_what_is_for_others_is_not() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let first = write(&root.join("..1"), "a.b.svc");
        swap(root, "..1");
        for file in ["tls.crt", "tls.key", "ca.crt"] {
            symlink(Path::new("..data").join(file), root.join(file)).unwrap();
        }
        let readiness = Readiness::default();
        let check = readiness.add_check("webhook certificates", "not read");
        let publisher =
            CertificatePublisher::new(AdmissionMetrics::new(&Registry::default()), check);
        let (mut bundle, certificate) = (
            publisher.subscribe_to_bundle(),
            publisher.subscribe_to_certificate(),
        );
        let directory = Directory::watch_directory(root.to_owned(), names(&["a.b.svc"]), publisher);
        let mut directory = directory.unwrap();
        directory.serve_current_files();
        assert_eq!(*bundle.borrow_and_update(), CaBundle::Pem(first));
        let served = certificate.borrow().clone().unwrap();

        write(&root.join("..2"), "another.b.svc");
        swap(root, "..2");
        directory.serve_current_files();
        let still = certificate.borrow().clone().unwrap();
        assert_eq!(served.cert, still.cert);
        assert!(readiness.is_ready(), "{}", readiness.to_text());

        let followed = tokio::spawn(directory.run());
        let third = write(&root.join("..3"), "a.b.svc");
        swap(root, "..3");
        let third = CaBundle::Pem(third);
        bundle.wait_for(|bundle| *bundle == third).await.unwrap();
        assert_ne!(served.cert, certificate.borrow().clone().unwrap().cert);
        followed.abort();
    }

    #[tokio::test]
    async fn only_a_missing_bundle_is_somebody_elses() {
        let root = tempfile::tempdir().unwrap();
        let root = root.path();
        let first = CaBundle::Pem(write(root, "a.b.svc"));
        let check = Readiness::default().add_check("webhook certificates", "not read");
        let publisher =
            CertificatePublisher::new(AdmissionMetrics::new(&Registry::default()), check);
        let bundle = publisher.subscribe_to_bundle();
        let directory = Directory::watch_directory(root.to_owned(), names(&["a.b.svc"]), publisher);
        let mut directory = directory.unwrap();
        let path = root.join("ca.crt");
        let mut after = |expected: &CaBundle, case| {
            directory.serve_current_files();
            assert_eq!(*bundle.borrow(), *expected, "{case}");
        };
        after(&first, "written");
        fs::write(&path, "").unwrap();
        after(&first, "empty");
        fs::remove_file(&path).unwrap();
        fs::create_dir(&path).unwrap();
        after(&first, "cannot be read");
        fs::remove_dir(&path).unwrap();
        after(&CaBundle::Elsewhere, "missing");
    }

    #[tokio::test]
    async fn a_directory_without_a_certificate_is_not_ready_until_it_has_one() {
        let root = tempfile::tempdir().unwrap();
        let readiness = Readiness::default();
        let check = readiness.add_check("webhook certificates", "not read");
        let publisher =
            CertificatePublisher::new(AdmissionMetrics::new(&Registry::default()), check);
        let mut certificate = publisher.subscribe_to_certificate();
        let directory =
            Directory::watch_directory(root.path().to_owned(), names(&["a.b.svc"]), publisher);
        let mut directory = directory.unwrap();
        directory.serve_current_files();
        assert!(
            readiness.to_text().contains("tls.crt"),
            "{}",
            readiness.to_text()
        );
        let followed = tokio::spawn(directory.run());
        write(root.path(), "a.b.svc");
        certificate.wait_for(Option::is_some).await.unwrap();
        followed.abort();
    }
}
