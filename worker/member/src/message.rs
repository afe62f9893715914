//! What the device thread is told, and what it answers.

use std::sync::Arc;
use std::time::Duration;

use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::model::{Evaluation, ModelSpec};
use longhaul_common::plan::Member;
use longhaul_proto::codec::ColumnGradient;
use longhaul_proto::control::message::Hash;

use super::sparse_ranges::SparseRanges;

/// From the synchroniser to the device.
#[derive(Debug)]
pub enum ToDevice {
    /// Build this part of the model, in place of what was built before; answered by [`FromDevice::Prepared`].
    Build {
        /// Which part.
        rank: u32,
    },
    /// Start training, or start anew, at this point.
    Enter(Box<Enter>),
    /// The result of the round that the device last contributed to.
    Apply {
        /// Which round.
        round: Round,
        /// What to do.
        update: RoundUpdate,
        /// What to take back before, with low-rank gradients.
        put_back: Vec<PutBack>,
    },
    /// Copy the whole state out, as it is after the last applied round, and answer [`FromDevice::State`].
    Export,
}

/// A part of a contribution that is in no result (low-rank gradients, whose residual the device keeps).
#[derive(Clone, Debug, PartialEq)]
pub struct PutBack {
    /// Which exchange of its step it was; none: it is of the warm-up, a gradient.
    pub exchange: Option<u32>,
    /// Index of its first value in the contribution.
    pub start: usize,
    /// The values.
    pub values: Vec<f32>,
}

/// What a round's result means for a device.
#[derive(Clone, Debug, PartialEq)]
pub enum RoundUpdate {
    /// The mean of what was contributed, one value for each parameter: a step that all members make alike.
    Mean(Vec<f32>),
    /// A change of some stretches of the local parameters, in order.
    Parameters(Vec<Part>),
}

/// A stretch of the local parameters, and what becomes of it: θ ← kept·θ + values.
#[derive(Clone, Debug, PartialEq)]
pub struct Part {
    /// Index of its first parameter.
    pub start: usize,
    /// What is left of the local values, from 0 to 1.
    pub kept: f32,
    /// What is added to that.
    pub values: Vec<f32>,
}

/// Where the device starts.
#[derive(Debug)]
pub struct Enter {
    /// The barrier's epoch that this entry belongs to.
    pub epoch: u64,
    /// Where a copy of the model is on several workers, and this is the first entry: with whom to compute.
    pub place: Option<Box<Place>>,
    /// The first round to compute.
    pub round: Round,
    /// What to load before.
    pub load: Load,
    /// What to take back before, with low-rank gradients.
    pub put_back: Vec<PutBack>,
    /// Means of rounds up to `round` that are to be applied after loading, in order (only with gradients). The last one is answered
    /// with [`FromDevice::Applied`].
    pub replay: Vec<(Round, Vec<f32>)>,
}

/// A worker's place in its copy of the model: what its engine joins, the group first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The generation in which the copy was formed.
    pub session: Generation,
    /// Those that have the same layers, by their share of them, this worker among them; empty where each has all of its layers.
    pub group: Vec<Member>,
    /// Those that have the other parts, by stage: where there are groups, the same index of each. Empty where there are no stages.
    pub pipeline: Vec<WorkerId>,
    /// The stage of this worker.
    pub stage: u32,
    /// To whom the samples of the copy are assigned: the first of its workers.
    pub first: WorkerId,
}

/// What to load before a start.
#[derive(Debug)]
pub enum Load {
    /// Nothing: what is on the device is right.
    Nothing,
    /// These parameters, with the optimiser's state as it is.
    Parameters(Vec<f32>),
    /// Everything.
    All(DeviceState),
    /// The private state of a checkpoint: the steps that it had made into the round, if the timeline still gives it the same samples,
    /// else these parameters and the round from its start.
    Private {
        /// The state as it was saved.
        state: DeviceState,
        /// The synchronised parameters of the checkpoint.
        synchronised: Vec<f32>,
        /// The stream positions that `state` has trained on since the round began, by step.
        trained: Vec<Vec<u64>>,
    },
}

/// All that the device knows, on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceState {
    /// θ, in the order of the model's specification.
    pub parameters: Vec<f32>,
    /// AdamW's first moments.
    pub first_moments: Vec<f32>,
    /// AdamW's second moments.
    pub second_moments: Vec<f32>,
    /// Optimiser steps behind the moments.
    pub updates: u64,
    /// The factors of low-rank gradients that all members share, `[P]`; empty where there are none.
    pub factors: Vec<f32>,
    /// What low-rank gradients have not sent, `[P]`; empty where there are none. This worker's own.
    pub error: Vec<f32>,
    /// What samples are selected by; empty where all are trained on.
    pub selection: SelectionState,
}

/// What a worker selects samples by.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelectionState {
    /// The last losses, oldest first.
    pub history: Vec<f32>,
    /// The losses of samples from epochs before, by sample; empty where none are used again.
    pub losses: Vec<f32>,
    /// Bit patterns of the epochs that they are of, counted from 1; 0: it has none.
    pub epochs: Vec<f32>,
    /// Samples selected since the last contribution.
    pub selected: u32,
}

/// From the device to the synchroniser.
#[derive(Debug)]
pub enum FromDevice {
    /// The model is built and the data are ready.
    Prepared(Prepared),
    /// The barrier let this round begin.
    Begun(Round),
    /// A part of what the round that is computed will contribute.
    Finished(FinishedPart),
    /// The end of a round.
    Contribute(LocalUpdate),
    /// A round's result is on the device.
    Applied(Applied),
    /// Answers [`ToDevice::Export`].
    State {
        /// The first round that is not in it.
        next_round: Round,
        /// The state.
        state: DeviceState,
    },
    /// The barrier answered that the run ends before this round; everything before is applied.
    Ended {
        /// The round that was not begun.
        next_round: Round,
        /// The state at the end.
        state: DeviceState,
        /// How good the model is on held-out samples at the end.
        validation: Option<Evaluation>,
    },
    /// The other workers of its copy of the model cannot be heard any more.
    Interrupted(String),
    /// The device cannot go on.
    Failed(String),
}

/// What a device starts from.
#[derive(Debug)]
pub struct Prepared {
    /// Which part of the model it is.
    pub rank: u32,
    /// The GPU that computes, by its index; none: the CPU does.
    pub gpu: Option<usize>,
    /// What is trained.
    pub spec: ModelSpec,
    /// The content of `tokenizer.json`, if there is one.
    pub tokenizer: Option<Arc<[u8]>>,
    /// Its parameters as drawn from the run's seed.
    pub parameters: Vec<f32>,
    /// Samples of the training data.
    pub samples: u64,
    /// Hash over the training tokens.
    pub data_hash: Hash,
    /// Values of each exchange of a step with low-rank gradients.
    pub exchanges: Option<[usize; 2]>,
    /// Cores that it keeps busy.
    pub cores: usize,
}

/// What is final of a gradient before the rest is: whole fragments, which are the same in the [`LocalUpdate`] that follows.
#[derive(Debug)]
pub struct FinishedPart {
    /// Which round.
    pub round: Round,
    /// Samples of the round.
    pub weight: u32,
    /// Index of its first value in the gradient.
    pub start: usize,
    /// The values.
    pub values: Vec<f32>,
}

/// What a device contributes to a round.
#[derive(Debug)]
pub struct LocalUpdate {
    /// Which round.
    pub round: Round,
    /// With deltas: the local parameters at the end of the round, as far as they are due; with gradients: the gradient or momentum of its step.
    pub values: SparseRanges,
    /// In place of `values`, where gradients are of columns.
    pub columns: Option<ColumnGradient>,
    /// With momenta: what of them is part of the next one as well, and so is not lost where this one comes too late. Empty with others.
    pub repeated: Vec<f32>,
    /// Samples trained on.
    pub weight: u32,
    /// Steps made in the round by this process.
    pub steps: u32,
    /// What they took to compute.
    pub compute: Duration,
    /// Mean training loss over the round, nats a token; none when this worker had no samples.
    pub loss: Option<f32>,
    /// Root mean square over the round's steps of the norm of this worker's gradient before clipping, as far as it has it; none when it had no samples.
    pub gradient_norm: Option<f32>,
    /// Cores that had nothing to do during the steps of the warm-up, on average.
    pub spare_cores: f32,
}

/// A round's result has reached the device.
#[derive(Debug)]
pub struct Applied {
    /// Which round.
    pub round: Round,
    /// How good the model is on held-out samples, when this round is evaluated.
    pub validation: Option<Evaluation>,
    /// With gradients: the parameters after it, which the device holds and which must be equal everywhere.
    pub parameters: Option<Vec<f32>>,
    /// Everything, when a checkpoint follows this round.
    pub state: Option<DeviceState>,
    /// The stream positions trained on since the end of the round, by step.
    pub trained: Vec<Vec<u64>>,
}
