//! `[train.sparse_backward]`: backward passes that go on with the largest gradients only (meProp: Sun et al. 2017, arXiv 1706.06197).

use serde::{Deserialize, Serialize};

/// `[train.sparse_backward]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseBackwardConfig {
    /// Of the gradient of what comes out of a matrix product, this share of its width is kept, and the rest is taken for zero, where the gradients of what went in and of the
    /// weight are computed. 1: all of it.
    pub keep: f64,
    /// What is kept: `columns` of the product, the same for all tokens of a micro-batch, which makes backward passes cheaper; or in each of the `rows`, which are tokens, values of its own,
    /// which does not.
    #[serde(default)]
    pub mode: SparseMode,
    /// The products that are meant, as patterns of their weights' names, in which `*` stands for anything and `?` for any one character. The output projection is meant where its
    /// whole name is written.
    #[serde(default = "SparseBackwardConfig::all_layers")]
    pub layers: Vec<String>,
}

/// What is kept of the gradient of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SparseMode {
    /// Of each row, its largest magnitudes.
    Rows,
    /// The columns with the largest sums of magnitudes over all rows ("unified top-k" in the paper).
    #[default]
    Columns,
}

impl SparseBackwardConfig {
    fn all_layers() -> Vec<String> {
        vec!["*".to_owned()]
    }

    /// Of so many columns, how many are kept: one at least.
    #[must_use]
    pub fn kept(&self, columns: u64) -> u64 {
        ((self.keep * columns as f64).round() as u64).clamp(1, columns.max(1))
    }
}
