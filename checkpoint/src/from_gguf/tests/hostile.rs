//! Mutated heads are refused in words or read. None needs much more memory than the file has bytes.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

use super::{ARCHITECTURES, TextFiles, weights};
use crate::gguf::Gguf;
use crate::samples::SampleGguf;

/// Mutated heads of each architecture: 10,000 in all.
const HEADS: usize = 1_667;
/// Bytes above the file's size that are allowed.
const MOST: isize = 64 << 20;

/// Counts what the thread of a test allocates.
struct Counting;

thread_local! {
    static LIVE: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}

// SAFETY: the system's allocator does the work.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        // A thread that ends has no counters any more.
        let _ = LIVE.try_with(|live| {
            live.set(live.get() + layout.size() as isize);
            let _ = PEAK.try_with(|peak| peak.set(peak.get().max(live.get())));
        });
        // SAFETY: as the caller says.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, address: *mut u8, layout: Layout) {
        let _ = LIVE.try_with(|live| live.set(live.get() - layout.size() as isize));
        // SAFETY: as the caller says.
        unsafe { System.dealloc(address, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// xorshift64*.
struct Random(u64);

impl Random {
    fn below(&mut self, end: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        ((self.0.wrapping_mul(0x2545_F491_4F6C_DD1D) >> 16) % end as u64) as usize
    }
}

/// Reads a file to the end. An error has words.
fn read(file: &[u8]) -> bool {
    let gguf = match Gguf::read(file) {
        Ok(gguf) => gguf,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            return false;
        }
    };
    if let Ok(weights) = weights(&gguf) {
        let end = |weight: &super::GgufWeight| weight.begin + weight.bytes;
        assert!(weights.iter().all(|weight| end(weight) <= file.len()));
    }
    match TextFiles::of(&gguf, None) {
        Ok(_) => true,
        Err(error) => {
            assert!(!error.to_string().is_empty());
            false
        }
    }
}

#[test]
fn ten_thousand_mutated_heads_are_refused_or_read_in_bounded_memory() {
    let mut random = Random(0x5EED);
    let (mut served, mut refused) = (0, 0);
    for architecture in ARCHITECTURES {
        let mut sample = SampleGguf::of(architecture);
        sample.tensors.iter_mut().for_each(|tensor| tensor.data.fill(0));
        let file = sample.bytes();
        let data: usize = sample.tensors.iter().map(|tensor| tensor.data.len()).sum();
        let head = file.len() - data;
        for _ in 0..HEADS {
            let mut mutated = file.clone();
            for _ in 0..=random.below(3) {
                let at = random.below(head);
                match random.below(4) {
                    0 => mutated[at] ^= 1 << random.below(8),
                    1 => mutated[at] = random.below(256) as u8,
                    2 => mutated[at..(at + 8).min(head)].fill(0xFF),
                    _ => mutated.truncate(head.min(at + 64)),
                }
                if mutated.len() < head {
                    break;
                }
            }
            LIVE.set(0);
            PEAK.set(0);
            let is_served = read(&mutated);
            assert!(PEAK.get() <= MOST + mutated.len() as isize, "{} bytes", PEAK.get());
            if is_served { served += 1 } else { refused += 1 }
        }
    }
    assert!(served > 100 && refused > 5_000, "{served} served, {refused} refused");
}

#[test]
fn a_vocabulary_of_runs_is_refused_before_it_fills_the_memory() {
    let mut sample = SampleGguf::of("gemma3");
    let runs: Vec<String> = ('a'..='z')
        .flat_map(|letter| (1..=400).map(move |length| letter.to_string().repeat(length)))
        .collect();
    let tokens: Vec<&str> = runs.iter().map(String::as_str).collect();
    sample.set_tokens(&tokens, &vec![1; tokens.len()]);
    sample.set_floats("tokenizer.ggml.scores", &vec![-1.0; tokens.len()]);
    let file = sample.bytes();
    LIVE.set(0);
    PEAK.set(0);
    assert!(!read(&file));
    assert!(PEAK.get() <= MOST + file.len() as isize, "{} bytes", PEAK.get());
}
