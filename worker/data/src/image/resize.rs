//! Scales pictures to cover a size and crops the centre, as torchvision's `Resize` and `CenterCrop` do with Pillow's `BILINEAR`.
//!
//! The filter is a triangle about the middle of each new pixel, as wide as the picture shrinks and at least two pixels. It is computed in single
//! precision, in a fixed order, and rounded once. The crop begins at a whole pixel.

/// A picture `[height, width, channels]`, of bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Picture {
    pub(super) height: usize,
    pub(super) width: usize,
    pub(super) channels: usize,
    pub(super) values: Vec<u8>,
}

/// Taps of a new pixel along a side: its first old pixel, and the weights of that and of the following ones, which sum to one.
#[derive(Debug)]
struct Taps {
    first: usize,
    weights: Vec<f32>,
}

impl Picture {
    /// Returns it scaled and cropped to `height` rows and `width` columns.
    pub(super) fn fit(self, height: usize, width: usize) -> Self {
        if (self.height, self.width) == (height, width) {
            return self;
        }
        let (scaled_height, scaled_width) = self.covering(height, width);
        let rows = taps(self.height, scaled_height, height);
        let columns = taps(self.width, scaled_width, width);
        let (top, bottom) = (rows[0].first, rows.last().map_or(0, |row| row.first + row.weights.len()));
        let lines = self.lines(top..bottom, &columns);
        let line = width * self.channels;
        let mut values = Vec::with_capacity(height * line);
        let mut sum = vec![0.0_f32; line];
        for row in &rows {
            sum.fill(0.0);
            for (weight, values) in
                row.weights.iter().zip(lines[(row.first - top) * line..].chunks_exact(line))
            {
                sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += weight * value);
            }
            // The cast saturates.
            values.extend(sum.iter().map(|value| (value + 0.5) as u8));
        }
        Self { height, width, channels: self.channels, values }
    }

    /// Returns the height and width of the smallest scaled picture that covers a size.
    fn covering(&self, height: usize, width: usize) -> (usize, usize) {
        // Finds the side that needs the larger scale, without dividing.
        if width * self.height >= height * self.width {
            (self.height * width / self.width, width)
        } else {
            (height, self.width * height / self.height)
        }
    }

    /// Returns some rows with the new columns: `[rows, new columns, channels]`.
    fn lines(&self, rows: std::ops::Range<usize>, columns: &[Taps]) -> Vec<f32> {
        let stride = self.width * self.channels;
        let mut lines = Vec::with_capacity(rows.len() * columns.len() * self.channels);
        for row in self.values[rows.start * stride..rows.end * stride].chunks_exact(stride) {
            match self.channels {
                1 => columns.iter().for_each(|column| lines.extend(pixel::<1>(row, column))),
                _ => columns.iter().for_each(|column| lines.extend(pixel::<3>(row, column))),
            }
        }
        lines
    }
}

/// Returns a new pixel of a row.
fn pixel<const CHANNELS: usize>(row: &[u8], taps: &Taps) -> [f32; CHANNELS] {
    let mut sum = [0.0; CHANNELS];
    for (weight, pixel) in taps.weights.iter().zip(row[taps.first * CHANNELS..].chunks_exact(CHANNELS)) {
        sum.iter_mut().zip(pixel).for_each(|(sum, value)| *sum += weight * f32::from(*value));
    }
    sum
}

/// Returns the taps of the central `to` of `scaled` new pixels along a side of `from`.
fn taps(from: usize, scaled: usize, to: usize) -> Vec<Taps> {
    let step = from as f64 / scaled as f64;
    let reach = f64::max(step, 1.0);
    let of = |at: usize| {
        let middle = (at as f64 + 0.5) * step;
        let first = (middle - reach + 0.5).max(0.0) as usize;
        let last = ((middle + reach + 0.5) as usize).clamp(first + 1, from);
        let weight = |old: usize| (1.0 - (old as f64 + 0.5 - middle).abs() / reach).max(0.0);
        let weights: Vec<f64> = (first..last).map(weight).collect();
        let sum: f64 = weights.iter().sum();
        Taps { first, weights: weights.into_iter().map(|weight| (weight / sum) as f32).collect() }
    };
    let begin = half_to_even(scaled - to);
    (begin..begin + to).map(of).collect()
}

/// Returns half of a number, rounded as Python's `round`: to the even one of two.
fn half_to_even(number: usize) -> usize {
    let half = number / 2;
    half + usize::from(number % 2 == 1 && half % 2 == 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn grey(height: usize, width: usize, value: impl Fn(usize, usize) -> u8) -> Picture {
        let values = (0..height * width).map(|at| value(at / width, at % width)).collect();
        Picture { height, width, channels: 1, values }
    }

    #[test]
    fn a_plane_stays_a_plane_and_one_colour_stays_that_colour() {
        for (height, width) in [(1, 1), (3, 7), (50, 20), (224, 224)] {
            let white = grey(40, 30, |_, _| 255).fit(height, width);
            assert!(white.values.iter().all(|value| *value == 255), "{height} × {width}");
        }
        // Twice as large: away from the borders, a new pixel adds half the ramp's step of eight.
        let ramp = grey(16, 16, |_, column| 8 * column as u8).fit(32, 32);
        let row = &ramp.values[10 * 32..11 * 32];
        assert!((2..28).all(|at| row[at + 1] - row[at] == 4), "{row:?}");
    }

    #[test]
    fn the_middle_is_kept_where_the_proportions_are_others() {
        // The middle one of three squares, side by side or stacked.
        let wide = grey(10, 30, |_, column| [0, 200, 0][column / 10]).fit(4, 4);
        let high = grey(30, 10, |row, _| [0, 200, 0][row / 10]).fit(4, 4);
        assert_eq!(wide.values[5], 200);
        assert_eq!(wide.values.iter().filter(|value| **value > 150).count(), 16, "{wide:?}");
        assert_eq!(high.values.iter().filter(|value| **value > 150).count(), 16, "{high:?}");
    }

    /// A crop alone keeps pixels unchanged, in the columns of torchvision's `CenterCrop`.
    #[test]
    fn an_odd_excess_is_cropped_at_whole_pixels() {
        for (from, to, begin) in [
            (3, 2, 0),
            (5, 4, 0),
            (5, 2, 2),
            (6, 3, 2),
            (7, 2, 2),
            (7, 4, 2),
            (8, 3, 2),
            (9, 2, 4),
            (10, 5, 2),
            (12, 2, 5),
        ] {
            let wide = grey(to, from, |_, column| [0, 200, 40][column % 3]).fit(to, to);
            let high = grey(from, to, |row, _| [0, 200, 40][row % 3]).fit(to, to);
            for at in 0..to {
                let value = [0, 200, 40][(begin + at) % 3];
                assert_eq!((wide.values[at], high.values[at * to]), (value, value), "{from} to {to}");
            }
        }
    }

    #[test]
    fn each_of_many_sizes_becomes_each_of_many_others() {
        for from in 1..12 {
            for to in 1..12 {
                let fitted =
                    grey(from, 13 - from, |row, column| (row * 20 + column) as u8).fit(to, 12 - to + 1);
                assert_eq!(fitted.values.len(), to * (13 - to));
            }
        }
    }
}
