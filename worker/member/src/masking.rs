//! This worker's part in secure aggregation: whom it shares masks with in a generation, and what waits for their secrets.

use std::collections::{BTreeMap, BTreeSet};

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, SiteId, WorkerId};
use longhaul_common::plan::Membership;
use longhaul_proto::codec::EncodeError;
use longhaul_proto::control::message::GenerationStart;
use longhaul_proto::little_endian::of_f32;
use longhaul_proto::masking::{FixedPoint, MASK_SECRET_BYTES, PairSecret, Place, add_masked, seal};
use longhaul_proto::round::{Contribution, Event, Local};

use super::compression::compress_masked;
use super::event::Reply;
use super::running::Stage;
use super::synchroniser::Synchroniser;
use crate::activity::Activity;

/// The masks of a generation.
pub struct Masking {
    me: WorkerId,
    membership: Membership,
    first_round: Round,
    active_before: Vec<WorkerId>,
    range: f64,
    /// Samples of a step, over all workers.
    batch: u64,
    /// By the other one of the pair: drawn here for those with higher numbers, fetched from those with lower ones.
    secrets: BTreeMap<WorkerId, PairSecret>,
    /// Compressions that wait for secrets: one for each fragment at most, as a round waits for the one before it.
    waiting: BTreeMap<FragmentId, Waiting>,
}

/// A compression that the round protocol has asked for.
struct Waiting {
    round: Round,
    locals: Vec<Local>,
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

    fn is_ready(&self, round: Round, fragment: FragmentId) -> bool {
        self.partners(round, fragment).iter().all(|partner| self.secrets.contains_key(partner))
    }
}

impl Synchroniser {
    /// Begins a generation's masks, where the run has them.
    pub(super) fn begin_masking(&mut self, start: &GenerationStart) -> Result<()> {
        let (Some(config), Stage::Running(running)) = (&self.config.secure_aggregation, &mut self.stage)
        else {
            return Ok(());
        };
        let masking = Masking::begin(self.worker, start, config.range, self.config.train.batch)?;
        let generation = start.membership.generation;
        self.outside.fetch_mask_secrets(generation, masking.lower().collect());
        running.codec.masking = Some(masking);
        Ok(())
    }

    /// Compresses and masks, at once or when the secrets for it are here.
    pub(super) fn compress_or_wait(
        &mut self,
        generation: Generation,
        round: Round,
        fragment: FragmentId,
        locals: Vec<Local>,
    ) -> Result<()> {
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        if let Some(masking) = &mut running.codec.masking
            && !masking.is_ready(round, fragment)
        {
            let mean = running.site.mean_of(round, fragment);
            let locals = mean.map(|mean| vec![joint(self.worker, &locals, mean)]).unwrap_or(locals);
            masking.waiting.insert(fragment, Waiting { round, locals });
            return Ok(());
        }
        let compressing = self.outside.begin_coding(Activity::Compress { round, fragments: 1 });
        let body = compress_masked(running, round, fragment, &locals)?;
        drop(compressing);
        self.feed(Event::Compressed { generation, round, fragment, body });
        Ok(())
    }

    /// A worker with a lower number has given the secret that it has drawn.
    pub(super) fn take_mask_secret(
        &mut self,
        generation: Generation,
        from: WorkerId,
        secret: [u8; MASK_SECRET_BYTES],
    ) -> Result<()> {
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        let masking =
            running.codec.masking.as_mut().filter(|masking| masking.membership.generation == generation);
        let Some(masking) = masking.filter(|masking| from < masking.me) else { return Ok(()) };
        masking.secrets.insert(from, PairSecret::from_bytes(secret));
        let mut waiting = std::mem::take(&mut masking.waiting);
        // The others did not wait: what was contributed to an earlier round is carried over, and released.
        let open_round = running.member.open_round();
        waiting.retain(|_, waiting| waiting.round == open_round);
        for (fragment, Waiting { round, locals }) in waiting {
            self.compress_or_wait(generation, round, fragment, locals)?;
        }
        Ok(())
    }

    /// A worker asks for the secret that this one has drawn for it. It asks again when there is no answer.
    pub(super) fn serve_mask_secret(
        &self,
        generation: Generation,
        peer: WorkerId,
        reply: Reply<Option<[u8; MASK_SECRET_BYTES]>>,
    ) {
        let secret = match &self.stage {
            Stage::Running(running) => {
                running.codec.masking.as_ref().and_then(|masking| masking.secret_for(generation, peer))
            }
            Stage::Preparing => None,
        };
        // Who asked may have gone.
        reply.give(secret);
    }
}

/// What a site has reduced together, as an update of all of them: by the time of the secret, the reduction may be of a later round.
fn joint(worker: WorkerId, locals: &[Local], mean: &[f32]) -> Local {
    let weight = locals.iter().fold(0u32, |sum, local| sum.saturating_add(local.weight));
    Local { worker, weight, body: Some(Bytes::copy_from_slice(of_f32(mean))) }
}
