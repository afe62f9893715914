//! Real quinn-proto connections over a simulated path, in virtual time. Tests exercise the real congestion
//! control, pacing, loss recovery and flow control, independent of the machine.

mod link;
mod peer;

use std::cmp::Reverse;
use std::collections::{BTreeMap, BinaryHeap};
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use longhaul_proto::transport::transport_config;
use quinn_proto::{ClientConfig, Endpoint, EndpointConfig, ServerConfig};
use rustls::RootCertStore;
use rustls::pki_types::PrivateKeyDer;

pub use link::{Link, LinkSpec};
use peer::{Datagram, Peer};

/// An end of the path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Left,
    Right,
}

/// A connection across the path.
#[derive(Debug, Clone, Copy)]
pub struct Flow(usize);

/// A path, with the connections that share it. Left peers send over `rightward`.
pub struct Path {
    pub rightward: Link,
    pub leftward: Link,
    now: Instant,
    /// Timers fire at multiples of this, as on a busy machine.
    timer_step: Duration,
    epoch: Instant,
    peers: Vec<Peer>,
    /// (arrival, tie-breaker) of each datagram in flight, and its receiver.
    arrivals: BinaryHeap<Reverse<(Instant, u64)>>,
    under_way: BTreeMap<u64, (usize, Datagram)>,
    datagrams: u64,
    server_config: ServerConfig,
    client_config: ClientConfig,
}

impl Path {
    pub fn new(rightward: LinkSpec, leftward: LinkSpec, seed: u64) -> Self {
        #[allow(clippy::disallowed_methods, reason = "an arbitrary origin of virtual time")]
        let epoch = Instant::now();
        let (server_config, client_config) = quic_configs();
        Self {
            rightward: Link::new(rightward, epoch, 2 * seed),
            leftward: Link::new(leftward, epoch, 2 * seed + 1),
            now: epoch,
            timer_step: Duration::ZERO,
            epoch,
            peers: Vec::new(),
            arrivals: BinaryHeap::new(),
            under_way: BTreeMap::new(),
            datagrams: 0,
            server_config,
            client_config,
        }
    }

    /// Creates a path with the same link in both directions.
    pub fn symmetric(spec: LinkSpec, seed: u64) -> Self {
        Self::new(spec, spec, seed)
    }

    /// Makes timers fire late, at multiples of `step`.
    pub fn coarsen_timers(&mut self, step: Duration) {
        self.timer_step = step;
    }

    pub fn now(&self) -> Instant {
        self.now
    }

    /// Connects a left peer to a right one; returns after the handshake.
    pub fn connect(&mut self) -> Flow {
        let flow = Flow(self.peers.len());
        let address = |index: usize| SocketAddr::from((Ipv4Addr::LOCALHOST, 10_000 + index as u16));
        let (left, right) = (address(flow.0), address(flow.0 + 1));
        let endpoint = |server: Option<ServerConfig>, index: usize| {
            let mut config = EndpointConfig::default();
            config.rng_seed(Some([index as u8; 32]));
            Endpoint::new(Arc::new(config), server.map(Arc::new), true, None)
        };
        self.peers.push(Peer::new(endpoint(None, flow.0), left));
        self.peers.push(Peer::new(endpoint(Some(self.server_config.clone()), flow.0 + 1), right));
        self.peers[flow.0].connect(self.now, self.client_config.clone(), right);
        self.drive(flow.0);
        let both = [flow.0, flow.0 + 1];
        self.run_until(Duration::from_secs(30), |path| {
            both.iter().all(|peer| path.peers[*peer].is_connected())
        });
        flow
    }

    /// Offers `bytes` more at one end of a flow.
    pub fn send(&mut self, flow: Flow, from: Side, bytes: u64) {
        let peer = self.index(flow, from);
        self.peers[peer].send(bytes);
        self.drive(peer);
    }

    /// Returns the bytes that the application at `at` has read.
    pub fn received(&self, flow: Flow, at: Side) -> u64 {
        self.peers[self.index(flow, at)].received()
    }

    /// Returns the round trips known to one end of a flow: without and with queues.
    pub fn round_trips(&self, flow: Flow, at: Side) -> (Duration, Duration) {
        self.peers[self.index(flow, at)].round_trips()
    }

    /// Returns the delivery rate estimated by one end of a flow, in bytes per second.
    pub fn delivery_rate(&self, flow: Flow, at: Side) -> Option<f64> {
        self.peers[self.index(flow, at)].delivery_rate()
    }

    pub fn run_for(&mut self, duration: Duration) {
        let end = self.now + duration;
        while self.step(end) {}
        self.now = end;
    }

    /// Runs until `done`; fails the test after `limit`. Returns the virtual time taken.
    pub fn run_until(&mut self, limit: Duration, done: impl Fn(&Self) -> bool) -> Duration {
        let start = self.now;
        while !done(self) {
            assert!(self.step(start + limit), "not done within {limit:?} of virtual time");
        }
        self.now.duration_since(start)
    }

    /// Returns the goodput of each (flow, receiver) over `duration`, in bytes/s.
    pub fn goodput(&mut self, receivers: &[(Flow, Side)], duration: Duration) -> Vec<f64> {
        let before: Vec<_> = receivers.iter().map(|(flow, at)| self.received(*flow, *at)).collect();
        self.run_for(duration);
        let after = receivers.iter().map(|(flow, at)| self.received(*flow, *at));
        after.zip(before).map(|(after, before)| (after - before) as f64 / duration.as_secs_f64()).collect()
    }

    fn index(&self, flow: Flow, side: Side) -> usize {
        match side {
            Side::Left => flow.0,
            Side::Right => flow.0 + 1,
        }
    }

    /// Handles the next event up to `end`; returns false if none is left.
    fn step(&mut self, end: Instant) -> bool {
        let arrival = self.arrivals.peek().map(|Reverse((at, _))| *at);
        let timeouts = self.peers.iter_mut().enumerate();
        let timeout = timeouts.filter_map(|(index, peer)| Some((peer.next_timeout()?, index))).min();
        let timeout = timeout.map(|(at, index)| (link::round_up(self.epoch, at, self.timer_step), index));
        let Some(at) = arrival.into_iter().chain(timeout.map(|(at, _)| at)).min().filter(|at| *at <= end)
        else {
            return false;
        };
        self.now = self.now.max(at);
        if arrival == Some(at) {
            self.deliver_arrived();
        } else if let Some((_, peer)) = timeout {
            self.drive(peer);
        }
        true
    }

    /// Delivers all datagrams due now, then lets the receivers act.
    fn deliver_arrived(&mut self) {
        let mut receivers = Vec::new();
        while let Some(Reverse((at, id))) = self.arrivals.peek().copied() {
            if at > self.now {
                break;
            }
            self.arrivals.pop();
            if let Some((peer, datagram)) = self.under_way.remove(&id) {
                self.peers[peer].handle_datagram(self.now, datagram);
                if !receivers.contains(&peer) {
                    receivers.push(peer);
                }
            }
        }
        for peer in receivers {
            self.drive(peer);
        }
    }

    fn drive(&mut self, peer: usize) {
        let datagrams = self.peers[peer].drive(self.now);
        let link = if peer.is_multiple_of(2) { &mut self.rightward } else { &mut self.leftward };
        for datagram in datagrams {
            let Some(arrival) = link.handle_packet(self.now, datagram.bytes.len()) else { continue };
            let to = self.peers.iter().position(|peer| peer.address == datagram.to);
            let to = to.expect("peers send to each other only");
            self.datagrams += 1;
            self.arrivals.push(Reverse((arrival, self.datagrams)));
            self.under_way.insert(self.datagrams, (to, datagram));
        }
    }
}

fn quic_configs() -> (ServerConfig, ClientConfig) {
    let key = rcgen::KeyPair::generate_for(&rcgen::PKCS_ED25519).expect("Ed25519 is supported");
    let parameters = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a valid name");
    let certificate = parameters.self_signed(&key).expect("a complete certificate").der().clone();
    let private_key = PrivateKeyDer::Pkcs8(key.serialize_der().into());
    let mut roots = RootCertStore::empty();
    roots.add(certificate.clone()).expect("a valid certificate");

    let transport = Arc::new(transport_config());
    let mut server = ServerConfig::with_single_cert(vec![certificate], private_key).expect("a matching key");
    server.transport_config(transport.clone());
    let mut client = ClientConfig::with_root_certificates(Arc::new(roots)).expect("a valid root");
    client.transport_config(transport);
    (server, client)
}
