//! The thread of the relays.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;
use std::sync::mpsc::{Receiver as CommandReceiver, TryRecvError};
use std::time::Duration;

use quinn_udp::EcnCodepoint;

use super::RelayConfig;
use super::counters::Counters;
use super::egress::{Batch, Route};
use super::flows::FlowTable;
use super::port::UdpPort;
use super::receiver::Receiver;
use crate::departures::Departures;
use crate::waiter::Waiter;
use crate::{Link, Verdict, clock};

/// IPv4 and UDP header: a datagram's overhead on the wire.
const HEADER_BYTES: u64 = 28;

/// A relay to add, the only command to the thread. Closing the channel ends it.
#[derive(Debug)]
pub(super) struct AddRelay {
    pub(super) config: RelayConfig,
    /// The listening port, bound.
    pub(super) port: UdpPort,
}

/// A datagram in flight.
#[derive(Debug)]
struct Datagram {
    flow: u64,
    direction: Direction,
    ecn: Option<EcnCodepoint>,
    contents: Box<[u8]>,
    /// The next link to cross, if any.
    then: Option<Link>,
}

#[derive(Clone, Copy, Debug)]
enum Direction {
    ToTarget,
    ToClient,
}

/// The relays, their clients, and the datagrams in flight.
pub(super) struct Engine {
    commands: CommandReceiver<AddRelay>,
    wake: Arc<OwnedFd>,
    wake_token: u64,
    counters: Arc<Counters>,
    waiter: Waiter,
    receiver: Receiver,
    /// By the token of the listening port.
    relays: HashMap<u64, AddRelay>,
    flows: FlowTable,
    departures: Departures<Datagram>,
}

impl Engine {
    pub(super) fn new(
        commands: CommandReceiver<AddRelay>,
        wake: Arc<OwnedFd>,
        counters: Arc<Counters>,
    ) -> io::Result<Self> {
        let mut waiter = Waiter::new()?;
        let wake_token = waiter.watch(wake.as_fd())?;
        Ok(Self {
            commands,
            wake,
            wake_token,
            counters,
            waiter,
            receiver: Receiver::new(),
            relays: HashMap::new(),
            flows: FlowTable::default(),
            departures: Departures::new(),
        })
    }

    /// Runs until the command channel is closed.
    pub(super) fn run(mut self) -> io::Result<()> {
        Waiter::sharpen_timers()?;
        let mut ready = Vec::new();
        loop {
            let deadline = self
                .departures
                .next_at()
                .map_or(self.flows.next_sweep(), |departure| departure.min(self.flows.next_sweep()));
            self.waiter.wait(deadline, &mut ready)?;
            for token in ready.drain(..) {
                if token == self.wake_token {
                    if !self.take_commands()? {
                        return Ok(());
                    }
                } else if self.relays.contains_key(&token) {
                    self.receive_from_clients(token);
                } else {
                    self.receive_from_target(token);
                }
            }
            self.send_due();
            self.flows.forget_idle(clock::now());
        }
    }

    /// Returns false once the channel is closed.
    fn take_commands(&mut self) -> io::Result<bool> {
        rustix::io::read(&*self.wake, &mut [0; 8])?;
        loop {
            match self.commands.try_recv() {
                Ok(relay) => {
                    let token = self.waiter.watch(relay.port.as_fd())?;
                    self.relays.insert(token, relay);
                }
                Err(TryRecvError::Empty) => return Ok(true),
                Err(TryRecvError::Disconnected) => return Ok(false),
            }
        }
    }

    fn receive_from_clients(&mut self, relay_token: u64) {
        let Some(AddRelay { config, port }) = self.relays.get(&relay_token) else { return };
        let now = clock::now();
        self.receiver.drain(port, |meta, contents| {
            let opened = self.flows.find_or_open(relay_token, config.target, meta, now, &mut self.waiter);
            let flow = match opened {
                Ok(flow) => flow,
                Err(error) => {
                    tracing::debug!(%error, client = %meta.addr, "open a flow");
                    return Counters::add(&self.counters.flows_refused, 1);
                }
            };
            self.flows.touch(flow, now);
            let (first, then) = match config.clients.get(&meta.addr) {
                Some(access) if access.not_to.contains(config.target) => return,
                Some(access) => (&access.out_of, Some(config.forward.clone())),
                None => (&config.forward, None),
            };
            let (direction, contents) = (Direction::ToTarget, contents.into());
            let datagram = Datagram { flow, direction, ecn: meta.ecn, contents, then };
            offer(&mut self.departures, first, now, datagram);
        });
    }

    fn receive_from_target(&mut self, flow_token: u64) {
        let Some(flow) = self.flows.get(flow_token) else { return };
        let Some(AddRelay { config, .. }) = self.relays.get(&flow.relay) else { return };
        let now = clock::now();
        self.receiver.drain(&flow.port, |meta, contents| {
            if meta.addr != config.target {
                return Counters::add(&self.counters.strangers, 1);
            }
            let access = config.clients.get(&flow.client);
            if access.is_some_and(|access| access.not_to.contains(config.target)) {
                return;
            }
            let then = access.map(|access| access.into.clone());
            let (direction, contents) = (Direction::ToClient, contents.into());
            let datagram = Datagram { flow: flow_token, direction, ecn: meta.ecn, contents, then };
            offer(&mut self.departures, &config.reverse, now, datagram);
        });
        self.flows.touch(flow_token, now);
    }

    /// Sends all datagrams due, in one batch per route if the kernel supports it.
    fn send_due(&mut self) {
        let now = clock::now();
        let mut batches: Vec<Batch> = Vec::new();
        while let Some(mut datagram) = self.departures.pop_due(now) {
            if let Some(link) = datagram.then.take() {
                offer(&mut self.departures, &link, now, datagram);
                continue;
            }
            // The flow was closed while its datagram was in flight, after a minute without use.
            let Some((route, port)) = self.route(&datagram) else { continue };
            let open = batches.iter_mut().rev().find(|batch| batch.route.is_like(&route));
            if !open.is_some_and(|batch| batch.push(&route, &datagram.contents, port.segments_max())) {
                batches.push(Batch::new(route, &datagram.contents));
            }
        }
        for batch in &batches {
            if let Some(port) = self.port(batch.route.token) {
                Counters::add(&self.counters.send_failures, batch.send(port));
            }
        }
    }

    fn route(&self, datagram: &Datagram) -> Option<(Route, &UdpPort)> {
        let flow = self.flows.get(datagram.flow)?;
        let relay = self.relays.get(&flow.relay)?;
        Some(match datagram.direction {
            Direction::ToTarget => {
                let route = Route {
                    token: datagram.flow,
                    destination: relay.config.target,
                    source_ip: None,
                    ecn: datagram.ecn,
                };
                (route, &flow.port)
            }
            Direction::ToClient => {
                let route = Route {
                    token: flow.relay,
                    destination: flow.client,
                    source_ip: flow.local_ip,
                    ecn: datagram.ecn,
                };
                (route, &relay.port)
            }
        })
    }

    fn port(&self, token: u64) -> Option<&UdpPort> {
        self.flows.get(token).map(|flow| &flow.port).or_else(|| Some(&self.relays.get(&token)?.port))
    }
}

/// Offers a datagram to a link, which may lose it.
fn offer(departures: &mut Departures<Datagram>, link: &Link, now: Duration, datagram: Datagram) {
    if let Verdict::DeliverAt(at) = link.offer(now, &datagram.contents, HEADER_BYTES) {
        departures.push(at, datagram);
    }
}
