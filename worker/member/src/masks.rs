//! The masks of a generation: their partners, the masked summand, and the owner's sum.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_common::plan::Membership;
use longhaul_common::timeline::place_in;
use longhaul_proto::codec::EncodeError;
use longhaul_proto::control::message::GenerationStart;
use longhaul_proto::masking::{FixedPoint, FrameKey, MASK_SECRET_BYTES, PairSecret, add_masked, seal};
use longhaul_proto::round::{Contribution, Local};

/// The masks of a generation.
pub struct Masking {
    pub(crate) me: WorkerId,
    pub(crate) membership: Membership,
    first_round: Round,
    active_before: Arc<[WorkerId]>,
    range: f64,
    /// Samples of a step, over all workers.
    batch: u64,
    /// By partner: drawn here for higher numbers, fetched from lower ones.
    pub(crate) secrets: BTreeMap<WorkerId, PairSecret>,
    /// Compressions that wait for secrets: at most one per fragment, because a round waits for the one before it.
    pub(crate) waiting: BTreeMap<FragmentId, Waiting>,
}

/// A compression requested by the round protocol.
pub(crate) struct Waiting {
    pub round: Round,
    pub locals: Vec<Local>,
}

/// Reason for a missing sum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSum {
    /// A site is missing, whose masks would be needed.
    #[error("only the sites {here:?} of {expected:?} have contributed")]
    Missing {
        /// Sites masked for.
        expected: BTreeSet<SiteId>,
        /// Sites here.
        here: BTreeSet<SiteId>,
    },
    /// The sum may have wrapped.
    #[error("the sites claim a weight of {weight}, but a round has {max} samples")]
    Weight {
        /// Claimed weight.
        weight: u64,
        /// Possible weight.
        max: u64,
    },
    /// A contribution is unreadable.
    #[error("{site}: {error}")]
    Frame {
        /// Its site.
        site: SiteId,
        /// Cause.
        error: longhaul_proto::masking::MaskedFrameError,
    },
}

impl Masking {
    /// Begins a generation, with fresh secrets for the workers that will fetch them.
    ///
    /// # Errors
    /// The operating system provides no randomness.
    pub fn begin(me: WorkerId, start: &GenerationStart, range: f64, batch: u32) -> Result<Self> {
        let membership = start.membership.clone();
        let site = membership.member(me).map(|member| member.site);
        let higher = membership.members().iter().filter(|m| m.worker > me && Some(m.site) != site);
        let drawn = higher.map(|member| Ok((member.worker, PairSecret::draw()?)));
        let secrets = drawn.collect::<Result<_>>().context("draw the secrets of masks")?;
        Ok(Self {
            me,
            membership,
            first_round: start.first_round,
            active_before: Arc::clone(&start.active_before),
            range,
            batch: u64::from(batch),
            secrets,
            waiting: BTreeMap::new(),
        })
    }

    /// Returns the workers to fetch secrets from.
    pub fn lower(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let site = self.site();
        let members = self.membership.members().iter();
        members.filter(move |m| m.worker < self.me && Some(m.site) != site).map(|member| member.worker)
    }

    /// Returns the secret for a worker with a higher number.
    #[must_use]
    pub fn secret_for(&self, generation: Generation, peer: WorkerId) -> Option<[u8; MASK_SECRET_BYTES]> {
        let is_mine_to_give = generation == self.membership.generation && peer > self.me;
        self.secrets.get(&peer).filter(|_| is_mine_to_give).map(|secret| *secret.as_bytes())
    }

    /// Returns the largest magnitude of a value.
    #[must_use]
    pub fn range(&self) -> f32 {
        self.range as f32
    }

    /// Returns the site's contribution to a round, for the owner.
    ///
    /// # Errors
    /// The update is not finite.
    pub fn seal(
        &self,
        round: Round,
        fragment: FragmentId,
        steps: u64,
        weight: u32,
        mean: &[f32],
    ) -> Result<Bytes, EncodeError> {
        let secret = |partner| Some((partner, self.secrets.get(&partner)?));
        let secrets: Option<Vec<_>> = self.partners(round, fragment).into_iter().map(secret).collect();
        let secrets = secrets.expect("compressions wait for missing secrets");
        let place = FrameKey { generation: self.membership.generation, round, fragment };
        seal(&self.format(steps), weight, mean, place, self.me, secrets)
    }

    /// Computes the mean of a round's contributions; `steps` are the round's.
    ///
    /// # Errors
    /// [`NoSum`]; `mean` is then invalid.
    pub fn open(
        &self,
        round: Round,
        steps: u64,
        contributions: &[Contribution],
        mean: &mut [f32],
    ) -> Result<(), NoSum> {
        let expected = self.sites(round);
        let here: BTreeSet<SiteId> = contributions.iter().map(|contribution| contribution.site).collect();
        if here != expected {
            return Err(NoSum::Missing { expected, here });
        }
        let format = self.format(steps);
        let weight = contributions.iter().map(|contribution| u64::from(contribution.weight)).sum();
        if weight > format.weight_max() {
            return Err(NoSum::Weight { weight, max: format.weight_max() });
        }
        let mut sum = vec![0; mean.len()];
        for Contribution { site, body, .. } in contributions {
            add_masked(body, &mut sum).map_err(|error| NoSum::Frame { site: *site, error })?;
        }
        format.set_mean(&sum, weight, mean);
        Ok(())
    }

    fn format(&self, steps: u64) -> FixedPoint {
        FixedPoint::new(self.range, self.batch.saturating_mul(steps))
    }

    fn site(&self) -> Option<SiteId> {
        self.membership.member(self.me).map(|member| member.site)
    }

    /// Returns the sites that contribute to a round.
    fn sites(&self, round: Round) -> BTreeSet<SiteId> {
        let is_active = |worker| round >= self.first_round || place_in(&self.active_before, worker).is_some();
        let active = self.membership.members().iter().filter(|member| is_active(member.worker));
        active.map(|member| member.site).collect()
    }

    /// Returns the uploaders of the other contributing sites.
    fn partners(&self, round: Round, fragment: FragmentId) -> Vec<WorkerId> {
        let others = self.sites(round).into_iter().filter(|site| Some(*site) != self.site());
        others.filter_map(|site| self.membership.uploader(site, fragment)).collect()
    }

    pub(crate) fn is_ready(&self, round: Round, fragment: FragmentId) -> bool {
        self.partners(round, fragment).iter().all(|partner| self.secrets.contains_key(partner))
    }
}
