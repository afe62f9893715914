//! Members of a run on this machine, and their rings.

use std::net::{Ipv4Addr, TcpListener};
use std::time::Duration;

use anyhow::Result;
use longhaul_collective::{RingMember, RingSetup, SiteTls, Stop};
use longhaul_common::id::{RunId, WorkerId};
use longhaul_proto::identity::{Authority, Identity, WorkerKey};

use super::clock::unix_s;

/// Timeout of a call and of joining.
pub const LIMIT: Duration = Duration::from_secs(30);

/// Returns certified workers of one run, numbered from one.
pub fn identities(run: RunId, count: u32) -> Result<Vec<Identity>> {
    let now = unix_s()?;
    let authority = Authority::create(run, now)?;
    let identity = |worker| {
        let key = WorkerKey::generate()?;
        let certificate = authority.issue_worker(&key.request()?, WorkerId(worker), now)?;
        Ok(Identity::new(certificate, authority.certificate().clone(), key.to_pkcs8())?)
    };
    (1..=count).map(identity).collect()
}

/// Returns the setup with which each of them joins a ring on loopback.
pub fn starts(identities: &[Identity], session: u64) -> Result<Vec<(RingSetup, TcpListener)>> {
    let listen = |identity: &Identity| {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let member = RingMember { worker: identity.worker(), address: listener.local_addr()? };
        anyhow::Ok((member, listener))
    };
    let bound = identities.iter().map(listen).collect::<Result<Vec<_>>>()?;
    let (members, listeners): (Vec<_>, Vec<_>) = bound.into_iter().unzip();
    let start = |(rank, (identity, listener)): (usize, (&Identity, TcpListener))| {
        let (members, tls, stop) = (members.clone(), SiteTls::of(identity)?, Stop::default());
        let setup = RingSetup { members, rank, session, tls, call_max: LIMIT, join_max: LIMIT, stop };
        anyhow::Ok((setup, listener))
    };
    identities.iter().zip(listeners).enumerate().map(start).collect()
}
