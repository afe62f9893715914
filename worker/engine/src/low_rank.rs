//! PowerSGD (Vogels et al., arXiv 1905.13727): the gradient of every matrix as a product of two thin ones, averaged factor by factor.
//!
//! On the host, with plain loops in a fixed order: shared state must have the same bits on all members.

use std::ops::Range;

use longhaul_common::model::ModelSpec;

use longhaul_common::model::draw_normal;

/// Negligible beside the norm of a column; keeps a zero column zero.
const NORM_FLOOR: f32 = 1e-8;

/// Low-rank gradients with error feedback and a warm start.
///
/// For a matrix M [n, m] and rank r: p = e + gradient, P = mean(p·Q), P̂ = orthonormalise(P), Q = mean(pᵀ·P̂), and all members apply the gradient P̂·Qᵀ. The
/// next step starts from Q. Vectors, and matrices that would not shrink to half, are sent whole in the first exchange.
///
/// A member keeps the error e = p − P̂·Qᵢᵀ with its own factor Qᵢ; the paper has p − P̂·Qᵀ with the mean. Only the mean of all members' errors ever counts,
/// and it is the same; but this one is known when the factor is sent, and is smaller.
#[derive(Clone, Debug)]
pub struct LowRank {
    rank: usize,
    matrices: Vec<Matrix>,
    /// Stretches of the flat vector sent whole.
    whole: Vec<Range<usize>>,
    whole_values: usize,
    shared: SharedFactors,
    /// e, or p between the two exchanges, `[P]`.
    error: Vec<f32>,
}

/// State equal on all members.
#[derive(Clone, Debug, Default, PartialEq)]
struct SharedFactors {
    /// Q of all matrices, orthonormal, each `[m, r]`, one after the other.
    columns: Vec<f32>,
    /// P̂ of all matrices, each `[n, r]`, then the mean of the whole stretches: the outcome of the last first exchange.
    rows: Vec<f32>,
}

#[derive(Clone, Copy, Debug)]
struct Matrix {
    start: usize,
    rows: usize,
    columns: usize,
}

impl LowRank {
    /// Creates it for a model's synchronised parameters, with first factors drawn from the run's seed.
    #[must_use]
    pub fn new(spec: &ModelSpec, rank: u32, seed: u64) -> Self {
        let (mut matrices, mut whole, mut start) = (Vec::new(), Vec::<Range<usize>>::new(), 0);
        for parameter in spec.synchronised() {
            let end = start + parameter.count() as usize;
            match parameter.low_rank_shape(rank) {
                Some([rows, columns]) => {
                    matrices.push(Matrix { start, rows: rows as usize, columns: columns as usize });
                }
                None => match whole.last_mut().filter(|last| last.end == start) {
                    Some(last) => last.end = end,
                    None => whole.push(start..end),
                },
            }
            start = end;
        }
        let whole_values = whole.iter().map(Range::len).sum();
        let mut this = Self {
            rank: rank as usize,
            matrices,
            whole,
            whole_values,
            shared: SharedFactors::default(),
            error: vec![0.0; start],
        };
        let [rows, columns] = this.lengths();
        this.shared = SharedFactors { columns: draw_normal(seed, columns), rows: vec![0.0; rows] };
        this.straighten_columns();
        this
    }

    /// Returns the lengths of the first and of the second exchange.
    #[must_use]
    pub fn lengths(&self) -> [usize; 2] {
        let sum = |side: fn(&Matrix) -> usize| self.matrices.iter().map(side).sum::<usize>() * self.rank;
        [sum(|matrix| matrix.rows) + self.whole_values, sum(|matrix| matrix.columns)]
    }

    /// Returns a member's contribution to the first exchange of a step: p·Q of each matrix `[n, r]`, then the whole stretches.
    pub fn first(&mut self, gradient: &[f32]) -> Vec<f32> {
        self.error.iter_mut().zip(gradient).for_each(|(error, gradient)| *error += gradient);
        let mut out = vec![0.0; self.lengths()[0]];
        let (mut left, mut factors) = (out.as_mut_slice(), self.shared.columns.as_slice());
        for matrix in &self.matrices {
            let (product, rest) = left.split_at_mut(matrix.rows * self.rank);
            let (factor, others) = factors.split_at(matrix.columns * self.rank);
            let values = &self.error[matrix.range()];
            for (row, out) in values.chunks_exact(matrix.columns).zip(product.chunks_exact_mut(self.rank)) {
                for (value, factor) in row.iter().zip(factor.chunks_exact(self.rank)) {
                    add_scaled(out, *value, factor);
                }
            }
            (left, factors) = (rest, others);
        }
        for range in &self.whole {
            let (part, rest) = left.split_at_mut(range.len());
            part.copy_from_slice(&self.error[range.clone()]);
            self.error[range.clone()].fill(0.0);
            left = rest;
        }
        out
    }

    /// Takes the mean of the first exchange, and computes P̂.
    pub fn take_first(&mut self, mean: &[f32]) {
        self.shared.rows.copy_from_slice(mean);
        let mut left = self.shared.rows.as_mut_slice();
        for matrix in &self.matrices {
            let (product, rest) = left.split_at_mut(matrix.rows * self.rank);
            orthonormalise(product, self.rank);
            left = rest;
        }
    }

    /// Returns a member's contribution to the second exchange: pᵀ·P̂ of each matrix, `[m, r]`. The unsent rest stays in e.
    pub fn second(&mut self) -> Vec<f32> {
        let mut out = vec![0.0; self.lengths()[1]];
        let (mut left, mut factors) = (out.as_mut_slice(), self.shared.rows.as_slice());
        for matrix in &self.matrices {
            let (product, rest) = left.split_at_mut(matrix.columns * self.rank);
            let (factor, others) = factors.split_at(matrix.rows * self.rank);
            let values = &mut self.error[matrix.range()];
            for (row, factor) in values.chunks_exact(matrix.columns).zip(factor.chunks_exact(self.rank)) {
                for (value, out) in row.iter().zip(product.chunks_exact_mut(self.rank)) {
                    add_scaled(out, *value, factor);
                }
            }
            subtract_product(values, matrix.columns, factor, product, self.rank);
            (left, factors) = (rest, others);
        }
        out
    }

    /// Takes the mean of the second exchange, and returns the gradient that all members apply, `[P]`. Without any contribution, the next step starts from the
    /// same Q.
    pub fn take_second(&mut self, mean: &[f32]) -> Vec<f32> {
        if mean.iter().any(|value| *value != 0.0) {
            self.shared.columns.copy_from_slice(mean);
            self.straighten_columns();
        }
        let mut gradient = vec![0.0; self.error.len()];
        let (mut rows, mut columns) = (self.shared.rows.as_slice(), mean);
        for matrix in &self.matrices {
            let (left, others) = rows.split_at(matrix.rows * self.rank);
            let (right, rest) = columns.split_at(matrix.columns * self.rank);
            // 0 − (−P̂)·Qᵀ would cost a pass: the sign is changed at the end.
            subtract_product(&mut gradient[matrix.range()], matrix.columns, left, right, self.rank);
            (rows, columns) = (others, rest);
        }
        gradient.iter_mut().for_each(|value| *value = -*value);
        for range in &self.whole {
            let (part, rest) = rows.split_at(range.len());
            gradient[range.clone()].copy_from_slice(part);
            rows = rest;
        }
        gradient
    }

    /// Orthonormalises Q, of which only the span of its columns matters, so that p·Q is as large as p, and no larger.
    fn straighten_columns(&mut self) {
        let mut left = self.shared.columns.as_mut_slice();
        for matrix in &self.matrices {
            let (columns, rest) = left.split_at_mut(matrix.columns * self.rank);
            orthonormalise(columns, self.rank);
            left = rest;
        }
    }

    /// Puts back values that reached no result: `values` of the first (`exchange` 0) or second contribution, from its index `start` on. Must be called before
    /// [`Self::take_first`] of the next step.
    pub fn put_back(&mut self, exchange: u32, start: usize, values: &[f32]) {
        if exchange == 0 { self.put_back_whole(start, values) } else { self.put_back_columns(start, values) }
    }

    /// Adds to the unsent values, from the parameter `start` on.
    pub fn add_error(&mut self, start: usize, values: &[f32]) {
        let error = self.error.iter_mut().skip(start);
        error.zip(values).for_each(|(error, value)| *error += value);
    }

    /// Rows of the first exchange only determine directions; whole stretches must be sent again.
    fn put_back_whole(&mut self, start: usize, values: &[f32]) {
        let mut at = self.lengths()[0] - self.whole_values;
        for range in &self.whole {
            let overlap = start.max(at)..(start + values.len()).min(at + range.len());
            if !overlap.is_empty() {
                let error = &mut self.error[range.start + overlap.start - at..][..overlap.len()];
                let values = &values[overlap.start - start..];
                error.iter_mut().zip(values).for_each(|(error, value)| *error += value);
            }
            at += range.len();
        }
    }

    fn put_back_columns(&mut self, start: usize, values: &[f32]) {
        let (mut at, mut factors) = (0, self.shared.rows.as_slice());
        for matrix in &self.matrices {
            let (factor, others) = factors.split_at(matrix.rows * self.rank);
            for (column, row_of_q) in (0..matrix.columns).map(|column| (column, at + column * self.rank)) {
                for (c, index) in (row_of_q..row_of_q + self.rank).enumerate() {
                    let Some(value) = index.checked_sub(start).and_then(|index| values.get(index)) else {
                        continue;
                    };
                    for row in 0..matrix.rows {
                        self.error[matrix.start + row * matrix.columns + column] +=
                            factor[row * self.rank + c] * value;
                    }
                }
            }
            at += matrix.columns * self.rank;
            factors = others;
        }
    }

    /// Returns the shared state, in a vector as long as the model: the factors are always shorter.
    #[must_use]
    pub fn shared(&self) -> Vec<f32> {
        let mut packed = [self.shared.rows.as_slice(), &self.shared.columns].concat();
        packed.resize(self.error.len(), 0.0);
        packed
    }

    /// Takes over the shared state; ignores a vector of another length.
    pub fn load_shared(&mut self, packed: &[f32]) {
        if packed.len() == self.error.len() {
            let [rows, columns] = self.lengths();
            self.shared.rows.copy_from_slice(&packed[..rows]);
            self.shared.columns.copy_from_slice(&packed[rows..rows + columns]);
        }
    }

    /// Returns this member's unsent values, `[P]`; between the exchanges of a step, with that step's gradient.
    #[must_use]
    pub fn error(&self) -> &[f32] {
        &self.error
    }

    /// Takes over unsent values; another length counts as zeros.
    pub fn load_error(&mut self, error: &[f32]) {
        if error.len() == self.error.len() {
            self.error.copy_from_slice(error);
        } else {
            self.error.fill(0.0);
        }
    }
}

impl Matrix {
    fn range(&self) -> Range<usize> {
        self.start..self.start + self.rows * self.columns
    }
}

fn add_scaled(out: &mut [f32], scale: f32, values: &[f32]) {
    out.iter_mut().zip(values).for_each(|(out, value)| *out += scale * value);
}

/// values − left·rightᵀ, with values `[n, columns]`, left `[n, rank]`, right `[columns, rank]`.
fn subtract_product(values: &mut [f32], columns: usize, left: &[f32], right: &[f32], rank: usize) {
    for (row, left) in values.chunks_exact_mut(columns).zip(left.chunks_exact(rank)) {
        for (value, right) in row.iter_mut().zip(right.chunks_exact(rank)) {
            *value -= left.iter().zip(right).fold(0.0, |sum, (l, r)| sum + l * r);
        }
    }
}

/// The Gram–Schmidt procedure on the columns of `[n, rank]`, one after the other, in f32.
fn orthonormalise(values: &mut [f32], rank: usize) {
    for column in 0..rank {
        for before in 0..column {
            let dot = values.chunks_exact(rank).fold(0.0, |sum, row| sum + row[before] * row[column]);
            values.chunks_exact_mut(rank).for_each(|row| row[column] -= dot * row[before]);
        }
        let norm = values.chunks_exact(rank).fold(0.0, |sum, row| sum + row[column] * row[column]).sqrt();
        values.chunks_exact_mut(rank).for_each(|row| row[column] /= norm + NORM_FLOOR);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::model::tiny::tiny_gpt2;

    const RANK: u32 = 2;

    fn gradient(len: usize, worker: usize, step: usize) -> Vec<f32> {
        (0..len).map(|i| ((i * 37 + worker * 101 + step * 53) % 997) as f32 / 500.0 - 1.0).collect()
    }

    fn mean_of(parts: &[Vec<f32>]) -> Vec<f32> {
        let share = 1.0 / parts.len() as f32;
        (0..parts[0].len()).map(|i| parts.iter().map(|part| share * part[i]).sum()).collect()
    }

    /// Makes one step of all members, with the same means; returns the applied gradient.
    fn step(members: &mut [LowRank], step: usize) -> Vec<f32> {
        let len = members[0].error().len();
        let firsts: Vec<_> =
            members.iter_mut().enumerate().map(|(w, m)| m.first(&gradient(len, w, step))).collect();
        let mean = mean_of(&firsts);
        members.iter_mut().for_each(|member| member.take_first(&mean));
        let seconds: Vec<_> = members.iter_mut().map(LowRank::second).collect();
        let mean = mean_of(&seconds);
        let applied: Vec<_> = members.iter_mut().map(|member| member.take_second(&mean)).collect();
        assert!(applied.windows(2).all(|pair| pair[0] == pair[1]), "all members apply the same");
        applied[0].clone()
    }

    /// The paper's algorithms 1 and 2 in f64, for one matrix, with the error against the *mean* product.
    struct Reference {
        q: Vec<f64>,
        errors: Vec<Vec<f64>>,
        matrix: Matrix,
    }

    impl Reference {
        fn step(&mut self, gradients: &[Vec<f32>]) -> Vec<f64> {
            let (n, m, r) = (self.matrix.rows, self.matrix.columns, RANK as usize);
            let workers = gradients.len() as f64;
            for (error, gradient) in self.errors.iter_mut().zip(gradients) {
                let part = &gradient[self.matrix.range()];
                error.iter_mut().zip(part).for_each(|(e, g)| *e += f64::from(*g));
            }
            let mean: Vec<f64> =
                (0..n * m).map(|i| self.errors.iter().map(|e| e[i]).sum::<f64>() / workers).collect();
            let mut p = vec![0.0; n * r];
            for i in 0..n {
                for c in 0..r {
                    p[i * r + c] = (0..m).map(|j| mean[i * m + j] * self.q[j * r + c]).sum();
                }
            }
            for c in 0..r {
                for before in 0..c {
                    let dot: f64 = (0..n).map(|i| p[i * r + before] * p[i * r + c]).sum();
                    (0..n).for_each(|i| p[i * r + c] -= dot * p[i * r + before]);
                }
                let norm = (0..n).map(|i| p[i * r + c].powi(2)).sum::<f64>().sqrt();
                (0..n).for_each(|i| p[i * r + c] /= norm);
            }
            for j in 0..m {
                for c in 0..r {
                    self.q[j * r + c] = (0..n).map(|i| mean[i * m + j] * p[i * r + c]).sum();
                }
            }
            let product = |i: usize, j: usize| (0..r).map(|c| p[i * r + c] * self.q[j * r + c]).sum::<f64>();
            let applied: Vec<f64> = (0..n * m).map(|at| product(at / m, at % m)).collect();
            for error in &mut self.errors {
                error.iter_mut().zip(&applied).for_each(|(e, a)| *e -= a);
            }
            applied
        }
    }

    #[test]
    fn it_makes_the_steps_of_the_paper() {
        let spec = tiny_gpt2();
        let mut members = vec![LowRank::new(&spec, RANK, 5); 3];
        let matrix = members[0].matrices[1];
        let before: usize = members[0].matrices[0].columns * RANK as usize;
        let q = members[0].shared.columns[before..][..matrix.columns * RANK as usize].to_vec();
        let mut reference = Reference {
            q: q.into_iter().map(f64::from).collect(),
            errors: vec![vec![0.0; matrix.rows * matrix.columns]; 3],
            matrix,
        };
        let len = members[0].error().len();
        for at in 0..12 {
            let applied = step(&mut members, at);
            let gradients: Vec<_> = (0..3).map(|worker| gradient(len, worker, at)).collect();
            let exact = reference.step(&gradients);
            for (got, exact) in applied[matrix.range()].iter().zip(&exact) {
                assert!((f64::from(*got) - exact).abs() < 2e-3, "step {at}: {got} is not {exact}");
            }
            // Whole stretches are the mean itself.
            let whole = members[0].whole[0].clone();
            let mean = mean_of(&gradients);
            assert!(applied[whole.clone()].iter().zip(&mean[whole]).all(|(a, m)| (a - m).abs() < 1e-5));
        }
    }

    #[test]
    fn what_is_applied_and_the_mean_error_make_up_all_gradients() {
        let mut members = vec![LowRank::new(&tiny_gpt2(), RANK, 5); 2];
        let len = members[0].error().len();
        let (mut applied, mut given) = (vec![0.0f64; len], vec![0.0f64; len]);
        for at in 0..20 {
            let gradient_of = |worker| gradient(len, worker, at);
            let mean = mean_of(&[gradient_of(0), gradient_of(1)]);
            given.iter_mut().zip(&mean).for_each(|(sum, value)| *sum += f64::from(*value));
            applied.iter_mut().zip(step(&mut members, at)).for_each(|(sum, value)| *sum += f64::from(value));
        }
        for i in 0..len {
            let kept = f64::from(members[0].error()[i] + members[1].error()[i]) / 2.0;
            assert!(
                (applied[i] + kept - given[i]).abs() < 1e-3,
                "{} + {kept} is not {}",
                applied[i],
                given[i]
            );
        }
    }

    #[test]
    fn what_was_in_no_result_is_all_there_again() {
        let mut member = LowRank::new(&tiny_gpt2(), RANK, 5);
        let len = member.error().len();
        let gradient = gradient(len, 0, 0);
        let first = member.first(&gradient);
        member.take_first(&first);
        let second = member.second();
        // In pieces that cut matrices and stretches.
        for (exchange, sent) in [(0, first), (1, second)] {
            let pieces = sent.chunks(sent.len().div_ceil(7)).scan(0, |start, piece| {
                *start += piece.len();
                Some((*start - piece.len(), piece))
            });
            pieces.for_each(|(start, piece)| member.put_back(exchange, start, piece));
        }
        for (error, gradient) in member.error().iter().zip(&gradient) {
            assert!((error - gradient).abs() < 1e-4, "{error} is not {gradient}");
        }
    }

    #[test]
    fn factors_are_far_fewer_than_parameters() {
        let spec = tiny_gpt2();
        let lengths = LowRank::new(&spec, 1, 1).lengths();
        assert!(lengths.iter().sum::<usize>() * 4 < spec.parameter_count() as usize, "{lengths:?}");
    }

    #[test]
    fn a_joiner_goes_on_from_what_the_others_hold() {
        let mut members = vec![LowRank::new(&tiny_gpt2(), RANK, 5); 2];
        step(&mut members, 0);
        let mut joiner = LowRank::new(&tiny_gpt2(), RANK, 6);
        assert_ne!(joiner.shared, members[0].shared);
        joiner.load_shared(&members[0].shared());
        assert_eq!(joiner.shared, members[0].shared);
        joiner.load_shared(&[1.0]);
        assert_eq!(joiner.shared, members[0].shared);
    }
}
