//! A function that libtorch looks up in the program.

use std::fs::File;

use object::read::elf::ElfFile64;
use object::{Endianness, Object as _, ObjectSymbol as _, ReadCache};

/// The build script of another crate names it, without a call here: a linker drops or hides it silently (decision 0003).
const FUNCTION: &str = "mkl_serv_intel_cpu_true";

#[test]
fn the_program_exports_what_mkl_asks_for() {
    let file = ReadCache::new(File::open(env!("CARGO_BIN_EXE_worker-torch")).unwrap());
    let program = ElfFile64::<Endianness, _>::parse(&file).unwrap();
    let mut found =
        program.dynamic_symbols().filter(|symbol| symbol.name().is_ok_and(|name| name == FUNCTION));
    assert!(found.any(|symbol| symbol.is_definition()), "the program does not export {FUNCTION}");
}
