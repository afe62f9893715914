//! Memory that a thread frees is there for its next allocation, without a page fault.

use longhaul_engine::keep_freed_memory;

/// Too large for glibc to keep by itself at the first time, and below the largest threshold that its older versions take.
const BYTES: usize = 24 << 20;
const PAGE_BYTES: usize = 4096;

fn main() {
    keep_freed_memory();
    // As the device does, on a thread of its own.
    let faults = std::thread::spawn(|| {
        touch();
        // What comes after it in the heap goes back to the system.
        let before = minor_faults();
        touch();
        minor_faults() - before
    });
    let faults = faults.join().expect("a thread that touches memory");
    let pages = (BYTES / PAGE_BYTES) as u64;
    assert!(faults < pages / 100, "{faults} of {pages} pages were given back and fetched again");
}

fn touch() {
    std::hint::black_box(vec![1u8; BYTES]);
}

/// Page faults of this thread that needed no disk, as `proc_pid_stat(5)` counts them.
fn minor_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
    // The name in parentheses may have spaces; what follows has none.
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    fields.split(' ').nth(7).and_then(|field| field.parse().ok()).expect("the tenth field is a number")
}
