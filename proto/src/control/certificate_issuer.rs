//! Certificate issuance: the coordinator's decision as a pure state machine.

use std::collections::BTreeMap;

use longhaul_common::id::WorkerId;
use serde::{Deserialize, Serialize};

use super::enrol::{EnrolRefusal, EnrolReply, EnrolRequest, Grounds, is_site_name};
use crate::identity::{Authority, Exporter, TokenId, TokenRecord, TokenRefusal, WORKER_CERTIFICATE_S};

/// Maximum workers of a run over its lifetime. Numbers are never reused, and the register stays in memory.
pub const WORKERS_MAX: usize = 65_536;

/// Maximum valid tokens at a time. A token can have many uses instead.
pub const TOKENS_MAX: usize = 1024;

/// The register of tokens and workers, and the authority that certifies them.
///
/// After [`Self::decide`] admits a worker, or after any other change, store [`Self::state`] before sending
/// the reply. Otherwise a restarted coordinator assigns the same number to two workers.
#[derive(Debug)]
pub struct CertificateIssuer {
    authority: Authority,
    state: EnrolState,
}

/// Persistent state of the issuer.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct EnrolState {
    tokens: BTreeMap<TokenId, TokenRecord>,
    workers: BTreeMap<WorkerId, WorkerRecord>,
}

/// A worker that has, or had, a certificate.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct WorkerRecord {
    /// Its site, as given at enrolment.
    pub site: String,
    /// The token that admitted it.
    pub token: TokenId,
    /// Expiry of its newest certificate, in Unix time.
    pub certified_until_unix_s: u64,
    /// Permanently revoked.
    pub revoked: bool,
}

/// TLS session data of an applicant.
#[derive(Clone, Copy, Debug)]
pub struct Visitor {
    /// Exporter to which its proof must be bound.
    pub exporter: Exporter,
    /// Worker that its certificate names, if presented.
    pub worker: Option<WorkerId>,
}

/// [`TOKENS_MAX`] valid tokens exist already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{TOKENS_MAX} valid tokens exist already: revoke some, or use one with more uses")]
pub struct TooManyTokens;

impl CertificateIssuer {
    /// Creates the issuer with a stored or empty state.
    #[must_use]
    pub fn new(authority: Authority, state: EnrolState) -> Self {
        Self { authority, state }
    }

    /// Returns the run's authority.
    #[must_use]
    pub fn authority(&self) -> &Authority {
        &self.authority
    }

    /// Returns the state to store.
    #[must_use]
    pub fn state(&self) -> &EnrolState {
        &self.state
    }

    /// Returns all workers ever enrolled, in the order of their numbers.
    pub fn workers(&self) -> impl Iterator<Item = (WorkerId, &WorkerRecord)> {
        self.state.workers.iter().map(|(worker, record)| (*worker, record))
    }

    /// Returns all stored tokens: the valid ones and some invalid ones.
    pub fn tokens(&self) -> impl Iterator<Item = &TokenRecord> {
        self.state.tokens.values()
    }

    /// Whether a worker with a certificate of this run is not revoked.
    #[must_use]
    pub fn is_welcome(&self, worker: WorkerId) -> bool {
        self.state.workers.get(&worker).is_some_and(|record| !record.revoked)
    }

    /// Adds a token. Drops expired ones.
    ///
    /// # Errors
    /// [`TooManyTokens`]
    pub fn add_token(&mut self, token: TokenRecord, now_unix_s: u64) -> Result<(), TooManyTokens> {
        self.state.tokens.retain(|_, known| now_unix_s < known.expires_at_unix_s);
        if self.state.tokens.len() >= TOKENS_MAX {
            return Err(TooManyTokens);
        }
        self.state.tokens.insert(token.id, token);
        Ok(())
    }

    /// Revokes a token; workers enrolled with it stay. Returns whether it existed.
    pub fn revoke_token(&mut self, id: TokenId) -> bool {
        self.state.tokens.get_mut(&id).map(|token| token.revoked = true).is_some()
    }

    /// Revokes a worker permanently: its certificate is not renewed, and [`Self::is_welcome`] returns false.
    /// The caller closes its connections. Returns whether it existed.
    pub fn revoke_worker(&mut self, worker: WorkerId) -> bool {
        self.state.workers.get_mut(&worker).map(|record| record.revoked = true).is_some()
    }

    /// Decides on a request.
    pub fn decide(&mut self, request: &EnrolRequest, visitor: &Visitor, now_unix_s: u64) -> EnrolReply {
        match self.admit(request, visitor, now_unix_s) {
            Ok(certificate) => {
                EnrolReply::Admitted { certificate, authority: self.authority.certificate().to_vec() }
            }
            Err(refusal) => EnrolReply::Refused(refusal),
        }
    }

    fn admit(
        &mut self,
        request: &EnrolRequest,
        visitor: &Visitor,
        now_unix_s: u64,
    ) -> Result<Vec<u8>, EnrolRefusal> {
        let certified_until_unix_s = now_unix_s + WORKER_CERTIFICATE_S;
        match request.grounds {
            Grounds::Token { id, proof } => {
                let token =
                    self.state.tokens.get_mut(&id).ok_or(EnrolRefusal::Token(TokenRefusal::Unknown))?;
                token
                    .verify(&proof, &visitor.exporter, &request.request, now_unix_s)
                    .map_err(EnrolRefusal::Token)?;
                if !is_site_name(&request.site) {
                    return Err(EnrolRefusal::SiteName);
                }
                let worker = next_number(&self.state.workers)?;
                let certificate = issue(&self.authority, request, worker, now_unix_s)?;
                token.count_use();
                let site = request.site.clone();
                let record = WorkerRecord { site, token: id, certified_until_unix_s, revoked: false };
                self.state.workers.insert(worker, record);
                Ok(certificate)
            }
            Grounds::Renewal => {
                let worker = visitor.worker.ok_or(EnrolRefusal::NoCertificate)?;
                let record = self.state.workers.get_mut(&worker).ok_or(EnrolRefusal::NoCertificate)?;
                if record.revoked {
                    return Err(EnrolRefusal::Revoked);
                }
                let certificate = issue(&self.authority, request, worker, now_unix_s)?;
                record.certified_until_unix_s = certified_until_unix_s;
                Ok(certificate)
            }
        }
    }
}

fn next_number(workers: &BTreeMap<WorkerId, WorkerRecord>) -> Result<WorkerId, EnrolRefusal> {
    if workers.len() >= WORKERS_MAX {
        return Err(EnrolRefusal::Full);
    }
    Ok(workers.last_key_value().map_or(WorkerId(0), |(last, _)| last.next()))
}

fn issue(
    authority: &Authority,
    request: &EnrolRequest,
    worker: WorkerId,
    now_unix_s: u64,
) -> Result<Vec<u8>, EnrolRefusal> {
    let certificate = authority.issue_worker(&request.request, worker, now_unix_s);
    Ok(certificate.map_err(|error| EnrolRefusal::BadRequest(error.to_string()))?.to_vec())
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::RunId;

    use super::*;
    use crate::identity::{Token, WorkerKey};

    const NOW: u64 = 1_900_000_000;

    struct Case {
        issuer: CertificateIssuer,
        token: Token,
        visitor: Visitor,
    }

    fn case(uses: Option<u32>) -> Case {
        let authority = Authority::create(RunId([1; 16]), NOW).unwrap();
        let token = Token::create(authority.fingerprint()).unwrap();
        let mut issuer = CertificateIssuer::new(authority, EnrolState::default());
        issuer.add_token(TokenRecord::new(&token, NOW + 60, uses), NOW).unwrap();
        Case { issuer, token, visitor: Visitor { exporter: Exporter::from([5; 32]), worker: None } }
    }

    impl Case {
        fn request(&self) -> EnrolRequest {
            let request = WorkerKey::generate().unwrap().request().unwrap();
            let proof = self.token.secret.prove(&self.visitor.exporter, &request);
            let grounds = Grounds::Token { id: self.token.id, proof };
            EnrolRequest { grounds, request, site: "amsterdam".to_owned() }
        }

        fn ask(&mut self, request: &EnrolRequest, now: u64) -> Result<(), EnrolRefusal> {
            match self.issuer.decide(request, &self.visitor, now) {
                EnrolReply::Admitted { .. } => Ok(()),
                EnrolReply::Refused(refusal) => Err(refusal),
            }
        }
    }

    #[test]
    fn each_worker_gets_a_number_of_its_own_even_after_a_restart() {
        let mut case = case(None);
        for _ in 0..2 {
            case.ask(&case.request(), NOW).unwrap();
        }
        let stored = postcard::to_stdvec(case.issuer.state()).unwrap();
        let authority = Authority::from_pem(&case.issuer.authority().to_pem()).unwrap();
        case.issuer = CertificateIssuer::new(authority, postcard::from_bytes(&stored).unwrap());
        case.ask(&case.request(), NOW).unwrap();
        let numbers: Vec<_> = case.issuer.workers().map(|(worker, _)| worker.0).collect();
        assert_eq!(numbers, [0, 1, 2]);
    }

    #[test]
    fn a_token_lets_in_as_many_as_it_says_and_refused_requests_do_not_count() {
        let mut case = case(Some(1));
        let mut bad = case.request();
        bad.site = "a\u{7}b".to_owned();
        assert_eq!(case.ask(&bad, NOW), Err(EnrolRefusal::SiteName));
        assert_eq!(case.ask(&case.request(), NOW), Ok(()));
        assert_eq!(case.ask(&case.request(), NOW), Err(EnrolRefusal::Token(TokenRefusal::UsedUp)));
    }

    #[test]
    fn a_bad_certificate_request_uses_nothing_up() {
        let mut case = case(Some(1));
        let mut bad = case.request();
        bad.request = b"no request".to_vec();
        let proof = case.token.secret.prove(&case.visitor.exporter, &bad.request);
        bad.grounds = Grounds::Token { id: case.token.id, proof };
        assert!(matches!(case.ask(&bad, NOW), Err(EnrolRefusal::BadRequest(_))));
        assert_eq!(case.ask(&case.request(), NOW), Ok(()));
    }

    #[test]
    fn every_kind_of_useless_token_is_refused_by_name() {
        let refused = |case: &mut Case, now| {
            let request = case.request();
            match case.ask(&request, now) {
                Err(EnrolRefusal::Token(refusal)) => refusal,
                other => panic!("{other:?}"),
            }
        };
        let mut one = case(None);
        assert_eq!(refused(&mut one, NOW + 60), TokenRefusal::Expired);
        assert!(one.issuer.revoke_token(one.token.id));
        assert_eq!(refused(&mut one, NOW), TokenRefusal::Revoked);
        let mut other = case(None);
        other.token.secret = Token::create(other.token.authority).unwrap().secret;
        assert_eq!(refused(&mut other, NOW), TokenRefusal::WrongSecret);
        other.token.id = TokenId([0; 8]);
        assert_eq!(refused(&mut other, NOW), TokenRefusal::Unknown);
        assert!(!other.issuer.revoke_token(other.token.id));
    }

    #[test]
    fn a_worker_renews_until_it_is_revoked() {
        let mut case = case(None);
        case.ask(&case.request(), NOW).unwrap();
        let renewal = EnrolRequest { grounds: Grounds::Renewal, ..case.request() };
        assert_eq!(case.ask(&renewal, NOW + 3600), Err(EnrolRefusal::NoCertificate));
        case.visitor.worker = Some(WorkerId(0));
        assert_eq!(case.ask(&renewal, NOW + 3600), Ok(()));
        let (_, record) = case.issuer.workers().next().unwrap();
        assert_eq!(record.certified_until_unix_s, NOW + 3600 + WORKER_CERTIFICATE_S);
        assert!(case.issuer.is_welcome(WorkerId(0)) && case.issuer.revoke_worker(WorkerId(0)));
        assert!(!case.issuer.is_welcome(WorkerId(0)));
        assert_eq!(case.ask(&renewal, NOW), Err(EnrolRefusal::Revoked));
        case.visitor.worker = Some(WorkerId(9));
        assert_eq!(case.ask(&renewal, NOW), Err(EnrolRefusal::NoCertificate));
        assert!(!case.issuer.revoke_worker(WorkerId(9)));
    }

    #[test]
    fn the_register_of_tokens_is_bounded_and_forgets_expired_ones() {
        let mut case = case(None);
        let fingerprint = case.token.authority;
        let fresh = || TokenRecord::new(&Token::create(fingerprint).unwrap(), NOW + 120, None);
        for _ in 1..TOKENS_MAX {
            case.issuer.add_token(fresh(), NOW).unwrap();
        }
        assert_eq!(case.issuer.add_token(fresh(), NOW), Err(TooManyTokens));
        assert_eq!(case.issuer.add_token(fresh(), NOW + 60), Ok(()));
    }
}
