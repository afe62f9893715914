//! Tokenizer steps that delete characters of a text.

use std::collections::BTreeSet;

use serde::de::DeserializeOwned;
use serde_json::Value;
use tokenizers::{
    NormalizedString, Normalizer as _, NormalizerWrapper, OffsetReferential, OffsetType, PreTokenizedString,
    PreTokenizer as _, PreTokenizerWrapper,
};

use super::reach::marks_of;
use crate::unwound::caught;

/// Characters tried one by one: most alphabets, punctuation and signs, and some beyond.
const LAST: char = '\u{2fff}';
const FURTHER: &str = "、。「」あアー中文字한글！？ａ１ﬁ😀🇩𝒜";
/// Sample texts for deletions that depend on the context.
const TEXTS: [&str; 2] = [
    "One two's (three) [four] {five} <six>: 7,890.12 + 3 = x_y; \"a\" - 'b' / c\\d @e #f $g %h &i *j ~k `l` ^m |n! o?",
    "http://a.example/b?c=d&e=f\n\n- item 1\n* item 2\n\n\tif (a == b) { return; }  // end\r\n<p>text</p> [[link]] ...",
];
/// Characters of kinds that a normalizer cleans texts of.
const KINDS: [(&str, &str); 4] = [
    ("control characters", "\u{1}\u{8}\u{b}\u{1b}\u{7f}\u{8f}\u{9b}"),
    ("format characters", "\u{ad}\u{200b}\u{200d}\u{202e}\u{2060}\u{feff}"),
    ("replacement and private characters", "\u{fffd}\u{e000}\u{f8ff}"),
    ("accents and vowel signs", "\u{301}\u{308}\u{5b8}\u{64e}\u{941}\u{e35}"),
];
/// White space between letters, by kind. Word-level tokenizers make no token of plain spaces.
const GAPS: [(&str, &str); 5] = [
    (SPACES, " "),
    ("line ends", "\n\r\u{2028}\u{2029}"),
    ("tabs", "\t"),
    ("no-break spaces", "\u{a0}\u{202f}\u{2007}"),
    ("other spaces", "\u{1680}\u{2002}\u{2003}\u{2009}\u{200a}\u{3000}"),
];
const SPACES: &str = "spaces";
/// A letter with an accent, and without.
const ACCENTED: (&str, &str) = ("é", "e");
/// Characters named in a message, of a kind, and characters shown of a step.
const NAMED: usize = 5;
const NAMED_OF_KIND: usize = 3;
const SHOWN: usize = 200;

/// Key of the pre-tokenizer.
const DIVIDER: &str = "pre_tokenizer";

/// Returns a notice for each such step.
pub(super) fn notices(json: &[u8]) -> Vec<String> {
    let Ok(file) = serde_json::from_slice::<Value>(json) else { return Vec::new() };
    let marks = marks_of(json);
    let normalizers = inner(&file["normalizer"]).into_iter().filter_map(|step| {
        let kept = kept_by_normalizer(step)?;
        match step["type"] == "Replace" {
            true if step["content"] == "" => told("normalizer", step, kept, &marks),
            true => None,
            false => told_of_kinds(step, kept),
        }
    });
    let dividers = inner(&file["pre_tokenizer"]).into_iter().filter_map(|step| {
        let is_one = step["behavior"] == "Removed" || step["type"] == "CharDelimiterSplit";
        told(DIVIDER, step, is_one.then(|| kept_by_divider(step))??, &marks)
    });
    normalizers.chain(dividers).collect()
}

/// Returns the steps of a part in order.
fn inner(part: &Value) -> Vec<&Value> {
    match ["normalizers", "pretokenizers"].into_iter().find_map(|key| part.get(key)?.as_array()) {
        Some(steps) => steps.iter().flat_map(inner).collect(),
        None => vec![part],
    }
}

fn read<T: DeserializeOwned>(step: &Value) -> Option<T> {
    serde_json::from_value(step.clone()).ok()
}

type Kept = Box<dyn Fn(&str) -> Option<String>>;

/// Returns a function to the text after a normalizer.
fn kept_by_normalizer(step: &Value) -> Option<Kept> {
    let step: NormalizerWrapper = read(step)?;
    Some(Box::new(move |text| {
        let mut text = NormalizedString::from(text);
        step.normalize(&mut text).ok()?;
        Some(text.get().to_owned())
    }))
}

/// The same for a pre-tokenizer.
fn kept_by_divider(step: &Value) -> Option<Kept> {
    let step: PreTokenizerWrapper = read(step)?;
    Some(Box::new(move |text| {
        let mut text = PreTokenizedString::from(text);
        step.pre_tokenize(&mut text).ok()?;
        let pieces = text.get_splits(OffsetReferential::Original, OffsetType::Byte);
        Some(pieces.into_iter().map(|(piece, ..)| piece).collect())
    }))
}

/// Returns the kinds of white space and control characters that a step deletes between letters, alone or in a row.
fn lost_gaps(kept: &Kept) -> Vec<&'static str> {
    let is_lost = |character: char| {
        [1, 2].into_iter().any(|times| {
            let between = character.to_string().repeat(times);
            matches!(caught(|| kept(&format!("a{between}b"))), Ok(Some(kept)) if kept == "ab")
        })
    };
    let gaps = GAPS.iter().filter(|(_, characters)| characters.chars().any(is_lost));
    let (controls, characters) = KINDS[0];
    let has_lost = characters.chars().filter(|character| !character.is_whitespace()).any(is_lost);
    gaps.map(|(kind, _)| *kind).chain(has_lost.then_some(controls)).collect()
}

/// Describes the characters that a step deletes; `None`: none of those tried, or a pre-tokenizer's gaps between words.
fn told(part: &str, step: &Value, kept: Kept, marks: &[String]) -> Option<String> {
    let counts =
        |character: &char| !character.is_whitespace() && !character.is_control() && *character != '▁';
    let lost = |text: &str| -> Vec<char> {
        let Ok(Some(kept)) = caught(|| kept(text)) else { return Vec::new() };
        let mut rest = kept.chars().filter(counts).peekable();
        text.chars().filter(counts).filter(|character| rest.next_if_eq(character).is_none()).collect()
    };
    let mut found = BTreeSet::new();
    for character in ('!'..=LAST).chain(FURTHER.chars()).filter(counts) {
        found.extend(lost(character.encode_utf8(&mut [0; 4])));
    }
    if found.is_empty() {
        let marks = marks.iter().map(String::as_str);
        found.extend(marks.chain(TEXTS).flat_map(lost));
    }
    let named: Vec<String> = found.iter().take(NAMED).map(|character| format!("{character:?}")).collect();
    let more = found.len().saturating_sub(NAMED);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    let gaps = lost_gaps(&kept);
    let are_words = part == DIVIDER && gaps == [SPACES];
    let named = named.iter().map(String::as_str).chain(gaps.into_iter().filter(|_| !are_words));
    let named = named.collect::<Vec<_>>().join(", ");
    (!named.is_empty()).then(|| notice(part, step, &format!("{named}{more}")))
}

fn notice(part: &str, step: &Value, deleted: &str) -> String {
    let shown: String = step.to_string().chars().take(SHOWN).collect();
    format!(
        "a step of the tokenizer's {part} deletes characters of texts, so that no token has them: {shown} deletes {deleted}"
    )
}

/// Describes the kinds of characters that a normalizer cleans texts of; `None`: none of those tried.
fn told_of_kinds(step: &Value, step_kept: Kept) -> Option<String> {
    let kept = |text: &str| caught(|| step_kept(text)).ok().flatten();
    // At the ends, steps that strip texts take white space.
    let is_lost = |character: &char| kept(&format!("a{character}b")).as_deref() == Some("ab");
    let mut found: Vec<String> = Vec::new();
    for (kind, characters) in KINDS {
        let lost: Vec<char> = characters.chars().filter(is_lost).collect();
        let named = lost.iter().take(NAMED_OF_KIND).map(|lost| format!("U+{:04X}", u32::from(*lost)));
        let named = named.collect::<Vec<_>>().join(", ");
        match (lost.is_empty(), lost.len() > NAMED_OF_KIND) {
            (true, _) => {}
            (_, true) => found.push(format!("{kind} ({named} …)")),
            (_, false) => found.push(format!("{kind} ({named})")),
        }
    }
    found.extend(lost_gaps(&step_kept).into_iter().filter(|kind| *kind != KINDS[0].0).map(str::to_owned));
    if kept(ACCENTED.0).as_deref() == Some(ACCENTED.1) {
        found.push("accents of letters (`é` becomes `e`)".to_owned());
    }
    (!found.is_empty()).then(|| notice("normalizer", step, &found.join(", ")))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_takes_characters_out_is_told_with_these() {
        let split = |pattern: &str, more: &str| {
            format!(
                r#"{{"pre_tokenizer":{{"type":"Sequence","pretokenizers":[{{"type":"Split","pattern":{pattern},{more}}},{{"type":"ByteLevel","add_prefix_space":false,"trim_offsets":true,"use_regex":true}}]}}}}"#
            )
        };
        let replace = |pattern: &str, content: &str| {
            format!(r#"{{"normalizer":{{"type":"Replace","pattern":{pattern},"content":"{content}"}}}}"#)
        };
        let bert = |clean: &str, strip: &str, lower: &str| {
            format!(
                r#"{{"normalizer":{{"type":"BertNormalizer","clean_text":{clean},"handle_chinese_chars":true,"strip_accents":{strip},"lowercase":{lower}}},"pre_tokenizer":{{"type":"BertPreTokenizer"}}}}"#
            )
        };
        let one = |kind: &str| {
            format!(r#"{{"normalizer":{{"type":"Sequence","normalizers":[{{"type":"{kind}"}}]}}}}"#)
        };
        let removed = r#""behavior":"Removed","invert":false"#;
        let inverted = r#""behavior":"Removed","invert":true"#;
        for (json, words) in [
            (replace(r#"{"Regex":"[0-9]"}"#, ""), Some("normalizer deletes")),
            (replace(r#"{"String":"\u00ad"}"#, ""), Some("deletes '\\u{ad}'")),
            (replace(r#"{"String":"<br>"}"#, ""), Some("deletes '<', '>', 'b', 'r'")),
            (replace(r#"{"Regex":"(?<=\\d),(?=\\d)"}"#, ""), Some("deletes ','")),
            (replace(r#"{"Regex":"[0-9]"}"#, "0"), None),
            (replace(r#"{"String":"\n"}"#, ""), Some("deletes line ends")),
            (replace(r#"{"String":"\t"}"#, ""), Some("deletes tabs")),
            (replace(r#"{"String":" "}"#, ""), Some("deletes spaces")),
            (replace(r#"{"String":"\u0001"}"#, ""), Some("deletes control characters")),
            (replace(r#"{"Regex":"\n{2,}"}"#, ""), Some("deletes line ends")),
            (replace(r#"{"Regex":"\\s+"}"#, " "), None),
            (
                replace(r#"{"Regex":"\\s+"}"#, ""),
                Some("deletes spaces, line ends, tabs, no-break spaces, other spaces"),
            ),
            (replace(r#"{"Regex":"[\n|]"}"#, ""), Some("deletes '|', line ends")),
            (split(r#"{"String":"\n"}"#, removed), Some("deletes line ends")),
            (split(r#"{"String":"\u00a0"}"#, removed), Some("deletes no-break spaces")),
            (split(r#"{"String":" "}"#, removed), None),
            (
                r#"{"pre_tokenizer":{"type":"CharDelimiterSplit","delimiter":"\n"}}"#.to_owned(),
                Some("deletes line ends"),
            ),
            (r#"{"pre_tokenizer":{"type":"Whitespace"}}"#.to_owned(), None),
            (r#"{"normalizer":{"type":"Strip","strip_left":true,"strip_right":true}}"#.to_owned(), None),
            (replace(r#"{"Regex":"\\s+$"}"#, ""), None),
            (replace(r#"{"Regex":"^▁+$"}"#, ""), None),
            (split(r#"{"Regex":"[0-9.]"}"#, removed), Some("deletes '.', '0', '1', '2', '3' and 6 more")),
            (split(r#"{"String":"|"}"#, removed), Some("pre_tokenizer deletes")),
            (
                split(r#"{"Regex":"\\p{L}+"}"#, inverted),
                Some("deletes '!', '\"', '#', '$', '%', spaces, line ends, tabs"),
            ),
            (split(r#"{"Regex":"[^\\s]+"}"#, inverted), Some("deletes spaces, line ends, tabs, no-break")),
            (split(r#"{"Regex":"\\s+"}"#, removed), Some("deletes spaces, line ends, tabs, no-break")),
            (split(r#"{"Regex":"[0-9.]"}"#, r#""behavior":"Isolated","invert":false"#), None),
            (
                r#"{"pre_tokenizer":{"type":"CharDelimiterSplit","delimiter":"."}}"#.to_owned(),
                Some("deletes '.'"),
            ),
            (r#"{"pre_tokenizer":{"type":"CharDelimiterSplit","delimiter":" "}}"#.to_owned(), None),
            (
                r#"{"pre_tokenizer":{"type":"Punctuation","behavior":"Removed"}}"#.to_owned(),
                Some("deletes '!'"),
            ),
            (
                bert("true", "null", "true"),
                Some(
                    "deletes control characters (U+0001, U+0008, U+000B …), format characters (U+00AD, U+200B, U+200D …), replacement",
                ),
            ),
            (
                bert("true", "null", "true"),
                Some(
                    "accents and vowel signs (U+0301, U+0308, U+05B8 …), accents of letters (`é` becomes `e`)",
                ),
            ),
            (
                bert("true", "false", "true"),
                Some("replacement and private characters (U+FFFD, U+E000, U+F8FF)"),
            ),
            (bert("false", "true", "false"), Some("deletes accents and vowel signs")),
            (bert("false", "null", "false"), None),
            (one("StripAccents"), Some("a step of the tokenizer's normalizer deletes")),
            (one("StripAccents"), Some("deletes accents and vowel signs (U+0301, U+0308, U+05B8 …)")),
            (one("Nmt"), Some("deletes control characters (U+0001, U+0008, U+000B …)")),
            (one("NFKC"), None),
            (one("Lowercase"), None),
            (r#"{"normalizer":null,"pre_tokenizer":{"type":"WhitespaceSplit"}}"#.to_owned(), None),
            ("{".to_owned(), None),
        ] {
            let told = notices(json.as_bytes());
            assert_eq!(told.len(), usize::from(words.is_some()), "{json}: {told:?}");
            assert!(words.is_none_or(|words| told[0].contains(words)), "{json}: {told:?}");
        }
    }
}
