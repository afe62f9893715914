//! Gradients of weights as the columns that a backward pass has computed.

use std::collections::BTreeMap;
use std::ops::Range;

use super::{ColumnPart, ColumnUpdate, MatrixStretch};

/// A gradient of all parameters, of whose matrices only some columns are there.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct ColumnGradient {
    /// Values of the parameters, in all.
    pub len: usize,
    /// What is not of these matrices: stretches of the parameters, ascending, with their values.
    pub rest: Vec<(usize, Vec<f32>)>,
    /// The matrices, ascending.
    pub weights: Vec<WeightColumns>,
}

/// Columns of the gradient of a matrix.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightColumns {
    /// Where the matrix is among the parameters.
    pub place: Range<usize>,
    /// Columns that it has, and values of each.
    pub columns: u32,
    /// Values of a column.
    pub rows: u32,
    /// Whether the values of a column follow each other.
    pub by_column: bool,
    /// The values of shape `[in]` of those that are there, by column.
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

    /// What a fragment has of it; none where that is nothing.
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
    /// What a fragment has of it.
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

    /// Its L2 norm: what is not there is zero.
    #[must_use]
    pub fn norm(&self) -> f64 {
        let columns = self.weights.iter().flat_map(|weight| weight.values.values());
        let values = self.rest.iter().map(|(_, values)| values).chain(columns).flatten();
        values.map(|value| f64::from(*value) * f64::from(*value)).sum::<f64>().sqrt()
    }

    /// The largest vector that is here.
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
