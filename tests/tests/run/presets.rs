//! Every preset of `[sync]` trains end to end: two sites, real processes, a lossy link.

use longhaul_common::config::SyncPreset;
use longhaul_emulator::LinkConfig;
use serde_json::Value;

use crate::scenario::{RUN_MAX, Setup, at_once};

/// Adapts a preset to a run of a minute: its own pace is for thousands of steps.
fn sync(preset: SyncPreset) -> &'static str {
    match preset {
        SyncPreset::Auto => "preset = \"auto\"\nwarmup_rounds = 20",
        SyncPreset::Dense => "preset = \"dense\"",
        SyncPreset::Dgc => "preset = \"dgc\"\nkeep = 256",
        SyncPreset::Demo => "preset = \"demo\"\nkeep = 512",
        SyncPreset::Cocktail => "preset = \"cocktail\"",
        SyncPreset::Powersgd => "preset = \"powersgd\"",
        SyncPreset::OnebitAdam => "preset = \"onebit-adam\"\nwarmup_share = 0.5",
        SyncPreset::Diloco => "preset = \"diloco\"\nevery = 10",
        SyncPreset::StreamingDiloco => "preset = \"streaming-diloco\"\nevery = 3\ngroups = 3",
        SyncPreset::SparseLocal => "preset = \"sparse-local\"\nevery = 5\noverlap = 5\nkeep = 256",
        SyncPreset::Muloco => "preset = \"muloco\"",
    }
}

/// Steps by the plain gradient are as long as the gradient, those by its sign as long as the rate.
fn learning_rate(preset: SyncPreset) -> f64 {
    match preset {
        SyncPreset::Dgc => 0.3,
        SyncPreset::Demo => 2e-3,
        _ => 5e-3,
    }
}

/// About a twenty-fifth above a preset's final loss on held-out text. On a machine of any speed no member is
/// left out of a round, and most presets end with equal losses each time. Two vary by a fourteenth:
/// `cocktail` has random masks, which differ per run, and `sparse-local` ends before its rounds have sent
/// their residuals.
fn loss_max(preset: SyncPreset) -> f64 {
    match preset {
        SyncPreset::Demo | SyncPreset::Muloco => 3.0,
        SyncPreset::Dense | SyncPreset::OnebitAdam | SyncPreset::Powersgd => 3.2,
        SyncPreset::Auto | SyncPreset::StreamingDiloco => 3.22,
        SyncPreset::Diloco => 3.25,
        SyncPreset::Dgc => 3.32,
        SyncPreset::Cocktail => 3.4,
        SyncPreset::SparseLocal => 3.9,
    }
}

#[test]
fn every_preset_trains_and_keeps_all_replicas_equal() {
    at_once(SyncPreset::ALL.to_vec(), |preset| {
        let deadlines = "deadline_floor_ms = 240000\ndeadline_ceiling_ms = 240000";
        let sync = format!("{}\nfragment_values = 16384\n{deadlines}", sync(preset));
        let mut scenario = Setup {
            steps: 60,
            // One site with a reduction, and one without.
            sites: vec![2, 1],
            batch: 12,
            width: 64,
            learning_rate: learning_rate(preset),
            // Over only a few hundred tokens, the loss of `cocktail` varies by a tenth.
            evaluate_batches: 32,
            sync: &sync,
            silent_after_ms: 240_000,
            ..Setup::default()
        }
        .start();
        // It asserts parity.
        let status = scenario.finish();
        let loss = status["validation_loss"].as_f64().unwrap();
        // 256 byte values: ln 256 = 5.55 before training; the frequencies of letters alone give about 3.1.
        assert!(loss < loss_max(preset), "{preset:?}: the loss is {loss}");
        let refused = &status["refused"];
        assert_eq!(refused.as_array().map(Vec::len), Some(0), "{preset:?}: {refused:#}");
    });
}

/// Over a slow link, both sites compute the whole batch of each step, and send a value of each of four fragments.
#[test]
fn over_a_slow_link_the_warmup_is_the_training_of_one_worker_and_sends_no_gradients() {
    let deadlines = "deadline_floor_ms = 240000\ndeadline_ceiling_ms = 240000";
    let redundant = format!("preset = \"auto\"\nwarmup_rounds = 50\nfragment_values = 16384\n{deadlines}");
    let end_of = |sites: Vec<usize>, sync: &str| {
        let setup = Setup {
            steps: 50,
            sites,
            link: "rate_mbit=1,delay_ms=10",
            parallel: "plan = \"auto\"",
            evaluate_batches: 16,
            sync,
            silent_after_ms: 240_000,
            ..Setup::default()
        };
        // It asserts parity.
        let status = setup.start().finish();
        ["validation_loss", "wan_bytes", "samples_counted"]
            .map(|name| status[name].as_f64().unwrap_or_default())
    };
    let [one, two] =
        [(vec![1], "preset = \"dense\""), (vec![1, 1], &*redundant)].map(|(sites, sync)| end_of(sites, sync));
    assert!((one[0] / two[0] - 1.0).abs() < 1e-5, "{one:?} and {two:?}");
    assert_eq!(one[2], two[2], "samples count once");
    // The dense exchange of 50 steps is 50 · 4 bytes · 2 sites for each of some 50,000 parameters.
    assert!(two[1] > 0.0 && two[1] < 300_000.0, "{two:?}");
}

/// The mean of a step arrives while the next one is computed at the predicted parameters.
#[test]
#[ignore = "nightly: covered by dense_with_look_ahead_follows_the_reference"]
fn gradients_that_look_ahead_train_and_keep_all_replicas_equal() {
    let sync = "preset = \"dense\"\noverlap = 1\nlook_ahead = true\nvalues = \"int4\"\nwarmup_rounds = 10\n\
                warmup_values = \"int8\"\nfragment_values = 16384";
    let mut scenario = Setup { steps: 60, sync, ..Setup::default() }.start();
    let loss = scenario.finish()["loss"].as_f64().unwrap();
    assert!(loss < 4.2, "the loss is {loss}");
}

/// A recompressed mean, both ways in few bits: residuals of either side are sent later. Over all values, and
/// over those sent by any site.
#[test]
#[ignore = "nightly: covered by sparse_local_both_ways_follows_the_reference_between_two_members, sparse_local_with_unions_follows_the_reference"]
fn two_way_compression_trains_and_keeps_all_replicas_equal() {
    for result in ["mean", "union"] {
        let sync = format!(
            "preset = \"sparse-local\"\nevery = 2\noverlap = 2\nkeep = 512\nresult = \"{result}\"\nresult_keep = 512\n\
             result_values = \"int4\"\nwarmup_rounds = 4\nwarmup_every = 2\nwarmup_keep = 4096\n\
             warmup_values = \"int8\"\nfragment_values = 16384"
        );
        let mut scenario = Setup { steps: 60, sync: &sync, ..Setup::default() }.start();
        let loss = scenario.finish()["loss"].as_f64().unwrap();
        assert!(loss < 4.2, "{result}: the loss is {loss}");
    }
}

/// The same run over two links, one with two hundred times the rate of the other: a slow machine has more
/// bandwidth per step.
#[test]
fn the_bits_of_a_value_follow_the_link() {
    let wan_bytes = |link| {
        let sync = "preset = \"auto\"\nevery = 10\noverlap = 10\ngroups = 1\nwarmup_rounds = 20\nwarmup_share = 0\n\
                    early_share = 0\nbits_max = 8.2\nfragment_values = 16384";
        let sites = vec![1, 1];
        let setup = Setup {
            steps: 400,
            sites,
            link,
            width: 64,
            learning_rate: 2e-3,
            sync,
            alone: true,
            ..Setup::default()
        };
        setup.start().finish()["wan_bytes"].as_f64().unwrap()
    };
    let (fast, slow) = (wan_bytes("rate_mbit=200,delay_ms=10"), wan_bytes("rate_mbit=1,delay_ms=10"));
    assert!(fast > 2.0 * slow, "{fast} bytes over the fast link, {slow} over the slow one");
}

/// Steps of a few milliseconds, and round trips of a hundred: the warm-up measures them, and the rest of the
/// run has fewer rounds.
#[test]
#[ignore = "nightly: covered by long_round_trips_move_rounds_apart_after_the_warmup"]
fn rounds_move_apart_where_round_trips_are_long() {
    let sync = "warmup_rounds = 20\nwarmup_share = 0\nfragment_values = 8192";
    let link = "rate_mbit=50,delay_ms=50";
    let setup =
        Setup { steps: 320, sites: vec![1, 1], link, width: 64, sync, alone: true, ..Setup::default() };
    let status = setup.start().finish();
    let rounds = status["rounds"].as_u64().unwrap();
    assert!((20..200).contains(&rounds), "{rounds} rounds");
    let loss = status["loss"].as_f64().unwrap();
    assert!(loss < 4.2, "the loss is {loss}");
}

/// The same, but round trips become long only after the warm-up: members report it, and the coordinator
/// spaces rounds out.
#[test]
#[ignore = "nightly: covered by a_link_that_becomes_slow_moves_rounds_apart_and_one_that_recovers_brings_them_back"]
fn rounds_move_apart_when_a_link_becomes_slow_after_the_warmup() {
    let sync = "warmup_rounds = 20\nwarmup_share = 0\nfragment_values = 8192";
    let link = "rate_mbit=50,delay_ms=1";
    let setup = Setup {
        steps: 1500,
        sites: vec![1, 1],
        link,
        width: 64,
        learning_rate: 2e-3,
        sync,
        alone: true,
        ..Setup::default()
    };
    let mut scenario = setup.start();
    scenario.wait_for_round(60);
    let before = scenario.cluster.status();
    let slow: LinkConfig = "rate_mbit=5,delay_ms=100".parse().unwrap();
    for site in 0..2 {
        scenario.cluster.wan().into_site(site).reconfigure(slow.clone()).unwrap();
    }
    let is_decision = |event: &Value| {
        let text = event["text"].as_str().unwrap_or_default();
        text.contains("steps apart") && text.contains("waited least")
    };
    let is_decided =
        |status: &Value| status["events"].as_array().is_some_and(|events| events.iter().any(is_decision));
    scenario.cluster.wait_for("rounds to move apart", RUN_MAX, is_decided).unwrap();
    let status = scenario.finish();
    let [planned, rounds] = [&before, &status].map(|status| status["rounds"].as_u64().unwrap());
    assert!(rounds < planned, "{rounds} rounds, of {planned} before: {status:#}");
}
