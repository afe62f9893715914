//! The listener for members of this worker's site, for the reduction within the site.

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, TcpListener, UdpSocket};
use std::sync::Arc;

use anyhow::{Context, Result};
use longhaul_collective::SiteTls;
use longhaul_proto::identity::Identity;
use longhaul_proto::transport::{BindError, SocketBuffers, bind_udp, listen_tcp};

use super::Network;

/// Attempts at a port that is free for both UDP and TCP.
const PORTS_TRIED: usize = 16;

/// Binds a worker's UDP socket. Without an address it covers all addresses of this machine, or only IPv4 ones if IPv6 is absent.
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

/// Binds to a port. One chosen by the system (0) is free for TCP too, for members of the site.
fn bind_to(listen: SocketAddr) -> Result<(UdpSocket, SocketBuffers), BindError> {
    if listen.port() != 0 {
        return bind_udp(listen);
    }
    for _ in 0..PORTS_TRIED {
        // Linux keeps the ports of listeners apart from those of outgoing connections, as long as there are enough.
        let Ok(found) = listen_tcp(listen).and_then(|listener| listener.local_addr()) else { break };
        if let Ok(bound) = bind_udp(found) {
            return Ok(bound);
        }
    }
    bind_udp(listen)
}

/// This worker's certificate for its site, and the listener, once needed.
pub(super) struct SiteAcceptor {
    tls: SiteTls,
    listener: Option<Arc<TcpListener>>,
}

/// Failure to listen.
#[derive(Debug, thiserror::Error)]
pub enum SiteAcceptorError {
    /// The UDP socket's address is unknown.
    #[error("ask for the endpoint's port: {0}")]
    Socket(#[source] io::Error),
    /// The port is taken.
    #[error(
        "cannot listen on TCP at {address}: {source}. The members of a site connect where they receive data over UDP, address and \
         port alike: free the port, or choose another one with --listen"
    )]
    Listen {
        /// Address.
        address: SocketAddr,
        /// Cause.
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
    /// Returns the listener for members of this site, at the UDP endpoint's address and port number, and its certificate.
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
