//! Tests of the options of each target.

use clap::{CommandFactory, Parser};

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    options: Options,
}

#[test]
fn parts_go_to_the_target_that_has_them() {
    let [bubbles, link] = [0, 1].map(|at| Name::Pipeline.targets()[at]);
    assert_eq!((parts_for(bubbles, None), parts_for(link, None)), (Some(vec![]), Some(vec![])));
    let some = |parts: &str| Some(vec!["--part".to_owned(), parts.to_owned()]);
    assert_eq!((parts_for(bubbles, Some("link")), parts_for(link, Some("link"))), (None, some("link")));
    let mixed = Some("bubble,link,plans");
    assert_eq!((parts_for(bubbles, mixed), parts_for(link, mixed)), (Some(vec![]), some("link,plans")));
    assert_eq!(parts_for(link, Some("bubble")), None);
    let data = Name::Data.targets()[0];
    assert_eq!(
        [Some("order"), Some("bubble")].map(|parts| parts_for(data, parts)),
        [some("order"), some("bubble")]
    );
}

#[test]
fn benchmarks_that_neither_compute_nor_start_workers_need_no_libtorch() {
    let needs = |name: &Name| {
        name.starts_binaries() || name.targets().iter().any(|target| features(target) == Some(TORCH))
    };
    let without = Name::value_variants().iter().filter(|name| !needs(name));
    let without: Vec<_> = without.flat_map(|name| name.targets()).copied().collect();
    let expected =
        ["codec", "transport", "cases", "plan", "simulate", "record", "round", "collective", "site"];
    assert_eq!(without, expected);
}

#[test]
fn a_python_goes_to_what_compares_with_it_and_the_one_that_is_given_comes_first() {
    let python = |words: &[&str], usual: Option<&str>| {
        let line = Line::parse_from(["x"].iter().chain(words));
        python_for(&line.options, usual.map(OsString::from)).map_err(|error| error.to_string())
    };
    for name in ["data", "gpu", "selection"] {
        let given = ["--python", "one"].map(OsString::from).to_vec();
        assert_eq!(python(&[name, "--python", "one"], Some("two")), Ok(given.clone()));
        assert_eq!(python(&[name], Some("one")), Ok(given));
        assert_eq!(python(&[name], None), Ok(vec![]));
    }
    assert_eq!(python(&["wan"], Some("one")), Ok(vec![]));
    assert!(python(&["wan", "--python", "one"], None).unwrap_err().contains("LONGHAUL_PYTHON"));
}

#[test]
fn the_options_of_all_benchmarks_go_together() {
    Line::command().debug_assert();
    let line = Line::parse_from(["x", "sync", "--quick", "--part", "speed", "--only", "auto"]);
    assert!(line.options.quick && line.options.part.is_some_and(|part| part == "speed"));
    assert_eq!(line.options.sync.arguments().unwrap(), ["--only", "auto"]);
}
