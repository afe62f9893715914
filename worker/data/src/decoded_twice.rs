//! Detection of UTF-8 text that was decoded as a single-byte encoding and encoded as UTF-8 again.

use std::sync::OnceLock;

/// A code page: the characters of its upper 128 bytes, and criteria that distinguish UTF-8 bytes from its own texts.
struct Page {
    upper: &'static str,
    /// Consecutive multi-byte characters of UTF-8 that its own texts hardly contain.
    run: usize,
    /// Whether a single such character suffices, given its neighbours.
    is_plain: fn(&Found, Option<char>, Option<char>) -> bool,
}

/// A multi-byte character of UTF-8.
struct Found {
    /// The intended character.
    character: char,
    /// The characters in place of its first two bytes.
    first: char,
    second: char,
    /// The character in place of its last byte.
    last: char,
    /// The second byte, and the number of bytes after the first.
    byte: u8,
    behind: usize,
}

const PAGES: [Page; 4] = [
    // Windows-1252, with the gaps filled from ISO 8859-1.
    Page {
        upper: "€\u{81}‚ƒ„…†‡ˆ‰Š‹Œ\u{8d}Ž\u{8f}\u{90}‘’“”•–—˜™š›œ\u{9d}žŸ\u{a0}¡¢£¤¥¦§¨©ª«¬\u{ad}®¯°±²³´µ¶·¸¹º»¼½¾¿ÀÁÂÃÄÅÆÇÈÉÊËÌÍÎÏÐÑÒÓÔÕÖ×ØÙÚÛÜÝÞßàáâãäåæçèéêëìíîïðñòóôõö÷øùúûüýþÿ",
        run: 2,
        is_plain: is_plain_of_windows,
    },
    // Code page 437 of DOS; 850 has the same relevant letters.
    Page {
        upper: "ÇüéâäàåçêëèïîìÄÅÉæÆôöòûùÿÖÜ¢£¥₧ƒáíóúñÑªº¿⌐¬½¼¡«»░▒▓│┤╡╢╖╕╣║╗╝╜╛┐└┴┬├─┼╞╟╚╔╩╦╠═╬╧╨╤╥╙╘╒╓╫╪┘┌█▄▌▐▀αßΓπΣσµτΦΘΩδ∞φε∩≡±≥≤⌠⌡÷≈°∙·√ⁿ²■\u{a0}",
        run: 2,
        is_plain: is_plain_of_dos,
    },
    // Windows-1251: Cyrillic, whose own texts sometimes have such pairs in a row.
    Page {
        upper: "ЂЃ‚ѓ„…†‡€‰Љ‹ЊЌЋЏђ‘’“”•–—\u{98}™љ›њќћџ\u{a0}ЎўЈ¤Ґ¦§Ё©Є«¬\u{ad}®Ї°±Ііґµ¶·ё№є»јЅѕїАБВГДЕЖЗИЙКЛМНОПРСТУФХЦЧШЩЪЫЬЭЮЯабвгдежзийклмнопрстуфхцчшщъыьэюя",
        run: 4,
        is_plain: |_, _, _| false,
    },
    // Mac OS Roman.
    Page {
        upper: "ÄÅÇÉÑÖÜáàâäãåçéèêëíìîïñóòôöõúùûü†°¢£§•¶ß®©™´¨≠ÆØ∞±≤≥¥µ∂∑∏π∫ªºΩæø¿¡¬√ƒ≈∆«»…\u{a0}ÀÃÕŒœ–—“”‘’÷◊ÿŸ⁄€‹›ﬁﬂ‡·‚„‰ÂÊÁËÈÍÎÏÌÓÔ\u{f8ff}ÒÚÛÙıˆ˜¯˘˙˚¸˝˛ˇ",
        run: 2,
        is_plain: is_plain_of_mac,
    },
];

/// Returns the offset of characters in place of the bytes of others; `None`: a text has none.
pub(super) fn decoded_twice_at(text: &str) -> Option<usize> {
    let mut pages = PAGES.iter().zip(tables()).filter(|_| !text.is_ascii());
    pages.find_map(|(page, table)| page.place_in(text, table))
}

/// The byte of each character below [`TABLE_LEN`] in a page; 0: no byte.
type Table = Vec<u8>;

/// Exclusive upper bound of the characters of all pages.
const TABLE_LEN: usize = 0x2600;

fn tables() -> &'static [Table; 4] {
    static TABLES: OnceLock<[Table; 4]> = OnceLock::new();
    TABLES.get_or_init(|| {
        PAGES.each_ref().map(|page| {
            let mut table = vec![0; TABLE_LEN];
            for (byte, character) in (0x80..=0xff).zip(page.upper.chars()) {
                if let Some(slot) = table.get_mut(character as usize) {
                    *slot = byte;
                }
            }
            table
        })
    })
}

impl Page {
    fn place_in(&self, text: &str, table: &Table) -> Option<usize> {
        let (mut rest, mut before, mut in_row, mut has_mark) = (text.chars(), None, 0, false);
        loop {
            // Most of most texts: quick, as this is done for every page.
            let ascii = ascii_len(rest.as_str().as_bytes());
            if ascii > 0 {
                let (run, behind) = rest.as_str().split_at(ascii);
                (before, rest, in_row, has_mark) = (run.chars().next_back(), behind.chars(), 0, false);
            }
            let place = text.len() - rest.as_str().len();
            let first = rest.next()?;
            let mut behind = rest.clone();
            let Some(found) = found(first, &mut behind, table) else {
                (before, in_row, has_mark) = (Some(first), 0, false);
                continue;
            };
            // A three-byte character is stronger evidence.
            in_row += found.behind.min(self.run / 2);
            // Box drawings consist only of such rows.
            has_mark |= !is_drawn(found.first) || !is_drawn(found.second);
            if in_row >= self.run && has_mark || (self.is_plain)(&found, before, behind.clone().next()) {
                return Some(place);
            }
            (before, rest) = (Some(found.last), behind);
        }
    }
}

/// Returns the number of ASCII bytes at the start. A plain loop, as builds without optimisation read megabytes with it.
fn ascii_len(bytes: &[u8]) -> usize {
    const UPPER: u64 = 0x8080_8080_8080_8080;
    let mut at = 0;
    while let Some(word) = bytes[at..].first_chunk::<8>()
        && u64::from_le_bytes(*word) & UPPER == 0
    {
        at += 8;
    }
    while at < bytes.len() && bytes[at].is_ascii() {
        at += 1;
    }
    at
}

/// Decodes the UTF-8 character at this place, if it may occur in a text.
fn found(first: char, behind: &mut std::str::Chars<'_>, table: &Table) -> Option<Found> {
    let byte = |character: char| table.get(character as usize).copied().filter(|byte| *byte != 0);
    let lead = byte(first)?;
    let count = match lead {
        0xc2..=0xdf => 2,
        0xe0..=0xef => 3,
        0xf0..=0xf4 => 4,
        _ => return None,
    };
    let (mut bytes, mut second, mut last) = ([lead, 0, 0, 0], None, first);
    for slot in &mut bytes[1..count] {
        let next = behind.next()?;
        second.get_or_insert(next);
        last = next;
        *slot = byte(next)?;
    }
    let character = str::from_utf8(&bytes[..count]).ok()?.chars().next()?;
    is_of_text(character).then_some(Found {
        character,
        first,
        second: second?,
        last,
        byte: bytes[1],
        behind: count - 1,
    })
}

/// Whether it is a letter, a punctuation mark, a currency sign or a pictograph.
fn is_of_text(character: char) -> bool {
    character.is_alphabetic()
        || matches!(character,
            '\u{a0}'..='\u{bf}' | '\u{2010}'..='\u{203a}' | '\u{20ac}' | '\u{2122}' | '\u{3000}'..='\u{303f}'
            | '\u{feff}' | '\u{ff00}'..='\u{ff20}' | '\u{1f300}'..='\u{1faff}')
}

/// Whether it is a drawing character.
fn is_drawn(character: char) -> bool {
    matches!(character, '\u{2500}'..='\u{25ff}')
}

fn is_letter(character: Option<char>) -> bool {
    character.is_some_and(|character| character.is_ascii_alphabetic())
}

/// `Ã©`, `â€™`, `Â°`, a pictograph, a byte order mark; and a capital and a sign in place of a letter within a word (`MaÅ‚gorzata`).
fn is_plain_of_windows(found: &Found, before: Option<char>, behind: Option<char>) -> bool {
    let is_small =
        |character: Option<char>| character.is_some_and(|character| character.is_ascii_lowercase());
    match (found.first, found.character) {
        // Dots, dashes and quotes may follow such a capital at a word's end.
        ('Ã', _) => found.byte >= 0xa0 || "€ƒ†‡ˆ‰ŠŒŽ˜šœžŸ".contains(found.second),
        ('Â', character) => {
            matches!(character, '\u{a0}' | '£' | '§' | '©' | '®' | '°'..='³' | '·' | '¼'..='¾')
        }
        ('â', '\u{2010}'..='\u{203a}' | '€' | '™') | ('ï', '\u{feff}') | ('ð', '\u{1f300}'..) => true,
        // `Viá»‡t`; quotes and dashes may follow a word with this end.
        ('á', _) if found.behind == 2 => {
            let is_sign = "–—‘’“”…".contains(found.last);
            matches!(found.second, 'º' | '»') && !is_sign && is_small(before) && is_small(behind)
        }
        (first, character) => {
            first.is_uppercase()
                && character.is_alphabetic()
                && !found.second.is_alphabetic()
                && is_small(before)
                && is_small(behind)
        }
    }
}

/// `caf├⌐`, `ΓÇÖ`.
fn is_plain_of_dos(found: &Found, before: Option<char>, behind: Option<char>) -> bool {
    let is_within = is_letter(before) || is_letter(behind);
    match found.first {
        // Such a line drawing would not end with the next character.
        '├' => is_within && (!is_drawn(found.second) || matches!(found.second, '║'..='╣')),
        // Vietnamese has many of these.
        'ß' => is_letter(before) && is_letter(behind) && matches!(found.second, '║' | '╗'),
        'Γ' => matches!(found.character, '\u{2010}'..='\u{203a}' | '€' | '™') && found.second == 'Ç',
        _ => false,
    }
}

/// `caf√©`, `‚Äôs`.
fn is_plain_of_mac(found: &Found, before: Option<char>, behind: Option<char>) -> bool {
    const OF_FORMULAS: &str = "∞±≤≥∂∑∏π∫Ω√≈∆µ";
    match found.first {
        '√' => (is_letter(before) || is_letter(behind)) && !OF_FORMULAS.contains(found.second),
        '·' => is_letter(before) && is_letter(behind) && matches!(found.second, '∫' | 'ª'),
        // A word in such quotes may begin with this letter.
        '‚' => matches!(found.character, '\u{2010}'..='\u{203a}'),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn is_decoded_twice(text: &str) -> bool {
        decoded_twice_at(text).is_some()
    }

    const WORDS: [&str; 20] = [
        "café au lait",
        "the naïve approach",
        "über alles",
        "señor Núñez",
        "it’s “quoted” — yes…",
        "Привет, мир",
        "Это обычный текст.",
        "日本語のテキスト",
        "中文文本",
        "한국어 텍스트",
        "Ελληνικά κείμενα",
        "שלום עולם",
        "مرحبا بالعالم",
        "สวัสดีชาวโลก",
        "नमस्ते दुनिया",
        "Zażółć gęślą jaźń",
        "Příliš žluťoučký kůň",
        "Tiếng Việt",
        "smörgåsbord",
        "garçon, où est-ce ?",
    ];

    /// Decodes a text's bytes as those of a page.
    fn misread(text: &str, page: &Page) -> String {
        let upper: Vec<char> = page.upper.chars().collect();
        let character = |byte: u8| if byte < 0x80 { byte.into() } else { upper[usize::from(byte) - 0x80] };
        text.bytes().map(character).collect()
    }

    #[test]
    fn pages_have_a_character_for_each_byte() {
        for page in &PAGES {
            assert_eq!(page.upper.chars().count(), 128);
        }
        for (page, text) in PAGES.iter().zip(["cafÃ©", "caf├⌐", "caf\u{413}\u{a9}", "caf√©"]) {
            assert!(text.contains("\u{413}") || misread("café", page) == text, "{text}");
        }
        assert_eq!(misread("Привет", &PAGES[0]), "ÐŸÑ€Ð¸Ð²ÐµÑ‚");
        assert_eq!(misread("日本語", &PAGES[0]), "æ—¥æœ¬èªž");
        assert_eq!(misread("Привет", &PAGES[2]), "РџСЂРёРІРµС‚");
        assert_eq!(misread("’", &PAGES[3]), "‚Äô");
    }

    #[test]
    fn texts_of_every_script_are_found_whichever_page_they_were_read_as() {
        for text in WORDS {
            assert!(!is_decoded_twice(text), "{text}");
            for (number, page) in PAGES.iter().enumerate() {
                // On Cyrillic pages, texts with single letters beyond ASCII look like other texts.
                let is_found = is_decoded_twice(&misread(text, page));
                let letters: Vec<char> = text.chars().collect();
                let is_single = !letters.windows(2).any(|two| two.iter().all(|letter| *letter > '\u{24f}'));
                assert!(is_found || number == 2 && is_single, "{number}: {}", misread(text, page));
            }
        }
        for text in [
            "ÃƒÂ©tÃƒÂ©",
            "Â°C",
            "5Â£",
            "smile ðŸ˜€",
            "ï»¿first",
            "MaÅ‚gorzata",
            "a long text with Ã± in it",
            "itâ€™s",
        ] {
            assert!(is_decoded_twice(text), "{text}");
        }
    }

    #[test]
    fn texts_that_mean_these_characters_are_not_found() {
        for text in [
            "SÃO PAULO",
            "Ãlvaro",
            "âge, Âge, à…",
            "« voilà…” dit-il",
            "MANHÃ”, MANHÃ… e MANHÃ –",
            "„MÜ“ und „Ä“, „DÖ…“",
            "le café…” et l’été…”",
            "├── src\n│   ├── école\n│   └── lib.rs\n└── Cargo.toml",
            "┌─┬─┐\n│ │ │\n├─┼─┤\n└─┴─┘ ═╬═ ╠╣ ║╔═╗",
            "─┐─┤─┐─┤ ┤├ ┐┌",
            "√π + √∞ = √2, √x, √(a²)",
            "‚Ärger‘ und ‚Ähnliches‘",
            "Σµ ∞ φ ε Ω Γ(α) = ∫",
            "Рівне і Ріка, Сіль, РЎ, СССР",
            "їжак є Єва",
            "10 °C, £5, §3, ©2024",
            "«está»—dijo, «allá»…y",
            "Å…” sa han. Ø„ og É…",
            "Ðuro Ñandú ÑANDÚ",
            "naïve façade — “quoted”…",
            "😀 日本 한국 Привет",
        ] {
            assert!(!is_decoded_twice(text), "{text}");
        }
    }
}
