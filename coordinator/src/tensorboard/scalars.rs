//! Which curves there are, and their points.

use std::borrow::Cow;
use std::collections::BTreeMap;

use crate::history::{Done, RoundPoint, Sample};

/// A point of a curve.
#[derive(Clone, Debug, PartialEq)]
pub struct Scalar {
    /// The curve; the part before the slash is its group.
    pub tag: Cow<'static, str>,
    /// Its value.
    pub value: f32,
}

/// Scalars of a round. Unknown values are left out.
#[must_use]
pub fn of_round(round: &RoundPoint) -> Vec<Scalar> {
    let mut scalars = known([
        ("train/loss", round.loss),
        ("train/gradient_norm", round.gradient_norm),
        ("train/learning_rate", Some(round.learning_rate as f32)),
        ("sync/steps_between", Some(round.every as f32)),
        ("sync/residual_ratio", round.residual_ratio),
    ]);
    scalars.extend(of_validation(round.validation_loss, round.validation_accuracy));
    scalars.extend(of_scores(&round.scores));
    scalars
}

/// Scalars of questions, by task and measure. A damaged name, which could be a path, is left out.
#[must_use]
pub fn of_scores(scores: &BTreeMap<String, f32>) -> Vec<Scalar> {
    let is_plain = |letter: char| letter.is_ascii_alphanumeric() || "-_".contains(letter);
    scores
        .iter()
        .filter(|(name, _)| name.chars().all(is_plain))
        .map(|(name, &value)| Scalar { tag: format!("tasks/{name}").into(), value })
        .collect()
}

/// Scalars of held-out samples.
#[must_use]
pub fn of_validation(loss: Option<f32>, accuracy: Option<f32>) -> Vec<Scalar> {
    known([("validation/loss", loss), ("validation/accuracy", accuracy)])
}

/// Scalars of the work between two samples.
#[must_use]
pub fn of_sample(before: &Sample, sample: &Sample) -> Vec<Scalar> {
    let done = sample.run.since(before.run);
    let Done { tokens, compute_ms, wait_ms, data_wait_ms, checkpoint_ms, wan_bytes, .. } = done;
    let elapsed_s = sample.at_ms.saturating_sub(before.at_ms) as f64 / 1e3;
    let device_ms = (compute_ms + wait_ms + data_wait_ms + checkpoint_ms) as f64;
    let rate = |count: u64| (elapsed_s > 0.0).then(|| (count as f64 / elapsed_s) as f32);
    let share = |ms: u64| (device_ms > 0.0).then(|| (ms as f64 / device_ms) as f32);
    known([
        ("speed/tokens_per_second", rate(tokens)),
        ("speed/workers", Some(sample.training as f32)),
        ("time/compute", share(compute_ms)),
        ("time/encode", share(done.encode_wait_ms)),
        ("time/wait", share(done.other_wait_ms())),
        ("time/bubble", share(done.bubble_ms)),
        ("time/data", share(data_wait_ms)),
        ("time/checkpoint", share(checkpoint_ms)),
        ("bytes/between_sites", Some(sample.run.wan_bytes as f32)),
        ("bytes/dense", Some(sample.run.dense_bytes as f32)),
        ("bytes/per_second", rate(wan_bytes)),
    ])
}

fn known<const N: usize>(values: [(&'static str, Option<f32>); N]) -> Vec<Scalar> {
    let finite = values.into_iter().filter_map(|(tag, value)| {
        let value = value.filter(|value| value.is_finite())?;
        Some(Scalar { tag: tag.into(), value })
    });
    finite.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sample(at_ms: u64, run: Done) -> Sample {
        Sample {
            at_ms,
            step: 0,
            round: 0,
            training: 4,
            run,
            sites: Vec::new(),
            ways: Vec::new(),
            encodings: Vec::new(),
        }
    }

    fn round() -> RoundPoint {
        RoundPoint {
            at_ms: None,
            round: 3,
            step: 40,
            every: 10,
            samples: 80,
            learning_rate: 0.25,
            loss: Some(2.0),
            gradient_norm: Some(0.75),
            validation_loss: Some(f32::NAN),
            validation_accuracy: Some(0.5),
            residual_ratio: Some(1.0),
            scores: BTreeMap::new(),
        }
    }

    fn value(scalars: &[Scalar], tag: &str) -> Option<f32> {
        scalars.iter().find(|scalar| scalar.tag == tag).map(|scalar| scalar.value)
    }

    #[test]
    fn what_is_unknown_or_no_number_is_no_point() {
        let scalars = of_round(&RoundPoint { loss: None, gradient_norm: None, ..round() });
        let tags: Vec<_> = scalars.iter().map(|scalar| &*scalar.tag).collect();
        let known =
            ["train/learning_rate", "sync/steps_between", "sync/residual_ratio", "validation/accuracy"];
        assert_eq!(tags, known);
    }

    #[test]
    fn rates_and_shares_are_those_between_two_samples() {
        let before = Done { tokens: 1000, compute_ms: 500, wan_bytes: 10_000, ..Done::default() };
        let new = Done {
            tokens: 400,
            compute_ms: 300,
            wait_ms: 100,
            encode_wait_ms: 20,
            bubble_ms: 40,
            wan_bytes: 6000,
            ..Done::default()
        };
        let mut after = before;
        after.add(new);
        let scalars = of_sample(&sample(5000, before), &sample(7000, after));
        for (tag, expected) in [
            ("speed/tokens_per_second", 200.0),
            ("time/compute", 0.75),
            ("time/wait", 0.1),
            ("time/encode", 0.05),
            ("time/bubble", 0.1),
            ("time/data", 0.0),
            ("bytes/between_sites", 16_000.0),
            ("bytes/per_second", 3000.0),
            ("speed/workers", 4.0),
        ] {
            assert_eq!(value(&scalars, tag), Some(expected), "{tag}");
        }
        let nothing = of_sample(&sample(5000, before), &sample(5000, before));
        assert_eq!((value(&nothing, "time/compute"), value(&nothing, "bytes/per_second")), (None, None));
    }

    #[test]
    fn the_page_lists_every_curve() {
        let page = include_str!("../../../docs/book/src/tensorboard.md");
        let scores = BTreeMap::from([("arc_acc".to_owned(), 0.5)]);
        let all = RoundPoint { validation_loss: Some(1.0), scores, ..round() };
        let done = Done { compute_ms: 1, ..Done::default() };
        let samples = of_sample(&sample(0, Done::default()), &sample(1, done));
        let tags: Vec<_> = of_round(&all).iter().chain(&samples).map(|scalar| scalar.tag.clone()).collect();
        let rows: String = page.lines().filter(|line| line.starts_with("| `")).collect();
        for tag in &tags {
            assert!(rows.contains(&format!("`{tag}`")), "{tag}");
        }
        assert_eq!(rows.matches('`').count() / 2, tags.len(), "{rows}");
    }
}
