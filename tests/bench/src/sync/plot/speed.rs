//! Share of local speed over the rate of the link: a line per method.

use anyhow::Result;
use plotters::coord::ranged1d::Ranged;
use plotters::coord::types::RangedCoordf64;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::labels::{SIZE_PX, spread};
use super::palette::{self, GRID, INK, OURS, SURFACE, THEIRS};
use crate::sync::book::Book;
use crate::sync::method;
use crate::sync::speed::{BENCH, parse_case};

const SIZE: (u32, u32) = (860, 480);
/// Width of the names, beside the last points.
const NAMES_PX: u32 = 190;
/// From the last point to its name.
const LEADER_PX: i32 = 28;

struct Line {
    name: &'static str,
    colour: RGBColor,
    is_ours: bool,
    /// Mbit/s and share, by rate.
    points: Vec<(f64, f64)>,
}

/// Returns `None` with fewer than two rates.
pub fn picture(book: &Book) -> Result<Option<String>> {
    let lines = lines(book);
    let rates = lines.iter().flat_map(|line| line.points.iter().map(|(rate, _)| *rate));
    let (least, most) =
        rates.fold((f64::INFINITY, 0.0_f64), |(least, most), rate| (least.min(rate), most.max(rate)));
    if least >= most {
        return Ok(None);
    }
    let mut svg = String::new();
    draw(&lines, least..most, SVGBackend::with_string(&mut svg, SIZE))?;
    Ok(Some(palette::with_dark(&svg)))
}

fn lines(book: &Book) -> Vec<Line> {
    let ours = method::presets().into_iter().zip(OURS).map(|(method, tone)| (method.name, tone, true));
    let theirs = method::PYTORCH.map(|(name, ..)| (name, THEIRS, false));
    ours.chain(theirs)
        .map(|(name, tone, is_ours)| {
            let shares = book.bench(BENCH).filter(|line| line.metric == "share_of_local_speed");
            let points = shares.filter_map(|line| {
                let (method, rate) = parse_case(&line.case)?;
                (method == name).then_some((rate, line.value))
            });
            let mut points: Vec<_> = points.collect();
            points.sort_by(|a, b| a.0.total_cmp(&b.0));
            Line { name, colour: tone.colour(), is_ours, points }
        })
        .filter(|line| !line.points.is_empty())
        .collect()
}

fn draw(lines: &[Line], rates: std::ops::Range<f64>, backend: SVGBackend<'_>) -> Result<()> {
    let root = backend.into_drawing_area();
    root.fill(&SURFACE.colour())?;
    let highest = lines.iter().flat_map(|line| &line.points).map(|(_, share)| *share).fold(1.05, f64::max);
    let mut chart = ChartBuilder::on(&root)
        .margin(16)
        .margin_right(NAMES_PX)
        .x_label_area_size(46)
        .y_label_area_size(84)
        .build_cartesian_2d((rates.start * 0.9..rates.end * 1.1).log_scale(), 0.0..highest)?;
    let words = ("sans-serif", SIZE_PX).into_font().color(&INK.colour());
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.colour())
        .axis_style(INK.colour())
        .label_style(words.clone())
        .axis_desc_style(words)
        .x_desc("rate of the link, Mbit/s (50 ms round trip, 0.1 % loss)")
        .y_desc("share of local speed")
        .x_label_formatter(&|rate| format!("{rate}"))
        .y_label_formatter(&|share| format!("{:.0} %", share * 100.0))
        .draw()?;
    for line in lines {
        let style = ShapeStyle::from(line.colour).stroke_width(2);
        let points = line.points.iter().copied();
        if line.is_ours {
            chart.draw_series(std::iter::once(PathElement::new(points.collect::<Vec<_>>(), style)))?;
        } else {
            chart.draw_series(DashedLineSeries::new(points, 6, 4, style))?;
        }
        chart.draw_series(line.points.iter().map(|point| Circle::new(*point, 3, line.colour.filled())))?;
    }
    name(lines, &root, &chart)?;
    root.present()?;
    Ok(())
}

/// Draws the names, in the order of the last points, with a leader to each.
fn name<X: Ranged<ValueType = f64>>(
    lines: &[Line],
    root: &DrawingArea<SVGBackend<'_>, plotters::coord::Shift>,
    chart: &ChartContext<'_, SVGBackend<'_>, Cartesian2d<X, RangedCoordf64>>,
) -> Result<()> {
    let mut ends: Vec<_> =
        lines.iter().filter_map(|line| Some((chart.backend_coord(line.points.last()?), line))).collect();
    ends.sort_by_key(|((_, y), _)| *y);
    let (across, down) = chart.plotting_area().get_pixel_range();
    let wanted: Vec<i32> = ends.iter().map(|((_, y), _)| *y).collect();
    for (height, ((x, y), line)) in spread(&wanted, down.end).into_iter().zip(ends) {
        let left = across.end + LEADER_PX;
        let leader = ShapeStyle::from(line.colour).stroke_width(1);
        root.draw(&PathElement::new(vec![(x + 4, y), (left - 4, height)], leader))?;
        let style = ("sans-serif", SIZE_PX).into_font().color(&line.colour);
        root.draw(&Text::new(line.name, (left, height), style.pos(Pos::new(HPos::Left, VPos::Center))))?;
    }
    Ok(())
}
