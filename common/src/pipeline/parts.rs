//! Division of blocks among the ranks of a pipeline.

use std::ops::Range;

use super::{Pipeline, split};
use crate::config::{ParallelConfig, Precision};
use crate::model::ModelSpec;

impl ParallelConfig {
    /// Returns the pipeline of one replica, for steps of this many micro-batches.
    #[must_use]
    pub fn pipeline(&self, micro_batches: u32) -> Pipeline {
        Pipeline {
            schedule: self.schedule,
            ranks: self.stages,
            chunks: self.chunks,
            micro_batches,
            in_flight: self.in_flight.clone(),
        }
    }
}

impl ModelSpec {
    /// Returns the parts of a replica's workers by rank, for sequences of `sequence` tokens: as configured,
    /// or divided so that the largest stage has the least arithmetic, at bottlenecks if there are any, with the shares of its tensor group one
    /// after another. Equal on all workers, as it depends on model and configuration only.
    ///
    /// `None`: too few blocks, or a stage would have nothing to train; or, with tensor groups, too few layers; or the shares cannot be equal.
    #[must_use]
    pub fn parts(&self, parallel: &ParallelConfig, sequence: u32) -> Option<Vec<Self>> {
        let (ranks, chunks) = (parallel.stages, parallel.chunks);
        let stages = ranks.checked_mul(chunks)?;
        let ranges = match parallel.blocks.as_slice() {
            [] => self.even_cut(stages, sequence, parallel.is_shared())?,
            blocks => cut_by(blocks),
        };
        let of_rank = |rank: u32| {
            let own: Option<Vec<_>> =
                (0..chunks).map(|chunk| ranges.get((chunk * ranks + rank) as usize).cloned()).collect();
            self.part(own?).shards(parallel.tensor).ok()
        };
        if !ranges.iter().all(|range| self.trains_in(range.clone())) {
            return None;
        }
        let shares: Vec<Vec<Self>> = (0..ranks).map(of_rank).collect::<Option<_>>()?;
        Some(shares.into_iter().flatten().collect())
    }

    /// Whether these blocks have a trained tensor: a stage takes part in rounds by its own.
    #[must_use]
    pub fn trains_in(&self, blocks: Range<u32>) -> bool {
        self.tuning.is_none() || self.part(std::iter::once(blocks).collect()).parameter_count() > 0
    }

    /// `with_layers`: each stage has at least one layer, as all members of a group have the rest.
    fn even_cut(&self, stages: u32, sequence: u32, with_layers: bool) -> Option<Vec<Range<u32>>> {
        // Cumulative, so that a range is a difference.
        let mut before = vec![0_u64];
        for cost in self.blocks(sequence, Precision::F32) {
            let own = cost.forward_flops_per_token + cost.backward_flops_per_token;
            before.push(before.last().copied().unwrap_or_default().saturating_add(own));
        }
        let work = |range: Range<u32>| before[range.end as usize] - before[range.start as usize];
        split(before.len() as u32 - 1, stages, |_, range| {
            let is_fit = !with_layers || !self.layers_in(&range).is_empty();
            let is_fit = is_fit && self.is_cut_behind(range.end - 1);
            (is_fit && self.trains_in(range.clone())).then(|| work(range) as f64)
        })
    }
}

fn cut_by(blocks: &[u32]) -> Vec<Range<u32>> {
    let mut start = 0;
    let next = |count: &u32| {
        let range = start..start + count;
        start = range.end;
        range
    };
    blocks.iter().map(next).collect()
}

#[cfg(test)]
mod tests {
    use crate::config::{BottleneckConfig, ModelConfig, ModelKind, ParallelConfig};
    use crate::model::{ModelSpec, Stream};

    fn model(layers: u32) -> ModelSpec {
        let config = ModelConfig {
            layers,
            width: 64,
            heads: 4,
            context: 32,
            vocabulary: Some(256),
            ..ModelConfig::of(ModelKind::Gpt2)
        };
        ModelSpec::resolve(&config, 256).unwrap()
    }

    fn parallel(stages: u32, chunks: u32) -> ParallelConfig {
        ParallelConfig { stages, chunks, ..ParallelConfig::default() }
    }

    #[test]
    fn parts_have_every_block_once_and_about_as_much_work() {
        let parts = model(8).parts(&parallel(2, 1), 32).unwrap();
        let chunks: Vec<_> = parts.into_iter().flat_map(|part| part.chunks).collect();
        // The head is a third of a layer here.
        assert_eq!(chunks, [0..5, 5..10]);
        let parts = model(6).parts(&parallel(2, 2), 32).unwrap();
        let chunks: Vec<_> = parts.into_iter().map(|part| part.chunks).collect();
        let mut all: Vec<_> = chunks.concat();
        all.sort_by_key(|range| range.start);
        assert_eq!(chunks[0].len(), 2);
        assert!(all.windows(2).all(|pair| pair[0].end == pair[1].start));
        assert_eq!((all[0].start, all[3].end), (0, 8));
    }

    /// Behind layers 2, 3 and 7 of eight; not the even cuts behind 4, or 2, 4 and 6.
    #[test]
    fn a_model_with_bottlenecks_is_cut_there_unless_it_is_written_otherwise() {
        let bottleneck = BottleneckConfig { width: 8, behind: vec![2, 3, 7] };
        let model = ModelSpec { stream: Stream::Bottlenecks(bottleneck.into()), ..model(8) };
        let chunks = |parallel: &ParallelConfig| -> Option<Vec<_>> {
            Some(model.parts(parallel, 32)?.into_iter().map(|part| part.chunks[0].clone()).collect())
        };
        assert_eq!(chunks(&parallel(2, 1)), Some(vec![0..4, 4..10]));
        assert_eq!(chunks(&parallel(4, 1)), Some(vec![0..3, 3..4, 4..8, 8..10]));
        assert_eq!(chunks(&parallel(5, 1)), None);
        let written = ParallelConfig { blocks: vec![5, 5], ..parallel(2, 1) };
        assert_eq!(chunks(&written), Some(vec![0..5, 5..10]));
    }

    #[test]
    fn parts_are_as_they_are_written() {
        let written = ParallelConfig { blocks: vec![1, 2, 4, 1], ..parallel(2, 2) };
        let chunks: Vec<_> =
            model(6).parts(&written, 32).unwrap().into_iter().map(|part| part.chunks).collect();
        assert_eq!(chunks, [[0..1, 3..7], [1..3, 7..8]]);
    }

    #[test]
    fn members_of_a_tensor_group_have_the_shares_of_all_blocks() {
        let shared = ParallelConfig { tensor: 2, ..parallel(1, 1) };
        assert_eq!(model(3).parts(&shared, 32), model(3).shards(2).ok());
        assert_eq!(model(3).parts(&ParallelConfig { tensor: 3, ..shared }, 32), None, "four heads");
    }

    /// By stage; a head that outweighs the layers does not form a part by itself.
    #[test]
    fn stages_of_tensor_groups_have_shares_of_their_layers_of_which_each_has_one() {
        let large = ModelSpec { vocabulary: 100_000, ..model(2) };
        let both = ParallelConfig { tensor: 2, ..parallel(2, 1) };
        let parts = large.parts(&both, 32).unwrap();
        let expected: Vec<ModelSpec> =
            [0..2, 2..4].into_iter().flat_map(|blocks| large.part(vec![blocks]).shards(2).unwrap()).collect();
        assert_eq!(parts, expected);
        let apart = large.parts(&parallel(2, 1), 32).unwrap();
        assert_eq!(apart[1].chunks[0], 3..4);
        assert_eq!(large.parts(&ParallelConfig { tensor: 2, ..parallel(3, 1) }, 32), None);
    }

    #[test]
    fn one_rank_has_everything_and_more_ranks_than_blocks_have_nothing() {
        assert_eq!(model(2).parts(&parallel(1, 1), 32).unwrap(), [model(2)]);
        assert_eq!(model(2).parts(&parallel(5, 1), 32), None);
    }
}
