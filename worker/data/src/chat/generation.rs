//! `{% generation %}` blocks, by which a chat template marks generated text, as transformers' `AssistantTracker` reads them.

use std::ops::Range;

use minijinja::value::Kwargs;
use minijinja::{Environment, Error, State, Value};

/// Stand around generated text in the engine's output. Unicode guarantees that they are no characters, and conversations with them are refused.
pub(super) const MARKS: [char; 2] = ['\u{fdd0}', '\u{fdd1}'];

/// The function that a block calls.
const FUNCTION: &str = "__generation";

/// Returns the template with a call block in place of each generation block, and whether it has any. A call block has the same scope and the same white space.
pub(super) fn translated(template: &str) -> (String, bool) {
    let (mut out, mut rest, mut has) = (String::with_capacity(template.len()), template, false);
    while let Some(at) = rest.find("{%") {
        let (before, tag) = rest.split_at(at + 2);
        out.push_str(before);
        rest = tag;
        let Some(end) = tag.find("%}") else { break };
        let inner = tag[..end].trim_start_matches(['-', '+']);
        let (start, inner) = (end - inner.len(), inner.trim_end_matches(['-', '+']));
        let call = match inner.trim() {
            "generation" => format!(" call {FUNCTION}() "),
            "endgeneration" => " endcall ".to_owned(),
            _ => continue,
        };
        has = true;
        out.push_str(&tag[..start]);
        out.push_str(&call);
        rest = &tag[start + inner.len()..];
    }
    out.push_str(rest);
    (out, has)
}

/// Adds the function to an environment.
pub(super) fn add_to(environment: &mut Environment<'_>) {
    environment.add_function(FUNCTION, |state: &mut State<'_, '_>, named: Kwargs| {
        let caller: Value = named.get("caller")?;
        let body = caller.call(state, &[])?;
        let [start, end] = MARKS;
        Ok::<_, Error>(format!("{start}{body}{end}"))
    });
}

/// Removes the marks from a rendered text, and returns the byte ranges between them.
pub(super) fn unmarked(marked: &str) -> (String, Vec<Range<usize>>) {
    let (mut text, mut ranges, mut open) = (String::with_capacity(marked.len()), Vec::new(), Vec::new());
    for part in marked.split_inclusive(MARKS) {
        let Some(mark) = part.chars().next_back().filter(|last| MARKS.contains(last)) else {
            text.push_str(part);
            continue;
        };
        text.push_str(&part[..part.len() - mark.len_utf8()]);
        if mark == MARKS[0] {
            open.push(text.len());
        } else if let Some(start) = open.pop() {
            ranges.push(start..text.len());
        }
    }
    (text, ranges)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn generation_blocks_become_calls_with_the_same_white_space() {
        for (template, expected) in [
            ("a{% generation %}b{% endgeneration %}c", "a{% call __generation() %}b{% endcall %}c"),
            ("{%- generation -%}\n{%- endgeneration +%}", "{%- call __generation() -%}\n{%- endcall +%}"),
            ("{%generation%}{%+endgeneration%}", "{% call __generation() %}{%+ endcall %}"),
        ] {
            assert_eq!(translated(template), (expected.to_owned(), true), "{template}");
        }
        for template in ["", "{% if generation %}{% endif %}", "{{ generation }} {% generation", "{%%}"] {
            assert_eq!(translated(template), (template.to_owned(), false));
        }
    }

    #[test]
    fn marks_become_ranges_of_the_text_without_them() {
        let [start, end] = MARKS;
        let (text, ranges) = unmarked(&format!("é{start}ab{end}{start}{end}c{start}d{end}"));
        assert_eq!((text.as_str(), ranges), ("éabcd", vec![2..4, 4..4, 5..6]));
        assert_eq!(unmarked("plain"), ("plain".to_owned(), vec![]));
    }
}
