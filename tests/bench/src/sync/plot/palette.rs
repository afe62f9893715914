//! Colours, with their counterparts for dark mode.

use plotters::style::RGBColor;

/// A colour on a light page, and on a dark one.
#[derive(Clone, Copy)]
pub struct Tone {
    light: RGBColor,
    dark: RGBColor,
}

const fn tone(light: u32, dark: u32) -> Tone {
    Tone { light: rgb(light), dark: rgb(dark) }
}

const fn rgb(hex: u32) -> RGBColor {
    RGBColor((hex >> 16) as u8, (hex >> 8) as u8, hex as u8)
}

pub const SURFACE: Tone = tone(0xff_ff_ff, 0x16_18_1d);
pub const INK: Tone = tone(0x22_22_22, 0xe6_e6_e6);
pub const GRID: Tone = tone(0xdd_dd_dd, 0x35_39_42);
/// Our methods, `auto` first. All have a contrast of at least 3 to the surface.
pub const OURS: [Tone; 10] = [
    tone(0xd5_42_00, 0xff_8f_4a),
    tone(0x49_50_57, 0xdf_e3_e7),
    tone(0x1c_7e_d6, 0x6c_b4_ee),
    tone(0x2b_8a_3e, 0x6b_d1_7f),
    tone(0x70_48_e8, 0xb1_97_fc),
    tone(0x8d_55_24, 0xd2_a6_79),
    tone(0x0b_72_85, 0x3b_c9_db),
    tone(0x7a_74_00, 0xd6_cf_4c),
    tone(0xc2_25_5c, 0xf7_83_ac),
    tone(0x36_4f_c7, 0x91_a7_ff),
];
/// References.
pub const THEIRS: Tone = tone(0x86_8e_96, 0x9a_a1_a8);

impl Tone {
    /// Returns the colour as drawn.
    pub fn colour(self) -> RGBColor {
        self.light
    }
}

/// Adds a style sheet for dark mode. It finds elements by their colour, so tones differ.
pub fn with_dark(svg: &str) -> String {
    let all = [SURFACE, INK, GRID, THEIRS].into_iter().chain(OURS);
    let rules: String = all
        .map(|Tone { light, dark }| {
            let (light, dark) = (hex(light), hex(dark));
            format!("[fill=\"{light}\"]{{fill:{dark}}}[stroke=\"{light}\"]{{stroke:{dark}}}\n")
        })
        .collect();
    let style = format!("<style>@media (prefers-color-scheme: dark) {{\n{rules}}}</style>\n");
    match svg.find(">\n") {
        Some(end_of_head) => {
            let (head, rest) = svg.split_at(end_of_head + 2);
            format!("{head}{style}{rest}")
        }
        None => svg.to_owned(),
    }
}

fn hex(RGBColor(r, g, b): RGBColor) -> String {
    format!("#{r:02X}{g:02X}{b:02X}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_two_tones_share_a_colour_by_which_they_are_found() {
        let mut found: Vec<_> =
            [SURFACE, INK, GRID, THEIRS].iter().chain(&OURS).map(|tone| hex(tone.light)).collect();
        let count = found.len();
        found.sort_unstable();
        found.dedup();
        assert_eq!(found.len(), count);
    }
}
