//! Real synchronisers of one site, which reduce over a real ring.

mod streaming;

use std::cell::RefCell;
use std::collections::{BTreeMap, VecDeque};
use std::rc::Rc;
use std::sync::Arc;

use longhaul_common::config::WithinSite;
use longhaul_common::id::{FragmentId, Generation, Round};
use longhaul_proto::control::message::ToWorker;

use super::job::{SiteHandle, SiteSetup};
use super::plan::SitePlan;
use super::slot::{Piece, Request};
use super::{SiteEvent, SiteNews, SitePart};
use crate::SyncEvent;
use crate::testing::{Rig, VALUES, Worker};

const RING: &str = "fragment_values = 16";
const DIRECT: &str = "fragment_values = 16\nwithin_site = \"direct\"";

/// Two members of one site in their first round.
fn training(sync: &str) -> Rig {
    Rig::at_sites([1, 2], [0, 0], sync).training()
}

fn round(rig: &mut Rig, round: u64) {
    rig.workers.iter_mut().for_each(|worker| worker.contribute(round));
    (0..2).for_each(|at| rig.apply(at, round));
}

/// For two members with equal samples: all of the site's updates are in results, in residuals, or carried by one of them.
fn assert_nothing_is_lost(rig: &Rig) {
    let [a, b] = &rig.workers;
    assert_eq!(a.running().replica.hash(), b.running().replica.hash());
    assert_eq!(a.counted, b.counted);
    let mut residuals = vec![0.0; VALUES];
    for worker in &rig.workers {
        let running = worker.running();
        assert!(running.contributions.carry.is_none());
        for (fragment, memory) in running.codec.compressor.memories() {
            let residuals = &mut residuals[running.rounds.layout.range(*fragment)];
            residuals.iter_mut().zip(&memory.residual).for_each(|(sum, rest)| *sum += f64::from(*rest));
        }
    }
    for (index, residual) in residuals.iter().enumerate() {
        let learnt = (a.learnt[index] + b.learnt[index]) / 2.0;
        let gap = (learnt - a.counted[index] - residual).abs();
        assert!(gap < 1e-4, "{learnt} learnt, {} counted, {residual} kept", a.counted[index]);
    }
}

/// Fragments whose mean of a round came over the ring.
fn joint_means(rig: &Rig, round: u64) -> usize {
    let of = |worker: &Worker| {
        let running = worker.running();
        let has = |fragment: &FragmentId| running.site.mean_of(Round(round), *fragment).is_some();
        running.rounds.layout.fragments().filter(has).count()
    };
    rig.workers.iter().map(of).sum()
}

#[test]
fn the_ring_brings_the_same_bits_as_frames_do_and_carries_every_fragment() {
    let (mut over_ring, mut directly) = (training(RING), training(DIRECT));
    for number in 0..3 {
        for rig in [&mut over_ring, &mut directly] {
            round(rig, number);
            assert_nothing_is_lost(rig);
            rig.workers.iter_mut().for_each(|worker| worker.begin(number + 1));
        }
        // A sum of two is the same in either order.
        let hash = |rig: &Rig| rig.workers[0].running().replica.hash();
        assert_eq!(hash(&over_ring), hash(&directly));
        assert_eq!((joint_means(&over_ring, number), joint_means(&directly, number)), (6, 0));
    }
}

/// Outcome of a round's reduction at each member.
#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    /// It has its mean, without confirmation by the others.
    Unconfirmed,
    /// It has nothing.
    Failed,
}

#[test]
fn a_reduction_that_fails_anywhere_loses_nothing_and_stops_nobody() {
    for ends in [
        [End::Failed, End::Failed],
        [End::Unconfirmed, End::Failed],
        [End::Failed, End::Unconfirmed],
        [End::Unconfirmed, End::Unconfirmed],
    ] {
        let mut rig = training(RING);
        round(&mut rig, 0);
        rig.workers.iter_mut().for_each(|worker| worker.begin(1));
        rig.tap(move |at, event| match event {
            SyncEvent::Site(SiteEvent { generation, news }) => {
                let fails = match &news {
                    SiteNews::Reduced { round, .. } => *round == Round(1) && ends[at] == End::Failed,
                    SiteNews::Confirmed { round } => *round == Round(1),
                    _ => false,
                };
                let news = if fails { SiteNews::Failed(format!("{ends:?}")) } else { news };
                SyncEvent::Site(SiteEvent { generation, news })
            }
            event => event,
        });
        round(&mut rig, 1);
        assert_nothing_is_lost(&rig);
        rig.pump(|workers| workers.iter().all(|worker| worker.running().site.joint.is_none()));
        rig.workers.iter_mut().for_each(|worker| worker.begin(2));
        round(&mut rig, 2);
        assert_nothing_is_lost(&rig);
        assert_eq!(joint_means(&rig, 2), 0, "{ends:?}");
    }
}

/// One member gives up before the other has come to the round.
#[test]
fn frames_that_come_before_the_failure_is_noticed_are_kept_until_it_is() {
    let mut rig = training(RING);
    round(&mut rig, 0);
    // Otherwise the other's thread, which still waits for a confirmation of this round, would notice at once.
    rig.pump(|workers| workers.iter().all(|worker| worker.running().site.withheld.is_empty()));
    rig.workers.iter_mut().for_each(|worker| worker.begin(1));
    rig.workers[0].contribute(1);
    // A failed member has ended: it reduces nothing any more.
    rig.workers[0].end_site();
    let failed = SiteEvent { generation: Generation(1), news: SiteNews::Failed("by the test".into()) };
    rig.workers[0].handle(SyncEvent::Site(failed));
    rig.pump(|workers| !workers[1].running().site.early.is_empty());
    assert!(rig.workers[1].running().site.joint.is_some());
    rig.workers[1].contribute(1);
    (0..2).for_each(|at| rig.apply(at, 1));
    assert_nothing_is_lost(&rig);
    assert_eq!(joint_means(&rig, 1), 0);
}

/// The generation ends while one member waits in the ring for the other: the round is void, and the next ring reduces it.
#[test]
fn a_void_round_is_reduced_again_under_the_next_generation() {
    let mut rig = training(RING);
    round(&mut rig, 0);
    rig.workers.iter_mut().for_each(|worker| worker.begin(1));
    rig.workers[0].contribute(1);
    let answers = rig.workers.each_mut().map(|worker| (worker.member.worker, worker.settle(2)));
    let old = rig.begin(1, &[0, 1], 0, &[], None).membership;
    let settled = longhaul_proto::round::settle(&old, rig.layout(), rig.schedule(), &answers.into()).unwrap();
    let start = rig.begin(2, &[0, 1], 2, &[0, 1], Some(settled.settlement));
    for worker in &mut rig.workers {
        worker.hear(ToWorker::Begin(Arc::new(start.clone())));
    }
    rig.workers[1].contribute(1);
    (0..2).for_each(|at| rig.apply(at, 1));
    assert_nothing_is_lost(&rig);
    assert_eq!(joint_means(&rig, 1), 6);
    assert!(rig.workers.iter().all(|worker| worker.running().site.generation == Generation(2)));
}

#[test]
fn what_an_earlier_generation_s_thread_says_changes_nothing() {
    let mut rig = training(RING);
    let stale = SiteEvent { generation: Generation(0), news: SiteNews::Failed("stale".into()) };
    rig.workers[0].handle(SyncEvent::Site(stale));
    assert!(rig.workers[0].running().site.joint.is_some());
    round(&mut rig, 0);
    assert_eq!(joint_means(&rig, 0), 6);
}

/// The TCP port of one member is taken: both report it, and continue by frames.
#[test]
fn a_port_that_is_taken_costs_the_ring_and_no_round() {
    let mut rig = Rig::at_sites([1, 2], [0, 0], RING);
    rig.workers[1].free_port();
    let _taken = std::net::TcpListener::bind(rig.workers[1].member.lan_address).unwrap();
    rig.workers.iter_mut().for_each(Worker::prepare);
    let start = rig.begin(1, &[0, 1], 0, &[], None);
    let reasons = Rc::new(RefCell::new(Vec::new()));
    let heard = Rc::clone(&reasons);
    rig.tap(move |at, event| {
        if let SyncEvent::Site(SiteEvent { news: SiteNews::Failed(reason), .. }) = &event {
            heard.borrow_mut().push((at, reason.clone()));
        }
        event
    });
    for worker in &mut rig.workers {
        worker.hear(ToWorker::Begin(Arc::new(start.clone())));
        worker.entry();
        worker.begin(0);
    }
    round(&mut rig, 0);
    assert_nothing_is_lost(&rig);
    assert_eq!(joint_means(&rig, 0), 0);
    let mut reasons = reasons.borrow().clone();
    reasons.sort();
    let [(0, missing), (1, taken)] = reasons.as_slice() else { panic!("{reasons:?}") };
    assert!(missing.contains("did not join") && taken.contains("listen at"), "{reasons:?}");
}

/// One member is at round 0, the other already holds its results.
#[test]
fn who_lags_behind_meets_the_others_in_a_later_round() {
    let mut rig = training(DIRECT);
    let start = rig.begin(7, &[0, 1], 0, &[], None);
    let (layout, schedule) = (rig.layout(), rig.schedule());
    let parts = rig.workers.each_ref().map(|worker| {
        let plan = SitePlan::new(&start, worker.member.worker).unwrap();
        (worker.start_site(setup_of(&plan)), plan)
    });
    let ask = |at: usize, round: u64, value: f32| {
        let (thread, plan): &(SiteHandle, SitePlan) = &parts[at];
        let layout = plan.layout(Round(round), &schedule, layout);
        let (values, samples) = (vec![value; layout.values()], 1 + at as u32);
        let pieces = vec![Piece::Whole(values)];
        thread.ask(Request { round: Round(round), layout: Arc::new(layout), pieces, samples });
    };
    let mut heard = Heard::default();
    ask(0, 0, 100.0);
    ask(1, 3, 4.0);
    let passed = heard.next(&rig, 0);
    assert!(matches!(passed, SiteNews::Passed { round: Round(0) }), "{passed:?}");
    ask(0, 3, 1.0);
    for at in 0..2 {
        let SiteNews::Reduced { round, part } = heard.next(&rig, at) else { panic!("no mean") };
        let SitePart { mean, samples, is_last, .. } = part;
        assert_eq!((round, samples, is_last), (Round(3), vec![1, 2], true));
        assert!(!mean.is_empty() && mean.iter().all(|mean| (mean - 3.0).abs() < 1e-6), "{mean:?}");
        assert!(matches!(heard.next(&rig, at), SiteNews::Confirmed { round: Round(3) }));
    }
}

fn setup_of(plan: &SitePlan) -> SiteSetup {
    SiteSetup {
        generation: Generation(7),
        members: plan.members().to_vec(),
        rank: plan.rank(),
        values: VALUES as u64,
        way: WithinSite::Ring,
        gpu: None,
    }
}

impl Worker {
    /// A reduction of the test's own.
    fn start_site(&self, setup: SiteSetup) -> SiteHandle {
        let (handle, job) = SiteHandle::new(setup);
        self.sync.outside.start_site(job).unwrap();
        handle
    }
}

/// Events of workers' sites, kept from the workers themselves.
#[derive(Default)]
struct Heard(BTreeMap<usize, VecDeque<SiteNews>>);

impl Heard {
    /// Returns a worker's next event.
    fn next<const N: usize>(&mut self, rig: &Rig<N>, at: usize) -> SiteNews {
        loop {
            if let Some(news) = self.0.entry(at).or_default().pop_front() {
                return news;
            }
            if let (of, SyncEvent::Site(event)) = rig.next_event() {
                self.0.entry(of).or_default().push_back(event.news);
            }
        }
    }
}
