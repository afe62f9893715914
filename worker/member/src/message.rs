//! Messages between the synchroniser and the device thread.

use std::time::Duration;

use longhaul_checkpoint::Companions;
use longhaul_common::id::{Generation, Round, WorkerId};
use longhaul_common::model::{Evaluation, ModelSpec};
use longhaul_common::plan::Member;
use longhaul_proto::codec::ColumnGradient;
use longhaul_proto::control::message::{EvaluationData, Hash, TaskScore};

use super::sparse_ranges::SparseRanges;

/// Message from the synchroniser to the device.
#[derive(Debug)]
pub enum ToDevice {
    /// Builds this part of the model in place of the previous one; answered by [`FromDevice::Prepared`].
    Build {
        /// Part.
        rank: u32,
    },
    /// Starts or restarts training at this point.
    Enter(Box<Enter>),
    /// Result of the round of the device's last contribution.
    Apply {
        /// Round.
        round: Round,
        /// Update to apply.
        update: RoundUpdate,
        /// Contributions to take back first, with low-rank gradients.
        put_back: Vec<PutBack>,
    },
    /// Copies the whole state after the last applied round; answered by [`FromDevice::State`].
    Export,
}

/// A part of a contribution that reached no result (low-rank gradients, whose residual the device keeps).
#[derive(Clone, Debug, PartialEq)]
pub struct PutBack {
    /// Exchange within its step; `None`: a gradient of the warm-up.
    pub exchange: Option<u32>,
    /// Index of its first value in the contribution.
    pub start: usize,
    /// Values.
    pub values: Vec<f32>,
}

/// Effect of a round's result on a device.
#[derive(Clone, Debug, PartialEq)]
pub enum RoundUpdate {
    /// Mean of the contributions, one value per parameter, for a step common to all members.
    Mean(Vec<f32>),
    /// Change of some stretches of the local parameters.
    Parameters(ParameterChange),
}

/// The change of some stretches of the local parameters: θ ← kept·θ + values.
#[derive(Clone, Debug, PartialEq)]
pub struct ParameterChange {
    /// Factor of the local values, from 0 to 1.
    pub kept: f32,
    /// Addition.
    pub values: SparseRanges,
}

/// Starting point of the device.
#[derive(Debug)]
pub struct Enter {
    /// Barrier epoch of this entry.
    pub epoch: u64,
    /// Place in a replica of several workers, on the first entry.
    pub place: Option<Box<ReplicaPosition>>,
    /// First round to compute.
    pub round: Round,
    /// State to load first.
    pub load: Load,
    /// Contributions to take back first, with low-rank gradients.
    pub put_back: Vec<PutBack>,
    /// Means of rounds up to `round` to apply after loading, in order (only with gradients). The last one is answered with [`FromDevice::Applied`].
    pub replay: Vec<(Round, Vec<f32>)>,
}

/// A worker's place in its replica. The engine joins the group first.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaPosition {
    /// Generation in which the replica was formed.
    pub session: Generation,
    /// Workers with the same layers, by their share of them, including this one; empty if each has all of its layers.
    pub group: Vec<Member>,
    /// Workers with the other parts, by stage: the same index of each group, if groups exist. Empty without stages.
    pub pipeline: Vec<WorkerId>,
    /// Stage of this worker.
    pub stage: u32,
    /// The replica's first worker, to which its samples are assigned.
    pub first: WorkerId,
}

/// State to load before a start.
#[derive(Debug)]
pub enum Load {
    /// Nothing: the device's state is right.
    Nothing,
    /// These parameters, with the optimiser's state unchanged.
    Parameters(Vec<f32>),
    /// Everything.
    All(DeviceState),
    /// A checkpoint's private state: its steps into the round, if the timeline still assigns the same samples, else these parameters and the round from its
    /// start.
    Private {
        /// Saved state.
        state: DeviceState,
        /// Synchronised parameters of the checkpoint.
        synchronised: Vec<f32>,
        /// Stream positions that `state` has trained on since the round began, by step.
        trained: Vec<Vec<u64>>,
    },
}

/// The device's whole state, on the host.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct DeviceState {
    /// θ, in the order of the model's specification.
    pub parameters: Vec<f32>,
    /// The optimiser's first moments, or momenta.
    pub first_moments: Vec<f32>,
    /// Its second moments; zero if it has none.
    pub second_moments: Vec<f32>,
    /// Optimiser steps behind the moments.
    pub updates: u64,
    /// Factors of low-rank gradients, shared by all members, `[P]`; empty without.
    pub factors: Vec<f32>,
    /// This worker's residual of low-rank gradients, `[P]`; empty without.
    pub error: Vec<f32>,
    /// State of sample selection; empty without.
    pub selection: SelectionState,
}

/// A worker's state of sample selection.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct SelectionState {
    /// Last losses, oldest first.
    pub history: Vec<f32>,
    /// Losses of samples in earlier epochs, by sample; empty without reuse.
    pub losses: Vec<f32>,
    /// Bit patterns of their epochs, counted from 1; 0: none.
    pub epochs: Vec<f32>,
    /// Samples selected since the last contribution.
    pub selected: u32,
}

/// Message from the device to the synchroniser.
#[derive(Debug)]
pub enum FromDevice {
    /// The model is built and the data are ready.
    Prepared(Box<Prepared>),
    /// The barrier let this round begin.
    Begun(Round),
    /// A final part of the current round's contribution.
    Finished(FinishedPart),
    /// End of a round.
    Contribute(LocalUpdate),
    /// A round's result is on the device.
    Applied(Applied),
    /// Scores of this worker's part of the questions.
    Scores {
        /// First round that the scored state does not contain.
        next_round: Round,
        /// Scores by kind.
        scores: Vec<TaskScore>,
    },
    /// Answers [`ToDevice::Export`].
    State {
        /// First round not contained.
        next_round: Round,
        /// State.
        state: DeviceState,
    },
    /// The run ends before this round, as answered by the barrier; everything before is applied.
    Ended {
        /// The round that was not begun.
        next_round: Round,
        /// Final state.
        state: DeviceState,
        /// Final evaluation on held-out samples.
        validation: Option<Evaluation>,
    },
    /// Contact with the other workers of the replica is lost.
    Interrupted(String),
    /// The device cannot continue.
    Failed(String),
}

/// A device's starting point.
#[derive(Debug)]
pub struct Prepared {
    /// Part of the model.
    pub rank: u32,
    /// Index of the computing GPU; `None`: the CPU computes.
    pub gpu: Option<usize>,
    /// Model to train.
    pub spec: ModelSpec,
    /// Files beside the weights, which checkpoints carry.
    pub companions: Companions,
    /// Parameters of the beginning: as drawn from the run's seed, or of the pretrained model.
    pub parameters: Vec<f32>,
    /// Samples of the training data.
    pub samples: u64,
    /// Hash over the training tokens.
    pub data_hash: Hash,
    /// Data that the model is evaluated on.
    pub evaluation: EvaluationData,
    /// Values of each exchange of a step with low-rank gradients.
    pub exchanges: Option<[usize; 2]>,
    /// Cores kept busy.
    pub cores: usize,
}

/// A part of a gradient that is final before the rest: whole fragments, repeated unchanged in the following [`LocalUpdate`].
#[derive(Debug)]
pub struct FinishedPart {
    /// Round.
    pub round: Round,
    /// Samples of the round.
    pub weight: u32,
    /// Index of its first value in the gradient.
    pub start: usize,
    /// Values.
    pub values: Vec<f32>,
}

/// A device's contribution to a round.
#[derive(Debug)]
pub struct LocalUpdate {
    /// Round.
    pub round: Round,
    /// With deltas: the due local parameters at the end of the round. With gradients: the gradient or momentum of its step.
    pub values: SparseRanges,
    /// In place of `values`, if gradients are of columns.
    pub columns: Option<ColumnGradient>,
    /// With momenta: the part that recurs in the next one, and so is not lost if this one comes too late. Otherwise empty.
    pub repeated: Vec<f32>,
    /// Samples trained on.
    pub weight: u32,
    /// Steps made in the round by this process.
    pub steps: u32,
    /// Time of their computation.
    pub compute: Duration,
    /// Mean training loss over the round, nats per token; `None` without samples.
    pub loss: Option<f32>,
    /// Root mean square over the round's steps of this worker's gradient norm before clipping, over the parts it holds; `None` without samples.
    pub gradient_norm: Option<f32>,
    /// Average number of idle cores during the steps of the warm-up.
    pub spare_cores: f32,
}

/// A round's result has reached the device.
#[derive(Debug)]
pub struct Applied {
    /// Round.
    pub round: Round,
    /// Evaluation on held-out samples, if this round is evaluated.
    pub validation: Option<Evaluation>,
    /// With gradients: the device's parameters afterwards, which must be equal everywhere.
    pub parameters: Option<Vec<f32>>,
    /// Whole state, if a checkpoint follows this round.
    pub state: Option<DeviceState>,
    /// Stream positions trained on since the end of the round, by step.
    pub trained: Vec<Vec<u64>>,
}
