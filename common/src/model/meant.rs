//! Matching of products by patterns.

use super::ModelSpec;
use crate::config::SparseBackwardConfig;

impl SparseBackwardConfig {
    /// Whether the product with this weight is included.
    #[must_use]
    pub fn includes(&self, spec: &ModelSpec, weight: &str) -> bool {
        self.layers.iter().any(|pattern| is_meant(spec, pattern, weight))
    }
}

pub(crate) fn is_meant(spec: &ModelSpec, pattern: &str, weight: &str) -> bool {
    // The output projection differs from the layers: most of its columns, which are tokens, have next to no
    // gradient, so `*` does not include it.
    if weight == spec.output_projection() { pattern == weight } else { matches(pattern, weight) }
}

/// Whether the pattern matches the text; `*` matches any characters, and `?` any one.
pub(super) fn matches(pattern: &str, text: &str) -> bool {
    let (pattern, text) = (pattern.as_bytes(), text.as_bytes());
    let (mut at, mut read) = (0, 0);
    // Position after the last `*`, and the end of its match.
    let mut retry = None;
    while read < text.len() {
        match pattern.get(at) {
            Some(b'*') => {
                at += 1;
                retry = Some((at, read));
            }
            Some(&byte) if byte == b'?' || byte == text[read] => {
                at += 1;
                read += 1;
            }
            _ => {
                let Some((behind, end)) = retry else { return false };
                (at, read) = (behind, end + 1);
                retry = Some((behind, end + 1));
            }
        }
    }
    pattern[at..].iter().all(|&byte| byte == b'*')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_as_those_of_a_shell() {
        for (pattern, text, expected) in [
            ("", "", true),
            ("*", "", true),
            ("?", "", false),
            ("a*b*c", "a.b.b.c", true),
            ("a*b*c", "a.b.b", false),
            ("*.weight", "h.weight.weight", true),
            ("h.?.w", "h.10.w", false),
            ("h.**", "h.10.w", true),
            ("h", "h.10.w", false),
        ] {
            assert_eq!(matches(pattern, text), expected, "{pattern} and {text}");
        }
    }
}
