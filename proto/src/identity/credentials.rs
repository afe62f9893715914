//! Credentials of a worker.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use longhaul_common::id::{RunId, WorkerId};
use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::sign::CertifiedKey;
use x509_parser::parse_x509_certificate;

use super::authority::{RESET_CONTEXT, run_of};
use super::{NameError, PeerName, pem_text};

/// A worker's certificate, its key, and the authority of the run.
#[derive(Debug)]
pub struct Identity {
    worker: WorkerId,
    run: RunId,
    issued_at_unix_s: u64,
    expires_at_unix_s: u64,
    certificate: CertificateDer<'static>,
    authority: CertificateDer<'static>,
    key: PrivatePkcs8KeyDer<'static>,
}

/// Errors of reading, writing or checking an identity.
#[derive(Debug, thiserror::Error)]
pub enum IdentityError {
    /// A file operation failed.
    #[error("{what} {path}: {source}")]
    File {
        /// Operation attempted.
        what: &'static str,
        /// Path.
        path: PathBuf,
        /// Cause.
        source: io::Error,
    },
    /// The file does not contain an identity.
    #[error("{path} does not contain an identity: remove it and join with a token")]
    Damaged {
        /// File.
        path: PathBuf,
    },
    /// The authority's certificate names no run.
    #[error("the authority's certificate names no run")]
    NoAuthority,
    /// The certificate names no member of the authority's run.
    #[error(transparent)]
    Name(#[from] NameError),
    /// The certificate is the coordinator's.
    #[error("the certificate is not a worker's")]
    NotAWorker,
    /// The key is not the certificate's.
    #[error("the key does not belong to the certificate: {0}")]
    Key(#[from] rustls::Error),
}

const FILE_NAME: &str = "identity.pem";

impl Identity {
    /// Creates an identity: the certificate must name a worker of the authority's run and belong to the key.
    ///
    /// # Errors
    /// [`IdentityError`] if they do not match.
    pub fn new(
        certificate: CertificateDer<'static>,
        authority: CertificateDer<'static>,
        key: PrivatePkcs8KeyDer<'static>,
    ) -> Result<Self, IdentityError> {
        let run = run_of(&authority).ok_or(IdentityError::NoAuthority)?;
        let PeerName::Worker(worker) = PeerName::of_certificate(&certificate, run)? else {
            return Err(IdentityError::NotAWorker);
        };
        let provider = rustls::crypto::ring::default_provider();
        CertifiedKey::from_der(vec![certificate.clone()], key.clone_key().into(), &provider)?.keys_match()?;
        let (_, parsed) = parse_x509_certificate(&certificate).map_err(|_| NameError::Unreadable)?;
        let unix_s = |timestamp: i64| u64::try_from(timestamp).unwrap_or(0);
        let issued_at_unix_s = unix_s(parsed.validity().not_before.timestamp());
        let expires_at_unix_s = unix_s(parsed.validity().not_after.timestamp());
        Ok(Self { worker, run, issued_at_unix_s, expires_at_unix_s, certificate, authority, key })
    }

    /// Reads the identity that [`Self::save`] wrote to a folder; `None`: absent.
    ///
    /// # Errors
    /// [`IdentityError`] if it exists but cannot be read.
    pub fn load(folder: &Path) -> Result<Option<Self>, IdentityError> {
        let path = folder.join(FILE_NAME);
        let text = match fs::read_to_string(&path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(failed("read", &path))?,
        };
        let text = pem_text::read(&text).ok_or_else(|| IdentityError::Damaged { path: path.clone() })?;
        let [certificate, authority] =
            <[_; 2]>::try_from(text.certificates).map_err(|_| IdentityError::Damaged { path })?;
        Self::new(certificate, authority, text.key).map(Some)
    }

    /// Writes the identity to `identity.pem` in a folder, which it creates if missing: readable by the user
    /// only, and replaced atomically, so that a crash leaves the old or the new one.
    ///
    /// # Errors
    /// [`IdentityError::File`]
    pub fn save(&self, folder: &Path) -> Result<(), IdentityError> {
        let text = pem_text::write(&[&self.certificate, &self.authority], self.key.secret_pkcs8_der());
        let path = folder.join(FILE_NAME);
        let fresh = folder.join(format!("{FILE_NAME}.new"));
        DirBuilder::new().recursive(true).mode(0o700).create(folder).map_err(failed("create", folder))?;
        write_private(&fresh, &text).map_err(failed("write", &fresh))?;
        fs::rename(&fresh, &path).map_err(failed("replace", &path))?;
        File::open(folder).and_then(|folder| folder.sync_all()).map_err(failed("sync", folder))
    }

    /// Returns the worker.
    #[must_use]
    pub fn worker(&self) -> WorkerId {
        self.worker
    }

    /// Returns the run.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Returns the second of expiry (Unix time).
    #[must_use]
    pub fn expires_at_unix_s(&self) -> u64 {
        self.expires_at_unix_s
    }

    /// Returns the time of renewal (Unix time): half its validity, which leaves the other half for an absent
    /// coordinator.
    #[must_use]
    pub fn renew_at_unix_s(&self) -> u64 {
        self.issued_at_unix_s + self.expires_at_unix_s.saturating_sub(self.issued_at_unix_s) / 2
    }

    /// Returns the authority of the run.
    #[must_use]
    pub fn authority(&self) -> &CertificateDer<'static> {
        &self.authority
    }

    /// Returns this worker's certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the secret of this worker's [`ResetKey`](crate::transport::ResetKey), which lasts as long as
    /// its key.
    #[must_use]
    pub fn reset_secret(&self) -> [u8; 32] {
        blake3::derive_key(RESET_CONTEXT, self.key.secret_pkcs8_der())
    }

    /// Returns the certificate's key, for connections other than QUIC. It must not leave the process.
    #[must_use]
    pub fn private_key(&self) -> &PrivatePkcs8KeyDer<'static> {
        &self.key
    }

    /// Returns the certificate for peers, which know the authority.
    pub(super) fn chain(&self) -> Vec<CertificateDer<'static>> {
        vec![self.certificate.clone()]
    }

    pub(super) fn key(&self) -> PrivateKeyDer<'static> {
        self.key.clone_key().into()
    }
}

/// Wraps an error of a file operation.
fn failed(what: &'static str, path: &Path) -> impl FnOnce(io::Error) -> IdentityError {
    move |source| IdentityError::File { what, path: path.to_owned(), source }
}

/// Writes a private file and syncs it to disk.
fn write_private(path: &Path, text: &str) -> io::Result<()> {
    // The remains of a crash may have any mode, and `mode` applies to new files only.
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::super::{Authority, WORKER_CERTIFICATE_S, WorkerKey};
    use super::*;

    const NOW: u64 = 1_900_000_000;

    fn issue(worker: u32) -> (Authority, WorkerKey, CertificateDer<'static>) {
        let authority = Authority::create(RunId([3; 16]), NOW).unwrap();
        let key = WorkerKey::generate().unwrap();
        let certificate = authority.issue_worker(&key.request().unwrap(), WorkerId(worker), NOW).unwrap();
        (authority, key, certificate)
    }

    fn identity(worker: u32) -> Identity {
        let (authority, key, certificate) = issue(worker);
        Identity::new(certificate, authority.certificate().clone(), key.to_pkcs8()).unwrap()
    }

    #[test]
    fn an_identity_survives_its_folder_and_is_readable_by_its_user_only() {
        let folder = tempfile::tempdir().unwrap();
        let folder = folder.path().join("cache/run");
        assert!(Identity::load(&folder).unwrap().is_none());
        identity(1).save(&folder).unwrap();
        let saved = identity(7);
        saved.save(&folder).unwrap();
        let loaded = Identity::load(&folder).unwrap().unwrap();
        assert_eq!((loaded.worker(), loaded.run()), (WorkerId(7), RunId([3; 16])));
        assert_eq!(loaded.chain(), saved.chain());
        let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
        assert_eq!((mode(&folder), mode(&folder.join(FILE_NAME))), (0o700, 0o600));
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 1);
    }

    #[test]
    fn what_a_crash_left_behind_does_not_lend_its_permissions() {
        let folder = tempfile::tempdir().unwrap();
        let left = folder.path().join(format!("{FILE_NAME}.new"));
        fs::write(&left, "half an ident").unwrap();
        fs::set_permissions(&left, fs::Permissions::from_mode(0o644)).unwrap();
        identity(1).save(folder.path()).unwrap();
        let mode = fs::metadata(folder.path().join(FILE_NAME)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
    }

    #[test]
    fn a_damaged_file_is_refused_at_every_length() {
        let folder = tempfile::tempdir().unwrap();
        identity(1).save(folder.path()).unwrap();
        let path = folder.path().join(FILE_NAME);
        let text = fs::read_to_string(&path).unwrap();
        for length in (0..text.len() - 1).step_by(7) {
            fs::write(&path, &text[..length]).unwrap();
            assert!(Identity::load(folder.path()).is_err(), "cut to {length}");
        }
    }

    #[test]
    fn parts_that_do_not_belong_together_are_refused() {
        let (authority, key, certificate) = issue(1);
        let (_, other_key, _) = issue(1);
        let other_run = Authority::create(RunId([4; 16]), NOW).unwrap();
        let ours = authority.certificate().clone();
        let new = Identity::new;
        assert!(matches!(
            new(certificate.clone(), ours.clone(), other_key.to_pkcs8()),
            Err(IdentityError::Key(_))
        ));
        assert!(matches!(
            new(certificate.clone(), other_run.certificate().clone(), key.to_pkcs8()),
            Err(IdentityError::Name(NameError::Stranger { .. }))
        ));
        assert!(matches!(
            new(certificate.clone(), certificate, key.to_pkcs8()),
            Err(IdentityError::NoAuthority)
        ));
        let (coordinator, coordinator_key) = authority.issue_coordinator(NOW).unwrap();
        assert!(matches!(new(coordinator, ours, coordinator_key), Err(IdentityError::NotAWorker)));
    }

    #[test]
    fn it_is_renewed_at_half_its_life() {
        let identity = identity(1);
        assert_eq!(identity.expires_at_unix_s(), NOW + WORKER_CERTIFICATE_S);
        let half_a_day_and_skew = identity.renew_at_unix_s() - NOW;
        assert_eq!(half_a_day_and_skew, (WORKER_CERTIFICATE_S - 3600) / 2);
    }
}
