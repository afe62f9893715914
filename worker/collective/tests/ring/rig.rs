//! Members of a ring on the loopback, each with a certificate of one run.

use std::net::{Ipv4Addr, TcpListener};
use std::thread;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_collective::{CollectiveError, RingCollective, RingMember, RingSetup, SiteTls, Stop};
use longhaul_common::id::{RunId, WorkerId};
use longhaul_proto::identity::{Authority, WorkerKey};
use rustls::pki_types::CertificateDer;

const RUN: RunId = RunId([0x1c; 16]);

/// Long enough for a busy machine; no expected success waits for it.
pub const PATIENT: Duration = Duration::from_secs(60);

/// A member before its join.
pub struct RingStart {
    pub setup: RingSetup,
    pub listener: TcpListener,
}

impl RingStart {
    pub fn join(&self) -> Result<RingCollective, CollectiveError> {
        RingCollective::join(&self.setup, &self.listener)
    }
}

pub fn authority() -> Authority {
    Authority::create(RUN, unix_s()).unwrap()
}

/// A worker's certificate, its authority's, and its key, in DER.
pub type Credentials = [Vec<u8>; 3];

pub fn credentials(authority: &Authority, worker: WorkerId) -> Credentials {
    let key = WorkerKey::generate().unwrap();
    let certificate = authority.issue_worker(&key.request().unwrap(), worker, unix_s()).unwrap();
    let key = key.to_pkcs8().secret_pkcs8_der().to_vec();
    [certificate.to_vec(), authority.certificate().to_vec(), key]
}

pub fn tls_of([certificate, authority, key]: &Credentials) -> SiteTls {
    let der = |bytes: &Vec<u8>| CertificateDer::from(bytes.clone());
    SiteTls::new(RUN, der(certificate), &der(authority), &key.clone().into()).unwrap()
}

/// Returns `size` members ready to join one another, and the parts of their certificates.
pub fn starts_and_credentials(size: usize) -> (Vec<RingStart>, Vec<Credentials>) {
    let authority = authority();
    let listeners: Vec<_> = (0..size).map(|_| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap()).collect();
    let worker = |rank: usize| WorkerId(10 + rank as u32);
    let members: Vec<_> = listeners
        .iter()
        .enumerate()
        .map(|(rank, listener)| RingMember { worker: worker(rank), address: listener.local_addr().unwrap() })
        .collect();
    let credentials: Vec<_> = (0..size).map(|rank| credentials(&authority, worker(rank))).collect();
    let start = |(rank, listener)| {
        let (tls, members) = (tls_of(&credentials[rank]), members.clone());
        let setup = RingSetup {
            members,
            rank,
            session: 1,
            tls,
            call_max: PATIENT,
            join_max: PATIENT,
            stop: Stop::default(),
        };
        RingStart { setup, listener }
    };
    (listeners.into_iter().enumerate().map(start).collect(), credentials)
}

/// Returns `size` members ready to join one another.
pub fn starts(size: usize) -> Vec<RingStart> {
    starts_and_credentials(size).0
}

/// Returns `size` joined members.
pub fn ring(size: usize) -> Vec<RingCollective> {
    each(starts(size), |start| start.join().unwrap())
}

/// Runs `work` for every member in its own thread.
pub fn each<S: Send, T: Send>(members: Vec<S>, work: impl Fn(S) -> T + Sync) -> Vec<T> {
    thread::scope(|scope| {
        let threads: Vec<_> = members.into_iter().map(|member| scope.spawn(|| work(member))).collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    })
}

#[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs()
}
