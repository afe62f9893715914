//! Members of one process, for tests of reducing components.
#![allow(clippy::unwrap_used, reason = "this is all test code")]

use std::net::{Ipv4Addr, TcpListener};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use longhaul_common::id::{RunId, WorkerId};
use longhaul_proto::identity::{Authority, WorkerKey};

use super::{RingMember, RingSetup, SiteTls, Stop};

const RUN: RunId = RunId([7; 16]);

/// Long enough for a busy machine; no expected success waits for it.
pub const PATIENT: Duration = Duration::from_secs(60);

/// Creates two members before their join.
///
/// # Panics
/// The loopback or randomness is unavailable.
#[must_use]
#[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
pub fn pair() -> [(RingSetup, TcpListener); 2] {
    let unix_s = SystemTime::now().duration_since(UNIX_EPOCH).unwrap().as_secs();
    let authority = Authority::create(RUN, unix_s).unwrap();
    let listeners = [(); 2].map(|()| TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap());
    let members: Vec<_> = [0, 1]
        .map(|rank| RingMember {
            worker: WorkerId(rank as u32),
            address: listeners[rank].local_addr().unwrap(),
        })
        .to_vec();
    let mut rank = 0;
    listeners.map(|listener| {
        let key = WorkerKey::generate().unwrap();
        let certificate =
            authority.issue_worker(&key.request().unwrap(), members[rank].worker, unix_s).unwrap();
        let tls = SiteTls::new(RUN, certificate, authority.certificate(), &key.to_pkcs8()).unwrap();
        let setup = RingSetup {
            members: members.clone(),
            rank,
            session: 0,
            tls,
            call_max: PATIENT,
            join_max: PATIENT,
            stop: Stop::default(),
        };
        rank += 1;
        (setup, listener)
    })
}
