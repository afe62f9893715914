//! All values.

use longhaul_common::config::SyncConfig;

use super::{CHUNK_VALUES_DEFAULT, Memory, Rule, Selection, Shape};
use crate::codec::SpecError;
use crate::codec::layout::Layout;

/// Shape of a selection without parameters.
const NO_SHAPE: Shape = Shape { chunk_log2: 0, keep: 0 };

/// All values.
#[derive(Clone, Copy, Debug)]
pub(super) struct All;

impl From<All> for Selection {
    fn from(_: All) -> Self {
        Self::All
    }
}

impl Rule for All {
    fn validate(&self) -> Result<(), SpecError> {
        Ok(())
    }

    fn shape(&self) -> Shape {
        NO_SHAPE
    }

    fn read(shape: Shape) -> Option<Self> {
        (shape == NO_SHAPE).then_some(Self)
    }

    fn layout(&self, len: usize, _: usize) -> Option<Layout> {
        Some(Layout::All { len })
    }

    fn group_values(&self) -> usize {
        CHUNK_VALUES_DEFAULT as usize
    }

    fn select(&self, values: &[f32], _: &mut Memory, positions: &mut Vec<u32>) {
        positions.extend(0..values.len() as u32);
    }

    fn kept_share(&self) -> f64 {
        1.0
    }

    fn configured(_: &SyncConfig) -> Selection {
        Selection::All
    }
}
