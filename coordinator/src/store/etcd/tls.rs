//! Certificates on the path to etcd: reading them, and explaining refusals of either side.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{AlertDescription, CertificateError};
use ureq::tls::{Certificate, ClientCert, PrivateKey, RootCerts, TlsConfig};

use super::address::TlsFiles;

/// Remedy where etcd's JSON gateway answers but cannot reach its own etcd: it presents the server's own certificate there.
pub const GATEWAY_IS_CUT_OFF: &str = "etcd's JSON gateway cannot reach etcd itself: with --client-cert-auth, the certificate of --cert-file must be good for \
     clients as well as for servers (extendedKeyUsage = serverAuth, clientAuth)";
/// How this client is given a certificate.
const OWN_CERTIFICATE: &str = "LONGHAUL_ETCD_CERT and LONGHAUL_ETCD_KEY, or ?cert=FILE&key=FILE";
/// Which one etcd accepts.
const ACCEPTED: &str =
    "etcd accepts certificates for clients signed by an authority in its --trusted-ca-file";

/// Builds the TLS configuration of a client for etcd.
///
/// # Errors
/// Names the unusable file, and the reason.
pub fn config(files: &TlsFiles) -> Result<TlsConfig, String> {
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let authority = files.authority.as_deref().unwrap_or(Path::new(""));
    let roots: Vec<_> = certificates(authority)?.iter().map(as_given).collect();
    let own = match (&files.certificate, &files.key) {
        (Some(certificate), Some(key)) => {
            let (chain, secret) = (certificates(certificate)?, key_in(key)?);
            let (certificate, shown) = (certificate.display(), key.display());
            // The HTTP client takes a pair that fits for granted.
            CertifiedKey::from_der(chain.clone(), secret, &provider).map_err(|error| {
                format!("the key in {shown} does not match the certificate in {certificate}: {error}")
            })?;
            let key = PrivateKey::from_pem(&read(key)?)
                .map_err(|error| format!("read the key in {shown}: {error}"))?;
            let chain: Vec<_> = chain.iter().map(as_given).collect();
            Some(ClientCert::new_with_certs(&chain, key))
        }
        _ => None,
    };
    Ok(TlsConfig::builder()
        .root_certs(RootCerts::new_with_certs(&roots))
        .client_cert(own)
        .unversioned_rustls_crypto_provider(provider)
        .build())
}

/// Remedy of a failed request, where certificates or TLS are the cause; `None`: they are not.
pub fn explain(error: &ureq::Error, files: &TlsFiles) -> Option<String> {
    let shown =
        |file: &Option<PathBuf>| file.as_ref().map_or_else(String::new, |file| file.display().to_string());
    let lacks_own = files.certificate.is_none();
    match cause(error) {
        Cause::Tls(rustls::Error::InvalidCertificate(reason)) => Some(match reason {
            CertificateError::UnknownIssuer | CertificateError::BadSignature => format!(
                "etcd's certificate was not signed by an authority in {}: name the file with the authority of etcd's own certificate (LONGHAUL_ETCD_CA, or ?ca=FILE)",
                shown(&files.authority)
            ),
            CertificateError::NotValidForName | CertificateError::NotValidForNameContext { .. } => {
                format!("{error}: write the host in --state as etcd's certificate names it")
            }
            _ => format!(
                "{error}: etcd needs another certificate (--cert-file), if this machine's clock is right"
            ),
        }),
        Cause::Tls(rustls::Error::AlertReceived(alert)) if is_about_certificates(*alert) => {
            Some(if lacks_own {
                format!("etcd requires a client certificate: name it and its key ({OWN_CERTIFICATE})")
            } else {
                format!("etcd rejects the certificate in {} ({error}): {ACCEPTED}", shown(&files.certificate))
            })
        }
        Cause::Tls(rustls::Error::InvalidMessage(_)) => Some(format!(
            "the server does not speak TLS ({error}): write etcd:// in --state, or give etcd a --cert-file"
        )),
        // A peer that hangs up has sent the reason, but it may be lost with the connection.
        Cause::HungUp if lacks_own => Some(format!(
            "{error}; is etcd running, and does it require client certificates? If so, name one and its key ({OWN_CERTIFICATE})"
        )),
        Cause::HungUp => Some(format!(
            "{error}; is etcd running, and does it accept the certificate in {}? {ACCEPTED}",
            shown(&files.certificate)
        )),
        Cause::Tls(_) | Cause::Other => None,
    }
}

enum Cause<'a> {
    Tls(&'a rustls::Error),
    /// The connection was there, and is not.
    HungUp,
    Other,
}

fn cause(error: &ureq::Error) -> Cause<'_> {
    match error {
        ureq::Error::Rustls(error) => Cause::Tls(error),
        ureq::Error::Io(error) => {
            let inner = error.get_ref().and_then(|inner| inner.downcast_ref::<rustls::Error>());
            let hung_up = [
                io::ErrorKind::ConnectionReset,
                io::ErrorKind::ConnectionAborted,
                io::ErrorKind::BrokenPipe,
                io::ErrorKind::UnexpectedEof,
            ];
            match inner {
                Some(inner) => Cause::Tls(inner),
                None if hung_up.contains(&error.kind()) => Cause::HungUp,
                None => Cause::Other,
            }
        }
        _ => Cause::Other,
    }
}

fn is_about_certificates(alert: AlertDescription) -> bool {
    use AlertDescription as Alert;
    matches!(
        alert,
        Alert::CertificateRequired
            | Alert::BadCertificate
            | Alert::UnsupportedCertificate
            | Alert::CertificateRevoked
            | Alert::CertificateExpired
            | Alert::CertificateUnknown
            | Alert::UnknownCA
            | Alert::AccessDenied
    )
}

fn read(path: &Path) -> Result<Vec<u8>, String> {
    fs::read(path).map_err(|error| format!("read {}: {error}", path.display()))
}

fn certificates(path: &Path) -> Result<Vec<CertificateDer<'static>>, String> {
    let pem = read(path)?;
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem).collect();
    let found = found.map_err(|error| format!("read the certificates in {}: {error}", path.display()))?;
    if found.is_empty() { Err(format!("{} holds no certificate in PEM", path.display())) } else { Ok(found) }
}

fn as_given(certificate: &CertificateDer<'static>) -> Certificate<'static> {
    Certificate::from_der(certificate).to_owned()
}

fn key_in(path: &Path) -> Result<PrivateKeyDer<'static>, String> {
    PrivateKeyDer::from_pem_slice(&read(path)?)
        .map_err(|error| format!("{} holds no key in PEM: {error}", path.display()))
}
