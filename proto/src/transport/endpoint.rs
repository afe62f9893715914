//! QUIC endpoints from given TLS configurations.

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

/// Returns the round trip of a connection without the queues of its own traffic; between workers of one site,
/// which use another controller, the current one.
#[must_use]
pub fn round_trip(connection: &Connection) -> Duration {
    let controller = connection.congestion_state().into_any().downcast::<RateController>();
    controller.ok().and_then(|controller| controller.round_trip()).unwrap_or_else(|| connection.rtt())
}

/// Returns the recent delivery rate of a connection's path under full load, in bytes per second. `None`: it
/// was never under full load, or uses another controller (within a site).
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

/// The same, with the key that resets connections to an earlier process at this address.
///
/// # Errors
/// The socket cannot be driven, or the machine provides no random numbers.
pub fn endpoint_that_resets(
    socket: UdpSocket,
    server: Option<Arc<QuicServerConfig>>,
) -> io::Result<(Endpoint, ResetKey)> {
    let key = ResetKey::random().map_err(|_| io::Error::other("the machine gives no random numbers"))?;
    let mut config = EndpointConfig::new(Arc::new(key.clone()));
    // quinn's own ids carry a check that only their issuing process can make; packets without it are dropped
    // silently.
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
