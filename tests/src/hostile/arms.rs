//! Attackers' resources: all except honest members' secrets.

use std::net::{Ipv4Addr, SocketAddr, UdpSocket};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use anyhow::{Context, Result, ensure};
use longhaul_common::id::WorkerId;
use longhaul_proto::control::enrol;
use longhaul_proto::identity::{Authority, COORDINATOR_OF_ANY_RUN, Identity, Token, WorkerKey};
use quinn::crypto::rustls::QuicClientConfig;
use quinn::{ClientConfig, Endpoint};
use rand::Rng;
use rand_chacha::ChaCha12Rng;
use rustls::RootCertStore;

use super::Target;

/// Source addresses of attacks: 254 addresses of this machine.
const SOURCES: [u8; 3] = [127, 0, 66];

pub(super) struct Arms {
    pub target: Target,
    pub token: Token,
    /// A worker of the run.
    pub member: Identity,
    /// A former worker.
    pub kicked: Identity,
    /// A worker of another run with the same number.
    pub elsewhere: Identity,
    /// The first datagram of a recorded handshake.
    pub recorded: Vec<u8>,
}

impl std::fmt::Debug for Arms {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Arms").field("target", &self.target.coordinator).finish_non_exhaustive()
    }
}

impl Arms {
    pub async fn gather(target: Target) -> Result<Self> {
        let token: Token = target.join_token.trim().parse().context("read the join token")?;
        let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
        let member = enrol(&endpoint, target.coordinator, &token, "hostile").await.context("enrol")?;
        let kicked = enrol(&endpoint, target.coordinator, &token, "hostile").await.context("enrol")?;
        kick(&target, kicked.worker()).await?;
        let elsewhere = stranger(&member)?;
        let recorded = record(&client(&member, b"longhaul-enrol", None)?).await?;
        Ok(Self { target, token, member, kicked, elsewhere, recorded })
    }

    /// Returns an address to attack from.
    pub fn source(&self, random: &mut ChaCha12Rng) -> SocketAddr {
        let [a, b, c] = SOURCES;
        (Ipv4Addr::new(a, b, c, random.random_range(1..255)), 0).into()
    }

    /// Returns a QUIC client with such an address.
    pub fn endpoint(&self, random: &mut ChaCha12Rng) -> Result<Endpoint> {
        Endpoint::client(self.source(random)).context("open a socket")
    }

    pub fn socket(&self, random: &mut ChaCha12Rng) -> Result<UdpSocket> {
        UdpSocket::bind(self.source(random)).context("open a socket")
    }

    /// Returns the address of the coordinator, or of a worker.
    pub fn any_door(&self, random: &mut ChaCha12Rng) -> SocketAddr {
        let workers = &self.target.workers;
        let place = random.random_range(0..=workers.len());
        workers.get(place).copied().unwrap_or(self.target.coordinator)
    }
}

/// Returns a client that trusts the run's authority, offers `alpn`, and presents the given certificate.
pub(super) fn client(trusting: &Identity, alpn: &[u8], shown: Option<&Identity>) -> Result<ClientConfig> {
    let mut roots = RootCertStore::empty();
    roots.add(trusting.authority().clone())?;
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let builder = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots);
    let mut config = match shown {
        Some(identity) => builder.with_client_auth_cert(
            vec![identity.certificate().clone()],
            identity.private_key().clone_key().into(),
        )?,
        None => builder.with_no_client_auth(),
    };
    config.alpn_protocols = vec![alpn.to_vec()];
    Ok(ClientConfig::new(Arc::new(QuicClientConfig::try_from(config)?)))
}

/// Returns the first datagram of a handshake, as recorded by an eavesdropper.
pub(super) async fn record(config: &ClientConfig) -> Result<Vec<u8>> {
    let nobody = tokio::net::UdpSocket::bind((Ipv4Addr::LOCALHOST, 0)).await?;
    let endpoint = Endpoint::client((Ipv4Addr::LOCALHOST, 0).into())?;
    let connecting = endpoint.connect_with(config.clone(), nobody.local_addr()?, COORDINATOR_OF_ANY_RUN)?;
    let mut datagram = vec![0; 2048];
    let length = tokio::time::timeout(Duration::from_secs(5), nobody.recv(&mut datagram)).await??;
    drop(connecting);
    datagram.truncate(length);
    Ok(datagram)
}

/// Returns a worker with the number of `like`, of another run that claims to be the same.
#[allow(clippy::disallowed_methods, reason = "TLS reads the same clock")]
fn stranger(like: &Identity) -> Result<Identity> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH)?.as_secs();
    let authority = Authority::create(like.run(), now)?;
    let key = WorkerKey::generate()?;
    let certificate = authority.issue_worker(&key.request()?, like.worker(), now)?;
    Ok(Identity::new(certificate, authority.certificate().clone(), key.to_pkcs8())?)
}

async fn kick(target: &Target, worker: WorkerId) -> Result<()> {
    let url = format!("http://{}/api/v1/workers/{worker}/kick", target.http);
    let authorization = format!("Bearer {}", target.api_token.trim());
    let calling = tokio::task::spawn_blocking(move || {
        ureq::post(&url).header("authorization", &authorization).send_empty().map(|answer| answer.status())
    });
    let status = calling.await?.context("kick a worker")?;
    ensure!(status.is_success(), "kick a worker: {status}");
    Ok(())
}
