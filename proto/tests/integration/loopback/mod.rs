//! Two endpoints of this process, connected over loopback.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use longhaul_proto::transport::{bind_udp, client_config, endpoint};
use quinn::crypto::rustls::{QuicClientConfig, QuicServerConfig};
use quinn::{Connection, Endpoint};
use rustls::crypto::ring::default_provider;
use rustls::pki_types::PrivateKeyDer;

/// Both ends of a connection; the endpoints live as long.
pub struct Pair {
    pub client: Connection,
    pub server: Connection,
    _endpoints: [Endpoint; 2],
}

/// An endpoint on a free port.
pub fn listen(server_tls: Option<Arc<QuicServerConfig>>) -> Endpoint {
    let (socket, _) = bind_udp((Ipv4Addr::LOCALHOST, 0).into()).expect("loopback has a free port");
    endpoint(socket, server_tls).expect("loopback can be driven")
}

/// Connects two endpoints; the listening one is at `address`.
pub async fn connect(
    listening: Endpoint,
    dialling: Endpoint,
    address: SocketAddr,
    client_tls: Arc<QuicClientConfig>,
) -> Pair {
    let config = client_config(client_tls);
    let connecting = dialling.connect_with(config, address, "localhost").expect("a valid configuration");
    let accepting = async { listening.accept().await.expect("the endpoint is open").await };
    let (client, server) = tokio::join!(connecting, accepting);
    Pair {
        client: client.expect("loopback connects"),
        server: server.expect("loopback connects"),
        _endpoints: [listening, dialling],
    }
}

/// Returns a server's configuration, and that of a client that trusts it.
pub fn tls() -> (Arc<QuicServerConfig>, Arc<QuicClientConfig>) {
    let key = rcgen::KeyPair::generate().expect("keys can be generated");
    let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a valid name");
    let certificate = parameters.self_signed(&key).expect("a complete certificate").der().clone();
    let provider = Arc::new(default_provider());
    let server_tls = rustls::ServerConfig::builder_with_provider(provider.clone())
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has TLS 1.3")
        .with_no_client_auth()
        .with_single_cert(vec![certificate.clone()], PrivateKeyDer::Pkcs8(key.serialize_der().into()))
        .expect("a matching key");
    let mut roots = rustls::RootCertStore::empty();
    roots.add(certificate).expect("a valid certificate");
    let client_tls = rustls::ClientConfig::builder_with_provider(provider)
        .with_protocol_versions(&[&rustls::version::TLS13])
        .expect("ring has TLS 1.3")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let client_tls = Arc::new(QuicClientConfig::try_from(client_tls).expect("a TLS 1.3 configuration"));
    let server_tls = Arc::new(QuicServerConfig::try_from(server_tls).expect("a TLS 1.3 configuration"));
    (server_tls, client_tls)
}
