//! A coordinator's acceptor, workers, and rogues that know everything except members' secrets.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, Mutex};
use std::time::SystemTime;

use longhaul_common::id::{RunId, WorkerId};
use longhaul_proto::control::{
    Acceptor, AcceptorError, AuthenticatedPeer, CertificateIssuer, EnrolState, ServeEnrolError, serve_enrol,
};
use longhaul_proto::identity::{
    Authority, Identity, PeerName, Token, TokenRecord, WorkerKey, control_client, coordinator_server,
    data_server,
};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Connection, ConnectionError, Endpoint, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::sync::mpsc;

pub const RUN: RunId = RunId([0x11; 16]);
pub const DAY_S: u64 = 24 * 3600;
const LOOPBACK: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);

/// The real time, which TLS uses to check certificates.
#[allow(clippy::disallowed_methods, reason = "rustls reads the same clock")]
pub fn now_unix_s() -> u64 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_secs()
}

pub fn client_endpoint() -> Endpoint {
    Endpoint::client(LOOPBACK).unwrap()
}

/// A coordinator that admits, enrols, and reports its connections.
pub struct Front {
    pub address: SocketAddr,
    pub issuer: Arc<Mutex<CertificateIssuer>>,
    pub authority: CertificateDer<'static>,
    /// Admitted workers.
    pub workers: mpsc::Receiver<(WorkerId, Connection)>,
    /// Rejected peers.
    pub turned_away: mpsc::Receiver<AcceptorError>,
    /// Outcomes of enrolments.
    pub served: mpsc::Receiver<Result<(), ServeEnrolError>>,
}

impl Front {
    /// `now_unix_s` is the time of the enrolment service.
    pub fn open(desk_now_unix_s: u64) -> Self {
        let authority = Authority::create(RUN, now_unix_s()).unwrap();
        let certificate = authority.certificate().clone();
        let mut config = ServerConfig::with_crypto(coordinator_server(&authority, now_unix_s()).unwrap());
        let acceptor = Acceptor::new(RUN);
        acceptor.limit(Arc::get_mut(&mut config.transport).unwrap());
        let endpoint = Endpoint::server(config, LOOPBACK).unwrap();
        let issuer = Arc::new(Mutex::new(CertificateIssuer::new(authority, EnrolState::default())));
        let (worker_sender, workers) = mpsc::channel(1024);
        let (away_sender, turned_away) = mpsc::channel(1024);
        let (served_sender, served) = mpsc::channel(1024);
        let front_desk = issuer.clone();
        let address = endpoint.local_addr().unwrap();
        tokio::spawn(async move {
            while let Some(incoming) = endpoint.accept().await {
                let (acceptor, issuer) = (acceptor.clone(), front_desk.clone());
                let (workers, turned_away, served) =
                    (worker_sender.clone(), away_sender.clone(), served_sender.clone());
                tokio::spawn(async move {
                    match acceptor.admit(incoming).await {
                        Ok(AuthenticatedPeer::Worker { worker, connection }) => {
                            workers.send((worker, connection)).await.unwrap();
                        }
                        Ok(AuthenticatedPeer::Applicant(applicant)) => {
                            let outcome = serve_enrol(applicant, async |request, visitor| {
                                issuer.lock().unwrap().decide(&request, &visitor, desk_now_unix_s)
                            });
                            // The test may be over.
                            let _ = served.send(outcome.await).await;
                        }
                        Err(error) => {
                            let _ = turned_away.send(error).await;
                        }
                    }
                });
            }
        });
        Self { address, issuer, authority: certificate, workers, turned_away, served }
    }

    /// Creates a stored token, valid for a day of the real time.
    pub fn token(&self, uses: Option<u32>) -> Token {
        let mut issuer = self.issuer.lock().unwrap();
        let token = Token::create(issuer.authority().fingerprint()).unwrap();
        issuer.add_token(TokenRecord::new(&token, now_unix_s() + DAY_S, uses), now_unix_s()).unwrap();
        token
    }

    /// Creates a member of the run, without enrolment.
    pub fn member(&self, worker: u32, issued_at_unix_s: u64) -> Member {
        member(self.issuer.lock().unwrap().authority(), worker, issued_at_unix_s)
    }

    /// Dials the control channel as a member; returns both ends.
    pub async fn connect(&mut self, identity: &Identity) -> (Connection, Connection) {
        let config = ClientConfig::new(control_client(identity).unwrap());
        let name = PeerName::Coordinator.in_run(RUN);
        let ours = client_endpoint().connect_with(config, self.address, &name).unwrap().await.unwrap();
        let (worker, theirs) = self.workers.recv().await.unwrap();
        assert_eq!(worker, identity.worker());
        (ours, theirs)
    }
}

/// An identity, with the parts that a rogue would misuse.
pub struct Member {
    pub identity: Identity,
    pub certificate: CertificateDer<'static>,
    pub key: PrivateKeyDer<'static>,
}

pub fn member(authority: &Authority, worker: u32, issued_at_unix_s: u64) -> Member {
    let key = WorkerKey::generate().unwrap();
    let request = key.request().unwrap();
    let certificate = authority.issue_worker(&request, WorkerId(worker), issued_at_unix_s).unwrap();
    let identity =
        Identity::new(certificate.clone(), authority.certificate().clone(), key.to_pkcs8()).unwrap();
    Member { identity, certificate, key: key.to_pkcs8().into() }
}

/// A worker's data endpoint.
pub fn data_endpoint(identity: &Identity) -> (Endpoint, SocketAddr) {
    let endpoint =
        Endpoint::server(ServerConfig::with_crypto(data_server(identity).unwrap()), LOOPBACK).unwrap();
    let address = endpoint.local_addr().unwrap();
    (endpoint, address)
}

/// The configuration of a rogue: it knows the run's authority and names, and presents the certificate it has.
pub fn rogue_client(trusted: &CertificateDer<'static>, alpn: &[u8], shown: Option<&Member>) -> ClientConfig {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .unwrap()
        .with_root_certificates(roots);
    let mut config = match shown {
        Some(member) => {
            builder.with_client_auth_cert(vec![member.certificate.clone()], member.key.clone_key()).unwrap()
        }
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    config.enable_early_data = true;
    ClientConfig::new(Arc::new(QuicClientConfig::try_from(config).unwrap()))
}

/// Dials, sends bytes at once, and waits until the peer closes. Returns the reason.
pub async fn intrude(config: ClientConfig, address: SocketAddr, name: &str) -> ConnectionError {
    let endpoint = client_endpoint();
    let connection = match endpoint.connect_with(config, address, name).unwrap().await {
        Ok(connection) => connection,
        Err(error) => return error,
    };
    // In TLS 1.3 a client finishes before the server has seen its certificate, so this is sent in time.
    if let Ok(mut stream) = connection.open_uni().await {
        let _ = stream.write_all(b"let me in").await;
    }
    connection.closed().await
}
