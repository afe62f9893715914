//! The links between the sites of a [`super::Cluster`], and the relay ports over them.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;

use anyhow::{Context, Result};

use longhaul_emulator::udp::{Access, NotTo, RelayConfig, Relays};
use longhaul_emulator::{Link, LinkConfig};

/// Two sites share one link in each direction. With more, each has an access link, in and out: a packet
/// crosses the link out of its site and the one into the other, each with half of the configured delay and
/// losses, and the full rate.
#[derive(Debug)]
pub struct Wan {
    link: LinkConfig,
    into: Vec<Link>,
    out_of: Vec<Link>,
    /// Addresses of the coordinator and each worker for other sites.
    coordinator: SocketAddr,
    direct: SocketAddr,
    workers: Vec<SocketAddr>,
    /// By site, the targets unreachable over its access link.
    not_to: Vec<NotTo>,
    /// Site and listening address of each worker.
    listening: Vec<(usize, SocketAddr)>,
    _relays: Relays,
}

impl Wan {
    pub(super) fn start(
        sites: usize,
        link: &LinkConfig,
        seed: u64,
        coordinator: SocketAddr,
        workers: &[(usize, SocketAddr)],
    ) -> Result<Self> {
        let link = if sites > 2 { half(link) } else { link.clone() };
        let new_link = |name: String, seed| Link::new(&name, link.clone(), seed).context("make a link");
        let into: Vec<Link> = (0..sites)
            .map(|site| new_link(format!("into-{site}"), seed + site as u64))
            .collect::<Result<_>>()?;
        let out_of = if sites == 2 {
            vec![into[1].clone(), into[0].clone()]
        } else {
            (0..sites)
                .map(|site| new_link(format!("out-of-{site}"), seed + (sites + site) as u64))
                .collect::<Result<_>>()?
        };
        let not_to: Vec<NotTo> = (0..sites).map(|_| NotTo::default()).collect();
        let access = |site: usize| Access {
            into: into[site].clone(),
            out_of: out_of[site].clone(),
            not_to: not_to[site].clone(),
        };
        let behind = workers.iter().filter(|_| sites > 2).map(|&(site, address)| (address, access(site)));
        let clients: Arc<BTreeMap<_, _>> = Arc::new(behind.collect());
        let relays = Relays::start()?;
        let relay = |site: usize, target| {
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            relays.add(RelayConfig {
                listen,
                target,
                forward: into[site].clone(),
                reverse: out_of[site].clone(),
                clients: Arc::clone(&clients),
            })
        };
        let to_coordinator = relay(0, coordinator)?;
        let to_workers =
            workers.iter().map(|&(site, target)| relay(site, target)).collect::<std::io::Result<_>>()?;
        Ok(Self {
            link,
            into,
            out_of,
            coordinator: to_coordinator,
            direct: coordinator,
            workers: to_workers,
            not_to,
            listening: workers.to_vec(),
            _relays: relays,
        })
    }

    /// Returns the coordinator's address for a worker of `site`, and the address that the worker advertises
    /// to other sites.
    pub(super) fn addresses_for(&self, site: usize, worker: usize) -> (SocketAddr, SocketAddr) {
        (if site == 0 { self.direct } else { self.coordinator }, self.workers[worker])
    }

    /// Returns the configuration of each link, unless changed.
    #[must_use]
    pub fn link(&self) -> &LinkConfig {
        &self.link
    }

    /// Removes the route between workers of two sites, of three or more; each still reaches all others.
    /// `None`: restores all routes.
    pub fn part(&self, sites: Option<(usize, usize)>) {
        let at = |site: usize| {
            self.listening.iter().filter(move |(at, _)| *at == site).map(|&(_, address)| address)
        };
        self.not_to.iter().for_each(|not_to| not_to.set([]));
        if let Some((one, other)) = sites {
            self.not_to[one].set(at(other));
            self.not_to[other].set(at(one));
        }
    }

    /// Returns the link into a site.
    #[must_use]
    pub fn into_site(&self, site: usize) -> &Link {
        &self.into[site]
    }

    /// Returns the link out of a site.
    #[must_use]
    pub fn out_of_site(&self, site: usize) -> &Link {
        &self.out_of[site]
    }
}

/// Two of these in series equal the link: losses are independent, and delays add up.
fn half(link: &LinkConfig) -> LinkConfig {
    LinkConfig {
        delay: link.delay / 2,
        jitter: link.jitter / 2,
        loss: 1.0 - (1.0 - link.loss).sqrt(),
        reorder: 1.0 - (1.0 - link.reorder).sqrt(),
        ..link.clone()
    }
}
