//! Tensor groups of the families of decoders.

use longhaul_common::config::ModelKind;
use longhaul_common::model::tiny::tiny_decoders;

use super::*;

/// Biases, norms of heads, norms on both sides, caps, windows and layers without positions.
#[test]
fn two_members_train_every_decoder_as_one_engine_does() {
    for spec in tiny_decoders() {
        if spec.kind == ModelKind::Olmo2 {
            let refused = spec.shards(2).unwrap_err().to_string();
            assert!(refused.contains("olmo2 norms queries over all heads"), "{refused}");
            continue;
        }
        if spec.decoder.as_ref().is_some_and(|of| of.experts.is_some()) {
            assert!(spec.shards(2).is_err(), "{:?}", spec.kind);
            continue;
        }
        let found = trained_in_group(Threads::group(2, Fault::Nothing), &spec, &train_config(0.5));
        // Norms on both sides amplify rounding: Gemma 3 ends 2·10⁻⁵ and 8·10⁻⁵ apart, the others as in TOLERANCE.
        let apart = distance(&found, &trained(whole(&spec, 0.5)));
        assert!(apart[0] < 1e-4 && apart[1] < 1e-3, "{}: {apart:?}", about(&spec));
    }
}
