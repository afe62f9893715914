//! Reads all pending datagrams of a port.

use std::io::{self, IoSliceMut};

use quinn_udp::{BATCH_SIZE, RecvMeta};

use super::port::UdpPort;

/// Maximum of generic receive offload, and of a UDP datagram.
const BUFFER_BYTES: usize = 64 << 10;

/// Batches read from one port before the others' turn.
const BATCHES_PER_TURN_MAX: usize = 8;

/// The receive buffers, shared by all ports of the thread.
pub(super) struct Receiver {
    storage: Vec<u8>,
    metas: [RecvMeta; BATCH_SIZE],
}

impl Receiver {
    pub(super) fn new() -> Self {
        Self { storage: vec![0; BATCH_SIZE * BUFFER_BYTES], metas: [RecvMeta::default(); BATCH_SIZE] }
    }

    /// Calls `handle` for each pending datagram, in order, with coalesced ones split. Reads until the port is
    /// empty or its turn ends; returns the number of datagrams.
    pub(super) fn drain(&mut self, port: &UdpPort, mut handle: impl FnMut(&RecvMeta, &[u8])) -> usize {
        let mut datagrams = 0;
        for _ in 0..BATCHES_PER_TURN_MAX {
            let received = match self.receive(port) {
                Ok(received) => received,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                // An ICMP error of an earlier datagram, such as a target that is not up yet: reading clears
                // it.
                Err(error) => {
                    tracing::debug!(%error, "receive");
                    continue;
                }
            };
            for (buffer, meta) in self.storage.chunks_exact(BUFFER_BYTES).zip(&self.metas).take(received) {
                for datagram in buffer[..meta.len].chunks(meta.stride.max(1)) {
                    handle(meta, datagram);
                    datagrams += 1;
                }
            }
            if received < BATCH_SIZE {
                break;
            }
        }
        datagrams
    }

    fn receive(&mut self, port: &UdpPort) -> io::Result<usize> {
        let mut chunks = self.storage.chunks_exact_mut(BUFFER_BYTES);
        let mut buffers: [IoSliceMut<'_>; BATCH_SIZE] =
            std::array::from_fn(|_| IoSliceMut::new(chunks.next().unwrap_or_default()));
        port.receive(&mut buffers, &mut self.metas)
    }
}
