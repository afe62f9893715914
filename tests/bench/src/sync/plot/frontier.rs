//! Loss over dense against bits sent: one point per method, `auto` as a line.

use anyhow::Result;
use plotters::prelude::*;
use plotters::style::text_anchor::{HPos, Pos, VPos};

use super::labels::{Area, SIZE_PX, beside};
use super::palette::{self, GRID, INK, OURS, SURFACE};
use crate::sync::book::Book;
use crate::sync::method::REFERENCE;
use crate::sync::point::Point;
use crate::sync::quality::{AUTO_BITS, auto_name};

const SIZE: (u32, u32) = (860, 500);
/// Worse ones are drawn at the upper edge, with their figure.
const OVER_MAX: f64 = 0.30;

struct Method {
    name: String,
    bits: f64,
    /// As a share of dense's loss.
    over: f64,
}

/// Returns `None` if no method was compared with dense.
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
    let presets = crate::sync::method::presets();
    let names = presets.iter().map(|method| method.name.to_owned()).chain(AUTO_BITS.map(auto_name));
    names
        .filter_map(|name| {
            let point = Point::of(book, &name)?;
            Some(Method { bits: point.bits_sent, over: point.over_dense?, name })
        })
        .collect()
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
        .build_cartesian_2d((least / 2.0..most * 3.0).log_scale(), best - 0.01..worst * 1.08)?;
    let words = |size| ("sans-serif", size).into_font().color(&INK.colour());
    chart
        .configure_mesh()
        .light_line_style(TRANSPARENT)
        .bold_line_style(GRID.colour())
        .axis_style(INK.colour())
        .label_style(words(SIZE_PX))
        .axis_desc_style(words(SIZE_PX + 1))
        .x_desc("sent by a site, bits per parameter and step")
        .y_desc("validation loss over dense")
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
    AUTO_BITS.iter().any(|bits| method.name == auto_name(*bits))
}

fn tone(method: &Method) -> RGBColor {
    let tone = if is_auto(method) {
        OURS[0]
    } else if method.name == REFERENCE {
        INK
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
