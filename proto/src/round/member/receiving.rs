//! Incoming frames and pulled results.

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Round, WorkerId};

use super::super::command::{Command, Contribution, Violation};
use super::super::duties::Duties;
use super::super::frame::{Frame, FrameKind};
use super::super::result::FragmentResult;
use super::super::results::{Held, Inserted};
use super::super::upload::NotTaken;
use super::super::{ROUNDS_AHEAD_MAX, SMALL_RESULTS_KEPT_ROUNDS};
use super::Member;
use crate::control::message::Hash;

impl Member {
    pub(super) fn receive(&mut self, frame: Frame) {
        let present = self.duties.clone();
        let generation = present.as_ref().map(|duties| duties.generation());
        match present {
            _ if Some(frame.header.generation) > generation => self.keep_early(frame),
            Some(duties) if duties.generation() == frame.header.generation => {
                if self.settling.is_some() {
                    self.dropped.settling += 1;
                } else {
                    self.receive_present(&duties, frame);
                }
            }
            _ => self.dropped.stale += 1,
        }
    }

    fn keep_early(&mut self, frame: Frame) {
        if frame.header.fragment.0 >= self.layout.count() {
            self.dropped.unexpected += 1;
        } else if !self.early.keep(frame) {
            self.dropped.early_overflow += 1;
        }
    }

    /// Handles a frame of the present generation.
    pub(super) fn receive_present(&mut self, duties: &Duties, frame: Frame) {
        let Frame { from, header, body, hash } = frame;
        let site = duties.membership.member(from).map(|member| member.site);
        if site != Some(header.site) || header.fragment.0 >= self.layout.count() {
            return self.accuse(from, Violation::NotItsDuty);
        }
        let (round, fragment) = (header.round, header.fragment);
        match header.kind {
            FrameKind::Local => {
                if site != Some(self.site) || !duties.uploads(fragment) || !duties.is_active(from, round) {
                    return self.accuse(from, Violation::NotItsDuty);
                }
                self.receive_local(duties, from, round, fragment, header.weight, body);
            }
            FrameKind::Contribution => {
                let uploader = duties.membership.uploader(header.site, fragment);
                let contributes = duties.contributing_sites(round).contains(&header.site);
                if !duties.owns(fragment) || uploader != Some(from) || !contributes {
                    return self.accuse(from, Violation::NotItsDuty);
                }
                let contribution = Contribution { site: header.site, weight: header.weight, body };
                self.collect(duties, fragment, round, contribution);
            }
            FrameKind::Result => {
                let passes_on = duties.uploader(fragment) == Some(from);
                let publishes = duties.owner(fragment) == Some(from) && duties.uploads(fragment);
                if !passes_on && !publishes || round < duties.first_made(fragment) {
                    return self.accuse(from, Violation::NotItsDuty);
                }
                self.receive_result(duties, from, round, fragment, body, hash);
            }
        }
    }

    fn receive_local(
        &mut self,
        duties: &Duties,
        from: WorkerId,
        round: Round,
        fragment: FragmentId,
        weight: u32,
        body: Bytes,
    ) {
        if round < self.open_round().max(duties.first_made(fragment)) {
            self.dropped.late += 1;
            return;
        }
        let Some(upload) = self.upload_mut(fragment) else { return };
        match upload.take(from, round, weight, body) {
            Ok(()) if round == self.open_round() => self.compress_if_all_here(duties, fragment),
            Ok(()) => {}
            Err(NotTaken::Duplicate) => self.dropped.duplicate += 1,
            Err(NotTaken::Late) => self.dropped.late += 1,
        }
    }

    fn receive_result(
        &mut self,
        duties: &Duties,
        from: WorkerId,
        round: Round,
        fragment: FragmentId,
        bytes: Bytes,
        hash: Hash,
    ) {
        if round > self.results.last_kept() {
            return self.miss(from, round, fragment);
        }
        let Some(result) = self.read(duties, &bytes) else {
            return self.accuse(from, Violation::MalformedResult);
        };
        match self.keep_result(round, fragment, Held { bytes, hash, result }) {
            Inserted::New => {
                self.pulls.forget((round, fragment));
                self.pass_on(duties, round, fragment);
                self.complete_rounds();
            }
            Inserted::Duplicate => self.dropped.duplicate += 1,
            Inserted::Conflict => self.accuse(from, Violation::ConflictingResult),
        }
    }

    /// Decodes a result that names only sites of this generation. (Results of an earlier generation may name
    /// others; those are pulled.)
    fn read(&self, duties: &Duties, bytes: &Bytes) -> Option<FragmentResult> {
        let result = FragmentResult::decode(bytes).ok()?;
        let known = result.sites().all(|site| duties.membership.has_site(site));
        known.then_some(result)
    }

    /// Notes a result that came too early to keep.
    fn miss(&mut self, from: WorkerId, round: Round, fragment: FragmentId) {
        self.dropped.ahead += 1;
        let lag = round.0 - self.open_round().0;
        if lag <= ROUNDS_AHEAD_MAX + SMALL_RESULTS_KEPT_ROUNDS {
            self.missed.insert((round, fragment), from);
        } else {
            // No peer will have it by its turn.
            self.lose(round, fragment);
        }
    }

    /// Requests the missed results that now fit.
    fn want_missed(&mut self) {
        let Some(duties) = self.running() else { return };
        let later = self.missed.split_off(&(self.results.last_kept().next(), FragmentId(0)));
        for ((round, fragment), from) in std::mem::replace(&mut self.missed, later) {
            if round >= self.open_round() && self.results.get(round, fragment).is_none() {
                let mut holders = duties.likely_holders(fragment);
                holders.sort_by_key(|&holder| holder != from);
                self.pulls.want((round, fragment), None, holders);
            }
        }
    }

    pub(super) fn start_pulls(&mut self) {
        for request in self.pulls.start(self.now) {
            let (round, fragment) = (request.round, request.fragment);
            self.commands.push_back(Command::Pull {
                round,
                fragment,
                hash: request.hash,
                from: request.from,
            });
        }
    }

    pub(super) fn pulled(&mut self, round: Round, fragment: FragmentId, bytes: Bytes, hash: Hash) {
        let Some(duties) = self.running() else { return };
        let Some((name, from)) = self.pulls.in_flight((round, fragment)) else { return };
        let result = FragmentResult::decode(&bytes).ok().filter(|_| name.is_none_or(|name| name == hash));
        let Some(result) = result else {
            self.accuse(from, Violation::WrongBytes);
            return self.pull_failed(round, fragment, from);
        };
        self.pulls.arrived((round, fragment), bytes.len());
        if self.keep_result(round, fragment, Held { bytes, hash, result }) == Inserted::New {
            self.pass_on(&duties, round, fragment);
            self.complete_rounds();
        }
    }

    pub(super) fn pull_failed(&mut self, round: Round, fragment: FragmentId, from: WorkerId) {
        if !self.pulls.failed((round, fragment), from, self.now) {
            self.lose(round, fragment);
        }
    }

    /// Keeps a result, and reports it if it is of the open round.
    pub(super) fn keep_result(&mut self, round: Round, fragment: FragmentId, held: Held) -> Inserted {
        let result = held.result.clone();
        let inserted = self.results.insert(round, fragment, held);
        if inserted == Inserted::New && round == self.open_round() {
            self.commands.push_back(Command::ResultHere { round, fragment, result });
        }
        inserted
    }

    /// Reports results that came before their round was open.
    fn tell_of_early_results(&mut self) {
        let round = self.open_round();
        for fragment in self.layout.fragments().filter(|&fragment| self.schedule.is_due(round, fragment)) {
            if let Some(held) = self.results.get(round, fragment) {
                let result = held.result.clone();
                self.commands.push_back(Command::ResultHere { round, fragment, result });
            }
        }
    }

    /// Reports complete rounds, and takes part in the newly open one.
    pub(super) fn complete_rounds(&mut self) {
        let opened = self.open_round();
        while let Some((round, results)) = self.results.advance() {
            let contributed = self.contributed.contains_key(&round);
            self.account_for(round);
            self.commands.push_back(Command::RoundComplete { round, results });
            if contributed {
                self.commands.push_back(Command::Release { round });
            }
        }
        if self.open_round() > opened {
            self.tell_of_early_results();
            self.want_missed();
            self.offer_open_round();
            self.close_full();
        }
    }
}
