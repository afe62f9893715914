#![doc = include_str!("../../../docs/book/src/metrics.md")]

use std::collections::BTreeMap;
use std::fmt;

use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use longhaul_run::{Health, Phase, ResidualsLost, Status};

/// Content type of the text.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// Before every name.
const PREFIX: &str = "longhaul";

/// Labels that distinguish the values of one metric.
pub type Labels = Vec<(&'static str, String)>;

/// A metric of a status.
#[derive(Clone, Debug, PartialEq)]
pub struct Metric {
    /// Without prefix and suffix.
    name: &'static str,
    /// The names of its labels.
    labels: &'static [&'static str],
    /// Description for people.
    pub help: &'static str,
    /// Known values.
    pub values: Values,
}

/// The values of a metric, by their labels.
#[derive(Clone, Debug, PartialEq)]
pub enum Values {
    /// One that has no labels, if it is known.
    Gauge(Option<f64>),
    /// Several.
    Gauges(Vec<(Labels, f64)>),
    /// One count that has no labels.
    Counter(u64),
    /// Several, of which those with the same labels are added up.
    Counters(Vec<(Labels, u64)>),
}

impl Metric {
    /// As it is in the text.
    #[must_use]
    pub fn full_name(&self) -> String {
        let suffix = match self.values {
            Values::Gauge(_) | Values::Gauges(_) => "",
            Values::Counter(_) | Values::Counters(_) => "_total",
        };
        format!("{PREFIX}_{}{suffix}", self.name)
    }

    /// Its row in the book's table of metrics.
    #[must_use]
    pub fn row(&self) -> String {
        let kind = match self.values {
            Values::Gauge(_) | Values::Gauges(_) => "gauge",
            Values::Counter(_) | Values::Counters(_) => "counter",
        };
        let labels = match self.labels {
            [] => String::new(),
            labels => format!("{{{}}}", labels.join(",")),
        };
        format!("| `{}{labels}` | {kind} | {} |", self.full_name(), self.help)
    }
}

/// Every metric of a status: the same ones of each, some without a value.
#[must_use]
pub fn of(status: &Status) -> Vec<Metric> {
    let mut metrics = of_run(status);
    metrics.push(of_data(status));
    metrics.extend(of_refusals(status));
    metrics.push(of_losses(status));
    metrics.push(of_scores(status));
    metrics.extend(of_links(status));
    metrics.extend(of_workers(status));
    metrics
}

/// Writes a status as metrics.
///
/// # Errors
/// Only when a `String` cannot be written to.
pub fn encode(status: &Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix(PREFIX);
    of(status).into_iter().for_each(|metric| register(&mut registry, metric));
    let mut text = String::new();
    encode_text(&mut text, &registry)?;
    Ok(text)
}

fn register(registry: &mut Registry, Metric { name, help, values, .. }: Metric) {
    match values {
        Values::Gauge(None) => {}
        Values::Gauge(Some(value)) => registry.register(name, help, ConstGauge::new(value)),
        Values::Gauges(values) => {
            let family = Family::<Labels, Gauge<f64, std::sync::atomic::AtomicU64>>::default();
            for (labels, value) in values {
                family.get_or_create(&labels).set(value);
            }
            registry.register(name, help, family);
        }
        Values::Counter(value) => registry.register(name, help, ConstCounter::new(value)),
        Values::Counters(values) => {
            let family = Family::<Labels, Counter>::default();
            for (labels, value) in values {
                family.get_or_create(&labels).inc_by(value);
            }
            registry.register(name, help, family);
        }
    }
}

/// A metric's name, its description, and the names of its labels.
type Described = (&'static str, &'static str, &'static [&'static str]);

fn gauges((name, help, labels): Described, values: Vec<(Labels, f64)>) -> Metric {
    Metric { name, labels, help, values: Values::Gauges(values) }
}

fn counters((name, help, labels): Described, values: Vec<(Labels, u64)>) -> Metric {
    Metric { name, labels, help, values: Values::Counters(values) }
}

fn counter(name: &'static str, help: &'static str, value: u64) -> Metric {
    Metric { name, labels: &[], help, values: Values::Counter(value) }
}

fn of_run(status: &Status) -> Vec<Metric> {
    let phases = [Phase::Gathering, Phase::Preparing, Phase::Training, Phase::Draining, Phase::Finished];
    let phase = |phase: Phase| {
        let name = format!("{phase:?}").to_lowercase();
        (vec![("phase", name)], f64::from(u8::from(phase == status.run.phase)))
    };
    let described: Described = ("phase", "1 for the current phase", &["phase"]);
    let mut metrics = vec![gauges(described, phases.into_iter().map(phase).collect())];
    let broken = status.cluster.parity.as_ref().map(|parity| f64::from(u8::from(!parity.equal)));
    let gauges: [(&'static str, &'static str, Option<f64>); 25] = [
        ("generation", "Current generation", status.progress.generation.map(|g| g as f64)),
        ("round", "Rounds applied everywhere", Some(status.progress.round as f64)),
        ("rounds", "Rounds of the run", Some(status.progress.rounds as f64)),
        ("step", "Steps applied everywhere", Some(status.progress.step as f64)),
        ("steps", "Steps of the run", Some(status.progress.steps as f64)),
        (
            "loss",
            "Training loss of the newest round, nats per token or image",
            status.training.loss.map(f64::from),
        ),
        (
            "gradient_norm",
            "L2 norm of local gradients (all model parts) before clipping: root mean square over the newest round's steps and workers",
            status.training.gradient_norm.map(f64::from),
        ),
        (
            "validation_loss",
            "Newest validation loss, nats per token or image",
            status.training.validation_loss.map(f64::from),
        ),
        (
            "validation_accuracy",
            "Newest validation accuracy of classifiers",
            status.training.validation_accuracy.map(f64::from),
        ),
        (
            "residual_ratio",
            "Largest error feedback backlog, in exchanges (approximate)",
            status.training.residual_ratio.map(f64::from),
        ),
        (
            "selected_share",
            "Share of processed tokens selected for backward passes",
            status.throughput.selected_share,
        ),
        ("tokens_per_second", "Tokens per second, all workers", status.throughput.tokens_per_s),
        (
            "share_of_local_speed",
            "Compute time over compute and waiting time",
            status.throughput.share_of_local_speed,
        ),
        ("data_wait_ms", "Device waits for training data, total ms", Some(status.overhead.data_wait_ms)),
        (
            "data_wait_share",
            "Share of device time waiting for training data",
            status.overhead.data_wait_share,
        ),
        (
            "encode_ms",
            "Update codec time, including overlap with compute, total ms",
            Some(status.overhead.encode_ms),
        ),
        (
            "encode_wait_share",
            "Share of device time waiting for the update codec",
            status.overhead.encode_wait_share,
        ),
        ("bubble_ms", "Pipeline bubbles within steps, total device ms", Some(status.overhead.bubble_ms)),
        ("bubble_share", "Share of device time in pipeline bubbles", status.overhead.bubble_share),
        (
            "checkpoint_stall_share",
            "Share of device time stalled by checkpoints",
            status.overhead.checkpoint_stall_share,
        ),
        ("samples_counted", "Samples in rounds applied everywhere", Some(status.samples.counted as f64)),
        ("samples_late", "Samples too late for their round's result", Some(status.samples.late as f64)),
        ("samples_pending", "Samples to reassign", Some(status.samples.pending as f64)),
        (
            "audit_worst",
            "Worst difference of sent plus kept values from the original, relative to a fragment's largest value; rounding: about 1e-7",
            Some(f64::from(status.samples.audit.worst)),
        ),
        ("parity_broken", "1 if members differed after the newest complete round", broken),
    ];
    let counts = [
        ("tokens", "Tokens processed; an image counts as one", status.throughput.tokens),
        ("wan_bytes", "Bytes sent between sites", status.traffic.wan_bytes),
        ("dense_bytes", "Equivalent bytes in dense f32", status.traffic.dense_bytes),
    ];
    let gauge = |(name, help, value)| Metric { name, labels: &[], help, values: Values::Gauge(value) };
    metrics.extend(gauges.map(gauge));
    metrics.extend(counts.map(|(name, help, value)| counter(name, help, value)));
    metrics
}

fn of_data(status: &Status) -> Metric {
    let fetched =
        [("other_sites", status.overhead.data_wan_bytes), ("own_site", status.overhead.data_lan_bytes)];
    let fetched = fetched.map(|(from, bytes)| (vec![("from", from.to_owned())], bytes));
    let help = "Training data fetched from other_sites or own_site";
    counters(("data_fetched_bytes", help, &["from"]), fetched.to_vec())
}

fn of_refusals(status: &Status) -> [Metric; 2] {
    let refused = status.accounting.refused.iter().map(|refusal| {
        let labels = vec![("site", refusal.site.clone()), ("reason", refusal.reason.name().to_owned())];
        (labels, refusal.count)
    });
    let help = "Contributions refused by owners";
    let unnamed = "Refused contributions whose site did not fit into reports";
    [
        counters(("refused_contributions", help, &["site", "reason"]), refused.collect()),
        counter("refused_contributions_unnamed", unnamed, status.accounting.refused_unnamed),
    ]
}

fn of_scores(status: &Status) -> Metric {
    let scores =
        status.training.scores.iter().map(|score| {
            (vec![("task", score.task.clone()), ("measure", score.measure.clone())], score.value)
        });
    gauges(
        ("task_score", "Newest share of right answers in evaluate.tasks", &["task", "measure"]),
        scores.collect(),
    )
}

fn of_losses(status: &Status) -> Metric {
    let ResidualsLost { contributions, results, factors } = status.accounting.residuals_lost;
    let lost = [("contributions", contributions), ("results", results), ("factors", factors)];
    let lost = lost.map(|(of, count)| (vec![("of", of.to_owned())], count));
    counters(("residuals_lost", "Fragment residuals lost with a worker", &["of"]), lost.to_vec())
}

fn of_links(status: &Status) -> [Metric; 2] {
    let (mut rates, mut round_trips) = (Vec::new(), Vec::new());
    for link in &status.cluster.links {
        let labels = vec![("from", link.from.clone()), ("to", link.to.clone())];
        rates.push((labels.clone(), link.bytes_per_s));
        round_trips.push((labels, link.round_trip_s));
    }
    let (carries, back) = ("Throughput between two sites", "Round trip between two sites, without queueing");
    [
        gauges(("link_bytes_per_second", carries, &["from", "to"]), rates),
        gauges(("link_round_trip_seconds", back, &["from", "to"]), round_trips),
    ]
}

fn of_workers(status: &Status) -> [Metric; 6] {
    let mut states: BTreeMap<&str, f64> = BTreeMap::new();
    let (mut speeds, mut seen, mut healths) = (Vec::new(), Vec::new(), Vec::new());
    let (mut densities, mut bits) = (Vec::new(), Vec::new());
    for member in &status.cluster.members {
        *states.entry(&member.work.state).or_default() += 1.0;
        let labels = vec![("worker", member.place.id.clone()), ("site", member.place.site.clone())];
        if let Some(speed) = member.work.tokens_per_s {
            speeds.push((labels.clone(), speed));
        }
        seen.push((labels.clone(), member.work.last_seen_s));
        densities.extend(member.work.density.map(|density| (labels.clone(), density)));
        bits.extend(member.work.value_bits.map(|bits| (labels.clone(), bits)));
        if member.work.health != Health::Steady {
            let health = [("health", member.work.health.word().to_owned())];
            healths.push((labels.into_iter().chain(health).collect(), 1.0));
        }
    }
    let states = states.into_iter().map(|(state, count)| (vec![("state", state.to_owned())], count));
    let of: &[&str] = &["worker", "site"];
    let health: &[&str] = &["worker", "site", "health"];
    [
        gauges(("workers", "Joined workers by state", &["state"]), states.collect()),
        gauges(("worker_tokens_per_second", "Tokens per second", of), speeds),
        gauges(("worker_health", "1 for a slow or silent worker", health), healths),
        gauges(("worker_density", "Share of values sent to other sites", of), densities),
        gauges(("worker_value_bits", "Bits per value sent to other sites, including scales", of), bits),
        gauges(("worker_last_seen_seconds", "Seconds since the last message", of), seen),
    ]
}

#[cfg(test)]
mod tests {
    use longhaul_common::id::{FragmentId, Round, SiteId};
    use longhaul_proto::control::message::{Refusal, RefusalReason, RoundReport, ToCoordinator};
    use longhaul_run::testing::{Story, report};

    use super::*;

    fn page(story: &Story) -> String {
        encode(&story.run.status(0)).unwrap()
    }

    fn has(page: &str, line: &str) -> bool {
        page.lines().any(|found| found == line)
    }

    /// A member reports round 0 with these changes.
    fn reports(story: &mut Story, worker: u32, change: RoundReport) {
        story.say(worker, ToCoordinator::RoundApplied(change));
    }

    #[test]
    fn values_that_no_member_has_reported_are_absent() {
        let mut story = Story::training();
        let before = page(&story);
        assert!(!before.contains("residual_ratio") && !before.contains("gradient_norm"), "{before}");
        for (worker, residual_ratio, norm) in [(1, 0.5, 3.0), (2, 3.5, 4.0)] {
            let (residual_ratio, gradient_norm) = (Some(residual_ratio), Some(norm));
            reports(&mut story, worker, RoundReport { residual_ratio, gradient_norm, ..report(0, 9) });
        }
        let after = page(&story);
        assert!(has(&after, "longhaul_residual_ratio 3.5"), "{after}");
        let norm = after.lines().find_map(|line| line.strip_prefix("longhaul_gradient_norm "));
        // √((3² + 4²) / 2)
        assert_eq!(norm.unwrap().parse::<f64>().unwrap() as f32, 12.5f32.sqrt(), "{after}");
    }

    #[test]
    fn lost_residuals_are_counted() {
        let mut story = Story::training();
        story.say(2, ToCoordinator::Leaving);
        story.settled(1, 2, 1, 1);
        let page = page(&story);
        assert!(has(&page, "longhaul_residuals_lost_total{of=\"contributions\"} 1"), "{page}");
    }

    #[test]
    fn refused_contributions_are_counted_by_site_and_reason() {
        let mut story = Story::training();
        let refusal =
            |site, reason| Refusal { site: SiteId(site), round: Round(0), fragment: FragmentId(0), reason };
        let refused = vec![
            refusal(0, RefusalReason::Norm { times: 83.0, of: 32 }),
            refusal(1, RefusalReason::Undecodable),
        ];
        reports(&mut story, 2, RoundReport { refused, refused_beyond: 7, ..report(0, 9) });
        let page = page(&story);
        for line in [
            "longhaul_refused_contributions_total{site=\"site-1\",reason=\"norm\"} 1",
            "longhaul_refused_contributions_total{site=\"site-2\",reason=\"undecodable\"} 1",
            "longhaul_refused_contributions_unnamed_total 7",
        ] {
            assert!(has(&page, line), "{page}");
        }
    }
}
