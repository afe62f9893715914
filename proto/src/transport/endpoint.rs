//! QUIC endpoints from TLS configurations made elsewhere.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;
use std::time::Duration;

use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, Endpoint, EndpointConfig, TokioRuntime};
use quinn_proto::RandomConnectionIdGenerator;

use super::config::{site_transport_config, transport_config};
use super::congestion::RateController;
use super::reset::ResetKey;

/// The round trip of a connection as it is without the queues that its own traffic makes; between workers of one site, where another
/// controller is at work, as it is now.
#[must_use]
pub fn round_trip(connection: &Connection) -> Duration {
    let controller = connection.congestion_state().into_any().downcast::<RateController>();
    controller.ok().and_then(|controller| controller.round_trip()).unwrap_or_else(|| connection.rtt())
}

/// What the path of a connection delivered of late when it had enough to carry, in bytes a second. None: it never had, or another controller is at work
/// (within a site).
#[must_use]
pub fn delivery_rate(connection: &Connection) -> Option<f64> {
    let controller = connection.congestion_state().into_any().downcast::<RateController>();
    controller.ok().and_then(|controller| controller.delivery_rate())
}

/// Opens an endpoint on `socket`; with `server` it accepts connections. Call it within a tokio runtime.
///
/// # Errors
/// The socket cannot be driven.
pub fn endpoint(socket: UdpSocket, server: Option<Arc<QuicServerConfig>>) -> io::Result<Endpoint> {
    Ok(endpoint_that_resets(socket, server)?.0)
}

/// The same, with the key that connections to an earlier process at this address are reset with.
///
/// # Errors
/// The socket cannot be driven, or the machine gives no random numbers.
pub fn endpoint_that_resets(
    socket: UdpSocket,
    server: Option<Arc<QuicServerConfig>>,
) -> io::Result<(Endpoint, ResetKey)> {
    let key = ResetKey::random().map_err(|_| io::Error::other("the machine gives no random numbers"))?;
    let mut config = EndpointConfig::new(Arc::new(key.clone()));
    // quinn's own ids carry a check that only the process can make which gave them out, and packets without it are dropped without an answer.
    config.cid_generator(|| Box::new(RandomConnectionIdGenerator::default()));
    let endpoint = Endpoint::new(config, server.map(server_config), socket, Arc::new(TokioRuntime))?;
    Ok((endpoint, key))
}

/// A server's QUIC configuration with [`transport_config`].
#[must_use]
pub fn server_config(tls: Arc<QuicServerConfig>) -> quinn::ServerConfig {
    let mut config = quinn::ServerConfig::with_crypto(tls);
    config.transport_config(Arc::new(transport_config()));
    config
}

/// A client's QUIC configuration with [`transport_config`].
#[must_use]
pub fn client_config(tls: Arc<QuicClientConfig>) -> quinn::ClientConfig {
    let mut config = quinn::ClientConfig::new(tls);
    config.transport_config(Arc::new(transport_config()));
    config
}

/// The same client within a site, with [`site_transport_config`].
#[must_use]
pub fn within_site(mut client: quinn::ClientConfig) -> quinn::ClientConfig {
    client.transport_config(Arc::new(site_transport_config()));
    client
}
