//! The targets of `fuzz`, on a stable compiler, with what fuzzing has kept of their inputs.
#![allow(clippy::unwrap_used, reason = "a test")]

use std::collections::BTreeMap;
use std::io::Read;
use std::panic::catch_unwind;

/// The targets name the crate by which libFuzzer calls them. Here it is this one, in which [`fuzz_target`] makes each a function.
extern crate self as libfuzzer_sys;

/// What `fuzz/corpus` grew to, minimised: a folder for each target, a file for each input.
const CORPORA: &[u8] = include_bytes!("../../fuzz/corpora.tar.zst");

/// All targets, as modules, and by their names.
macro_rules! targets {
    ($($name:ident $path:literal)*) => {
        $(#[path = $path] #[allow(unused_attributes, reason = "an executable of its own has no main")] mod $name;)*

        const TARGETS: &[(&str, fn(&[u8]))] = &[$((stringify!($name), $name::try_with)),*];
    };
}

targets! {
    codec "../../fuzz/fuzz_targets/codec.rs"
    control "../../fuzz/fuzz_targets/control.rs"
    frame "../../fuzz/fuzz_targets/frame.rs"
    manifest "../../fuzz/fuzz_targets/manifest.rs"
    masked "../../fuzz/fuzz_targets/masked.rs"
    result "../../fuzz/fuzz_targets/result.rs"
    run_toml "../../fuzz/fuzz_targets/run_toml.rs"
    token "../../fuzz/fuzz_targets/token.rs"
    topology "../../fuzz/fuzz_targets/topology.rs"
}

#[test]
fn what_fuzzing_kept_makes_no_decoder_panic() {
    let mut archive = tar::Archive::new(zstd::Decoder::new(CORPORA).unwrap());
    let mut tried = BTreeMap::new();
    for entry in archive.entries().unwrap() {
        let mut entry = entry.unwrap();
        if !entry.header().entry_type().is_file() {
            continue;
        }
        let path = entry.path().unwrap().display().to_string();
        let mut bytes = Vec::new();
        entry.read_to_end(&mut bytes).unwrap();
        let of = |(name, _): &&(&str, fn(&[u8]))| {
            path.strip_prefix(*name).is_some_and(|rest| rest.starts_with('/'))
        };
        let (name, target) = TARGETS.iter().find(of).unwrap_or_else(|| panic!("{path} is of no target"));
        assert!(catch_unwind(|| target(&bytes)).is_ok(), "{path}: see above");
        *tried.entry(*name).or_insert(0) += 1;
    }
    assert_eq!(tried.len(), TARGETS.len(), "{tried:?}");
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
