//! What a checkpoint says of itself, in an archive or a folder that others write to. The seal is made anew for what can be read, as bytes that are damaged do not get past it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;
use longhaul_proto::checkpoint::sealed::{from_bytes, to_text};
use longhaul_proto::checkpoint::{archive, folder};

const RUN_TOML: &str = "[run]\nname = \"fuzz\"\nworkers = 1\nsteps = 1\n[model]\nkind = \"gpt2\"\nlayers = 3\nwidth = 8\nheads = 2\ncontext = 8\n\
                        [data]\npath = \"none\"\nsequence_length = 8\n[train]\nbatch = 1\n";

fuzz_target!(|bytes: &[u8]| {
    let _ = from_bytes::<archive::Manifest>(bytes);
    let _ = from_bytes::<folder::Manifest>(bytes);
    let config = RunConfig::parse(RUN_TOML).expect("a configuration");
    let model = ModelSpec::resolve(&config.model, 256).expect("a model");
    if let Ok(manifest) = serde_json::from_slice::<archive::Manifest>(bytes) {
        let sealed = to_text(&manifest).expect("what was read can be written");
        assert_eq!(from_bytes::<archive::Manifest>(sealed.as_bytes()).expect("it is sound"), manifest);
        assert!(manifest.pieces().len() <= manifest.contents().map(|content| content.pieces.len()).sum());
        if let Some(part) = manifest.part_of(&model) {
            assert!(part.parameter_count() <= model.parameter_count());
        }
    }
    if let Ok(manifest) = serde_json::from_slice::<folder::Manifest>(bytes) {
        let sealed = to_text(&manifest).expect("what was read can be written");
        assert_eq!(from_bytes::<folder::Manifest>(sealed.as_bytes()).expect("it is sound"), manifest);
        if let Some(part) = manifest.part_of(&model) {
            assert!(part.parameter_count() <= model.parameter_count());
        }
    }
});
