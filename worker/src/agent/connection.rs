//! Finding the coordinator, for as long as it takes.

use std::net::SocketAddr;
use std::path::Path;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result};
use longhaul_common::explained::Explained;
use longhaul_proto::control::message::{Join, ToCoordinator, ToWorker, Welcome};
use longhaul_proto::control::{self, ControlReceiver, ControlSender};
use longhaul_proto::identity::{self, Identity, PeerName, Token};
use quinn::Endpoint;
use tokio::time::Instant;

use super::reminder::Reminder;

/// The first wait after a failed attempt; it doubles up to [`BACK_OFF_MAX`].
const BACK_OFF_MIN: Duration = Duration::from_millis(250);
/// A coordinator that was restarted should see its workers again well within its grace period.
const BACK_OFF_MAX: Duration = Duration::from_secs(4);
/// An attempt that has not succeeded by then starts over, perhaps at another address.
const ATTEMPT_MAX: Duration = Duration::from_secs(10);

/// A conversation with the coordinator that has been welcomed.
pub struct Conversation {
    /// To the coordinator.
    pub sender: ControlSender<ToCoordinator>,
    /// From the coordinator.
    pub receiver: ControlReceiver<ToWorker>,
    /// Its first words.
    pub welcome: Welcome,
}

/// Why an attempt failed.
enum Attempt {
    /// Trying again may help.
    Later(anyhow::Error),
    /// It never will.
    Never(anyhow::Error),
}

impl From<Attempt> for anyhow::Error {
    fn from(attempt: Attempt) -> Self {
        match attempt {
            Attempt::Later(error) | Attempt::Never(error) => error,
        }
    }
}

/// How to reach the coordinator, and who asks.
pub struct Dialler {
    /// The worker's only endpoint: data from peers comes in here too.
    pub endpoint: Endpoint,
    /// HOST:PORT as the user gave it; looked up anew for each attempt.
    pub coordinator: String,
    /// The join token.
    pub token: Token,
    /// The site's name.
    pub site: String,
}

impl Dialler {
    /// The worker's identity: the one in its folder while that is valid, else a new one for the token.
    ///
    /// # Errors
    /// The coordinator refuses the token, or the folder cannot be written.
    pub async fn identity(&self, folder: &Path) -> Result<Identity> {
        if let Some(identity) = Identity::load(folder).context("read this worker's identity")?
            && identity.expires_at_unix_s() > unix_s()
        {
            return Ok(identity);
        }
        let identity = self.insist(|| self.enrol()).await?;
        identity.save(folder).context("keep this worker's identity")?;
        Ok(identity)
    }

    /// Renews an identity whose time has come; answers the new one.
    ///
    /// # Errors
    /// The coordinator is away, or refuses.
    pub async fn renew(&self, identity: &Identity, folder: &Path) -> Result<Identity> {
        let address = self.lookup().await?;
        let renewed = control::renew(&self.endpoint, address, identity, &self.site).await?;
        renewed.save(folder).context("keep this worker's identity")?;
        Ok(renewed)
    }

    /// Connects and joins, with growing pauses between attempts, until the coordinator welcomes or refuses.
    ///
    /// # Errors
    /// The coordinator refuses, and says why.
    pub async fn connect(&self, identity: &Identity, join: &Join) -> Result<Conversation> {
        self.insist(|| self.attempt(identity, join)).await
    }

    async fn insist<T>(&self, attempt: impl AsyncFn() -> Result<T, Attempt>) -> Result<T> {
        let mut pause = BACK_OFF_MIN;
        let (begun, mut reminder) = (Instant::now(), Reminder::default());
        loop {
            let outcome = tokio::time::timeout(ATTEMPT_MAX, attempt()).await;
            let error = match outcome {
                Ok(Ok(done)) => return Ok(done),
                Ok(Err(Attempt::Never(error))) => return Err(error),
                Ok(Err(Attempt::Later(error))) => error,
                Err(_) => anyhow::anyhow!(
                    "no answer over UDP; is the address right, and does a firewall let UDP through? \
                     `worker doctor {}` looks closer",
                    self.coordinator
                ),
            };
            let words = Explained(&*error).to_string();
            if reminder.is_due(&words, Instant::now()) {
                let waited_s = begun.elapsed().as_secs();
                let coordinator = &self.coordinator;
                tracing::warn!(coordinator, waited_s, reason = words, "waiting for the coordinator");
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(BACK_OFF_MAX);
        }
    }

    async fn enrol(&self) -> Result<Identity, Attempt> {
        let address = self.lookup().await?;
        control::enrol(&self.endpoint, address, &self.token, &self.site).await.map_err(|error| {
            let hopeless = error.is_final();
            let error = anyhow::Error::from(error).context("enrol with the join token");
            if hopeless { Attempt::Never(error) } else { Attempt::Later(error) }
        })
    }

    async fn attempt(&self, identity: &Identity, join: &Join) -> Result<Conversation, Attempt> {
        let address = self.lookup().await?;
        let tls = identity::control_client(identity)
            .context("use this worker's identity")
            .map_err(Attempt::Never)?;
        let name = PeerName::Coordinator.in_run(identity.run());
        let connection = self
            .endpoint
            .connect_with(longhaul_proto::transport::client_config(tls), address, &name)
            .context("dial the coordinator")
            .map_err(Attempt::Never)?
            .await
            .context("connect to the coordinator")
            .map_err(Attempt::Later)?;
        let (sender, mut receiver) = match control::open::<ToCoordinator, ToWorker>(&connection).await {
            Ok(channel) => channel,
            Err(error) if error.is_other_version() => return Err(Attempt::Never(error.into())),
            Err(error) => return Err(Attempt::Later(error.into())),
        };
        let later = |error: anyhow::Error| Attempt::Later(error);
        sender.send(&ToCoordinator::Join(join.clone())).context("join").map_err(later)?;
        match receiver.receive().await.context("be welcomed").map_err(later)? {
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

    async fn lookup(&self) -> Result<SocketAddr, Attempt> {
        let mut found = tokio::net::lookup_host(&self.coordinator).await.map_err(|error| {
            let malformed = error.kind() == std::io::ErrorKind::InvalidInput;
            let error = anyhow::Error::from(error);
            if malformed {
                let words = format!("{:?} is not HOST:PORT, as `coordinator up` prints it", self.coordinator);
                Attempt::Never(error.context(words))
            } else {
                Attempt::Later(error.context(format!("look up {:?}", self.coordinator)))
            }
        })?;
        found.find(|address| self.same_family(address)).ok_or_else(|| {
            Attempt::Later(anyhow::anyhow!(
                "{:?} has no address of the kind that this worker listens on: `--listen '[::]:0'` is for IPv6",
                self.coordinator
            ))
        })
    }

    fn same_family(&self, address: &SocketAddr) -> bool {
        self.endpoint.local_addr().is_ok_and(|own| own.is_ipv4() == address.is_ipv4())
    }
}

/// Seconds since 1970, for certificates.
#[allow(clippy::disallowed_methods, reason = "certificates live in calendar time")]
pub fn unix_s() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}
