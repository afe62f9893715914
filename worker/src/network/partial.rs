//! A state of the run of which some has arrived.

use std::sync::Arc;

use anyhow::{Result, ensure};

use super::request::{Held, Manifest, STATE_FRAME_VALUES};
use crate::sync::{HealedState, hash_of_buffers};

/// The frames of one state, from any donors that have the same one.
#[derive(Debug)]
pub(super) struct Partial {
    manifest: Manifest,
    /// All but the last are whole.
    buffers: Vec<Vec<f32>>,
    frames: u64,
}

impl Partial {
    /// Nothing of it yet. The caller has checked that the manifest is of this run's model.
    pub fn new(manifest: Manifest) -> Self {
        Self { manifest, buffers: Vec::new(), frames: 0 }
    }

    /// What a donor need not send again.
    pub fn held(&self) -> Held {
        Held { manifest: self.manifest, frames: self.frames }
    }

    /// Whether all of it is here.
    pub fn is_whole(&self) -> bool {
        self.buffers.len() == self.manifest.buffers as usize && self.missing_of_last() == 0
    }

    /// Takes the next frame.
    ///
    /// # Errors
    /// It has the wrong length.
    pub fn take(&mut self, body: &[u8]) -> Result<()> {
        if self.buffers.is_empty() || self.missing_of_last() == 0 {
            self.buffers.push(Vec::with_capacity(self.manifest.values as usize));
        }
        let expected = STATE_FRAME_VALUES.min(self.missing_of_last());
        ensure!(body.len() == expected * size_of::<f32>(), "a frame of the state has the wrong length");
        if let Some(buffer) = self.buffers.last_mut() {
            buffer.extend(body.as_chunks::<4>().0.iter().map(|word| f32::from_le_bytes(*word)));
        }
        self.frames += 1;
        Ok(())
    }

    /// The whole state. Reads all of it: not for a thread that others wait for.
    ///
    /// # Errors
    /// It is not the one of the manifest.
    pub fn finish(self) -> Result<HealedState> {
        let buffers: Vec<Arc<Vec<f32>>> = self.buffers.into_iter().map(Arc::new).collect();
        ensure!(
            hash_of_buffers(&buffers) == self.manifest.hash,
            "the state is not the one that was announced"
        );
        let Manifest { next_round, updates, .. } = self.manifest;
        Ok(HealedState { next_round, buffers, updates })
    }

    fn missing_of_last(&self) -> usize {
        self.manifest.values as usize - self.buffers.last().map_or(0, Vec::len)
    }
}
