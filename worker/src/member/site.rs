//! The reduction within the site, over this worker's network.

use std::sync::Arc;

use anyhow::Result;
use longhaul_collective::{Collective, RingCollective, RingSetup};
use longhaul_common::config::WithinSite;
use longhaul_flight::Progress;
use longhaul_member::activity::Activity;
use longhaul_member::{Ongoing, SiteEvent, SiteJoin, SiteLink, SyncEvent};
use longhaul_nccl::{NcclCollective, NcclReach};
use longhaul_peer::Network;
use tch::Device;
use tokio::sync::mpsc;

use super::Links;

/// A ring over the members' addresses within the site, or NCCL between their GPUs.
pub(super) struct NetworkSite {
    network: Arc<Network>,
    progress: Arc<Progress>,
    queue: mpsc::Sender<SyncEvent>,
}

impl NetworkSite {
    pub fn of(links: &Links) -> Self {
        let Links { network, progress, queue, .. } = links;
        Self { network: Arc::clone(network), progress: Arc::clone(progress), queue: queue.clone() }
    }
}

impl SiteLink for NetworkSite {
    fn join(&self, join: &SiteJoin<'_>) -> Result<Box<dyn Collective>> {
        let (listener, tls) = self.network.site_acceptor()?;
        let setup = RingSetup {
            members: join.members.to_vec(),
            rank: join.rank,
            session: join.session,
            tls,
            call_max: join.call_max,
            join_max: join.join_max,
            stop: join.stop.clone(),
        };
        let ring = RingCollective::join(&setup, &listener)?;
        Ok(match join.way {
            WithinSite::Nccl => {
                let device = join.gpu.map_or(Device::Cpu, Device::Cuda);
                Box::new(NcclCollective::join(ring, device, NcclReach::OneMachine)?)
            }
            WithinSite::Ring | WithinSite::Direct => Box::new(ring),
        })
    }

    fn begin(&self, activity: Activity) -> Ongoing {
        Box::new(self.progress.begin(activity))
    }

    fn sent(&self, bytes: u64) {
        self.progress.sent(bytes, false);
    }

    fn tell(&self, event: SiteEvent) {
        // The session may be over.
        let _ = self.queue.blocking_send(SyncEvent::Site(event));
    }
}
