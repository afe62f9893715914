//! The model update type.

use multiversion::multiversion;

use super::ColumnUpdate;

/// A change of a fragment's parameters: computed by the engine, kept by error feedback, sent by the codec.
#[derive(Clone, Debug, PartialEq)]
pub enum Update {
    /// One value per parameter of the fragment.
    Dense(Vec<f32>),
    /// Values of some parameters; the others do not change.
    Sparse {
        /// Parameters in the fragment.
        len: u32,
        /// Indices of the changed parameters, ascending and below `len`.
        positions: Vec<u32>,
        /// Their values, in the order of `positions`.
        values: Vec<f32>,
    },
    /// Whole columns of matrices, and all values outside these matrices.
    Columns(ColumnUpdate),
}

impl Update {
    /// Returns the number of parameters in the fragment.
    pub fn len(&self) -> usize {
        match self {
            Self::Dense(values) => values.len(),
            Self::Sparse { len, .. } => *len as usize,
            Self::Columns(update) => update.len(),
        }
    }

    /// Returns the values that may differ from zero.
    pub fn values(&self) -> &[f32] {
        match self {
            Self::Dense(values) | Self::Sparse { values, .. } => values,
            Self::Columns(update) => update.values(),
        }
    }

    /// Whether the fragment has no parameters.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Adds `weight` times this update to `accumulator`, element by element: one multiplication and one
    /// addition each, never fused, so that every platform computes the same bits.
    ///
    /// # Panics
    /// If the accumulator's length is not [`Update::len`], or a position is not below it.
    pub fn add_scaled_to(&self, weight: f32, accumulator: &mut [f32]) {
        assert_eq!(accumulator.len(), self.len(), "the accumulator must have the fragment's length");
        match self {
            Self::Dense(values) => add_scaled(values, weight, accumulator),
            Self::Sparse { positions, values, .. } => {
                for (&position, &value) in positions.iter().zip(values) {
                    accumulator[position as usize] += weight * value;
                }
            }
            Self::Columns(update) => update.for_each(|at, value| accumulator[at] += weight * value),
        }
    }
}

/// `accumulator += weight · values`, without fused operations.
#[multiversion(targets = "simd")]
pub(super) fn add_scaled(values: &[f32], weight: f32, accumulator: &mut [f32]) {
    accumulator.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sparse_update_adds_what_its_dense_form_adds() {
        let sparse = Update::Sparse { len: 5, positions: vec![0, 3], values: vec![2.0, -4.0] };
        let dense = Update::Dense(vec![2.0, 0.0, 0.0, -4.0, 0.0]);
        let (mut a, mut b) = ([1.0; 5], [1.0; 5]);
        sparse.add_scaled_to(0.5, &mut a);
        dense.add_scaled_to(0.5, &mut b);
        assert_eq!(a, [2.0, 1.0, 1.0, -1.0, 1.0]);
        assert_eq!(a, b);
    }
}
