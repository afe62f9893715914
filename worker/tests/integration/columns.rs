//! One gradient from its backward pass to the decoded values at a peer: as columns throughout, without an allocation of a weight's size.
#![allow(unsafe_code, reason = "watches both allocators")]

use std::alloc::{GlobalAlloc, Layout, System};
use std::ffi::{c_int, c_void};
use std::num::NonZeroU32;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use longhaul_common::config::{
    ModelConfig, ModelKind, SparseBackwardConfig, SparseMode, TrainConfig, ValueFormat,
};
use longhaul_common::model::ModelSpec;
use longhaul_engine::Batch;
use longhaul_engine::{Engine, choose_device};
use longhaul_proto::codec::{CodecSpec, Decoder, Encoder, Selection, Update};

use longhaul_tests::own_process;

/// Values of each watched weight, 64 × 256: more than of any activation or other tensor.
const WEIGHT_VALUES: usize = 64 * 256;
const WEIGHT_BYTES: usize = 4 * WEIGHT_VALUES;
/// Values of a fragment: fewer than a weight's.
const FRAGMENT_VALUES: usize = 8192;

static WATCHING: AtomicBool = AtomicBool::new(false);
static LARGEST_BYTES: AtomicUsize = AtomicUsize::new(0);

fn note(bytes: usize) {
    if WATCHING.load(Ordering::Relaxed) {
        LARGEST_BYTES.fetch_max(bytes, Ordering::Relaxed);
    }
}

/// Returns the largest allocation during `work`, by Rust or libtorch.
fn largest_in<T>(work: impl FnOnce() -> T) -> (T, usize) {
    LARGEST_BYTES.store(0, Ordering::Relaxed);
    WATCHING.store(true, Ordering::Relaxed);
    let done = work();
    WATCHING.store(false, Ordering::Relaxed);
    (done, LARGEST_BYTES.load(Ordering::Relaxed))
}

struct Watched;

// SAFETY: every call is passed unchanged to the system's allocator.
unsafe impl GlobalAlloc for Watched {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        note(layout.size());
        // SAFETY: the caller upholds the contract of the system's allocator.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, memory: *mut u8, layout: Layout) {
        // SAFETY: the memory came from `alloc` above, and so from the system's allocator.
        unsafe { System.dealloc(memory, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Watched = Watched;

unsafe extern "C" {
    fn aligned_alloc(alignment: usize, size: usize) -> *mut c_void;
}

/// Replaces libc's function, with which libtorch allocates tensors.
///
/// # Safety
/// As for libc's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn posix_memalign(memory: *mut *mut c_void, alignment: usize, size: usize) -> c_int {
    note(size);
    // SAFETY: the size is a multiple of the alignment.
    let taken = unsafe { aligned_alloc(alignment, size.next_multiple_of(alignment).max(alignment)) };
    if taken.is_null() {
        return 12;
    }
    // SAFETY: the caller passes a valid pointer for the result.
    unsafe { *memory = taken };
    0
}

/// One layer of width 64 with two feed-forward weights of 64 × 256; all other tensors are smaller.
fn spec() -> ModelSpec {
    let config = ModelConfig {
        layers: 1,
        width: 64,
        heads: 4,
        context: 8,
        vocabulary: Some(64),
        ..ModelConfig::of(ModelKind::Gpt2)
    };
    ModelSpec::resolve(&config, 64).expect("the shape is one")
}

fn engine(spec: &ModelSpec) -> Engine {
    let sparse_backward = Some(SparseBackwardConfig {
        keep: 0.1,
        mode: SparseMode::Columns,
        layers: vec!["*.mlp.*".to_owned()],
    });
    let train = TrainConfig { sparse_backward, ..TrainConfig::default() };
    Engine::new(spec, &train, 10, 1, device(), NonZeroU32::new(1)).expect("the model fits")
}

/// The CPU, or the device of `LONGHAUL_TEST_DEVICE`.
fn device() -> tch::Device {
    choose_device(&std::env::var("LONGHAUL_TEST_DEVICE").unwrap_or_else(|_| "cpu".to_owned()))
        .expect("it is there")
}

fn batch() -> Batch {
    let mut batch = Batch::new(8);
    (0..4_u32).for_each(|start| batch.push((0..9).map(|i| (start * 11 + i * 3) % 64)));
    batch
}

/// A process that runs only one test has no other allocations.
#[test]
fn a_gradient_goes_from_backward_to_the_decoded_result_without_a_dense_weight() {
    own_process::run(own_process::of_test("columns::a_gradient_that_is_watched"));
}

#[test]
#[ignore = "the test before it runs it, in a process of its own"]
fn a_gradient_that_is_watched() {
    let (spec, batch) = (spec(), batch());
    let mut dense = engine(&spec);
    let mut whole = Vec::new();
    let (_, largest) = largest_in(|| dense.gradient(&batch, &mut whole).unwrap());
    assert!(largest >= WEIGHT_BYTES, "a dense gradient is seen by who watches: {largest}");

    let mut columns = engine(&spec);
    columns.collect_columns().unwrap();
    let mut encoder = Encoder::new(CodecSpec::new(Selection::All, ValueFormat::F32)).unwrap();
    let ((frames, mut updates), largest) = largest_in(|| {
        let (_, gradient) = columns.column_gradient(&batch).unwrap();
        let mut frames = Vec::new();
        let mut updates = Vec::new();
        for start in (0..whole.len()).step_by(FRAGMENT_VALUES) {
            let range = start..whole.len().min(start + FRAGMENT_VALUES);
            let (len, mut frame) = (range.len(), Vec::new());
            let update = gradient.cut(range).unwrap();
            let left = encoder.encode_columns(0, &update, None, 1.0, &mut frame).unwrap();
            assert!(left.is_none(), "f32 leaves nothing behind");
            let mut decoder = Decoder::new();
            updates.push(decoder.decode(&frame, len).unwrap().clone());
            frames.push(frame);
        }
        (frames, updates)
    });
    assert!(largest < WEIGHT_BYTES, "{largest} bytes were taken at once, as much as a weight has");
    assert!(updates.iter().all(|update| matches!(update, Update::Columns(_))));

    // The decoded values are the gradient, and the bytes are the columns' share of the weights.
    let mut sum = vec![0.0; whole.len()];
    for (at, update) in updates.drain(..).enumerate() {
        let start = at * FRAGMENT_VALUES;
        update.add_scaled_to(1.0, &mut sum[start..start + update.len()]);
    }
    // Products of other shapes may add in another order.
    let largest = whole.iter().fold(0.0_f32, |largest, value| largest.max(value.abs()));
    for (at, (found, expected)) in sum.iter().zip(&whole).enumerate() {
        assert_eq!(*found == 0.0, *expected == 0.0, "value {at}: {found}, and not {expected}");
        assert!((found - expected).abs() <= 1e-6 * largest, "value {at}: {found}, and not {expected}");
    }
    let bytes: usize = frames.iter().map(Vec::len).sum();
    let outside = 4 * (whole.len() - 2 * WEIGHT_VALUES);
    let share = (bytes - outside) as f64 / (2 * WEIGHT_BYTES) as f64;
    // 26 of 256 columns, and 6 of 64; two per cent more for their positions and the frame headers.
    let kept = f64::from(26 * 64 + 6 * 256) / (2 * WEIGHT_VALUES) as f64;
    assert!(share <= kept + 0.02, "{share} of the bytes for {kept} of the values");
}
