//! Errors of computation.

use tch::TchError;

use longhaul_collective::CollectiveError;

/// A failure of the engine.
#[derive(Debug, thiserror::Error)]
pub enum EngineError {
    /// libtorch's own message, whose first line names the cause; the rest is a trace.
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
        /// Name as given by the user.
        name: String,
        /// Cause, and the present devices.
        reason: String,
    },
    /// A second moment is to be frozen before it was learnt.
    #[error("AdamW's second moment cannot be frozen before the warm-up has learnt it")]
    NothingFrozen,
    /// A rule that is made for AdamW's moments.
    #[error(
        "this strategy is made for AdamW, and the run has another optimiser: take train.optimiser = \"adamw\""
    )]
    OtherOptimiser,
    /// An update of whole matrices, of which only shares are here.
    #[error(
        "the optimiser needs whole matrices, and a member of a tensor group has parts of them: take train.optimiser = \"adamw\""
    )]
    SharedMatrices,
    /// An operation on the whole model, of which only a part is here.
    #[error("only a part of the model is here")]
    Part,
    /// A part of the model that does not fit its place in the pipeline.
    #[error(
        "these blocks, in {chunks} chunks, do not fit place {rank} of a pipeline of {ranks} places with {expected} chunks each"
    )]
    Place {
        /// Chunks here.
        chunks: usize,
        /// Place.
        rank: u32,
        /// Number of places.
        ranks: u32,
        /// Chunks of each.
        expected: u32,
    },
    /// A share of the model that does not fit its place in the tensor group.
    #[error("share {index} of {ways} of the model does not fit this place in this tensor group")]
    Share {
        /// Share here.
        index: u32,
        /// Number of shares.
        ways: u32,
    },
    /// A share of a part of the model without its group.
    #[error("a share of a part of the model must join its tensor group before the pipeline")]
    NoGroup,
    /// The members of a tensor group cannot sum any more.
    #[error("the tensor group is interrupted: {0}")]
    Group(#[source] CollectiveError),
    /// Members of a tensor group whose replicated parameters differ.
    #[error(
        "member {index} of the tensor group has a different gradient of replicated parameters: all members must have the same batches, release, kind of \
         device and number of threads"
    )]
    Apart {
        /// First member that differs from member 0.
        index: usize,
    },
    /// Numbers that must not be passed on.
    #[error(
        "a transfer between parts of the model is not finite: training diverged; a lower train.learning_rate, a longer train.warmup_steps or a smaller \
         train.gradient_clip may help"
    )]
    NotFinite,
    /// Contact with the other workers of the pipeline is lost.
    #[error("the pipeline is interrupted: {0}")]
    Interrupted(String),
    /// Classifiers of images and encoders do not continue text.
    #[error("this model does not continue text: give a checkpoint of a causal language model")]
    NoText,
    /// The model's output has no most probable token.
    #[error("the model's logits are not numbers: its weights are damaged, or too large for it")]
    NotANumber,
    /// Text cannot be continued from nothing.
    #[error("the prompt is empty")]
    EmptyPrompt,
    /// A sequence that cannot be scored.
    #[error(
        "{tokens} tokens cannot be scored from index {from} on by a model with a context of {context}: at most {} are, from index 1 on",
        context + 1
    )]
    Unscorable {
        /// Its tokens.
        tokens: usize,
        /// Index of the first scored one.
        from: usize,
        /// Tokens that the model sees at once.
        context: usize,
    },
    /// A token outside the vocabulary: on a GPU, libtorch would end the process.
    #[error(
        "the prompt has token {token}, outside the model's vocabulary of {vocabulary}: use the model's tokenizer"
    )]
    Token {
        /// First such token.
        token: u32,
        /// Size of the vocabulary, from 0.
        vocabulary: u32,
    },
}

impl EngineError {
    /// Reports whether contact with other workers is lost, so that joining again may help.
    #[must_use]
    pub fn is_of_others(&self) -> bool {
        matches!(self, Self::Interrupted(_) | Self::Group(_))
    }
}
