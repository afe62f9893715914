use std::time::Duration;

use longhaul_proto::control::EnrolState;
use longhaul_tests::etcd::EtcdServer;
use tempfile::TempDir;

use super::*;
use crate::store::{Store, StoreError, tests::founding, tests::keeps_its_promises};

struct Server {
    etcd: EtcdServer,
    _folder: TempDir,
}

impl Server {
    /// None: there is no etcd on this machine.
    fn start() -> Option<Self> {
        let folder = tempfile::tempdir().unwrap();
        Some(Self { etcd: EtcdServer::start(folder.path()).unwrap()?, _folder: folder })
    }

    fn candidate(&self, prefix: &str) -> Candidate {
        let address = EtcdAddress::read(&self.etcd.state(prefix), |_| None).unwrap();
        Candidate::new(address, "head:4800".to_owned()).unwrap()
    }
}

/// Waits until a candidate leads.
fn lead(candidate: &Candidate) -> Store {
    loop {
        match candidate.stand().unwrap() {
            Election::Won(store) => return *store,
            // Another process's lease runs out, without a signal here.
            Election::Lost(_) => std::thread::park_timeout(Duration::from_millis(100)),
        }
    }
}

#[test]
fn etcd_keeps_its_promises() {
    let Some(server) = Server::start() else { return };
    let candidate = server.candidate("promises");
    keeps_its_promises(|| lead(&candidate));
}

#[test]
fn one_leads_and_the_other_hears_who_until_the_lead_is_given_back() {
    let Some(server) = Server::start() else { return };
    let (first, second) = (server.candidate("elections"), server.candidate("elections"));
    let store = lead(&first);
    match second.stand().unwrap() {
        Election::Lost(leader) => assert_eq!(leader.advertised, "head:4800"),
        Election::Won(_) => panic!("two lead"),
    }
    let (founding, state) = founding();
    assert_eq!(second.founding().unwrap(), None);
    store.found(&founding, &state, &EnrolState::default()).unwrap();
    assert_eq!(second.founding().unwrap().as_ref(), Some(&founding));
    drop(store);
    assert!(matches!(second.stand().unwrap(), Election::Won(_)));
    assert!(matches!(server.candidate("another-run").stand().unwrap(), Election::Won(_)));
}

/// The lease ends while the leader believes that it leads, as when its machine was suspended: etcd refuses each of its writes.
#[test]
fn nobody_whose_lease_has_ended_writes() {
    let Some(server) = Server::start() else { return };
    let candidate = server.candidate("fenced");
    let (founding, mut state) = founding();
    let former = lead(&candidate);
    former.found(&founding, &state, &EnrolState::default()).unwrap();
    server.etcd.revoke_all_leases().unwrap();
    let next = lead(&candidate);
    // By its own clock the lease still lives; otherwise it would not even ask.
    state.roster.sites = vec!["a former leader's".to_owned()];
    let error = former.put_state(&state).unwrap_err();
    assert!(matches!(error, StoreError::Deposed { .. }), "{error}");
    state.roster.sites = (0..200_000).map(|site| format!("site {site}")).collect();
    let in_parts = former.put_state(&state).unwrap_err();
    assert!(matches!(in_parts, StoreError::Deposed { .. }), "{in_parts}");
    assert!(matches!(former.check_lead(), Err(StoreError::Deposed { .. })));
    drop(former);
    next.check_lead().unwrap();
    let (kept, _) = next.load().unwrap().unwrap();
    assert!(kept.roster.sites.is_empty());
    next.put_state(&kept).unwrap();
}

#[cfg(unix)]
#[test]
fn a_leader_that_cannot_reach_etcd_stops_before_its_lease_has_run_out() {
    let Some(server) = Server::start() else { return };
    let candidate = server.candidate("alone");
    let store = lead(&candidate);
    let (founding, state) = founding();
    store.found(&founding, &state, &EnrolState::default()).unwrap();
    server.etcd.signal("STOP").unwrap();
    // A signal has been sent before it is obeyed: a write or two may still be done.
    let error = loop {
        if let Err(error) = store.put_state(&state) {
            break error;
        }
    };
    assert!(matches!(error, StoreError::Deposed { .. }), "{error}");
    assert!(store.check_lead().is_err());
    server.etcd.signal("CONT").unwrap();
    drop(store);
    lead(&candidate).put_state(&state).unwrap();
}

#[test]
fn nobody_there_is_told_from_somebody_who_refuses() {
    let address = EtcdAddress::read("etcd://127.0.0.1:1/x", |_| None).unwrap();
    let error = Candidate::new(address, String::new()).unwrap().stand().unwrap_err();
    assert!(matches!(error, StoreError::Unreachable { .. }), "{error}");
    assert!(error.to_string().contains("etcd://127.0.0.1:1/x"), "{error}");
    let missing = EtcdAddress::read("etcds://127.0.0.1:1/x?ca=/nowhere.pem", |_| None).unwrap();
    let error = Candidate::new(missing, String::new()).unwrap_err();
    assert!(error.to_string().contains("/nowhere.pem"), "{error}");
}
