use longhaul_common::config::RunConfig;
use longhaul_common::model::ModelSpec;

use super::super::workload::tests::{config, run_toml};
use super::super::{Device, Link, Site};
use super::*;

const GIB: f64 = 1024.0 * 1024.0 * 1024.0;

/// In any number of parts, and with groups of two where sites have such.
fn divisions() -> Divisions {
    let config = config("preset = \"dense\"");
    Divisions::of(&config, &ModelSpec::resolve(&config.model, 256).unwrap()).in_any_parts(config.model.kind)
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
    let (topology, divisions) = (now.clone(), divisions());
    let plan = super::super::choose(before, &divisions.whole.work).unwrap().best.0;
    let present = Some(Present { members: 1, plan });
    Question { topology, divisions, present, steps_left, pause_s: 5.0 }
}

/// The present plan of a run after this choice.
fn present(choice: &Choice) -> Option<Present> {
    Some(Present { members: choice.tensor, plan: choice.best.0.clone() })
}

fn moves_to(answer: &Answer) -> Option<String> {
    match answer {
        Answer::Stay(_) => None,
        Answer::Move(choice, _) => Some(outline(choice)),
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
    assert!(text.contains("a step, 2 × 1") && text.contains("; moving "), "{text}");
    assert_eq!(choice.best.0.replicas.len(), 1);
    let nearly_over = asked(1);
    let Answer::Stay(text) = &nearly_over else { panic!("{nearly_over:?}") };
    assert!(text.starts_with("the plan stays: ") && text.contains("the remaining 1 steps"), "{text}");
}

/// The same machines, both ways: after a move the run does not move back, however often it asks.
#[test]
fn the_plan_that_was_moved_to_stays_under_the_same_conditions() {
    let (fast, slow) = (topology(1, 10_000.0), topology(1, 1.0));
    let mut asked = question(&fast, &slow, 100_000);
    let Answer::Move(choice, _) = asked.answer() else { panic!("it moves") };
    asked.present = present(&choice);
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
    // And where nothing fits, it stays and gives the reason.
    let mut asked = asked;
    asked.divisions.whole.stages = Some(BTreeSet::new());
    let Answer::Stay(text) = asked.answer() else { panic!("nothing is permitted") };
    assert!(text.starts_with("the plan stays: no plan fits"), "{text}");
}

/// Four workers at two sites with fast links of their own, too small for the model: groups of two hold it. The link between the sites becomes too slow for gradients of
/// all parameters, and is fast again.
#[test]
fn a_run_with_groups_moves_to_parts_of_groups_and_back() {
    let run = run_toml().workers(4).set("model.heads", 12).set("sync.preset", "dense");
    let config = RunConfig::parse(&run.to_string()).unwrap();
    let spec = ModelSpec::resolve(&config.model, 256).unwrap();
    let divisions = Divisions::of(&config, &spec);
    let machines = |mbit: f64| {
        let mut machines = topology(2, mbit);
        for site in &mut machines.sites {
            site.lan = Link { bytes_per_s: 300e9, round_trip_s: 1e-6 };
            site.devices.iter_mut().for_each(|device| device.memory_bytes = 0.7 * GIB);
        }
        machines
    };
    let (_, first) = choose_with_groups(machines(10_000.0), &divisions, true).unwrap();
    assert!(outline(&first).starts_with("2 × 2, layer by layer"), "{}", outline(&first));
    let mut asked = Question {
        topology: machines(50.0),
        divisions,
        present: present(&first),
        steps_left: 100_000,
        pause_s: 5.0,
    };
    let answer = asked.answer();
    let Answer::Move(second, why) = &answer else { panic!("{answer:?}") };
    assert_eq!((second.tensor, second.best.0.pipeline.ranks, second.best.0.replicas.len()), (2, 2, 1));
    let [to, from] = [second, &Box::new(first)].map(|choice| outline(choice));
    assert!(
        why.starts_with(&format!("{to} takes ")) && why.contains(&format!("a step, {from} takes")),
        "{why}"
    );
    asked.present = present(second);
    assert_eq!(moves_to(&asked.answer()), None);
    asked.topology = machines(10_000.0);
    assert_eq!(moves_to(&asked.answer()), Some(from));
}

/// One site of two workers: together, each with a share; or each by itself.
#[test]
fn where_shares_are_cut_otherwise_each_worker_takes_all_that_its_blocks_have() {
    let machines = {
        let mut machines = topology(2, 10_000.0);
        machines.sites[1].devices.clear();
        machines
    };
    let asked = question(&machines, &machines, 1);
    let choice = |members: u32| {
        let division = asked.divisions.with(members).unwrap();
        let of = if members > 1 { machines.in_groups(members).unwrap() } else { machines.clone() };
        super::super::choose_among(&of, &division.work, |rows| rows[0].len() == 1).unwrap()
    };
    let parameters: u64 = asked.divisions.whole.work.blocks.iter().map(|block| block.parameters).sum();
    let moved = |from: u32, to: u32| {
        let bytes = asked.moved_bytes(&present(&choice(from)).unwrap(), &choice(to));
        bytes[&0] / (MOVED_BYTES * parameters as f64)
    };
    assert_eq!([moved(1, 1), moved(2, 2), moved(2, 1), moved(1, 2)], [0.0, 0.0, 2.0, 2.0]);
}

#[test]
fn only_what_a_device_lacks_moves() {
    let (work, id) = (divisions().whole.work, |site, device| DeviceId { site, device });
    let blocks = work.blocks.len() as u32;
    let whole = question(&topology(1, 10_000.0), &topology(1, 10_000.0), 1).present.unwrap().plan;
    let one: Vec<_> = std::iter::once(0..blocks).collect();
    let alone = Plan { replicas: vec![vec![id(0, 0)]], stages: one.clone(), ..whole.clone() };
    let both = Plan { replicas: vec![vec![id(0, 0)], vec![id(1, 0)]], stages: one, ..whole };
    let bytes = lacking_bytes(&work, Some(&alone), &both);
    let parameters: u64 = work.blocks.iter().map(|block| block.parameters).sum();
    assert_eq!((bytes[&id(0, 0)], bytes[&id(1, 0)]), (0.0, MOVED_BYTES * parameters as f64));
    let took = way_s(&topology(1, 8.0), &alone, &BTreeMap::from([(1, bytes[&id(1, 0)])]));
    assert!((took - MOVED_BYTES * parameters as f64 / 1e6).abs() < 1e-9);
}
