//! Text, JSON lines, tables and tokens, compressed or not.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    longhaul_worker::fuzz::lines(bytes);
});
