//! The thread that forwards between two TUN devices.

use std::io;
use std::os::fd::{AsFd, OwnedFd};

use tun_rs::SyncDevice;

use crate::departures::Departures;
use crate::waiter::Waiter;
use crate::{Link, Verdict, clock};

/// Maximum IP packet: a device's MTU may be raised meanwhile.
const PACKET_BYTES_MAX: usize = 65_535;

/// Packets read from one device before the other's turn.
const PACKETS_PER_TURN_MAX: usize = 256;

/// Two devices, with the link that leaves each.
pub(super) struct Engine {
    devices: [SyncDevice; 2],
    links: [Link; 2],
    waiter: Waiter,
    device_tokens: [u64; 2],
    stop_token: u64,
    departures: Departures<Packet>,
    buffer: Vec<u8>,
}

/// A packet in flight to the device `to`.
#[derive(Debug)]
struct Packet {
    to: usize,
    contents: Box<[u8]>,
}

impl Engine {
    /// Creates the engine, which ends when `stop` becomes readable.
    pub(super) fn new(devices: [SyncDevice; 2], links: [Link; 2], stop: &OwnedFd) -> io::Result<Self> {
        let mut waiter = Waiter::new()?;
        let stop_token = waiter.watch(stop.as_fd())?;
        let device_tokens = [waiter.watch(devices[0].as_fd())?, waiter.watch(devices[1].as_fd())?];
        Ok(Self {
            devices,
            links,
            waiter,
            device_tokens,
            stop_token,
            departures: Departures::new(),
            buffer: vec![0; PACKET_BYTES_MAX],
        })
    }

    pub(super) fn run(mut self) -> io::Result<()> {
        Waiter::sharpen_timers()?;
        let mut ready = Vec::new();
        loop {
            let deadline = self.departures.next_at().unwrap_or(std::time::Duration::MAX);
            self.waiter.wait(deadline, &mut ready)?;
            for token in ready.drain(..) {
                if token == self.stop_token {
                    return Ok(());
                }
                if let Some(from) = self.device_tokens.iter().position(|known| *known == token) {
                    self.receive(from)?;
                }
            }
            self.send_due();
        }
    }

    fn receive(&mut self, from: usize) -> io::Result<()> {
        let now = clock::now();
        for _ in 0..PACKETS_PER_TURN_MAX {
            let len = match self.devices[from].recv(&mut self.buffer) {
                Ok(len) => len,
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Ok(()),
                Err(error) => return Err(error),
            };
            if let Verdict::DeliverAt(at) = self.links[from].offer(now, &self.buffer[..len], 0) {
                self.departures.push(at, Packet { to: 1 - from, contents: self.buffer[..len].into() });
            }
        }
        Ok(())
    }

    fn send_due(&mut self) {
        let now = clock::now();
        while let Some(packet) = self.departures.pop_due(now) {
            // A device that is down refuses packets, like a host that is off.
            if let Err(error) = self.devices[packet.to].send(&packet.contents) {
                tracing::debug!(%error, "a TUN device refused a packet");
            }
        }
    }
}
