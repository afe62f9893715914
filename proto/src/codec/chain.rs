//! Codec specifications derived from `[sync]`, for workers and for plans.

use longhaul_common::config::{ResultForm, SyncConfig, Transform};
use longhaul_common::id::{FragmentId, Round, RunId};

use super::{CodecSpec, Dct, RandomK, Selection, Stage, Threshold, TopK};

/// Returns the codec from a site to the owner after the warm-up, for a fragment that begins with `tiles`
/// tiles.
#[must_use]
pub fn uplink(config: &SyncConfig, tiles: u32) -> CodecSpec {
    let SyncConfig { values, rounding, .. } = *config;
    let selection = Selection::configured(config);
    let stage = match config.transform {
        Transform::Dct if tiles > 0 => Some(Stage::Dct(Dct { tiles })),
        Transform::Dct => None,
        Transform::None => random_mask(config).map(Stage::RandomK),
    };
    CodecSpec { stage, rounding, ..with_entropy_where_it_pays(CodecSpec::new(selection, values)) }
}

/// Returns the common choice of positions after the warm-up; `None`: sites contribute all positions, or each
/// chooses its own.
#[must_use]
pub fn random_mask(config: &SyncConfig) -> Option<RandomK> {
    let SyncConfig { chunk, random_keep, .. } = *config;
    (random_keep < chunk).then_some(RandomK { chunk, keep: random_keep })
}

/// Enables entropy coding only for sparse values. For dense values it takes several times as long as the rest
/// of the codec and saves a sixth of four bits; the processor is better used for training. For the values
/// that top-k keeps it costs little.
#[must_use]
pub fn with_entropy_where_it_pays(spec: CodecSpec) -> CodecSpec {
    CodecSpec { entropy: spec.selection != Selection::All, ..spec }
}

/// Returns the codec from the owner to all after the warm-up, if the owner publishes means.
#[must_use]
pub fn downlink(config: &SyncConfig) -> CodecSpec {
    let selection = match config.result {
        ResultForm::Union => Threshold::all_but_zeros(config.chunk),
        ResultForm::Bundle | ResultForm::Mean => TopK::or_all(config.chunk, config.result_keep),
    };
    with_entropy_where_it_pays(CodecSpec::new(selection, config.result_values))
}

/// Returns the codec from the owner to all in the warm-up.
#[must_use]
pub fn warmup_downlink(config: &SyncConfig) -> CodecSpec {
    if config.result == ResultForm::Union && !config.opens_with_gradients() {
        let chain = CodecSpec::new(Threshold::all_but_zeros(config.chunk), config.warmup_values);
        return with_entropy_where_it_pays(chain);
    }
    warmup(config)
}

/// Returns the codec from a site to the owner in the warm-up.
#[must_use]
pub fn warmup(config: &SyncConfig) -> CodecSpec {
    let selection = match config.opens_with_gradients() {
        true => Selection::All,
        false => TopK::or_all(config.chunk, config.warmup_keep),
    };
    with_entropy_where_it_pays(CodecSpec::new(selection, config.warmup_values))
}

/// Returns the seed of random masks and stochastic rounding: equal on all members, different for each
/// fragment and round.
#[must_use]
pub fn seed_of(run: RunId, round: Round, fragment: FragmentId) -> u64 {
    let mut hasher = blake3::Hasher::new();
    hasher.update(&run.0).update(&round.0.to_le_bytes()).update(&fragment.0.to_le_bytes());
    let mut word = [0; 8];
    hasher.finalize_xof().fill(&mut word);
    u64::from_le_bytes(word)
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::config::SyncPreset;

    /// The codec accepts every configuration that passes validation.
    #[test]
    fn the_codec_knows_the_chain_of_every_preset() {
        for (preset, result) in
            SyncPreset::ALL.map(|preset| [None, Some(ResultForm::Union)].map(|r| (preset, r))).as_flattened()
        {
            let mut config = SyncConfig::of(*preset);
            config.result = result.unwrap_or(config.result);
            for spec in [
                uplink(&config, 0),
                uplink(&config, 3),
                downlink(&config),
                warmup(&config),
                warmup_downlink(&config),
            ] {
                assert_eq!(spec.validate(), Ok(()), "{preset:?}: {spec:?}");
            }
        }
        assert!(uplink(&SyncConfig::of(SyncPreset::Dense), 0).is_lossless());
    }

    #[test]
    fn seeds_differ_between_runs_rounds_and_fragments() {
        let seed = |run, round, fragment| seed_of(RunId([run; 16]), Round(round), FragmentId(fragment));
        let all = [seed(1, 1, 1), seed(2, 1, 1), seed(1, 2, 1), seed(1, 1, 2)];
        assert!((1..4).all(|at| all[at] != all[0]));
        assert_eq!(seed(1, 1, 1), all[0]);
    }
}
