//! A tar archive with images.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(|bytes: &[u8]| {
    longhaul_worker::fuzz::webdataset(bytes);
});
