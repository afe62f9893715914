//! Entry points for fuzzing input other than records: data lent by peers, and images.

use longhaul_common::config::ImageConfig;

pub use super::records::fuzz::{idx, lines, webdataset};
use super::shard::{BLOCK_BYTES, Head};
use super::{Catalogue, image_sample};

/// Range of the hash in a shard's head, which covers the rest of the head.
const HASH: std::ops::Range<usize> = 32..64;

/// Parses any bytes as a catalogue, and as the head of a shard.
pub fn lent(bytes: &[u8]) {
    if let Ok(catalogue) = Catalogue::from_bytes(bytes) {
        let written = catalogue.to_bytes().expect("what was read can be written");
        assert_eq!(Catalogue::from_bytes(&written).expect("what was written can be read"), catalogue);
        assert!(catalogue.size().0 <= catalogue.shard_hashes().count() as u64);
        let _ = catalogue.fits(4);
    }
    head(bytes);
    if bytes.len() >= HASH.end {
        // Random damage fails the hash check; a malicious peer can pass it.
        let mut sealed = bytes.to_vec();
        let hash = blake3::hash(&[&bytes[..HASH.start], &bytes[HASH.end..]].concat());
        sealed[HASH].copy_from_slice(hash.as_bytes());
        head(&sealed);
    }
}

/// Checks that the blocks of a head are consecutive, as many as its hashes.
fn head(bytes: &[u8]) {
    let Some(head) = Head::parse(bytes) else { return };
    let blocks = (bytes.len() - HASH.end) / HASH.len();
    let mut end = 0;
    for block in 0..blocks {
        let place = head.place(block).expect("it has a hash");
        assert!(place.start == end && (1..=BLOCK_BYTES).contains(&place.len()));
        assert!(head.block_hash(block).is_some());
        end = place.end;
    }
    assert!(head.place(blocks).is_none() && head.block_hash(blocks).is_none());
    assert_eq!(head.file_bytes(), (bytes.len() + end) as u64);
}

/// Decodes any bytes as an image file.
pub fn image(bytes: &[u8]) {
    for channels in [1, 3] {
        let shape = ImageConfig { channels, height: 5, width: 7, classes: 3, shift: 0, flip: false };
        if let Ok(sample) = image_sample(bytes.to_vec(), 2, &shape) {
            assert!(sample.len() == channels as usize * 5 * 7 + 2 && sample.ends_with(&[2, 0]));
        }
    }
}
