//! The run's certificate authority.

use std::time::Duration;

use longhaul_common::id::{RunId, WorkerId};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer,
    KeyPair, KeyUsagePurpose, PublicKeyData, SerialNumber,
};
use ring::rand::{SecureRandom, SystemRandom};
use rustls::pki_types::{CertificateDer, PrivatePkcs8KeyDer};
use x509_parser::parse_x509_certificate;

use super::{COORDINATOR_OF_ANY_RUN, Fingerprint, PeerName, pem_text, request};

/// Validity of a worker's certificate, in seconds: a day. It bounds the use of a stolen one, and a worker
/// that lost the coordinator for a night still returns without a token.
pub const WORKER_CERTIFICATE_S: u64 = 24 * 3600;

/// Validity of the coordinator's certificate, in seconds: a year. Its key is in the same process as the
/// authority's, so a shorter life would protect nothing. Each start of the coordinator issues a new one.
const COORDINATOR_CERTIFICATE_S: u64 = 366 * 24 * 3600;

/// Validity of the authority's certificate, in seconds: ten years, longer than any run.
const AUTHORITY_CERTIFICATE_S: u64 = 10 * 366 * 24 * 3600;

/// Certificates are valid from this many seconds before issue, as clocks of other machines may be behind.
pub const CLOCK_SKEW_S: u64 = 3600;

/// Latest second that a certificate can contain: the end of the year 9999, in Unix time.
const LAST_UNIX_S: u64 = 253_402_300_799;

/// Derivation context of the secret for stateless resets, which reveals nothing of the key.
pub(super) const RESET_CONTEXT: &str = "longhaul 2026-11-24 stateless reset of connections";

const SUBJECT_PREFIX: &str = "longhaul run ";

/// The root of trust for the run's membership: a self-signed certificate and its key.
#[derive(Debug)]
pub struct Authority {
    run: RunId,
    certificate: CertificateDer<'static>,
    key: KeyPair,
}

/// Errors of certificates.
#[derive(Debug, thiserror::Error)]
pub enum AuthorityError {
    /// A certificate could not be created or signed.
    #[error("the certificate could not be made: {0}")]
    Signing(#[from] rcgen::Error),
    /// The machine provides no random numbers.
    #[error("the machine provides no random numbers")]
    NoRandomness,
    /// The stored authority is damaged.
    #[error("the stored certificate authority is damaged: {0}")]
    Damaged(&'static str),
    /// A certificate request exceeds the limit.
    #[error("a certificate request of {bytes} bytes is too long")]
    RequestTooLong {
        /// Length.
        bytes: usize,
    },
    /// A certificate request is damaged or not signed by its own key.
    #[error("the certificate request is not valid: {0}")]
    BadRequest(#[source] rcgen::Error),
    /// A certificate request has a key that is not ECDSA on P-256.
    #[error("the certificate request is not for an ECDSA key on P-256")]
    OtherKeyKind,
}

impl Authority {
    /// Creates an authority for a new run.
    ///
    /// # Errors
    /// The machine provides no random numbers.
    pub fn create(run: RunId, now_unix_s: u64) -> Result<Self, AuthorityError> {
        let key = KeyPair::generate()?;
        let mut params =
            params(Vec::new(), &format!("{SUBJECT_PREFIX}{run}"), AUTHORITY_CERTIFICATE_S, now_unix_s)?;
        params.is_ca = IsCa::Ca(BasicConstraints::Constrained(0));
        params.key_usages = vec![KeyUsagePurpose::KeyCertSign];
        let certificate = params.self_signed(&key)?.der().clone();
        Ok(Self { run, certificate, key })
    }

    /// Returns certificate and key, for the coordinator's store. A reader of it can act as the run's
    /// authority.
    #[must_use]
    pub fn to_pem(&self) -> String {
        pem_text::write(&[&self.certificate], self.key.serialized_der())
    }

    /// Parses the output of [`Self::to_pem`].
    ///
    /// # Errors
    /// [`AuthorityError::Damaged`] if the text is malformed or the key is not the certificate's.
    pub fn from_pem(text: &str) -> Result<Self, AuthorityError> {
        let mut text =
            pem_text::read(text).ok_or(AuthorityError::Damaged("it is not one certificate and one key"))?;
        let certificate = text.certificates.pop().ok_or(AuthorityError::Damaged("it has no certificate"))?;
        let key =
            KeyPair::try_from(&text.key).map_err(|_| AuthorityError::Damaged("its key cannot be read"))?;
        let (_, parsed) = parse_x509_certificate(&certificate)
            .map_err(|_| AuthorityError::Damaged("its certificate cannot be read"))?;
        if parsed.public_key().raw != key.subject_public_key_info() {
            return Err(AuthorityError::Damaged("its key is not its certificate's"));
        }
        let run = run_of(&certificate).ok_or(AuthorityError::Damaged("its certificate names no run"))?;
        Ok(Self { run, certificate, key })
    }

    /// Returns the secret of the coordinator's [`ResetKey`](crate::transport::ResetKey): equal for all
    /// holders of this authority.
    #[must_use]
    pub fn reset_secret(&self) -> [u8; 32] {
        blake3::derive_key(RESET_CONTEXT, self.key.serialized_der())
    }

    /// Returns the run whose members it certifies.
    #[must_use]
    pub fn run(&self) -> RunId {
        self.run
    }

    /// Returns the certificate.
    #[must_use]
    pub fn certificate(&self) -> &CertificateDer<'static> {
        &self.certificate
    }

    /// Returns the fingerprint that tokens pin.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        Fingerprint::of(&self.certificate)
    }

    /// Issues a worker's certificate, valid for [`WORKER_CERTIFICATE_S`] from now, for the public key in its
    /// request (DER). Ignores all else in the request.
    ///
    /// # Errors
    /// The request is damaged, too long, or not signed by its own key.
    pub fn issue_worker(
        &self,
        request: &[u8],
        worker: WorkerId,
        now_unix_s: u64,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        let key = request::public_key(request)?;
        let name = PeerName::Worker(worker).in_run(self.run);
        let mut params = params(vec![name.clone()], &name, WORKER_CERTIFICATE_S, now_unix_s)?;
        params.extended_key_usages =
            vec![ExtendedKeyUsagePurpose::ClientAuth, ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(params, &key)
    }

    /// Issues a new key and certificate for the coordinator's endpoint.
    pub(super) fn issue_coordinator(
        &self,
        now_unix_s: u64,
    ) -> Result<(CertificateDer<'static>, PrivatePkcs8KeyDer<'static>), AuthorityError> {
        let key = KeyPair::generate()?;
        let name = PeerName::Coordinator.in_run(self.run);
        let names = vec![name.clone(), COORDINATOR_OF_ANY_RUN.to_owned()];
        let mut params = params(names, &name, COORDINATOR_CERTIFICATE_S, now_unix_s)?;
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        Ok((self.sign(params, &key)?, key.serialize_der().into()))
    }

    fn sign(
        &self,
        mut params: CertificateParams,
        key: &impl PublicKeyData,
    ) -> Result<CertificateDer<'static>, AuthorityError> {
        params.is_ca = IsCa::ExplicitNoCa;
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.use_authority_key_identifier_extension = true;
        let issuer = Issuer::from_ca_cert_der(&self.certificate, &self.key)?;
        Ok(params.signed_by(key, &issuer)?.der().clone())
    }
}

/// Returns the common parameters of all certificates.
fn params(
    names: Vec<String>,
    subject: &str,
    life_s: u64,
    now_unix_s: u64,
) -> Result<CertificateParams, AuthorityError> {
    let mut serial = [0; 16];
    SystemRandom::new().fill(&mut serial).map_err(|_| AuthorityError::NoRandomness)?;
    // A positive number without leading zeros, as RFC 5280 §4.1.2.2 requires.
    serial[0] = serial[0] & 0x7f | 0x40;
    let at = |unix_s: u64| rcgen::date_time_ymd(1970, 1, 1) + Duration::from_secs(unix_s.min(LAST_UNIX_S));
    let mut params = CertificateParams::new(names)?;
    params.serial_number = Some(SerialNumber::from_slice(&serial));
    params.distinguished_name = DistinguishedName::new();
    params.distinguished_name.push(DnType::CommonName, subject);
    params.not_before = at(now_unix_s.saturating_sub(CLOCK_SKEW_S));
    params.not_after = at(now_unix_s.saturating_add(life_s));
    Ok(params)
}

/// Returns the run in an authority's certificate.
pub(super) fn run_of(authority: &CertificateDer<'_>) -> Option<RunId> {
    let (_, parsed) = parse_x509_certificate(authority).ok()?;
    let subject = parsed.subject().iter_common_name().next()?.as_str().ok()?;
    subject.strip_prefix(SUBJECT_PREFIX)?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::super::WorkerKey;
    use super::*;

    const RUN: RunId = RunId([0x5a; 16]);
    const NOW: u64 = 1_900_000_000;

    #[test]
    fn an_authority_survives_its_pem_form() {
        let authority = Authority::create(RUN, NOW).unwrap();
        let read = Authority::from_pem(&authority.to_pem()).unwrap();
        assert_eq!((read.run(), read.fingerprint()), (RUN, authority.fingerprint()));
        assert_eq!(read.to_pem(), authority.to_pem());
    }

    #[test]
    fn a_damaged_authority_is_refused() {
        let (one, other) = (Authority::create(RUN, NOW).unwrap(), Authority::create(RUN, NOW).unwrap());
        let mixed = pem_text::write(&[&one.certificate], other.key.serialized_der());
        let leaf = one.issue_coordinator(NOW).unwrap();
        let no_authority = pem_text::write(&[&leaf.0], leaf.1.secret_pkcs8_der());
        let text = one.to_pem();
        for damaged in ["", &text[..text.len() / 2], &text[200..], &mixed, &no_authority] {
            assert!(matches!(Authority::from_pem(damaged), Err(AuthorityError::Damaged(_))));
        }
    }

    #[test]
    fn a_worker_certificate_names_the_worker_and_lives_for_a_day() {
        let authority = Authority::create(RUN, NOW).unwrap();
        let request = WorkerKey::generate().unwrap().request().unwrap();
        let certificate = authority.issue_worker(&request, WorkerId(7), NOW).unwrap();
        assert_eq!(PeerName::of_certificate(&certificate, RUN), Ok(PeerName::Worker(WorkerId(7))));
        let (_, parsed) = parse_x509_certificate(&certificate).unwrap();
        assert_eq!(parsed.validity().not_before.timestamp(), (NOW - CLOCK_SKEW_S) as i64);
        assert_eq!(parsed.validity().not_after.timestamp(), (NOW + WORKER_CERTIFICATE_S) as i64);
        assert!(!parsed.is_ca());
    }

    #[test]
    fn whatever_else_a_request_asks_for_is_ignored() {
        let authority = Authority::create(RUN, NOW).unwrap();
        let key = KeyPair::generate().unwrap();
        let mut greedy = CertificateParams::new(vec![PeerName::Coordinator.in_run(RUN)]).unwrap();
        greedy.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let request = greedy.serialize_request(&key).unwrap();
        let certificate = authority.issue_worker(request.der(), WorkerId(7), NOW).unwrap();
        assert_eq!(PeerName::of_certificate(&certificate, RUN), Ok(PeerName::Worker(WorkerId(7))));
        let (_, parsed) = parse_x509_certificate(&certificate).unwrap();
        assert!(!parsed.is_ca());
        assert_eq!(parsed.subject_alternative_name().unwrap().unwrap().value.general_names.len(), 1);
    }

    #[test]
    fn damaged_requests_are_refused_without_a_panic() {
        let authority = Authority::create(RUN, NOW).unwrap();
        let request = WorkerKey::generate().unwrap().request().unwrap();
        for at in 0..request.len() {
            assert!(authority.issue_worker(&request[..at], WorkerId(1), NOW).is_err(), "cut at {at}");
            for bit in 0..8 {
                let mut damaged = request.clone();
                damaged[at] ^= 1 << bit;
                // The signature covers the key and the request's content; only the form of the DER around it
                // may vary.
                if let Ok(certificate) = authority.issue_worker(&damaged, WorkerId(1), NOW) {
                    let (_, parsed) = parse_x509_certificate(&certificate).unwrap();
                    let key = parsed.public_key().subject_public_key.data.to_vec();
                    assert!(request.windows(key.len()).any(|window| window == key), "byte {at}, bit {bit}");
                }
            }
        }
        let long = vec![0x30; request::REQUEST_BYTES_MAX + 1];
        assert!(matches!(
            authority.issue_worker(&long, WorkerId(1), NOW),
            Err(AuthorityError::RequestTooLong { .. })
        ));
    }

    #[test]
    fn a_request_for_another_kind_of_key_is_refused() {
        let authority = Authority::create(RUN, NOW).unwrap();
        let key = KeyPair::generate_for(&rcgen::PKCS_ED25519).unwrap();
        let request = CertificateParams::default().serialize_request(&key).unwrap();
        let refused = authority.issue_worker(request.der(), WorkerId(1), NOW);
        assert!(matches!(refused, Err(AuthorityError::OtherKeyKind)));
    }
}
