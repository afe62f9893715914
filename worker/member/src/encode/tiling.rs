//! The order of exchanged values if tiles of matrices are transformed.

use longhaul_common::model::ModelSpec;

/// Width and height of a tile: DeMo's for large matrices.
const TILE: usize = 64;
/// Values of a tile.
pub const TILE_VALUES: usize = TILE * TILE;

/// A permutation of the synchronised vector: first all whole 64×64 tiles of all matrices, row by row, then all vectors, then the matrices' edges. So a tile
/// is 4096 contiguous values, the codec's unit of transformation.
///
/// The rest is transformed as well, 4096 values at a time: only transformed values all move with each sign step. The last values, too few for a tile, are
/// those of a matrix, as vectors matter more.
#[derive(Clone, Debug)]
pub struct Tiling {
    tiles: usize,
    /// Index in the flat vector, by index in the exchanged order.
    sources: Vec<u32>,
}

impl Tiling {
    /// Creates the tiling of a model.
    #[must_use]
    pub fn new(spec: &ModelSpec) -> Self {
        let (mut tiled, mut rest, mut edges, mut start) = (Vec::new(), Vec::new(), Vec::new(), 0);
        for parameter in spec.synchronised() {
            let count = parameter.count() as usize;
            match parameter.shape[..] {
                [rows, columns] => {
                    push_matrix(start, rows as usize, columns as usize, &mut tiled, &mut edges)
                }
                _ => rest.extend(start as u32..(start + count) as u32),
            }
            start += count;
        }
        let left = (rest.len() + edges.len()) % TILE_VALUES;
        if left > edges.len() {
            edges.extend(tiled.split_off(tiled.len().saturating_sub(TILE_VALUES)));
        }
        tiled.append(&mut rest);
        tiled.append(&mut edges);
        Self { tiles: tiled.len() / TILE_VALUES, sources: tiled }
    }

    /// Returns the number of tiles at the start of the exchanged order.
    #[must_use]
    pub fn tiles(&self) -> usize {
        self.tiles
    }

    /// Permutes values from the flat to the exchanged order.
    #[must_use]
    pub fn to_exchanged(&self, flat: &[f32]) -> Vec<f32> {
        self.sources.iter().map(|&source| flat[source as usize]).collect()
    }

    /// Permutes values from the exchanged to the flat order.
    #[must_use]
    pub fn to_flat(&self, exchanged: &[f32]) -> Vec<f32> {
        let mut flat = vec![0.0; exchanged.len()];
        self.sources.iter().zip(exchanged).for_each(|(&source, value)| flat[source as usize] = *value);
        flat
    }
}

fn push_matrix(start: usize, rows: usize, columns: usize, tiled: &mut Vec<u32>, edges: &mut Vec<u32>) {
    let (whole_rows, whole_columns) = (rows / TILE * TILE, columns / TILE * TILE);
    for top in (0..whole_rows).step_by(TILE) {
        for left in (0..whole_columns).step_by(TILE) {
            for row in top..top + TILE {
                let from = (start + row * columns + left) as u32;
                tiled.extend(from..from + TILE as u32);
            }
        }
    }
    for row in 0..rows {
        let first = if row < whole_rows { whole_columns } else { 0 };
        let from = start + row * columns;
        edges.extend((from + first) as u32..(from + columns) as u32);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::config::{ModelConfig, ModelKind};

    fn spec(width: u32, context: u32) -> ModelSpec {
        let config = ModelConfig {
            layers: 1,
            width,
            heads: 2,
            context,
            vocabulary: Some(70),
            ..ModelConfig::of(ModelKind::Gpt2)
        };
        ModelSpec::resolve(&config, 70).unwrap()
    }

    #[test]
    fn there_and_back_again_is_what_was_given() {
        for spec in [spec(66, 10), spec(128, 64), spec(8, 4)] {
            let tiling = Tiling::new(&spec);
            let flat: Vec<f32> = (0..spec.parameter_count()).map(|i| i as f32).collect();
            let exchanged = tiling.to_exchanged(&flat);
            assert_eq!(tiling.to_flat(&exchanged), flat);
            let mut sorted = exchanged;
            sorted.sort_unstable_by(f32::total_cmp);
            assert_eq!(sorted, flat, "every value occurs once");
        }
    }

    #[test]
    fn a_tile_is_a_square_of_its_matrix() {
        let spec = spec(128, 64);
        let tiling = Tiling::new(&spec);
        // The token embedding is [70, 128]: two whole tiles beside each other; six rows are left over.
        let flat: Vec<f32> = (0..spec.parameter_count()).map(|i| i as f32).collect();
        let exchanged = tiling.to_exchanged(&flat);
        let at = |tile: usize, row: usize, column: usize| exchanged[tile * TILE_VALUES + row * TILE + column];
        assert_eq!(at(0, 0, 63), 63.0);
        assert_eq!(at(0, 1, 0), 128.0);
        assert_eq!(at(1, 2, 5), (2 * 128 + 64 + 5) as f32);
        assert_eq!(tiling.tiles(), flat.len() / TILE_VALUES);
    }

    /// Edges, and if there are too few a tile, are last: behind all vectors, which are behind the whole tiles.
    #[test]
    fn only_values_of_matrices_have_no_tile() {
        for spec in [spec(66, 10), spec(128, 64), spec(96, 128)] {
            let (tiling, vectors) = (Tiling::new(&spec), spec.decayed_count() as u32..);
            let is_vector = |source: &u32| vectors.contains(source);
            let (tiled, left) = tiling.sources.split_at(tiling.tiles() * TILE_VALUES);
            assert!(left.len() < TILE_VALUES && !left.iter().any(is_vector));
            let first = tiled.iter().position(is_vector).unwrap();
            let last = tiled.iter().rposition(is_vector).unwrap();
            assert_eq!(first % TILE_VALUES, 0);
            assert_eq!(last + 1 - first, spec.parameter_count() as usize - spec.decayed_count() as usize);
        }
    }
}
