//! The links between the sites of a [`super::Cluster`], and the ports that lead over them.

use std::net::SocketAddr;

use anyhow::{Context, Result};

use crate::wan::udp::{RelayConfig, Relays};
use crate::wan::{Link, LinkConfig};

/// Two sites share one link in each direction. More than two have an access link each, in and out.
#[derive(Debug)]
pub struct Wan {
    into: Vec<Link>,
    out_of: Vec<Link>,
    /// Where other sites reach the coordinator, and each worker.
    coordinator: SocketAddr,
    direct: SocketAddr,
    workers: Vec<SocketAddr>,
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
        let relays = Relays::start()?;
        let relay = |site: usize, target| {
            let listen = SocketAddr::from(([127, 0, 0, 1], 0));
            relays.add(RelayConfig {
                listen,
                target,
                forward: into[site].clone(),
                reverse: out_of[site].clone(),
            })
        };
        let to_coordinator = relay(0, coordinator)?;
        let to_workers =
            workers.iter().map(|&(site, target)| relay(site, target)).collect::<std::io::Result<_>>()?;
        Ok(Self {
            into,
            out_of,
            coordinator: to_coordinator,
            direct: coordinator,
            workers: to_workers,
            _relays: relays,
        })
    }

    /// Where a worker of `site` reaches the coordinator, and what it advertises to other sites.
    pub(super) fn addresses_for(&self, site: usize, worker: usize) -> (SocketAddr, SocketAddr) {
        (if site == 0 { self.direct } else { self.coordinator }, self.workers[worker])
    }

    /// The link into a site.
    #[must_use]
    pub fn into_site(&self, site: usize) -> &Link {
        &self.into[site]
    }

    /// The link out of a site.
    #[must_use]
    pub fn out_of_site(&self, site: usize) -> &Link {
        &self.out_of[site]
    }
}
