//! Places of a matrix's columns in a fragment.

use std::ops::Range;

/// A run of adjacent values of a matrix in a fragment; may lack its first or last values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MatrixStretch {
    /// Index of the first value in the fragment.
    pub start: u32,
    /// Number of values.
    pub len: u32,
    /// Values of the matrix before the first one here.
    pub offset: u64,
    /// Columns of the matrix.
    pub columns: u32,
    /// Values of a column.
    pub rows: u32,
    /// Whether the values of a column are adjacent, as in [out, in]; otherwise those of a row are.
    pub by_column: bool,
}

/// Equally spaced indices in a fragment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Progression {
    pub first: u32,
    pub step: u32,
    pub count: u32,
}

impl Progression {
    pub fn positions(self) -> impl Iterator<Item = u32> {
        (0..self.count).map(move |at| self.first + at * self.step)
    }
}

impl MatrixStretch {
    /// Whether the matrix and the fragment of `len` values contain the stretch.
    pub(super) fn fits(&self, len: u32) -> bool {
        let size = u64::from(self.columns) * u64::from(self.rows);
        let end = self.offset.checked_add(u64::from(self.len));
        end.is_some_and(|end| end <= size) && self.end() <= u64::from(len)
    }

    pub(super) fn end(&self) -> u64 {
        u64::from(self.start) + u64::from(self.len)
    }

    /// Returns the place of a column's values in the stretch; may be empty.
    pub(super) fn place(&self, column: u32) -> Progression {
        let (column, columns, rows) = (u64::from(column), u64::from(self.columns), u64::from(self.rows));
        let (from, to) = (self.offset, self.offset + u64::from(self.len));
        let (first, step, count) = if self.by_column {
            let (own, end) = (column * rows, (column + 1) * rows);
            let first = own.max(from);
            (first, 1, end.min(to).saturating_sub(first))
        } else {
            // Row r has it at r·columns + column.
            let row_at = |place: u64| place.saturating_sub(column).div_ceil(columns);
            (row_at(from) * columns + column, self.columns, row_at(to) - row_at(from))
        };
        let at = first.saturating_sub(from) + u64::from(self.start);
        // Values are in the fragment, whose indices have 32 bits.
        Progression { first: if count > 0 { at as u32 } else { 0 }, step, count: count as u32 }
    }

    /// Returns the rows of a column that are in the stretch.
    #[must_use]
    pub fn rows_here(&self, column: u32) -> Range<usize> {
        let (column, columns, rows) = (u64::from(column), u64::from(self.columns), u64::from(self.rows));
        let count = u64::from(self.place(column as u32).count);
        let first = match self.by_column {
            true => self.offset.saturating_sub(column * rows),
            false => self.offset.saturating_sub(column).div_ceil(columns),
        };
        let first = if count > 0 { first } else { 0 };
        first as usize..(first + count) as usize
    }

    /// Returns the columns of these that have values in the stretch.
    #[must_use]
    pub fn present(&self, columns: &[u32]) -> Vec<u32> {
        columns.iter().copied().filter(|&column| self.place(column).count > 0).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a list of all places, for each cut of a small matrix.
    #[test]
    fn each_column_is_found_wherever_the_fragment_begins_and_ends() {
        let (columns, rows) = (5_u32, 4_u32);
        for by_column in [true, false] {
            let column_of = |place: u32| if by_column { place / rows } else { place % columns };
            for offset in 0..columns * rows {
                for len in 1..=columns * rows - offset {
                    let stretch =
                        MatrixStretch { start: 7, len, offset: offset.into(), columns, rows, by_column };
                    assert!(stretch.fits(7 + len) && !stretch.fits(6 + len));
                    for column in 0..columns {
                        let expected: Vec<u32> = (offset..offset + len)
                            .filter(|place| column_of(*place) == column)
                            .map(|place| place - offset + 7)
                            .collect();
                        let found: Vec<u32> = stretch.place(column).positions().collect();
                        assert_eq!(found, expected, "{stretch:?}, {column}");
                        let row_of = |at: u32| {
                            let place = at - 7 + offset;
                            (if by_column { place % rows } else { place / columns }) as usize
                        };
                        let rows_here: Vec<usize> = expected.into_iter().map(row_of).collect();
                        assert_eq!(stretch.rows_here(column).collect::<Vec<_>>(), rows_here);
                    }
                }
            }
        }
    }
}
