//! Long texts in windows of a model's context.

/// A part of a text's tokens in one pass of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Window {
    /// Index of its first token.
    pub start: usize,
    /// Index behind its last token.
    pub end: usize,
    /// Index in it of the first scored token.
    pub from: usize,
}

/// Divides tokens into windows such that each token but the first is scored once: as many at a time as the context has. The last window reaches back to see a whole
/// context. This is lm-evaluation-harness's rolling log-likelihood (`get_rolling_token_windows` with a context of one token).
#[must_use]
pub fn windows(tokens: usize, context: usize) -> Vec<Window> {
    let (scored, context) = (tokens.saturating_sub(1), context.max(1));
    let ends = (1..=scored.div_ceil(context)).map(|window| scored.min(window * context));
    let window = |(at, end): (usize, usize)| {
        let start = end.saturating_sub(context);
        Window { start, end: end + 1, from: at * context + 1 - start }
    };
    ends.enumerate().map(window).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_token_but_the_first_is_scored_once_and_the_last_ones_see_a_whole_context() {
        let window = |start, end, from| Window { start, end, from };
        for (tokens, context, expected) in [
            (0, 4, vec![]),
            (1, 4, vec![]),
            (2, 4, vec![window(0, 2, 1)]),
            (5, 4, vec![window(0, 5, 1)]),
            // Inputs 3 to 6, of which the last is scored; as the harness's windows of ten tokens and a context of four.
            (6, 4, vec![window(0, 5, 1), window(1, 6, 4)]),
            (11, 4, vec![window(0, 5, 1), window(4, 9, 1), window(6, 11, 3)]),
            (3, 1, vec![window(0, 2, 1), window(1, 3, 1)]),
        ] {
            assert_eq!(windows(tokens, context), expected, "{tokens} in {context}");
        }
    }
}
