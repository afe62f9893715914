//! A frame of the codec: what a peer contributes, or an owner publishes.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_proto::codec::{Decoder, Update};

/// Values of a fragment that is tried: two tiles, several chunks of the smaller sizes, as many codes of four bits as are entropy-coded side by side, and few enough for thousands of
/// tries a second.
const VALUES_MAX: usize = 1 << 13;
const LENGTH_AT: std::ops::Range<usize> = 4..8;

fuzz_target!(|frame: &[u8]| {
    let Some(length) = frame.get(LENGTH_AT).and_then(|bytes| bytes.try_into().ok()) else { return };
    // What the receiver expects is the fragment's length, which it knows; a frame that claims another is refused.
    let length = (u32::from_le_bytes(length) as usize).min(VALUES_MAX);
    let mut decoder = Decoder::new();
    let (mut added, mut decoded) = (vec![1.0; length], vec![1.0; length]);
    let add = decoder.decode_add(frame, length, 0.5, &mut added);
    match decoder.decode(frame, length) {
        Ok(update) => {
            assert_eq!(add, Ok(()));
            if let Update::Sparse { len, positions, values } = update {
                assert_eq!((*len as usize, positions.len()), (length, values.len()));
                assert!(positions.is_sorted_by(|a, b| a < b));
                assert!(positions.last().is_none_or(|last| (*last as usize) < length));
            }
            if let Update::Columns(update) = update {
                assert!(update.len() == length && update.values().len() <= length);
            }
            update.add_scaled_to(0.5, &mut decoded);
            assert!(added.iter().zip(&decoded).all(|(a, b)| a.to_bits() == b.to_bits()));
        }
        Err(error) => {
            assert_eq!(add, Err(error));
            assert_eq!(added, decoded);
        }
    }
});
