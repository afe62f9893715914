//! The published result of a fragment.
#![no_main]

use bytes::Bytes;
use libfuzzer_sys::fuzz_target;
use longhaul_proto::round::FragmentResult;

fuzz_target!(|bytes: &[u8]| {
    if let Ok(result) = FragmentResult::decode(&Bytes::copy_from_slice(bytes)) {
        assert_eq!(result.encode(), bytes);
    }
});
