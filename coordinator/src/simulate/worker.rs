//! A worker in virtual time: what it holds, what it computes, and what it waits for.

use std::time::Duration;

use longhaul_common::id::{Generation, Round, SiteId, WorkerId};
use longhaul_proto::control::message::{CheckpointOffer, Hash, Heartbeat};

use longhaul_plan::DeviceId;
use longhaul_run::ConnectionId;

/// One machine, and the process on it if there is one.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub id: WorkerId,
    pub device: DeviceId,
    pub site: SiteId,
    pub process: Process,
    pub stage: Stage,
    /// Which part of the model it has.
    pub rank: Option<u32>,
    pub generation: Generation,
    /// Rounds before this one are applied,
    pub applied: Round,
    /// and rounds before this one are computed.
    pub computed: Round,
    /// A generation ends: it begins no other round.
    pub is_settling: bool,
    /// Checkpoints on its disk, newest first: of which part each is, and of how many, and in which generation it was written.
    pub disk: Vec<(Round, u32, u32, Generation)>,
    pub work: Work,
}

/// A process on a machine, and its connection.
#[derive(Clone, Debug, Default)]
pub(super) struct Process {
    /// Counts processes: what was planned for an earlier one does not happen.
    pub life: u64,
    pub connection: Option<ConnectionId>,
    /// Whether the coordinator has welcomed it.
    pub is_welcome: bool,
    /// How often it has said that it is alive, or shown it.
    pub beats: u64,
    /// It says so itself until then.
    pub speaks_until: Duration,
}

/// What a worker computes, and what it has waited.
#[derive(Clone, Debug, Default)]
pub(super) struct Work {
    /// Counts what it was set to compute: what was planned before does not happen.
    pub task: u64,
    /// With what it is set to compute now,
    pub compute: Duration,
    /// until then.
    pub busy_until: Duration,
    pub wait: Duration,
    /// What it has trained on,
    pub tokens: u64,
    /// and what it will have besides when it has computed what it is set to.
    pub stretch: Stretch,
}

/// What a worker is set to compute at one time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Stretch {
    pub takes: Duration,
    pub tokens: u64,
}

/// What it does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// There is no process.
    Off,
    /// It has joined, or is about to; it may be loading a state.
    Joined,
    /// It takes part, and computes the round of [`Worker::computed`]: the steps for which the result before need not be here,
    Head,
    /// those after that,
    Tail,
    /// or none, as that result is not here, since then.
    Stalled(Duration),
    /// It takes part, and has nothing to compute.
    Idle,
}

impl Worker {
    pub fn new(id: WorkerId, device: DeviceId) -> Self {
        Self {
            id,
            device,
            site: SiteId(0),
            process: Process::default(),
            stage: Stage::Off,
            rank: None,
            generation: Generation(0),
            applied: Round(0),
            computed: Round(0),
            is_settling: false,
            disk: Vec::new(),
            work: Work::default(),
        }
    }

    /// It is set to compute something.
    pub fn set_to(&mut self, stretch: Stretch, now: Duration) {
        self.work.task += 1;
        self.work.compute += stretch.takes;
        self.work.busy_until = now + stretch.takes;
        self.work.stretch = stretch;
    }

    /// What it was set to compute is done, if it was set to anything.
    pub fn has_computed(&mut self) {
        self.work.tokens += std::mem::take(&mut self.work.stretch).tokens;
    }

    /// Another process on the same machine: only the disk is left of what there was.
    pub fn restart(&mut self) {
        *self = Self {
            process: Process { life: self.process.life + 1, ..Process::default() },
            stage: Stage::Joined,
            disk: std::mem::take(&mut self.disk),
            work: Work { task: self.work.task + 1, ..Work::default() },
            ..Self::new(self.id, self.device)
        };
    }

    pub fn is_on(&self) -> bool {
        self.stage != Stage::Off
    }

    /// Whether it takes part in a generation.
    pub fn is_in_training(&self) -> bool {
        !matches!(self.stage, Stage::Off | Stage::Joined)
    }

    /// The last round that it has begun.
    pub fn computing(&self) -> Round {
        match self.stage {
            Stage::Idle => Round(self.computed.0.saturating_sub(1)),
            _ => self.computed,
        }
    }

    pub fn offers(&self) -> Vec<CheckpointOffer> {
        let offer = |&(next_round, rank, parts, generation)| CheckpointOffer {
            next_round,
            state_hash: hash_after(next_round, rank),
            private: true,
            rank,
            parts,
            generation,
        };
        self.disk.iter().map(offer).collect()
    }

    /// Writes a checkpoint, and removes those that are too many.
    pub fn save(&mut self, next_round: Round, (rank, parts): (u32, u32), keep: u32) {
        self.disk.retain(|&(round, of, count, _)| (round, of, count) != (next_round, rank, parts));
        self.disk.insert(0, (next_round, rank, parts, self.generation));
        self.disk.truncate(keep as usize);
    }

    /// What it has done by now, of what it is set to as well.
    pub fn heartbeat(&self, step: u64, now: Duration) -> Heartbeat {
        let undone = self.work.busy_until.saturating_sub(now);
        let Stretch { takes, tokens } = self.work.stretch;
        let share = if takes.is_zero() { 0.0 } else { 1.0 - undone.as_secs_f64() / takes.as_secs_f64() };
        Heartbeat {
            step,
            tokens: self.work.tokens + (tokens as f64 * share.clamp(0.0, 1.0)).round() as u64,
            compute_s: self.work.compute.saturating_sub(undone).as_secs_f64(),
            wait_s: self.work.wait.as_secs_f64(),
            ..Heartbeat::default()
        }
    }
}

/// The state of a part of the model before a round: all who have it have the same.
pub(super) fn hash_after(next_round: Round, rank: u32) -> Hash {
    let mut hash = [0; 32];
    hash[..8].copy_from_slice(&next_round.0.to_le_bytes());
    hash[8..12].copy_from_slice(&rank.to_le_bytes());
    hash
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Three seconds and three hundred tokens, of which two seconds have passed.
    #[test]
    fn a_heartbeat_tells_of_what_is_done_and_not_of_what_is_to_come() {
        let seconds = Duration::from_secs;
        let mut worker = Worker::new(WorkerId(1), DeviceId { site: 0, device: 0 });
        let told = |worker: &Worker, now| {
            let Heartbeat { tokens, compute_s, .. } = worker.heartbeat(0, now);
            (tokens, compute_s)
        };
        assert_eq!(told(&worker, seconds(9)), (0, 0.0));
        worker.set_to(Stretch { takes: seconds(3), tokens: 300 }, seconds(10));
        assert_eq!((told(&worker, seconds(10)), told(&worker, seconds(12))), ((0, 0.0), (200, 2.0)));
        worker.has_computed();
        assert_eq!(told(&worker, seconds(20)), (300, 3.0));
    }
}
