//! `[data.image]`: preprocessing of images.
//!
//! An image of another size is scaled, preserving its proportions, until it just covers the target; the
//! excess is cropped on both sides, as torchvision's `Resize` and `CenterCrop` do together. Colours become grey by the weights of ITU-R BT.601, grey is repeated in three
//! channels, and opacity is ignored.

use serde::{Deserialize, Serialize};

use super::{ConfigError, DataFormat, DataLabels, DataPlace, DataSource};

/// Maximum pixels along either side: more than any classifier takes.
const SIDE_MAX: u32 = 1 << 12;
/// Maximum classes: a sample has two bytes for its class.
const CLASSES_MAX: u32 = 1 << 16;

/// `[data.image]`: the channels, rows and columns of every image.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageConfig {
    /// 3 (red, green, blue) or 1 (grey).
    #[serde(default = "ImageConfig::default_channels")]
    pub channels: u32,
    /// Rows of pixels.
    pub height: u32,
    /// Columns of pixels.
    pub width: u32,
    /// Classes, numbered from 0.
    pub classes: u32,
    /// Maximum random shift of training images in each direction, in pixels. Uncovered borders are black.
    #[serde(default)]
    pub shift: u32,
    /// Mirror a random half of the training images horizontally.
    #[serde(default)]
    pub flip: bool,
}

impl ImageConfig {
    const fn default_channels() -> u32 {
        3
    }

    /// Returns the number of values of an image.
    #[must_use]
    pub fn values(&self) -> u64 {
        u64::from(self.channels) * u64::from(self.height) * u64::from(self.width)
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let refused = |key, value: u32, reason: String| Err(ConfigError::value(key, value, reason));
        if !matches!(self.channels, 1 | 3) {
            return refused(
                "data.image.channels",
                self.channels,
                "must be 3 (red, green, blue) or 1 (grey)".to_owned(),
            );
        }
        for (key, value) in [("data.image.height", self.height), ("data.image.width", self.width)] {
            if !(1..=SIDE_MAX).contains(&value) {
                return refused(key, value, format!("must lie between 1 and {SIDE_MAX} pixels"));
            }
        }
        if !(2..=CLASSES_MAX).contains(&self.classes) {
            return refused(
                "data.image.classes",
                self.classes,
                format!("must lie between 2 and {CLASSES_MAX}"),
            );
        }
        let most = self.height.min(self.width) - 1;
        if self.shift > most {
            return refused(
                "data.image.shift",
                self.shift,
                format!("must be less than the shorter side: at most {most}"),
            );
        }
        Ok(())
    }
}

impl DataSource {
    /// Returns the conflict between a source and the presence or absence of `data.image`, if any.
    pub(super) fn check_images(&self, has_images: bool) -> Result<(), &'static str> {
        let format = self.format();
        match (has_images, format.is_of_images()) {
            (true, false) => {
                return Err(
                    "data.image asks for images: give it format = \"idx\", \"images\" or \"webdataset\", or leave out data.image",
                );
            }
            (false, true) => return Err("it has images: say in data.image what they are made into"),
            _ => {}
        }
        if self.labels.is_some() != (format == DataFormat::Idx) {
            return Err("labels = \"FILE\" is for format = \"idx\", which needs it");
        }
        match format {
            DataFormat::Images if self.path.is_none() => {
                Err("images have a path: that of the folder that has a folder for each class")
            }
            DataFormat::Idx => self.check_idx(),
            _ => Ok(()),
        }
    }

    /// Checks that each image file has a label file of the same kind.
    fn check_idx(&self) -> Result<(), &'static str> {
        let pair = match (self.place(), &self.labels) {
            (DataPlace::Path(_), Some(DataLabels::Path(_))) => true,
            (DataPlace::Url(images), Some(DataLabels::Url(labels))) => {
                !images.is_pattern() && !labels.is_pattern()
            }
            _ => false,
        };
        if pair {
            return Ok(());
        }
        Err(
            "idx is one file with images and one with their labels: either path and labels = \"FILE\", or url and labels = \"URL\"",
        )
    }
}

#[cfg(test)]
mod tests {
    use crate::config::{DataConfig, DataFormat, read_toml};

    const IMAGE: &str = "image = { height = 28, width = 28, classes = 10 }";

    fn parsed(text: &str) -> Result<DataConfig, String> {
        let config: DataConfig = read_toml(text).map_err(|error| error.to_string())?;
        config.check().map_err(|error| error.to_string())?;
        Ok(config)
    }

    #[test]
    fn sources_of_images_are_known_by_their_names_or_said() {
        for (source, format) in [
            ("{ path = \"train-images-idx3-ubyte.gz\", labels = \"l\" }", DataFormat::Idx),
            ("{ path = \"train-images.idx3-ubyte\", labels = \"l\" }", DataFormat::Idx),
            ("{ path = \"a\", format = \"idx\", labels = \"l\" }", DataFormat::Idx),
            ("{ url = \"https://a/t-idx3-ubyte.gz?b\", labels = \"https://a/l?b\" }", DataFormat::Idx),
            ("{ url = \"s3://a/t-idx3-ubyte\", labels = \"s3://a/l\" }", DataFormat::Idx),
            ("{ glob = \"shards/*.tar\" }", DataFormat::Webdataset),
            ("{ glob = \"shards/*.tar.gz\", field = \"kind\" }", DataFormat::Webdataset),
            ("{ url = \"https://a/b.tar\" }", DataFormat::Webdataset),
            ("{ path = \"photos\", format = \"images\" }", DataFormat::Images),
        ] {
            let config = parsed(&format!("{IMAGE}\nsources = [{source}]")).unwrap();
            assert_eq!(config.sources[0].format(), format, "{source}");
            let written = toml::to_string_pretty(&config).unwrap();
            assert_eq!(read_toml::<DataConfig>(&written).unwrap(), config, "{written}");
        }
        let config = parsed(&format!("{IMAGE}\nsources = [{{ path = \"a.tar\" }}]")).unwrap();
        let image = config.image.unwrap();
        assert_eq!((image.channels, image.shift, image.flip, image.values()), (3, 0, false, 3 * 28 * 28));
    }

    #[test]
    fn what_makes_no_sense_is_refused_with_what_would() {
        let tar = "sources = [{ path = \"a.tar\" }]";
        for (text, words) in [
            (
                format!("{IMAGE}\nsources = [{{ path = \"a.txt\" }}]"),
                "data.sources = a.txt: data.image asks for images",
            ),
            (format!("sequence_length = 8\n{tar}"), "data.sources = a.tar: it has images: say in data.image"),
            (format!("sequence_length = 8\n{IMAGE}\n{tar}"), "data.sequence_length = 8: texts are cut"),
            (format!("{IMAGE}\npath = \"a.tar\""), "data.path = a.tar: data.path is a text"),
            (
                format!("{IMAGE}\nsources = [{{ path = \"a-idx3-ubyte\" }}]"),
                "data.sources = a-idx3-ubyte: labels = \"FILE\" is for format = \"idx\", which needs it",
            ),
            (
                format!("{IMAGE}\nsources = [{{ path = \"a.tar\", labels = \"b\" }}]"),
                "data.sources = a.tar: labels",
            ),
            (
                format!("{IMAGE}\nsources = [{{ glob = \"*\", format = \"images\" }}]"),
                "data.sources = *: images have a path",
            ),
            (
                format!("{IMAGE}\nsources = [{{ url = \"https://a/b\", format = \"images\" }}]"),
                "data.sources = https://a/b: images have a path",
            ),
            (
                format!("{IMAGE}\nsources = [{{ url = \"https://a/b\", format = \"idx\", labels = \"c\" }}]"),
                "data.sources = https://a/b: idx is one file",
            ),
            (
                format!(
                    "{IMAGE}\nsources = [{{ path = \"b\", format = \"idx\", labels = \"https://a/c\" }}]"
                ),
                "data.sources = b: idx is one file",
            ),
            (
                format!("{IMAGE}\nsources = [{{ glob = \"*\", format = \"idx\", labels = \"c\" }}]"),
                "data.sources = *: idx is one file",
            ),
            (
                format!("{IMAGE}\nsources = [{{ url = \"s3://a/*-idx3-ubyte\", labels = \"s3://a/l\" }}]"),
                "data.sources = s3://a/*-idx3-ubyte: idx is one file",
            ),
            (format!("tokenizer = \"t.json\"\n{IMAGE}{tar}"), "data.tokenizer = t.json: is of texts"),
            (format!("separator = \"\"\n{IMAGE}{tar}"), "data.separator = \"\": is of texts"),
            (IMAGE.replace("28, w", "0, w") + tar, "data.image.height = 0: must lie between 1 and 4096"),
            (IMAGE.replace("= 10", "= 1") + tar, "data.image.classes = 1: must lie between 2 and 65536"),
            (IMAGE.replace("= 10", "= 10, channels = 4") + tar, "data.image.channels = 4: must be 3"),
            (
                IMAGE.replace("= 10", "= 10, shift = 28") + tar,
                "data.image.shift = 28: must be less than the shorter side",
            ),
        ] {
            let message = parsed(&text.replace("}sources", "}\nsources")).unwrap_err();
            assert!(message.starts_with(words), "{text}: {message}");
        }
    }
}
