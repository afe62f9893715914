//! Congestion control over simulated long links, in virtual time (targets in `docs/transport.md`).

use std::time::Duration;

use crate::simulated_path::{Flow, LinkSpec, Path, Side};

/// More than any test transfers.
const ENDLESS: u64 = 1 << 40;
/// Start-up is over by then on each link here.
const WARM_UP: Duration = Duration::from_secs(3);

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

/// Returns an endless transfer to the right, past its start-up.
fn warm_one_way(spec: LinkSpec, seed: u64) -> (Path, Flow) {
    let mut path = Path::symmetric(spec, seed);
    let flow = path.connect();
    path.send(flow, Side::Left, ENDLESS);
    path.run_for(WARM_UP);
    (path, flow)
}

/// Returns the part of the link's rate that reaches the application over `duration`.
fn share(path: &mut Path, flow: Flow, at: Side, spec: LinkSpec, duration: Duration) -> f64 {
    path.goodput(&[(flow, at)], duration)[0] / spec.bytes_per_s()
}

fn assert_fills(spec: LinkSpec, target: f64) {
    let (mut path, flow) = warm_one_way(spec, 1);
    let share = share(&mut path, flow, Side::Right, spec, seconds(6));
    assert!(share >= target, "{spec:?}: {share:.3} of the link, wanted {target}");
}

#[test]
fn one_transfer_fills_100_mbit_whatever_the_random_loss_up_to_one_per_cent() {
    for loss_percent in [0.0, 0.1, 1.0] {
        assert_fills(LinkSpec::new(100.0, 25, loss_percent), 0.92);
    }
}

#[test]
fn one_transfer_fills_a_slow_link_and_a_fast_one() {
    assert_fills(LinkSpec::new(10.0, 50, 0.1), 0.92);
    assert_fills(LinkSpec::new(500.0, 40, 0.1), 0.90);
}

#[test]
fn three_per_cent_random_loss_costs_little_more_than_the_retransmissions() {
    assert_fills(LinkSpec::new(100.0, 25, 3.0), 0.88);
}

#[test]
fn both_directions_at_once_keep_their_rate_under_loss() {
    for (mbit, delay, loss) in [(100.0, 25, 0.1), (100.0, 25, 1.0), (10.0, 50, 0.1), (500.0, 40, 0.1)] {
        let spec = LinkSpec::new(mbit, delay, loss);
        let mut path = Path::symmetric(spec, 7);
        let flow = path.connect();
        path.send(flow, Side::Left, ENDLESS);
        path.send(flow, Side::Right, ENDLESS);
        path.run_for(WARM_UP);
        let goodput = path.goodput(&[(flow, Side::Right), (flow, Side::Left)], seconds(8));
        for goodput in goodput {
            let share = goodput / spec.bytes_per_s();
            assert!(share >= 0.85, "{spec:?}: {share:.3}");
        }
    }
}

#[test]
fn a_cold_connection_reaches_the_rate_soon() {
    let cases = [
        (100.0, 25, 0.1, 30_000_000, 0.80),
        (10.0, 50, 0.1, 5_000_000, 0.82),
        (500.0, 40, 0.1, 100_000_000, 0.65),
        (1_000.0, 5, 0.0, 100_000_000, 0.80),
    ];
    for (mbit, delay, loss, bytes, target) in cases {
        let spec = LinkSpec::new(mbit, delay, loss);
        let mut path = Path::symmetric(spec, 3);
        let start = path.now();
        let flow = path.connect();
        path.send(flow, Side::Left, bytes);
        path.run_until(seconds(60), |path| path.received(flow, Side::Right) == bytes);
        let took = path.now().duration_since(start);
        let share = bytes as f64 / took.as_secs_f64() / spec.bytes_per_s();
        assert!(share >= target, "{spec:?}: {share:.3} of the link with the handshake, wanted {target}");
    }
}

#[test]
fn the_queue_stays_short_even_where_the_buffer_is_deep() {
    let spec = LinkSpec::new(100.0, 25, 0.1).queue(seconds(1));
    let (mut path, _) = warm_one_way(spec, 5);
    let from = path.now();
    path.run_for(seconds(6));
    let rtt = spec.delay * 2;
    let median = path.rightward.wait_quantile(from, 0.5);
    let p99 = path.rightward.wait_quantile(from, 0.99);
    assert!(median <= rtt.mul_f64(0.3), "median wait {median:?} on a round trip of {rtt:?}");
    assert!(p99 <= rtt, "99 % wait {p99:?} on a round trip of {rtt:?}");
}

#[test]
fn a_shallow_buffer_is_respected() {
    let spec = LinkSpec::new(100.0, 25, 0.1).queue(Duration::from_millis(10));
    let (mut path, flow) = warm_one_way(spec, 6);
    let (accepted, overflowed) = (path.rightward.accepted, path.rightward.overflowed);
    let share = share(&mut path, flow, Side::Right, spec, seconds(6));
    let dropped = (path.rightward.overflowed - overflowed) as f64;
    let dropped = dropped / (dropped + (path.rightward.accepted - accepted) as f64);
    assert!(share >= 0.85, "{share:.3} of the link");
    assert!(dropped <= 0.02, "{:.2} % of the packets overflowed the queue", 100.0 * dropped);
}

#[test]
fn a_fivefold_drop_of_the_rate_is_followed_and_so_is_its_end() {
    let spec = LinkSpec::new(100.0, 25, 0.1);
    let (mut path, flow) = warm_one_way(spec, 8);
    let now = path.now();
    path.rightward.change_rate(now, 20.0);
    path.run_for(seconds(3));
    let slow = LinkSpec { mbit_per_s: 20.0, ..spec };
    let from = path.now();
    let low = share(&mut path, flow, Side::Right, slow, seconds(4));
    let median = path.rightward.wait_quantile(from, 0.5);
    assert!(low >= 0.9, "{low:.3} of the slow link");
    assert!(median <= spec.delay, "median wait {median:?} after the drop");

    let now = path.now();
    path.rightward.change_rate(now, 100.0);
    path.run_for(seconds(3));
    let high = share(&mut path, flow, Side::Right, spec, seconds(4));
    assert!(high >= 0.9, "{high:.3} of the link after it recovered");
}

#[test]
fn a_burst_after_silence_goes_at_the_rate_learnt_before() {
    const BURST: u64 = 5_000_000;
    let spec = LinkSpec::new(100.0, 25, 0.1);
    let mut path = Path::symmetric(spec, 10);
    let flow = path.connect();
    let mut total = 0;
    let mut took = Vec::new();
    for _ in 0..6 {
        total += BURST;
        path.send(flow, Side::Left, BURST);
        took.push(path.run_until(seconds(10), |path| path.received(flow, Side::Right) == total));
        path.run_for(seconds(3));
    }
    // At the link's rate alone: 0.4 s, and half a round trip.
    for took in &took[1..] {
        assert!(*took <= Duration::from_millis(500), "{took:?}");
    }
}

#[test]
fn a_newcomer_gets_its_share_from_a_transfer_that_was_there_first() {
    for (mbit, delay) in [(100.0, 25), (10.0, 50)] {
        let spec = LinkSpec::new(mbit, delay, 0.1);
        let (mut path, first) = warm_one_way(spec, 11);
        let second = path.connect();
        path.send(second, Side::Left, ENDLESS);
        path.run_for(WARM_UP);
        let goodput = path.goodput(&[(first, Side::Right), (second, Side::Right)], seconds(10));
        let total = goodput[0] + goodput[1];
        let smaller = goodput[0].min(goodput[1]) / total;
        assert!(smaller >= 0.35, "{spec:?}: the smaller flow has {smaller:.3} of the sum");
        assert!(total >= 0.9 * spec.bytes_per_s(), "{spec:?}: together {total:.0} bytes/s");
    }
}

#[test]
fn acknowledgements_in_bursts_do_not_starve_the_sender() {
    let forward = LinkSpec::new(100.0, 25, 0.1);
    let backward = forward.batching(Duration::from_millis(20));
    let mut path = Path::new(forward, backward, 12);
    let flow = path.connect();
    path.send(flow, Side::Left, ENDLESS);
    path.run_for(WARM_UP);
    let share = share(&mut path, flow, Side::Right, forward, seconds(6));
    assert!(share >= 0.9, "{share:.3} of the link");
}

/// Two sites in one town, on busy machines: the path takes microseconds, and its threads wait to be
/// scheduled.
#[test]
fn a_short_path_between_busy_machines_keeps_a_useful_rate() {
    let spec = LinkSpec { delay: Duration::from_micros(50), ..LinkSpec::new(1000.0, 0, 0.0) };
    let (mut path, flow) = warm_one_way(spec.queue(Duration::from_millis(5)), 15);
    for turn_ms in [5, 10] {
        let turn = Duration::from_millis(turn_ms);
        path.rightward.change_batching(turn);
        path.leftward.change_batching(turn);
        path.run_for(WARM_UP);
        let share = share(&mut path, flow, Side::Right, spec, seconds(3));
        // A fragment of a megabyte takes a fraction of a second.
        assert!(share >= 0.2, "{turn_ms} ms: {share:.3} of the link");
    }
}

#[test]
fn a_long_transfer_measures_its_round_trip_anew_without_losing_the_rate() {
    let spec = LinkSpec::new(20.0, 25, 0.0);
    let (mut path, flow) = warm_one_way(spec, 13);
    let share = share(&mut path, flow, Side::Right, spec, seconds(40));
    assert!(share >= 0.92, "{share:.3} of the link");
}

/// Three connections share a link that each could fill alone, like those of a worker to three other sites.
#[test]
fn the_round_trip_without_queues_is_known_while_the_link_is_full() {
    let spec = LinkSpec::new(3.4, 25, 0.1);
    let mut path = Path::symmetric(spec, 17);
    let flows = [(); 3].map(|()| path.connect());
    for flow in flows {
        path.send(flow, Side::Left, ENDLESS);
        path.send(flow, Side::Right, ENDLESS);
    }
    path.run_for(seconds(20));
    for flow in flows {
        let (without, with) = path.round_trips(flow, Side::Left);
        // A packet takes 3 ms each way.
        assert!((50..=70).contains(&without.as_millis()), "{without:?}, and {with:?} with queues");
        assert!(with > without, "there are none");
    }
}

/// The planner's view of a link: slightly less than its packet rate, and nothing until a sender has filled
/// it.
#[test]
fn the_rate_of_a_link_that_was_full_is_known_and_of_one_that_was_not_nothing() {
    let spec = LinkSpec::new(20.0, 25, 0.1);
    let mut path = Path::symmetric(spec, 23);
    let flow = path.connect();
    path.send(flow, Side::Left, 10_000);
    path.run_for(seconds(2));
    assert_eq!(path.delivery_rate(flow, Side::Left), None);
    path.send(flow, Side::Left, ENDLESS);
    path.run_for(seconds(20));
    let mbit = path.delivery_rate(flow, Side::Left).expect("it is full") * 8e-6;
    assert!((18.0..=21.0).contains(&mbit), "{mbit:.1} of 20 Mbit/s");
}

#[test]
fn timers_that_fire_late_do_not_slow_the_sender() {
    for step_ms in [1, 2, 4] {
        let spec = LinkSpec::new(100.0, 25, 0.1);
        let mut path = Path::symmetric(spec, 14);
        path.coarsen_timers(Duration::from_millis(step_ms));
        let flow = path.connect();
        path.send(flow, Side::Left, ENDLESS);
        path.run_for(WARM_UP);
        let share = share(&mut path, flow, Side::Right, spec, seconds(6));
        assert!(share >= 0.92, "{step_ms} ms: {share:.3} of the link");
    }
}
