//! A file with an image.
#![no_main]

use libfuzzer_sys::fuzz_target;

fuzz_target!(
    // A panic of a decoder is an error of the file, and must not end the process here either: one that is not caught still does.
    init: std::panic::set_hook(Box::new(|_| {})),
    |bytes: &[u8]| {
        longhaul_worker::fuzz::image(bytes);
    }
);
