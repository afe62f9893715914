//! Stand-in for the `tokenizers` library in builds without the feature `tokenizers`.

use std::convert::Infallible;
use std::ops::Range;
use std::path::Path;

use super::{Framed, UnknownToken};
use crate::{DataError, built};

/// Never created.
#[derive(Clone, Debug)]
pub struct Described {
    never: Infallible,
}

impl Described {
    /// Refuses.
    ///
    /// # Errors
    /// Always.
    pub(super) fn read(_: &[u8], _: &Path) -> Result<Self, DataError> {
        Err(built::TOKENIZERS.missing())
    }

    /// The same.
    pub(super) fn folder(_: &Path) -> DataError {
        built::TOKENIZERS.missing()
    }

    pub(super) fn without_settings(&mut self) -> Vec<String> {
        match self.never {}
    }

    pub(super) fn around(&self) -> usize {
        match self.never {}
    }

    pub(super) fn frame(&self, _: &str, _: Option<&str>, _: usize) -> Result<Framed, String> {
        match self.never {}
    }

    pub(super) fn beginning(&self) -> Vec<u32> {
        match self.never {}
    }

    pub(super) fn added_names(&self) -> Vec<String> {
        match self.never {}
    }

    pub(super) fn special(&self) -> Vec<String> {
        match self.never {}
    }

    pub(super) fn special_numbers(&self) -> Vec<u32> {
        match self.never {}
    }

    pub(super) fn number(&self, _: &str) -> Option<u32> {
        match self.never {}
    }

    pub(super) fn strips_before(&self, _: &str) -> Option<String> {
        match self.never {}
    }

    pub(super) fn no_token_behind_letters(&self, _: &str) -> Option<String> {
        match self.never {}
    }

    pub(super) fn has_strip_behind(&self) -> bool {
        match self.never {}
    }

    pub(super) fn strips_behind(&self, _: u32) -> bool {
        match self.never {}
    }

    pub(super) fn has_as_tokens(&self, _: &str, _: &[&str]) -> Result<bool, String> {
        match self.never {}
    }

    pub(super) fn largest(&self) -> Option<u32> {
        match self.never {}
    }

    pub(super) fn unknown(&self) -> Option<&UnknownToken> {
        match self.never {}
    }

    pub(super) fn unknown_parts(&self, _: &str) -> Result<Vec<Range<usize>>, String> {
        match self.never {}
    }

    pub(super) fn may_leave_out(&self) -> bool {
        match self.never {}
    }

    pub(super) fn reach(&self, _: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
        match self.never {}
    }

    pub(super) fn has_patterns(&self) -> bool {
        match self.never {}
    }

    pub(super) fn depends_on_place(&self) -> bool {
        match self.never {}
    }

    pub(super) fn left_out(&self, _: &str, _: usize) -> Result<Vec<char>, String> {
        match self.never {}
    }

    pub(super) fn encode(&self, _: &str) -> Result<Vec<u32>, String> {
        match self.never {}
    }

    pub(super) fn encode_with_places(&self, _: &str) -> Result<Vec<(u32, Range<usize>)>, String> {
        match self.never {}
    }

    pub(super) fn decode(&self, _: &[u32]) -> Result<String, String> {
        match self.never {}
    }
}
