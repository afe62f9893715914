//! Entry points for the targets of `worker/fuzz`: each accepts any bytes and panics if a decoded value breaks an invariant.

pub use longhaul_data::fuzz::{idx, image, lines, webdataset};

/// Decodes messages of peers: requests, and answers in postcard or as a shard's header.
pub fn peer(bytes: &[u8]) {
    longhaul_data::fuzz::lent(bytes);
    longhaul_peer::fuzz::messages(bytes);
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use longhaul_tests::corpora::{Target, try_all};

    /// The minimised corpora of `worker/fuzz/corpus`.
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
