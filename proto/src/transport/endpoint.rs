//! QUIC endpoints from TLS configurations made elsewhere.

use std::io;
use std::net::UdpSocket;
use std::sync::Arc;

use quinn::crypto::rustls::{NoInitialCipherSuite, QuicClientConfig, QuicServerConfig};
use quinn::{Endpoint, EndpointConfig, TokioRuntime};

use super::config::transport_config;

/// No endpoint.
#[derive(Debug, thiserror::Error)]
pub enum EndpointError {
    /// QUIC needs TLS 1.3 with AES-128-GCM for its first packets.
    #[error("the TLS configuration does not fit QUIC")]
    Tls(#[from] NoInitialCipherSuite),
    /// The socket cannot be driven.
    #[error("open a QUIC endpoint")]
    Io(#[from] io::Error),
}

/// Opens an endpoint on `socket`; with `server` it accepts connections. Call it within a tokio runtime.
///
/// # Errors
/// The TLS configuration lacks what QUIC needs, or the socket cannot be driven.
pub fn endpoint(
    socket: UdpSocket,
    server: Option<rustls::ServerConfig>,
) -> Result<Endpoint, EndpointError> {
    let server = server.map(server_config).transpose()?;
    Ok(Endpoint::new(EndpointConfig::default(), server, socket, Arc::new(TokioRuntime))?)
}

/// A server's QUIC configuration with [`transport_config`].
///
/// # Errors
/// The TLS configuration lacks what QUIC needs.
pub fn server_config(tls: rustls::ServerConfig) -> Result<quinn::ServerConfig, NoInitialCipherSuite> {
    let mut config = quinn::ServerConfig::with_crypto(Arc::new(QuicServerConfig::try_from(tls)?));
    config.transport_config(Arc::new(transport_config()));
    Ok(config)
}

/// A client's QUIC configuration with [`transport_config`].
///
/// # Errors
/// The TLS configuration lacks what QUIC needs.
pub fn client_config(tls: rustls::ClientConfig) -> Result<quinn::ClientConfig, NoInitialCipherSuite> {
    let mut config = quinn::ClientConfig::new(Arc::new(QuicClientConfig::try_from(tls)?));
    config.transport_config(Arc::new(transport_config()));
    Ok(config)
}
