//! Tests of the evaluation of whole runs.

use super::*;

const CASE: Case<'_> = Case { method: "auto", rate_mbit: 10.0, steps: 1500, limit_times: 12.0 };

fn told(figures: &[Figure], metric: &str) -> Option<f64> {
    figures.iter().find(|figure| figure.metric == metric).map(|figure| figure.value)
}

fn measured() -> Measured {
    let bytes = 0.5 * small::parameters(WHOLE) as f64 * 1500.0 / 8.0;
    Measured {
        made: 1500,
        seconds: 150.0,
        steady_step_s: Some(0.0625),
        loss: Some(1.6),
        sent_bytes: Some(2.0 * bytes),
        wire_bytes: 2.4 * bytes,
    }
}

#[test]
fn a_whole_run_has_its_share_its_steady_share_and_its_bits() {
    let link = scale::link(10.0, 0.05).unwrap();
    let figures = figures(&CASE, &measured(), 0.05, &link);
    let close = |metric, expected: f64| (told(&figures, metric).unwrap() - expected).abs() < 1e-3;
    assert!(close("whole_run_share", 0.5) && close("steady_share", 0.8) && close("loss", 1.6));
    assert!(close("bits_sent", 0.5) && close("bits_on_the_wire", 0.6), "{figures:?}");
    // 0.67 bits in 0.05 s, and 0.6 in 0.1 s.
    assert!(close("link_used", 0.6 / 1.34), "{figures:?}");
    assert_eq!(told(&figures, "over_the_limit_of"), None);
}

#[test]
fn a_run_that_was_stopped_has_bounds_and_no_share() {
    let stopped = Measured {
        made: 300,
        seconds: 900.0,
        steady_step_s: None,
        loss: None,
        sent_bytes: None,
        ..measured()
    };
    let figures = figures(&CASE, &stopped, 0.05, &scale::link(10.0, 0.05).unwrap());
    assert_eq!(told(&figures, "over_the_limit_of"), Some(900.0));
    assert_eq!(told(&figures, "steps_made"), Some(300.0));
    assert!((told(&figures, "whole_run_share_at_most").unwrap() - 75.0 / 960.0).abs() < 1e-9);
    assert!((told(&figures, "share_so_far").unwrap() - 15.0 / 900.0).abs() < 1e-9);
    assert!(["whole_run_share", "loss", "bits_sent"].iter().all(|metric| told(&figures, metric).is_none()));
}

#[test]
fn a_longer_run_than_one_over_its_limit_is_left_out() {
    let mut book = Book::open(None).unwrap();
    let over = figure("over_the_limit_of", 375.0, "s");
    book.add(BENCH, &CASE.name(), &[over]).unwrap();
    let longer = Case { steps: 6000, ..CASE };
    assert!(longer.is_hopeless(&book) && !CASE.is_hopeless(&book), "that one may be measured anew");
    assert!(!Case { rate_mbit: 100.0, ..longer }.is_hopeless(&book));
    assert!(!Case { method: "dense", ..longer }.is_hopeless(&book));
}

#[test]
fn a_case_is_compared_with_runs_without_a_link() {
    let mut book = Book::open(None).unwrap();
    let figure = |metric, value| Figure { metric, value, unit: "" };
    let case = [figure("loss", 1.6), figure("seconds", 150.0), figure("local_step_s", 0.05)];
    book.add(BENCH, &CASE.name(), &case).unwrap();
    assert!(compared(&book, "auto", 10.0, 1500).is_empty(), "there is nothing to compare with");
    book.add(BENCH, "dense without a link, 1500 steps", &[figure("loss", 1.5)]).unwrap();
    let compared = |book: &Book| compared(book, "auto", 10.0, 1500);
    assert_eq!(told(&compared(&book), "time_to_loss_share_at_most"), Some(0.5));
    book.add(BENCH, "dense without a link, 750 steps", &[figure("loss", 1.7)]).unwrap();
    let figures = compared(&book);
    assert!((told(&figures, "over_dense").unwrap() - 100.0 / 15.0).abs() < 1e-9);
    assert_eq!(told(&figures, "over_adamw"), None);
    // Half of the way between 750 and 1500 steps.
    let expected = 750.0 * 2f64.sqrt() * 0.05 / 150.0;
    assert!((told(&figures, "time_to_loss_share").unwrap() - expected).abs() < 1e-9);
}

#[test]
fn a_method_with_muon_is_compared_with_dense_of_both_optimisers() {
    let mut book = Book::open(None).unwrap();
    let figure = |metric, value| Figure { metric, value, unit: "" };
    let case = [figure("loss", 1.25), figure("seconds", 150.0), figure("local_step_s", 0.05)];
    book.add(BENCH, &case_name("muloco", 10.0, 1500), &case).unwrap();
    book.add(BENCH, "dense without a link, 1500 steps", &[figure("loss", 1.5)]).unwrap();
    book.add(BENCH, "dense with muon without a link, 1500 steps", &[figure("loss", 1.25)]).unwrap();
    let figures = compared(&book, "muloco", 10.0, 1500);
    assert_eq!(told(&figures, "over_dense"), Some(0.0));
    assert!((told(&figures, "over_adamw").unwrap() + 100.0 / 6.0).abs() < 1e-9);
    assert_eq!(told(&figures, "time_to_loss_share"), Some(0.5));
}
