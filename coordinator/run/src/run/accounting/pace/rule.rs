//! The rule for the distance between rounds and the number of turns: a pure function of the members' measurements.

use longhaul_common::config::SyncConfig;
use longhaul_common::schedule::Pace;
use longhaul_plan::{BITS_OF_A_TURN, STEPS_OF_BUSY_CORES};
use longhaul_proto::control::message::Measured;
use longhaul_proto::round::LATENCY_ROUND_TRIPS;

/// The share of the time between two rounds that round trips may take: the rest is for bits.
const LATENCY_SHARE_MAX: f64 = 0.75;
/// Bits of a value with which rounds that leave the link idle for some steps are better than closer ones, which cost processor time.
const BITS_IN_TIME: f64 = 0.75;
/// How many times [`BITS_IN_TIME`] let rounds return to the configured pace: a link at the border does not change it again and again.
const FASTER_LINK: f64 = 1.5;
/// Steps between exchanges of a fragment where the link works all the time, over the configured ones: few bits take little of the codec's work, and a third more of them
/// gain less than exchanges a third closer.
const CLOSER_EXCHANGES: f64 = 0.75;
/// Idle cores per member for fewer turns where rounds stay close: the codec's work on the whole model after each step slows nothing down then
/// (`docs/decisions/0012-pace.md`).
const CORES_FOR_FEWER_TURNS: f64 = 1.0;

/// The run's bounds.
#[derive(Clone, Copy, Debug)]
pub struct Bounds {
    /// With the earliest results.
    pub configured: Pace,
    /// Least steps between rounds.
    pub closest: u64,
    /// Most turns of the model's fragments.
    pub turns_max: u32,
}

/// Returns the pace at which all members can exchange the least that the configuration allows, and round trips leave time to send more.
///
/// A less frequent exchange, or a later result, is worth less (`docs/decisions/0012-pace.md`): the pace stays as configured where [`BITS_IN_TIME`] arrive
/// within `overlap`, in as few turns as leave two bits a value; a fragment is exchanged more often than every [`STEPS_OF_BUSY_CORES`] steps only where members have cores for the codec's work. Otherwise
/// the link works all the time: rounds are `overlap` steps apart, or more if they must be, and results are due at the next contribution. A fragment's exchanges are
/// then more frequent by [`CLOSER_EXCHANGES`], or about as frequent if the bits that `backlog_max` asks for take so long; and in fewer turns where these leave two bits a value.
/// From there a link comes back that is [`FASTER_LINK`] times as fast as needed.
///
/// Impossible measurements are ignored; without any others, the configured pace stays.
pub fn wanted(bounds: Bounds, present: Pace, sync: &SyncConfig, members: &[Measured]) -> Pace {
    let Bounds { configured, closest, turns_max } = bounds;
    let sound: Vec<Times> = members.iter().filter_map(|member| Times::of(member, sync)).collect();
    let is_slow = works_all_the_time(present) && !works_all_the_time(configured);
    let margin = if is_slow { FASTER_LINK } else { 1.0 };
    if sound.iter().all(|times| times.fit_in_time(configured, margin)) {
        let can_spare = sound.iter().all(|times| times.spare_cores >= CORES_FOR_FEWER_TURNS);
        let least = if can_spare { 1 } else { STEPS_OF_BUSY_CORES.div_ceil(configured.every.max(1)) };
        let groups = match sound.is_empty() {
            true => configured.groups,
            false => turns_needed(&sound, BITS_OF_A_TURN, configured.overlap)
                .max(least as u32)
                .min(configured.groups),
        };
        return Pace { groups, ..configured };
    }
    let needed = sound.iter().map(|times| times.steps_needed(configured, sync)).fold(1.0, f64::max);
    let turn = configured.turn() as f64;
    let factor = if works_all_the_time(configured) { 1.0 } else { CLOSER_EXCHANGES };
    // With few fragments, rounds that are close would exchange each too often.
    let needed = needed.max(factor * turn / f64::from(turns_max.max(1)));
    // Measurements may be arbitrary; a float that is too large becomes the largest integer.
    let every = (needed.ceil() as u64).max(closest).min(sync.every_max.max(configured.every));
    let as_often = configured.turns_as_often(every).min(turns_max);
    let closer = ((factor * turn / every as f64).ceil() as u32).min(as_often);
    let bits_least = if sync.backlog_max > 0.0 { 1.0 / sync.backlog_max } else { sync.bits_min };
    let groups = turns_needed(&sound, bits_least, every).clamp(closer, as_often);
    Pace { overlap: every, groups: groups.min(turns_needed(&sound, BITS_OF_A_TURN, every)), every }
}

/// Whether results are due at the next contribution.
pub fn works_all_the_time(pace: Pace) -> bool {
    pace.overlap == pace.every
}

/// Turns in which everybody can exchange the model with so many bits a value, with results this late.
fn turns_needed(members: &[Times], bits: f64, overlap: u64) -> u32 {
    let turns = members.iter().map(|times| times.turns_needed(bits, overlap)).fold(1.0, f64::max);
    // A float that is too large becomes the largest integer.
    turns.ceil() as u32
}

/// A member's measurements, in seconds.
struct Times {
    /// Of a step in which something may be sent.
    room: f64,
    step: f64,
    /// Of a round in which nothing can be sent.
    latency: f64,
    /// That a bit of each value of the model takes.
    bit: f64,
    /// Not in seconds: cores that have nothing to do.
    spare_cores: f64,
}

impl Times {
    /// `None`: its report is not a measurement.
    fn of(member: &Measured, sync: &SyncConfig) -> Option<Self> {
        let [step, round_trip, bit] = [member.step_s, member.round_trip_s, member.bit_s].map(f64::from);
        let (room, latency) = (sync.target_utilisation * step, LATENCY_ROUND_TRIPS * round_trip);
        let spare_cores = f64::from(member.spare_cores);
        is_sound(member).then_some(Self { room, step, latency, bit, spare_cores })
    }

    /// Whether rounds as configured leave room for [`BITS_IN_TIME`], and so many times as much, however little they leave besides.
    fn fit_in_time(&self, pace: Pace, margin: f64) -> bool {
        let sending = margin * BITS_IN_TIME * self.bit / f64::from(pace.groups);
        self.latency + sending <= self.room * pace.overlap as f64
    }

    /// Steps between rounds.
    fn steps_needed(&self, configured: Pace, sync: &SyncConfig) -> f64 {
        let &Self { room, step, latency, bit, .. } = self;
        let for_latency = latency / (LATENCY_SHARE_MAX * step);
        // The least bits of the whole model.
        let sending = sync.bits_min * bit;
        let turn = configured.turn() as f64;
        // With e steps between rounds, e / turn of the model is exchanged in each: latency + sending·e / turn ≤ room·e. Where that cannot be,
        // all of it is, in rounds further apart.
        let spare = room - sending / turn;
        let in_turns = if spare > 0.0 { latency / spare } else { f64::INFINITY };
        let for_bits = if in_turns <= turn { in_turns } else { (latency + sending) / room };
        for_latency.max(for_bits)
    }

    /// Turns in which the model is exchanged with so many bits a value, with results this late.
    fn turns_needed(&self, bits: f64, overlap: u64) -> f64 {
        let left = self.room * overlap as f64 - self.latency;
        let sending = bits * self.bit;
        if left > 0.0 { sending / left } else { f64::INFINITY }
    }
}

/// Whether a member reports possible measurements.
pub fn is_sound(member: &Measured) -> bool {
    let Measured { step_s, round_trip_s, bit_s, .. } = *member;
    let all_finite = [step_s, round_trip_s, bit_s].into_iter().all(f32::is_finite);
    all_finite && step_s > 0.0 && round_trip_s >= 0.0 && bit_s >= 0.0
}

#[cfg(test)]
mod tests {
    use super::*;
    use longhaul_common::config::SyncPreset;

    const CONFIGURED: Pace = Pace { overlap: 1, groups: 5, every: 1 };

    fn pace(members: &[[f32; 3]]) -> (u64, u32) {
        pace_with(0.0, members)
    }

    fn pace_with(spare_cores: f32, members: &[[f32; 3]]) -> (u64, u32) {
        let members = members.iter().map(|&[step_s, round_trip_s, bit_s]| Measured {
            step_s,
            round_trip_s,
            bit_s,
            spare_cores,
        });
        let members = members.collect::<Vec<_>>();
        let wanted = wanted(bounds(CONFIGURED), CONFIGURED, &SyncConfig::of(SyncPreset::Auto), &members);
        (wanted.every, wanted.groups)
    }

    /// Of a model with many fragments.
    fn bounds(configured: Pace) -> Bounds {
        Bounds { configured, closest: configured.overlap, turns_max: 100 }
    }

    #[test]
    fn rounds_stay_as_close_as_they_are_configured_where_links_allow_it() {
        assert_eq!(pace(&[[0.7, 0.05, 0.1], [0.5, 0.05, 0.2]]), (1, 5));
        // A bit of all values takes 100 steps, and the least is a fiftieth of one.
        assert_eq!(pace(&[[0.5, 0.05, 50.0]]), (1, 5));
    }

    /// As `auto` has it with Muon. 2.02 bits in 0.97·0.5 - 1.5·0.05 = 0.41 s.
    #[test]
    fn many_turns_become_as_few_as_there_are_bits_for() {
        let groups = |spare_cores, bit_s| {
            let measured = Measured { step_s: 0.5, round_trip_s: 0.05, bit_s, spare_cores };
            let configured = Pace { overlap: 1, groups: 40, every: 1 };
            let wanted =
                wanted(bounds(configured), configured, &SyncConfig::of(SyncPreset::Auto), &[measured]);
            assert_eq!(wanted.every, 1);
            wanted.groups
        };
        assert_eq!([0.01, 0.1, 1.5, 3.0, 7.0, 9.0].map(|bit_s| groups(0.0, bit_s)), [8, 8, 8, 15, 35, 40]);
        assert_eq!([0.01, 0.5, 3.0].map(|bit_s| groups(1.0, bit_s)), [1, 3, 15]);
    }

    /// As `auto` has it: 0.375 bits in 0.97·2·0.5 - 1.5·0.05 = 0.895 s.
    #[test]
    fn where_few_bits_arrive_in_time_the_link_works_all_the_time() {
        let (sync, configured) = (SyncConfig::of(SyncPreset::Auto), Pace { overlap: 2, groups: 2, every: 4 });
        let pace = |spare_cores, round_trip_s, bit_s| {
            let measured = Measured { step_s: 0.5, round_trip_s, bit_s, spare_cores };
            let wanted = wanted(bounds(configured), configured, &sync, &[measured]);
            (wanted.every, wanted.groups, wanted.overlap)
        };
        assert_eq!(pace(0.0, 0.05, 2.38), (4, 2, 2));
        assert_eq!(pace(1.0, 0.05, 0.44), (4, 1, 2), "cores for half of the steps between exchanges");
        assert_eq!(pace(0.0, 0.05, 2.39), (2, 3, 2), "six steps, in which less than two bits arrive");
        assert_eq!(pace(0.0, 0.05, 12.0), (2, 4, 2), "a quarter of a bit in 3 s, of eight steps");
        assert_eq!(pace(0.0, 2.0, 0.1), (8, 1, 8), "round trips of four steps");
    }

    #[test]
    fn few_fragments_and_other_bounds_keep_rounds_apart() {
        let sync = SyncConfig::of(SyncPreset::Auto);
        let slow = Measured { step_s: 0.5, round_trip_s: 0.05, bit_s: 8.0, spare_cores: 0.0 };
        let wanted = |every, groups, closest, turns_max| {
            let configured = Pace { overlap: 2, groups, every };
            let wanted = wanted(Bounds { configured, closest, turns_max }, configured, &sync, &[slow]);
            assert_eq!(wanted.overlap, wanted.every);
            (wanted.every, wanted.groups)
        };
        assert_eq!(wanted(4, 2, 2, 5), (2, 3));
        assert_eq!(wanted(4, 2, 2, 2), (3, 2), "two fragments: every six steps");
        assert_eq!(wanted(4, 1, 2, 1), (3, 1), "one fragment");
        assert_eq!(wanted(4, 5, 2, 5), (3, 5), "with Muon and twelve fragments: fifteen steps");
        assert_eq!(wanted(50, 2, 2, 5), (15, 3), "45 steps, in which two bits arrive");
        assert_eq!(wanted(4, 2, 4, 5), (4, 2), "as with privacy");
    }

    #[test]
    fn a_link_comes_back_that_is_half_as_fast_again_as_needed() {
        let (sync, configured) = (SyncConfig::of(SyncPreset::Auto), Pace { overlap: 2, groups: 2, every: 4 });
        let slow = Pace { overlap: 2, groups: 3, every: 2 };
        // 0.5625 bits in 0.895 s: 1.591 s a bit.
        let wanted = |bit_s| {
            let measured = Measured { step_s: 0.5, round_trip_s: 0.05, bit_s, spare_cores: 0.0 };
            wanted(bounds(configured), slow, &sync, &[measured])
        };
        assert_eq!([1.5, 1.65].map(wanted), [configured, slow]);
    }

    /// 2.02 bits in 0.97·0.5 - 1.5·0.05 = 0.41 s.
    #[test]
    fn where_cores_are_idle_turns_are_as_few_as_there_are_bits_for() {
        assert_eq!(pace_with(1.0, &[[0.5, 0.05, 0.1]]), (1, 1), "0.2 s");
        assert_eq!(pace_with(8.0, &[[0.5, 0.05, 0.1], [0.5, 0.05, 0.5]]), (1, 3), "1 s");
        assert_eq!(pace_with(8.0, &[[0.5, 0.05, 50.0]]), (1, 5), "no more than are configured");
        assert_eq!(pace_with(0.9, &[[0.5, 0.05, 0.1]]), (1, 5));
        assert_eq!(pace_with(f32::NAN, &[[0.5, 0.05, 0.1]]), (1, 5));
        assert_eq!(pace_with(8.0, &[]), (1, 5), "nothing is known");
    }

    #[test]
    fn round_trips_leave_a_quarter_of_the_time_between_rounds() {
        assert_eq!(pace(&[[0.0625, 0.0625, 1.0]]), (2, 3));
        assert_eq!(pace(&[[0.7, 0.05, 0.1], [0.0625, 0.125, 1.0]]), (4, 2), "the one who needs most decides");
        assert_eq!(pace(&[[0.007_812_5, 0.078_125, 0.001]]), (20, 1));
    }

    /// Where results are late, turns are given up as far as two bits a value can be sent.
    #[test]
    fn rounds_further_apart_have_as_few_turns_as_there_are_bits_for() {
        // 2.02 bits in 0.97·2·0.15 - 1.5·0.1 = 0.141 s.
        assert_eq!(pace(&[[0.15, 0.1, 0.03]]), (2, 1), "0.06 s");
        assert_eq!(pace(&[[0.15, 0.1, 0.1]]), (2, 2), "0.2 s");
        assert_eq!(pace(&[[0.15, 0.1, 3.0]]), (2, 3), "6 s: as often as before");
        assert_eq!(pace(&[[0.15, 0.1, 0.03], [0.15, 0.1, 0.1]]), (2, 2), "the one who needs most decides");
    }

    /// Of three quarters of a bit, a fifth of 0.0225 s fits beside round trips that take more than three quarters of a step.
    #[test]
    fn rounds_stay_close_where_bits_fit_beside_the_round_trips() {
        assert_eq!(pace(&[[0.15, 0.08, 0.03]]), (1, 5));
        assert_eq!(pace(&[[0.15, 0.08, 0.2]]).0, 2, "a fifth of 0.15 s does not");
    }

    #[test]
    fn the_least_bits_have_time_to_be_sent() {
        // 0.02 bits of all values take 20 s: 40 steps, and the round trips.
        let (every, groups) = pace(&[[0.5, 0.1, 1000.0]]);
        assert_eq!(groups, 1);
        assert_eq!(every, 42, "20.15 s at 0.485 s a step");
        // In a turn of five steps, each round has a fifth of 0.1 s a step to spare.
        let (every, groups) = pace(&[[0.5, 0.05, 110.0]]);
        assert_eq!((every, groups), (2, 3), "2.2 s in five steps of 0.485 s");
    }

    #[test]
    fn nonsense_and_the_bounds_of_the_user_are_respected() {
        assert_eq!(pace(&[[0.0, 0.05, 0.1], [f32::NAN, 0.05, 0.1], [0.5, -1.0, 0.1]]), (1, 5));
        assert_eq!(pace(&[[f32::INFINITY, 0.05, 0.1], [0.5, 0.05, f32::INFINITY]]), (1, 5));
        assert_eq!(pace(&[[1e-6, 100.0, 1e9]]), (SyncConfig::of(SyncPreset::Auto).every_max, 1));
        assert_eq!(pace(&[]), (1, 5));
    }
}
