//! One request, to whichever member of the cluster answers.

use std::fmt;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::time::Instant;
use ureq::tls::TlsConfig;

use super::address::{EtcdAddress, Login};
use super::tls;
use super::wire::{Authenticate, Authenticated};
use crate::store::StoreError;

/// How long one member may take to answer. etcd writes to its disk before it does, and another member can be asked well within a lease's life.
const ATTEMPT_MAX: Duration = Duration::from_millis(1500);
/// Between rounds through all members.
const PAUSE: Duration = Duration::from_millis(100);
/// The longest answer: a page of rounds, or a part of a record, in base64.
const ANSWER_BYTES_MAX: u64 = 8 << 20;
/// gRPC's codes, as the gateway repeats them.
const UNKNOWN: u64 = 2;
const DEADLINE_EXCEEDED: u64 = 4;
const PERMISSION_DENIED: u64 = 7;
const UNAVAILABLE: u64 = 14;
const UNAUTHENTICATED: u64 = 16;

/// Why there is no answer.
#[derive(Clone, Debug)]
pub enum CallError {
    /// No usable answer: another member may give one, or the same one later.
    Unreachable(String),
    /// etcd has understood, and does not do it.
    Refused(String),
}

/// The way to a cluster.
pub struct Client {
    address: EtcdAddress,
    agent: ureq::Agent,
    session: Mutex<Session>,
}

#[derive(Default)]
struct Session {
    /// The member that answered last.
    at: usize,
    /// etcd's token for name and password.
    token: Option<String>,
}

/// The gateway's way to say no.
#[derive(serde::Deserialize)]
struct Failure {
    #[serde(default)]
    code: u64,
    #[serde(default)]
    error: String,
    #[serde(default)]
    message: String,
}

impl Client {
    /// A client that has not connected yet.
    ///
    /// # Errors
    /// [`StoreError::Refused`] names a file with certificates that cannot be used.
    pub fn new(address: EtcdAddress) -> Result<Self, StoreError> {
        let tls = match &address.tls {
            None => TlsConfig::builder().build(),
            Some(files) => tls::config(files).map_err(|why| StoreError::Refused {
                place: format!("the state in etcd at {address}"),
                why,
            })?,
        };
        // A proxy of the web has no business here.
        let config =
            ureq::Agent::config_builder().http_status_as_error(false).proxy(None).tls_config(tls).build();
        Ok(Self { address, agent: config.into(), session: Mutex::default() })
    }

    /// The address, which shows no password.
    pub fn address(&self) -> &EtcdAddress {
        &self.address
    }

    /// Asks one member after the other until one answers, for at most `patience`, and at least once.
    ///
    /// # Errors
    /// [`CallError`]
    pub fn call<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        patience: Duration,
    ) -> Result<T, CallError> {
        let begun = Instant::now();
        let members = self.address.endpoints.len();
        let mut attempts = 0;
        loop {
            let left = patience.saturating_sub(begun.elapsed());
            let limit = left.min(ATTEMPT_MAX).max(PAUSE);
            match self.ask(path, body, limit) {
                Err(CallError::Unreachable(why)) if begun.elapsed() >= patience => {
                    return Err(CallError::Unreachable(why));
                }
                Err(CallError::Unreachable(_)) => {}
                answered => return answered,
            }
            self.go_on();
            attempts += 1;
            if attempts % members == 0 {
                // Nothing reports the return of a member.
                std::thread::park_timeout(PAUSE);
            }
        }
    }

    /// Asks the member that answered last, with a new token where the old one is not good any more.
    fn ask<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        limit: Duration,
    ) -> Result<T, CallError> {
        let Some(login) = &self.address.login else { return self.post(path, body, None, limit) };
        for renewed in [false, true] {
            // Logging in takes the lock, too.
            let known = self.session().token.clone();
            let token = match known {
                Some(token) => token,
                None => self.log_in(login, limit)?,
            };
            match self.post(path, body, Some(&token), limit) {
                Err(CallError::Refused(why)) if !renewed && is_stale_token(&why) => {
                    self.session().token = None;
                }
                answered => return answered,
            }
        }
        Err(CallError::Refused("etcd rejects the token that it has just issued".to_owned()))
    }

    fn log_in(&self, login: &Login, limit: Duration) -> Result<String, CallError> {
        let request = Authenticate { name: &login.user, password: &login.password };
        let answer: Authenticated = self.post("/v3/auth/authenticate", &request, None, limit)?;
        self.session().token = Some(answer.token.clone());
        Ok(answer.token)
    }

    fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        token: Option<&str>,
        limit: Duration,
    ) -> Result<T, CallError> {
        let at = self.session().at % self.address.endpoints.len();
        let member = &self.address.endpoints[at];
        let scheme = if self.address.tls.is_some() { "https" } else { "http" };
        let unreachable = |why: String| CallError::Unreachable(format!("{member}: {why}"));
        let mut request = self.agent.post(format!("{scheme}://{member}{path}"));
        if let Some(token) = token {
            request = request.header("Authorization", token);
        }
        let request = request.config().timeout_global(Some(limit)).build();
        let failed = |error: ureq::Error| unreachable(self.explain(&error));
        let mut answer = request.send_json(body).map_err(failed)?;
        let status = answer.status();
        let read = answer.body_mut().with_config().limit(ANSWER_BYTES_MAX).read_to_vec();
        let bytes = read.map_err(failed)?;
        if status.is_success() {
            let odd = |error: serde_json::Error| {
                CallError::Refused(format!("{member} does not answer like etcd: {error}"))
            };
            return serde_json::from_slice(&bytes).map_err(odd);
        }
        Err(failure(member, status.as_u16(), &bytes))
    }

    /// Describes a failed request, and the remedy.
    fn explain(&self, error: &ureq::Error) -> String {
        match &self.address.tls {
            Some(files) => tls::explain(error, files)
                .unwrap_or_else(|| format!("{error}; is etcd running, and are host and port right?")),
            None => format!(
                "{error}; is etcd running, are host and port right, and is it without TLS (else write etcds://)?"
            ),
        }
    }

    fn go_on(&self) {
        let mut session = self.session();
        session.at = session.at.wrapping_add(1);
    }

    fn session(&self) -> std::sync::MutexGuard<'_, Session> {
        // A thread that panicked leaves a valid number and token.
        self.session.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Client").field(&self.address).finish()
    }
}

fn is_stale_token(why: &str) -> bool {
    why.contains("invalid auth token") || why.contains("revision in header is old")
}

/// Classifies an answer other than 200.
fn failure(member: &str, status: u16, bytes: &[u8]) -> CallError {
    let Ok(failure) = serde_json::from_slice::<Failure>(bytes) else {
        let hint = "is this etcd 3.4 or newer, with its JSON gateway (enable-grpc-gateway: true) and without --listen-client-http-urls?";
        return CallError::Refused(format!("{member} answers {status}: {hint}"));
    };
    let said = if failure.message.is_empty() { failure.error } else { failure.message };
    match failure.code {
        UNAVAILABLE if said.contains("connection closed") => {
            CallError::Unreachable(format!("{member}: {said}; {}", tls::GATEWAY_IS_CUT_OFF))
        }
        UNAVAILABLE | DEADLINE_EXCEEDED => CallError::Unreachable(format!("{member}: {said}")),
        // Elections and overload have this code as well.
        UNKNOWN if said.contains("leader") || said.contains("timed out") => {
            CallError::Unreachable(format!("{member}: {said}"))
        }
        UNAUTHENTICATED | PERMISSION_DENIED => CallError::Refused(format!(
            "{said}; the user of LONGHAUL_ETCD_USER and LONGHAUL_ETCD_PASSWORD needs permission to read and write keys with this prefix"
        )),
        _ if said.contains("space exceeded") => CallError::Refused(format!(
            "{said}; compact and defragment it, disarm the alarm, and start it with --auto-compaction-retention (docs/book: coordinators that take over)"
        )),
        _ if said.contains("user name is empty") => {
            CallError::Refused(format!("{said}: set LONGHAUL_ETCD_USER and LONGHAUL_ETCD_PASSWORD"))
        }
        _ => CallError::Refused(said),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refusal_says_what_helps() {
        let said = |body: &str| match failure("a:1", 400, body.as_bytes()) {
            CallError::Refused(why) | CallError::Unreachable(why) => why,
        };
        let full = r#"{"error":"etcdserver: mvcc: database space exceeded","code":8,"message":"etcdserver: mvcc: database space exceeded"}"#;
        assert!(said(full).contains("--auto-compaction-retention"));
        assert!(said(r#"{"error":"etcdserver: permission denied","code":7}"#).contains("LONGHAUL_ETCD_USER"));
        assert!(said("404 page not found").contains("enable-grpc-gateway"));
        assert!(said(r#"{"error":"connection closed","code":14}"#).contains("extendedKeyUsage"));
        let moved = failure("a:1", 503, br#"{"error":"etcdserver: leader changed","code":14}"#);
        assert!(matches!(moved, CallError::Unreachable(_)), "{moved:?}");
    }
}
