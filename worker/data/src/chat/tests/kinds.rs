//! Against what transformers renders and marks (`tests/fixtures/make_chat_kinds.py`).

use super::*;
use crate::chat::extras::Extras;
use crate::chat::message::Message;
use crate::chat::parse_json;

#[derive(Deserialize)]
struct Kinds {
    special: BTreeMap<String, String>,
    cases: Vec<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    name: String,
    template: String,
    /// JSON as in a file.
    row: String,
    text: String,
    #[serde(default)]
    trained: Vec<String>,
}

impl Kinds {
    /// Returns those whose names begin so, and their number.
    fn read(begin: &str, count: usize) -> Self {
        let all: Self =
            serde_json::from_str(include_str!("../../../tests/fixtures/chat_kinds.json")).unwrap();
        let cases: Vec<Kind> = all.cases.into_iter().filter(|case| case.name.starts_with(begin)).collect();
        assert_eq!(cases.len(), count, "{begin}");
        Self { cases, ..all }
    }

    fn check(&self) {
        for Kind { name, template, row, text, trained: expected } in &self.cases {
            let specials = self.special.clone().into_iter().collect();
            let marked = ChatTemplate::new(template, specials, None).unwrap();
            let row = parse_json(row.as_bytes()).unwrap();
            let conversation = Conversation::read(&row, ConversationKind::Messages, None).unwrap();
            let Conversation::Messages(messages, extras) = &conversation else { panic!("{name}") };
            let rendered =
                marked.render(messages, extras, false).unwrap_or_else(|reason| panic!("{name}: {reason}"));
            assert_eq!(rendered.text, *text, "{name}");
            if expected.is_empty() {
                continue;
            }
            assert_eq!(trained(&chat(marked), &conversation).unwrap(), *expected, "{name}");
            let plain = template.replace("{% generation %}", "").replace("{% endgeneration %}", "");
            let specials = self.special.clone().into_iter().collect();
            let plain = chat(ChatTemplate::new(&plain, specials, None).unwrap());
            assert_eq!(trained(&plain, &conversation).unwrap(), *expected, "{name}, without blocks");
        }
    }
}

#[test]
fn numbers_print_as_python_prints_them() {
    Kinds::read("numbers ", 4).check();
}

#[test]
fn tests_and_filters_are_those_of_jinja_and_methods_those_of_python() {
    Kinds::read("tests, ", 3).check();
    Kinds::read("filters ", 10).check();
}

/// As jinja2 renders them: slices, filter blocks, and a variable set from itself, in generation blocks, macros and call blocks.
#[test]
fn blocks_see_the_variables_around_them() {
    let rendered = |template: &str| {
        let template = format!(
            "{{% for m in messages %}}{{% set parts = m.content.split('-') %}}{template};{{% endfor %}}"
        );
        let messages = ["a-b-c", "d-e"].map(|text| Message::plain("assistant", text.to_owned()).unwrap());
        let template = ChatTemplate::new(&template, Vec::new(), None).unwrap();
        template.render(&messages, &Extras::default(), false).unwrap().text
    };
    for (template, expected) in [
        ("{% generation %}{{ parts[-1:] | join('') }}{% endgeneration %}", "c;e;"),
        ("{% generation %}{% for p in parts[1:] %}{{ p }}{% endfor %}{% endgeneration %}", "bc;e;"),
        ("{% macro f() %}{{ parts[:1] | join('') }}{% endmacro %}{{ f() }}", "a;d;"),
        (
            "{% macro f(g) %}{{ caller() }}{% endmacro %}{% call f(1) %}{{ parts[1:] | join('+') }}{% endcall %}",
            "b+c;e;",
        ),
        (
            "{% set p = parts[0] %}{% generation %}{% filter replace('x', p) %}xy{% endfilter %}{% endgeneration %}",
            "ay;dy;",
        ),
        (
            "{% set p = parts[0] %}{% generation %}{% set q | replace('x', p) %}xy{% endset %}{{ q }}{% endgeneration %}",
            "ay;dy;",
        ),
        ("{% set p = parts[0] %}{% generation %}{% set p = p ~ '!' %}{{ p }}{% endgeneration %}", "a!;d!;"),
        ("{%- generation -%}\n {{ parts[1:] | length }}\n{%- endgeneration -%}\n", "2;1;"),
        ("{% generation %}\nx{{ parts[:1] | join('') }}\n{% endgeneration %}\n", "xa\n;xd\n;"),
    ] {
        assert_eq!(rendered(template), expected, "{template}");
    }
}

#[test]
fn line_ends_of_a_template_are_line_feeds() {
    Kinds::read("tools with ", 2).check();
    Kinds::read("chatml with ", 2).check();
}

#[test]
fn tools_and_variables_of_a_row_are_passed_to_the_template() {
    Kinds::read("tools ", 8).check();
    Kinds::read("variables ", 4).check();
}

#[test]
fn what_a_template_puts_before_an_answer_is_not_trained_on() {
    for (begin, count) in [("chatml, ", 7), ("llama, ", 3), ("no prompt, ", 3), ("empty prompt, ", 3)] {
        Kinds::read(begin, count).check();
    }
}
