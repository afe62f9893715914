//! Calls of decoders that panic on some kinds of damage, as if it were a defect of their own.

use std::any::Any;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// What `decode` gives; a panic in it is an error of the file, by its words. What it works on is not used any more after an error.
pub(crate) fn unwound<T, E>(
    decode: impl FnOnce() -> Result<T, E>,
    damaged: impl FnOnce(String) -> E,
) -> Result<T, E> {
    catch_unwind(AssertUnwindSafe(decode)).unwrap_or_else(|panic| Err(damaged(words(&*panic))))
}

fn words(panic: &(dyn Any + Send)) -> String {
    let text = panic.downcast_ref::<&str>().map(|text| (*text).to_owned());
    let text = text.or_else(|| panic.downcast_ref::<String>().cloned());
    format!("it is damaged ({})", text.as_deref().unwrap_or("its reader gives no reason"))
}
