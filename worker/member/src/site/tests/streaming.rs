//! Fragments that a site reduces and sends while its members' devices still compute the others.

use longhaul_common::id::WorkerId;

use super::*;
use crate::site::layout::SiteLayout;
use crate::sparse_ranges::SparseRanges;
use crate::tests::finished::{DENSE, finish, finish_weighted, gradient, has, mean};

/// No owner closes a round before all have delivered.
const CALM: &str =
    "preset = \"dense\"\nfragment_values = 32\ndeadline_floor_ms = 20000\ndeadline_ceiling_ms = 20000";

/// Ends a member's ring like a failure, and notifies the member.
fn break_ring(worker: &mut Worker) {
    let generation = worker.running().site.generation;
    worker.end_site();
    let failed = SiteEvent { generation, news: SiteNews::Failed("by the test".into()) };
    worker.handle(SyncEvent::Site(failed));
}

fn is_over(worker: &Worker, round: u64) -> bool {
    worker.running().member.open_round() > Round(round)
}

/// Number of fragments whose mean of a round came over the ring.
fn reduced<const N: usize>(rig: &Rig<N>, round: u64) -> usize {
    let has = |worker: &Worker, fragment| worker.running().site.mean_of(Round(round), fragment).is_some();
    let fragments = |worker: &Worker| rig.layout().fragments().filter(|f| has(worker, *f)).count();
    rig.workers.iter().map(fragments).sum()
}

/// Asserts that the values are the mean of these gradients, each with its samples.
fn assert_mean(values: &[f32], start: usize, gradients: &[(&[f32], u32)]) {
    let samples: f64 = gradients.iter().map(|(_, weight)| f64::from(*weight)).sum();
    for (index, value) in (start..).zip(values) {
        let sum: f64 =
            gradients.iter().map(|(values, weight)| f64::from(values[index]) * f64::from(*weight)).sum();
        assert!(
            (f64::from(*value) - sum / samples).abs() < 1e-5,
            "{index}: {value} is not {}",
            sum / samples
        );
    }
}

#[test]
fn fragments_of_a_site_of_two_leave_before_the_rest_is_computed() {
    let mut rig: Rig<3> = Rig::at_sites([1, 2, 3], [0, 0, 1], CALM).training();
    let gradients = [0, 1, 2].map(|at| gradient(at, 0));
    for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
        finish(worker, 0, gradient, 64..96);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 2)));
    assert!(rig.workers.iter().all(|worker| !has(worker, 0, 0) && !has(worker, 0, 1)));
    assert_eq!(reduced(&rig, 0), 1);
    // Members may differ in progress.
    finish(&mut rig.workers[0], 0, &gradients[0], 32..64);
    rig.workers[1].send(0, gradients[1].clone());
    rig.workers[2].send(0, gradients[2].clone());
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 1)));
    assert!(rig.workers.iter().all(|worker| !has(worker, 0, 0)));
    rig.workers[0].send(0, gradients[0].clone());
    rig.pump(|workers| workers.iter().all(|worker| is_over(worker, 0)));
    assert_eq!(reduced(&rig, 0), 3);
    let means = rig.workers.each_mut().map(|worker| mean(worker, 0));
    assert_eq!([&means[1], &means[2]], [&means[0]; 2]);
    assert_mean(&means[0], 0, &gradients.each_ref().map(|gradient| (gradient.as_slice(), 4)));
    rig.pump(|workers| workers[..2].iter().all(|worker| worker.running().site.withheld.is_empty()));
    assert!(rig.workers[..2].iter().all(|worker| worker.running().site.joint.is_some()));
}

#[test]
fn a_member_without_samples_holds_no_fragment_up() {
    let mut rig: Rig<3> = Rig::at_sites([1, 2, 3], [0, 0, 1], CALM).training();
    let gradients = [gradient(0, 0), vec![0.0; VALUES], gradient(2, 0)];
    rig.workers[1].send_weighted(0, Vec::new(), 0);
    finish_weighted(&mut rig.workers[0], 0, &gradients[0], 64..96, 3);
    finish_weighted(&mut rig.workers[2], 0, &gradients[2], 64..96, 5);
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 2)));
    assert!(rig.workers.iter().all(|worker| !has(worker, 0, 0) && !has(worker, 0, 1)));
    rig.workers[0].send_weighted(0, gradients[0].clone(), 3);
    rig.workers[2].send_weighted(0, gradients[2].clone(), 5);
    rig.pump(|workers| workers.iter().all(|worker| is_over(worker, 0)));
    let means = rig.workers.each_mut().map(|worker| mean(worker, 0));
    assert_eq!([&means[1], &means[2]], [&means[0]; 2]);
    assert_mean(&means[0], 0, &[(&gradients[0], 3), (&gradients[2], 5)]);
}

/// `dense`, four members, three of them at one site: the results have the same bits whether fragments leave early or not.
#[test]
fn a_round_in_parts_has_the_bits_of_the_same_round_as_a_whole() {
    let [streamed, whole] = [true, false].map(|streams| {
        let mut rig: Rig<4> = Rig::at_sites([1, 2, 3, 4], [0, 0, 0, 1], CALM).training();
        let gradients = [0, 1, 2, 3].map(|at| gradient(at, 0).iter().map(|v| v * 0.1).collect::<Vec<_>>());
        for part in if streams { vec![64..96, 32..64] } else { Vec::new() } {
            let fragment = part.start as u32 / 32;
            for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
                finish_weighted(worker, 0, gradient, part.clone(), 1 + worker.member.worker.0);
            }
            rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, fragment)));
        }
        for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
            worker.send_weighted(0, gradient.clone(), 1 + worker.member.worker.0);
        }
        rig.pump(|workers| workers.iter().all(|worker| is_over(worker, 0)));
        assert_eq!(reduced(&rig, 0), 3);
        mean(&mut rig.workers[0], 0).into_iter().map(f32::to_bits).collect::<Vec<_>>()
    });
    assert_eq!(streamed, whole);
}

#[test]
fn a_ring_that_breaks_amid_a_step_counts_every_part_once() {
    let mut rig: Rig<3> = Rig::at_sites([1, 2, 3], [0, 0, 1], CALM).training();
    let gradients = [0, 1, 2].map(|at| gradient(at, 0));
    for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
        finish(worker, 0, gradient, 64..96);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 2)));
    // A member waits in the ring for another.
    finish(&mut rig.workers[0], 0, &gradients[0], 32..64);
    rig.workers[..2].iter_mut().for_each(break_ring);
    for (worker, gradient) in rig.workers[1..].iter_mut().zip(&gradients[1..]) {
        finish(worker, 0, gradient, 32..64);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 1)));
    assert!(rig.workers.iter().all(|worker| !has(worker, 0, 0)));
    for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
        worker.send(0, gradient.clone());
    }
    rig.pump(|workers| workers.iter().all(|worker| is_over(worker, 0)));
    assert_eq!(reduced(&rig, 0), 1);
    let means = rig.workers.each_mut().map(|worker| mean(worker, 0));
    assert_eq!([&means[1], &means[2]], [&means[0]; 2]);
    assert_mean(&means[0], 0, &gradients.each_ref().map(|gradient| (gradient.as_slice(), 4)));
}

/// Some of a part's uploaders have their means when the ring breaks, and others do not.
#[test]
fn a_part_that_only_some_have_is_counted_once() {
    for lucky in [0, 1] {
        let sync = "preset = \"dense\"\nfragment_values = 16\ndeadline_floor_ms = 20000\ndeadline_ceiling_ms = 20000";
        let mut rig: Rig<3> = Rig::at_sites([1, 2, 3], [0, 0, 1], sync).training();
        let gradients = [0, 1, 2].map(|at| gradient(at, 0));
        rig.tap(move |at, event| match event {
            SyncEvent::Site(SiteEvent { generation, news: SiteNews::Reduced { .. } }) if at != lucky => {
                SyncEvent::Site(SiteEvent { generation, news: SiteNews::Failed("by the test".into()) })
            }
            event => event,
        });
        for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
            finish(worker, 0, gradient, 48..96);
        }
        rig.pump(|workers| workers[1 - lucky].running().site.joint.is_none());
        // It computes, and notices its broken ring with its next part.
        assert!(rig.workers[lucky].running().site.joint.is_some());
        for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
            finish(worker, 0, gradient, 32..48);
        }
        rig.pump(|workers| workers.iter().all(|worker| (2..6).all(|fragment| has(worker, 0, fragment))));
        assert!(rig.workers.iter().all(|worker| !has(worker, 0, 0) && !has(worker, 0, 1)));
        for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
            worker.send(0, gradient.clone());
        }
        rig.pump(|workers| workers.iter().all(|worker| is_over(worker, 0)));
        let means = rig.workers.each_mut().map(|worker| mean(worker, 0));
        assert_eq!([&means[1], &means[2]], [&means[0]; 2]);
        assert_mean(&means[0], 0, &gradients.each_ref().map(|gradient| (gradient.as_slice(), 4)));
    }
}

/// One of a site's three leaves when one fragment has its result and another is final at some; the other two continue over their own ring.
#[test]
fn a_member_that_dies_amid_a_streamed_round_takes_only_what_had_not_left() {
    let mut rig: Rig<4> = Rig::at_sites([1, 2, 3, 4], [0, 0, 0, 1], CALM).training();
    let gradients = [0, 1, 2, 3].map(|at| gradient(at, 0));
    for (worker, gradient) in rig.workers.iter_mut().zip(&gradients) {
        finish(worker, 0, gradient, 64..96);
    }
    rig.pump(|workers| workers.iter().all(|worker| has(worker, 0, 2)));
    let live = [0, 2, 3];
    for at in [0, 3] {
        finish(&mut rig.workers[at], 0, &gradients[at], 32..64);
    }
    rig.workers[1].end_site();
    // A computing member notices with its next part, and then all that wait for it.
    finish(&mut rig.workers[2], 0, &gradients[2], 32..64);
    rig.pump(|workers| [0, 2].iter().all(|at| workers[*at].running().site.joint.is_none()));
    let answers: BTreeMap<_, _> =
        live.iter().map(|at| (rig.workers[*at].member.worker, rig.workers[*at].settle(2))).collect();
    let old = rig.begin(1, &[0, 1, 2, 3], 0, &[], None).membership;
    let settled = longhaul_proto::round::settle(&old, rig.layout(), rig.schedule(), &answers).unwrap();
    let adopted: Vec<_> = settled.settlement.results.iter().map(|result| result.fragment).collect();
    assert_eq!((settled.settlement.open_round, adopted), (Round(0), vec![FragmentId(2)]));
    let start = rig.begin(2, &live, settled.first_round.0, &live, Some(settled.settlement));
    for at in live {
        rig.workers[at].hear(ToWorker::Begin(Arc::new(start.clone())));
    }
    rig.pump(|workers| live.iter().all(|at| has(&workers[*at], 0, 1)));
    assert!(live.iter().all(|at| !has(&rig.workers[*at], 0, 0)));
    for at in live {
        rig.workers[at].send(0, gradients[at].clone());
    }
    rig.pump(|workers| live.iter().all(|at| is_over(&workers[*at], 0)));
    let means = live.map(|at| mean(&mut rig.workers[at], 0));
    assert_eq!([&means[1], &means[2]], [&means[0]; 2]);
    let of = |at: &usize| (gradients[*at].as_slice(), 4);
    assert_mean(&means[0][64..], 64, &[0, 1, 2, 3].each_ref().map(of));
    assert_mean(&means[0][..64], 0, &live.each_ref().map(of));
    assert!(live.iter().all(|at| rig.workers[*at].running().contributions.carry.is_none()));
    let by_ring = [0, 2].map(|at| {
        let site = &rig.workers[at].running().site;
        rig.layout().fragments().filter(|fragment| site.mean_of(Round(0), *fragment).is_some()).count()
    });
    assert_eq!(by_ring.iter().sum::<usize>(), 2, "the new ring reduces fragments without a result");
}

/// The other site's fragments have their results at the deadline; this site's parts reduced by then count, and the rest is carried over.
#[test]
fn what_a_site_had_not_reduced_when_its_round_was_over_is_carried_over() {
    let mut rig: Rig<3> = Rig::at_sites([1, 2, 3], [0, 0, 1], DENSE).training();
    let gradients = [0, 1, 2].map(|at| gradient(at, 0));
    for (worker, gradient) in rig.workers[..2].iter_mut().zip(&gradients) {
        finish(worker, 0, gradient, 64..96);
    }
    rig.pump(|workers| reduced_at(workers, 2));
    rig.workers[2].send(0, gradients[2].clone());
    rig.pump(|workers| workers.iter().all(|worker| is_over(worker, 0)));
    for (worker, gradient) in rig.workers[..2].iter_mut().zip(&gradients) {
        finish(worker, 0, gradient, 32..64);
        worker.send(0, gradient.clone());
        let carry = worker.running().contributions.carry.clone().unwrap();
        assert_eq!((&carry[..64], &carry[64..]), (&gradient[..64], &[0.0; 32][..]));
    }
    for worker in &mut rig.workers {
        mean(worker, 0);
        worker.applied(0, Some(vec![0.5; VALUES]));
        worker.begin(1);
    }
    let next = [0, 1, 2].map(|at| gradient(at, 1));
    for (worker, next) in rig.workers.iter_mut().zip(&next) {
        finish(worker, 1, next, 32..96);
    }
    rig.pump(|workers| reduced_at(workers, 1));
    for (worker, next) in rig.workers.iter_mut().zip(&next) {
        worker.send(1, next.clone());
    }
    rig.pump(|workers| workers.iter().all(|worker| is_over(worker, 1)));
    let carried = |at: usize, index: usize| if at < 2 && index < 64 { gradients[at][index] } else { 0.0 };
    let all = [0, 1, 2].map(|at| {
        next[at].iter().enumerate().map(|(index, value)| value + carried(at, index)).collect::<Vec<_>>()
    });
    let means = rig.workers.each_mut().map(|worker| mean(worker, 1));
    assert_eq!([&means[1], &means[2]], [&means[0]; 2]);
    assert_mean(&means[0], 0, &all.each_ref().map(|values| (values.as_slice(), 4)));
}

/// Reports whether some uploader has its site's mean of a fragment of the open round.
fn reduced_at(workers: &[Worker; 3], fragment: u32) -> bool {
    let has = |worker: &Worker| {
        let running = worker.running();
        running.site.mean_of(running.member.open_round(), FragmentId(fragment)).is_some()
    };
    workers.iter().any(has)
}

struct Threads {
    rig: Rig<3>,
    members: [SiteHandle; 3],
    heard: Heard,
    layout: Arc<SiteLayout>,
    updates: [Vec<f32>; 3],
}

impl Threads {
    fn start() -> Self {
        let mut rig: Rig<3> = Rig::at_sites([1, 2, 3], [0; 3], DIRECT).training();
        let start = rig.begin(7, &[0, 1, 2], 0, &[], None);
        let plans = [1, 2, 3].map(|worker| SitePlan::new(&start, WorkerId(worker)).unwrap());
        let layout = plans[0].layout(Round(0), &rig.schedule(), rig.layout());
        let mut plans = plans.iter();
        let members = rig.workers.each_ref().map(|worker| worker.start_site(setup_of(plans.next().unwrap())));
        // Tenths have rounding errors, which show the order of a sum.
        let value = |at: usize, index: usize| ((index * 7 + at * 5) % 13) as f32 * 0.1 + at as f32 * 3.3;
        let updates = [0, 1, 2].map(|at| (0..VALUES).map(|index| value(at, index)).collect());
        Self { rig, members, heard: Heard::default(), layout: Arc::new(layout), updates }
    }

    fn ask(&self, at: usize, round: u64, samples: u32, pieces: Vec<Piece>) {
        let layout = Arc::clone(&self.layout);
        self.members[at].ask(Request { round: Round(round), layout, pieces, samples });
    }

    fn whole(&self, at: usize) -> Vec<Piece> {
        vec![Piece::Whole(self.layout.pack(&SparseRanges::whole(self.updates[at].clone())))]
    }

    fn fragments(&self, at: usize, turns: &[usize]) -> Vec<Piece> {
        let update = SparseRanges::whole(self.updates[at].clone());
        let piece = |&turn: &usize| Piece::Fragment { turn, values: self.layout.slice(&update, turn) };
        turns.iter().map(piece).collect()
    }

    /// Returns all three members' next part: its fragments and their means.
    fn next_part(&mut self) -> (BTreeMap<FragmentId, Vec<f32>>, bool) {
        let (mut all, mut last) = (BTreeMap::new(), Vec::new());
        for at in 0..3 {
            let SiteNews::Reduced { part, .. } = self.heard.next(&self.rig, at) else { panic!("no mean") };
            let means =
                part.fragments.into_iter().map(|(fragment, place)| (fragment, part.mean[place].to_vec()));
            all.extend(means);
            last.push(part.is_last);
        }
        assert!(last.iter().all(|is_last| *is_last == last[0]));
        (all, last[0])
    }

    fn confirmed(&mut self, round: u64) {
        for at in 0..3 {
            let news = self.heard.next(&self.rig, at);
            assert!(matches!(news, SiteNews::Confirmed { round: of } if of == Round(round)), "{news:?}");
        }
    }

    /// The documented order: from the member after the uploader round to the uploader, in f32.
    fn reference(&self, samples: [u32; 3]) -> BTreeMap<FragmentId, Vec<f32>> {
        let total: u32 = samples.iter().sum();
        let shares = samples.map(|samples| samples as f32 / total as f32);
        let mean = |rank: usize, index: usize| {
            let order = [1, 2, 3].map(|step| (rank + step) % 3);
            order
                .map(|at| shares[at] * self.updates[at][index])
                .into_iter()
                .reduce(|sum, next| sum + next)
                .unwrap()
        };
        let all = 0..self.layout.count();
        let of = |rank: usize| {
            self.layout.fragments_of(rank, all.clone()).into_iter().map(move |(f, _)| (rank, f))
        };
        let range = |fragment: FragmentId| self.rig.layout().range(fragment);
        (0..3).flat_map(of).map(|(rank, f)| (f, range(f).map(|index| mean(rank, index)).collect())).collect()
    }
}

#[test]
fn parts_have_the_bits_of_the_whole_and_of_the_documented_order() {
    let mut threads = Threads::start();
    for (round, samples) in [(0, [3, 5, 4]), (2, [3, 0, 5])] {
        let reference = threads.reference(samples);
        assert_eq!(reference.len(), 6);
        // As a whole.
        (0..3).for_each(|at| threads.ask(at, round, samples[at], threads.whole(at)));
        let (whole, is_last) = threads.next_part();
        assert!(is_last);
        threads.confirmed(round);
        assert_eq!(whole, reference);

        // Part by part: up to the last turn that all three have without a gap, in any order of arrival.
        let round = round + 1;
        threads.ask(0, round, samples[0], threads.fragments(0, &[0]));
        threads.ask(1, round, samples[1], threads.whole(1));
        threads.ask(2, round, samples[2], threads.fragments(2, &[3, 1, 0]));
        let mut parts = BTreeMap::new();
        let mut expect = |threads: &mut Threads, turns: std::ops::Range<usize>| {
            let (part, is_last) = threads.next_part();
            let fragments: Vec<_> = threads.layout.fragments().collect();
            assert!(part.keys().rev().eq(&fragments[turns.clone()]), "{part:?}");
            assert_eq!(is_last, turns.end == 6);
            parts.extend(part);
        };
        expect(&mut threads, 0..1);
        threads.ask(0, round, samples[0], threads.fragments(0, &[2, 1, 3, 4]));
        expect(&mut threads, 1..2);
        threads.ask(2, round, samples[2], threads.fragments(2, &[2, 4, 5]));
        expect(&mut threads, 2..5);
        threads.ask(0, round, samples[0], threads.fragments(0, &[5]));
        expect(&mut threads, 5..6);
        threads.confirmed(round);
        assert_eq!(parts, reference);
    }
}

/// Its round is decided without the uncomputed parts.
#[test]
fn a_member_that_leaves_a_round_half_way_meets_the_others_in_the_next() {
    let mut threads = Threads::start();
    for at in 0..3 {
        threads.ask(at, 0, 1, threads.fragments(at, &[0, 1]));
    }
    assert_eq!(threads.next_part().0.len(), 2);
    threads.ask(0, 0, 1, threads.fragments(0, &[2]));
    threads.ask(1, 1, 1, threads.whole(1));
    threads.ask(2, 1, 1, threads.whole(2));
    let news = threads.heard.next(&threads.rig, 0);
    assert!(matches!(news, SiteNews::Passed { round: Round(0) }), "{news:?}");
    // Parts too late for the abandoned round change nothing.
    threads.ask(0, 0, 1, threads.fragments(0, &[3]));
    threads.ask(0, 1, 1, threads.whole(0));
    assert_eq!(threads.next_part(), (threads.reference([1, 1, 1]), true));
    threads.confirmed(1);
}
