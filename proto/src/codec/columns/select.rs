//! Selection of the columns to send, when more are pending than permitted.

use super::{Builder, ColumnUpdate, Key};

impl ColumnUpdate {
    /// Splits off at most `most` columns of each matrix, with all values outside matrices, from the columns
    /// kept back. Kept back are columns with the smallest sums of magnitudes, the later of equal ones. Values
    /// outside matrices are zero in the rest.
    pub(crate) fn split(&self, most: &[usize]) -> (Self, Self) {
        let mut ranked: Vec<Vec<(f64, u32)>> = vec![Vec::new(); self.parts.len()];
        for (key, values) in self.blocks() {
            if let Key::Column(part, column) = key {
                let size = values.iter().map(|value| f64::from(value.abs())).sum();
                ranked[part].push((size, column));
            }
        }
        let chosen: Vec<Vec<u32>> = ranked
            .into_iter()
            .enumerate()
            .map(|(part, mut columns)| {
                columns.sort_unstable_by(|a, b| b.0.total_cmp(&a.0).then(a.1.cmp(&b.1)));
                columns.truncate(most.get(part).copied().unwrap_or(usize::MAX));
                let mut chosen: Vec<u32> = columns.into_iter().map(|(_, column)| column).collect();
                chosen.sort_unstable();
                chosen
            })
            .collect();
        let (mut sent, mut back) = (Builder::new(self), Builder::new(self));
        for (key, values) in self.blocks() {
            match key {
                Key::Before(_) => {
                    sent.push(key, values.iter().copied());
                    back.push(key, values.iter().map(|_| 0.0));
                }
                Key::Column(part, column) => {
                    let is_chosen = chosen[part].binary_search(&column).is_ok();
                    (if is_chosen { &mut sent } else { &mut back }).push(key, values.iter().copied());
                }
            }
        }
        (sent.update, back.update)
    }

    /// Removes columns of zeros.
    pub(crate) fn compact(&self) -> Self {
        let mut compact = Builder::new(self);
        for (key, values) in self.blocks() {
            if matches!(key, Key::Before(_)) || values.iter().any(|value| *value != 0.0) {
                compact.push(key, values.iter().copied());
            }
        }
        compact.update
    }

    /// Returns the number of changed columns of each matrix.
    pub(crate) fn column_counts(&self) -> Vec<usize> {
        self.parts.iter().map(|part| part.columns.len()).collect()
    }

    /// Replaces the values, in the same order.
    pub(crate) fn map_values(&self, mut values: impl FnMut(usize, f32) -> f32) -> Self {
        let values = self.values.iter().enumerate().map(|(at, value)| values(at, *value)).collect();
        Self { len: self.len, parts: self.parts.clone(), values }
    }
}
