//! The synchroniser's side of the site's reduction.

use std::collections::BTreeSet;
use std::sync::Arc;

use anyhow::{Result, ensure};
use bytes::Bytes;
use longhaul_common::config::{RunConfig, WithinSite};
use longhaul_common::id::{FragmentId, Round, WorkerId};
use longhaul_proto::control::message::GenerationStart;
use longhaul_proto::round::{Event, Frame, FrameHeader, FrameKind};

use super::job::{SiteHandle, SiteSetup};
use super::layout::SiteLayout;
use super::plan::SitePlan;
use super::slot::{Piece, Request};
use super::{Asked, SiteEvent, SiteNews, SitePart, SiteReduction};
use crate::running::Stage;
use crate::sparse_ranges::SparseRanges;
use crate::synchroniser::Synchroniser;

impl Synchroniser {
    /// Begins a generation: drops the previous one, and connects to the members of this site.
    pub(crate) fn begin_site(&mut self, start: &GenerationStart) {
        let Stage::Running(running) = &mut self.stage else { return };
        running.site = SiteReduction { generation: start.membership.generation, ..SiteReduction::default() };
        let way = way_within_site(&self.config);
        let plan = if way == WithinSite::Direct { None } else { SitePlan::new(start, self.worker) };
        let (Some(plan), Some(prepared)) = (plan, &self.part.prepared) else {
            return;
        };
        let (handle, job) = SiteHandle::new(SiteSetup {
            generation: start.membership.generation,
            members: plan.members().to_vec(),
            rank: plan.rank(),
            values: running.rounds.layout.values,
            way,
            gpu: prepared.gpu,
        });
        match self.outside.start_site(job) {
            Ok(()) => running.site.joint = Some((plan, handle)),
            Err(error) => tracing::warn!(%error, "no thread for the reduction within the site; {DIRECTLY}"),
        }
    }

    /// Ends the reduction with members of this site that left the run: the next generation has another one.
    pub(crate) fn leave_site_of(&mut self, workers: &[WorkerId]) {
        let Stage::Running(running) = &mut self.stage else { return };
        let is_with = |plan: &SitePlan| plan.members().iter().any(|member| workers.contains(&member.worker));
        drop(running.site.joint.take_if(|(plan, _)| is_with(plan)));
    }

    /// Hands over this member's new parts of the open round: the whole, or the parts that are final during computation.
    pub(crate) fn ask_site(&mut self) -> Result<()> {
        let Stage::Running(running) = &mut self.stage else { return Ok(()) };
        let Some((plan, job)) = &running.site.joint else { return Ok(()) };
        let round = running.member.open_round();
        if running.member.generation() != Some(running.site.generation)
            || round >= running.rounds.until
            || !plan.covers(round)
        {
            return Ok(());
        }
        let finished = running.contributions.finished.as_ref().filter(|finished| finished.round == round);
        let (samples, parts) = match (running.member.weight_in(round), finished) {
            (Some(samples), _) => (samples, None),
            (None, Some(finished)) => (finished.weight, Some(&finished.fragments)),
            (None, None) => return Ok(()),
        };
        let asked = match running.site.asked.take() {
            Some(asked) if asked.round >= round => asked,
            _ => Asked::nothing_of(
                round,
                plan.layout(round, &running.rounds.schedule, running.rounds.layouts.of(round)),
            ),
        };
        let asked = running.site.asked.insert(asked);
        if asked.round > round || asked.is_whole || parts.is_some_and(|parts| parts.len() == asked.seen.len())
        {
            return Ok(());
        }
        let update = running.contributions.of_rounds.get(&round).filter(|_| samples > 0);
        let pieces = match parts {
            Some(parts) => asked.fragments(update, parts.iter().copied()),
            None => asked.rest(update),
        };
        // Summed with others, it would spoil their updates as well.
        ensure!(
            pieces.iter().all(Piece::is_finite),
            "the update of {round} is not finite: training diverged"
        );
        job.ask(Request { round, layout: Arc::clone(&asked.layout), pieces, samples });
        Ok(())
    }

    /// Returns a frame for the round protocol; `None`: it waits for the site's reduction.
    pub(crate) fn after_site(&mut self, frame: Frame) -> Option<Frame> {
        match &mut self.stage {
            Stage::Running(running) => running.site.keep(frame),
            Stage::Preparing => Some(frame),
        }
    }

    pub(crate) fn site_has_news(&mut self, event: SiteEvent) {
        let Stage::Running(running) = &mut self.stage else { return };
        let site = &mut running.site;
        if event.generation != site.generation {
            return;
        }
        match event.news {
            SiteNews::Reduced { round, part } if site.asked_in(round) => {
                let frames = site.frames_of_others(round, &part);
                site.take_part(round, part);
                frames.into_iter().for_each(|frame| self.feed(Event::Frame(frame)));
            }
            // It was decided without this site.
            SiteNews::Reduced { .. } => {}
            SiteNews::Passed { round } => {
                site.finish(round);
                site.withheld.retain(|(_, header)| header.round > round);
            }
            SiteNews::Confirmed { round } => site.withheld.retain(|(_, header)| header.round > round),
            SiteNews::Failed(reason) => {
                tracing::warn!(reason, "the members of this site cannot reduce together; {DIRECTLY}");
                self.go_directly();
            }
        }
    }

    /// Switches members' updates to the frames of the round protocol, including those of the open round unless they are known to be needless.
    fn go_directly(&mut self) {
        let Stage::Running(running) = &mut self.stage else { return };
        running.site.joint = None;
        let withheld = std::mem::take(&mut running.site.withheld);
        let early = std::mem::take(&mut running.site.early);
        let open = running.member.open_round();
        // A settlement has made them void, and `Begin` sends them again.
        if running.member.generation() == Some(running.site.generation) {
            let needed = withheld.into_iter().filter(|(_, header)| header.round == open);
            needed.for_each(|(to, header)| self.send_local(to, header));
        }
        early.into_values().for_each(|frame| self.feed(Event::Frame(frame)));
    }
}

/// Returns the transport within the site. Not NCCL beside tensor groups, whose GPUs each have a communicator already: with two, GPUs would wait for each
/// other crosswise, until a timeout.
fn way_within_site(config: &RunConfig) -> WithinSite {
    match config.sync.within_site {
        WithinSite::Nccl if config.parallel.tensor > 1 => WithinSite::Ring,
        way => way,
    }
}

/// Consequence of a failed joint reduction, for the rest of the generation.
const DIRECTLY: &str = "updates go directly to the uploaders until the next generation";

impl SiteReduction {
    /// Returns the frames that tell the round protocol that every other member has delivered. Their numbers are in the mean already.
    fn frames_of_others(&self, round: Round, part: &SitePart) -> Vec<Frame> {
        let Some((plan, _)) = &self.joint else { return Vec::new() };
        let body = Bytes::new();
        let hash = *blake3::hash(&body).as_bytes();
        let others = plan.members().iter().zip(&part.samples).enumerate();
        let others = others.filter(|(rank, _)| *rank != plan.rank());
        let frames = others.flat_map(|(_, (member, &weight))| {
            let body = &body;
            part.fragments.iter().map(move |&(fragment, _)| {
                let (generation, site) = (self.generation, plan.site());
                let kind = FrameKind::Local;
                let header = FrameHeader { kind, generation, round, fragment, weight, site };
                Frame { from: member.worker, header, body: body.clone(), hash }
            })
        });
        frames.collect()
    }

    /// Reports whether this is the last round with parts handed to the job.
    fn asked_in(&self, round: Round) -> bool {
        self.asked.as_ref().is_some_and(|asked| asked.round == round)
    }
}

impl Asked {
    fn nothing_of(round: Round, layout: SiteLayout) -> Self {
        Self { round, layout: Arc::new(layout), seen: BTreeSet::new(), is_whole: false }
    }

    /// Returns those of these fragments that are reduced in the round and not yet handed over.
    fn fragments(
        &mut self,
        update: Option<&SparseRanges>,
        fragments: impl Iterator<Item = FragmentId>,
    ) -> Vec<Piece> {
        let nothing = SparseRanges::default();
        let update = update.unwrap_or(&nothing);
        let mut pieces = Vec::new();
        for fragment in fragments {
            if self.seen.insert(fragment)
                && let Some(turn) = self.layout.turn_of(fragment)
            {
                pieces.push(Piece::Fragment { turn, values: self.layout.slice(update, turn) });
            }
        }
        pieces
    }

    /// Returns all parts not yet handed over.
    fn rest(&mut self, update: Option<&SparseRanges>) -> Vec<Piece> {
        self.is_whole = true;
        if self.seen.is_empty() {
            let nothing = SparseRanges::default();
            return vec![Piece::Whole(self.layout.pack(update.unwrap_or(&nothing)))];
        }
        let layout = Arc::clone(&self.layout);
        self.fragments(update, layout.fragments())
    }
}
