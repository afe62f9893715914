//! A `run.toml`: a user writes it, and the coordinator sends it to the workers.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;

/// Of bytes.
const TOKENIZER_VOCABULARY: u32 = 256;

fuzz_target!(|text: &str| {
    let Ok(config) = RunConfig::parse(text) else { return };
    let written = config.to_toml().expect("what was read can be written");
    assert_eq!(RunConfig::parse(&written).expect("what was written can be read"), config);
    if let Ok(spec) = ModelSpec::of(&config, TOKENIZER_VOCABULARY) {
        assert!(spec.decayed_count() < spec.parameter_count());
    }
});
