//! Results of a soak test, as figures.

use std::collections::BTreeMap;
use std::time::Duration;

use serde_json::{Value, json};

use super::Kind;

/// Results of a soak test.
#[derive(Clone, Debug, Default)]
pub struct Report {
    seed: u64,
    workers: usize,
    faults: BTreeMap<Kind, Seen>,
    /// Counted samples per second, without and with faults.
    calm_per_s: Option<f64>,
    stormy_per_s: Option<f64>,
    loss: Option<f64>,
    /// Start of an ongoing recovery, and its fault.
    healing: Option<(Kind, Duration)>,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    count: u32,
    /// Seconds from the start of a fault to the next applied round.
    went_on_s: Vec<f64>,
    /// Seconds from the end of a fault until all train, without other faults meanwhile.
    rejoined_s: Vec<f64>,
    /// Samples counted from its start to the next fault's, and that time.
    passed: (u64, Duration),
    /// Time for which workers could not take part, summed over them.
    away: Duration,
}

impl Seen {
    fn and(&self, other: &Self) -> Self {
        let passed = (self.passed.0 + other.passed.0, self.passed.1 + other.passed.1);
        Self { passed, away: self.away + other.away, ..Self::default() }
    }

    /// Returns the share of all workers' time in which they could take part.
    fn there(&self, workers: usize) -> Option<f64> {
        let all = self.passed.1.as_secs_f64() * workers as f64;
        (all > 0.0).then(|| 1.0 - self.away.as_secs_f64() / all)
    }
}

impl Report {
    pub(super) fn new(seed: u64, workers: usize) -> Self {
        Self { seed, workers, ..Self::default() }
    }

    pub(super) fn began(&mut self, kind: Kind) {
        self.faults.entry(kind).or_default().count += 1;
        self.healing = None;
    }

    /// Records the samples from the start of a fault to the next one's.
    pub(super) fn passed(&mut self, kind: Kind, samples: u64, took: Duration) {
        let passed = &mut self.faults.entry(kind).or_default().passed;
        *passed = (passed.0 + samples, passed.1 + took);
    }

    /// Records that a fault kept this many workers from taking part for this time.
    pub(super) fn kept_away(&mut self, kind: Kind, workers: usize, took: Duration) {
        self.faults.entry(kind).or_default().away += took * u32::try_from(workers).unwrap_or(u32::MAX);
    }

    pub(super) fn went_on(&mut self, kind: Kind, after: Duration) {
        self.faults.entry(kind).or_default().went_on_s.push(after.as_secs_f64());
    }

    pub(super) fn healed(&mut self, kind: Kind, now: Duration) {
        self.healing = Some((kind, now));
    }

    pub(super) fn all_train(&mut self, now: Duration) {
        if let Some((kind, healed)) = self.healing.take() {
            let took = now.saturating_sub(healed).as_secs_f64();
            self.faults.entry(kind).or_default().rejoined_s.push(took);
        }
    }

    pub(super) fn calm(&mut self, samples: u64, took: Duration) {
        self.calm_per_s = rate(samples, took);
    }

    pub(super) fn stormy(&mut self, samples: u64, took: Duration) {
        self.stormy_per_s = rate(samples, took);
    }

    pub(super) fn loss(&mut self, loss: Option<f64>) {
        self.loss = loss;
    }

    /// Returns counted samples per second with faults, relative to those without: in breaks, if any, as the
    /// machine's speed may drift.
    #[must_use]
    pub fn throughput_kept(&self) -> Option<f64> {
        let Some(breaks) = self.in_breaks() else { return Some(self.stormy_per_s? / self.calm_per_s?) };
        let (samples, took) = self.all_faults().passed;
        Some(rate(samples, took)? / breaks)
    }

    /// Returns the share of all workers' time not lost to faults, an upper bound of the throughput.
    #[must_use]
    pub fn workers_there(&self) -> Option<f64> {
        self.all_faults().there(self.workers)
    }

    fn all_faults(&self) -> Seen {
        let faults = self.faults.iter().filter(|(kind, _)| **kind != Kind::Nothing);
        faults.fold(Seen::default(), |sum, (_, seen)| sum.and(seen))
    }

    /// Returns the number of faults.
    #[must_use]
    pub fn faults(&self) -> u32 {
        self.faults.iter().filter(|(kind, _)| **kind != Kind::Nothing).map(|(_, seen)| seen.count).sum()
    }

    fn in_breaks(&self) -> Option<f64> {
        let (samples, took) = self.faults.get(&Kind::Nothing)?.passed;
        rate(samples, took)
    }

    /// Returns one line per figure.
    #[must_use]
    pub fn lines(&self) -> Vec<Value> {
        let line = |case: &str, metric: &str, value: f64, unit: &str| json!({"bench": "chaos", "case": case, "metric": metric, "value": value, "unit": unit});
        let whole = format!("seed {}", self.seed);
        let mut lines = vec![line(&whole, "faults", f64::from(self.faults()), "")];
        let more = [
            ("samples_per_s_calm", self.calm_per_s, "1/s"),
            ("samples_per_s_in_breaks", self.in_breaks(), "1/s"),
            ("samples_per_s", self.stormy_per_s, "1/s"),
            ("throughput_kept", self.throughput_kept(), "ratio"),
            ("workers_there", self.workers_there(), "ratio"),
            ("loss", self.loss, "nat/token"),
        ];
        let more = more.into_iter().filter_map(|(metric, value, unit)| Some((metric, value?, unit)));
        lines.extend(more.map(|(metric, value, unit)| line(&whole, metric, value, unit)));
        for (kind, seen) in &self.faults {
            lines.push(line(kind.word(), "count", f64::from(seen.count), ""));
            let kept = rate(seen.passed.0, seen.passed.1)
                .zip(self.in_breaks().or(self.calm_per_s))
                .map(|(with, calm)| with / calm);
            lines.extend(kept.map(|kept| line(kind.word(), "throughput_kept", kept, "ratio")));
            let there = seen.there(self.workers);
            lines.extend(there.map(|there| line(kind.word(), "workers_there", there, "ratio")));
            for (metric, times) in [("next_round", &seen.went_on_s), ("all_train", &seen.rejoined_s)] {
                let Some((median, most)) = median_and_most(times) else { continue };
                lines.push(line(kind.word(), &format!("{metric}_median_s"), median, "s"));
                lines.push(line(kind.word(), &format!("{metric}_most_s"), most, "s"));
            }
        }
        lines
    }
}

fn rate(samples: u64, took: Duration) -> Option<f64> {
    (samples > 0 && !took.is_zero()).then(|| samples as f64 / took.as_secs_f64())
}

fn median_and_most(times: &[f64]) -> Option<(f64, f64)> {
    let mut times = times.to_vec();
    times.sort_by(f64::total_cmp);
    Some((times[times.len().checked_sub(1)? / 2], *times.last()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn value(report: &Report, case: &str, metric: &str) -> Option<f64> {
        let lines = report.lines();
        let line = lines.iter().find(|line| line["case"] == case && line["metric"] == metric)?;
        line["value"].as_f64()
    }

    #[test]
    fn what_was_kept_is_what_counted_in_a_second_over_what_did_before() {
        let mut report = Report::new(7, 4);
        report.calm(1000, Duration::from_secs(10));
        report.stormy(9000, Duration::from_secs(100));
        assert_eq!(value(&report, "seed 7", "throughput_kept"), Some(0.9));
        assert_eq!(value(&report, "seed 7", "loss"), None, "not known");
        report.began(Kind::Cut);
        report.passed(Kind::Cut, 700, Duration::from_secs(10));
        report.passed(Kind::Cut, 200, Duration::from_secs(10));
        assert_eq!(value(&report, "cut", "throughput_kept"), Some(0.45), "until the next fault began");
    }

    #[test]
    fn where_there_were_breaks_they_are_what_is_compared_with() {
        let mut report = Report::new(7, 4);
        let s = Duration::from_secs;
        report.calm(1000, s(10));
        report.stormy(9000, s(100));
        for (kind, samples) in
            [(Kind::Cut, 900), (Kind::Nothing, 1200), (Kind::Kill, 1140), (Kind::Cut, 1200)]
        {
            report.began(kind);
            report.passed(kind, samples, s(10));
        }
        assert_eq!(value(&report, "seed 7", "throughput_kept"), Some(0.9));
        assert_eq!((value(&report, "kill", "throughput_kept"), report.faults()), (Some(0.95), 3));
        assert_eq!(value(&report, "seed 7", "samples_per_s_in_breaks"), Some(120.0));
    }

    #[test]
    fn of_the_workers_time_what_faults_took_is_not_theirs() {
        let mut report = Report::new(7, 4);
        let s = Duration::from_secs;
        for (kind, workers, away) in [(Kind::Cut, 2, s(5)), (Kind::Cut, 1, s(2)), (Kind::Loss, 0, s(6))] {
            report.began(kind);
            report.kept_away(kind, workers, away);
            report.passed(kind, 100, s(10));
        }
        report.passed(Kind::Nothing, 100, s(10));
        assert_eq!(value(&report, "cut", "workers_there"), Some(1.0 - 12.0 / 80.0));
        assert_eq!(value(&report, "loss", "workers_there"), Some(1.0));
        assert_eq!(value(&report, "seed 7", "workers_there"), Some(1.0 - 12.0 / 120.0));
    }

    #[test]
    fn who_is_hit_again_on_the_way_back_has_no_time_of_it() {
        let mut report = Report::new(1, 4);
        let s = Duration::from_secs;
        for (healed, next) in [(s(10), Some(s(13))), (s(20), None), (s(30), Some(s(31)))] {
            report.began(Kind::Kill);
            report.went_on(Kind::Kill, s(2));
            report.healed(Kind::Kill, healed);
            next.into_iter().for_each(|next| report.all_train(next));
        }
        assert_eq!(report.faults[&Kind::Kill].rejoined_s, [3.0, 1.0]);
        assert_eq!(value(&report, "kill", "all_train_most_s"), Some(3.0));
        assert_eq!(value(&report, "kill", "next_round_most_s"), Some(2.0));
        assert_eq!(report.faults(), 3);
    }
}
