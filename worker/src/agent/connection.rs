//! Connection to the coordinator, with retries without limit.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use longhaul_common::back_off::BackOff;
use longhaul_common::explained::Explained;
use longhaul_proto::control::message::{Join, ToCoordinator, ToWorker, Welcome};
use longhaul_proto::control::{self, ControlReceiver, ControlSender, NotLeader};
use longhaul_proto::identity::{self, Identity, PeerName, Token, is_out_of_date, is_refused_as_expired};
use quinn::{Connection, Endpoint};
use tokio::time::Instant;

use super::addresses;
use super::coordinators::Coordinators;
use super::reminder::Reminder;

/// Timeout of an attempt; the next one may use another address.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);
/// Initial timeout with several coordinators, most of which may be down: enough for a handshake over a long link with one lost packet. Doubles up to [`ATTEMPT_MAX`].
const ATTEMPT_MIN: Duration = Duration::from_secs(3);

/// A welcomed conversation with the coordinator.
pub struct Conversation {
    /// Channel to the coordinator.
    pub sender: ControlSender<ToCoordinator>,
    /// Channel from the coordinator.
    pub receiver: ControlReceiver<ToWorker>,
    /// The coordinator's first message.
    pub welcome: Welcome,
}

/// Error of a worker whose certificate the coordinator no longer accepts.
const OUT_OF_THE_RUN: &str = "the coordinator does not take this worker any more; to begin anew as another one, give it another --cache-dir and a token";

/// The result of connecting to the coordinator.
pub enum Found {
    /// The coordinator has welcomed this worker.
    Welcomed(Conversation),
    /// The certificate has expired. This is the certificate of a new worker.
    Enrolled(Identity),
}

/// The failure of an attempt.
#[derive(Debug)]
enum Attempt {
    /// A retry may succeed.
    Later(anyhow::Error),
    /// A retry cannot succeed.
    Never(anyhow::Error),
}

impl From<Attempt> for anyhow::Error {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Later(error) | Attempt::Never(error) => error,
        }
    }
}

/// The coordinators' addresses and this worker's credentials.
pub struct Dialler {
    /// The worker's only endpoint, which also receives data from peers.
    pub endpoint: Endpoint,
    /// The possible addresses; names are resolved for each attempt.
    pub coordinators: Coordinators,
    /// The join token.
    pub token: Token,
    /// The folder of the identity.
    pub folder: PathBuf,
    /// The site's name.
    pub site: String,
}

impl Dialler {
    /// Returns the identity in the folder while it is valid, else enrols a new one with the token.
    ///
    /// # Errors
    /// The coordinator refuses the token, or the folder cannot be written.
    pub async fn identity(&self) -> Result<Identity> {
        match Identity::load(&self.folder).context("read this worker's identity")? {
            Some(identity) if identity.expires_at_unix_s() > unix_s() => Ok(identity),
            _ => self.insist(async |coordinator| self.enrol(coordinator).await).await,
        }
    }

    /// Enrols a new identity with the token and replaces the one in the folder.
    ///
    /// # Errors
    /// The coordinator refuses the token, or the folder cannot be written.
    pub async fn another_identity(&self) -> Result<Identity> {
        self.insist(async |coordinator| self.enrol(coordinator).await).await
    }

    /// Renews an identity that is due for renewal.
    ///
    /// # Errors
    /// The coordinator is unreachable, or refuses.
    pub async fn renew(&self, identity: &Identity) -> Result<Identity> {
        let address = self.lookup(&self.coordinators.current()).await?;
        let renewed = control::renew(&self.endpoint, address, identity, &self.site).await?;
        renewed.save(&self.folder).context("keep this worker's identity")?;
        Ok(renewed)
    }

    /// Connects and joins with the current value of `join`. Retries with growing pauses until the coordinator welcomes or refuses. Enrols again with the token if the
    /// certificate has expired, which happens during a long absence of the coordinator.
    ///
    /// # Errors
    /// The coordinator refuses; the error has its reason.
    pub async fn connect(&self, identity: &Identity, join: impl Fn() -> Join) -> Result<Found> {
        self.insist(async |coordinator| self.attempt(coordinator, identity, &join).await).await
    }

    /// Tries the coordinators in turn, with a pause after each full turn.
    async fn insist<T>(&self, attempt: impl AsyncFn(&str) -> Result<T, Attempt>) -> Result<T> {
        let (mut back_off, mut tried) = (BackOff::default(), 0);
        let mut limit = if self.coordinators.count() > 1 { ATTEMPT_MIN } else { ATTEMPT_MAX };
        let (begun, mut reminder) = (Instant::now(), Reminder::default());
        loop {
            let coordinator = self.coordinators.current();
            let outcome = tokio::time::timeout(limit, attempt(&coordinator)).await;
            let error = match outcome {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(Attempt::Never(error))) => return Err(error),
                Ok(Err(Attempt::Later(error))) => error,
                Err(_) => anyhow::anyhow!(
                    "no answer over UDP; is the address right, and does a firewall let UDP through? \
                     `worker doctor {coordinator}` looks closer"
                ),
            };
            let words = Explained(&*error).to_string();
            if reminder.is_due(&words, Instant::now()) {
                let waited_s = begun.elapsed().as_secs();
                tracing::warn!(coordinator, waited_s, reason = words, "waiting for the coordinator");
            }
            self.coordinators.go_on(error.chain().find_map(says_not_leader));
            tried += 1;
            if tried >= self.coordinators.count() {
                tried = 0;
                tokio::time::sleep(back_off.next_pause()).await;
                limit = (limit * 2).min(ATTEMPT_MAX);
            }
        }
    }

    /// Enrols a new identity and stores it in the folder.
    async fn enrol(&self, coordinator: &str) -> Result<Identity, Attempt> {
        let address = self.lookup(coordinator).await?;
        let enrolled = control::enrol(&self.endpoint, address, &self.token, &self.site).await;
        let identity = enrolled.map_err(|error| {
            let hopeless = error.is_final();
            let error = anyhow::Error::from(error).context("enrol with the join token");
            if hopeless { Attempt::Never(error) } else { Attempt::Later(error) }
        })?;
        if identity.expires_at_unix_s() <= unix_s() {
            let reason = "the coordinator issues certificates that have expired by this machine's clock: set the clocks right";
            return Err(Attempt::Never(anyhow::anyhow!(reason)));
        }
        identity.save(&self.folder).context("keep this worker's identity").map_err(Attempt::Never)?;
        Ok(identity)
    }

    /// Enrols a replacement for an expired identity.
    async fn enrol_anew(&self, coordinator: &str) -> Result<Found, Attempt> {
        match self.enrol(coordinator).await {
            Ok(identity) => Ok(Found::Enrolled(identity)),
            Err(Attempt::Never(error)) => Err(Attempt::Never(
                error.context("this worker's certificate has expired, so it enrols again"),
            )),
            Err(later) => Err(later),
        }
    }

    async fn attempt(
        &self,
        coordinator: &str,
        identity: &Identity,
        join: &impl Fn() -> Join,
    ) -> Result<Found, Attempt> {
        if identity.expires_at_unix_s() <= unix_s() {
            return self.enrol_anew(coordinator).await;
        }
        match self.join(coordinator, identity, join).await? {
            Some(conversation) => Ok(Found::Welcomed(conversation)),
            // A smaller clock error has no effect.
            None if unix_s() >= identity.renew_at_unix_s() => self.enrol_anew(coordinator).await,
            None => Err(Attempt::Later(anyhow::anyhow!(
                "the coordinator considers this worker's certificate expired or not yet valid, before half its lifetime: \
                 check the clocks of both machines"
            ))),
        }
    }

    /// Connects and joins. `None`: the coordinator considers the certificate expired.
    async fn join(
        &self,
        coordinator: &str,
        identity: &Identity,
        join: &impl Fn() -> Join,
    ) -> Result<Option<Conversation>, Attempt> {
        let address = self.lookup(coordinator).await?;
        let tls = identity::control_client(identity)
            .context("use this worker's identity")
            .map_err(Attempt::Never)?;
        let name = PeerName::Coordinator.in_run(identity.run());
        let connecting = self
            .endpoint
            .connect_with(longhaul_proto::transport::client_config(tls), address, &name)
            .context("dial the coordinator")
            .map_err(Attempt::Never)?;
        let connection = match connecting.await {
            Err(error) if is_refused_as_expired(&error) => return Ok(None),
            Err(error) if is_out_of_date(&error) => {
                return Err(Attempt::Later(control::EnrolError::OutOfDate(error).into()));
            }
            connected => connected.context("connect to the coordinator").map_err(Attempt::Later)?,
        };
        match greet(&connection, join()).await {
            // In TLS 1.3 the client finishes before the server has verified its certificate.
            Err(Attempt::Later(error)) if error.chain().any(says_expired) => Ok(None),
            greeted => greeted.map(Some),
        }
    }

    async fn lookup(&self, coordinator: &str) -> Result<SocketAddr, Attempt> {
        let found = tokio::net::lookup_host(coordinator).await.map_err(|error| {
            let malformed = error.kind() == std::io::ErrorKind::InvalidInput;
            let error = anyhow::Error::from(error);
            if malformed {
                let words = format!("{coordinator:?} is not HOST:PORT, as `coordinator up` prints it");
                Attempt::Never(error.context(words))
            } else {
                Attempt::Later(error.context(format!("look up {coordinator:?}")))
            }
        })?;
        let all = addresses::in_order(found);
        let usable: Vec<SocketAddr> = all.iter().copied().filter(|address| self.may_dial(address)).collect();
        let first = usable.first().copied().ok_or_else(|| {
            let named: Vec<String> = all.iter().map(|address| address.ip().to_string()).collect();
            Attempt::Later(anyhow::anyhow!(
                "{coordinator:?} has only addresses that this worker cannot dial ({}): its socket is of the other IP version; check --listen",
                named.join(", ")
            ))
        })?;
        if usable.len() == 1 {
            return Ok(first);
        }
        // If none answers, dialling the first one yields the error.
        Ok(addresses::first_that_answers(&self.endpoint, &usable).await.unwrap_or(first))
    }

    /// An IPv6 wildcard socket can dial both families (RFC 3493, section 3.7).
    fn may_dial(&self, address: &SocketAddr) -> bool {
        let is_any = |own: &SocketAddr| own.is_ipv6() && own.ip().is_unspecified();
        self.endpoint.local_addr().is_ok_and(|own| is_any(&own) || own.is_ipv4() == address.is_ipv4())
    }
}

/// Sends the first message over a new connection and receives the answer.
async fn greet(connection: &Connection, join: Join) -> Result<Conversation, Attempt> {
    let (sender, mut receiver) = match control::open::<ToCoordinator, ToWorker>(connection).await {
        Ok(channel) => channel,
        // A worker in training continues without a coordinator; one of its own release may return.
        Err(error) if error.is_other_version() && join.held.is_none() => {
            return Err(Attempt::Never(error.into()));
        }
        Err(error) if error.is_stranger() => {
            return Err(Attempt::Never(anyhow::Error::from(error).context(OUT_OF_THE_RUN)));
        }
        Err(error) => return Err(Attempt::Later(error.into())),
    };
    let later = |error: anyhow::Error| Attempt::Later(error);
    // The close code tells a removed worker of its removal.
    let heard = match sender.send(&ToCoordinator::Join(join)) {
        Ok(()) => receiver.receive().await,
        Err(error) => return Err(later(anyhow::Error::from(error).context("join"))),
    };
    let heard = heard.map_err(|error| match error.is_stranger() {
        true => Attempt::Never(anyhow::Error::from(error).context(OUT_OF_THE_RUN)),
        false => later(anyhow::Error::from(error).context("wait for the welcome")),
    })?;
    match heard {
        Some(ToWorker::Welcome(welcome)) => Ok(Conversation { sender, receiver, welcome }),
        Some(ToWorker::Refused { reason }) => {
            Err(Attempt::Never(anyhow::anyhow!("the coordinator refuses this worker: {reason}")))
        }
        Some(ToWorker::Dismiss { reason }) => {
            Err(Attempt::Never(anyhow::anyhow!("the run does not need this worker: {reason}")))
        }
        Some(_) | None => {
            Err(Attempt::Later(anyhow::anyhow!("the coordinator closed the conversation at once")))
        }
    }
}

/// Returns the refusal of a standby coordinator.
fn says_not_leader(error: &(dyn std::error::Error + 'static)) -> Option<NotLeader> {
    error.downcast_ref().and_then(NotLeader::said_in)
}

fn says_expired(error: &(dyn std::error::Error + 'static)) -> bool {
    error.downcast_ref().is_some_and(is_refused_as_expired)
}

/// Seconds since 1970, for certificate lifetimes.
#[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

#[cfg(test)]
mod tests;
