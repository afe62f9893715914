//! Checks statuses of a run for violated invariants.

use std::collections::BTreeMap;
use std::time::Duration;

use longhaul_proto::control::message::AUDIT_MAX;
use serde_json::Value;

/// An invariant violated by a run.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
pub enum Violation {
    /// Replicas differ after a round.
    #[error("parity: replicas differ after round {0}")]
    Parity(u64),
    /// One round has two hashes.
    #[error("parity: round {round} had the hash {before}, and has {now}")]
    Rewritten {
        /// Round.
        round: u64,
        /// Hash in an earlier status.
        before: String,
        /// Hash in the newest status.
        now: String,
    },
    /// Sent values and residual do not add up to the input.
    #[error(
        "conservation: a worker's sent values and residual differ from the input by {0:e} of a fragment's largest value"
    )]
    Unbalanced(f64),
    /// Positions of the sample stream count twice.
    #[error("exactly once: {0} positions count twice")]
    Duplicates(u64),
    /// Positions of the sample stream neither count nor await reassignment.
    #[error(
        "exactly once: of {given_out} assigned positions {applied} count, and {waiting} await reassignment"
    )]
    Unaccounted {
        /// Positions assigned for rounds that are applied everywhere.
        given_out: u64,
        /// Positions that count.
        applied: u64,
        /// Positions awaiting reassignment.
        waiting: u64,
    },
    /// A value that may only grow has decreased.
    #[error("nothing applied is lost: {what} went from {before} back to {now}")]
    Backwards {
        /// Name of the value.
        what: &'static str,
        /// Previous value.
        before: u64,
        /// Present value.
        now: u64,
    },
    /// No new round within a limit.
    #[error("progress: no round after {round} for {:.1} s, {what}", stood.as_secs_f64())]
    Stalled {
        /// Newest applied round.
        round: u64,
        /// Time without a new round.
        stood: Duration,
        /// Preceding event.
        what: String,
    },
    /// More generations than the events explain, as if two processes replaced each other in turns.
    #[error("generations: {count} since a cache folder was copied, and {most} are explained")]
    Unsettled {
        /// Generations.
        count: u64,
        /// Maximum expected.
        most: u64,
    },
    /// A listed checkpoint is damaged.
    #[error("atomic checkpoints: worker {worker} has one that is damaged: {what}")]
    Damaged {
        /// Owner.
        worker: usize,
        /// Damage.
        what: String,
    },
    /// A process has ended unexpectedly, or not ended as expected.
    #[error("ends: {0}")]
    Ended(String),
}

/// Rounds whose hashes are kept.
const HASHES_KEPT: usize = 1024;

/// Maximum generations of a fault, from its start until all train again: each departure and return starts
/// one, and may need a retry.
const GENERATIONS_OF_A_FAULT: u64 = 6;

/// Checks the statuses of a run, in order.
#[derive(Debug, Default)]
pub struct Checker {
    round: u64,
    generation: u64,
    counted: u64,
    /// Whether any worker has audited its sent values and residual; a restarted coordinator does not
    /// remember.
    has_audited: bool,
    /// Whether the coordinator may know less than before.
    is_reminded: bool,
    /// Round of the newest checkpoint.
    checkpoint: u64,
    /// While the run recovers from the loss of all processes: the round that it must reach again.
    restored: Option<u64>,
    /// First round reported after that.
    remembered: Option<u64>,
    hashes: BTreeMap<u64, String>,
    /// Time at which the newest round was first reported as applied.
    since: Duration,
}

impl Checker {
    /// Checks a status read at `now`; null (no response) is ignored.
    ///
    /// # Errors
    /// The violated invariant.
    pub fn look(&mut self, status: &Value, now: Duration) -> Result<(), Violation> {
        if status.is_null() {
            return Ok(());
        }
        exactly_once(status)?;
        match status["audit"]["worst"].as_f64() {
            Some(worst) if worst > f64::from(AUDIT_MAX) => return Err(Violation::Unbalanced(worst)),
            _ => {
                self.has_audited |=
                    status["audit"]["fragments"].as_u64().is_some_and(|fragments| fragments > 0)
            }
        }
        self.look_at_parity(&status["parity"])?;
        let round = status["round"].as_u64().unwrap_or(0);
        // At first the coordinator reports its stored round, which may be less than it had reported, and less
        // than the checkpoint.
        if let Some(before) = self.restored
            && *self.remembered.get_or_insert(round) != round
            && round < before
        {
            return Err(Violation::Backwards {
                what: "the run, which had a checkpoint,",
                before,
                now: round,
            });
        }
        // Without training workers none is reported; the next one is still higher.
        let generation =
            status["generation"].as_u64().filter(|number| *number > 0).unwrap_or(self.generation);
        if self.is_reminded {
            // Its stored round may be newer than the checkpoint, and than the last report; it continues with
            // another generation.
            let is_back = match self.restored {
                Some(_) => round > self.round && generation > self.generation,
                None => round >= self.round,
            };
            if !is_back || generation < self.generation || samples(status) < self.counted {
                return Ok(());
            }
            (self.is_reminded, self.restored) = (false, None);
        }
        self.checkpoint = self.checkpoint.max(newest_checkpoint(status));
        if round > self.round {
            self.since = now;
        }
        grows("the number of rounds", &mut self.round, round)?;
        grows("the generation", &mut self.generation, generation)?;
        grows("the number of samples that count", &mut self.counted, samples(status))
    }

    /// Notes a restart of the coordinator, which knows its stored state and receives the rest from workers.
    /// Until it has caught up, it is behind and not wrong; while it stays behind, no round is new.
    pub fn coordinator_restarted(&mut self) {
        self.is_reminded = true;
    }

    /// Notes a restart of all processes: the run resumes from its newest checkpoint, or a later unreported
    /// one, and repeats the rounds after that, with other hashes.
    pub fn everybody_restarted(&mut self) {
        self.is_reminded = true;
        (self.restored, self.remembered) = (Some(self.checkpoint), None);
    }

    /// Returns the rounds applied everywhere.
    #[must_use]
    pub fn round(&self) -> u64 {
        self.round
    }

    /// Returns the time at which the newest of those was first reported.
    #[must_use]
    pub fn since(&self) -> Duration {
        self.since
    }

    /// Returns the newest generation reported.
    #[must_use]
    pub fn generation(&self) -> u64 {
        self.generation
    }

    /// Checks that this many faults explain the generations since then: two processes with one identity would
    /// start one after another.
    ///
    /// # Errors
    /// More generations have started.
    pub fn is_settled(&self, since: u64, faults: u64) -> Result<(), Violation> {
        let (count, most) = (self.generation.saturating_sub(since), GENERATIONS_OF_A_FAULT * faults);
        if count > most {
            return Err(Violation::Unsettled { count, most });
        }
        Ok(())
    }

    /// Returns the maximum of counted samples reported.
    #[must_use]
    pub fn counted(&self) -> u64 {
        self.counted
    }

    /// Checks that an ended run, with `batch` samples per step, is finished with equal replicas after its
    /// last round, and no more samples than its steps had.
    ///
    /// # Errors
    /// The discrepancy.
    pub fn ended(&self, status: &Value, batch: u64) -> Result<(), Violation> {
        let wrong = |what: String| Err(Violation::Ended(what));
        if status["phase"] != "finished" {
            return wrong(format!("the run is not finished, but {}", status["phase"]));
        }
        let (rounds, parity) = (status["round"].as_u64().unwrap_or(0), &status["parity"]);
        if parity["equal"] != true || parity["round"].as_u64().map(|last| last + 1) != Some(rounds) {
            return wrong(format!("after {rounds} rounds, replicas were compared like this: {parity}"));
        }
        if !self.has_audited {
            return wrong("nobody has looked whether what was sent and what is kept add up".to_owned());
        }
        let steps = status["step"].as_u64().unwrap_or(0);
        if samples(status) > steps * batch {
            return wrong(format!("{} samples count in {steps} steps of {batch}", samples(status)));
        }
        Ok(())
    }

    fn look_at_parity(&mut self, parity: &Value) -> Result<(), Violation> {
        let (Some(round), Some(hash)) = (parity["round"].as_u64(), parity["hash"].as_str()) else {
            return Ok(());
        };
        if parity["equal"] != true {
            return Err(Violation::Parity(round));
        }
        if self.restored.is_some() {
            self.hashes.clear();
            return Ok(());
        }
        let known = self.hashes.entry(round).or_insert_with(|| hash.to_owned());
        if known != hash {
            let (before, now) = (known.clone(), hash.to_owned());
            return Err(Violation::Rewritten { round, before, now });
        }
        while self.hashes.len() > HASHES_KEPT {
            self.hashes.pop_first();
        }
        Ok(())
    }
}

/// Checks that each position assigned for rounds applied everywhere counts once or awaits reassignment.
///
/// # Errors
/// The check fails.
pub fn exactly_once(status: &Value) -> Result<(), Violation> {
    let number = |key| status["ledger"][key].as_u64().unwrap_or(0);
    let (applied, waiting) = (number("positions_applied"), number("waiting"));
    let (given_out, duplicates) = (number("given_out"), number("duplicates"));
    if duplicates > 0 {
        return Err(Violation::Duplicates(duplicates));
    }
    if applied + waiting != given_out {
        return Err(Violation::Unaccounted { given_out, applied, waiting });
    }
    Ok(())
}

/// Returns the round of the newest successful checkpoint.
fn newest_checkpoint(status: &Value) -> u64 {
    let checkpoints = status["checkpoints"].as_array().map(Vec::as_slice).unwrap_or_default();
    let written = checkpoints.iter().filter(|checkpoint| checkpoint["error"].is_null());
    written.filter_map(|checkpoint| checkpoint["next_round"].as_u64()).max().unwrap_or(0)
}

fn samples(status: &Value) -> u64 {
    status["samples_counted"].as_u64().unwrap_or(0)
}

fn grows(what: &'static str, known: &mut u64, now: u64) -> Result<(), Violation> {
    let before = std::mem::replace(known, now);
    if now < before {
        return Err(Violation::Backwards { what, before, now });
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn status(round: u64) -> Value {
        json!({
            "phase": "training", "round": round, "step": 4 * round, "generation": 2, "samples_counted": 16 * round,
            "ledger": { "duplicates": 0, "positions_applied": 16 * round, "waiting": 2, "given_out": 16 * round + 2 },
            "audit": { "fragments": round, "worst": 2e-7 },
            "parity": { "round": round, "hash": format!("{round:x}"), "equal": true },
        })
    }

    /// A run at round 5 that then reports this.
    fn after(change: impl FnOnce(&mut Value)) -> Result<(), Violation> {
        let mut checker = Checker::default();
        let mut now = status(5);
        checker.look(&now, Duration::ZERO).unwrap();
        change(&mut now);
        checker.look(&now, Duration::from_secs(1))
    }

    #[test]
    fn a_run_whose_processes_were_all_killed_goes_on_from_its_newest_checkpoint_and_from_none_before() {
        let with_a_checkpoint = || {
            let mut checker = Checker::default();
            let mut now = status(5);
            now["checkpoints"] =
                json!([{ "next_round": 3, "error": null }, { "next_round": 5, "error": "no space" }]);
            checker.look(&now, Duration::ZERO).unwrap();
            checker.everybody_restarted();
            checker
        };
        let anew = status(5)["generation"].as_u64().unwrap() + 1;
        let look_in = |checker: &mut Checker, generation: u64, round, hash: &str| {
            let mut now = status(round);
            (now["parity"]["hash"], now["generation"]) = (json!(hash), json!(generation));
            checker.look(&now, Duration::from_secs(1))
        };
        let look = |checker: &mut Checker, round, hash: &str| look_in(checker, anew, round, hash);
        // The coordinator may have stored more than it had reported.
        for written_down in [5, 6] {
            let mut checker = with_a_checkpoint();
            assert_eq!(look_in(&mut checker, anew - 1, written_down, "5"), Ok(()));
            for (round, hash) in [(3, "3"), (4, "other"), (5, "another"), (6, "6")] {
                assert_eq!(look(&mut checker, round, hash), Ok(()), "round {round}");
            }
            assert!(look(&mut checker, 5, "5").is_err(), "what was lost has been made anew");
        }
        for written_down in [1, 5] {
            let mut checker = with_a_checkpoint();
            assert_eq!(look(&mut checker, written_down, "what is written down"), Ok(()));
            assert!(look(&mut checker, 2, "2").is_err(), "there was a checkpoint before round 3");
        }
    }

    #[test]
    fn a_run_that_goes_on_is_in_order_and_so_is_one_that_does_not_answer() {
        assert_eq!(after(|now| *now = status(6)), Ok(()));
        assert_eq!(after(|now| *now = Value::Null), Ok(()));
        assert_eq!(after(|_| {}), Ok(()));
    }

    #[test]
    fn each_promise_that_is_broken_is_told() {
        assert_eq!(after(|now| now["parity"]["equal"] = json!(false)), Err(Violation::Parity(5)));
        assert_eq!(after(|now| now["ledger"]["duplicates"] = json!(3)), Err(Violation::Duplicates(3)));
        for (key, value) in [("positions_applied", 79), ("waiting", 1), ("given_out", 83)] {
            let told = after(|now| now["ledger"][key] = json!(value));
            assert!(matches!(told, Err(Violation::Unaccounted { .. })), "{key}: {told:?}");
        }
        assert_eq!(after(|now| now["audit"]["worst"] = json!(0.5)), Err(Violation::Unbalanced(0.5)));
        let rewritten = Violation::Rewritten { round: 5, before: "5".to_owned(), now: "x".to_owned() };
        assert_eq!(after(|now| now["parity"]["hash"] = json!("x")), Err(rewritten));
        for (key, what) in [
            ("round", "the number of rounds"),
            ("generation", "the generation"),
            ("samples_counted", "the number of samples that count"),
        ] {
            let Err(Violation::Backwards { what: told, .. }) = after(|now| now[key] = json!(1)) else {
                panic!("{key} may go back")
            };
            assert_eq!(told, what);
        }
    }

    /// It reports less at first; but a round reported again has the same hash.
    #[test]
    fn a_coordinator_that_was_started_again_may_be_behind_until_it_has_heard_from_workers() {
        let mut checker = Checker::default();
        checker.look(&status(5), Duration::ZERO).unwrap();
        checker.coordinator_restarted();
        checker.look(&status(3), Duration::from_secs(1)).unwrap();
        assert_eq!(checker.round(), 5);
        checker.look(&status(6), Duration::from_secs(2)).unwrap();
        assert!(checker.look(&status(4), Duration::from_secs(3)).is_err(), "it has caught up");

        let mut checker = Checker::default();
        checker.look(&status(5), Duration::ZERO).unwrap();
        checker.coordinator_restarted();
        let mut other = status(5);
        other["parity"]["hash"] = json!("x");
        assert!(checker.look(&other, Duration::from_secs(1)).is_err());
    }

    #[test]
    fn an_end_is_looked_at_more_closely() {
        let mut checker = Checker::default();
        checker.look(&status(8), Duration::ZERO).unwrap();
        let mut end = status(9);
        (end["phase"], end["parity"]["round"]) = (json!("finished"), json!(8));
        assert_eq!(checker.ended(&end, 4), Ok(()));
        assert!(checker.ended(&end, 3).is_err(), "more samples than there were in its steps");
        for (key, value) in [("phase", json!("draining")), ("parity", json!(null)), ("round", json!(10))] {
            let mut wrong = end.clone();
            wrong[key] = value;
            assert!(checker.ended(&wrong, 4).is_err(), "{key}");
        }
        assert!(Checker::default().ended(&end, 4).is_err(), "nobody has looked whether anything was lost");
    }

    #[test]
    fn two_processes_that_throw_each_other_out_are_found() {
        let mut checker = Checker::default();
        let mut now = status(5);
        for (generation, is_settled) in [(2, true), (14, true), (15, false)] {
            now["generation"] = json!(generation);
            checker.look(&now, Duration::ZERO).unwrap();
            assert_eq!(checker.is_settled(2, 2).is_ok(), is_settled, "{generation}");
        }
    }

    /// Until it has caught up entirely, no round is new.
    #[test]
    fn a_coordinator_that_stays_behind_makes_no_progress() {
        let mut checker = Checker::default();
        checker.look(&status(5), Duration::from_secs(1)).unwrap();
        checker.coordinator_restarted();
        let mut behind = status(6);
        behind["samples_counted"] = json!(1);
        checker.look(&behind, Duration::from_secs(9)).unwrap();
        assert_eq!((checker.round(), checker.since(), checker.counted()), (5, Duration::from_secs(1), 80));
    }

    #[test]
    fn progress_is_when_a_round_is_first_seen() {
        let mut checker = Checker::default();
        for (second, round) in [(1, 4), (2, 4), (3, 5), (9, 5)] {
            checker.look(&status(round), Duration::from_secs(second)).unwrap();
        }
        assert_eq!((checker.round(), checker.since()), (5, Duration::from_secs(3)));
    }
}
