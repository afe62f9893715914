//! `[train.sparse_backward]`: backward passes with the largest gradients only (meProp: Sun et al. 2017, arXiv
//! 1706.06197).

use serde::{Deserialize, Serialize};

/// `[train.sparse_backward]`
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SparseBackwardConfig {
    /// Kept share of the width of each matrix product's output gradient. The rest counts as zero in the gradients of input and weight. 1: all.
    pub keep: f64,
    /// Selection rule.
    #[serde(default)]
    pub mode: SparseMode,
    /// Affected products, as patterns of weight names: `*` matches anything, `?` one character. The output projection needs its full name.
    #[serde(default = "SparseBackwardConfig::all_layers")]
    pub layers: Vec<String>,
}

/// Selection from the gradient of a product.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum SparseMode {
    /// The largest magnitudes of each row (token). Backward passes are not cheaper.
    Rows,
    /// The columns with the largest sums of magnitudes over all rows of a micro-batch. Backward passes are cheaper.
    #[default]
    Columns,
}

impl SparseBackwardConfig {
    fn all_layers() -> Vec<String> {
        vec!["*".to_owned()]
    }

    /// Returns the number of columns kept of `columns`, at least one.
    #[must_use]
    pub fn kept(&self, columns: u64) -> u64 {
        ((self.keep * columns as f64).round() as u64).clamp(1, columns.max(1))
    }
}
