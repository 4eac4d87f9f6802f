//! Read bandwidth of this machine's memory: threads read a buffer that is much larger than its
//! caches.

use std::hint::black_box;
use std::sync::Barrier;

use paceline_client::Failure;
use paceline_system::clock::monotonic_ns;
use paceline_system::platform;
use serde::Serialize;

use crate::report::failed;

/// Bytes of the buffer: several times the largest last-level caches of machines that serve models.
/// Below: it takes at most one part in this many of the free memory.
const BUFFER_BYTES: u64 = 1 << 30;
const SHARE_OF_FREE: u64 = 4;
/// Least bytes of the buffer: a smaller one would measure the caches.
const LEAST_BYTES: u64 = 64 << 20;
/// Bytes compared at once: few enough to stay in the first-level cache, so that only the buffer
/// comes from memory.
const BLOCK: usize = 16 << 10;
/// Passes of a measurement. The best one counts, because disturbances only make a pass slower.
const PASSES: usize = 5;
/// Content of the buffer. Not 0, because pages that were never written may all be one page.
const FILL: u8 = 0xA5;

/// A measured bandwidth.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
pub struct Bandwidth {
    /// Threads that read.
    pub threads: usize,
    /// Bytes per second that they read together.
    pub bytes_s: f64,
}

/// A buffer to read.
pub struct MemoryBuffer {
    buffer: Vec<u8>,
}

impl MemoryBuffer {
    /// Allocates the buffer and writes it, so that its pages exist.
    ///
    /// # Errors
    /// Too little memory is free.
    pub fn take() -> Result<Self, Failure> {
        let free = platform::available_memory().unwrap_or(u64::MAX) / SHARE_OF_FREE;
        let bytes = BUFFER_BYTES.min(free);
        if bytes < LEAST_BYTES {
            return Err(failed(format!(
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

    /// The best of several passes with this number of threads.
    pub fn measure(&self, threads: usize) -> Bandwidth {
        let best = (0..PASSES).map(|_| self.pass(threads)).fold(f64::INFINITY, f64::min);
        Bandwidth { threads, bytes_s: self.buffer.len() as f64 / best }
    }

    /// Seconds from the start of the first thread to the end of the last one.
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

/// Reads all of it by comparing it with the fill. The C library compares with the processor's
/// widest loads, in a build without optimization too, and compares equal bytes to the end.
fn is_full(part: &[u8]) -> bool {
    let block = [FILL; BLOCK];
    part.chunks(BLOCK).fold(true, |full, chunk| full & (chunk == &block[..chunk.len()]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_byte_is_read() {
        let mut memory = MemoryBuffer { buffer: vec![FILL; 3 * BLOCK + 7] };
        assert!(is_full(&memory.buffer));
        for place in [0, BLOCK - 1, BLOCK, 3 * BLOCK + 6] {
            memory.buffer[place] = 0;
            assert!(!is_full(&memory.buffer), "{place}");
            memory.buffer[place] = FILL;
        }
    }

    #[test]
    fn any_number_of_threads_reads_all() {
        let memory = MemoryBuffer { buffer: vec![FILL; 1 << 20] };
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
