//! The run's curves for TensorBoard, written by its owner.

use std::io;
use std::path::Path;

use crate::history::{RoundPoint, Sample};
use crate::tensorboard::{Content, Event, EventFile, Scalar, of_round, of_sample, of_scores, of_validation};
use longhaul_run::{Phase, Run, Status};

/// Digits of a run's id in the name of its folder: enough to tell runs of one name apart.
const ID_DIGITS: usize = 8;

/// An event file, and how far it is.
#[derive(Debug)]
pub struct Curves {
    file: EventFile,
    /// The last written sample.
    before: Option<Sample>,
    /// The step of the last written round.
    step: u64,
    /// Steps of the last written scores.
    scored: u64,
    is_finished: bool,
}

impl Curves {
    /// Begins a file in this run's folder of `dir`. It voids the steps in earlier files that are not applied yet.
    ///
    /// # Errors
    /// The system's error.
    pub fn begin(dir: &Path, run: &Run, now_ms: u64) -> io::Result<Self> {
        let (name, id) = (&run.config().run.name, run.state().run.to_string());
        let step = run.status(now_ms).progress.step;
        let folder = dir.join(format!("{}-{}", as_file_name(name), &id[..ID_DIGITS]));
        let file = EventFile::begin(&folder, now_ms, step + 1)?;
        let is_finished = run.state().phase == Phase::Finished;
        let scored = run.state().tasks.newest().map_or(0, |scored| scored.step);
        Ok(Self { file, before: None, step, scored, is_finished })
    }

    /// How it goes now; `newest` is the sample that was taken last.
    pub fn note(&mut self, now_ms: u64, status: &Status, newest: Option<&Sample>) {
        if let Some(newest) = newest.filter(|newest| self.before.as_ref() != Some(*newest))
            && let Some(before) = self.before.replace(newest.clone())
        {
            self.put(newest.at_ms, newest.step, of_sample(&before, newest));
        }
        if let Some(step) =
            status.training.scores.first().map(|score| score.step).filter(|step| *step > self.scored)
        {
            self.scored = step;
            let named = status.training.scores.iter();
            let named = named.map(|score| (format!("{}_{}", score.task, score.measure), score.value as f32));
            self.put(now_ms, step, of_scores(&named.collect()));
        }
        if status.run.phase == Phase::Finished && !self.is_finished {
            self.is_finished = true;
            // No round reports the last validation.
            let scalars = of_validation(status.training.validation_loss, status.training.validation_accuracy);
            self.put(now_ms, status.progress.step, scalars);
        }
    }

    /// A round counts. One that had counted before counts anew: the run went back.
    pub fn note_round(&mut self, now_ms: u64, round: &RoundPoint) {
        if round.step <= self.step {
            self.file.put(Event { at_ms: now_ms, step: round.step, content: Content::Restart });
            self.scored = self.scored.min(round.step.saturating_sub(1));
        }
        self.step = round.step;
        self.put(now_ms, round.step, of_round(round));
    }

    fn put(&mut self, at_ms: u64, step: u64, scalars: Vec<Scalar>) {
        if !scalars.is_empty() {
            self.file.put(Event { at_ms, step, content: Content::Scalars(scalars) });
        }
    }
}

/// A name that every file system takes.
fn as_file_name(name: &str) -> String {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_.".contains(letter);
    name.chars().map(|letter| if is_plain(letter) { letter } else { '-' }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_may_be_called_anything() {
        assert_eq!(as_file_name("gpt-2_v1.5"), "gpt-2_v1.5");
        assert_eq!(as_file_name("../más/ x"), "..-m-s--x");
    }
}
