//! One member, with inputs that the simulator's honest members never send.

use std::net::SocketAddr;

use longhaul_common::plan::{Member as PlanMember, Membership};
use longhaul_common::schedule::Changes;

use super::super::frame::{Frame, FrameHeader, FrameKind};
use super::super::result::{Content, FragmentResult};
use super::super::{
    EARLY_FRAMES_PER_FRAGMENT_MAX, PULL_PASSES_MAX, PULL_PAUSE, RESULTS_KEPT_ROUNDS,
    SMALL_RESULTS_KEPT_ROUNDS,
};
use super::*;
use crate::control::message::{Adopted, GenerationStart, Settlement};

mod adopted;
mod awaited;
mod violations;

const LAYOUT: FragmentLayout = FragmentLayout { values: 1, fragment_values: 1 };
const F0: FragmentId = FragmentId(0);
const MS: fn(u64) -> Duration = Duration::from_millis;
const CEILING: Duration = Duration::from_millis(500);

/// Two sites of one worker each; one of them owns the only fragment.
fn membership(generation: u64) -> Membership {
    membership_of(generation, LAYOUT)
}

fn membership_of(generation: u64, layout: FragmentLayout) -> Membership {
    let address = SocketAddr::from(([127, 0, 0, 1], 1));
    let member_of = |number| PlanMember {
        worker: WorkerId(number),
        site: SiteId(number),
        lan_address: address,
        wan_address: address,
        upload_weight: 1,
    };
    Membership::assign(Generation(generation), vec![member_of(1), member_of(2)], layout, 1)
}

fn owner() -> WorkerId {
    membership(1).owner(F0).expect("there is one fragment")
}

fn other() -> WorkerId {
    WorkerId(3 - owner().0)
}

fn site_of(worker: WorkerId) -> SiteId {
    SiteId(worker.0)
}

fn start(generation: u64, settlement: Option<Settlement>) -> Event {
    start_of(membership(generation), settlement)
}

fn start_of(membership: Membership, settlement: Option<Settlement>) -> Event {
    Event::Begin(Arc::new(GenerationStart {
        membership,
        settlement,
        first_round: Round(0),
        active_before: Arc::default(),
        assignments: Vec::new(),
        until: Round(40),
        schedule: config().schedule,
        replica: None,
        checkpoint: false,
    }))
}

fn config() -> Config {
    let schedule = RoundSchedule {
        warmup_rounds: 0,
        warmup_every: 1,
        every: 1,
        overlap: 1,
        groups: 1,
        exchanges: 1,
        steps: 1000,
        changes: Changes::NONE,
    };
    Config {
        schedule,
        deadline: DeadlineConfig { floor: MS(1), ceiling: CEILING, mads: 4.0, apart_every: 1 },
    }
}

/// Returns a member in generation 1.
fn begun(worker: WorkerId) -> Member {
    begun_of(worker, LAYOUT)
}

fn begun_of(worker: WorkerId, layout: FragmentLayout) -> Member {
    let mut member = Member::new(worker, site_of(worker), layout, Round(0), config());
    commands(&mut member, start_of(membership_of(1, layout), None));
    member
}

fn unanswered_commands_at(member: &mut Member, now: Duration, event: Event) -> Vec<Command> {
    member.handle(now, event);
    std::iter::from_fn(|| member.poll_command()).collect()
}

/// The caller bundles at once.
fn commands_at(member: &mut Member, now: Duration, event: Event) -> Vec<Command> {
    member.handle(now, event);
    let mut commands = Vec::new();
    while let Some(command) = member.poll_command() {
        match command {
            Command::Reduce { generation, round, fragment, contributions } => {
                let result = FragmentResult::bundle(contributions);
                member.handle(now, Event::Reduced { generation, round, fragment, result });
            }
            command => commands.push(command),
        }
    }
    commands
}

fn commands(member: &mut Member, event: Event) -> Vec<Command> {
    commands_at(member, member.now, event)
}

fn frame(from: WorkerId, kind: FrameKind, generation: u64, round: u64, weight: u32, body: Bytes) -> Event {
    let generation = Generation(generation);
    let header =
        FrameHeader { kind, generation, round: Round(round), fragment: F0, weight, site: site_of(from) };
    Event::Frame(Frame { from, header, hash: *blake3::hash(&body).as_bytes(), body })
}

fn result_of(sites: &[WorkerId]) -> Bytes {
    let contributors = sites.iter().map(|&worker| (site_of(worker), 1)).collect();
    let content = Content::Bundle(sites.iter().map(|_| Bytes::from_static(b"update")).collect());
    FragmentResult { contributors, content }.encode()
}

fn result_frame(generation: u64, round: u64, body: Bytes) -> Event {
    frame(owner(), FrameKind::Result, generation, round, 0, body)
}

fn contribution(round: u64) -> Event {
    frame(other(), FrameKind::Contribution, 1, round, 1, Bytes::from_static(b"update"))
}

fn accused(commands: &[Command]) -> Option<Violation> {
    commands.iter().find_map(|command| match command {
        Command::Accuse { violation, .. } => Some(*violation),
        _ => None,
    })
}

fn completes(commands: &[Command]) -> bool {
    commands.iter().any(|command| matches!(command, Command::RoundComplete { .. }))
}

/// Completes a round in a member that owns nothing.
fn follow_round(member: &mut Member, round: u64) {
    let round_done = commands(member, result_frame(1, round, result_of(&[owner()])));
    assert!(completes(&round_done));
}

#[test]
fn an_owner_waits_for_late_sites_until_the_deadline_and_no_longer() {
    let mut member = begun(owner());
    assert_eq!(member.poll_timeout(), None);
    assert_eq!(commands_at(&mut member, MS(100), contribution(0)), []);
    assert_eq!(commands_at(&mut member, MS(200), contribution(0)), []);
    assert_eq!(member.dropped().duplicate, 1);
    assert_eq!(member.poll_timeout(), Some(MS(100) + CEILING));
    assert_eq!(commands_at(&mut member, MS(99) + CEILING, Event::Timeout), []);
    let done = commands_at(&mut member, MS(100) + CEILING, Event::Timeout);
    assert!(completes(&done));
    assert!(done.iter().any(|command| matches!(command, Command::Send { to, .. } if *to == other())));
    // The owner's own site was late: its contribution now is for a later round.
    let late = commands(&mut member, Event::Contribute { round: Round(0), weight: 1 });
    let round = Round(0);
    assert_eq!(late, [Command::CarryOver { round, fragment: F0 }, Command::Release { round }]);
    assert_eq!(commands(&mut member, contribution(0)), []);
    assert_eq!(member.dropped().late, 1);
}

#[test]
fn who_sends_each_fragment_when_it_is_ready_does_not_hurry_who_sends_them_at_the_end() {
    let layout = FragmentLayout { values: 8, fragment_values: 1 };
    let membership = membership_of(1, layout);
    let (me, other) = (WorkerId(1), WorkerId(2));
    let owned: Vec<_> = layout.fragments().filter(|f| membership.owner(*f) == Some(me)).collect();
    let (last, first) = owned.split_last().expect("a part of eight");
    assert!(!first.is_empty());
    let mut member = begun_of(me, layout);
    let mut arrives = |fragment: FragmentId, at: Duration| {
        let event = frame(other, FrameKind::Contribution, 1, 0, 1, Bytes::from_static(b"update"));
        let Event::Frame(mut frame) = event else { panic!("{event:?}") };
        frame.header.fragment = fragment;
        assert_eq!(commands_at(&mut member, at, Event::Frame(frame)), []);
        member.poll_timeout()
    };
    first.iter().for_each(|fragment| assert_eq!(arrives(*fragment, MS(100)), None));
    assert_eq!(arrives(*last, MS(300)), Some(MS(300) + CEILING));
    assert_eq!(commands_at(&mut member, MS(299) + CEILING, Event::Timeout), []);
    let closed = commands_at(&mut member, MS(300) + CEILING, Event::Timeout);
    let results = closed.iter().filter(|command| matches!(command, Command::Send { .. }));
    assert_eq!(results.count(), owned.len());
}

#[test]
fn a_site_with_nothing_to_contribute_does_not_start_the_clock() {
    let mut member = begun(owner());
    commands(&mut member, frame(other(), FrameKind::Contribution, 1, 0, 0, Bytes::new()));
    assert_eq!(member.poll_timeout(), None);
    // The result also omits it when the owner's site has nothing either.
    let done = commands(&mut member, Event::Contribute { round: Round(0), weight: 0 });
    let empty = FragmentResult { contributors: vec![], content: Content::Bundle(vec![]) };
    assert!(done.contains(&Command::RoundComplete { round: Round(0), results: vec![empty] }));
}

#[test]
fn the_device_waits_while_a_generation_ends_and_skips_what_is_complete() {
    let mut member = begun(other());
    assert_eq!(member.next_round(), Some(Round(0)));
    commands(&mut member, Event::Computing { round: Round(0) });
    assert_eq!(member.next_round(), Some(Round(1)));
    (0..5).for_each(|round| follow_round(&mut member, round));
    assert_eq!(member.next_round(), Some(Round(5)));
    commands(&mut member, Event::Computing { round: Round(5) });
    commands(&mut member, Event::Computing { round: Round(6) });
    assert_eq!(member.next_round(), None, "round 5 is not here, so round 7 is too early");
    commands(&mut member, Event::Settle { generation: Generation(2) });
    assert_eq!(member.next_round(), None);
    (5..39).for_each(|round| {
        commands(&mut member, result_frame(1, round, result_of(&[owner()])));
    });
    assert_eq!(member.open_round(), Round(5), "nothing is taken under a generation that has ended");
    assert_eq!(member.dropped().settling, 34);
}

#[test]
fn no_round_is_begun_after_the_last() {
    let mut member = begun(other());
    (0..40).for_each(|round| follow_round(&mut member, round));
    assert_eq!(member.next_round(), None);
}

#[test]
fn results_are_kept_for_those_who_lag_and_then_forgotten() {
    let mut member = begun(other());
    (0..30).for_each(|round| follow_round(&mut member, round));
    let body = result_of(&[owner()]);
    let hash = *blake3::hash(&body).as_bytes();
    let oldest = 30 - RESULTS_KEPT_ROUNDS;
    assert_eq!(member.lookup(Round(oldest), F0), Some((body, hash)));
    assert_eq!(member.lookup(Round(oldest - 1), F0), None);
    assert_eq!(member.lookup(Round(30), F0), None);
    assert_eq!(member.lookup(Round(29), FragmentId(1)), None);
}

#[test]
fn settling_again_is_answered_again_and_an_older_settling_is_not() {
    let mut member = begun(other());
    let mut asked = |generation| commands(&mut member, Event::Settle { generation: Generation(generation) });
    assert_eq!(asked(1), []);
    assert!(matches!(asked(3)[..], [Command::ReportSettled(_)]));
    assert!(matches!(asked(3)[..], [Command::ReportSettled(_)]));
    assert_eq!(asked(2), []);
    assert_eq!(commands(&mut member, start(2, None)), []);
    assert_eq!(member.generation(), None);
    commands(&mut member, start(3, None));
    assert_eq!(member.generation(), Some(Generation(3)));
}

#[test]
fn a_frame_of_a_generation_to_come_waits_for_it() {
    let mut member = begun(other());
    assert_eq!(commands(&mut member, result_frame(2, 0, result_of(&[owner()]))), []);
    let begin = commands(&mut member, start(2, None));
    assert!(completes(&begin));
    assert_eq!(member.frames_held(), 1);
}

#[test]
fn frames_of_a_generation_that_is_overtaken_are_dropped_and_their_number_is_bounded() {
    let mut member = begun(other());
    commands(&mut member, result_frame(2, 0, result_of(&[owner()])));
    for round in 0..2 * EARLY_FRAMES_PER_FRAGMENT_MAX as u64 {
        commands(&mut member, result_frame(3, round, result_of(&[owner()])));
    }
    assert_eq!(member.frames_held(), EARLY_FRAMES_PER_FRAGMENT_MAX);
    assert_eq!(member.dropped().early_overflow, EARLY_FRAMES_PER_FRAGMENT_MAX as u64);
    commands(&mut member, result_frame(2, 1, result_of(&[owner()])));
    assert_eq!(member.frames_held(), EARLY_FRAMES_PER_FRAGMENT_MAX);
    // A refused frame cannot be obtained again.
    let begin = commands(&mut member, start(3, None));
    assert!(begin.iter().any(|command| matches!(command, Command::Lost { .. })));
    assert_eq!(commands(&mut member, result_frame(2, 2, result_of(&[owner()]))), []);
    assert_eq!(member.dropped().stale, 1);
}

#[test]
fn a_result_that_nobody_gives_is_asked_for_a_few_times_and_then_lost() {
    let mut member = begun(other());
    let hash = *blake3::hash(&result_of(&[owner()])).as_bytes();
    let adopted = vec![Adopted { fragment: F0, hash, holders: vec![owner(), other()] }];
    let settlement =
        Settlement { open_round: Round(0), complete_at: vec![owner(), other()], results: adopted };
    let mut answers = commands(&mut member, start(2, Some(settlement)));
    let (mut pulls, mut wrong, mut lost) = (0, 0, 0);
    while let Some(Command::Pull { round, fragment, from, hash: Some(_) }) = answers.pop() {
        assert_eq!(from, owner(), "it does not ask itself");
        pulls += 1;
        // Other bytes than those requested are useless.
        let body = Bytes::from_static(b"other bytes");
        let event = match pulls % 2 {
            0 => Event::PullFailed { round, fragment, from },
            _ => Event::Pulled { round, fragment, hash: *blake3::hash(&body).as_bytes(), body },
        };
        let after = commands(&mut member, event);
        wrong += usize::from(accused(&after) == Some(Violation::WrongBytes));
        lost += usize::from(after.contains(&Command::Lost { round, fragment }));
        answers = match member.poll_timeout() {
            Some(due) => {
                assert_eq!(due, member.now + PULL_PAUSE);
                commands_at(&mut member, due, Event::Timeout)
            }
            None => after,
        };
    }
    assert_eq!((pulls, wrong, lost), (PULL_PASSES_MAX, PULL_PASSES_MAX as usize / 2, 1));
    assert_eq!(member.poll_timeout(), None);
}

#[test]
fn an_answer_of_the_caller_from_an_earlier_generation_is_not_sent() {
    let mut member = begun(other());
    let compress = commands(&mut member, Event::Contribute { round: Round(0), weight: 1 });
    assert!(matches!(compress[..], [Command::Compress { .. }]));
    commands(&mut member, Event::Settle { generation: Generation(2) });
    let settlement = Settlement { open_round: Round(0), complete_at: vec![other()], results: vec![] };
    let again = commands(&mut member, start(2, Some(settlement)));
    let round = Round(0);
    assert!(matches!(again[..], [Command::Retract { .. }, Command::Compress { .. }]), "{again:?}");
    let body = Bytes::from_static(b"update");
    let answer = |generation| Event::Compressed {
        generation: Generation(generation),
        round,
        fragment: F0,
        body: body.clone(),
    };
    assert_eq!(commands(&mut member, answer(1)), []);
    assert!(matches!(commands(&mut member, answer(2))[..], [Command::Send { .. }]));
    assert_eq!(commands(&mut member, answer(2)), [], "once");
}

/// Even if all holders of its result have died: the next settlement finds that none is left.
#[test]
fn a_round_before_the_open_one_is_fetched_and_not_made_anew() {
    let mut member = begun(owner());
    commands(&mut member, Event::Contribute { round: Round(0), weight: 1 });
    commands(&mut member, Event::Settle { generation: Generation(2) });
    let settlement = Settlement { open_round: Round(1), complete_at: vec![other()], results: vec![] };
    let again = commands(&mut member, start(2, Some(settlement)));
    assert!(matches!(again[..], [Command::Pull { .. }]), "{again:?}");
    let body = Bytes::from_static(b"update");
    assert_eq!(commands(&mut member, frame(other(), FrameKind::Contribution, 2, 0, 1, body)), []);
}

#[test]
fn a_member_that_is_too_far_behind_says_so_once() {
    let mut member = begun(other());
    let far = SMALL_RESULTS_KEPT_ROUNDS + super::super::ROUNDS_AHEAD_MAX + 1;
    let first = commands(&mut member, result_frame(1, far, result_of(&[owner()])));
    assert!(matches!(first[..], [Command::Lost { .. }]));
    assert_eq!(commands(&mut member, result_frame(1, far + 1, result_of(&[owner()]))), []);
}

/// Otherwise it would keep results without a bound, or drop ones that only it has.
#[test]
fn an_owner_that_lags_does_not_run_ahead_of_itself() {
    let layout = FragmentLayout { values: 16, fragment_values: 1 };
    let duties = membership_of(1, layout);
    let (me, peer) = (WorkerId(1), WorkerId(2));
    let (mine, others): (Vec<_>, Vec<_>) = layout.fragments().partition(|&f| duties.owner(f) == Some(me));
    let (&owned, false) = (mine.first().expect("it owns some"), others.is_empty()) else {
        panic!("both own some")
    };
    let mut member = begun_of(me, layout);
    let mut tell = |round: u64, fragment: FragmentId, kind: FrameKind, body: Bytes| {
        let Event::Frame(mut event) = frame(peer, kind, 1, round, 1, body) else {
            unreachable!("it is a frame")
        };
        event.header.fragment = fragment;
        let mut done = commands(&mut member, Event::Frame(event));
        let later = member.now + CEILING;
        done.extend(commands_at(&mut member, later, Event::Timeout));
        (done, member.lookup(Round(round), owned).is_some(), member.poll_timeout())
    };
    let mut contribute = |round: u64| {
        let update = || Bytes::from_static(b"update");
        let told = mine.iter().map(|&fragment| tell(round, fragment, FrameKind::Contribution, update()));
        told.last().expect("it owns some")
    };
    for round in 0..=super::super::ROUNDS_AHEAD_MAX {
        assert!(contribute(round).1);
    }
    let beyond = super::super::ROUNDS_AHEAD_MAX + 1;
    let (_, published, timeout) = contribute(beyond);
    assert!(!published);
    assert_eq!(timeout, None, "it does not wake up for nothing");
    // Round 0 is complete once the others' fragments are present.
    for &fragment in &others {
        tell(0, fragment, FrameKind::Result, result_of(&[peer]));
    }
    assert_eq!(member.open_round(), Round(1));
    assert!(member.lookup(Round(beyond), owned).is_some());
}

#[test]
fn an_owner_keeps_a_result_in_the_bytes_that_it_sends() {
    let mut member = begun(owner());
    commands(&mut member, contribution(0));
    let done = commands(&mut member, Event::Timeout);
    assert_eq!(done, []);
    let done = commands_at(&mut member, MS(100) + 2 * CEILING, Event::Timeout);
    let sent = done.iter().find_map(|command| match command {
        Command::Send { body, .. } => Some(body.as_ptr_range()),
        _ => None,
    });
    let results = done.iter().find_map(|command| match command {
        Command::RoundComplete { results, .. } => Some(results),
        _ => None,
    });
    let (sent, [result]) = (sent.unwrap(), &results.unwrap()[..]) else { panic!("{done:?}") };
    let Content::Bundle(parts) = &result.content else { panic!("{result:?}") };
    assert!(!parts.is_empty() && parts.iter().all(|part| sent.contains(&part.as_ptr())));
}

#[test]
fn a_contribution_that_comes_while_the_mean_is_taken_is_not_named_in_it() {
    let (round, generation) = (Round(0), Generation(1));
    let mut member = Member::new(owner(), site_of(owner()), LAYOUT, round, config());
    commands(&mut member, start(1, None));
    commands(&mut member, contribution(0));
    let reduce = unanswered_commands_at(&mut member, CEILING, Event::Timeout);
    assert!(matches!(&reduce[..], [Command::Reduce { contributions, .. }] if contributions.len() == 1));
    commands(&mut member, Event::Contribute { round, weight: 1 });
    let body = Bytes::from_static(b"own");
    commands(&mut member, Event::Compressed { generation, round, fragment: F0, body });
    assert_eq!(member.dropped().late, 1);
    let body = Bytes::from_static(b"mean");
    let result = FragmentResult { contributors: vec![(site_of(other()), 1)], content: Content::Mean(body) };
    let reduced = Event::Reduced { generation, round, fragment: F0, result: result.clone() };
    let done = commands(&mut member, reduced);
    assert!(done.contains(&Command::RoundComplete { round, results: vec![result] }));
    let undone = [Command::Retract { round, fragment: F0 }, Command::CarryOver { round, fragment: F0 }];
    assert!(undone.iter().all(|command| done.contains(command)));
}

#[test]
fn a_new_member_starts_where_the_last_generation_before_its_first_round_says() {
    let mut member = Member::new(other(), site_of(other()), LAYOUT, Round(7), config());
    let mut begin = |generation, first_round, active_before: &[WorkerId]| {
        let settlement = Settlement { open_round: Round(7), complete_at: vec![owner()], results: vec![] };
        let Event::Begin(start) = start(generation, Some(settlement)) else { unreachable!("it is a start") };
        let mut start = Arc::unwrap_or_clone(start);
        start.first_round = Round(first_round);
        start.active_before = active_before.into();
        commands(&mut member, Event::Begin(Arc::new(start)));
        member.next_round()
    };
    assert_eq!(begin(1, 9, &[owner()]), None, "round 8 must be complete first");
    assert_eq!(begin(2, 8, &[owner(), other()]), Some(Round(8)), "who was ahead has died");
    assert_eq!(begin(3, 9, &[owner(), other()]), Some(Round(8)), "it is counted in from there");
}
