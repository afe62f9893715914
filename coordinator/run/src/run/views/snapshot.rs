//! The workers' part of the status.

use longhaul_common::id::WorkerId;
use longhaul_proto::control::message::Heartbeat;
use serde::{Deserialize, Serialize};

use crate::run::machine::Run;
use crate::run::views::member_status::{MemberStatus, durable};
use crate::run::views::status::ParityStatus;

/// The part of the status that depends on present workers. A finished run keeps the last one durably, so that a
/// restarted coordinator answers the same.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Snapshot {
    /// Training loss of the newest round, nats a token.
    pub loss: Option<f32>,
    /// Gradient norm of the newest round that reports one.
    pub gradient_norm: Option<f32>,
    /// The newest validation loss, nats a token, or an image.
    pub validation_loss: Option<f32>,
    /// The newest share of correctly classified held-out images; none for text.
    pub validation_accuracy: Option<f32>,
    /// Largest backlog of error feedback, in exchanges' changes, approximately, after the newest round that reports
    /// one.
    pub residual_ratio: Option<f32>,
    /// Tokens per second over all workers, over the last interval.
    pub tokens_per_s: Option<f64>,
    /// Compute over compute and waiting, over the last interval.
    pub share_of_local_speed: Option<f64>,
    /// Workers that have joined.
    #[serde(with = "durable")]
    pub members: Vec<MemberStatus>,
    /// The newest round that all members reported.
    pub parity: Option<ParityStatus>,
}

impl Run {
    /// The newest heartbeat of each present worker that has sent one, with the name of its site.
    pub fn heartbeats(&self) -> impl Iterator<Item = (WorkerId, &str, &Heartbeat)> {
        self.core.peers.iter().filter_map(|(&worker, peer)| {
            let site = self.core.state.roster.sites.get(peer.known.site.0 as usize)?;
            Some((worker, site.as_str(), peer.progress.meter.latest()?))
        })
    }

    /// As it is now.
    pub(crate) fn snapshot(&self) -> Snapshot {
        Snapshot {
            loss: self.accounting.summaries().loss(),
            gradient_norm: self.accounting.summaries().gradient_norm(),
            validation_loss: self.accounting.summaries().validation_loss(),
            validation_accuracy: self.accounting.summaries().validation_accuracy(),
            residual_ratio: self.accounting.summaries().residual_ratio(),
            tokens_per_s: self.core.sum_of_speeds(),
            share_of_local_speed: self.core.recent().share_of_local_speed(),
            members: self
                .core
                .peers
                .iter()
                .map(|(&worker, peer)| self.planning.member_status(&self.core, worker, peer))
                .collect(),
            parity: self.accounting.parity_status(),
        }
    }

    /// The final snapshot, before the workers are dismissed: `finished` for workers that have done everything, `left`
    /// for others.
    pub(crate) fn last_snapshot(&self) -> Snapshot {
        let mut snapshot = self.snapshot();
        for (member, peer) in snapshot.members.iter_mut().zip(self.core.peers.values()) {
            member.work.state = if peer.progress.finished.is_some() { "finished" } else { "left" }.to_owned();
        }
        snapshot
    }
}
