use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;

use super::super::workload::tests::CONFIG;
use super::super::{Device, Link, Site};
use super::*;

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

fn workload() -> Workload {
    let config = RunConfig::parse(&format!("{CONFIG}[sync]\npreset = \"dense\"\n")).unwrap();
    Workload::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap())
}

/// Two sites of so many equal devices each, and a link between them.
fn topology(each: usize, mbit: f64) -> Topology {
    let site = |name: &str| Site {
        name: name.to_owned(),
        devices: vec![Device { flops_per_s: 1e11, memory_bytes: GIB, host_memory_bytes: None }; each],
        lan: Link { bytes_per_s: 1.25e9, round_trip_s: 1e-4 },
        knows_lan: true,
    };
    let link = Link { bytes_per_s: mbit * 125e3, round_trip_s: 0.05 };
    Topology::new(vec![site("a"), site("b")], BTreeMap::from([((0, 1), link)])).unwrap()
}

/// A run that has the plan that was best for `before`, on the machines of `now`.
fn question(before: &Topology, now: &Topology, steps_left: u64) -> Question {
    let work = workload();
    let present = super::super::choose(before, &work).unwrap().best.0;
    let permitted = (1..=work.blocks.len()).collect();
    Question { topology: now.clone(), work, present: Some(present), permitted, steps_left, pause_s: 5.0 }
}

fn moves_to(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Stay(_) => None,
        Answer::Move(choice, _) => Some(shape(&choice.best.0)),
    }
}

#[test]
fn a_move_must_gain_twice_what_it_costs_and_a_tenth_of_a_step() {
    let prospect = Prospect { steps_left: 100, present_s: 1.0, best_s: 0.5, price_s: 24.0 };
    assert!(prospect.pays());
    for dear in [
        Prospect { price_s: 26.0, ..prospect },
        Prospect { steps_left: 95, ..prospect },
        Prospect { steps_left: 1_000_000, best_s: 0.95, ..prospect },
        Prospect { best_s: 1.5, ..prospect },
        Prospect { steps_left: 0, ..prospect },
    ] {
        assert!(!dear.pays(), "{dear:?}");
    }
}

/// Dense gradients over fifty megabits a second take seconds; a pipeline over it takes its boundaries alone.
#[test]
fn when_a_link_becomes_slow_a_run_moves_if_enough_of_it_is_left() {
    let (fast, slow) = (topology(1, 10_000.0), topology(1, 50.0));
    let asked = |steps_left| question(&fast, &slow, steps_left).answer();
    let long = asked(100_000);
    let Answer::Move(choice, text) = &long else { panic!("{long:?}") };
    assert!(text.contains("a step where 2 × 1") && text.contains("for a move of"), "{text}");
    assert_eq!(choice.best.0.replicas.len(), 1);
    let nearly_over = asked(1);
    let Answer::Stay(text) = &nearly_over else { panic!("{nearly_over:?}") };
    assert!(text.starts_with("the plan stays: ") && text.contains("over 1 steps"), "{text}");
}

/// The same machines, one way and the other: whoever has moved does not move back, however often it is asked.
#[test]
fn the_plan_that_was_moved_to_stays_under_the_same_conditions() {
    let (fast, slow) = (topology(1, 10_000.0), topology(1, 1.0));
    let mut asked = question(&fast, &slow, 100_000);
    let Answer::Move(choice, _) = asked.answer() else { panic!("it moves") };
    asked.present = Some(choice.best.0.clone());
    assert_eq!(moves_to(&asked.answer()), None);
    // A little more or less of the link makes no other plan.
    for mbit in [0.8, 1.2] {
        asked.topology = topology(1, mbit);
        assert_eq!(moves_to(&asked.answer()), None, "{mbit}");
    }
    // The link is back: the gain is there, and as long as enough steps are left it is taken.
    asked.topology = fast;
    assert!(moves_to(&asked.answer()).is_some());
    asked.steps_left = 3;
    assert_eq!(moves_to(&asked.answer()), None);
}

#[test]
fn machines_that_have_joined_are_made_use_of() {
    let asked = question(&topology(1, 10_000.0), &topology(2, 10_000.0), 100_000);
    let Answer::Move(choice, _) = asked.answer() else { panic!("{:?}", asked.answer()) };
    assert_eq!(choice.best.0.replicas.iter().map(Vec::len).sum::<usize>(), 4);
}

#[test]
fn a_run_whose_plan_is_none_any_more_takes_another_one_at_any_price() {
    let asked = Question { present: None, ..question(&topology(1, 1.0), &topology(1, 1.0), 1) };
    assert!(moves_to(&asked.answer()).is_some());
    // And where nothing fits, it stays and says why.
    let asked = Question { permitted: BTreeSet::new(), ..asked };
    let Answer::Stay(text) = asked.answer() else { panic!("nothing is permitted") };
    assert!(text.starts_with("the plan stays: no plan fits"), "{text}");
}

#[test]
fn only_what_a_device_lacks_moves() {
    let (work, id) = (workload(), |site, device| DeviceId { site, device });
    let blocks = work.blocks.len() as u32;
    let whole = question(&topology(1, 10_000.0), &topology(1, 10_000.0), 1).present.unwrap();
    let one: Vec<_> = std::iter::once(0..blocks).collect();
    let alone = Plan { replicas: vec![vec![id(0, 0)]], stages: one.clone(), ..whole.clone() };
    let both = Plan { replicas: vec![vec![id(0, 0)], vec![id(1, 0)]], stages: one, ..whole };
    let bytes = moved_bytes(&work, &alone, &both);
    let parameters: u64 = work.blocks.iter().map(|block| block.parameters).sum();
    assert_eq!((bytes[&id(0, 0)], bytes[&id(1, 0)]), (0.0, MOVED_BYTES * parameters as f64));
    let took = way_s(&topology(1, 8.0), &alone, &bytes);
    assert!((took - MOVED_BYTES * parameters as f64 / 1e6).abs() < 1e-9);
}
