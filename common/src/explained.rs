//! Errors formatted for display.

use std::error::Error;
use std::fmt;

/// An error and its causes, outermost first, without repetition: many errors quote their cause within a
/// sentence, and a remedy after it should stay last.
#[derive(Clone, Copy, Debug)]
pub struct Explained<'a>(pub &'a (dyn Error + 'static));

impl fmt::Display for Explained<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut said = self.0.to_string();
        let mut cause = self.0.source();
        while let Some(error) = cause {
            let words = error.to_string();
            if !said.contains(&words) {
                said = format!("{said}: {words}");
            }
            cause = error.source();
        }
        f.write_str(&said)
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    enum Failure {
        #[error("open text.txt: {source}; give it another name")]
        Quoted { source: io::Error },
        #[error("read the text")]
        Outer(#[source] Box<Failure>),
    }

    #[test]
    fn a_cause_that_is_quoted_is_not_said_again_and_others_follow_in_order() {
        let quoted = || Failure::Quoted { source: io::Error::other("no such file") };
        let text = "open text.txt: no such file; give it another name";
        assert_eq!(Explained(&quoted()).to_string(), text);
        let outer = Failure::Outer(Box::new(quoted()));
        assert_eq!(Explained(&outer).to_string(), format!("read the text: {text}"));
    }
}
