//! An emulated path and the connections over it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use longhaul_emulator::udp::{RelayConfig, Relays};
use longhaul_emulator::{Link, LinkConfig};
use longhaul_proto::transport::{bind_udp, client_config, endpoint};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, Endpoint};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;

const ANY_PORT: SocketAddr = SocketAddr::new(std::net::IpAddr::V4(Ipv4Addr::LOCALHOST), 0);
/// The same losses in each run, as far as timing permits.
const SEED: u64 = 1;

/// Properties of a path, equal in both directions. Its queue holds one round trip.
#[derive(Clone, Copy)]
pub struct WanSpec {
    pub mbit_per_s: f64,
    pub delay_ms: u64,
    pub loss_percent: f64,
}

impl WanSpec {
    pub fn bytes_per_s(&self) -> f64 {
        self.mbit_per_s * 125_000.0
    }

    pub fn rtt(&self) -> Duration {
        Duration::from_millis(2 * self.delay_ms)
    }

    /// Returns both directions.
    pub fn links(&self) -> Result<[Link; 2]> {
        let config = LinkConfig {
            rate_bytes_per_s: self.bytes_per_s() as u64,
            delay: Duration::from_millis(self.delay_ms),
            loss: self.loss_percent / 100.0,
            ..LinkConfig::default()
        };
        Ok([Link::new("forward", config.clone(), SEED)?, Link::new("reverse", config, SEED)?])
    }
}

/// A running path. Flows over it share its links.
pub struct Wan {
    relays: Relays,
    forward: Link,
    reverse: Link,
}

/// Both ends of a connection, with its endpoints.
pub struct Flow {
    pub client: Connection,
    pub server: Connection,
    _endpoints: [Endpoint; 2],
}

impl Wan {
    pub fn start(spec: WanSpec) -> Result<Self> {
        let [forward, reverse] = spec.links()?;
        Ok(Self { relays: Relays::start()?, forward, reverse })
    }

    /// Connects two new endpoints across the path.
    pub async fn connect(&self) -> Result<Flow> {
        let (server_tls, client_tls) = tls()?;
        let listening = endpoint(bind_udp(ANY_PORT)?.0, Some(server_tls))?;
        let dialling = endpoint(bind_udp(ANY_PORT)?.0, None)?;
        let through = self.relays.add(RelayConfig {
            listen: ANY_PORT,
            target: listening.local_addr()?,
            forward: self.forward.clone(),
            reverse: self.reverse.clone(),
            clients: Arc::default(),
        })?;
        Flow::between(dialling, listening, through, client_tls).await
    }
}

impl Flow {
    /// Connects two endpoints; the listening one is at this address.
    pub async fn between(
        dialling: Endpoint,
        listening: Endpoint,
        through: SocketAddr,
        client_tls: Arc<QuicClientConfig>,
    ) -> Result<Self> {
        let connecting = dialling.connect_with(client_config(client_tls), through, "localhost")?;
        let accepting = async {
            let incoming = listening.accept().await.context("the endpoint was closed")?;
            anyhow::Ok(incoming.await?)
        };
        let connected = async { anyhow::Ok(connecting.await?) };
        let (client, server) = tokio::try_join!(connected, accepting)?;
        Ok(Self { client, server, _endpoints: [listening, dialling] })
    }
}

pub fn tls() -> Result<(Arc<QuicServerConfig>, Arc<QuicClientConfig>)> {
    let key = rcgen::KeyPair::generate()?;
    let certificate =
        rcgen::CertificateParams::new(["localhost".to_owned()])?.self_signed(&key)?.der().clone();
    let provider = Arc::new(default_provider());
    let server = rustls::ServerConfig::builder_with_provider(Arc::clone(&provider))
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))?;
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate)?;
    let client = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])?
        .with_root_certificates(roots)
        .with_no_client_auth();
    Ok((Arc::new(server.try_into()?), Arc::new(client.try_into()?)))
}
