//! Frames of a generation that has not begun here.

use std::collections::BTreeMap;

use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_common::plan::FragmentLayout;

use super::frame::{Frame, FrameKind};
use crate::frame::FRAME_BODY_BYTES_MAX;

/// Maximum frames of a newer generation per fragment. Its members send one local update or contribution each
/// until this member takes part, and one result per round; more arrive only if this member learns of it far
/// too late.
pub const EARLY_FRAMES_PER_FRAGMENT_MAX: usize = 64;

/// Maximum bytes of a newer generation's frames, in models of f32. The members of a site share its uploads,
/// and all members the ownership, so a member receives less than a model of each per round; the rest is for
/// results of rounds completed without it.
pub const EARLY_MODELS_MAX: u64 = 8;

/// The minimum of that for small models, in bytes: four frames of the largest size.
pub const EARLY_BYTES_MIN: u64 = 4 * FRAME_BODY_BYTES_MAX as u64;

/// Frames of the newest known generation; those of generations in between are dropped.
#[derive(Debug)]
pub(super) struct EarlyFrames {
    frames_max: usize,
    bytes_max: u64,
    bytes: u64,
    generation: Generation,
    overflowed: bool,
    frames: BTreeMap<(Round, FrameKind, FragmentId, WorkerId), Frame>,
}

impl EarlyFrames {
    pub fn new(layout: FragmentLayout) -> Self {
        let model_bytes = layout.values.saturating_mul(size_of::<f32>() as u64);
        Self {
            frames_max: layout.count() as usize * EARLY_FRAMES_PER_FRAGMENT_MAX,
            bytes_max: model_bytes.saturating_mul(EARLY_MODELS_MAX).max(EARLY_BYTES_MIN),
            bytes: 0,
            generation: Generation(0),
            overflowed: false,
            frames: BTreeMap::new(),
        }
    }

    /// Keeps a frame. Silently drops one of an older generation than others, which will never begin. Returns
    /// false if the memory is full.
    pub fn keep(&mut self, frame: Frame) -> bool {
        let header = frame.header;
        if header.generation > self.generation {
            self.generation = header.generation;
            self.frames.clear();
            self.bytes = 0;
            self.overflowed = false;
        }
        if header.generation == self.generation {
            let key = (header.round, header.kind, header.fragment, frame.from);
            if self.frames.contains_key(&key) {
                return true;
            }
            let bytes = self.bytes + frame.body.len() as u64;
            if self.frames.len() >= self.frames_max || bytes > self.bytes_max {
                self.overflowed = true;
                return false;
            }
            self.bytes = bytes;
            self.frames.insert(key, frame);
        }
        true
    }

    /// Returns the number of frames in memory.
    pub fn held(&self) -> usize {
        self.frames.len()
    }

    /// Whether frames of this generation were refused.
    pub fn overflowed(&self, generation: Generation) -> bool {
        self.overflowed && self.generation == generation
    }

    /// Returns the frames of a generation that begins now, by round.
    pub fn take(&mut self, generation: Generation) -> Vec<Frame> {
        if generation < self.generation {
            return Vec::new();
        }
        self.bytes = 0;
        std::mem::take(&mut self.frames)
            .into_values()
            .filter(|frame| frame.header.generation == generation)
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use longhaul_common::id::SiteId;

    use super::super::frame::FrameHeader;
    use super::*;

    const MIB: usize = 1 << 20;

    fn frame(generation: u64, round: u64, body: &Bytes) -> Frame {
        let header = FrameHeader {
            kind: FrameKind::Result,
            generation: Generation(generation),
            round: Round(round),
            fragment: FragmentId(0),
            weight: 0,
            site: SiteId(0),
        };
        Frame { from: WorkerId(1), header, body: body.clone(), hash: [0; 32] }
    }

    #[test]
    fn early_frames_are_bounded_in_bytes_by_the_models_size() {
        // 20 MiB of f32 in 20 fragments, which may have 1280 frames.
        let layout = FragmentLayout { values: 5 * MIB as u64, fragment_values: 262_144 };
        let mut early = EarlyFrames::new(layout);
        let body = Bytes::from(vec![0; MIB]);
        let kept = (0..200).filter(|&round| early.keep(frame(2, round, &body))).count();
        assert_eq!((kept, early.held()), (160, 160));
        assert!(early.overflowed(Generation(2)));
        assert!(early.keep(frame(2, 3, &body)), "what is here already takes no more room");

        assert!(early.keep(frame(3, 0, &body)), "those of a newer generation take the place of the others");
        assert_eq!((early.held(), early.overflowed(Generation(3))), (1, false));
        assert_eq!(early.take(Generation(3)).len(), 1);
        let kept = (0..200).filter(|&round| early.keep(frame(3, round, &body))).count();
        assert_eq!(kept, 160, "what was taken is not in memory any more");
    }
}
