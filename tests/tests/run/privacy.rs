//! Runs with `[privacy]`: contributions are clipped and noisy.

use longhaul_common::config::PrivacyConfig;

use crate::scenario::Setup;

const SYNC: &str = "preset = \"diloco\"\nevery = 4\nouter_momentum = 0.0\nouter_learning_rate = 1.0\nfragment_values = 16384";

/// Little noise, and so little privacy, as two sites cannot average much of it away: see
/// `worker/member/docs/sync.md`.
#[test]
#[ignore = "nightly: covered by masked_and_noisy_contributions_train_and_keep_all_replicas_equal, the_status_tells_what_was_spent_and_counts_what_a_new_generation_repeats"]
fn a_private_run_trains_keeps_all_replicas_equal_and_tells_what_it_spends() {
    let privacy = Some("clip = 2.0\nnoise = 0.01\ndelta = 1e-6\nreport_loss = true");
    let mut scenario = Setup { sync: SYNC, privacy, ..Setup::default() }.start();
    // It asserts parity.
    let status = scenario.finish();
    let loss = status["loss"].as_f64().unwrap();
    assert!(loss < 4.2, "the loss is {loss}");
    let config = PrivacyConfig { clip: 2.0, noise: 0.01, delta: 1e-6, report_loss: true };
    let (told, releases) = (&status["privacy"], status["privacy"]["releases"].as_u64().unwrap());
    assert!(releases >= status["rounds"].as_u64().unwrap(), "{told:#}");
    assert_eq!(told["epsilon"].as_f64(), Some(config.epsilon(releases)), "{told:#}");
    assert_eq!(told["epsilon"], told["epsilon_at_the_end"]);
    let log = scenario.cluster.worker(0).unwrap().log();
    assert!(log.contains("this site's contributions are private"), "{log}");
}

/// Noise that dominates any update: if an update bypassed the mechanism, the model would learn.
#[test]
#[ignore = "nightly: covered by what_is_sent_and_what_is_kept_for_later_are_clipped_and_noisy_alike, the_coordinator_is_told_no_figure_of_the_data_unless_somebody_asked_for_it"]
fn of_what_is_drowned_in_noise_nothing_is_learnt_and_no_loss_is_told() {
    let privacy = Some("clip = 1e-4\nnoise = 100.0\ndelta = 1e-6");
    let mut scenario = Setup { sync: SYNC, privacy, ..Setup::default() }.start();
    let status = scenario.finish();
    for figure in ["loss", "gradient_norm", "validation_loss"] {
        assert!(status[figure].is_null(), "{figure}: {status:#}");
    }
    let log = scenario.cluster.worker(0).unwrap().log();
    let line = log.lines().find(|line| line.contains("loss on the held-out text")).unwrap();
    let loss: f64 = line.rsplit("loss=").next().unwrap().trim().parse().unwrap();
    // ln 256 = 5.55 is the loss of an untrained model.
    assert!(loss > 5.2, "{line}");
}

/// Three sites, one of two workers: each pair of uploaders shares its masks, above the noise.
#[test]
fn masked_and_noisy_contributions_train_and_keep_all_replicas_equal() {
    let sync = format!("{SYNC}\nnorm_limit = 0\ndeadline_floor_ms = 30000");
    let privacy =
        "clip = 2.0\nnoise = 0.01\ndelta = 1e-6\nreport_loss = true\n[secure_aggregation]\nrange = 16.0";
    let sites = vec![2, 1, 1];
    let mut scenario = Setup { sites, sync: &sync, privacy: Some(privacy), ..Setup::default() }.start();
    let loss = scenario.finish()["loss"].as_f64().unwrap();
    assert!(loss < 4.2, "the loss is {loss}");
}
