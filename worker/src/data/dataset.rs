//! The samples of a run.

use std::ops::Range;
use std::path::Path;

use longhaul_common::config::DataConfig;
use longhaul_common::sampler::sample_at;

use super::shard::TokenShard;
use super::{Batch, DataError, Tokenizer};

/// A text as samples: sample i is the T tokens from i·T on, and the one after them as the last target. The end of the text is
/// held out for validation.
#[derive(Debug)]
pub struct Dataset {
    shard: TokenShard,
    length: usize,
    training_tokens: usize,
}

impl Dataset {
    /// The data set of the text at `path`, whose tokens are kept in the folder `cache`.
    ///
    /// # Errors
    /// [`DataError`] names the file and what to do.
    pub fn open(
        config: &DataConfig,
        path: &Path,
        tokenizer: &Tokenizer,
        cache: &Path,
    ) -> Result<Self, DataError> {
        let shard = TokenShard::open(path, tokenizer, cache)?;
        let length = config.sequence_length as usize;
        let held_out = (shard.len() as f64 * config.validation_share) as usize;
        let training_tokens = shard.len() - held_out;
        if training_tokens < length + 1 {
            return Err(DataError::TooShort {
                path: path.to_owned(),
                tokens: shard.len() as u64,
                training: training_tokens as u64,
                needed: length as u64 + 1,
            });
        }
        Ok(Self { shard, length, training_tokens })
    }

    /// Samples for training, at least one.
    #[must_use]
    pub fn samples(&self) -> u64 {
        ((self.training_tokens - 1) / self.length) as u64
    }

    /// Names the samples: equal where text, tokenizer, sequence length and validation share are.
    #[must_use]
    pub fn data_hash(&self) -> [u8; 32] {
        let mut hasher = blake3::Hasher::new();
        hasher.update(self.shard.hash());
        hasher.update(&(self.training_tokens as u64).to_le_bytes());
        hasher.update(&(self.length as u64).to_le_bytes());
        *hasher.finalize().as_bytes()
    }

    /// The samples at these positions of the run's stream: see [`sample_at`].
    #[must_use]
    pub fn batch(&self, positions: impl IntoIterator<Item = u64>, seed: u64) -> Batch {
        let mut batch = Batch::new(self.length);
        for position in positions {
            let sample = sample_at(seed, self.samples(), position) as usize;
            batch.push(self.shard.tokens(self.window(0, sample)));
        }
        batch
    }

    /// Up to `batches` batches of `sequences` held-out sequences, spread evenly; the same at each call. None when less than a
    /// sequence is held out.
    #[must_use]
    pub fn validation(&self, batches: usize, sequences: usize) -> Vec<Batch> {
        let held_out = self.shard.len() - self.training_tokens;
        let there = held_out.saturating_sub(1) / self.length;
        let wanted = (batches * sequences).min(there);
        let windows: Vec<usize> = (0..wanted).map(|i| i * there / wanted).collect();
        windows
            .chunks(sequences.max(1))
            .map(|windows| {
                let mut batch = Batch::new(self.length);
                for &window in windows {
                    batch.push(self.shard.tokens(self.window(self.training_tokens, window)));
                }
                batch
            })
            .collect()
    }

    /// T + 1 tokens.
    fn window(&self, from: usize, index: usize) -> Range<usize> {
        let start = from + index * self.length;
        start..start + self.length + 1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dataset(text: &str, sequence_length: u32, validation_share: f64) -> Result<Dataset, DataError> {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("text.txt");
        std::fs::write(&path, text).unwrap();
        let tokenizer = DataConfig::BYTES.to_owned();
        let config = DataConfig { path: path.clone(), tokenizer, sequence_length, validation_share };
        Dataset::open(&config, &path, &Tokenizer::Bytes, &folder.path().join("cache"))
    }

    fn alphabet(len: usize) -> String {
        ('a'..='z').cycle().take(len).collect()
    }

    #[test]
    fn an_epoch_holds_each_sample_once() {
        let data = dataset(&alphabet(101), 10, 0.0).unwrap();
        assert_eq!(data.samples(), 10);
        for epoch in 0..3 {
            let all = data.batch(epoch * 10..(epoch + 1) * 10, 7);
            assert_eq!((all.sequences(), all.tokens()), (10, 100));
            let mut ordered: Vec<Batch> = (0..10).map(|at| data.batch([epoch * 10 + at], 7)).collect();
            ordered.sort_by_key(|batch| format!("{batch:?}"));
            ordered.dedup();
            assert_eq!(ordered.len(), 10);
        }
    }

    #[test]
    fn the_end_of_the_text_is_held_out() {
        let data = dataset(&(alphabet(80) + &"0123456789".repeat(2)), 5, 0.2).unwrap();
        assert_eq!(data.samples(), 15);
        let training = data.batch(0..15, 1);
        let digit = |token: u32| (48..58).contains(&token);
        let rows = |batch: &Batch| -> Vec<u32> {
            let micro = batch.micro_batches(100).next().unwrap().to_tensor(tch::Device::Cpu).unwrap();
            Vec::<i64>::try_from(micro.view(-1)).unwrap().into_iter().map(|t| t as u32).collect()
        };
        assert!(rows(&training).into_iter().all(|token| !digit(token)));
        let held_out = data.validation(4, 2);
        assert_eq!(held_out.iter().map(Batch::sequences).collect::<Vec<_>>(), [2, 1]);
        assert!(held_out.iter().flat_map(rows).all(digit));
        assert_eq!(rows(&held_out[0])[..6], [48, 49, 50, 51, 52, 53]);
    }

    #[test]
    fn the_hash_tells_texts_and_cuts_apart() {
        let hash = |text: &str, length, share| dataset(text, length, share).unwrap().data_hash();
        let base = hash(&alphabet(200), 10, 0.1);
        assert_eq!(base, hash(&alphabet(200), 10, 0.1));
        assert!(
            ![hash(&alphabet(199), 10, 0.1), hash(&alphabet(200), 11, 0.1), hash(&alphabet(200), 10, 0.2)]
                .contains(&base)
        );
    }

    #[test]
    fn an_empty_a_short_and_a_missing_text_are_refused_with_a_remedy() {
        let empty = dataset("", 10, 0.05).unwrap_err().to_string();
        assert!(empty.contains("has 0 tokens") && empty.contains("at least 11"), "{empty}");
        let short = dataset(&alphabet(11), 10, 0.5).unwrap_err().to_string();
        assert!(short.contains("has 11 tokens, of which 6 are for training"), "{short}");
        let config = DataConfig {
            path: "gone".into(),
            tokenizer: "bytes".into(),
            sequence_length: 1,
            validation_share: 0.0,
        };
        let folder = tempfile::tempdir().unwrap();
        let gone = Dataset::open(&config, Path::new("gone.txt"), &Tokenizer::Bytes, folder.path());
        let message = gone.unwrap_err().to_string();
        assert!(message.starts_with("open gone.txt:") && message.contains("--data"), "{message}");
    }
}
