//! This worker's part in secure aggregation: partners of a generation, and compressions that wait for their secrets.

use anyhow::Result;
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::control::message::GenerationStart;
use longhaul_proto::little_endian::of_f32;
use longhaul_proto::masking::{MASK_SECRET_BYTES, PairSecret};
use longhaul_proto::round::{Event, Local};

use super::compression::compress_masked;
use super::event::Reply;
use super::masks::{Masking, Waiting};
use super::running::Stage;
use super::synchroniser::Synchroniser;
use crate::activity::Activity;

impl Synchroniser {
    /// Begins a generation's masks, in runs with secure aggregation.
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

    /// Compresses and masks, at once or after the secrets have arrived.
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

    /// Takes in the secret of a worker with a lower number.
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
        // The others did not wait: a contribution to an earlier round is carried over and released.
        let open_round = running.member.open_round();
        waiting.retain(|_, waiting| waiting.round == open_round);
        for (fragment, Waiting { round, locals }) in waiting {
            self.compress_or_wait(generation, round, fragment, locals)?;
        }
        Ok(())
    }

    /// Serves this worker's secret for a peer. Without an answer, the peer asks again.
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
        // The requester may have left.
        reply.give(secret);
    }
}

/// Turns a site's joint mean into an update of all its members: by the time of the secret, the reduction may be of a later round.
fn joint(worker: WorkerId, locals: &[Local], mean: &[f32]) -> Local {
    let weight = locals.iter().fold(0u32, |sum, local| sum.saturating_add(local.weight));
    Local { worker, weight, body: Some(Bytes::copy_from_slice(of_f32(mean))) }
}
