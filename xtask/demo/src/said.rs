//! Lines for people. That nobody reads them any more (`| head`) ends nothing.

use std::fmt::Display;
use std::io::{self, Write};

/// A line of output.
pub fn print(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// A line about how it goes.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
