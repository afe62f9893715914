//! Small closed sets of values.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Loss of a number format, as far as configurations depend on it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loss {
    /// None.
    Nothing,
    /// Low bits: the loss is small relative to the value.
    LowBits,
    /// Rounding to one of few levels, with one on either side of every value: unbiased rounding is possible.
    Levels,
    /// Rounding to a mean of many values, beyond which no level exists: the loss is as large as the value and
    /// must wait for the next update.
    Means,
}

/// Declares the number formats of configurations: `Variant = "name", loss;`. The rest of a format is in the
/// codec's file.
macro_rules! value_formats {
    ($($(#[$doc:meta])* $format:ident = $name:literal, $loss:ident;)*) => {
        /// Representation of an update's values on the wire. Scales and levels are bf16.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
        pub enum ValueFormat {
            $($(#[$doc])* #[serde(rename = $name)] $format,)*
        }

        impl ValueFormat {
            /// Every format.
            pub const ALL: [Self; [$($name),*].len()] = [$(Self::$format),*];

            /// Returns the name in configurations and logs.
            #[must_use]
            pub const fn name(self) -> &'static str {
                match self {
                    $(Self::$format => $name,)*
                }
            }

            /// Returns its loss.
            #[must_use]
            pub const fn loss(self) -> Loss {
                match self {
                    $(Self::$format => Loss::$loss,)*
                }
            }
        }
    };
}

value_formats! {
    /// IEEE 754 single precision, lossless.
    F32 = "f32", Nothing;
    /// bfloat16, to nearest even, saturating.
    Bf16 = "bf16", LowBits;
    /// IEEE 754 half precision, to nearest even, saturating at ±65504.
    F16 = "f16", LowBits;
    /// ±127 steps of the absolute maximum of each 128 values.
    Int8 = "int8", Levels;
    /// ±7 steps of the absolute maximum of each 128 values.
    Int4 = "int4", Levels;
    /// Sign and three exponent bits: zero, or s·2^(c−7), c = 1..7. s is the absolute maximum of each 128 values (arXiv 2501.18512).
    E3M0 = "e3m0", Levels;
    /// Sign and one of two levels per chunk: means of the smaller and the larger magnitudes (arXiv 2508.15706, with Lloyd's border).
    TwoBit = "2bit", Means;
    /// Sign, with the mean magnitude of each chunk.
    Sign = "1bit", Means;
    /// 16 levels for normally distributed values, within ± the absolute maximum of each 128 values (arXiv 2305.14314). Loses a third less than `int4` on
    /// these.
    Nf4 = "nf4", Levels;
}

impl ValueFormat {
    /// Whether it is lossless, bit for bit.
    #[must_use]
    pub fn is_exact(self) -> bool {
        self.loss() == Loss::Nothing
    }

    /// Whether a value can be rounded to one of two adjacent levels with the value as expectation.
    #[must_use]
    pub fn rounds_at_random(self) -> bool {
        self.loss() == Loss::Levels
    }

    /// Whether the loss is as large as the values.
    #[must_use]
    pub fn sends_means(self) -> bool {
        self.loss() == Loss::Means
    }

    /// Returns the names of the formats that satisfy the predicate, as in a sentence: "f32, bf16 and f16".
    #[must_use]
    pub fn names_of(is_meant: impl Fn(Self) -> bool) -> String {
        let names: Vec<_> =
            Self::ALL.into_iter().filter(|&format| is_meant(format)).map(Self::name).collect();
        match names.split_last() {
            Some((last, rest)) if !rest.is_empty() => format!("{} and {last}", rest.join(", ")),
            _ => names.concat(),
        }
    }
}

impl fmt::Display for ValueFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Rounding of a value to its format's levels.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Rounding {
    /// The nearest level.
    #[default]
    Nearest,
    /// One of the two neighbouring levels, unbiased (arXiv 1610.02132).
    Stochastic,
}

/// Number format of forward and backward passes; parameters and optimiser state stay in f32.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Precision {
    /// IEEE binary32.
    #[default]
    F32,
    /// bfloat16 activations and weights, f32 master parameters.
    Bf16,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_in_a_configuration_is_the_name_in_a_log() {
        for format in ValueFormat::ALL {
            assert_eq!(toml::Value::try_from(format).unwrap().as_str(), Some(format.name()));
        }
    }

    #[test]
    fn names_are_listed_as_in_a_sentence() {
        assert_eq!(ValueFormat::names_of(ValueFormat::sends_means), "2bit and 1bit");
        assert_eq!(ValueFormat::names_of(ValueFormat::is_exact), "f32");
        assert_eq!(ValueFormat::names_of(|_| false), "");
        assert!(ValueFormat::names_of(|_| true).starts_with("f32, bf16, f16, "));
    }

    #[test]
    fn the_book_s_table_has_every_format() {
        let book =
            std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/book/src/strategies.md"))
                .unwrap();
        let (_, table) = book.split_once("## Number formats").unwrap();
        let (table, _) = table.split_once("\n## ").unwrap();
        let rows: String = table.lines().filter(|line| line.starts_with("| `")).collect();
        for format in ValueFormat::ALL {
            assert!(rows.contains(&format!("`{format}`")), "{format}");
        }
    }
}
