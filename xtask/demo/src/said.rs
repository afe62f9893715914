//! Lines of output. A closed reader (`| head`) does not end the demo.

use std::fmt::Display;
use std::io::{self, Write};

/// Prints a line of output.
pub fn print(line: impl Display) {
    let _ = writeln!(io::stdout(), "{line}");
}

/// Prints a line about the progress.
pub fn tell(line: impl Display) {
    let _ = writeln!(io::stderr(), "{line}");
}
