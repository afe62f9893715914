//! What an archive says of a checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::model::ModelSpec;
use serde::{Deserialize, Serialize};

use super::PIECE_BYTES_MAX;

/// A part of the model at a round: `round-000120.json`. All vectors are f32 in little-endian order.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// In hexadecimal.
    pub run: String,
    /// The round that follows the ones it contains.
    pub next_round: Round,
    /// The step that follows.
    pub next_step: u64,
    /// The generation in which it was written; 0 in those of releases that did not say.
    #[serde(default)]
    pub generation: Generation,
    /// Hash of the synchronised state, in hexadecimal.
    pub state_hash: String,
    /// The version of the worker that wrote it.
    pub software: String,
    /// Which part of the model it is, from 0,
    pub rank: u32,
    /// of how many.
    pub parts: u32,
    /// Its blocks, as starts and ends of chunks; none: all of them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Vec<(u32, u32)>>,
    /// Where it is of a member of a tensor group: how many there are, and which it is, from 0. None: all of each layer is here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<(u32, u32)>,
    /// What the model is, in Hugging Face's words (`config.json`).
    pub model: String,
    /// The content of `tokenizer.json`, if there is one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Content>,
    /// In the order of [`ModelSpec::synchronised`].
    pub parameters: Content,
    /// What else is the same on all workers, by name.
    pub shared: BTreeMap<String, Content>,
    /// The state of one of the workers that had this part; none: it is nobody else's to see.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<Private>,
}

/// What a worker alone has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Private {
    /// Which worker.
    pub worker: WorkerId,
    /// Numbers by name.
    pub counters: BTreeMap<String, u64>,
    /// Flat vectors by name.
    pub vectors: BTreeMap<String, Content>,
}

/// A string of bytes, cut into pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Its length.
    pub bytes: u64,
    /// One after the other.
    pub pieces: Vec<Piece>,
}

/// An object of the archive, named by its hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Its length.
    pub bytes: u64,
    /// In hexadecimal.
    pub blake3: String,
}

impl Manifest {
    /// What of the whole model it is of; none: of nothing that there could be.
    #[must_use]
    pub fn part_of(&self, model: &ModelSpec) -> Option<ModelSpec> {
        crate::checkpoint::part_of(model, self.chunks.as_deref(), self.share)
    }

    /// All that it names.
    pub fn contents(&self) -> impl Iterator<Item = &Content> {
        let private = self.private.iter().flat_map(|private| private.vectors.values());
        self.tokenizer.iter().chain([&self.parameters]).chain(self.shared.values()).chain(private)
    }

    /// All objects that it names, each once.
    #[must_use]
    pub fn pieces(&self) -> BTreeSet<&Piece> {
        self.contents().flat_map(|content| &content.pieces).collect()
    }

    /// Why it cannot be one, if so: no document may make a reader take more memory than a piece has, or look for an object elsewhere.
    #[must_use]
    pub fn objection(&self) -> Option<String> {
        let is_hash = |text: &str| {
            text.len() == 64 && text.bytes().all(|byte| matches!(byte, b'0'..=b'9' | b'a'..=b'f'))
        };
        self.contents().find_map(|content| {
            let pieces = || content.pieces.iter();
            if let Some(odd) = pieces().find(|piece| !is_hash(&piece.blake3) || piece.bytes > PIECE_BYTES_MAX)
            {
                return Some(format!("it names a piece of {} bytes as {:?}", odd.bytes, odd.blake3));
            }
            let sum = pieces().try_fold(0_u64, |sum, piece| sum.checked_add(piece.bytes));
            (sum != Some(content.bytes)).then(|| "its pieces are not as long as what they make up".to_owned())
        })
    }
}
