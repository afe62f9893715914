//! The codec allocates nothing for a fragment after one of its size, and for a frame in proportion to the
//! expected length.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use longhaul_proto::codec::{
    CodecSpec, Dct, Decoder, Encoder, RandomK, Selection, Stage, Threshold, TopK, ValueFormat,
};
use rand::{Rng, SeedableRng};
use rand_chacha::ChaCha8Rng;

/// Counts the allocations of each thread, so that neither other tests nor their harness interfere.
struct CountingAllocator;

thread_local! {
    static ALLOCATIONS: Cell<u64> = const { Cell::new(0) };
    static ALLOCATED_BYTES: Cell<usize> = const { Cell::new(0) };
}

// SAFETY: every call is passed to the system's allocator unchanged.
unsafe impl GlobalAlloc for CountingAllocator {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        ALLOCATIONS.set(ALLOCATIONS.get() + 1);
        ALLOCATED_BYTES.set(ALLOCATED_BYTES.get() + layout.size());
        // SAFETY: the caller upholds the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from `alloc` above, thus from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: CountingAllocator = CountingAllocator;

fn allocations_in(work: impl FnOnce()) -> u64 {
    let before = ALLOCATIONS.get();
    work();
    ALLOCATIONS.get() - before
}

/// Every stage with every selection and format, for fragments of at least `tiles` tiles.
fn chains(tiles: u32) -> impl Iterator<Item = CodecSpec> {
    let random_k = Stage::RandomK(RandomK { chunk: 4096, keep: 410 });
    let stages = [None, Some(random_k), Some(Stage::Dct(Dct { tiles }))];
    let (chunk, keep) = (4096, 64);
    let selections = [
        Selection::All,
        Selection::TopK(TopK { chunk, keep }),
        Selection::TopK(TopK { chunk, keep: 1024 }),
        Selection::Threshold(Threshold { chunk, keep }),
    ];
    let of = |stage, selection| {
        ValueFormat::ALL.map(|values| CodecSpec { stage, ..CodecSpec::new(selection, values) })
    };
    let of_stage = move |stage| selections.into_iter().flat_map(move |selection| of(stage, selection));
    stages.into_iter().flat_map(of_stage)
}

#[test]
fn nothing_is_allocated_once_a_fragment_of_the_same_size_has_been_through() {
    const LEN: usize = 50_000;
    let mut rng = ChaCha8Rng::seed_from_u64(3);
    let mut random = || (0..LEN).map(|_| rng.random_range(-1.0..1.0)).collect::<Vec<f32>>();
    for spec in chains(12) {
        let mut encoder = Encoder::new(spec).unwrap();
        let mut decoder = Decoder::new();
        let (mut residual, mut sum) = (vec![0.0; LEN], vec![0.0; LEN]);
        // The frame's length varies with the data; the caller provides its buffer.
        let mut frame = Vec::with_capacity(8 * LEN);
        let mut fragment = |delta: &[f32]| {
            frame.clear();
            encoder.encode_with_feedback(7, delta, &mut residual, 1.0, &mut frame).unwrap();
            decoder.decode_add(&frame, LEN, 0.5, &mut sum).unwrap();
            decoder.decode(&frame, LEN).unwrap();
        };
        // The first ones feed the residual; later ones may have more ties and candidates, so a few precede.
        (0..4).for_each(|_| fragment(&random()));
        let deltas = [random(), random(), random()];
        let allocated = allocations_in(|| deltas.iter().for_each(|delta| fragment(delta)));
        assert_eq!(allocated, 0, "{spec:?}");
    }
    assert_eq!(allocations_in(|| drop(std::hint::black_box(Box::new(1)))), 1, "the counter must count");
}

#[test]
fn a_hostile_header_takes_no_more_memory_than_its_fragment_may() {
    const LEN: usize = 5000;
    // Maximum per value: three numbers of four bytes twice, once while they grow, and an entropy-coded byte
    // twice.
    const BYTES_PER_VALUE_MAX: usize = 32;
    let mut rng = ChaCha8Rng::seed_from_u64(4);
    let input: Vec<f32> = (0..LEN).map(|_| rng.random_range(-1.0..1.0)).collect();
    for spec in chains(1) {
        let mut frame = Vec::new();
        Encoder::new(spec).unwrap().encode(7, &input, &mut frame).unwrap();
        // The model's tables are computed once.
        Decoder::new().decode(&frame, LEN).unwrap();
        for _ in 0..500 {
            let mut hostile = frame.clone();
            for _ in 0..rng.random_range(1..4) {
                let byte = rng.random_range(0..frame.len().min(40));
                hostile[byte] = rng.random();
            }
            let before = ALLOCATED_BYTES.get();
            let outcome = Decoder::new().decode(&hostile, LEN).map(|_| ());
            let bytes = ALLOCATED_BYTES.get() - before;
            assert!(bytes <= BYTES_PER_VALUE_MAX * LEN, "{spec:?}: {bytes} bytes, {outcome:?}");
        }
    }
}
