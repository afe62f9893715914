//! What peers ask, and what they say of data, states and checkpoints.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    longhaul_worker::fuzz::peer(bytes);
});
