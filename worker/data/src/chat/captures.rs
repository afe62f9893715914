//! Variables from outside in macros and call blocks. The engine captures those that it finds in their bodies. It overlooks some (minijinja 3.1), which would be undefined
//! without a word: sliced ones (`text[1:]`), those in arguments of `{% filter %}` and `{% set x | filter %}`, and one that is set from itself.

use std::collections::BTreeSet;

/// Tags whose bodies are closures, and the tags that end them.
const CLOSURES: [(&str, &str); 3] =
    [("macro", "endmacro"), ("call", "endcall"), ("generation", "endgeneration")];
/// Words of expressions that are no variables, and variables of the engine.
const WORDS: [&str; 11] = ["and", "caller", "else", "if", "in", "is", "loop", "not", "or", "self", "super"];

/// A macro, call block or generation block.
struct Closure<'a> {
    end: &'static str,
    /// Where its body begins.
    body: usize,
    /// The sign for white space behind its tag.
    sign: &'a str,
    names: BTreeSet<&'a str>,
}

/// Returns the template with a condition at the start of each closure that is never met, and names all variables of its body: so the engine captures them. No text and no
/// white space changes.
pub(super) fn with_captures(template: &str) -> String {
    let (mut open, mut done): (Vec<Closure<'_>>, Vec<Closure<'_>>) = (Vec::new(), Vec::new());
    let mut at = 0;
    while let Some(tag) = next_tag(template, at) {
        at = tag.end;
        let mut inner = names(tag.inner).peekable();
        let word = inner.next_if(|_| tag.is_block).unwrap_or_default();
        if word == "raw" {
            at += template[at..].find("endraw").unwrap_or(0);
        }
        if open.last().is_some_and(|closure| closure.end == word) {
            done.extend(open.pop());
            continue;
        }
        let variables: Vec<&str> = inner.filter(|name| !WORDS.contains(name)).collect();
        open.iter_mut().for_each(|closure| closure.names.extend(&variables));
        if let Some((_, end)) = CLOSURES.iter().find(|(begin, _)| *begin == word) {
            open.push(Closure { end, body: tag.end, sign: tag.sign, names: BTreeSet::new() });
        }
    }
    done.retain(|closure| !closure.names.is_empty());
    done.sort_by_key(|closure| closure.body);
    let (mut out, mut written) = (String::with_capacity(template.len()), 0);
    for Closure { body, sign, names, .. } in &done {
        let names = names.iter().copied().collect::<Vec<_>>().join(", ");
        out.push_str(&template[written..*body]);
        out.push_str(&format!("{{% if false and [{names}] %}}{{% endif {sign}%}}"));
        written = *body;
    }
    out + &template[written..]
}

struct Tag<'a> {
    is_block: bool,
    /// Between its braces, without signs for white space.
    inner: &'a str,
    /// The sign at its end.
    sign: &'a str,
    /// Index behind it.
    end: usize,
}

/// Returns the next tag or expression; comments are passed over.
fn next_tag(template: &str, mut at: usize) -> Option<Tag<'_>> {
    loop {
        let start = at + template[at..].find('{')?;
        let closing = match template.as_bytes().get(start + 1) {
            Some(b'%') => "%}",
            Some(b'{') => "}}",
            Some(b'#') => {
                at = start + 2 + template[start + 2..].find("#}")? + 2;
                continue;
            }
            _ => {
                at = start + 1;
                continue;
            }
        };
        let inner = &template[start + 2..];
        let length = end_of(inner, closing)?;
        let inner = inner[..length].trim_start_matches(['-', '+']);
        let plain = inner.trim_end_matches(['-', '+']);
        let (sign, end) = (&inner[plain.len()..], start + 2 + length + closing.len());
        return Some(Tag { is_block: closing == "%}", inner: plain, sign, end });
    }
}

/// Returns the place of the end of a tag, outside quotes and braces of its own.
fn end_of(inner: &str, closing: &str) -> Option<usize> {
    let mut open = 0_usize;
    for (at, character) in outside_texts(inner) {
        if open == 0 && inner[at..].starts_with(closing) {
            return Some(at);
        }
        match character {
            '{' => open += 1,
            '}' => open = open.saturating_sub(1),
            _ => {}
        }
    }
    None
}

/// Returns the characters outside quotes, with their places.
fn outside_texts(inner: &str) -> impl Iterator<Item = (usize, char)> {
    let (mut quote, mut is_escaped) = (None, false);
    inner.char_indices().filter(move |(_, character)| {
        let is_outside = quote.is_none();
        match quote {
            _ if is_escaped => is_escaped = false,
            Some(_) if *character == '\\' => is_escaped = true,
            Some(open) if *character == open => quote = None,
            None if matches!(character, '\'' | '"') => quote = Some(*character),
            _ => {}
        }
        is_outside && quote.is_none()
    })
}

/// Returns the names in a tag, but for attributes.
fn names(inner: &str) -> impl Iterator<Item = &str> {
    let mut plain = vec![b' '; inner.len()];
    for (at, character) in outside_texts(inner).filter(|(_, character)| character.is_ascii()) {
        plain[at] = character as u8;
    }
    let is_of_name = |byte: &u8| byte.is_ascii_alphanumeric() || *byte == b'_';
    let (mut found, mut at) = (Vec::new(), 0);
    while let Some(skipped) = plain[at..].iter().position(is_of_name) {
        let start = at + skipped;
        at = plain[start..].iter().position(|byte| !is_of_name(byte)).map_or(plain.len(), |end| start + end);
        let is_attribute = plain[..start].trim_ascii_end().ends_with(b".");
        if !is_attribute && !plain[start].is_ascii_digit() {
            found.push(&inner[start..at]);
        }
    }
    found.into_iter()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn closures_begin_with_the_names_in_their_bodies() {
        for (template, expected) in [
            (
                "{%- call __generation() -%}\n{{ parts[-1:]|join('it\\'s x') }}{%- endcall -%}",
                "{%- call __generation() -%}{% if false and [join, parts] %}{% endif -%}\n{{ parts[-1:]|join('it\\'s x') }}{%- endcall -%}",
            ),
            (
                "{% macro f(a) %}{% filter replace('a', sep) %}{{ a.b . c }}{# {{ d }} #}{% endfilter %}{% endmacro %}{{ e }}",
                "{% macro f(a) %}{% if false and [a, replace, sep] %}{% endif %}{% filter replace('a', sep) %}{{ a.b . c }}{# {{ d }} #}{% endfilter %}{% endmacro %}{{ e }}",
            ),
            (
                "{% call f() %}{% macro g() %}{{ x[1:] }}{% endmacro %}{% endcall %}",
                "{% call f() %}{% if false and [g, x] %}{% endif %}{% macro g() %}{% if false and [x] %}{% endif %}{{ x[1:] }}{% endmacro %}{% endcall %}",
            ),
            ("{% macro f() %}'{% endmacro %}", "{% macro f() %}'{% endmacro %}"),
            (
                "{% macro f() %}{{ {'a': {'b': 1}} ~ x[1:] }}{% raw %}{{ it's {% endraw %}{{ call[1:] if not y else z }}{% endmacro %}",
                "{% macro f() %}{% if false and [call, x, y, z] %}{% endif %}{{ {'a': {'b': 1}} ~ x[1:] }}{% raw %}{{ it's {% endraw %}{{ call[1:] if not y else z }}{% endmacro %}",
            ),
        ] {
            assert_eq!(with_captures(template), expected);
        }
        for template in
            ["", "{", "{{", "{{ x[1:] }}", "{% call", "{% endmacro %}", "{% macro f() %}{{ 'x", "{#{#"]
        {
            assert_eq!(with_captures(template), template);
        }
    }
}
