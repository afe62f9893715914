//! `$(NAME)` in commands, arguments and environment values.

use std::collections::BTreeMap;

/// Expands references as the kubelet does: `$(NAME)` becomes the value of an existing variable and is
/// otherwise unchanged; `$$` becomes `$` and starts no reference (`third_party/forked/golang/expansion` in
/// Kubernetes).
#[must_use]
pub fn expand(text: &str, variables: &BTreeMap<String, String>) -> String {
    let mut expanded = String::new();
    let mut rest = text;
    while let Some((before, after)) = rest.split_once('$') {
        expanded.push_str(before);
        rest = after;
        if let Some(after) = rest.strip_prefix('$') {
            expanded.push('$');
            rest = after;
        } else if let Some((name, after)) = rest.strip_prefix('(').and_then(|rest| rest.split_once(')')) {
            match variables.get(name) {
                Some(value) => expanded.push_str(value),
                None => expanded.extend(["$(", name, ")"]),
            }
            rest = after;
        } else {
            expanded.push('$');
        }
    }
    expanded + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn references_expand_as_the_documentation_of_kubernetes_says() {
        let variables =
            BTreeMap::from([("A".to_owned(), "1".to_owned()), ("B".to_owned(), "$(A)".to_owned())]);
        let cases = [
            ("$(A)", "1"),
            ("x$(A)y$(A)", "x1y1"),
            ("$(NONE)", "$(NONE)"),
            // Values are not expanded again.
            ("$(B)", "$(A)"),
            ("$$(A)", "$(A)"),
            ("$$$(A)", "$1"),
            ("$A", "$A"),
            ("$(A", "$(A"),
            ("$", "$"),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, &variables), expected, "{text}");
        }
    }
}
