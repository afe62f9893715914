//! Tables of whole runs: one per number of steps and link.

use std::fmt::Write;

use super::tables::{figure, table};
use crate::sync::book::Book;
use crate::sync::method;
use crate::sync::whole::{
    BENCH, RATES_MBIT, STEPS, bits, case_name, compared, reference_loss, shorter_over_the_limit,
};

const HEAD: [&str; 8] = [
    "method",
    "whole-run share",
    "time-to-loss share",
    "loss, nats",
    "over `dense`",
    "steady share",
    "bits sent per parameter and step",
    "bits on the wire",
];

/// Returns a sentence on `auto`, and every method at every link, in the order of measurement; `None` without
/// figures.
pub fn whole(book: &Book) -> Option<String> {
    let mut text = String::new();
    for steps in STEPS {
        // Writes to a string cannot fail.
        let _ = headline(book, steps).iter().try_for_each(|sentence| writeln!(text, "{sentence}\n"));
        for rate_mbit in RATES_MBIT {
            let ours = method::presets().into_iter().map(|method| method.name);
            let theirs = method::PYTORCH.iter().map(|(name, ..)| *name);
            let rows = ours.chain(theirs).filter_map(|name| row(book, name, rate_mbit, steps));
            let Some(rows) = table(&HEAD, rows) else { continue };
            let bits = figure(bits(rate_mbit));
            let _ =
                writeln!(text, "{steps} steps at {rate_mbit} Mbit/s ({bits} bits a parameter and step):\n");
            let _ = writeln!(text, "{rows}");
        }
        for reference in method::REFERENCES {
            let dense = reference_loss(book, reference, steps).filter(|_| !text.is_empty());
            if let Some(loss) = dense {
                let _ = writeln!(text, "`{reference}` without a link has {loss:.3} after {steps} steps.\n");
            }
        }
    }
    (!text.is_empty()).then_some(text)
}

/// Summarises `auto` at all links; `None` if not measured at each.
fn headline(book: &Book, steps: u64) -> Option<String> {
    let at = |rate_mbit, metric| book.value(BENCH, &case_name("auto", rate_mbit, steps), metric);
    let percents = |metric| Some(listed(all(RATES_MBIT.map(|rate| at(rate, metric)))?.map(percent)));
    let over = |rate| {
        let figures = compared(book, "auto", rate, steps);
        figures.iter().find(|figure| figure.metric == "over_dense").map(|figure| figure.value)
    };
    let over = listed(all(RATES_MBIT.map(over))?.map(|over| format!("{over:+.1} %")));
    Some(format!(
        "A whole run of {steps} steps with `auto`, warm-up included, keeps {} of local speed over links of {} Mbit/s for ten million parameters ({} bits for each parameter and step), and ends with a loss {over} from that of `dense` at equal tokens. \
         Its steady pace is {}.",
        percents("whole_run_share")?,
        listed(RATES_MBIT.map(|rate| rate.to_string())),
        listed(RATES_MBIT.map(|rate| figure(bits(rate)))),
        percents("steady_share")?,
    ))
}

/// Returns all, or `None`.
fn all(values: [Option<f64>; 3]) -> Option<[f64; 3]> {
    let [Some(a), Some(b), Some(c)] = values else { return None };
    Some([a, b, c])
}

fn listed([a, b, c]: [String; 3]) -> String {
    format!("{a}, {b} and {c}")
}

fn percent(share: f64) -> String {
    format!("{:.1} %", 100.0 * share)
}

fn row(book: &Book, method: &str, rate_mbit: f64, steps: u64) -> Option<[String; HEAD.len()]> {
    let case = case_name(method, rate_mbit, steps);
    if book.case(BENCH, &case).next().is_none() {
        // Measured if a run of this length without a link exists.
        reference_loss(book, method::reference(method), steps)?;
        let shorter = shorter_over_the_limit(book, method, rate_mbit, steps)?;
        let mut row = <[String; HEAD.len()]>::default();
        (row[0], row[1]) = (method.to_owned(), format!("over the limit in {shorter} steps"));
        return Some(row);
    }
    let value = |metric| book.value(BENCH, &case, metric);
    let or_nothing = Option::unwrap_or_default;
    let derived = compared(book, method, rate_mbit, steps);
    let derived = |metric| derived.iter().find(|figure| figure.metric == metric).map(|figure| figure.value);
    let share = value("whole_run_share").map(percent);
    let at_most = value("whole_run_share_at_most").zip(value("share_so_far"));
    let at_most =
        at_most.map(|(most, so_far)| format!("at most {} ({} so far)", percent(most), percent(so_far)));
    let to_loss = derived("time_to_loss_share").map(percent);
    let to_loss = to_loss
        .or_else(|| derived("time_to_loss_share_at_most").map(|most| format!("at most {}", percent(most))))
        .or_else(|| {
            derived("time_to_loss_share_at_least").map(|least| format!("at least {}", percent(least)))
        });
    Some([
        method.to_owned(),
        or_nothing(share.or(at_most)),
        or_nothing(to_loss),
        or_nothing(value("loss").map(|loss| format!("{loss:.3}"))),
        or_nothing(derived("over_dense").map(|over| format!("{over:+.1} %"))),
        or_nothing(value("steady_share").map(percent)),
        or_nothing(value("bits_sent").map(figure)),
        or_nothing(value("bits_on_the_wire").map(figure)),
    ])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::figures::Figure;

    #[test]
    fn rows_say_what_was_measured_and_which_figures_are_bounds() {
        let mut book = Book::open(None).unwrap();
        assert_eq!(whole(&book), None);
        let mut add = |case: &str, figures: &[(&'static str, f64)]| {
            let figures: Vec<_> =
                figures.iter().map(|&(metric, value)| Figure { metric, value, unit: "" }).collect();
            book.add(BENCH, case, &figures).unwrap();
        };
        add("dense without a link, 1500 steps", &[("loss", 1.5)]);
        let auto = [
            ("whole_run_share", 0.5),
            ("steady_share", 0.9),
            ("loss", 1.53),
            ("bits_sent", 0.8),
            ("bits_on_the_wire", 1.0),
            ("seconds", 150.0),
            ("local_step_s", 0.05),
        ];
        add(&case_name("auto", 10.0, 1500), &auto);
        let dense = [("over_the_limit_of", 900.0), ("whole_run_share_at_most", 0.08), ("share_so_far", 0.02)];
        add(&case_name("dense", 10.0, 1500), &dense);
        let rows = |text: &str| {
            let lines = text.lines().filter(|line| line.starts_with("| ") && !line.contains("---"));
            lines.filter(|line| !line.starts_with("| method")).map(str::to_owned).collect::<Vec<_>>()
        };
        let text = whole(&book).unwrap();
        let shorter = [
            "| auto | 50.0 % | at most 50.0 % | 1.530 | +2.0 % | 90.0 % | 0.800 | 1.00 |",
            "| dense | at most 8.0 % (2.0 % so far) |  |  |  |  |  |  |",
        ];
        assert_eq!(rows(&text), shorter, "{text}");
        assert!(text.starts_with("1500 steps at 10 Mbit/s (0.670 bits"), "{text}");
        let loss = Figure { metric: "loss", value: 1.25, unit: "" };
        book.add(BENCH, "dense without a link, 6000 steps", &[loss]).unwrap();
        let [auto, dense] = shorter;
        let left_out = "| dense | over the limit in 1500 steps |  |  |  |  |  |  |";
        assert_eq!(rows(&whole(&book).unwrap()), [auto, dense, left_out]);
    }

    #[test]
    fn the_sentence_on_auto_wants_all_three_links() {
        let mut book = Book::open(None).unwrap();
        let figure = |metric, value| Figure { metric, value, unit: "" };
        book.add(BENCH, "dense without a link, 1500 steps", &[figure("loss", 1.5)]).unwrap();
        let mut add = |rate, share, loss| {
            assert_eq!(headline(&book, 1500), None);
            let figures = [
                figure("whole_run_share", share),
                figure("steady_share", 0.9),
                figure("loss", loss),
                figure("seconds", 100.0),
                figure("local_step_s", 0.05),
            ];
            book.add(BENCH, &case_name("auto", rate, 1500), &figures).unwrap();
        };
        add(100.0, 0.75, 1.5);
        add(10.0, 0.5, 1.485);
        add(1.0, 0.125, 1.53);
        let told = headline(&book, 1500).unwrap();
        assert!(told.contains("keeps 75.0 %, 50.0 % and 12.5 % of local speed"), "{told}");
        assert!(
            told.contains("100, 10 and 1 Mbit/s") && told.contains("(6.70, 0.670 and 0.0670 bits"),
            "{told}"
        );
        assert!(told.contains("a loss +0.0 %, -1.0 % and +2.0 % from"), "{told}");
        assert!(told.ends_with("Its steady pace is 90.0 %, 90.0 % and 90.0 %."), "{told}");
    }
}
