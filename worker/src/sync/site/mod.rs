//! The reduction within this member's site, before anything leaves it: over [`crate::collective`] where that works, else by the frames of
//! the round protocol. `docs/collective.md` says why nothing is lost or counted twice when it fails half-way.

mod plan;
mod slot;
mod steps;
#[cfg(test)]
mod tests;
mod thread;

use std::collections::BTreeMap;
use std::ops::Range;

use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::round::{Frame, FrameHeader, FrameKind};

use self::plan::{SiteLayout, SitePlan};
use self::thread::SiteThread;

/// What a generation's site thread says.
#[derive(Debug)]
pub struct SiteEvent {
    generation: Generation,
    news: SiteNews,
}

/// How far the reduction within the site has come.
#[derive(Debug)]
pub(in crate::sync) enum SiteNews {
    /// This member has the site's mean of all that it uploads.
    Reduced {
        round: Round,
        layout: SiteLayout,
        /// Of this member's range; empty if nobody has samples.
        mean: Vec<f32>,
        /// By rank.
        samples: Vec<u32>,
    },
    /// The others have theirs as well.
    Confirmed { round: Round },
    /// The others have the round's results already.
    Passed { round: Round },
    /// Nothing comes any more.
    Failed(String),
}

/// What this member does with its site in the present generation.
#[derive(Default)]
pub(in crate::sync) struct SiteReduction {
    generation: Generation,
    /// None: by the frames of the round protocol.
    joint: Option<(SitePlan, SiteThread)>,
    /// The last round that was handed to the thread.
    asked: Option<Round>,
    /// The last round that is decided or reduced.
    done: Option<Round>,
    /// Frames that are to be sent if the reduction fails.
    withheld: Vec<(WorkerId, FrameHeader)>,
    /// What others sent although this member may still reduce with them: the newest of each for each fragment.
    early: BTreeMap<(FragmentId, WorkerId), Frame>,
    mean: Option<SiteMean>,
}

/// A round's mean of what this member uploads.
struct SiteMean {
    round: Round,
    /// Where each fragment is.
    places: BTreeMap<FragmentId, Range<usize>>,
    values: Vec<f32>,
}

impl SiteReduction {
    /// Notes a frame that is sent only if the reduction fails. False: it is to be sent at once.
    pub fn withholds(&mut self, to: WorkerId, header: FrameHeader) -> bool {
        let jointly = header.generation == self.generation && self.is_joint_in(header.round);
        if jointly {
            self.withheld.push((to, header));
        }
        jointly
    }

    /// The site's mean of a fragment, where it was reduced together.
    pub fn mean_of(&self, round: Round, fragment: FragmentId) -> Option<&[f32]> {
        let mean = self.mean.as_ref().filter(|mean| mean.round == round)?;
        mean.values.get(mean.places.get(&fragment)?.clone())
    }

    /// Keeps another member's frame that may turn out not to be needed; gives back any other.
    fn keep(&mut self, frame: Frame) -> Option<Frame> {
        let header = frame.header;
        let may_reduce = header.kind == FrameKind::Local
            && header.generation == self.generation
            && self.is_joint_in(header.round)
            && self.done < Some(header.round)
            && self.joint.as_ref().is_some_and(|(plan, _)| plan.expects(&frame));
        if !may_reduce {
            return Some(frame);
        }
        let key = (header.fragment, frame.from);
        if self.early.get(&key).is_none_or(|kept| kept.header.round < header.round) {
            self.early.insert(key, frame);
        }
        None
    }

    /// Whether this member reduces with its site, rather than by frames.
    pub fn is_joint_in(&self, round: Round) -> bool {
        self.joint.as_ref().is_some_and(|(plan, _)| plan.covers(round))
    }

    /// Forgets what a round that is reduced or decided makes needless.
    fn finish(&mut self, round: Round) {
        self.done = self.done.max(Some(round));
        self.early.retain(|_, frame| frame.header.round > round);
    }
}
