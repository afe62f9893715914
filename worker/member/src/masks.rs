//! The masks of a generation: whom this worker shares them with, what it adds, and what an owner makes of sums.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_common::plan::Membership;
use longhaul_proto::codec::EncodeError;
use longhaul_proto::control::message::GenerationStart;
use longhaul_proto::masking::{FixedPoint, MASK_SECRET_BYTES, PairSecret, Place, add_masked, seal};
use longhaul_proto::round::{Contribution, Local};

/// The masks of a generation.
pub struct Masking {
    pub(crate) me: WorkerId,
    pub(crate) membership: Membership,
    first_round: Round,
    active_before: Vec<WorkerId>,
    range: f64,
    /// Samples of a step, over all workers.
    batch: u64,
    /// By the other one of the pair: drawn here for those with higher numbers, fetched from those with lower ones.
    pub(crate) secrets: BTreeMap<WorkerId, PairSecret>,
    /// Compressions that wait for secrets: one for each fragment at most, as a round waits for the one before it.
    pub(crate) waiting: BTreeMap<FragmentId, Waiting>,
}

/// A compression that the round protocol has asked for.
pub(crate) struct Waiting {
    pub round: Round,
    pub locals: Vec<Local>,
}

/// Why there is no sum.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum NoSum {
    /// Somebody is missing, whose masks would be needed.
    #[error("of the sites {expected:?}, only {here:?} have contributed")]
    Missing {
        /// Who was masked for.
        expected: BTreeSet<SiteId>,
        /// Who is here.
        here: BTreeSet<SiteId>,
    },
    /// The sum may have wrapped.
    #[error("the sites claim a weight of {weight}, where a round has {max} samples")]
    Weight {
        /// What they say.
        weight: u64,
        /// What can be.
        max: u64,
    },
    /// A contribution cannot be read.
    #[error("{site}: {error}")]
    Frame {
        /// Whose.
        site: SiteId,
        /// What is wrong.
        error: longhaul_proto::masking::MaskedFrameError,
    },
}

impl Masking {
    /// For a generation, with fresh secrets for those who will fetch them from here.
    ///
    /// # Errors
    /// The operating system has no randomness to give.
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
            active_before: start.active_before.clone(),
            range,
            batch: u64::from(batch),
            secrets,
            waiting: BTreeMap::new(),
        })
    }

    /// Whom the secrets must be fetched from.
    pub fn lower(&self) -> impl Iterator<Item = WorkerId> + '_ {
        let site = self.site();
        let members = self.membership.members().iter();
        members.filter(move |m| m.worker < self.me && Some(m.site) != site).map(|member| member.worker)
    }

    /// What a worker with a higher number has fetched from here.
    #[must_use]
    pub fn secret_for(&self, generation: Generation, peer: WorkerId) -> Option<[u8; MASK_SECRET_BYTES]> {
        let is_mine_to_give = generation == self.membership.generation && peer > self.me;
        self.secrets.get(&peer).filter(|_| is_mine_to_give).map(|secret| *secret.as_bytes())
    }

    /// The largest magnitude of a value.
    #[must_use]
    pub fn range(&self) -> f32 {
        self.range as f32
    }

    /// The site's contribution to a round, for the owner.
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
        let secrets = secrets.expect("what lacks a secret waits for it");
        let place = Place { generation: self.membership.generation, round, fragment };
        seal(&self.format(steps), weight, mean, place, self.me, secrets)
    }

    /// The mean of a round's contributions; `steps` are the round's.
    ///
    /// # Errors
    /// [`NoSum`]; then `mean` says nothing.
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

    /// The sites that contribute to a round.
    fn sites(&self, round: Round) -> BTreeSet<SiteId> {
        let is_active = |worker| round >= self.first_round || self.active_before.contains(&worker);
        let active = self.membership.members().iter().filter(|member| is_active(member.worker));
        active.map(|member| member.site).collect()
    }

    /// The uploaders of the other sites that contribute to a round.
    fn partners(&self, round: Round, fragment: FragmentId) -> Vec<WorkerId> {
        let others = self.sites(round).into_iter().filter(|site| Some(*site) != self.site());
        others.filter_map(|site| self.membership.uploader(site, fragment)).collect()
    }

    pub(crate) fn is_ready(&self, round: Round, fragment: FragmentId) -> bool {
        self.partners(round, fragment).iter().all(|partner| self.secrets.contains_key(partner))
    }
}
