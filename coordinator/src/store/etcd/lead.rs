//! The lease that is the right to write, and its renewal.
//!
//! The leader has put the leader's key, bound to a lease. Each write requires that this key was created at the revision of this process's put: when the lease has
//! run out etcd deletes the key, another coordinator puts it at another revision, and later requests of this process have no effect, however late they arrive.
//! Besides, this process stops by its own clock before etcd lets the lease run out, so that it sends workers nothing that it could not write down.

use std::sync::mpsc::{self, RecvTimeoutError};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use tokio::time::Instant;

use super::client::{CallError, Client};
use super::wire::{CreatedAt, Done, Granted, OfLease, Operation, Streamed, Transacted, Transaction};
use crate::store::StoreError;

/// Life of the lease, in seconds: a leader that dies is replaced soon after, and one that stalls for two seconds is not.
pub const LEASE_TTL_S: u64 = 5;
/// Three renewals may fail before the lease runs out.
const RENEW_EVERY: Duration = Duration::from_millis(1200);
/// So much before the lease runs out this process takes it for lost: another one must not begin before this one has stopped.
const MARGIN: Duration = Duration::from_millis(500);
/// Time for giving the lease back, a courtesy to waiting candidates.
const RESIGN_MAX: Duration = Duration::from_millis(500);

/// The lead. Dropping it gives it back.
#[derive(Debug)]
pub struct Lead {
    client: Arc<Client>,
    /// The leader's key, in base64.
    key: String,
    lease: i64,
    /// At which the leader's key was created.
    revision: i64,
    term: Arc<Mutex<Term>>,
    /// When it is dropped, the lease is not renewed any more.
    _renewal: mpsc::Sender<()>,
}

#[derive(Debug)]
struct Term {
    /// By this machine's clock; renewed while the lease is.
    until: Instant,
    /// Why it ended before that.
    over: Option<String>,
}

impl Term {
    /// That of a lease that was granted or renewed by a request which left at this time.
    fn end(sent: Instant, ttl_s: i64) -> Instant {
        let ttl = Duration::from_secs(u64::try_from(ttl_s).unwrap_or_default());
        sent + ttl.saturating_sub(MARGIN)
    }
}

impl Lead {
    /// Takes over a lease that was asked for at `asked`, with the leader's key that is bound to it, and renews it from now on.
    pub fn begin(client: Arc<Client>, key: String, granted: &Granted, revision: i64, asked: Instant) -> Self {
        let until = Term::end(asked, granted.ttl_s);
        let term = Arc::new(Mutex::new(Term { until, over: None }));
        let (renewal, end) = mpsc::channel();
        let renewer = Renewer { client: Arc::clone(&client), lease: granted.lease, term: Arc::clone(&term) };
        thread::spawn(move || renewer.renew(&end));
        Self { client, key, lease: granted.lease, revision, term, _renewal: renewal }
    }

    /// How long this process leads for certain, if the lease is not renewed.
    ///
    /// # Errors
    /// [`StoreError::Deposed`]: it does not any more.
    pub fn remaining(&self) -> Result<Duration, StoreError> {
        let mut term = lock(&self.term);
        let left = term.until.saturating_duration_since(Instant::now());
        if left.is_zero() && term.over.is_none() {
            term.over = Some("its lease in etcd was not renewed in time".to_owned());
        }
        match &term.over {
            Some(why) => Err(StoreError::Deposed { why: why.clone() }),
            None => Ok(left),
        }
    }

    /// Does this, all of it, if this process leads; else nothing.
    ///
    /// # Errors
    /// [`StoreError::Deposed`] if it does not lead, or could not ask in time; [`StoreError::Refused`] if etcd will not.
    pub fn transact(&self, operations: Vec<Operation>) -> Result<(), StoreError> {
        let patience = self.remaining()?;
        let transaction = Transaction {
            compare: [CreatedAt::new(self.key.clone(), self.revision)],
            success: operations,
            failure: Vec::new(),
        };
        match self.client.call::<Transacted>("/v3/kv/txn", &transaction, patience) {
            Ok(Transacted { succeeded: true, .. }) => Ok(()),
            Ok(_) => Err(self.end("its lease in etcd has expired, so it may not write".to_owned())),
            Err(CallError::Unreachable(why)) => {
                Err(self.end(format!("etcd was unreachable until the lease expired ({why})")))
            }
            Err(CallError::Refused(why)) => Err(StoreError::Refused {
                place: format!("the state in etcd at {}", self.client.address()),
                why,
            }),
        }
    }

    /// Judges a read error for the leader: if etcd was unreachable for the lease's life, the lead is lost.
    pub fn judge(&self, error: StoreError) -> StoreError {
        match error {
            StoreError::Unreachable { why, .. } => {
                self.end(format!("etcd was unreachable until the lease expired ({why})"))
            }
            error => error,
        }
    }

    fn end(&self, why: String) -> StoreError {
        lock(&self.term).over = Some(why.clone());
        StoreError::Deposed { why }
    }
}

impl Drop for Lead {
    fn drop(&mut self) {
        lock(&self.term).over.get_or_insert_with(|| "it has given up the lead".to_owned());
        let lease = OfLease { lease: self.lease.to_string() };
        // If it does not arrive, the lease runs out by itself.
        let _ = self.client.call::<Done>("/v3/lease/revoke", &lease, RESIGN_MAX);
    }
}

struct Renewer {
    client: Arc<Client>,
    lease: i64,
    term: Arc<Mutex<Term>>,
}

impl Renewer {
    /// Renews until the lead is dropped, or lost.
    fn renew(self, end: &mpsc::Receiver<()>) {
        let lease = OfLease { lease: self.lease.to_string() };
        while let Err(RecvTimeoutError::Timeout) = end.recv_timeout(RENEW_EVERY) {
            let sent = Instant::now();
            let renewed = self.client.call::<Streamed<Granted>>("/v3/lease/keepalive", &lease, RENEW_EVERY);
            let mut term = lock(&self.term);
            match renewed {
                Ok(answer) if answer.result.ttl_s > 0 => {
                    term.until = Term::end(sent, answer.result.ttl_s);
                }
                Ok(_) => {
                    term.over.get_or_insert_with(|| "its lease in etcd has expired".to_owned());
                }
                Err(CallError::Unreachable(why) | CallError::Refused(why)) => {
                    tracing::warn!(why, "could not renew the leader's lease");
                }
            }
            if term.over.is_some() {
                return;
            }
        }
    }
}

fn lock(term: &Mutex<Term>) -> MutexGuard<'_, Term> {
    // A term is whole whenever the lock is free.
    term.lock().unwrap_or_else(PoisonError::into_inner)
}
