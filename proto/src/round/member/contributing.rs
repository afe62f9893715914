//! A member's own updates, and the work of an uploader.

use bytes::Bytes;
use longhaul_common::id::{FragmentId, Generation, Round, WorkerId};

use super::super::command::{Command, Contribution, Local};
use super::super::duties::Duties;
use super::super::frame::{FrameHeader, FrameKind};
use super::super::upload::Compression;
use super::Member;

impl Member {
    pub(super) fn contribute(&mut self, round: Round, weight: u32) {
        if self.last_contributed >= Some(round) {
            return;
        }
        self.last_contributed = Some(round);
        let decided = self.ready.take(round);
        if round < self.open_round() {
            // The others did not wait. Fragments not ready then were not sent, so no result contains them,
            // whatever sites it names.
            if weight > 0 {
                let due = self.layout.fragments().filter(|&fragment| self.schedule.is_due(round, fragment));
                let undecided = due.filter(|fragment| !decided.contains(fragment));
                self.commands.extend(undecided.map(|fragment| Command::CarryOver { round, fragment }));
            }
            self.commands.push_back(Command::Release { round });
            return;
        }
        self.contributed.insert(round, weight);
        if round == self.open_round() {
            self.offer_open_round();
        }
    }

    /// Offers a finished fragment for sending. In a round that is over it is too late, and is accounted for
    /// with the rest.
    pub(super) fn fragment_ready(&mut self, round: Round, fragment: FragmentId, weight: u32) {
        let is_open = round >= self.open_round() && self.last_contributed < Some(round);
        let is_due = fragment.0 < self.layout.count() && self.schedule.is_due(round, fragment);
        if !is_open || !is_due || weight == 0 || !self.ready.note(round, fragment, weight) {
            return;
        }
        if let Some(duties) = self.running().filter(|_| round == self.open_round()) {
            self.offer(&duties, fragment);
        }
    }

    /// Takes part in the open round: sends this member's slices, and compresses where all are present. Called
    /// when the round opens, when this member's update is ready, and when a generation begins.
    pub(super) fn offer_open_round(&mut self) {
        let Some(duties) = self.running() else { return };
        for fragment in self.layout.fragments() {
            self.offer(&duties, fragment);
        }
    }

    fn offer(&mut self, duties: &Duties, fragment: FragmentId) {
        let round = self.open_round();
        if !duties.makes(round, fragment) || self.results.get(round, fragment).is_some() {
            return;
        }
        if duties.uploads(fragment) {
            return self.compress_if_all_here(duties, fragment);
        }
        let (Some(to), Some(weight)) = (duties.uploader(fragment), self.own_weight(duties, round, fragment))
        else {
            return;
        };
        let Some(upload) = self.upload_mut(fragment) else { return };
        if upload.offered < Some(round) {
            upload.offered = Some(round);
            self.send_local(duties, to, round, fragment, weight);
        }
    }

    /// Returns this member's weight for a fragment in a round; `None`: not ready, or this member is inactive.
    fn own_weight(&self, duties: &Duties, round: Round, fragment: FragmentId) -> Option<u32> {
        let ready = || self.ready.weight(round, fragment).filter(|_| duties.is_active(self.me, round));
        self.whole_weight(duties, round).or_else(ready)
    }

    /// Returns this member's weight for a whole round.
    pub(super) fn whole_weight(&self, duties: &Duties, round: Round) -> Option<u32> {
        // A recent joiner, counted in by a later generation, contributes nothing before its first round.
        let sits_out = self.starts_at.is_some_and(|first| round < first);
        let weight = self.contributed.get(&round).copied().or(sits_out.then_some(0));
        weight.filter(|_| duties.is_active(self.me, round))
    }

    fn send_local(&mut self, duties: &Duties, to: WorkerId, round: Round, fragment: FragmentId, weight: u32) {
        let header = self.header(duties, FrameKind::Local, round, fragment, weight);
        self.commands.push_back(if weight > 0 {
            Command::SendLocal { to, header }
        } else {
            Command::Send { to, header, body: Bytes::new(), hash: None }
        });
    }

    /// Makes the site's contribution to the open round when every active member's update is present.
    pub(super) fn compress_if_all_here(&mut self, duties: &Duties, fragment: FragmentId) {
        let round = self.open_round();
        if !duties.makes(round, fragment) || self.results.get(round, fragment).is_some() {
            return;
        }
        let own_weight = self.own_weight(duties, round, fragment);
        let me = self.me;
        let Some(upload) = self.upload_mut(fragment) else { return };
        let ready = |worker| if worker == me { own_weight.is_some() } else { upload.has(worker, round) };
        // A site without active members waits for none, and is not awaited.
        let is_counted = duties.locals(round).next().is_some();
        if upload.begun == Some(round) || !is_counted || !duties.locals(round).all(ready) {
            return;
        }
        upload.begun = Some(round);
        let update_of = |worker| {
            let (weight, body) = if worker == me {
                (own_weight?, None)
            } else {
                upload.give(worker, round).map(|(w, b)| (w, Some(b)))?
            };
            (weight > 0).then_some(Local { worker, weight, body })
        };
        let locals: Vec<Local> = duties.locals(round).filter_map(update_of).collect();
        let generation = duties.generation();
        let weight = locals.iter().fold(0u32, |sum, local| sum.saturating_add(local.weight));
        if locals.is_empty() {
            return self.contribute_site(duties, fragment, round, 0, Bytes::new());
        }
        upload.compression = Some(Compression { generation, round, weight, answered: false });
        upload.keeps_residual = true;
        self.commands.push_back(Command::Compress { generation, round, fragment, locals });
    }

    pub(super) fn compressed(
        &mut self,
        generation: Generation,
        round: Round,
        fragment: FragmentId,
        body: Bytes,
    ) {
        let Some(duties) = self.running().filter(|duties| duties.generation() == generation) else { return };
        let Some(compression) = self.upload_mut(fragment).and_then(|upload| upload.compression.as_mut())
        else {
            return;
        };
        let weight = compression.weight;
        if (compression.generation, compression.round) != (generation, round) || compression.answered {
            return;
        }
        compression.answered = true;
        self.contribute_site(&duties, fragment, round, weight, body);
    }

    /// Sends the site's contribution to the owner.
    fn contribute_site(
        &mut self,
        duties: &Duties,
        fragment: FragmentId,
        round: Round,
        weight: u32,
        body: Bytes,
    ) {
        match duties.owner(fragment) {
            Some(owner) if owner == self.me => {
                self.collect(duties, fragment, round, Contribution { site: self.site, weight, body });
            }
            Some(to) => {
                let header = self.header(duties, FrameKind::Contribution, round, fragment, weight);
                self.commands.push_back(Command::Send { to, header, body, hash: None });
            }
            None => {}
        }
    }

    /// Accounts for this member's slices of a complete round, by the sites that its results name.
    pub(super) fn account_for(&mut self, round: Round) {
        let whole = self.contributed.remove(&round);
        let schedule = self.schedule;
        for fragment in self.layout.fragments().filter(|&fragment| schedule.is_due(round, fragment)) {
            let named = self.results.get(round, fragment).is_some_and(|held| held.result.names(self.site));
            let has_me = named && !(self.without_me.0 == round && self.without_me.1.contains(&fragment));
            let own_weight = whole.or_else(|| self.ready.weight(round, fragment));
            let Some(upload) = self.upload_mut(fragment) else { continue };
            upload.forget_before(round.next());
            let retract = upload.compression.take_if(|c| c.round == round).is_some() && !named;
            if retract {
                self.commands.push_back(Command::Retract { round, fragment });
            }
            if own_weight.is_some_and(|weight| weight > 0) && !has_me {
                self.commands.push_back(Command::CarryOver { round, fragment });
            }
        }
        self.move_residuals();
    }

    /// Empties the residuals of fragments that others now upload.
    pub(super) fn move_residuals(&mut self) {
        let Some(duties) = self.duties.clone() else { return };
        for (fragment, upload) in self.layout.fragments().zip(&mut self.uploads) {
            if upload.keeps_residual && upload.compression.is_none() && !duties.uploads(fragment) {
                upload.keeps_residual = false;
                self.commands.push_back(Command::MoveResidual { fragment });
            }
        }
    }

    pub(super) fn header(
        &self,
        duties: &Duties,
        kind: FrameKind,
        round: Round,
        fragment: FragmentId,
        weight: u32,
    ) -> FrameHeader {
        FrameHeader { kind, generation: duties.generation(), round, fragment, weight, site: self.site }
    }
}
