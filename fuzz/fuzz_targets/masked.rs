//! A masked contribution.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_proto::masking::add_masked;

fuzz_target!(|bytes: &[u8]| {
    let mut sum = [7; 4];
    match add_masked(bytes, &mut sum) {
        Ok(()) => assert_eq!(bytes.len(), 8 + 4 * sum.len()),
        Err(_) => assert_eq!(sum, [7; 4]),
    }
});
