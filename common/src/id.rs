//! Identifiers of runs, workers, sites, generations, rounds and fragments.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// One training job. Sixteen random bytes, displayed in hexadecimal.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct RunId(pub [u8; 16]);

/// A text that is not 32 hexadecimal digits.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
#[error("a run id is 32 hexadecimal digits")]
pub struct ParseRunIdError;

impl fmt::Display for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

impl fmt::Debug for RunId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RunId({self})")
    }
}

impl FromStr for RunId {
    type Err = ParseRunIdError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(ParseRunIdError);
        }
        let mut bytes = [0; 16];
        for (byte, pair) in bytes.iter_mut().zip(text.as_bytes().chunks_exact(2)) {
            let pair = str::from_utf8(pair).map_err(|_| ParseRunIdError)?;
            *byte = u8::from_str_radix(pair, 16).map_err(|_| ParseRunIdError)?;
        }
        Ok(RunId(bytes))
    }
}

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty), $prefix:literal) => {
        $(#[$doc])*
        #[derive(
            Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize,
        )]
        pub struct $name(pub $inner);

        impl $name {
            /// Returns the next one.
            #[must_use]
            pub fn next(self) -> Self {
                Self(self.0 + 1)
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!($prefix, "{}"), self.0)
            }
        }
    };
}

number!(
    /// One process that drives one device. Assigned by the coordinator, never reused within a run.
    WorkerId(u32), "w"
);
number!(
    /// Workers with fast links between them. The coordinator numbers sites by their names.
    SiteId(u32), "s"
);
number!(
    /// The membership version, a fence against messages under an older membership.
    Generation(u64), "g"
);
number!(
    /// One synchronisation, counted from the run's start.
    Round(u64), "r"
);
number!(
    /// A contiguous slice of the parameters: the unit of synchronisation, ownership and hashing.
    FragmentId(u32), "f"
);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_id_survives_its_text_form() {
        let id = RunId(*b"0123456789abcdef");
        assert_eq!(id.to_string().parse::<RunId>(), Ok(id));
        assert_eq!("zz".parse::<RunId>(), Err(ParseRunIdError));
        assert_eq!("é".repeat(16).parse::<RunId>(), Err(ParseRunIdError));
    }

    #[test]
    fn numbers_show_what_they_number() {
        assert_eq!(format!("{} {} {}", WorkerId(3), Generation(2).next(), FragmentId(0)), "w3 g3 f0");
    }
}
