//! Images and labels in IDX files.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    longhaul_worker::fuzz::idx(bytes);
});
