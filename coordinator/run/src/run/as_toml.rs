//! A configuration within a record: its own text is the one form in which it is written and read again elsewhere.

use longhaul_common::config::RunConfig;
use serde::de::Error as _;
use serde::ser::Error as _;
use serde::{Deserialize as _, Deserializer, Serializer};

pub fn serialize<S: Serializer>(config: &RunConfig, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&config.to_toml().map_err(S::Error::custom)?)
}

pub fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<RunConfig, D::Error> {
    let text = String::deserialize(deserializer)?;
    RunConfig::parse(&text).map_err(D::Error::custom)
}
