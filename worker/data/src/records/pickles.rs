//! Python pickles of protocol 0, which consists of ASCII lines.

use super::kinds::{A_PICKLE, OF_A_PICKLE};

/// Lines to examine at the start.
const LINES_MAX: usize = 64;
/// Unambiguous starts of a list and a dictionary.
const WHOLE: [&str; 4] = ["(lp0", "(dp0", "(lp1", "(dp1"];
/// Starts of other pickles: a mark, a class, a text in either form.
const BEGINS: [char; 4] = ['(', 'c', 'V', 'S'];
/// Opcodes that store the first object in the reader's memo.
const MEMO: [&str; 4] = ["p0", "tp0", "g0", "p1"];

/// Describes a pickle; `None`: it is none.
pub(super) fn pickle(head: &[u8]) -> Option<String> {
    let end = head.iter().rposition(|byte| *byte == b'\n')?;
    let mut lines = str::from_utf8(&head[..end]).ok()?.lines();
    let first = lines.next()?;
    let is_one = WHOLE.contains(&first)
        || first.starts_with(BEGINS)
            && is_begun(first)
            && lines.take(LINES_MAX).any(|line| MEMO.contains(&line));
    is_one.then(|| format!("{A_PICKLE}: {OF_A_PICKLE}"))
}

/// Whether a line is the first of a text, a mark or the name of a module.
fn is_begun(line: &str) -> bool {
    let is_of_name = |c: char| c.is_ascii_alphanumeric() || c == '_' || c == '.';
    match line.split_at(1) {
        ("c", module) => !module.is_empty() && module.chars().all(is_of_name),
        ("(", rest) => rest.is_empty() || rest.starts_with(['I', 'F', 'L', 'N', 'V', 'S', 'c', '(']),
        ("S", quoted) => quoted.len() > 1 && quoted.starts_with(['\'', '"']) && quoted.ends_with(['\'', '"']),
        (_, _) => true,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Output of `pickle.dumps(x, 0)` in Python 3.13 and 2.7.
    #[test]
    fn pickles_of_lines_are_known_and_texts_that_begin_alike_are_not() {
        for content in [
            "(lp0\nVone\np1\naVtwo\np2\na.",
            "(dp0\nVtext\np1\nVone\np2\ns.",
            "(lp1\nS'one'\np2\na.",
            "Vit was the best of times\np0\n.",
            "S'it was the best'\np0\n.",
            "(Vone\np0\nVtwo\np1\ntp2\n.",
            "(I1\nI2\ntp0\n.",
            "c__builtin__\nset\np0\n((lp1\nVa\np2\natp3\nRp4\n.",
            "ccopy_reg\n_reconstructor\np0\n(c__main__\nA\np1\n.",
            "cnumpy.core.multiarray\n_reconstruct\np0\n(cnumpy\nndarray\np1\n.",
            "cpandas.core.frame\nDataFrame\np0\n.",
            "(F1.5\nF2.5\ntp0\n.",
        ] {
            let told = pickle(content.as_bytes()).unwrap_or_default();
            assert!(told.starts_with("a pickle of Python: load it"), "{content:?}");
        }
        for content in [
            "",
            "(lp0",
            "Very well, he said.\nAnd then he left.\n",
            "Chapter 1\np0\n",
            "call me Ishmael\np0\n",
            "(an aside)\np0\n",
            "So it goes\np0\n",
            "(lp0 is how lists begin)\n",
            "constant\nname\nvalue\n",
            "V\n2.0\n",
        ] {
            assert_eq!(pickle(content.as_bytes()), None, "{content:?}");
        }
    }
}
