//! The reduction within this member's site, before any frame leaves it: over `longhaul_collective` if possible, else by frames of the round protocol. Final
//! parts are reduced, and leave, once all members have them. `collective/docs/collective.md` explains why a failure neither loses values nor counts them
//! twice.

mod job;
mod layout;
mod plan;
mod said;
mod slot;
mod steps;
#[cfg(test)]
mod tests;
mod vector;

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;

use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};
use longhaul_proto::round::{Frame, FrameHeader, FrameKind};

use self::job::SiteHandle;
pub use self::job::{SiteJob, SiteJoin, SiteLink};
use self::layout::SiteLayout;
use self::plan::SitePlan;

/// Event from a generation's [`SiteJob`].
#[derive(Debug)]
pub struct SiteEvent {
    generation: Generation,
    news: SiteNews,
}

/// Progress of the reduction within the site.
#[derive(Debug)]
pub(crate) enum SiteNews {
    /// This member has the site's mean for a possibly empty part of its uploads.
    Reduced { round: Round, part: SitePart },
    /// The others have theirs as well.
    Confirmed { round: Round },
    /// The others have the round's results already.
    Passed { round: Round },
    /// The job has ended.
    Failed(String),
}

/// The result of one reduction, as held by an uploader.
#[derive(Debug)]
pub(crate) struct SitePart {
    /// Fragments, each with its place in the mean.
    fragments: Vec<(FragmentId, Range<usize>)>,
    /// Empty if no member has samples.
    mean: Vec<f32>,
    /// Samples by rank.
    samples: Vec<u32>,
    /// Whether this completes the round.
    is_last: bool,
}

/// This member's reduction with its site in the present generation.
#[derive(Default)]
pub(crate) struct SiteReduction {
    generation: Generation,
    /// `None`: by the frames of the round protocol.
    joint: Option<(SitePlan, SiteHandle)>,
    /// Last round with parts handed to the job.
    asked: Option<Asked>,
    /// Last round decided or reduced.
    done: Option<Round>,
    /// Frames to send if the reduction fails.
    withheld: Vec<(WorkerId, FrameHeader)>,
    /// Frames of other members that may prove needless: the newest of each for each fragment.
    early: BTreeMap<(FragmentId, WorkerId), Frame>,
    mean: Option<SiteMean>,
}

/// Parts of a round handed to the job.
struct Asked {
    round: Round,
    layout: Arc<SiteLayout>,
    /// All fragments final at the last check, whether part of the round or not.
    seen: BTreeSet<FragmentId>,
    is_whole: bool,
}

/// A round's mean of this member's uploads, as far as known.
struct SiteMean {
    round: Round,
    /// Part and place of each fragment.
    places: BTreeMap<FragmentId, (usize, Range<usize>)>,
    parts: Vec<Vec<f32>>,
}

impl SiteReduction {
    /// Notes a frame to send only if the reduction fails. `false`: send it at once.
    pub fn withholds(&mut self, to: WorkerId, header: FrameHeader) -> bool {
        let jointly = header.generation == self.generation && self.is_joint_in(header.round);
        if jointly {
            self.withheld.push((to, header));
        }
        jointly
    }

    /// Returns the site's mean of a fragment, if it was reduced jointly.
    pub fn mean_of(&self, round: Round, fragment: FragmentId) -> Option<&[f32]> {
        let mean = self.mean.as_ref().filter(|mean| mean.round == round)?;
        let (part, place) = mean.places.get(&fragment)?;
        mean.parts.get(*part)?.get(place.clone())
    }

    /// Keeps another member's frame that may prove needless; returns any other.
    fn keep(&mut self, frame: Frame) -> Option<Frame> {
        let header = frame.header;
        let may_reduce = header.kind == FrameKind::Local
            && header.generation == self.generation
            && self.is_joint_in(header.round)
            && self.done < Some(header.round)
            && self.mean_of(header.round, header.fragment).is_none()
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

    /// Ends the joint reduction.
    #[cfg(any(test, feature = "testing"))]
    pub fn end(&mut self) {
        self.joint = None;
    }

    /// Reports whether this member reduces jointly with its site, rather than by frames.
    pub fn is_joint_in(&self, round: Round) -> bool {
        self.joint.as_ref().is_some_and(|(plan, _)| plan.covers(round))
    }

    /// Stores a reduced part of a round, and drops the frames it replaces.
    fn take_part(&mut self, round: Round, part: SitePart) {
        let SitePart { fragments, mean, is_last, .. } = part;
        let has = |fragment| fragments.iter().any(|(of, _)| *of == fragment);
        self.early.retain(|(fragment, _), frame| frame.header.round > round || !has(*fragment));
        let before = self.mean.take().filter(|mean| mean.round == round);
        let mut all = before.unwrap_or(SiteMean { round, places: BTreeMap::new(), parts: Vec::new() });
        let at = all.parts.len();
        all.places.extend(fragments.into_iter().map(|(fragment, place)| (fragment, (at, place))));
        all.parts.push(mean);
        self.mean = Some(all);
        if is_last {
            self.finish(round);
        }
    }

    /// Drops the frames of a round that is reduced or decided.
    fn finish(&mut self, round: Round) {
        self.done = self.done.max(Some(round));
        self.early.retain(|_, frame| frame.header.round > round);
    }
}
