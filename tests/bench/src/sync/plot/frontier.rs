//! Loss over dense against bits on the wire, of whole runs: one point per method, `auto` as a line over its links.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::labels::{Area, SIZE_PX, beside};
use super::palette::{self, GRID, INK, OURS, SURFACE, THEIRS};
use crate::sync::book::Book;
use crate::sync::method::{self, PYTORCH};
use crate::sync::whole::{BENCH, RATES_MBIT, STEPS, case_name, compared};

const SIZE: (u32, u32) = (860, 500);
const LENGTH: u64 = STEPS[1];
/// The methods with a point for each link: others send the same over all.
const FOLLOWING: [&str; 2] = ["auto", "auto with muon"];
/// Worse ones are drawn at the upper edge, with their figure.
const OVER_MAX: f64 = 0.10;

struct Method {
    name: String,
    bits: f64,
    /// As a share of the loss of dense with the same optimiser.
    over: f64,
}

/// Draws the longest runs; `None` without at least two methods.
pub fn picture(book: &Book) -> Result<Option<String>> {
    let methods = methods(book);
    if methods.len() < 2 {
        return Ok(None);
    }
    let mut svg = String::new();
    draw(&methods, SVGBackend::with_string(&mut svg, SIZE))?;
    Ok(Some(palette::with_dark(&svg)))
}

fn methods(book: &Book) -> Vec<Method> {
    let presets = method::presets();
    let ours = presets.iter().map(|method| method.name);
    let ours = ours.filter(|name| FOLLOWING.contains(name) || !name.starts_with(FOLLOWING[0]));
    ours.chain(PYTORCH.map(|(name, ..)| name)).flat_map(|name| points(book, name)).collect()
}

fn points(book: &Book, name: &str) -> Vec<Method> {
    let follows = FOLLOWING.contains(&name);
    let point = |rate_mbit| {
        let bits = book.value(BENCH, &case_name(name, rate_mbit, LENGTH), "bits_on_the_wire")?;
        let figures = compared(book, name, rate_mbit, LENGTH);
        let over = figures.iter().find(|figure| figure.metric == "over_dense")?.value / 100.0;
        let name = if follows { format!("{name}, {rate_mbit} Mbit/s") } else { name.to_owned() };
        Some(Method { name, bits, over })
    };
    let links = if follows { RATES_MBIT.len() } else { 1 };
    RATES_MBIT.into_iter().filter_map(point).take(links).collect()
}

fn draw(methods: &[Method], backend: SVGBackend<'_>) -> Result<()> {
    let root = backend.into_drawing_area();
    root.fill(&SURFACE.colour())?;
    let bits = methods.iter().map(|method| method.bits);
    let (least, most) =
        bits.fold((f64::INFINITY, 0.0_f64), |(least, most), bits| (least.min(bits), most.max(bits)));
    let worst = methods.iter().map(|method| method.over).fold(0.05, f64::max).min(OVER_MAX);
    let best = methods.iter().map(|method| method.over).fold(-0.005, f64::min);
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .x_label_area_size(46)
        .y_label_area_size(84)
        .build_cartesian_2d((least / 2.0..most * 3.0).log_scale(), best - 0.015..worst * 1.08)?;
    let words = |size| ("sans-serif", size).into_font().color(&INK.colour());
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.colour())
        .axis_style(INK.colour())
        .label_style(words(SIZE_PX))
        .axis_desc_style(words(SIZE_PX + 1))
        .x_desc("on the wire from a site, bits per parameter and step")
        .y_desc("loss over dense, 6000 steps")
        .x_label_formatter(&|bits| format!("{bits}"))
        .y_label_formatter(&percent)
        .draw()?;
    let place = |method: &Method| (method.bits, method.over.min(worst));
    let mut auto: Vec<&Method> = methods.iter().filter(|method| is_auto(method)).collect();
    auto.sort_by(|a, b| a.bits.total_cmp(&b.bits));
    let auto: Vec<_> = auto.into_iter().map(place).collect();
    let line: Vec<_> = auto.iter().map(|at| chart.backend_coord(at)).collect();
    let style = ShapeStyle::from(OURS[0].colour()).stroke_width(2);
    chart.draw_series(std::iter::once(PathElement::new(auto, style)))?;
    chart.draw_series(methods.iter().map(|method| Circle::new(place(method), 5, tone(method).filled())))?;
    let (across, down) = chart.plotting_area().get_pixel_range();
    let within = Area { left: across.start, top: down.start, right: across.end, bottom: down.end };
    let points: Vec<_> =
        methods.iter().map(|method| (chart.backend_coord(&place(method)), label(method, worst))).collect();
    for (corner, (_, text)) in beside(&points, &line, within).into_iter().zip(points) {
        let style = words(SIZE_PX).pos(Pos::new(HPos::Left, VPos::Top));
        root.draw(&Text::new(text, corner, style))?;
    }
    root.present()?;
    Ok(())
}

fn is_auto(method: &Method) -> bool {
    method.name.starts_with("auto, ")
}

fn tone(method: &Method) -> RGBColor {
    let tone = if is_auto(method) {
        OURS[0]
    } else if PYTORCH.iter().any(|(name, ..)| method.name == *name) {
        THEIRS
    } else {
        OURS[2]
    };
    tone.colour()
}

fn label(method: &Method, worst: f64) -> String {
    if method.over > worst {
        format!("{} ({})", method.name, percent(&method.over))
    } else {
        method.name.clone()
    }
}

/// Zero without a sign, which rounding could give.
fn percent(share: &f64) -> String {
    let percent = (share * 100.0).round() as i64;
    if percent == 0 { "0 %".to_owned() } else { format!("{percent:+} %") }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::kit::figures::Figure;

    #[test]
    fn auto_has_a_point_for_each_link_and_others_one() {
        let mut book = Book::open(None).unwrap();
        let mut add = |case: &str, figures: &[(&'static str, f64)]| {
            let figures: Vec<_> =
                figures.iter().map(|&(metric, value)| Figure { metric, value, unit: "" }).collect();
            book.add(BENCH, case, &figures).unwrap();
        };
        add("dense without a link, 6000 steps", &[("loss", 2.0)]);
        let run = |loss, bits| {
            [("loss", loss), ("bits_on_the_wire", bits), ("seconds", 100.0), ("local_step_s", 0.01)]
        };
        for (rate, loss) in [(100.0, 1.9), (10.0, 2.0), (1.0, 2.1)] {
            add(&case_name("auto", rate, 6000), &run(loss, rate));
            add(&case_name("auto with exchanged warm-up", rate, 6000), &run(loss, rate));
            add(&case_name("diloco", rate, 6000), &run(3.0, 0.5));
        }
        add(&case_name("auto", 1.0, 1500), &run(2.0, 7.0));
        let points: Vec<_> =
            methods(&book).iter().map(|method| (label(method, OVER_MAX), method.bits)).collect();
        let auto = [(100.0, "100"), (10.0, "10"), (1.0, "1")]
            .map(|(bits, rate)| (format!("auto, {rate} Mbit/s"), bits));
        assert!(points.len() == 4 && points.contains(&("diloco (+50 %)".to_owned(), 0.5)), "{points:?}");
        assert!(auto.iter().all(|point| points.contains(point)), "{points:?}");
        assert!(picture(&book).unwrap().is_some_and(|svg| svg.contains("auto, 10 Mbit/s")));
    }
}
