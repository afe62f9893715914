//! The reduction within this member's site, before anything leaves it: over `longhaul_collective` where that works, else by the frames of
//! the round protocol. What is final while devices compute the rest is reduced, and leaves, as soon as all members have it. `collective/docs/collective.md` says
//! why nothing is lost or counted twice when it fails half-way.

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

/// What a generation's [`SiteJob`] says.
#[derive(Debug)]
pub struct SiteEvent {
    generation: Generation,
    news: SiteNews,
}

/// How far the reduction within the site has come.
#[derive(Debug)]
pub(crate) enum SiteNews {
    /// This member has the site's mean of some of what it uploads, or of nothing of it.
    Reduced { round: Round, part: SitePart },
    /// The others have theirs as well.
    Confirmed { round: Round },
    /// The others have the round's results already.
    Passed { round: Round },
    /// Nothing comes any more.
    Failed(String),
}

/// What the site has reduced at a time, as the member has it that uploads it.
#[derive(Debug)]
pub(crate) struct SitePart {
    /// Each with its place in the mean.
    fragments: Vec<(FragmentId, Range<usize>)>,
    /// Empty if nobody has samples.
    mean: Vec<f32>,
    /// By rank.
    samples: Vec<u32>,
    /// Whether that is all of the round.
    is_last: bool,
}

/// What this member does with its site in the present generation.
#[derive(Default)]
pub(crate) struct SiteReduction {
    generation: Generation,
    /// None: by the frames of the round protocol.
    joint: Option<(SitePlan, SiteHandle)>,
    /// The last round of which something was handed to the job.
    asked: Option<Asked>,
    /// The last round that is decided or reduced.
    done: Option<Round>,
    /// Frames that are to be sent if the reduction fails.
    withheld: Vec<(WorkerId, FrameHeader)>,
    /// What others sent although this member may still reduce with them: the newest of each for each fragment.
    early: BTreeMap<(FragmentId, WorkerId), Frame>,
    mean: Option<SiteMean>,
}

/// What the job has of a round.
struct Asked {
    round: Round,
    layout: Arc<SiteLayout>,
    /// All that was final when it was last looked at, whether the round has it or not.
    seen: BTreeSet<FragmentId>,
    is_whole: bool,
}

/// A round's mean of what this member uploads, as far as it is here.
struct SiteMean {
    round: Round,
    /// In which part each fragment is, and where.
    places: BTreeMap<FragmentId, (usize, Range<usize>)>,
    parts: Vec<Vec<f32>>,
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
        let (part, place) = mean.places.get(&fragment)?;
        mean.parts.get(*part)?.get(place.clone())
    }

    /// Keeps another member's frame that may turn out not to be needed; gives back any other.
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

    /// There is no reduction together any more.
    #[cfg(any(test, feature = "testing"))]
    pub fn end(&mut self) {
        self.joint = None;
    }

    /// Whether this member reduces with its site, rather than by frames.
    pub fn is_joint_in(&self, round: Round) -> bool {
        self.joint.as_ref().is_some_and(|(plan, _)| plan.covers(round))
    }

    /// Keeps what the site has reduced of a round, and forgets what that makes needless.
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

    /// Forgets what a round that is reduced or decided makes needless.
    fn finish(&mut self, round: Round) {
        self.done = self.done.max(Some(round));
        self.early.retain(|_, frame| frame.header.round > round);
    }
}
