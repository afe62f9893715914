//! The figures as Markdown, for the documentation, without manual copying.

use std::fmt::Write;

use crate::sync::book::Book;
use crate::sync::method;
use crate::sync::point::Point;
use crate::sync::quality::{AUTO_BITS, auto_name};
use crate::sync::reach;
use crate::sync::speed::{self, RATES_MBIT};
use crate::sync::traffic::{self, SITES};

/// Returns loss and bits of every method compared with dense, sorted by loss; `None` if there is none.
pub fn quality(book: &Book) -> Option<String> {
    let presets = method::presets().into_iter().map(|method| method.name.to_owned());
    let mut points: Vec<(String, Point)> = presets
        .chain(AUTO_BITS.map(auto_name))
        .filter_map(|name| Some((name.clone(), Point::of(book, &name)?)))
        .collect();
    points.sort_by(|(_, a), (_, b)| a.loss.total_cmp(&b.loss));
    let rows = points.iter().map(|(name, point)| {
        let over = point.over_dense.map_or_else(String::new, |over| format!("{:+.1} %", over * 100.0));
        let Point { loss, bits_sent, rate, seeds, .. } = point;
        [name.clone(), format!("{loss:.3}"), over, figure(*bits_sent), rate.to_string(), seeds.to_string()]
    });
    let head = [
        "method",
        "loss, nats",
        "over `dense`",
        "bits sent per parameter and step",
        "learning rate",
        "seeds",
    ];
    table(&head, rows)
}

/// Returns shares of local speed, a column per link.
pub fn speed(book: &Book) -> Option<String> {
    let ours = method::presets().into_iter().map(|method| method.name);
    let theirs = method::PYTORCH.iter().map(|(name, ..)| *name);
    let rows = ours.chain(theirs).filter_map(|name| {
        let cells = RATES_MBIT.map(|rate| {
            let case = speed::case_name(name, rate);
            let share = book.value(speed::BENCH, &case, "share_of_local_speed");
            let over = book.value(speed::BENCH, &case, "over_the_limit_of");
            share
                .map(|share| format!("{:.1} %", share * 100.0))
                .or(over.map(|limit| format!("not in {limit:.0} s")))
        });
        let is_known = cells.iter().any(Option::is_some);
        let cells = cells.into_iter().map(Option::unwrap_or_default);
        is_known.then(|| std::iter::once(name.to_owned()).chain(cells).collect::<Vec<_>>())
    });
    let rates = RATES_MBIT.map(|rate| format!("{rate} Mbit/s"));
    let head: Vec<&str> = std::iter::once("method").chain(rates.iter().map(String::as_str)).collect();
    table(&head, rows)
}

/// Returns bytes per site and step, a column per number of sites.
pub fn traffic(book: &Book) -> Option<String> {
    let rows = traffic::methods().into_iter().filter_map(|method| {
        let name = method.name;
        let bytes = SITES.map(|sites| {
            book.value(traffic::BENCH, &traffic::case_name(name, sites), "bytes_per_site_and_step")
        });
        let growth = book.value(traffic::GROWTH, name, "eight_sites_over_two");
        let growth = growth.map_or_else(String::new, |growth| format!("{growth:.2}"));
        let is_known = bytes.iter().any(Option::is_some);
        let cells = bytes.map(|bytes| bytes.map_or_else(String::new, |bytes| format!("{bytes:.0}")));
        is_known.then(|| std::iter::once(name.to_owned()).chain(cells).chain([growth]).collect::<Vec<_>>())
    });
    let sites = SITES.map(|sites| format!("{sites} sites"));
    let sites = sites.iter().map(String::as_str);
    let head: Vec<&str> =
        std::iter::once("bytes of a site and step").chain(sites).chain(["8 over 2"]).collect();
    table(&head, rows)
}

/// Returns the times at which presets reached the loss that PyTorch's DDP has after ten minutes.
pub fn reach(book: &Book) -> Option<String> {
    let rows = method::presets().into_iter().filter_map(|method| {
        let value = |metric| book.value(reach::BENCH, method.name, metric);
        let after = match (value("reached_after"), value("not_reached_within")) {
            (Some(after), _) => format!("{after:.0} s"),
            (None, within) => format!("not in {:.0} s", within?),
        };
        let loss = value("loss").map_or_else(String::new, |loss| format!("{loss:.3}"));
        Some([method.name.to_owned(), after, value("steps").map_or_else(String::new, figure), loss])
    });
    table(&["method", "after", "steps", "lowest loss seen, nats"], rows)
}

/// Formats rows under a header; `None` without rows.
pub(super) fn table<R: AsRef<[String]>>(head: &[&str], rows: impl Iterator<Item = R>) -> Option<String> {
    let mut text = format!("| {} |\n|{}\n", head.join(" | "), " --- |".repeat(head.len()));
    let mut is_empty = true;
    for row in rows {
        is_empty = false;
        // Writes to a string cannot fail.
        let _ = writeln!(text, "| {} |", row.as_ref().join(" | "));
    }
    (!is_empty).then_some(text)
}

/// Formats three significant digits, without an exponent.
pub(super) fn figure(value: f64) -> String {
    let digits = 2 - value.abs().max(f64::MIN_POSITIVE).log10().floor() as i32;
    format!("{value:.*}", usize::try_from(digits).unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::figures::Figure;
    use crate::sync::quality::case_name;

    #[test]
    fn rows_are_what_was_measured_and_nothing_else() {
        let mut book = Book::open(None).unwrap();
        assert_eq!([quality(&book), speed(&book), traffic(&book), reach(&book)], [None, None, None, None]);
        let mut add = |bench: &str, case: &str, figures: &[(&'static str, f64)]| {
            let figures: Vec<_> =
                figures.iter().map(|&(metric, value)| Figure { metric, value, unit: "" }).collect();
            book.add(bench, case, &figures).unwrap();
        };
        add("sync/quality", &case_name("dense", 0.005, 1), &[("loss", 2.0), ("bits_sent", 48.006)]);
        add("sync/quality", &case_name("diloco", 0.005, 1), &[("loss", 2.1), ("bits_sent", 0.0432)]);
        add(speed::BENCH, &speed::case_name("dense", 100.0), &[("share_of_local_speed", 0.1234)]);
        add(speed::BENCH, &speed::case_name("dense", 1.0), &[("over_the_limit_of", 600.0)]);
        add(reach::BENCH, "auto", &[("reached_after", 95.4), ("loss", 2.5), ("steps", 120.0)]);
        assert_eq!(
            quality(&book).unwrap().lines().skip(2).collect::<Vec<_>>(),
            [
                "| dense | 2.000 | +0.0 % | 48.0 | 0.005 | 1 |",
                "| diloco | 2.100 | +5.0 % | 0.0432 | 0.005 | 1 |"
            ]
        );
        assert_eq!(speed(&book).unwrap().lines().last().unwrap(), "| dense | not in 600 s |  | 12.3 % |  |");
        assert_eq!(reach(&book).unwrap().lines().last().unwrap(), "| auto | 95 s | 120 | 2.500 |");
    }
}
