//! A UDP socket that receives and sends in batches.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};
use std::os::fd::{AsFd, BorrowedFd};

use quinn_udp::{Transmit, UdpSocketState};
use rustix::net::sockopt::set_socket_recv_buffer_size_force;
use socket2::{Domain, Protocol, Socket, Type};

/// Requested socket buffer: 30 ms at 1 Gbit/s, so that a delayed thread on a busy machine adds no losses.
const SOCKET_BUFFER_BYTES: usize = 4 << 20;

/// A non-blocking socket with generic segmentation and receive offload, if the kernel supports them.
#[derive(Debug)]
pub(super) struct UdpPort {
    socket: UdpSocket,
    state: UdpSocketState,
}

impl UdpPort {
    pub(super) fn bind(address: SocketAddr) -> io::Result<Self> {
        let socket = Socket::new(Domain::for_address(address), Type::DGRAM, Some(Protocol::UDP))?;
        // Without privileges the forced size is refused, and the kernel caps the normal request at its
        // maximum.
        if set_socket_recv_buffer_size_force(&socket, SOCKET_BUFFER_BYTES).is_err() {
            socket.set_recv_buffer_size(SOCKET_BUFFER_BYTES)?;
        }
        socket.set_send_buffer_size(SOCKET_BUFFER_BYTES)?;
        socket.bind(&address.into())?;
        let socket = UdpSocket::from(socket);
        let state = UdpSocketState::new((&socket).into())?;
        Ok(Self { socket, state })
    }

    /// Creates a socket on a free port of the interface towards `target`.
    pub(super) fn towards(target: SocketAddr) -> io::Result<Self> {
        Self::bind(match target {
            SocketAddr::V4(_) => (Ipv4Addr::UNSPECIFIED, 0).into(),
            SocketAddr::V6(_) => (Ipv6Addr::UNSPECIFIED, 0).into(),
        })
    }

    pub(super) fn local_addr(&self) -> io::Result<SocketAddr> {
        self.socket.local_addr()
    }

    pub(super) fn segments_max(&self) -> usize {
        self.state.max_gso_segments()
    }

    pub(super) fn send(&self, transmit: &Transmit<'_>) -> io::Result<()> {
        self.state.try_send((&self.socket).into(), transmit)
    }

    pub(super) fn receive(
        &self,
        buffers: &mut [io::IoSliceMut<'_>],
        metas: &mut [quinn_udp::RecvMeta],
    ) -> io::Result<usize> {
        self.state.recv((&self.socket).into(), buffers, metas)
    }
}

impl AsFd for UdpPort {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}
