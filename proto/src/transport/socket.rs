//! UDP sockets with buffers for a long link's bursts.

use std::io;
use std::net::{SocketAddr, TcpListener, UdpSocket};

use socket2::{Domain, Protocol, Socket, Type};

/// Requested buffer in each direction: 65 ms at 500 Mbit/s. With the usual 208 KiB the kernel dropped packets
/// at that rate whenever the process was late.
pub const SOCKET_BUFFER_BYTES: usize = 4 * 1024 * 1024;

/// Buffers granted by the kernel, in bytes of packet data. Less than [`SOCKET_BUFFER_BYTES`] means that
/// `net.core.rmem_max` or `net.core.wmem_max` is lower; fast links then lose packets in this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SocketBuffers {
    /// Receive buffer.
    pub receive_bytes: usize,
    /// Send buffer.
    pub send_bytes: usize,
}

impl SocketBuffers {
    /// Whether the kernel granted the requested size.
    #[must_use]
    pub fn are_full(&self) -> bool {
        self.receive_bytes.min(self.send_bytes) >= SOCKET_BUFFER_BYTES
    }
}

/// A failure to bind an address.
#[derive(Debug, thiserror::Error)]
pub enum BindError {
    /// Another socket is bound there.
    #[error("UDP port {} of {} is in use by another socket", address.port(), address.ip())]
    InUse {
        /// Requested address.
        address: SocketAddr,
    },
    /// Any other error.
    #[error("bind a UDP socket to {address}")]
    Io {
        /// Requested address.
        address: SocketAddr,
        /// Error of the kernel.
        source: io::Error,
    },
}

/// Binds a UDP socket, requests [`SOCKET_BUFFER_BYTES`] in each direction and returns the granted sizes.
/// Smaller ones are no error.
///
/// # Errors
/// The address cannot be bound.
pub fn bind_udp(address: SocketAddr) -> Result<(UdpSocket, SocketBuffers), BindError> {
    bind(address).map_err(|source| match source.kind() {
        io::ErrorKind::AddrInUse => BindError::InUse { address },
        _ => BindError::Io { address, source },
    })
}

fn bind(address: SocketAddr) -> io::Result<(UdpSocket, SocketBuffers)> {
    let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
    if address.is_ipv6() {
        // One socket for both families, if the system permits it.
        let _ = socket.set_only_v6(false);
    }
    // The granted sizes reveal refusals.
    let _ = socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES);
    let _ = socket.set_send_buffer_size(SOCKET_BUFFER_BYTES);
    socket.bind(&address.into())?;
    let granted = SocketBuffers {
        receive_bytes: usable(socket.recv_buffer_size()?),
        send_bytes: usable(socket.send_buffer_size()?),
    };
    Ok((socket.into(), granted))
}

/// Listens on TCP beside a UDP socket of [`bind_udp`], for the same address families.
///
/// # Errors
/// The address cannot be bound.
pub fn listen_tcp(address: SocketAddr) -> io::Result<TcpListener> {
    /// Connections waiting to be accepted, as in the standard library.
    const BACKLOG: i32 = 128;
    let socket = Socket::new(Domain::for_address(address), Type::STREAM, Some(Protocol::TCP))?;
    if address.is_ipv6() {
        // Even if `net.ipv6.bindv6only` is set.
        let _ = socket.set_only_v6(false);
    }
    // As in the standard library: earlier connections may linger at the port.
    socket.set_reuse_address(true)?;
    socket.bind(&address.into())?;
    socket.listen(BACKLOG)?;
    Ok(socket.into())
}

/// Linux reports twice the granted size; half is for its own bookkeeping (socket(7)).
fn usable(reported_bytes: usize) -> usize {
    if cfg!(target_os = "linux") { reported_bytes / 2 } else { reported_bytes }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_listens_at_all_addresses_is_reached_by_both_kinds() {
        // A machine may lack IPv6.
        let Ok((udp, _)) = bind_udp(SocketAddr::from(([0; 16], 0))) else { return };
        let port = udp.local_addr().unwrap().port();
        let listener = listen_tcp(SocketAddr::from(([0; 16], port))).unwrap();
        for from in ["127.0.0.1", "::1"] {
            let Ok(sender) = UdpSocket::bind((from, 0)) else { continue };
            sender.send_to(from.as_bytes(), (from, port)).unwrap();
            let mut bytes = [0; 16];
            let (length, _) = udp.recv_from(&mut bytes).unwrap();
            assert_eq!(&bytes[..length], from.as_bytes());
            drop(std::net::TcpStream::connect((from, port)).unwrap());
            assert_eq!(listener.accept().unwrap().1.ip().to_canonical().to_string(), from);
        }
    }

    #[test]
    fn a_port_in_use_is_named_in_the_error() {
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let (socket, granted) = bind_udp(any).unwrap();
        assert!(granted.receive_bytes > 0 && granted.send_bytes > 0);
        let taken = socket.local_addr().unwrap();
        let error = bind_udp(taken).unwrap_err();
        assert!(matches!(error, BindError::InUse { address } if address == taken));
        assert!(error.to_string().contains(&taken.port().to_string()), "{error}");
    }
}
