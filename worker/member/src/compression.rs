//! The link between the round protocol's requests for compressed fragments and the codec's threads.

use anyhow::{Context, Result};
use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round};
use longhaul_proto::codec::ColumnUpdate;
use longhaul_proto::round::{Command, Event, Local as MemberUpdate};

use super::columns::of_frame;
use super::commands::slice_of;
use super::running::{Codec, Contributions, Rounds, Running, Stage};
use super::synchroniser::Synchroniser;
use crate::activity::Activity;
use crate::encode::compressor::{Job, Local};
use crate::encode::visible::Base;

/// A fragment and its updates from the site's members.
pub type FragmentUpdates = (FragmentId, Vec<MemberUpdate>);

impl Synchroniser {
    /// Compresses a fragment and the directly following requests, up to the codec's number of threads. Masked ones wait for secrets and go one by one.
    pub(super) fn compress_side_by_side(
        &mut self,
        generation: Generation,
        round: Round,
        first: FragmentUpdates,
    ) -> Result<()> {
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        if running.codec.masking.is_some() {
            return self.compress_or_wait(generation, round, first.0, first.1);
        }
        let mut wanted = vec![first];
        while wanted.len() < running.codec.compressor.lanes()
            && let Some(next) = running.next_command(&*self.outside)
        {
            match next {
                Command::Compress { generation: of, round: at, fragment, locals }
                    if (of, at) == (generation, round) =>
                {
                    wanted.push((fragment, locals));
                }
                other => {
                    running.postponed = Some(other);
                    break;
                }
            }
        }
        let fragments = wanted.len() as u32;
        let compressing = self.outside.begin_coding(Activity::Compress { round, fragments });
        let bodies = compress(running, round, &wanted)?;
        drop(compressing);
        if let Some((fragment, _)) = wanted.first() {
            self.outside.encodes(running.codec.compressor.encoding(round, *fragment));
        }
        for ((fragment, _), body) in wanted.into_iter().zip(bodies) {
            self.feed(Event::Compressed { generation, round, fragment, body });
        }
        Ok(())
    }
}

/// Returns the site's contributions to these fragments.
pub(super) fn compress(
    running: &mut Running,
    round: Round,
    wanted: &[FragmentUpdates],
) -> Result<Vec<Bytes>> {
    let Running { codec: Codec { compressor, .. }, contributions, rounds, site, replica, .. } = running;
    let (Contributions { of_rounds, columns, .. }, layouts) = (contributions, &rounds.layouts);
    let visible_rate = compressor.visible_rate(round);
    let mut jobs = Vec::with_capacity(wanted.len());
    for (fragment, updates) in wanted {
        let range = layouts.of(round).range(*fragment);
        let len = range.len();
        if compressor.is_of_columns() {
            let own = columns.of(round, *fragment);
            let locals = sound_columns(round, len, own, updates);
            jobs.push(Job { fragment: *fragment, locals, base: None });
            continue;
        }
        let own = slice_of(of_rounds, layouts, round, *fragment);
        let joint = site.mean_of(round, *fragment);
        let base = |learning_rate| {
            let parameters = replica.parameters().get(range).context("a fragment beyond the parameters")?;
            anyhow::Ok(Base { parameters, learning_rate })
        };
        let base = visible_rate.map(base).transpose().with_context(|| failed(round, *fragment))?;
        let locals = sound_updates(round, len, own, joint, updates);
        jobs.push(Job { fragment: *fragment, locals, base });
    }
    let bodies = compressor.compress(round, &jobs).into_iter().zip(wanted);
    bodies.map(|(body, (fragment, _))| body.with_context(|| failed(round, *fragment))).collect()
}

/// Returns the site's contribution to a masked sum.
pub(super) fn compress_masked(
    running: &mut Running,
    round: Round,
    fragment: FragmentId,
    updates: &[MemberUpdate],
) -> Result<Bytes> {
    let Running { codec: Codec { compressor, masking, .. }, contributions, rounds, site, .. } = running;
    let Rounds { layouts, schedule, .. } = rounds;
    let masking = masking.as_ref().context("there are no masks")?;
    let len = layouts.of(round).range(fragment).len();
    let own = slice_of(&contributions.of_rounds, layouts, round, fragment);
    let locals = sound_updates(round, len, own, site.mean_of(round, fragment), updates);
    let steps = schedule.steps_of(round).count() as u64;
    let weight = updates.iter().fold(0u32, |sum, update| sum.saturating_add(update.weight));
    let summand = compressor.summand(round, fragment, &locals, masking.range());
    let sealed = summand.and_then(|values| Ok(masking.seal(round, fragment, steps, weight, &values)?));
    sealed.with_context(|| failed(round, fragment))
}

fn failed(round: Round, fragment: FragmentId) -> String {
    format!("compress {fragment} for {round}")
}

/// Returns the inputs of the mean: the site's joint mean, or else all valid updates of its members.
fn sound_updates<'a>(
    round: Round,
    len: usize,
    own: &'a [f32],
    joint: Option<&'a [f32]>,
    updates: &'a [MemberUpdate],
) -> Vec<(u32, Local<'a>)> {
    if let Some(mean) = joint {
        return vec![(1, Local::Own(mean))];
    }
    let mut sound = Vec::with_capacity(updates.len());
    for update in updates {
        match &update.body {
            None => sound.push((update.weight, Local::Own(own))),
            Some(body) if is_sound(body, len) => sound.push((update.weight, Local::Received(body))),
            Some(body) => tracing::warn!(
                worker = %update.worker, bytes = body.len(), %round,
                "a member's update is not finite or has the wrong length; left out"
            ),
        }
    }
    sound
}

/// The same for updates of columns. Without an own contribution, the first readable update sets the shape.
fn sound_columns<'a>(
    round: Round,
    len: usize,
    own: Option<&ColumnUpdate>,
    updates: &[MemberUpdate],
) -> Vec<(u32, Local<'a>)> {
    let mut like = own.cloned();
    let mut sound = Vec::with_capacity(updates.len());
    for update in updates {
        let columns = match &update.body {
            None => own.cloned(),
            Some(body) => of_frame(body, len),
        };
        match columns.filter(|columns| like.as_ref().is_none_or(|like| columns.is_like(like))) {
            Some(columns) => {
                like.get_or_insert_with(|| columns.clone());
                sound.push((update.weight, Local::Columns(columns)));
            }
            None => tracing::warn!(
                worker = %update.worker, %round, "a member's columns are unreadable or of another model; left out"
            ),
        }
    }
    sound
}

/// Reports whether a member's frame holds `len` finite values.
fn is_sound(body: &[u8], len: usize) -> bool {
    let (words, rest) = body.as_chunks::<4>();
    words.len() == len && rest.is_empty() && words.iter().all(|word| f32::from_le_bytes(*word).is_finite())
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::WorkerId;
    use longhaul_proto::codec::{ColumnPart, MatrixStretch};

    use super::super::columns::exact_frame;
    use super::*;

    /// Of a matrix of `columns` columns of three values.
    fn update(columns: u32, which: u32) -> ColumnUpdate {
        let stretch =
            MatrixStretch { start: 0, len: 3 * columns, offset: 0, columns, rows: 3, by_column: true };
        let parts = vec![ColumnPart { stretch, columns: vec![which] }];
        ColumnUpdate::new(12, parts, vec![1.0; 3 + 12 - 3 * columns as usize]).unwrap()
    }

    fn received(worker: u32, body: Vec<u8>) -> MemberUpdate {
        MemberUpdate { worker: WorkerId(worker), weight: worker, body: Some(body.into()) }
    }

    /// A joiner uploads for its site before its first step.
    #[test]
    fn who_has_contributed_nothing_sends_the_columns_of_the_others() {
        let [one, two] = [update(4, 1), update(4, 3)];
        let frames = [&one, &two].map(|update| exact_frame(update).unwrap());
        let of_another_model = exact_frame(&update(2, 1)).unwrap();
        let [first, second] = frames;
        let updates =
            [received(1, vec![1, 2]), received(2, first), received(3, of_another_model), received(4, second)];
        let sound = sound_columns(Round(0), 12, None, &updates);
        let sound: Vec<_> = sound
            .into_iter()
            .map(|(weight, local)| match local {
                Local::Columns(columns) => (weight, columns),
                Local::Own(_) | Local::Received(_) => panic!("not of columns"),
            })
            .collect();
        assert_eq!(sound, [(2, one), (4, two)]);
    }
}
