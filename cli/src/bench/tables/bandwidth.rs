//! How fast this machine reads memory: threads that go through a buffer much larger than its
//! caches.

use std::hint::black_box;
use std::sync::Barrier;

use paceline_process::clock::monotonic_ns;
use paceline_process::platform;
use serde::Serialize;

use crate::failure::Failure;

/// Of the buffer: several times the largest last-level caches of machines that serve models. A part
/// of what is free, at most.
const BUFFER_BYTES: u64 = 1 << 30;
const SHARE_OF_FREE: u64 = 4;
/// With less the figure would be of the caches.
const LEAST_BYTES: u64 = 64 << 20;
/// What is compared at once. Small enough to stay in the first cache, so that only the buffer comes
/// from memory.
const BLOCK: usize = 16 << 10;
/// Of a measurement; the best one counts, as whatever disturbs makes it slower and nothing makes it
/// faster.
const PASSES: usize = 5;
/// What the buffer is full of. Not 0: pages that were never written may all be one page.
const FILL: u8 = 0xA5;

/// A speed of memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Threads that read.
    pub threads: usize,
    /// Bytes they read together in a second.
    pub bytes_s: f64,
}

/// A buffer to read.
pub struct Memory {
    buffer: Vec<u8>,
}

impl Memory {
    /// Takes memory, and writes it so that it is there.
    ///
    /// # Errors
    /// There is too little.
    pub fn take() -> Result<Self, Failure> {
        let free = platform::available_memory().unwrap_or(u64::MAX) / SHARE_OF_FREE;
        let bytes = BUFFER_BYTES.min(free);
        if bytes < LEAST_BYTES {
            return Err(Failure::bench(format!(
                "cannot measure memory: expected at least {LEAST_BYTES} free bytes to read through, found {bytes}"
            )));
        }
        Ok(Self { buffer: vec![FILL; bytes as usize] })
    }

    /// Bytes of the buffer.
    pub fn bytes(&self) -> usize {
        self.buffer.len()
    }

    /// The best of all numbers of threads up to `cores`.
    pub fn search(&self, cores: usize) -> Bandwidth {
        let counts = std::iter::successors(Some(1), |threads| Some(threads * 2))
            .take_while(|threads| *threads < cores);
        let found = counts.chain([cores.max(1)]).map(|threads| self.measure(threads));
        found.max_by(|one, other| one.bytes_s.total_cmp(&other.bytes_s)).unwrap_or_default()
    }

    /// The best of several passes with so many threads.
    pub fn measure(&self, threads: usize) -> Bandwidth {
        let best = (0..PASSES).map(|_| self.pass(threads)).fold(f64::INFINITY, f64::min);
        Bandwidth { threads, bytes_s: self.buffer.len() as f64 / best }
    }

    /// Seconds from the first thread's begin to the last one's end.
    fn pass(&self, threads: usize) -> f64 {
        let parts = self.buffer.chunks(self.buffer.len().div_ceil(threads).max(1));
        let start = Barrier::new(parts.len());
        let spans: Vec<(i64, i64)> = std::thread::scope(|scope| {
            let read = |part| {
                let start = &start;
                scope.spawn(move || {
                    start.wait();
                    let begin = monotonic_ns();
                    black_box(is_full(part));
                    (begin, monotonic_ns())
                })
            };
            let readers: Vec<_> = parts.map(read).collect();
            readers.into_iter().map(|reader| reader.join().expect("a reader only reads")).collect()
        });
        let begin = spans.iter().map(|(begin, _)| *begin).min().unwrap_or(0);
        let end = spans.iter().map(|(_, end)| *end).max().unwrap_or(0);
        (end - begin).max(1) as f64 / 1e9
    }
}

/// Reads all of it. Comparing is done by the C library's routine, which is as fast as the
/// processor's widest loads in a build without optimization too; what is equal is compared to the
/// end.
fn is_full(part: &[u8]) -> bool {
    let block = [FILL; BLOCK];
    part.chunks(BLOCK).fold(true, |full, chunk| full & (chunk == &block[..chunk.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        let mut memory = Memory { buffer: vec![FILL; 3 * BLOCK + 7] };
        assert!(is_full(&memory.buffer));
        for place in [0, BLOCK - 1, BLOCK, 3 * BLOCK + 6] {
            memory.buffer[place] = 0;
            assert!(!is_full(&memory.buffer), "{place}");
            memory.buffer[place] = FILL;
        }
    }

    #[test]
    fn any_number_of_threads_reads_all() {
        let memory = Memory { buffer: vec![FILL; 1 << 20] };
        for threads in [1, 2, 3, 7] {
            let found = memory.measure(threads);
            assert!(
                found.threads == threads && found.bytes_s.is_finite() && found.bytes_s > 0.0,
                "{found:?}"
            );
        }
        assert!((1..=3).contains(&memory.search(3).threads));
    }
}
