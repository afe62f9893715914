//! Where members of this worker's site come in for the reduction within the site.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use anyhow::{Context, Result};
use longhaul_collective::SiteTls;
use longhaul_proto::identity::Identity;
use longhaul_proto::transport::{BindError, SocketBuffers, bind_udp, listen_tcp};

use super::Network;

/// Ports that are tried for one that is free for UDP as well as for TCP.
const PORTS_TRIED: usize = 16;

/// A worker's UDP socket. Without an address it is for all of this machine's: of both kinds, or of IPv4 where there is no IPv6.
///
/// # Errors
/// The address cannot be bound.
pub fn bind(listen: Option<SocketAddr>) -> Result<(UdpSocket, SocketBuffers), BindError> {
    let any = |ip: IpAddr| bind_to(SocketAddr::new(ip, 0));
    match listen {
        Some(listen) => bind_to(listen),
        None => any(Ipv6Addr::UNSPECIFIED.into()).or_else(|_| any(Ipv4Addr::UNSPECIFIED.into())),
    }
}

/// Where the system is to choose the port (0), it is one that is free for TCP too: members of the site meet there.
fn bind_to(listen: SocketAddr) -> Result<(UdpSocket, SocketBuffers), BindError> {
    if listen.port() != 0 {
        return bind_udp(listen);
    }
    for _ in 0..PORTS_TRIED {
        // Linux keeps the ports that it gives to listeners apart from those of connections that go out, as long as there are enough.
        let Ok(found) = listen_tcp(listen).and_then(|listener| listener.local_addr()) else { break };
        if let Ok(bound) = bind_udp(found) {
            return Ok(bound);
        }
    }
    bind_udp(listen)
}

/// What this worker shows its neighbours, and the listener, once it is needed.
pub(super) struct SiteAcceptor {
    tls: SiteTls,
    listener: Option<Arc<TcpListener>>,
}

/// The door cannot be opened.
#[derive(Debug, thiserror::Error)]
pub enum SiteAcceptorError {
    /// The UDP socket does not say where it is.
    #[error("ask for the endpoint's port: {0}")]
    Socket(#[source] io::Error),
    /// The port is taken.
    #[error(
        "TCP at {address} cannot be listened at: {source}. The members of a site meet where they take data over UDP, address and \
         port alike: free the port, or take another one with --listen"
    )]
    Listen {
        /// Where.
        address: SocketAddr,
        /// Why not.
        source: io::Error,
    },
}

impl SiteAcceptor {
    pub fn new(identity: &Identity) -> Result<Self> {
        Ok(Self { tls: tls_of(identity)?, listener: None })
    }

    pub fn use_identity(&mut self, identity: &Identity) -> Result<()> {
        self.tls = tls_of(identity)?;
        Ok(())
    }

    pub fn close(&mut self) {
        self.listener = None;
    }
}

fn tls_of(identity: &Identity) -> Result<SiteTls> {
    SiteTls::of(identity).context("use this worker's identity within its site")
}

impl Network {
    /// The listener for members of this site, at the UDP endpoint's address and port number, and the certificate to show there.
    ///
    /// # Errors
    /// The port is taken.
    pub fn site_acceptor(&self) -> Result<(Arc<TcpListener>, SiteTls), SiteAcceptorError> {
        let address = self.endpoint.local_addr().map_err(SiteAcceptorError::Socket)?;
        let acceptor = &mut self.lock().acceptor;
        let listener = match &acceptor.listener {
            Some(listener) => Arc::clone(listener),
            None => {
                let listener = listen_tcp(address);
                Arc::new(listener.map_err(|source| SiteAcceptorError::Listen { address, source })?)
            }
        };
        acceptor.listener = Some(Arc::clone(&listener));
        Ok((listener, acceptor.tls.clone()))
    }
}
