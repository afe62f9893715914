#![doc = include_str!("../../../docs/book/src/metrics.md")]

use std::fmt;

use prometheus_client::encoding::text::encode as encode_text;
use prometheus_client::metrics::counter::{ConstCounter, Counter};
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;

use crate::run::{Health, Phase, ResidualsLost, Status};

/// What the text is.
pub const CONTENT_TYPE: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";

type Labels = Vec<(&'static str, String)>;
type Gauges = Family<Labels, Gauge<f64, std::sync::atomic::AtomicU64>>;

/// Writes a status as metrics.
///
/// # Errors
/// Only when a `String` cannot be written to.
pub fn encode(status: &Status) -> Result<String, fmt::Error> {
    let mut registry = Registry::with_prefix("longhaul");
    add_run(&mut registry, status);
    add_data(&mut registry, status);
    add_refusals(&mut registry, status);
    add_losses(&mut registry, status);
    add_links(&mut registry, status);
    add_workers(&mut registry, status);
    let mut text = String::new();
    encode_text(&mut text, &registry)?;
    Ok(text)
}

fn add_run(registry: &mut Registry, status: &Status) {
    let phases = Gauges::default();
    for phase in [Phase::Gathering, Phase::Preparing, Phase::Training, Phase::Draining, Phase::Finished] {
        let name = format!("{phase:?}").to_lowercase();
        phases.get_or_create(&vec![("phase", name)]).set(f64::from(u8::from(phase == status.phase)));
    }
    registry.register("phase", "1 for the phase that the run is in", phases);
    let broken = status.parity.as_ref().map(|parity| f64::from(u8::from(!parity.equal)));
    let gauges: [(&str, &str, Option<f64>); 21] = [
        ("generation", "The generation that runs", status.generation.map(|g| g as f64)),
        ("round", "Rounds that are applied everywhere", Some(status.round as f64)),
        ("rounds", "Rounds of the run", Some(status.rounds as f64)),
        ("step", "Steps in rounds that are applied everywhere", Some(status.step as f64)),
        ("steps", "Steps of the run", Some(status.steps as f64)),
        ("loss", "Training loss of the newest round, nats a token", status.loss.map(f64::from)),
        (
            "gradient_norm",
            "L2 norm of a worker's gradient before clipping, in the newest round",
            status.gradient_norm.map(f64::from),
        ),
        (
            "validation_loss",
            "The newest validation loss, nats a token",
            status.validation_loss.map(f64::from),
        ),
        (
            "validation_accuracy",
            "The newest share of held-out images whose class is told",
            status.validation_accuracy.map(f64::from),
        ),
        (
            "residual_ratio",
            "About how many exchanges' changes wait in error feedback, where most do",
            status.residual_ratio.map(f64::from),
        ),
        (
            "selected_share",
            "Share of the tokens whose samples were selected for backward passes",
            status.selected_share,
        ),
        ("tokens_per_second", "Tokens per second over all workers", status.tokens_per_s),
        ("share_of_local_speed", "Compute over compute and waiting", status.share_of_local_speed),
        (
            "data_wait_ms",
            "Milliseconds in which devices waited for training data, over the whole run",
            Some(status.data_wait_ms),
        ),
        (
            "data_wait_share",
            "What devices waited for training data, over their whole time",
            status.data_wait_share,
        ),
        (
            "checkpoint_stall_share",
            "What training stood still for checkpoints, over the time of the devices",
            status.checkpoint_stall_share,
        ),
        (
            "samples_counted",
            "Samples in rounds that are applied everywhere",
            Some(status.samples_counted as f64),
        ),
        ("samples_late", "Samples that came too late for a round's result", Some(status.samples_late as f64)),
        ("samples_pending", "Samples to be given out again", Some(status.samples_pending as f64)),
        (
            "audit_worst",
            "How far what was sent and what is kept are from what there was, at worst",
            Some(f64::from(status.audit.worst)),
        ),
        ("parity_broken", "1 when members differed after the newest complete round", broken),
    ];
    for (name, help, value) in gauges {
        if let Some(value) = value {
            registry.register(name, help, ConstGauge::new(value));
        }
    }
    for (name, help, value) in [
        ("tokens", "Tokens of samples that were worked on", status.tokens),
        ("wan_bytes", "Bytes sent between sites", status.wan_bytes),
        ("dense_bytes", "Bytes that dense f32 would have sent", status.dense_bytes),
    ] {
        registry.register(name, help, ConstCounter::new(value));
    }
}

fn add_data(registry: &mut Registry, status: &Status) {
    let fetched = Family::<Labels, Counter>::default();
    for (from, bytes) in [("other_sites", status.data_wan_bytes), ("own_site", status.data_lan_bytes)] {
        fetched.get_or_create(&vec![("from", from.to_owned())]).inc_by(bytes);
    }
    registry.register("data_fetched_bytes", "Training data fetched from other workers", fetched);
}

fn add_refusals(registry: &mut Registry, status: &Status) {
    let refused = Family::<Labels, Counter>::default();
    for refusal in &status.refused {
        let labels = vec![("site", refusal.site.clone()), ("reason", refusal.reason.name().to_owned())];
        refused.get_or_create(&labels).inc_by(refusal.count);
    }
    registry.register("refused_contributions", "Contributions that owners left out of results", refused);
    let unnamed = ConstCounter::new(status.refused_unnamed);
    let help = "Contributions that owners left out of results and had no room to name";
    registry.register("refused_contributions_unnamed", help, unnamed);
}

fn add_losses(registry: &mut Registry, status: &Status) {
    let lost = Family::<Labels, Counter>::default();
    let ResidualsLost { contributions, results, factors } = status.residuals_lost;
    for (of, count) in [("contributions", contributions), ("results", results), ("factors", factors)] {
        lost.get_or_create(&vec![("of", of.to_owned())]).inc_by(count);
    }
    registry.register("residuals_lost", "Fragments whose residual was lost with a worker", lost);
}

fn add_links(registry: &mut Registry, status: &Status) {
    let (rates, round_trips) = (Gauges::default(), Gauges::default());
    for link in &status.links {
        let labels = vec![("from", link.from.clone()), ("to", link.to.clone())];
        rates.get_or_create(&labels).set(link.bytes_per_s);
        round_trips.get_or_create(&labels).set(link.round_trip_s);
    }
    registry.register("link_bytes_per_second", "What the way from one site to another carries", rates);
    let help = "Round trip between two sites without queues";
    registry.register("link_round_trip_seconds", help, round_trips);
}

fn add_workers(registry: &mut Registry, status: &Status) {
    let (states, speeds) = (Gauges::default(), Gauges::default());
    let (seen, healths) = (Gauges::default(), Gauges::default());
    for member in &status.members {
        states.get_or_create(&vec![("state", member.state.clone())]).inc();
        let labels = vec![("worker", member.id.clone()), ("site", member.site.clone())];
        if let Some(speed) = member.tokens_per_s {
            speeds.get_or_create(&labels).set(speed);
        }
        seen.get_or_create(&labels).set(member.last_seen_s);
        if member.health != Health::Steady {
            let labels = labels.into_iter().chain([("health", member.health.word().to_owned())]).collect();
            healths.get_or_create(&labels).set(1.0);
        }
    }
    registry.register("workers", "Workers that have joined, by state", states);
    registry.register("worker_tokens_per_second", "Tokens per second of a worker", speeds);
    registry.register("worker_health", "1 of a worker that is slow or silent", healths);
    registry.register("worker_last_seen_seconds", "Seconds since a worker said something", seen);
}
