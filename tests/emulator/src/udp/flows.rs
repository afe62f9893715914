//! Clients of the relays.

use std::collections::HashMap;
use std::io;
use std::net::{IpAddr, SocketAddr};
use std::os::fd::AsFd;
use std::time::Duration;

use quinn_udp::RecvMeta;

use super::port::UdpPort;
use crate::waiter::Waiter;

/// Maximum concurrent clients of all relays of a thread: each takes a socket, and a process has 1024 by
/// default.
pub const FLOWS_MAX: usize = 512;

/// Idle time after which a client is forgotten, as by a NAT: twice QUIC's usual idle timeout.
const FLOW_IDLE_MAX: Duration = Duration::from_secs(60);

/// Interval of searches for idle clients.
const SWEEP_INTERVAL: Duration = Duration::from_secs(5);

/// One client of a relay: its own socket towards the target, like a port of a NAT.
#[derive(Debug)]
pub(super) struct Flow {
    /// Token of its relay.
    pub(super) relay: u64,
    pub(super) client: SocketAddr,
    /// Our address that the client uses, from which replies come.
    pub(super) local_ip: Option<IpAddr>,
    pub(super) port: UdpPort,
    last_used: Duration,
}

/// All flows, by the token of their socket.
#[derive(Debug, Default)]
pub(super) struct FlowTable {
    flows: HashMap<u64, Flow>,
    tokens: HashMap<(u64, SocketAddr), u64>,
    next_sweep: Duration,
}

impl FlowTable {
    pub(super) fn get(&self, token: u64) -> Option<&Flow> {
        self.flows.get(&token)
    }

    /// Marks the flow as used.
    pub(super) fn touch(&mut self, token: u64, now: Duration) {
        if let Some(flow) = self.flows.get_mut(&token) {
            flow.last_used = now;
        }
    }

    /// Returns the token of the flow for a client's datagram, described by `meta`, to `relay`; opens a new
    /// one if needed.
    ///
    /// # Errors
    /// [`FLOWS_MAX`] flows exist, or the kernel grants no socket.
    pub(super) fn find_or_open(
        &mut self,
        relay: u64,
        target: SocketAddr,
        meta: &RecvMeta,
        now: Duration,
        waiter: &mut Waiter,
    ) -> io::Result<u64> {
        if let Some(token) = self.tokens.get(&(relay, meta.addr)) {
            return Ok(*token);
        }
        if self.flows.len() >= FLOWS_MAX {
            return Err(io::Error::other("too many clients"));
        }
        let port = UdpPort::towards(target)?;
        let token = waiter.watch(port.as_fd())?;
        let flow = Flow { relay, client: meta.addr, local_ip: meta.dst_ip, port, last_used: now };
        self.flows.insert(token, flow);
        self.tokens.insert((relay, meta.addr), token);
        Ok(token)
    }

    /// Returns the time of the next useful [`FlowTable::forget_idle`].
    pub(super) fn next_sweep(&self) -> Duration {
        if self.flows.is_empty() { Duration::MAX } else { self.next_sweep }
    }

    /// Closes idle flows, if a search is due.
    pub(super) fn forget_idle(&mut self, now: Duration) {
        if now < self.next_sweep {
            return;
        }
        self.next_sweep = now + SWEEP_INTERVAL;
        self.flows.retain(|_, flow| now.saturating_sub(flow.last_used) < FLOW_IDLE_MAX);
        self.tokens.retain(|_, token| self.flows.contains_key(token));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_client_keeps_its_flow_until_it_has_been_idle_for_too_long() {
        let mut waiter = Waiter::new().unwrap();
        let mut flows = FlowTable::default();
        let target = ([127, 0, 0, 1], 9).into();
        let meta = RecvMeta { addr: ([127, 0, 0, 1], 1000).into(), ..RecvMeta::default() };
        let second = Duration::from_secs(1);

        let token = flows.find_or_open(0, target, &meta, Duration::ZERO, &mut waiter).unwrap();
        assert_eq!(flows.find_or_open(0, target, &meta, second, &mut waiter).unwrap(), token);
        assert_ne!(flows.find_or_open(7, target, &meta, second, &mut waiter).unwrap(), token);
        flows.touch(token, second * 30);
        flows.forget_idle(second * 61);
        assert!(flows.get(token).is_some());
        assert_eq!(flows.flows.len(), 1);
        flows.forget_idle(second * 90);
        assert!(flows.get(token).is_none());
        assert!(flows.tokens.is_empty());
    }
}
