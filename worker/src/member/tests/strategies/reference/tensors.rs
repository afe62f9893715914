//! The positions of the model's tensors.

use std::ops::Range;

use longhaul_common::model::ModelSpec;

/// A tensor in the flat vector of parameters.
#[derive(Clone, Debug)]
pub struct TensorAt {
    pub range: Range<usize>,
    /// Rows and columns of a matrix.
    pub shape: Option<[usize; 2]>,
    /// Inputs and outputs of a product within a block, whose weight it is.
    pub product: Option<[u64; 2]>,
}

pub fn tensors_of(spec: &ModelSpec) -> Vec<TensorAt> {
    let (mut end, products) = (0, spec.hidden_products());
    let tensor = |parameter: longhaul_common::model::ParameterSpec| {
        let start = end;
        end += parameter.count() as usize;
        let shape = match parameter.shape[..] {
            [rows, columns] => Some([rows as usize, columns as usize]),
            _ => None,
        };
        let product = products.iter().find(|product| product.weight == parameter.name);
        let product = product.map(|product| [product.inputs, product.outputs]);
        TensorAt { range: start..end, shape, product }
    };
    spec.parameters().into_iter().map(tensor).collect()
}

/// Width and height of a tile of the cosine transform.
pub const TILE: usize = 64;

/// DeMo's exchange order: all whole tiles of all matrices, each row by row, then the vectors, then the matrices' edges. If the edges are fewer than the values
/// without a tile, the last tile joins them. Returns the position in the flat vector for each position in this order, and the number of tiles.
pub fn tiled_order(tensors: &[TensorAt]) -> (Vec<usize>, usize) {
    let (mut tiles, mut vectors, mut edges) = (Vec::new(), Vec::new(), Vec::new());
    for tensor in tensors {
        let Some([rows, columns]) = tensor.shape else {
            vectors.extend(tensor.range.clone());
            continue;
        };
        let at = |row: usize, column: usize| tensor.range.start + row * columns + column;
        for (i, j) in (0..rows / TILE).flat_map(|i| (0..columns / TILE).map(move |j| (i, j))) {
            let places = (0..TILE * TILE).map(|place| at(i * TILE + place / TILE, j * TILE + place % TILE));
            tiles.extend(places);
        }
        let is_left =
            |row: usize, column: usize| row >= rows / TILE * TILE || column >= columns / TILE * TILE;
        let all = (0..rows * columns).map(|place| (place / columns, place % columns));
        edges.extend(all.filter(|&(row, column)| is_left(row, column)).map(|(row, column)| at(row, column)));
    }
    if (vectors.len() + edges.len()) % (TILE * TILE) > edges.len() {
        edges.extend(tiles.split_off(tiles.len() - TILE * TILE));
    }
    let order = [tiles, vectors, edges].concat();
    let count = order.len() / (TILE * TILE);
    (order, count)
}
