//! That workers are alive, as they say it, or as one of their site says it for them.

use std::time::Duration;

use longhaul_proto::control::message::{
    HEARTBEAT_INTERVAL_MS, OWN_WORD_EVERY, SIGNS_MAX, SignOfLife, ToCoordinator,
};

use super::{HEARTBEAT_SLOTS, World};
use crate::simulate::queue::Happening;
use longhaul_run::Event;

/// Who has been asked to speak for itself does so for this long.
const REST: Duration = Duration::from_secs(5);

/// Who speaks for a site.
#[derive(Clone, Debug, Default)]
pub(super) struct Speaker {
    /// Its place, once there is one: the first of the site that takes part, as it was at the last look.
    place: Option<usize>,
    /// What it was shown since it spoke last: by whom, of which process, and when.
    shown: Vec<(usize, u64, Duration)>,
}

impl World {
    pub(super) fn heartbeats(&mut self, slot: usize) {
        if slot == 0 && self.config.faults.one_may_speak_for_a_site() {
            self.find_speakers();
        }
        let places: Vec<usize> = (slot..self.workers.len()).step_by(HEARTBEAT_SLOTS).collect();
        for place in places {
            let worker = &mut self.workers[place];
            if worker.process.connection.is_none() || !worker.process.is_welcome {
                continue;
            }
            worker.process.beats += 1;
            let site = worker.device.site;
            let (life, is_own_word) = (
                worker.process.life,
                worker.process.beats.is_multiple_of(OWN_WORD_EVERY)
                    || self.agenda.now < worker.process.speaks_until,
            );
            match self.lines.speakers[site].place {
                Some(speaker) if speaker != place && !is_own_word && self.can_speak(speaker, place) => {
                    self.lines.speakers[site].shown.push((place, life, self.agenda.now));
                }
                _ => self.say_heartbeat(place),
            }
        }
        self.agenda.queue.push(
            self.agenda.now + Duration::from_millis(HEARTBEAT_INTERVAL_MS),
            Happening::Heartbeats(slot),
        );
    }

    /// It is heard at once, and speaks for itself from now on.
    pub(super) fn speak_up(&mut self, place: usize) {
        self.workers[place].process.speaks_until = self.agenda.now + REST;
        self.say_heartbeat(place);
    }

    /// Whoever speaks has a connection, or it would not answer; and both take part, or they would not know of each other.
    fn can_speak(&self, speaker: usize, place: usize) -> bool {
        let speaker = &self.workers[speaker];
        speaker.process.connection.is_some()
            && speaker.is_in_training()
            && self.workers[place].is_in_training()
    }

    fn find_speakers(&mut self) {
        let mut places = vec![None; self.lines.speakers.len()];
        for (place, worker) in self.workers.iter().enumerate() {
            if worker.is_in_training() && worker.process.connection.is_some() {
                places[worker.device.site].get_or_insert(place);
            }
        }
        for (speaker, place) in self.lines.speakers.iter_mut().zip(places) {
            if speaker.place != place {
                // What was shown to another one is lost with it.
                *speaker = Speaker { place, shown: Vec::new() };
            }
        }
    }

    fn say_heartbeat(&mut self, place: usize) {
        let worker = &self.workers[place];
        let Some(connection) = worker.process.connection else { return };
        let own = worker.heartbeat(self.schedule().steps_of(worker.computing()).start, self.agenda.now);
        let others = self.signs_at(place);
        let message = match others.is_empty() {
            true => ToCoordinator::Heartbeat(own),
            false => ToCoordinator::SiteHeartbeat { own, others },
        };
        self.tell_run(Event::Message { connection, message });
    }

    /// What a worker was shown, if it is who speaks for its site.
    fn signs_at(&mut self, place: usize) -> Vec<SignOfLife> {
        let speaker = &mut self.lines.speakers[self.workers[place].device.site];
        if speaker.place != Some(place) {
            return Vec::new();
        }
        let shown = std::mem::take(&mut speaker.shown);
        let sign = |(place, incarnation, at): (usize, u64, Duration)| SignOfLife {
            worker: self.workers[place].id,
            incarnation,
            age_ms: u16::try_from((self.agenda.now - at).as_millis()).unwrap_or(u16::MAX),
        };
        shown.into_iter().take(SIGNS_MAX).map(sign).collect()
    }
}
