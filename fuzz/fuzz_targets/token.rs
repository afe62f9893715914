//! A join token: a user pastes it.
#![no_main]

use libfuzzer_sys::fuzz_target;
use longhaul_proto::identity::Token;

fuzz_target!(|text: &str| {
    if let Ok(token) = text.parse::<Token>() {
        // Letters may come in upper case.
        assert_eq!(token.to_string(), text.trim().to_ascii_lowercase());
    }
});
