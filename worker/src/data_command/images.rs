//! Images and their classes as text.

use std::collections::BTreeMap;
use std::fmt;

use anyhow::Result;
use indicatif::HumanCount;
use longhaul_common::config::{DataConfig, DataFormat, DataSource};
use longhaul_data::class_names;

/// Limit on classes listed individually.
const CLASSES_TOLD_MAX: usize = 20;
/// Maximum columns of a drawing.
const COLUMNS_MAX: usize = 48;
/// Shades from dark to bright.
const SHADES: &[u8] = b" .:-=+*#%@";

/// The number of images in each class of a source, one per line.
pub(super) struct Classes<'a> {
    names: Vec<String>,
    counts: &'a BTreeMap<u32, u64>,
}

impl<'a> Classes<'a> {
    /// With class names, if the source's folders or the run provide them.
    pub(super) fn of(
        source: &DataSource,
        config: &DataConfig,
        counts: &'a BTreeMap<u32, u64>,
    ) -> Result<Self> {
        let names = match (&source.path, source.format(), &config.classification) {
            (Some(folder), DataFormat::Images, _) => class_names(folder)?,
            (.., Some(classification)) => classification.labels.clone(),
            _ => Vec::new(),
        };
        Ok(Self { names, counts })
    }
}

impl fmt::Display for Classes<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut end = "";
        for (class, images) in self.counts.iter().take(CLASSES_TOLD_MAX) {
            let name = self.names.get(*class as usize).map(|name| format!(", {name}")).unwrap_or_default();
            write!(f, "{end}  class {class}{name}: {}", HumanCount(*images))?;
            end = "\n";
        }
        let rest = self.counts.iter().skip(CLASSES_TOLD_MAX).map(|(_, images)| *images);
        match (self.counts.len().saturating_sub(CLASSES_TOLD_MAX), rest.clone().min(), rest.max()) {
            (more, Some(fewest), Some(most)) => {
                write!(f, "{end}  {more} more, of {} to {}", HumanCount(fewest), HumanCount(most))
            }
            _ => Ok(()),
        }
    }
}

/// An image `[channels, height, width]`, drawn dark to bright in characters twice as high as wide.
pub(super) struct Drawn<'a> {
    pub(super) pixels: &'a [u8],
    pub(super) height: usize,
    pub(super) width: usize,
}

impl fmt::Display for Drawn<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let step = self.width.div_ceil(COLUMNS_MAX).max(1);
        for top in (0..self.height).step_by(2 * step) {
            for left in (0..self.width).step_by(step) {
                let bright = self.mean(top, left, step);
                write!(f, "{}", char::from(SHADES[bright * SHADES.len() / 256]))?;
            }
            writeln!(f)?;
        }
        Ok(())
    }
}

impl Drawn<'_> {
    /// The mean over all channels of a character's area.
    fn mean(&self, top: usize, left: usize, step: usize) -> usize {
        let (bottom, right) = (self.height.min(top + 2 * step), self.width.min(left + step));
        let planes = self.pixels.chunks_exact(self.height * self.width);
        let values = planes.flat_map(|plane| {
            let rows = plane.chunks_exact(self.width).skip(top).take(bottom - top);
            rows.flat_map(move |row| &row[left..right])
        });
        let (sum, count) = values.fold((0, 0), |(sum, count), value| (sum + usize::from(*value), count + 1));
        sum / usize::max(count, 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_letter_is_as_bright_as_what_it_stands_for_in_all_channels() {
        // Two channels of three rows of two.
        let pixels = [0, 255, 0, 255, 9, 9, 0, 255, 0, 255, 9, 250];
        assert_eq!(Drawn { pixels: &pixels, height: 3, width: 2 }.to_string(), " @\n +\n");
        let wide = [200; 3 * 100];
        assert_eq!(Drawn { pixels: &wide, height: 3, width: 100 }.to_string(), "#".repeat(34) + "\n");
    }

    #[test]
    fn many_classes_are_summed_up() {
        let counts = (0..100).map(|class| (class, 1000 + u64::from(class))).collect();
        let told = Classes { names: vec!["cat".to_owned()], counts: &counts }.to_string();
        assert!(told.starts_with("  class 0, cat: 1,000\n  class 1: 1,001\n"), "{told}");
        assert!(told.ends_with("\n  80 more, of 1,020 to 1,099"), "{told}");
    }
}
