//! Optional features of this build: their absence is reported before anything is read, and at the place of use.

use std::path::Path;

use longhaul_common::config::{DataConfig, DataFormat, DataLabels, DataPlace, DataSource};

use super::DataError;

/// An optional feature of this crate.
pub(super) struct Optional {
    is_here: bool,
    what: &'static str,
    feature: &'static str,
}

pub(super) const GZIP: Optional =
    Optional { is_here: cfg!(feature = "gzip"), what: "files of gzip (.gz)", feature: "gzip" };
pub(super) const PARQUET: Optional =
    Optional { is_here: cfg!(feature = "parquet"), what: "Parquet and Arrow files", feature: "parquet" };
pub(super) const IMAGES: Optional =
    Optional { is_here: cfg!(feature = "images"), what: "JPEG and PNG images", feature: "images" };
pub(super) const REMOTE_DATA: Optional = Optional {
    is_here: cfg!(feature = "remote-data"),
    what: "data from web servers and object storage",
    feature: "remote-data",
};
pub(super) const TOKENIZERS: Optional = Optional {
    is_here: cfg!(feature = "tokenizers"),
    what: "tokenizers other than `bytes`",
    feature: "tokenizers",
};

impl Optional {
    /// Returns the error for its absence.
    pub(super) fn missing(&self) -> DataError {
        DataError::NotBuilt { what: self.what, feature: self.feature }
    }

    fn check(&self, is_wanted: bool) -> Result<(), DataError> {
        if is_wanted && !self.is_here { Err(self.missing()) } else { Ok(()) }
    }
}

/// Refuses sources that this build cannot read.
pub(super) fn check(config: &DataConfig) -> Result<(), DataError> {
    TOKENIZERS.check(config.tokenizer != DataConfig::BYTES)?;
    config.training().iter().chain(&config.validation).try_for_each(check_source)
}

fn check_source(source: &DataSource) -> Result<(), DataError> {
    let (format, place) = (source.format(), source.place());
    PARQUET.check(matches!(format, DataFormat::Parquet | DataFormat::Arrow))?;
    IMAGES.check(matches!(format, DataFormat::Images | DataFormat::Webdataset))?;
    let labels_are_remote = matches!(source.labels, Some(DataLabels::Url(_)));
    REMOTE_DATA.check(matches!(place, DataPlace::Url(_)) || labels_are_remote)?;
    if let Some(DataLabels::Path(path)) = &source.labels {
        check_name(path)?;
    }
    match place {
        DataPlace::Path(path) => check_name(path),
        // Each found file is checked again.
        DataPlace::Glob(pattern) => check_name(Path::new(pattern)),
        DataPlace::Url(url) => check_name(Path::new(&url.shown())),
    }
}

/// Refuses a file with an unsupported compression.
pub(super) fn check_name(path: &Path) -> Result<(), DataError> {
    GZIP.check(path.extension().is_some_and(|end| end.eq_ignore_ascii_case("gz")))
}

#[cfg(test)]
mod tests {
    use longhaul_common::config::read_toml;

    use super::*;

    #[test]
    fn what_is_missing_is_named_with_its_remedy_and_only_where_it_is_wanted() {
        let missing = Optional { is_here: false, what: "wings", feature: "flight" };
        missing.check(false).unwrap();
        let said = missing.check(true).unwrap_err().to_string();
        assert!(said.contains("built without wings") && said.contains("`--features flight`"), "{said}");
    }

    #[test]
    fn a_source_is_refused_exactly_where_its_feature_is_missing() {
        for (source, is_here) in [
            ("path = \"a.parquet\"", PARQUET.is_here),
            ("path = \"a.arrow\"", PARQUET.is_here),
            ("path = \"a\"\nformat = \"images\"", IMAGES.is_here),
            ("path = \"a.tar\"\nformat = \"webdataset\"", IMAGES.is_here),
            ("url = \"https://a.example/a.txt\"", REMOTE_DATA.is_here),
            ("path = \"a.txt.gz\"", GZIP.is_here),
            ("glob = \"a/*.gz\"", GZIP.is_here),
            ("path = \"a.txt\"", true),
            ("path = \"a\"\nformat = \"idx\"\nlabels = \"b\"", true),
        ] {
            let source: DataSource = read_toml(source).unwrap();
            assert_eq!(check_source(&source).is_ok(), is_here, "{source}");
        }
    }
}
