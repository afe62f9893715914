use std::net::Ipv4Addr;
use std::sync::{Mutex, PoisonError};

use longhaul_common::id::{Generation, Round, RunId, SiteId, WorkerId};
use longhaul_proto::control::message::CheckpointOffer;
use longhaul_proto::control::{
    Acceptor, AuthenticatedPeer, CertificateIssuer, CloseCode, EnrolState, accept, serve_enrol,
};
use longhaul_proto::identity::{Authority, TokenRecord, WORKER_CERTIFICATE_S, WorkerKey, coordinator_server};
use longhaul_proto::transport;
use std::sync::Arc;
use tokio::sync::mpsc;

use super::*;

const RUN: RunId = RunId([6; 16]);

/// A coordinator's real front, which welcomes every admitted worker.
struct Coordinator {
    address: SocketAddr,
    issuer: Arc<Mutex<CertificateIssuer>>,
    joined: mpsc::Receiver<(WorkerId, Join)>,
}

fn endpoint(tls: Option<Arc<quinn::crypto::rustls::QuicServerConfig>>) -> Endpoint {
    let (socket, _) = transport::bind_udp(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).unwrap();
    transport::endpoint(socket, tls).unwrap()
}

impl Coordinator {
    fn open() -> Self {
        let authority = Authority::create(RUN, unix_s()).unwrap();
        let endpoint = endpoint(Some(coordinator_server(&authority, unix_s()).unwrap()));
        let address = endpoint.local_addr().unwrap();
        let issuer = Arc::new(Mutex::new(CertificateIssuer::new(authority, EnrolState::default())));
        let (joins, joined) = mpsc::channel(16);
        tokio::spawn(serve(endpoint, Arc::clone(&issuer), joins));
        Self { address, issuer, joined }
    }

    /// A worker's dialler with a new token.
    fn dialler(&self, folder: &std::path::Path) -> Dialler {
        let mut issuer = self.issuer.lock().unwrap();
        let token = Token::create(issuer.authority().fingerprint()).unwrap();
        issuer.add_token(TokenRecord::new(&token, unix_s() + 3600, None), unix_s()).unwrap();
        Dialler {
            endpoint: endpoint(None),
            coordinators: self.address.to_string().parse().unwrap(),
            token,
            folder: folder.to_owned(),
            site: "north".into(),
        }
    }

    /// An identity issued at the given time.
    fn issued(&self, worker: u32, at_unix_s: u64) -> Identity {
        let issuer = self.issuer.lock().unwrap();
        let key = WorkerKey::generate().unwrap();
        let request = key.request().unwrap();
        let certificate = issuer.authority().issue_worker(&request, WorkerId(worker), at_unix_s).unwrap();
        Identity::new(certificate, issuer.authority().certificate().clone(), key.to_pkcs8()).unwrap()
    }
}

async fn serve(
    endpoint: Endpoint,
    issuer: Arc<Mutex<CertificateIssuer>>,
    joins: mpsc::Sender<(WorkerId, Join)>,
) {
    let acceptor = Acceptor::new(RUN);
    while let Some(incoming) = endpoint.accept().await {
        let (acceptor, issuer, joins) = (acceptor.clone(), Arc::clone(&issuer), joins.clone());
        tokio::spawn(async move {
            match acceptor.admit(incoming).await {
                Ok(AuthenticatedPeer::Applicant(applicant)) => {
                    let decide = async |request, visitor| {
                        issuer.lock().unwrap_or_else(PoisonError::into_inner).decide(
                            &request,
                            &visitor,
                            unix_s(),
                        )
                    };
                    // The applicant reports the answer.
                    let _ = serve_enrol(applicant, decide).await;
                }
                Ok(AuthenticatedPeer::Worker { worker, connection }) => {
                    let (sender, mut receiver) =
                        accept::<ToWorker, ToCoordinator>(&connection).await.unwrap();
                    let Some(ToCoordinator::Join(join)) = receiver.receive().await.unwrap() else {
                        panic!("{worker} did not join")
                    };
                    let welcome =
                        Welcome { run: RUN, config: String::new(), site: SiteId(0), resumed: false };
                    sender.send(&ToWorker::Welcome(welcome)).unwrap();
                    joins.send((worker, join)).await.unwrap();
                    connection.closed().await;
                }
                Err(_) => {}
            }
        });
    }
}

fn join(checkpoints: Vec<CheckpointOffer>) -> Join {
    let address = SocketAddr::from((Ipv4Addr::LOCALHOST, 9));
    Join {
        incarnation: 1,
        site: "north".into(),
        lan_address: address,
        wan_address: address,
        device: "a test".into(),
        memory_bytes: 1 << 34,
        host_memory_bytes: None,
        held: None,
        too_late_ms: None,
        checkpoints,
    }
}

#[tokio::test]
async fn a_worker_whose_certificate_has_expired_enrols_with_its_token_again() {
    let mut coordinator = Coordinator::open();
    let folder = tempfile::tempdir().unwrap();
    let dialler = coordinator.dialler(folder.path());
    let first = dialler.identity().await.unwrap();
    assert_eq!(first.worker(), WorkerId(0));
    let expired = coordinator.issued(0, unix_s() - WORKER_CERTIFICATE_S - 1);
    let Found::Enrolled(new) = dialler.connect(&expired, || join(Vec::new())).await.unwrap() else {
        panic!("a certificate that has expired opened the door");
    };
    assert_eq!(new.worker(), WorkerId(1), "another worker, as nobody can tell whether it is the same");
    assert_eq!(Identity::load(folder.path()).unwrap().unwrap().worker(), WorkerId(1));
    assert_eq!(dialler.identity().await.unwrap().worker(), WorkerId(1), "it is kept");

    let offer = CheckpointOffer {
        next_round: Round(7),
        state_hash: [7; 32],
        private: true,
        rank: 0,
        parts: 1,
        generation: Generation(1),
    };
    let found = dialler.connect(&new, || join(vec![offer.clone()])).await.unwrap();
    assert!(matches!(found, Found::Welcomed(_)));
    let (worker, said) = coordinator.joined.recv().await.unwrap();
    assert_eq!((worker, said.checkpoints), (WorkerId(1), vec![offer]));
}

#[tokio::test]
async fn a_worker_with_neither_certificate_nor_token_says_that_it_needs_a_new_token() {
    let coordinator = Coordinator::open();
    let folder = tempfile::tempdir().unwrap();
    let dialler = coordinator.dialler(folder.path());
    coordinator.issuer.lock().unwrap().revoke_token(dialler.token.id);
    let expired = coordinator.issued(0, unix_s() - WORKER_CERTIFICATE_S - 1);
    let error = dialler.connect(&expired, || join(Vec::new())).await.err().unwrap();
    let said = format!("{error:#}");
    for words in ["certificate has expired", "coordinator token create", "the token was revoked"] {
        assert!(said.contains(words), "{words:?} is not in {said:?}");
    }
}

#[tokio::test]
async fn clocks_that_differ_cost_no_use_of_the_token() {
    let coordinator = Coordinator::open();
    let folder = tempfile::tempdir().unwrap();
    let dialler = coordinator.dialler(folder.path());
    // TLS has one alert for expired certificates and those not valid yet.
    let early = coordinator.issued(0, unix_s() + WORKER_CERTIFICATE_S / 2);
    let attempt = dialler.attempt(&coordinator.address.to_string(), &early, &|| join(Vec::new())).await;
    let Err(Attempt::Later(error)) = attempt else { panic!("it was let in, or gave up") };
    assert!(error.to_string().contains("clocks"), "{error:#}");
    assert_eq!(coordinator.issuer.lock().unwrap().workers().count(), 0);
}

/// A front that closes every connection with `hang_up`.
fn front(coordinator: &Coordinator, hang_up: impl Fn(&Connection) + Send + 'static) -> SocketAddr {
    let authority = Authority::from_pem(&coordinator.issuer.lock().unwrap().authority().to_pem()).unwrap();
    let endpoint = endpoint(Some(coordinator_server(&authority, unix_s()).unwrap()));
    let address = endpoint.local_addr().unwrap();
    tokio::spawn(async move {
        let acceptor = Acceptor::new(RUN);
        while let Some(incoming) = endpoint.accept().await {
            if let Ok(guest) = acceptor.admit(incoming).await {
                hang_up(guest.connection());
            }
        }
    });
    address
}

/// The front of a standby coordinator.
fn waiting(coordinator: &Coordinator, leader: Option<String>) -> SocketAddr {
    front(coordinator, move |connection| NotLeader { leader: leader.clone() }.close(connection))
}

#[tokio::test]
async fn who_trains_waits_for_a_coordinator_of_its_own_release_and_who_comes_hears_that_this_is_another() {
    let coordinator = Coordinator::open();
    let folder = tempfile::tempdir().unwrap();
    let dialler = coordinator.dialler(folder.path());
    let identity = dialler.identity().await.unwrap();
    let hang_up = |connection: &Connection| CloseCode::Version.close(connection, "another release");
    let other = front(&coordinator, hang_up).to_string();
    let comes = dialler.attempt(&other, &identity, &|| join(Vec::new())).await;
    assert!(matches!(comes, Err(Attempt::Never(_))), "it was let in, or waits");
    let held = Some((Generation(3), Round(7)));
    let trains = dialler.attempt(&other, &identity, &|| Join { held, ..join(Vec::new()) }).await;
    assert!(matches!(trains, Err(Attempt::Later(_))), "it was let in, or gave up");
}

#[tokio::test]
async fn a_worker_goes_on_from_a_coordinator_that_waits_to_the_next_one_that_it_was_given() {
    let mut coordinator = Coordinator::open();
    let folder = tempfile::tempdir().unwrap();
    let mut dialler = coordinator.dialler(folder.path());
    let waits = waiting(&coordinator, None);
    dialler.coordinators = format!("{waits},{}", coordinator.address).parse().unwrap();
    let identity = dialler.identity().await.unwrap();
    assert_eq!(dialler.coordinators.current(), coordinator.address.to_string());
    // As after a lost connection.
    dialler.coordinators.go_on(None);
    assert!(matches!(dialler.connect(&identity, || join(Vec::new())).await.unwrap(), Found::Welcomed(_)));
    coordinator.joined.recv().await.unwrap();
}

#[tokio::test]
async fn a_worker_finds_a_leader_that_it_was_not_given() {
    let mut coordinator = Coordinator::open();
    let folder = tempfile::tempdir().unwrap();
    let mut dialler = coordinator.dialler(folder.path());
    let waits = waiting(&coordinator, Some(coordinator.address.to_string()));
    dialler.coordinators = waits.to_string().parse().unwrap();
    let identity = dialler.identity().await.unwrap();
    assert!(matches!(dialler.connect(&identity, || join(Vec::new())).await.unwrap(), Found::Welcomed(_)));
    coordinator.joined.recv().await.unwrap();
}
