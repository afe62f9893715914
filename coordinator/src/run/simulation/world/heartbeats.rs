//! That workers are alive, as they say it, or as one of their site says it for them.

use super::*;

impl World {
    pub(super) fn heartbeat(&mut self, worker: WorkerId, incarnation: u64) {
        let node = &self.nodes[&worker];
        if node.incarnation != incarnation || !node.running {
            return;
        }
        if !node.frozen {
            let speaker = self.speaker_for(worker);
            self.nodes.get_mut(&worker).unwrap().beats += 1;
            match speaker {
                Some(speaker) if self.nodes[&speaker].frozen || !self.nodes[&speaker].running => {
                    self.at_ms(ANSWER_MAX_MS, Happening::Unanswered(worker, incarnation));
                }
                // It has lost the coordinator itself, and says so.
                Some(speaker) if self.nodes[&speaker].connection.is_none() => {
                    self.at_ms(1, Happening::Unanswered(worker, incarnation));
                }
                Some(speaker) => {
                    let now = self.now;
                    self.nodes.get_mut(&speaker).unwrap().signs.insert(worker, (incarnation, now));
                }
                None => self.say_heartbeat(worker),
            }
        }
        self.at_ms(HEARTBEAT_INTERVAL_MS, Happening::Heartbeat(worker, incarnation));
    }

    /// Who is to say that this worker is alive; none: itself.
    pub(super) fn speaker_for(&self, worker: WorkerId) -> Option<WorkerId> {
        let node = &self.nodes[&worker];
        let is_own_word = node.beats.is_multiple_of(OWN_WORD_EVERY) || !node.signs.is_empty();
        if is_own_word || node.connection.is_none() || self.now < node.speaks_until {
            return None;
        }
        let members = node.generation.as_ref()?.membership.members();
        let of_site = members.iter().filter(|member| member.site == node.site).map(|member| member.worker);
        of_site.min().filter(|speaker| *speaker < worker)
    }

    pub(super) fn say_heartbeat(&mut self, worker: WorkerId) {
        let node = self.nodes.get_mut(&worker).unwrap();
        let step = super::super::schedule().steps_of(node.last_begun.unwrap_or_default()).start;
        let own = Heartbeat { step, ..Default::default() };
        let taken = std::mem::take(&mut node.signs);
        let signs = taken.into_iter().filter_map(|(worker, (incarnation, at))| {
            let age_ms = (self.now - at).as_millis() as u64;
            (age_ms <= 2 * HEARTBEAT_INTERVAL_MS).then_some(SignOfLife {
                worker,
                incarnation,
                age_ms: age_ms as u16,
            })
        });
        let others: Vec<_> = signs.collect();
        let message = match others.is_empty() {
            true => ToCoordinator::Heartbeat(own),
            false => ToCoordinator::SiteHeartbeat { own, others },
        };
        self.say(worker, message);
    }
}
