//! What the targets of `worker/fuzz` try: each takes any bytes, and panics where what they were decoded to cannot be.

pub use longhaul_data::fuzz::{idx, image, lines, webdataset};

/// What peers say, as requests and as all that is answered in postcard or as the head of a shard.
pub fn peer(bytes: &[u8]) {
    longhaul_data::fuzz::lent(bytes);
    longhaul_peer::fuzz::messages(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longhaul_tests::corpora::{Target, try_all};

    /// What `worker/fuzz/corpus` grew to, minimised.
    const CORPORA: &[u8] = include_bytes!("../fuzz/corpora.tar.zst");

    const TARGETS: &[Target] = &[
        ("idx", super::idx),
        ("image", super::image),
        ("lines", super::lines),
        ("peer", super::peer),
        ("webdataset", super::webdataset),
    ];

    #[test]
    fn what_fuzzing_kept_makes_no_decoder_panic() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
        try_all(&folder, CORPORA, TARGETS);
    }
}
