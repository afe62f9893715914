//! What `[sync]` says of compression, in the codec's terms.

use longhaul_common::config::{SelectionRule, SyncConfig, ValueFormat};
use longhaul_proto::codec::{CodecSpec, Selection};

/// From a site to the owner, after the opening.
pub fn uplink(config: &SyncConfig) -> CodecSpec {
    let keep = match config.selection {
        SelectionRule::All => config.chunk,
        SelectionRule::TopK => config.keep,
    };
    spec(config, keep, config.values)
}

/// From the owner to everybody, where it publishes means, after the opening.
pub fn downlink(config: &SyncConfig) -> CodecSpec {
    spec(config, config.result_keep, config.result_values)
}

/// Both ways in the opening.
pub fn opening(config: &SyncConfig) -> CodecSpec {
    let keep = match config.selection {
        SelectionRule::All => config.chunk,
        SelectionRule::TopK => config.opening_keep,
    };
    spec(config, keep, config.opening_values)
}

/// Whether decoding gives back what was encoded, bit for bit.
pub fn is_lossless(spec: &CodecSpec) -> bool {
    *spec == CodecSpec { selection: Selection::All, values: ValueFormat::F32 }
}

fn spec(config: &SyncConfig, keep: u32, values: ValueFormat) -> CodecSpec {
    let chunk = config.chunk;
    let selection = if keep == chunk { Selection::All } else { Selection::TopK { chunk, keep } };
    CodecSpec { selection, values }
}
