//! Manifest of an archived checkpoint.

use std::collections::{BTreeMap, BTreeSet};

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::model::ModelSpec;
use serde::{Deserialize, Serialize};

use super::PIECE_BYTES_MAX;

/// A part of the model at a round: `round-000120.json`. All vectors are f32, little-endian.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Manifest {
    /// Run, in hexadecimal.
    pub run: String,
    /// First round not contained.
    pub next_round: Round,
    /// First step not contained.
    pub next_step: u64,
    /// Generation that wrote it; 0 in manifests of older releases.
    #[serde(default)]
    pub generation: Generation,
    /// Hash of the synchronised state, in hexadecimal.
    pub state_hash: String,
    /// Version of the worker that wrote it.
    pub software: String,
    /// Part of the model, from 0.
    pub rank: u32,
    /// Number of parts.
    pub parts: u32,
    /// Blocks, as starts and ends of chunks; `None`: all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub chunks: Option<Vec<(u32, u32)>>,
    /// Size of the tensor group and rank in it, from 0; `None`: each layer is complete.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub share: Option<(u32, u32)>,
    /// Model in the format of Hugging Face's `config.json`.
    pub model: String,
    /// Content of `tokenizer.json`, if any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tokenizer: Option<Content>,
    /// Content of other files beside the weights, by name: chat template, generation settings, the model's original `config.json`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub companions: BTreeMap<String, Content>,
    /// Parameters, in the order of [`ModelSpec::synchronised`].
    pub parameters: Content,
    /// Other replicated state, by name.
    pub shared: BTreeMap<String, Content>,
    /// State of one worker that had this part; `None`: omitted, as readers must not see it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub private: Option<Private>,
}

/// State local to one worker.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Private {
    /// Worker.
    pub worker: WorkerId,
    /// Numbers by name.
    pub counters: BTreeMap<String, u64>,
    /// Flat vectors by name.
    pub vectors: BTreeMap<String, Content>,
}

/// A byte string in pieces.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Content {
    /// Length.
    pub bytes: u64,
    /// Pieces in order.
    pub pieces: Vec<Piece>,
}

/// An object of the archive, named by its hash.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Piece {
    /// Length.
    pub bytes: u64,
    /// BLAKE3, in hexadecimal.
    pub blake3: String,
}

impl Manifest {
    /// Returns the part of the model that it covers; `None`: no possible part.
    #[must_use]
    pub fn part_of(&self, model: &ModelSpec) -> Option<ModelSpec> {
        crate::checkpoint::part_of(model, self.chunks.as_deref(), self.share)
    }

    /// Returns all contents.
    pub fn contents(&self) -> impl Iterator<Item = &Content> {
        let private = self.private.iter().flat_map(|private| private.vectors.values());
        self.tokenizer
            .iter()
            .chain(self.companions.values())
            .chain([&self.parameters])
            .chain(self.shared.values())
            .chain(private)
    }

    /// Returns each object once.
    #[must_use]
    pub fn pieces(&self) -> BTreeSet<&Piece> {
        self.contents().flat_map(|content| &content.pieces).collect()
    }

    /// Returns the reason to reject it, if any: a manifest must not make a reader allocate more than a piece,
    /// or look outside the archive.
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
