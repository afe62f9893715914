//! Formats of source files.

use std::path::Path;

use serde::{Deserialize, Serialize};

/// Format of the records in a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum DataFormat {
    /// UTF-8 text as one document.
    Text,
    /// One JSON object per line.
    Jsonl,
    /// Comma-separated values (RFC 4180).
    Csv,
    /// Tab-separated values.
    Tsv,
    /// Apache Parquet.
    Parquet,
    /// Apache Arrow IPC files and streams.
    Arrow,
    /// Tokens of two bytes, little-endian.
    TokensU16,
    /// Tokens of four bytes, little-endian.
    TokensU32,
    /// IDX images, with labels in a second file (MNIST).
    Idx,
    /// One folder of JPEG and PNG files per class.
    Images,
    /// WebDataset tar archive: `key.jpg` (or `.jpeg`, `.png`) and `key.cls`.
    Webdataset,
}

impl DataFormat {
    /// Returns the format by a file's extension.
    #[must_use]
    pub fn of(path: &Path) -> Self {
        let extension = |path: &Path| path.extension().and_then(|end| end.to_str()).map(str::to_lowercase);
        let packed = extension(path).is_some_and(|end| matches!(end.as_str(), "gz" | "zst"));
        let name = if packed { path.with_extension("") } else { path.to_owned() };
        match extension(&name).as_deref() {
            Some("jsonl" | "ndjson" | "json") => Self::Jsonl,
            Some("csv") => Self::Csv,
            Some("tsv") => Self::Tsv,
            Some("parquet") => Self::Parquet,
            Some("arrow" | "ipc" | "feather") => Self::Arrow,
            Some("bin") => Self::TokensU16,
            Some("tar") => Self::Webdataset,
            _ if Self::is_idx(&name) => Self::Idx,
            _ => Self::Text,
        }
    }

    /// Whether it has columns.
    #[must_use]
    pub fn is_table(self) -> bool {
        matches!(self, Self::Csv | Self::Tsv | Self::Parquet | Self::Arrow)
    }

    /// Whether it is text, structured or not.
    #[must_use]
    pub fn is_text(self) -> bool {
        matches!(self, Self::Text | Self::Jsonl | Self::Csv | Self::Tsv)
    }

    /// Whether it has records with separators.
    #[must_use]
    pub fn has_records(self) -> bool {
        self == Self::Jsonl || self.is_table()
    }

    /// Whether it has tokens.
    #[must_use]
    pub fn is_of_tokens(self) -> bool {
        matches!(self, Self::TokensU16 | Self::TokensU32)
    }

    /// Whether it has images.
    #[must_use]
    pub fn is_of_images(self) -> bool {
        matches!(self, Self::Idx | Self::Images | Self::Webdataset)
    }

    /// Whether a file is named like MNIST's: `train-images-idx3-ubyte`.
    fn is_idx(path: &Path) -> bool {
        path.file_name()
            .and_then(|name| name.to_str())
            .is_some_and(|name| name.contains("-idx3-") || name.contains(".idx3-"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_format_follows_the_name_s_end_and_what_it_is_packed_with_does_not_count() {
        for (name, format) in [
            ("a.txt", DataFormat::Text),
            ("text.zst", DataFormat::Text),
            ("a.JSONL.gz", DataFormat::Jsonl),
            ("a.tsv.zst", DataFormat::Tsv),
            ("part-*.parquet", DataFormat::Parquet),
            ("a.feather", DataFormat::Arrow),
            ("a.bin", DataFormat::TokensU16),
        ] {
            assert_eq!(DataFormat::of(Path::new(name)), format, "{name}");
        }
    }
}
