//! Sends datagrams due together with as few system calls as possible.

use std::net::{IpAddr, SocketAddr};

use quinn_udp::{EcnCodepoint, Transmit};

use super::port::UdpPort;

/// Maximum bytes of one system call: the UDP length field minus headers.
const BATCH_BYTES_MAX: usize = 65_000;

/// Destination and marks of a datagram: only equal ones share a system call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Token of the outgoing socket.
    pub(super) token: u64,
    pub(super) destination: SocketAddr,
    pub(super) source_ip: Option<IpAddr>,
    pub(super) ecn: Option<EcnCodepoint>,
}

impl Route {
    /// Whether both leave by the same socket to the same destination, so that their order matters.
    pub(super) fn is_like(&self, other: &Self) -> bool {
        self.token == other.token && self.destination == other.destination
    }
}

/// Datagrams of one route sent by one system call (generic segmentation offload): of equal length, except
/// that the last may be shorter.
#[derive(Debug)]
pub(super) struct Batch {
    pub(super) route: Route,
    bytes: Vec<u8>,
    segment_len: usize,
    segments: usize,
    closed: bool,
}

impl Batch {
    pub(super) fn new(route: Route, datagram: &[u8]) -> Self {
        Self { route, bytes: datagram.to_vec(), segment_len: datagram.len(), segments: 1, closed: false }
    }

    /// Appends a datagram; returns false if it needs its own batch.
    pub(super) fn push(&mut self, route: &Route, datagram: &[u8], segments_max: usize) -> bool {
        let fits = !self.closed
            && self.route == *route
            && !datagram.is_empty()
            && datagram.len() <= self.segment_len
            && self.segments < segments_max
            && self.bytes.len() + datagram.len() <= BATCH_BYTES_MAX;
        if fits {
            self.bytes.extend_from_slice(datagram);
            self.segments += 1;
            self.closed = datagram.len() < self.segment_len;
        }
        fits
    }

    /// Sends the batch; returns the number of datagrams refused by the kernel.
    pub(super) fn send(&self, port: &UdpPort) -> u64 {
        let transmit = Transmit {
            destination: self.route.destination,
            ecn: self.route.ecn,
            contents: &self.bytes,
            segment_size: (self.segments > 1).then_some(self.segment_len),
            src_ip: self.route.source_ip,
        };
        match port.send(&transmit) {
            Ok(()) => 0,
            Err(error) => {
                tracing::debug!(%error, destination = %self.route.destination, "send");
                self.segments as u64
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_batch_takes_equal_datagrams_and_ends_with_a_shorter_one() {
        let route = Route { token: 1, destination: ([127, 0, 0, 1], 9).into(), source_ip: None, ecn: None };
        let mut batch = Batch::new(route, &[1; 100]);
        assert!(batch.push(&route, &[2; 100], 4));
        assert!(!batch.push(&route, &[3; 101], 4), "a longer one does not fit");
        assert!(batch.push(&route, &[4; 10], 4));
        assert!(!batch.push(&route, &[5; 10], 4), "nothing follows a shorter one");
        let mut single = Batch::new(route, &[1; 100]);
        assert!(!single.push(&route, &[2; 100], 1), "no offload, no batch");
    }
}
