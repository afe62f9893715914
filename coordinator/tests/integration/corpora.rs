//! The targets of `fuzz`, on a stable compiler, with what fuzzing has kept of their inputs.

use std::path::Path;

use longhaul_tests::corpora::{Target, try_all};

/// What `fuzz/corpus` grew to, minimised.
const CORPORA: &[u8] = include_bytes!("../../../fuzz/corpora.tar.zst");

/// All targets, as modules, and by their names.
macro_rules! targets {
    ($($name:ident $path:literal)*) => {
        $(#[path = $path] #[allow(unused_attributes, reason = "an executable of its own has no main")] mod $name;)*

        const TARGETS: &[Target] = &[$((stringify!($name), $name::try_with)),*];
    };
}

targets! {
    codec "../../../fuzz/fuzz_targets/codec.rs"
    control "../../../fuzz/fuzz_targets/control.rs"
    frame "../../../fuzz/fuzz_targets/frame.rs"
    manifest "../../../fuzz/fuzz_targets/manifest.rs"
    masked "../../../fuzz/fuzz_targets/masked.rs"
    result "../../../fuzz/fuzz_targets/result.rs"
    run_toml "../../../fuzz/fuzz_targets/run_toml.rs"
    token "../../../fuzz/fuzz_targets/token.rs"
    topology "../../../fuzz/fuzz_targets/topology.rs"
}

#[test]
fn what_fuzzing_kept_makes_no_decoder_panic() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/fuzz_targets");
    try_all(&folder, CORPORA, TARGETS);
}

/// After the modules that use it, which name it by its path.
#[macro_export]
macro_rules! fuzz_target {
    (|$bytes:ident: &[u8]| $body:block) => {
        pub fn try_with($bytes: &[u8]) $body
    };
    (|$text:ident: &str| $body:block) => {
        pub fn try_with(bytes: &[u8]) {
            if let Ok($text) = str::from_utf8(bytes) $body
        }
    };
}
