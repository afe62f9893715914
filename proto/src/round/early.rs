//! Frames of a generation that this member has not begun yet.

use std::collections::BTreeMap;

use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};

use super::frame::{Frame, FrameKind};

/// Frames of a newer generation kept for each fragment. Its members send one local update or contribution each
/// until this member takes part, and a result a round; more than this come only when it is told far too late.
pub const EARLY_FRAMES_PER_FRAGMENT_MAX: usize = 64;

/// The frames of the newest generation heard of; those of generations in between are dropped.
#[derive(Debug)]
pub(super) struct EarlyFrames {
    frames_max: usize,
    generation: Generation,
    overflowed: bool,
    frames: BTreeMap<(Round, FrameKind, FragmentId, WorkerId), Frame>,
}

impl EarlyFrames {
    pub fn new(fragments: u32) -> Self {
        let frames_max = fragments as usize * EARLY_FRAMES_PER_FRAGMENT_MAX;
        Self { frames_max, generation: Generation(0), overflowed: false, frames: BTreeMap::new() }
    }

    /// Keeps a frame; one for an older generation than others is dropped silently, as it will never be begun.
    /// False: there is no more room.
    pub fn keep(&mut self, frame: Frame) -> bool {
        let header = frame.header;
        if header.generation > self.generation {
            self.generation = header.generation;
            self.frames.clear();
            self.overflowed = false;
        }
        if header.generation == self.generation {
            if self.frames.len() >= self.frames_max {
                self.overflowed = true;
                return false;
            }
            let key = (header.round, header.kind, header.fragment, frame.from);
            self.frames.entry(key).or_insert(frame);
        }
        true
    }

    /// How many frames are in memory.
    pub fn held(&self) -> usize {
        self.frames.len()
    }

    /// Whether frames of this generation were refused.
    pub fn overflowed(&self, generation: Generation) -> bool {
        self.overflowed && self.generation == generation
    }

    /// The frames of a generation that begins now, by round.
    pub fn take(&mut self, generation: Generation) -> Vec<Frame> {
        if generation < self.generation {
            return Vec::new();
        }
        std::mem::take(&mut self.frames)
            .into_values()
            .filter(|frame| frame.header.generation == generation)
            .collect()
    }
}
