//! Sources with the separator of `[data]`.

use super::{DataConfig, DataFormat, DataPlace, DataSource};

impl DataConfig {
    /// Default separator.
    pub const SEPARATOR: &str = "\n";

    /// Returns the separator of records and files.
    #[must_use]
    pub fn separator(&self) -> &str {
        self.separator.as_deref().unwrap_or(Self::SEPARATOR)
    }
}

impl DataSource {
    /// Whether the separator follows each record of its files, or each file of a plain-text pattern. A
    /// pattern counts as one whatever the number of its files, so that another file does not change existing
    /// samples.
    #[must_use]
    pub fn has_separators(&self) -> bool {
        let is_pattern = match self.place() {
            DataPlace::Path(_) => false,
            DataPlace::Glob(_) => true,
            DataPlace::Url(url) => url.is_pattern(),
        };
        let format = self.format();
        format.has_records() || is_pattern && format == DataFormat::Text
    }
}

#[cfg(test)]
mod tests {
    use super::super::read_toml;
    use super::*;

    #[test]
    fn records_have_separators_and_so_have_plain_texts_of_a_pattern() {
        for (source, has_separators) in [
            ("path = \"a.txt\"", false),
            ("url = \"https://a.example/a.txt\"", false),
            ("url = \"s3://a/a.txt\"", false),
            ("path = \"a.jsonl\"", true),
            ("path = \"a.parquet\"", true),
            ("url = \"https://a.example/a.csv\"", true),
            ("glob = \"*.jsonl\"", true),
            ("glob = \"*.txt\"", true),
            ("glob = \"a.txt\"", true),
            ("glob = \"*.csv\"\nformat = \"text\"", true),
            ("url = \"s3://a/*.txt.zst\"", true),
            ("glob = \"*.bin\"", false),
            ("glob = \"*.tar\"", false),
        ] {
            let source: DataSource = read_toml(source).unwrap();
            assert_eq!(source.has_separators(), has_separators, "{source}");
        }
    }
}
