//! Memory released by a thread is reused for its next allocation, without a page fault.

use longhaul_engine::keep_freed_memory;

/// Too large for glibc to keep by itself at the first time, and below the largest threshold of its older versions.
const BYTES: usize = 24 << 20;
const PAGE_BYTES: usize = 4096;

fn main() {
    keep_freed_memory();
    // On its own thread, like the device.
    let faults = std::thread::spawn(|| {
        touch();
        // Later parts of the heap return to the system.
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

/// Page faults of this thread without disk access, as counted in `proc_pid_stat(5)`.
fn minor_faults() -> u64 {
    let stat = std::fs::read_to_string("/proc/thread-self/stat").expect("Linux");
    // The name in parentheses may have spaces; the fields after it have none.
    let (_, fields) = stat.rsplit_once(") ").expect("a name in parentheses");
    fields.split(' ').nth(7).and_then(|field| field.parse().ok()).expect("the tenth field is a number")
}
