use longhaul_proto::control::message::TimeSpent;

use super::*;

fn report(round: u64, samples: u32, loss: f32) -> RoundReport {
    RoundReport {
        generation: Default::default(),
        round: Round(round),
        loss: Some(loss),
        gradient_norm: Some(loss),
        samples,
        sites: vec![SiteId(0)],
        residual_ratio: Some(loss),
        state_hash: [0; 32],
        skipped: Vec::new(),
        validation_loss: None,
        validation_accuracy: None,
        refused: Vec::new(),
        refused_beyond: 0,
        measured: None,
        audit: Default::default(),
    }
}

#[test]
fn a_rounds_loss_is_weighted_by_samples() {
    let mut summaries = Summaries::default();
    summaries.push(WorkerId(1), 0, &report(0, 30, 1.0));
    summaries.push(WorkerId(2), 0, &report(0, 10, 5.0));
    summaries.push(WorkerId(2), 0, &report(1, 10, f32::NAN));
    let done = summaries.take_through(Round(1));
    assert_eq!(done.len(), 1);
    assert_eq!((done[0].loss, done[0].samples, done[0].residual_ratio), (Some(2.0), 40, Some(5.0)));
    assert_eq!(summaries.residual_ratio(), Some(5.0));
    let done = summaries.take_through(Round(2));
    assert_eq!(done[0].loss, None, "what is not a number is not a loss");
}

/// Two copies of two parts: norms of the whole are 5 and 13, by 3-4-5 and 5-12-13.
#[test]
fn norms_of_parts_add_up_and_those_of_copies_are_averaged_in_squares() {
    let mut summaries = Summaries::default();
    let mut push = |round, worker, rank, gradient_norm| {
        let report = RoundReport { gradient_norm, ..report(round, 10, 1.0) };
        summaries.push(WorkerId(worker), rank, &report);
    };
    for (worker, rank, norm) in [(1, 0, 3.0), (2, 1, 4.0), (3, 0, 5.0), (4, 1, 12.0)] {
        push(0, worker, rank, Some(norm));
    }
    for (worker, rank, norm) in [(1, 0, Some(3.0)), (2, 1, None), (3, 0, Some(5.0)), (4, 1, Some(f32::NAN))] {
        push(1, worker, rank, norm);
    }
    for (worker, rank, norm) in [(1, 0, Some(3.0)), (2, 1, Some(4.0)), (3, 0, None), (4, 1, None)] {
        push(2, worker, rank, norm);
    }
    let norms: Vec<_> = summaries.take_through(Round(3)).iter().map(|done| done.gradient_norm).collect();
    let mean = (f64::midpoint(5.0 * 5.0, 13.0 * 13.0)).sqrt() as f32;
    assert_eq!(norms, [Some(mean), None, Some(5.0)], "of a whole with an unknown part nothing is known");
    assert_eq!(summaries.gradient_norm(), Some(5.0));
}

#[test]
fn a_rounds_accuracy_is_the_mean_of_those_that_can_be() {
    let mut summaries = Summaries::default();
    for (worker, accuracy) in [(1, Some(0.5)), (2, Some(0.75)), (3, None), (4, Some(1e30)), (5, Some(-1.0))] {
        let report = RoundReport { validation_accuracy: accuracy, ..report(0, 10, 1.0) };
        summaries.push(WorkerId(worker), 0, &report);
    }
    assert_eq!(summaries.take_through(Round(1))[0].validation_accuracy, Some(0.625));
}

#[test]
fn what_was_reported_of_a_past_that_was_given_up_does_not_count() {
    let named = |summaries: &mut Summaries| {
        let done = summaries.take_through(Round(1));
        done.into_iter().map(|summary| (summary.round, summary.sites)).collect::<Vec<_>>()
    };
    let mut summaries = Summaries::default();
    summaries.push(WorkerId(1), 0, &RoundReport { sites: vec![SiteId(0), SiteId(1)], ..report(0, 1, 1.0) });
    summaries.push(WorkerId(2), 0, &RoundReport { sites: vec![SiteId(1)], ..report(0, 1, 1.0) });
    let mut reopened = summaries.clone();
    summaries.forget(WorkerId(1));
    assert_eq!(named(&mut summaries), [(Round(0), vec![SiteId(1)])]);
    let kept = reopened.clone();
    reopened.reopen(Round(1), 0);
    reopened.reopen(Round(0), 1);
    assert_eq!(reopened, kept);
    reopened.reopen(Round(0), 0);
    assert_eq!(named(&mut reopened), []);
}

#[test]
fn a_member_that_lags_for_ever_does_not_fill_the_memory() {
    let mut summaries = Summaries::default();
    for round in 0..1000 {
        summaries.push(WorkerId(1), 0, &report(round, 1, 1.0));
        summaries.take_through(Round(0));
    }
    assert_eq!(summaries.open.len(), OPEN_SUMMARIES_MAX);
}

#[test]
fn speeds_are_measured_over_the_recent_heartbeats() {
    let mut meter = Meter::default();
    for second in 0..100u64 {
        let s = second as f64;
        let heartbeat = Heartbeat {
            step: second * 3,
            tokens: second * 500,
            time: TimeSpent { compute_s: s * 0.9, wait_s: s * 0.1, ..TimeSpent::default() },
            ..Default::default()
        };
        meter.push(Duration::from_secs(second), heartbeat);
    }
    let (seconds, done) = meter.recent().unwrap();
    assert_eq!((seconds, done.tokens), (10.0, 5000));
    assert!((done.compute_s / (done.compute_s + done.wait_s) - 0.9).abs() < 1e-9);
    assert_eq!(meter.steps_per_s(), Some(3.0));
}

#[test]
fn speeds_are_measured_over_as_long_however_often_a_worker_says_what_it_has_done() {
    for (apart_ms, kept, seconds) in [(500, 21, 10.0), (2500, 5, 10.0), (3000, 5, 12.0), (1, 64, 0.063)] {
        let mut meter = Meter::default();
        for at in 0..200 {
            meter.push(Duration::from_millis(at * apart_ms), Heartbeat::default());
        }
        let (over, _) = meter.recent().unwrap();
        assert_eq!((meter.window.len(), over), (kept, seconds), "a heartbeat each {apart_ms} ms");
    }
}
