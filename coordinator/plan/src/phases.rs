//! How a run's exchange changes from its first step to its last.

use longhaul_common::config::{ResultForm, RunConfig, SelectionRule, SyncConfig, Transform, ValueFormat};
use longhaul_common::model::ModelSpec;
use longhaul_proto::codec::chain::warmup;
use longhaul_proto::codec::{CodecSpec, Selection};
use serde::Serialize;

use super::workload::warmup_chain_back;
use super::{ChainCost, Exchange};

/// Steps that exchange alike.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Which.
    pub kind: PhaseKind,
    /// How many.
    pub steps: u64,
    /// Exchange of a stage's sync group during them.
    pub exchange: Exchange,
    /// Where bits follow the link: an exchange may take as long as so many steps.
    pub window_steps: f64,
    /// Whether each replica computes the steps of all.
    pub is_redundant: bool,
}

/// Which part of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum PhaseKind {
    /// `warmup_rounds` and `warmup_share`.
    Warmup,
    /// The rest of `early_share`.
    Early,
    /// All the rest.
    Steady,
}

/// In a warm-up of common steps, bits that follow the link may take as long as two steps (decision 0011).
const WARMUP_WINDOW_STEPS: f64 = 2.0;
/// The early part of a run is as long as so many warm-ups at least.
const WARMUPS: u64 = 3;

/// The phases of a run that have steps, in order.
#[must_use]
pub fn phases(config: &RunConfig, spec: &ModelSpec) -> Vec<Phase> {
    let sync = &config.sync;
    let schedule = config.round_schedule();
    let steady = Exchange::of(config, spec);
    let warmup = schedule.warmup_rounds.saturating_mul(schedule.warmup_every).min(schedule.steps);
    let early = early_steps(sync, warmup, schedule.steps).saturating_sub(warmup);
    let window_steps = if sync.adapt && sync.opens_with_gradients() { WARMUP_WINDOW_STEPS } else { 1.0 };
    let all = [
        (PhaseKind::Warmup, warmup, in_warmup(sync, &steady), window_steps),
        (PhaseKind::Early, early, early_part(sync, &steady), 1.0),
        (PhaseKind::Steady, schedule.steps - warmup - early, steady, 1.0),
    ];
    let phase = |(kind, steps, exchange, window_steps)| {
        let is_redundant = sync.is_redundant_in(kind == PhaseKind::Warmup);
        Phase { kind, steps, exchange, window_steps, is_redundant }
    };
    all.into_iter().filter(|(_, steps, ..)| *steps > 0).map(phase).collect()
}

/// Steps from the first one on in which `auto` sends two bits at least.
fn early_steps(sync: &SyncConfig, warmup: u64, steps: u64) -> u64 {
    if !sync.adapt || sync.early_share == 0.0 {
        return 0;
    }
    let share = (sync.early_share * steps as f64).ceil() as u64;
    share.max(warmup.saturating_mul(WARMUPS)).min(steps)
}

/// All fragments in each round, as gradients or as deltas.
fn in_warmup(sync: &SyncConfig, steady: &Exchange) -> Exchange {
    let turns = sync.warmup_every as f64;
    let with_gradients = sync.opens_with_gradients();
    let least = if with_gradients { ValueFormat::Int4 } else { ValueFormat::TwoBit };
    let (up, down) = match sync.adapt {
        // A value of each fragment.
        _ if sync.is_redundant_in(true) => [32.0 / f64::from(sync.fragment_values); 2].into(),
        true => [least_bits(least, sync, with_gradients); 2].into(),
        false => {
            let up = warmup(sync).bits_per_value();
            let is_bundle = sync.result == ResultForm::Bundle;
            (up, if is_bundle { up } else { warmup_chain_back(sync).bits_per_value() })
        }
    };
    let [up_cost, down_cost] = match sync.adapt {
        true => [ChainCost::of_bits(up); 2],
        false => [warmup(sync), warmup_chain_back(sync)].map(|chain| ChainCost::of(&chain)),
    };
    Exchange {
        up: up_cost,
        down: down_cost,
        coded: 1.0,
        up_bits: up / turns,
        down_bits: down / turns,
        overlaps: !with_gradients && sync.overlap > 0,
        streams: with_gradients
            && sync.transform == Transform::None
            && sync.selection != SelectionRule::Columns,
        every: turns,
        turns,
        exchanges: 1.0,
        most_bits: (sync.adapt && !sync.is_redundant_in(true)).then_some(up.max(sync.bits_max) / turns),
        turns_least: turns,
        ..*steady
    }
}

fn early_part(sync: &SyncConfig, steady: &Exchange) -> Exchange {
    let bits = least_bits(ValueFormat::TwoBit, sync, false) / steady.turns;
    steady.with_bits(bits.max(steady.up_bits))
}

/// Of a value, whatever the link carries.
fn least_bits(format: ValueFormat, sync: &SyncConfig, with_gradients: bool) -> f64 {
    sync.bits_at_least(CodecSpec::new(Selection::All, format).bits_per_value(), with_gradients)
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::SyncPreset;
    use longhaul_run_toml::{Gpt2, RunToml};

    use super::*;

    fn of(preset: SyncPreset, steps: u64) -> Vec<Phase> {
        let run = RunToml::new("r").workers(4).steps(steps).batch(32).set("train.micro_batch", 8);
        let run = run.gpt2(Gpt2 { layers: 4, width: 128, heads: 4, context: 128 });
        let mut config = RunConfig::parse(&run.to_string()).unwrap();
        config.sync = SyncConfig::of(preset);
        phases(&config, &ModelSpec::resolve(&config.model, 256).unwrap())
    }

    fn lengths(phases: &[Phase]) -> Vec<(PhaseKind, u64)> {
        phases.iter().map(|phase| (phase.kind, phase.steps)).collect()
    }

    #[test]
    fn a_run_has_its_steps_in_its_phases() {
        use PhaseKind::{Early, Steady, Warmup};
        assert_eq!(
            lengths(&of(SyncPreset::Auto, 1500)),
            [(Warmup, 100), (Early, 200), (Steady, 1200)],
            "three warm-ups, or a fifth of the run"
        );
        assert_eq!(lengths(&of(SyncPreset::Auto, 6000)), [(Warmup, 300), (Early, 900), (Steady, 4800)]);
        assert_eq!(lengths(&of(SyncPreset::Auto, 150)), [(Warmup, 100), (Early, 50)]);
        assert_eq!(lengths(&of(SyncPreset::Auto, 60)), [(Warmup, 60)]);
        assert_eq!(lengths(&of(SyncPreset::Dense, 1500)), [(Steady, 1500)]);
        assert_eq!(lengths(&of(SyncPreset::OnebitAdam, 1500)), [(Warmup, 300), (Steady, 1200)]);
    }

    /// Of four sites, as the benchmark counted them over 1500 steps (docs/benchmarks/sync.md, quality).
    #[test]
    fn bits_of_whole_runs_are_about_those_that_were_measured() {
        let measured = [
            (SyncPreset::Dense, 48.0),
            (SyncPreset::SparseLocal, 0.079),
            (SyncPreset::Demo, 12.7),
            (SyncPreset::Dgc, 12.2),
            (SyncPreset::OnebitAdam, 10.8),
            (SyncPreset::Powersgd, 6.98),
            (SyncPreset::Cocktail, 1.57),
        ];
        for (preset, expected) in measured {
            let sent = |exchange: &Exchange| {
                let results = if exchange.side_by_side { 4.0 } else { 1.0 };
                0.75 * (exchange.up_bits + results * exchange.down_bits)
            };
            let phases = of(preset, 1500);
            let bits =
                phases.iter().map(|phase| sent(&phase.exchange) * phase.steps as f64 / 1500.0).sum::<f64>();
            assert!((bits / expected - 1.0).abs() < 0.1, "{preset:?}: {bits} for {expected}");
        }
    }

    #[test]
    fn auto_sends_four_bits_in_its_warmup_and_two_early_whatever_the_link_carries() {
        let phases = of(SyncPreset::Auto, 1500);
        let [warmup, early, steady] = &phases[..] else { panic!("{phases:?}") };
        assert!((warmup.exchange.up_bits - 4.125).abs() < 0.01 && warmup.window_steps == 2.0);
        assert!(!warmup.exchange.overlaps && warmup.exchange.streams, "{warmup:?}");
        // Half of the model every four steps.
        assert!((early.exchange.up_bits - 2.0 / 8.0).abs() < 0.01, "{early:?}");
        assert!(steady.exchange.up_bits < early.exchange.up_bits && early.exchange.overlaps);
    }
}
