//! Gradients of weights, as the columns that a backward pass has computed.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{ColumnPart, ColumnUpdate, MatrixStretch};

/// A gradient of all parameters, with only some columns of its matrices.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnGradient {
    /// Parameters.
    pub len: usize,
    /// Parameters outside these matrices: stretches, ascending, with their values.
    pub rest: Vec<(usize, Vec<f32>)>,
    /// Matrices, ascending.
    pub weights: Vec<WeightColumns>,
}

/// Columns of the gradient of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightColumns {
    /// Place of the matrix among the parameters.
    pub place: Range<usize>,
    /// Columns of the matrix.
    pub columns: u32,
    /// Values of a column.
    pub rows: u32,
    /// Whether the values of a column are adjacent.
    pub by_column: bool,
    /// Values of the columns present, each of shape `[in]`.
    pub values: BTreeMap<u32, Vec<f32>>,
}

impl WeightColumns {
    /// Adds columns `[k]` with their values `[k, in]`.
    pub fn add(&mut self, columns: &[i64], values: &[f32]) {
        for (column, values) in columns.iter().zip(values.chunks(self.rows as usize)) {
            let Ok(column) = u32::try_from(*column) else { continue };
            match self.values.get_mut(&column) {
                Some(sum) => sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value),
                None => drop(self.values.insert(column, values.to_vec())),
            }
        }
    }

    /// Returns the stretch within a fragment, if any.
    fn stretch(&self, fragment: &Range<usize>) -> Option<MatrixStretch> {
        let (from, to) = (self.place.start.max(fragment.start), self.place.end.min(fragment.end));
        (from < to).then(|| MatrixStretch {
            start: (from - fragment.start) as u32,
            len: (to - from) as u32,
            offset: (from - self.place.start) as u64,
            columns: self.columns,
            rows: self.rows,
            by_column: self.by_column,
        })
    }
}

impl ColumnGradient {
    /// Returns the part within a fragment.
    #[must_use]
    pub fn cut(&self, fragment: Range<usize>) -> Option<ColumnUpdate> {
        let (mut parts, mut values, mut next) = (Vec::new(), Vec::new(), fragment.start);
        for weight in &self.weights {
            let Some(stretch) = weight.stretch(&fragment) else { continue };
            let start = fragment.start + stretch.start as usize;
            self.append_rest(next..start, &mut values);
            next = start + stretch.len as usize;
            let all: Vec<u32> = weight.values.keys().copied().collect();
            let columns = stretch.present(&all);
            for column in &columns {
                values.extend_from_slice(&weight.values[column][stretch.rows_here(*column)]);
            }
            parts.push(ColumnPart { stretch, columns });
        }
        self.append_rest(next..fragment.end, &mut values);
        ColumnUpdate::new(u32::try_from(fragment.len()).ok()?, parts, values)
    }

    /// Returns the L2 norm; absent columns are zero.
    #[must_use]
    pub fn norm(&self) -> f64 {
        let columns = self.weights.iter().flat_map(|weight| weight.values.values());
        let values = self.rest.iter().map(|(_, values)| values).chain(columns).flatten();
        values.map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt()
    }

    /// Returns the length of the longest vector present.
    #[must_use]
    pub fn longest(&self) -> usize {
        let columns = self.weights.iter().flat_map(|weight| weight.values.values());
        self.rest.iter().map(|(_, values)| values).chain(columns).map(Vec::len).max().unwrap_or(0)
    }

    fn append_rest(&self, wanted: Range<usize>, to: &mut Vec<f32>) {
        for (start, values) in &self.rest {
            let (from, end) = (wanted.start.max(*start), wanted.end.min(start + values.len()));
            if from < end {
                to.extend_from_slice(&values[from - start..end - start]);
            }
        }
    }
}
