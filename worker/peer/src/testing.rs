//! Workers' networks in one process, with real connections between them.
#![allow(clippy::unwrap_used, clippy::missing_panics_doc, missing_docs, reason = "this is all test code")]

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use longhaul_common::id::{RunId, SiteId, WorkerId};
use longhaul_common::plan::Member;
use longhaul_flight::Progress;
use longhaul_member::SyncEvent;
use longhaul_proto::identity::{Authority, Identity, WorkerKey, data_server};
use longhaul_proto::transport;
use longhaul_proto::transport::bulk::ReceiveLimits;
use quinn::Endpoint;
use tokio::sync::mpsc;

use super::Network;

pub fn authority() -> (Authority, u64) {
    #[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    (Authority::create(RunId([3; 16]), now).unwrap(), now)
}

pub fn endpoint((authority, now): &(Authority, u64), number: u32) -> (Identity, Endpoint) {
    let key = WorkerKey::generate().unwrap();
    let certificate = authority.issue_worker(&key.request().unwrap(), WorkerId(number), *now).unwrap();
    let identity = Identity::new(certificate, authority.certificate().clone(), key.to_pkcs8()).unwrap();
    let (socket, _) = transport::bind_udp(SocketAddr::from(([127, 0, 0, 1], 0))).unwrap();
    let endpoint = transport::endpoint(socket, Some(data_server(&identity).unwrap())).unwrap();
    (identity, endpoint)
}

/// A worker's network at its own site, and its address.
pub struct Worker {
    pub network: Arc<Network>,
    pub queue: mpsc::Receiver<SyncEvent>,
    pub member: Member,
}

impl Worker {
    pub fn start(authority: &(Authority, u64), number: u32, limits: ReceiveLimits) -> Self {
        Self::start_at(authority, number, SiteId(number), limits)
    }

    pub fn start_at(authority: &(Authority, u64), number: u32, site: SiteId, limits: ReceiveLimits) -> Self {
        let (identity, endpoint) = endpoint(authority, number);
        let member = Member { site, ..member(number, endpoint.local_addr().unwrap()) };
        let (sender, queue) = mpsc::channel(256);
        let progress = Arc::new(Progress::default());
        let network = Network::start(endpoint, &identity, member.site, sender, progress, limits).unwrap();
        Self { network, queue, member }
    }
}

pub fn member(number: u32, address: SocketAddr) -> Member {
    let (worker, site) = (WorkerId(number), SiteId(number));
    Member { worker, site, lan_address: address, wan_address: address, upload_weight: 1 }
}
