//! The link model in virtual time: every figure here is exact.

use std::time::Duration;

use proptest::prelude::*;
use rand::SeedableRng;
use rand_chacha::ChaCha8Rng;

use super::*;

const PACKET: u64 = 1250;

fn link(notation: &str) -> (LinkState, ChaCha8Rng) {
    (LinkState::new(notation.parse().unwrap()), ChaCha8Rng::seed_from_u64(1))
}

fn micros(micros: u64) -> Duration {
    Duration::from_micros(micros)
}

#[test]
fn a_busy_wire_sends_at_its_rate_to_the_nanosecond() {
    // 3 bytes/µs and 1250 bytes: 416.666… µs a packet, so rounding each one would drift.
    let (mut link, mut rng) = link("rate_mbit=24,queue_kib=400000");
    let arrivals: Vec<Duration> = (0..300_000)
        .map(|_| match link.offer(Duration::ZERO, PACKET, &mut rng) {
            Verdict::DeliverAt(at) => at,
            dropped => panic!("{dropped:?}"),
        })
        .collect();
    assert_eq!(arrivals[0], Duration::from_nanos(416_666));
    assert_eq!(arrivals[299_999], Duration::from_secs(125));
}

#[test]
fn an_idle_wire_delivers_after_serialisation_and_delay() {
    let (mut link, mut rng) = link("rate_mbit=10,delay_ms=20");
    assert_eq!(link.offer(micros(500), PACKET, &mut rng), Verdict::DeliverAt(micros(500 + 1000 + 20_000)));
    assert_eq!(link.offer(micros(5000), PACKET, &mut rng), Verdict::DeliverAt(micros(5000 + 1000 + 20_000)));
}

/// A megabyte per second, and a bucket of two packets.
#[test]
fn a_bucket_passes_its_bytes_on_at_once_and_all_that_follows_at_the_rate() {
    let (mut link, mut rng) = link("rate_mbit=8,delay_ms=10,burst_kib=1.953125");
    let arrivals = [0, 0, 0, 0, 1500].map(|at| link.offer(micros(at), 1000, &mut rng));
    assert_eq!(arrivals, [10_000, 10_000, 11_000, 12_000, 13_000].map(|at| Verdict::DeliverAt(micros(at))));
    // After two idle milliseconds it holds two again, and no more after an hour.
    for second in [4, 3600] {
        let now = Duration::from_secs(second);
        let arrivals = [0, 0, 0].map(|_| link.offer(now, 1000, &mut rng));
        assert_eq!(arrivals, [10, 10, 11].map(|late| Verdict::DeliverAt(now + Duration::from_millis(late))));
    }
}

/// Two packets pass at once, one waits, and the queue is full.
#[test]
fn what_a_bucket_has_passed_on_takes_no_room_in_the_queue() {
    let (mut link, mut rng) = link("rate_mbit=8,burst_kib=1.953125,queue_kib=1");
    let verdicts = [0; 4].map(|at| link.offer(micros(at), 1000, &mut rng));
    let expected = [0, 0, 1000].map(|at| Verdict::DeliverAt(micros(at)));
    assert_eq!(verdicts[..3], expected);
    assert_eq!(verdicts[3], Verdict::Dropped(DropReason::QueueFull));
}

#[test]
fn a_full_queue_drops_its_tail_and_takes_packets_again_as_it_drains() {
    let (mut link, mut rng) = link("rate_mbit=10,queue_kib=5");
    // 5120 bytes hold four packets of 1250.
    let verdicts: Vec<Verdict> = (0..6).map(|_| link.offer(Duration::ZERO, PACKET, &mut rng)).collect();
    assert_eq!(verdicts[3], Verdict::DeliverAt(micros(4000)));
    assert_eq!(verdicts[4..], [Verdict::Dropped(DropReason::QueueFull); 2]);
    assert_eq!(link.offer(micros(1000), PACKET, &mut rng), Verdict::DeliverAt(micros(5000)));
    assert_eq!(link.stats().queue_dropped.packets, 2);
}

#[test]
fn a_queue_shorter_than_a_packet_still_lets_one_onto_an_idle_wire() {
    let (mut link, mut rng) = link("rate_mbit=10,queue_kib=0");
    assert_eq!(link.offer(Duration::ZERO, PACKET, &mut rng), Verdict::DeliverAt(micros(1000)));
    assert_eq!(link.offer(Duration::ZERO, PACKET, &mut rng), Verdict::Dropped(DropReason::QueueFull));
    assert_eq!(link.offer(micros(1000), PACKET, &mut rng), Verdict::DeliverAt(micros(2000)));
}

#[test]
fn a_partition_drops_all_that_is_offered_until_it_heals() {
    let (mut link, mut rng) = link("rate_mbit=10,delay_ms=20");
    let before = link.offer(Duration::ZERO, PACKET, &mut rng);
    link.partition();
    assert_eq!(link.offer(micros(10), PACKET, &mut rng), Verdict::Dropped(DropReason::Partition));
    link.heal();
    assert_eq!(before, Verdict::DeliverAt(micros(21_000)));
    assert_eq!(link.offer(micros(20), PACKET, &mut rng), Verdict::DeliverAt(micros(22_000)));
}

#[test]
fn a_packet_longer_than_the_mtu_is_dropped_and_takes_no_time_on_the_wire() {
    let (mut link, mut rng) = link("rate_mbit=10");
    assert_eq!(link.offer(Duration::ZERO, 1501, &mut rng), Verdict::Dropped(DropReason::Oversize));
    assert_eq!(link.offer(Duration::ZERO, 1500, &mut rng), Verdict::DeliverAt(micros(1200)));
}

#[test]
fn a_lost_packet_has_still_taken_its_time_on_the_wire() {
    let (mut link, mut rng) = link("rate_mbit=10,loss_percent=100");
    assert_eq!(link.offer(Duration::ZERO, PACKET, &mut rng), Verdict::Dropped(DropReason::Loss));
    assert_eq!(link.waiting_bytes(Duration::ZERO), PACKET);
}

#[test]
fn a_new_rate_applies_to_the_bytes_that_wait_for_those_who_come_after_them() {
    let (mut link, mut rng) = link("rate_mbit=10,queue_kib=64");
    for _ in 0..10 {
        link.offer(Duration::ZERO, PACKET, &mut rng);
    }
    link.reconfigure(Duration::ZERO, "rate_mbit=5,queue_kib=64".parse().unwrap());
    assert_eq!(link.waiting_bytes(Duration::ZERO), 10 * PACKET);
    assert_eq!(link.offer(Duration::ZERO, PACKET, &mut rng), Verdict::DeliverAt(micros(22_000)));
}

#[test]
fn a_shorter_delay_lets_nobody_overtake() {
    let (mut link, mut rng) = link("rate_mbit=10,delay_ms=100");
    assert_eq!(link.offer(Duration::ZERO, PACKET, &mut rng), Verdict::DeliverAt(micros(101_000)));
    link.reconfigure(micros(1000), "rate_mbit=10,delay_ms=1".parse().unwrap());
    assert_eq!(link.offer(micros(1000), PACKET, &mut rng), Verdict::DeliverAt(micros(101_000)));
}

#[test]
fn a_reordered_packet_is_overtaken_by_later_ones_but_held_no_longer_than_asked() {
    let (mut link, mut rng) = link("rate_mbit=100,reorder_percent=10,reorder_ms=3");
    let mut inversions = 0;
    let mut last = Duration::ZERO;
    for packet in 0..10_000 {
        let now = micros(100) * packet;
        let Verdict::DeliverAt(at) = link.offer(now, PACKET, &mut rng) else { panic!("nothing is dropped") };
        assert!(at <= now + micros(100 + 3000));
        inversions += u32::from(at < last);
        last = last.max(at);
    }
    // A tenth is delayed by 1.5 ms on average, about 15 packets: most of the next ones arrive earlier.
    assert!(inversions > 5000, "{inversions} inversions");
}

proptest! {
    #[test]
    fn whatever_is_offered_is_delivered_or_dropped_for_a_reason_and_in_order(
        rate_mbit in 0.1_f64..1000.0,
        delay_ms in 0_u32..100,
        jitter_ms in 0_u32..10,
        loss_percent in 0_u32..60,
        burst in proptest::option::of(2_u32..10),
        queue_kib in proptest::option::of(0_u32..64),
        bucket_kib in 0_u32..16,
        seed: u64,
        offers in proptest::collection::vec((0_u64..2000, 1_u64..1600, 0_u8..50), 1..400),
    ) {
        let mut notation = format!(
            "rate_mbit={rate_mbit},delay_ms={delay_ms},jitter_ms={jitter_ms},loss_percent={loss_percent},burst_kib={bucket_kib}"
        );
        if let Some(burst) = burst { notation += &format!(",loss_burst={burst}"); }
        if let Some(queue_kib) = queue_kib { notation += &format!(",queue_kib={queue_kib}"); }
        let mut link = LinkState::new(notation.parse().unwrap());
        let mut rng = ChaCha8Rng::seed_from_u64(seed);
        let mut now = Duration::ZERO;
        let mut last_arrival = Duration::ZERO;
        for (gap_micros, len, event) in &offers {
            now += micros(*gap_micros);
            match event {
                0 => link.partition(),
                1..4 => link.heal(),
                _ => {}
            }
            if let Verdict::DeliverAt(at) = link.offer(now, *len, &mut rng) {
                prop_assert!(at >= now + link.config().delay);
                prop_assert!(at >= last_arrival);
                last_arrival = at;
            }
            let (queue, bucket) = (link.config().queue_bytes().max(1600), link.config().burst_bytes);
            prop_assert!(link.waiting_bytes(now) <= queue + bucket);
        }
        let stats = link.stats();
        let ends = [
            stats.delivered, stats.lost, stats.queue_dropped, stats.partition_dropped, stats.oversize_dropped,
        ];
        prop_assert_eq!(stats.offered.packets, offers.len() as u64);
        prop_assert_eq!(stats.offered.bytes, offers.iter().map(|(_, len, _)| len).sum::<u64>());
        prop_assert_eq!(stats.offered.packets, ends.iter().map(|count| count.packets).sum::<u64>());
        prop_assert_eq!(stats.offered.bytes, ends.iter().map(|count| count.bytes).sum::<u64>());
    }
}
