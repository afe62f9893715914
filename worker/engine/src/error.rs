//! What can go wrong while computing.

use tch::TchError;

use longhaul_collective::CollectiveError;

/// A failure of the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// libtorch's own words, of which the first line says what happened and the rest is a trace.
    #[error("libtorch: {}", .0.to_string().lines().next().unwrap_or_default())]
    Torch(#[from] TchError),
    /// A vector of another model.
    #[error("a vector of {given} values does not fit a model of {expected} parameters")]
    Length {
        /// Its length.
        given: usize,
        /// The model's.
        expected: usize,
    },
    /// A device that cannot be used.
    #[error("device `{name}`: {reason}")]
    Device {
        /// As the user wrote it.
        name: String,
        /// What is wrong, and what is there.
        reason: String,
    },
    /// A second moment that is to be used as it is, and was never made.
    #[error("AdamW's second moment is to be frozen, but there is none: it is learnt in the warm-up")]
    NothingFrozen,
    /// Something that takes the whole model, of which only a part is here.
    #[error("only a part of the model is here")]
    Part,
    /// A part of the model that is not the one that its place in the pipeline computes.
    #[error(
        "these blocks, in {chunks} chunks, are not for place {rank} of a pipeline of {ranks} places with {expected} chunks each"
    )]
    Place {
        /// Chunks that are here.
        chunks: usize,
        /// The place.
        rank: u32,
        /// Places.
        ranks: u32,
        /// Chunks that each has.
        expected: u32,
    },
    /// A share of the model that is not that of its place in the tensor group.
    #[error("this is share {index} of {ways} of the model, and not for this place in this tensor group")]
    Share {
        /// Which share is here.
        index: u32,
        /// Of how many.
        ways: u32,
    },
    /// A share of a part of the model without those that have the others.
    #[error("this is a share of a part of the model, which joins its tensor group before the pipeline")]
    NoGroup,
    /// The members of a tensor group cannot sum any more.
    #[error("the tensor group is interrupted: {0}")]
    Group(#[source] CollectiveError),
    /// Members of a tensor group whose replicated parameters part.
    #[error(
        "member {index} of the tensor group has another gradient of what all members hold: they must compute alike, with the same batches, release, kind of \
         device and number of threads"
    )]
    Apart {
        /// The first that has another one than member 0.
        index: usize,
    },
    /// Numbers that cannot be handed on.
    #[error(
        "what is handed on between parts of the model is not finite: training diverged; a lower train.learning_rate, a longer train.warmup_steps or a smaller \
         train.gradient_clip may help"
    )]
    NotFinite,
    /// The others of the pipeline cannot be heard any more.
    #[error("the pipeline is interrupted: {0}")]
    Interrupted(String),
    /// What classifies images continues no text.
    #[error("a classifier of images continues no text: give a checkpoint of a language model")]
    NoText,
    /// Text cannot be continued from nothing.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A token that the model does not know: on a GPU, libtorch would end all that the process does there.
    #[error(
        "the prompt has token {token}, and the model's vocabulary has {vocabulary}: it is of another tokenizer"
    )]
    Token {
        /// The first such token.
        token: u32,
        /// How many there are, from 0.
        vocabulary: u32,
    },
}

impl EngineError {
    /// Whether it is that those that it computes with cannot be heard any more, so that to join again may help.
    #[must_use]
    pub fn is_of_others(&self) -> bool {
        matches!(self, Self::Interrupted(_) | Self::Group(_))
    }
}
