//! Updates of whole columns of matrices.

mod frame;
mod select;
mod stretch;

pub(in crate::codec) use self::frame::{ColumnDecoder, ColumnEncoder, TAG};
pub use self::stretch::MatrixStretch;

/// A change of some columns of matrices, and of all values outside the matrices.
#[derive(Clone, Debug, PartialEq)]
pub struct ColumnUpdate {
    len: u32,
    /// Ordered, disjoint.
    parts: Vec<ColumnPart>,
    /// In the order of the fragment, except that values of a matrix are ordered by column.
    values: Vec<f32>,
}

/// The stretch of a matrix in a fragment, with its changed columns.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ColumnPart {
    /// Place.
    pub stretch: MatrixStretch,
    /// Changed columns: ascending, each with at least one value in the fragment.
    pub columns: Vec<u32>,
}

/// Block of a value: before the matrix of this number (or after the last one), or a column of a matrix.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Key {
    Before(usize),
    Column(usize, u32),
}

impl Key {
    /// Returns the sort key of blocks.
    fn place(self) -> (usize, Option<u32>) {
        match self {
            Self::Before(part) => (part, None),
            Self::Column(part, column) => (part, Some(column)),
        }
    }
}

impl ColumnUpdate {
    /// Creates an update of a fragment of `len` values. `None`: matrices overlap or exceed the fragment,
    /// columns are not ascending or have no value here, or the number of values is wrong.
    #[must_use]
    pub fn new(len: u32, parts: Vec<ColumnPart>, values: Vec<f32>) -> Option<Self> {
        let count = value_count(len, &parts)?;
        (count == values.len()).then_some(Self { len, parts, values })
    }

    /// Returns the number of parameters in the fragment.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len as usize
    }

    /// Whether the fragment has no parameters.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Returns the matrices with their changed columns.
    #[must_use]
    pub fn parts(&self) -> &[ColumnPart] {
        &self.parts
    }

    /// Returns each value that may differ from zero, in the order of [`Self::for_each`].
    #[must_use]
    pub fn values(&self) -> &[f32] {
        &self.values
    }

    /// Calls `each` with the index in the fragment and the value, always in the same order.
    pub fn for_each(&self, mut each: impl FnMut(usize, f32)) {
        let mut rest = self.values.iter();
        for key in keys(&self.parts) {
            place_of(self.len, &self.parts, key)
                .positions()
                .zip(&mut rest)
                .for_each(|(at, value)| each(at as usize, *value));
        }
    }

    /// Returns `decay` times this update plus `other`. A column absent from one of them counts as zero there.
    ///
    /// `None`: the matrices differ.
    #[must_use]
    pub fn plus(&self, decay: f32, other: &Self) -> Option<Self> {
        if !self.is_like(other) {
            return None;
        }
        let (mut ours, mut theirs) = (self.blocks().peekable(), other.blocks().peekable());
        let mut sum = Builder::new(self);
        loop {
            let key = match (ours.peek(), theirs.peek()) {
                (Some((own, _)), Some((others, _))) if others.place() < own.place() => *others,
                (Some((own, _)), Some(_)) => *own,
                (Some((key, _)), None) | (None, Some((key, _))) => *key,
                (None, None) => return Some(sum.update),
            };
            let own = ours.next_if(|(of, _)| *of == key).map(|(_, values)| values);
            let others = theirs.next_if(|(of, _)| *of == key).map(|(_, values)| values);
            match (own, others) {
                (Some(own), Some(others)) => {
                    sum.push(key, own.iter().zip(others).map(|(a, b)| a * decay + b))
                }
                (Some(own), None) => sum.push(key, own.iter().map(|a| a * decay)),
                (None, others) => sum.push(key, others.unwrap_or_default().iter().copied()),
            }
        }
    }

    /// Returns `weight` times this update.
    #[must_use]
    pub fn scaled(mut self, weight: f32) -> Self {
        self.values.iter_mut().for_each(|value| *value *= weight);
        self
    }

    /// Returns the non-zero columns of a dense update with these matrices.
    ///
    /// `None`: the matrices do not fit the fragment.
    #[must_use]
    pub fn from_dense(dense: &[f32], stretches: &[MatrixStretch]) -> Option<Self> {
        let len = u32::try_from(dense.len()).ok()?;
        let part = |stretch: &MatrixStretch| {
            let changes =
                |column: &u32| stretch.place(*column).positions().any(|at| dense[at as usize] != 0.0);
            let is_here = stretch.fits(len);
            let columns = if is_here { (0..stretch.columns).filter(changes).collect() } else { Vec::new() };
            is_here.then_some(ColumnPart { stretch: *stretch, columns })
        };
        let parts = stretches.iter().map(part).collect::<Option<Vec<_>>>()?;
        let count = value_count(len, &parts)?;
        let mut values = Vec::with_capacity(count);
        for key in keys(&parts) {
            values.extend(place_of(len, &parts, key).positions().map(|at| dense[at as usize]));
        }
        Self::new(len, parts, values)
    }

    /// Returns all values of the fragment, with zeros where nothing changes.
    #[must_use]
    pub fn to_dense(&self) -> Vec<f32> {
        let mut dense = vec![0.0; self.len()];
        self.for_each(|at, value| dense[at] = value);
        dense
    }

    /// Whether both have the same matrices at the same places.
    #[must_use]
    pub fn is_like(&self, other: &Self) -> bool {
        let alike =
            self.parts.iter().map(|part| part.stretch).eq(other.parts.iter().map(|part| part.stretch));
        self.len == other.len && alike
    }

    /// Returns columns and stretches between matrices, with their values, ascending.
    fn blocks(&self) -> impl Iterator<Item = (Key, &[f32])> {
        let mut rest = self.values.as_slice();
        keys(&self.parts).map(move |key| {
            let (values, after) = rest.split_at(place_of(self.len, &self.parts, key).count as usize);
            rest = after;
            (key, values)
        })
    }
}

/// Builds an update block by block, in order.
struct Builder {
    update: ColumnUpdate,
}

impl Builder {
    /// Starts an update of the same matrices.
    fn new(like: &ColumnUpdate) -> Self {
        let empty = |part: &ColumnPart| ColumnPart { stretch: part.stretch, columns: Vec::new() };
        let parts = like.parts.iter().map(empty).collect();
        Self { update: ColumnUpdate { len: like.len, parts, values: Vec::with_capacity(like.values.len()) } }
    }

    fn push(&mut self, key: Key, values: impl Iterator<Item = f32>) {
        if let Key::Column(part, column) = key {
            self.update.parts[part].columns.push(column);
        }
        self.update.values.extend(values);
    }
}

/// Returns the blocks of an update, ascending; a block before a matrix may be empty.
fn keys(parts: &[ColumnPart]) -> impl Iterator<Item = Key> + '_ {
    let of_part = |(at, part): (usize, &'_ ColumnPart)| {
        let columns = part.columns.clone().into_iter().map(move |column| Key::Column(at, column));
        std::iter::once(Key::Before(at)).chain(columns)
    };
    parts.iter().enumerate().flat_map(of_part).chain([Key::Before(parts.len())])
}

/// Returns the place of a block's values in the fragment.
fn place_of(len: u32, parts: &[ColumnPart], key: Key) -> stretch::Progression {
    match key {
        Key::Column(part, column) => parts[part].stretch.place(column),
        Key::Before(part) => {
            let first = part.checked_sub(1).map_or(0, |before| parts[before].stretch.end() as u32);
            let end = parts.get(part).map_or(len, |part| part.stretch.start);
            stretch::Progression { first, step: 1, count: end - first }
        }
    }
}

/// Returns the number of values of such an update; `None`: not possible.
fn value_count(len: u32, parts: &[ColumnPart]) -> Option<usize> {
    let (mut end, mut count) = (0_u64, u64::from(len));
    for ColumnPart { stretch, columns } in parts {
        let is_apart = u64::from(stretch.start) >= end && stretch.fits(len);
        let is_ascending = columns.is_sorted_by(|a, b| a < b);
        let is_known = columns.last().is_none_or(|last| *last < stretch.columns);
        if !(is_apart && is_ascending && is_known) {
            return None;
        }
        end = stretch.end();
        count -= u64::from(stretch.len);
        for column in columns {
            let values = stretch.place(*column).count;
            if values == 0 {
                return None;
            }
            count += u64::from(values);
        }
    }
    usize::try_from(count).ok()
}

#[cfg(test)]
mod tests;
