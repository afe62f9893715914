//! This worker's private state in a checkpoint: the device's vectors, the residuals, and the samples trained since the round.

use std::collections::BTreeMap;
use std::sync::Arc;

use longhaul_checkpoint::{AVERAGE, FIRST_MOMENTS, PARAMETERS, PrivateState, SECOND_MOMENTS, STEPS, UPDATES};
use longhaul_common::id::FragmentId;
use longhaul_proto::codec::ColumnUpdate;

use super::columns::{exact_frame, of_frame};
use crate::encode::error_feedback::ErrorFeedback;
use crate::message::{DeviceState, SelectionState};

const FACTORS: &str = "factors";
const ERROR: &str = "error";
const LOSS_HISTORY: &str = "loss_history";
const SAMPLE_LOSSES: &str = "sample_losses";
const SAMPLE_EPOCHS: &str = "sample_epochs";
const CARRY: &str = "carry";
const RESIDUAL: &str = "residual.";
const VELOCITY: &str = "velocity.";
const OWNER_RESIDUAL: &str = "owner_residual.";
const COLUMNS: &str = "columns.";
const CARRIED_COLUMNS: &str = "carried_columns.";
const OUTER_MOMENTUM: &str = "outer_momentum";
const SELECTED: &str = "selected";

/// A worker's updates, own or taken over, that are in no result yet.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct UnsentUpdates {
    /// Unsent values of the fragments that it uploads.
    pub memories: BTreeMap<FragmentId, ErrorFeedback>,
    /// Residuals of the fragments that it owns.
    pub owner_residuals: BTreeMap<FragmentId, Vec<f32>>,
    /// Slices in no result yet, part of the next contribution.
    pub carry: Option<Vec<f32>>,
    /// Unsent updates of columns.
    pub columns: BTreeMap<FragmentId, ColumnUpdate>,
    /// Updates of columns in no result yet.
    pub carried_columns: BTreeMap<FragmentId, ColumnUpdate>,
}

/// A worker's unique state.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Saved {
    /// Device's state.
    pub state: DeviceState,
    /// Unsent updates.
    pub kept: UnsentUpdates,
    /// Stream positions trained on since the checkpoint's last round, by step.
    pub trained: Vec<Vec<u64>>,
}

impl Saved {
    /// Keeps the part usable by another worker: the device's state. Unsent updates remain with their owner.
    #[must_use]
    pub fn into_common(self) -> Self {
        let selection = SelectionState::default();
        Self { state: DeviceState { error: Vec::new(), selection, ..self.state }, ..Self::default() }
    }

    /// The same with these parameters.
    #[must_use]
    pub fn into_common_at(self, parameters: &[f32]) -> Self {
        let mut common = self.into_common();
        common.state.parameters = parameters.to_vec();
        common
    }

    /// Converts to the checkpoint's form.
    #[must_use]
    pub fn into_private(self) -> PrivateState {
        let DeviceState { parameters, first_moments, second_moments, updates, factors, error, selection } =
            self.state;
        let SelectionState { history, losses, epochs, selected } = selection;
        let named = [
            (PARAMETERS, parameters),
            (FIRST_MOMENTS, first_moments),
            (SECOND_MOMENTS, second_moments),
            (FACTORS, factors),
            (ERROR, error),
        ];
        let mut vectors: BTreeMap<String, Arc<[f32]>> =
            named.into_iter().map(|(name, values)| (name.to_owned(), values.into())).collect();
        let of_samples = [(LOSS_HISTORY, history), (SAMPLE_LOSSES, losses), (SAMPLE_EPOCHS, epochs)];
        let of_samples = of_samples.into_iter().filter(|(_, values)| !values.is_empty());
        vectors.extend(of_samples.map(|(name, values)| (name.to_owned(), values.into())));
        vectors.extend(self.kept.carry.map(|values| (CARRY.to_owned(), values.into())));
        for (of, ErrorFeedback { residual, velocity }) in self.kept.memories {
            vectors.insert(format!("{RESIDUAL}{}", of.0), residual.into());
            if !velocity.is_empty() {
                vectors.insert(format!("{VELOCITY}{}", of.0), velocity.into());
            }
        }
        for (prefix, updates) in [(COLUMNS, self.kept.columns), (CARRIED_COLUMNS, self.kept.carried_columns)]
        {
            let words = updates.iter().filter_map(|(of, update)| Some((of, words_of(update)?)));
            vectors.extend(words.map(|(of, words)| (format!("{prefix}{}", of.0), words.into())));
        }
        let residuals = self.kept.owner_residuals.into_iter();
        vectors.extend(residuals.map(|(of, values)| (format!("{OWNER_RESIDUAL}{}", of.0), values.into())));
        let mut counters =
            BTreeMap::from([(UPDATES.to_owned(), updates), (STEPS.to_owned(), self.trained.len() as u64)]);
        counters.extend((selected > 0).then(|| (SELECTED.to_owned(), u64::from(selected))));
        for (step, positions) in self.trained.iter().enumerate() {
            let named = positions.iter().enumerate();
            counters
                .extend(named.map(|(index, position)| (position_name(step as u64, index as u64), *position)));
        }
        PrivateState { vectors, counters }
    }

    /// Converts from the checkpoint's form; `None` if a vector is missing.
    #[must_use]
    pub fn from_private(private: &PrivateState) -> Option<Self> {
        let vector = |name: &str| private.vectors.get(name).map(|values| values.to_vec());
        let state = DeviceState {
            parameters: vector(PARAMETERS)?,
            first_moments: vector(FIRST_MOMENTS)?,
            second_moments: vector(SECOND_MOMENTS)?,
            updates: *private.counters.get(UPDATES)?,
            factors: vector(FACTORS).unwrap_or_default(),
            error: vector(ERROR).unwrap_or_default(),
            selection: SelectionState {
                history: vector(LOSS_HISTORY).unwrap_or_default(),
                losses: vector(SAMPLE_LOSSES).unwrap_or_default(),
                epochs: vector(SAMPLE_EPOCHS).unwrap_or_default(),
                selected: private
                    .counters
                    .get(SELECTED)
                    .map_or(0, |count| u32::try_from(*count).unwrap_or(u32::MAX)),
            },
        };
        let by_fragment = |prefix| -> BTreeMap<FragmentId, Vec<f32>> {
            let of = |(name, values): (&String, &Arc<[f32]>)| {
                Some((FragmentId(name.strip_prefix(prefix)?.parse().ok()?), values.to_vec()))
            };
            private.vectors.iter().filter_map(of).collect()
        };
        let columns = |prefix| -> BTreeMap<FragmentId, ColumnUpdate> {
            let updates = by_fragment(prefix).into_iter();
            updates.filter_map(|(of, words)| Some((of, columns_of(&words)?))).collect()
        };
        let mut velocities = by_fragment(VELOCITY);
        let residuals = by_fragment(RESIDUAL).into_iter();
        let memories = residuals.map(|(of, residual)| {
            (of, ErrorFeedback { residual, velocity: velocities.remove(&of).unwrap_or_default() })
        });
        let kept = UnsentUpdates {
            memories: memories.collect(),
            owner_residuals: by_fragment(OWNER_RESIDUAL),
            carry: vector(CARRY),
            columns: columns(COLUMNS),
            carried_columns: columns(CARRIED_COLUMNS),
        };
        let positions_of = |step| {
            (0..).map_while(|index| private.counters.get(&position_name(step, index)).copied()).collect()
        };
        let steps = *private.counters.get(STEPS)?;
        let trained = (0..steps.min(private.counters.len() as u64)).map(positions_of).collect();
        Some(Self { state, kept, trained })
    }
}

/// Returns the shared vectors of a checkpoint other than the parameters.
pub fn shared_of(
    momentum: &[f32],
    frozen_second_moments: &[f32],
    average: &[f32],
) -> BTreeMap<String, Arc<[f32]>> {
    let named = [(OUTER_MOMENTUM, momentum), (SECOND_MOMENTS, frozen_second_moments), (AVERAGE, average)];
    named
        .into_iter()
        .filter(|(_, values)| !values.is_empty())
        .map(|(name, values)| (name.to_owned(), values.into()))
        .collect()
}

/// Returns the frozen second moment in a checkpoint, if present.
pub fn second_moments_in(shared: &BTreeMap<String, Arc<[f32]>>) -> Option<Vec<f32>> {
    shared.get(SECOND_MOMENTS).map(|values| values.to_vec())
}

/// Returns the moving average of the weights in a checkpoint, if present.
pub fn average_in(shared: &BTreeMap<String, Arc<[f32]>>) -> Option<Vec<f32>> {
    shared.get(AVERAGE).map(|values| values.to_vec())
}

/// Returns the outer momentum in a checkpoint; empty if absent.
pub fn momentum_in(shared: &BTreeMap<String, Arc<[f32]>>) -> Vec<f32> {
    shared.get(OUTER_MOMENTUM).map(|values| values.to_vec()).unwrap_or_default()
}

/// Packs an update of columns into a vector: the length of its frame, and the frame's bytes. `None` if it is not finite, and so useless.
fn words_of(update: &ColumnUpdate) -> Option<Vec<f32>> {
    let mut frame = exact_frame(update).ok()?;
    let bytes = u32::try_from(frame.len()).ok()?;
    frame.resize(frame.len().next_multiple_of(4), 0);
    let words = frame.as_chunks().0.iter().map(|word| f32::from_bits(u32::from_le_bytes(*word)));
    Some([f32::from_bits(bytes)].into_iter().chain(words).collect())
}

/// Unpacks such a vector; `None` if invalid.
fn columns_of(words: &[f32]) -> Option<ColumnUpdate> {
    /// Position of the fragment's length in a frame.
    const LEN: std::ops::Range<usize> = 4..8;
    let (bytes, words) = words.split_first()?;
    let mut frame: Vec<u8> = words.iter().flat_map(|word| word.to_bits().to_le_bytes()).collect();
    frame.truncate(bytes.to_bits() as usize);
    let len = u32::from_le_bytes(frame.get(LEN)?.try_into().ok()?);
    of_frame(&frame, len as usize)
}

fn position_name(step: u64, index: u64) -> String {
    format!("trained.{step}.{index}")
}

#[cfg(test)]
mod tests {
    use longhaul_proto::codec::{ColumnPart, MatrixStretch};

    use super::*;

    /// Three values outside, and two columns of a matrix [in, out] of three rows and four columns.
    fn columns() -> ColumnUpdate {
        let stretch = MatrixStretch { start: 3, len: 12, offset: 0, columns: 4, rows: 3, by_column: false };
        let parts = vec![ColumnPart { stretch, columns: vec![0, 2] }];
        ColumnUpdate::new(15, parts, (0..9).map(|at| at as f32 - 3.5).collect()).unwrap()
    }

    #[test]
    fn what_is_saved_is_what_comes_back() {
        let saved = Saved {
            state: DeviceState {
                parameters: vec![1.0, 2.0],
                first_moments: vec![3.0, 4.0],
                second_moments: vec![5.0, 6.0],
                updates: 7,
                factors: vec![8.0, 9.0],
                error: vec![1.5, 2.5],
                selection: SelectionState {
                    history: vec![2.0, 1.0, 0.5],
                    losses: vec![1.25],
                    epochs: vec![f32::from_bits(3)],
                    selected: 11,
                },
            },
            kept: UnsentUpdates {
                memories: BTreeMap::from([
                    (FragmentId(3), ErrorFeedback { residual: vec![0.5], velocity: Vec::new() }),
                    (FragmentId(4), ErrorFeedback { residual: vec![1.5], velocity: vec![2.5] }),
                ]),
                owner_residuals: BTreeMap::from([(FragmentId(1), vec![-0.5])]),
                carry: Some(vec![0.25, 0.0]),
                columns: BTreeMap::from([(FragmentId(2), columns())]),
                carried_columns: BTreeMap::from([(FragmentId(7), columns().scaled(0.5))]),
            },
            trained: vec![vec![9, 8], vec![]],
        };
        let mut private = saved.clone().into_private();
        assert_eq!(Saved::from_private(&private), Some(saved));
        private.vectors.remove(SECOND_MOMENTS);
        assert_eq!(Saved::from_private(&private), None);
    }
}
