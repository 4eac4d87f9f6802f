//! The shared segment: made by the supervisor, mapped by both workers.
//!
//! A peer may write to it at any time. So no reference into it ever exists: bytes are copied in and
//! out through raw pointers, and only copies are used.
//!
//! # Why the copies are sound
//!
//! Two pairs of events order the accesses of two peers that keep to link.proto. Both hold for
//! either direction:
//!
//! ```text
//!  sender                                        receiver
//!  1 write: copies a tensor in ─ fence(Release)
//!  2 sends the frame that names it ────────────▶ 3 receives the frame
//!                                                4 read: fence(Acquire) ─ copies the tensor out ─ fence(Release)
//!  6 receives the Ack ◀───────────────────────── 5 sends the Ack
//!  7 write: fence(Acquire) ─ reuses the place
//! ```
//! - 1 happens before 4. The frame is a message on a socket. The kernel puts it into the receiver's
//!   queue and takes it out under that queue's lock, so what the sender did before `send` is
//!   visible after `receive`. The release fence keeps the copy before the send. The acquire fence
//!   keeps the other copy after the receive. Both hold for the compiler and for the processor. So
//!   the receiver reads every byte as it was written.
//! - 4 happens before 7, by the same argument with the Ack for the frame. [`crate::ring::Ring`]
//!   gives a place out again only after the Ack of its tensor, so no byte is overwritten while it
//!   is copied out. Without the release fence at the end of `read` a load could move after the Ack.
//!   Without the acquire fence at the start of `write` a store could move before it.
//! - Each half of the segment has one writer ([`crate::end::Side`]), and that writer never reads
//!   its own half. So there is no third kind of conflict.
//!
//! A broken or hostile peer may write anywhere in the segment at any time, into our half as well.
//! The worst it can do:
//!
//! - Our copy holds any mixture of bytes. Every access is a relaxed atomic one, so this race is
//!   defined in Rust. The compiler may not read a word twice either: it takes a value that was
//!   checked from the copy, never again from the segment. After the copy, place, length and type
//!   come from the frame ([`crate::tensor::check`]), and every number must be finite
//!   ([`crate::tensor::all_finite`]). A draft that is finite garbage costs speed only, because the
//!   target verifies it (I3).
//! - What we wrote changes before the peer reads it. That harms only the peer, because we do not
//!   read it again.
//! - A place is overwritten because the peer acknowledged a tensor before it had copied it. That
//!   harms only the peer as well.
//! - The size of the file stays: `check` refuses a file that may shrink, so no access raises
//!   SIGBUS. Holes that a peer punches read as zeros.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering, fence};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::{SFlag, fstat};

use crate::platform;
use crate::ring::ALIGN;

/// Size of a link's segment: two rings of 32 MiB. Pages are taken by the system when they are first
/// written, so a link that carries little holds little.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Largest segment that is mapped.
const MAX_SEGMENT_BYTES: u64 = 4 << 30;

/// The parts of a link, for the supervisor. It hands one end and the segment to each worker and
/// retains nothing.
#[derive(Debug)]
pub struct Pair {
    /// The target's end of the socket pair.
    pub target: OwnedFd,
    /// The drafter's end.
    pub drafter: OwnedFd,
    /// The shared memory of both.
    pub segment: OwnedFd,
}

/// Makes a link's parts. `segment_bytes`: usually [`SEGMENT_BYTES`].
///
/// # Errors
/// A size that cannot be halved into rings, no descriptors, no memory.
pub fn make_pair(segment_bytes: u64) -> io::Result<Pair> {
    let segment = SharedSegment::create(segment_bytes)?;
    let (target, drafter) = platform::socket_pair()?;
    Ok(Pair { target, drafter, segment })
}

/// A mapping of shared memory; unmapped on drop.
#[derive(Debug)]
pub struct SharedSegment {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `SharedSegment` owns it alone. It is
// not `Sync`: one thread copies at a time.
unsafe impl Send for SharedSegment {}

impl SharedSegment {
    /// New shared memory of `bytes` bytes, all zero.
    ///
    /// # Errors
    /// A size that cannot be halved into rings, no descriptors, no memory.
    pub fn create(bytes: u64) -> io::Result<OwnedFd> {
        check_size(bytes)?;
        platform::create_segment(bytes)
    }

    /// Checks what was received as a segment: a file of at least that size which cannot shrink.
    ///
    /// # Errors
    /// It is no such file.
    pub fn check(segment: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
        check_size(bytes)?;
        let about = fstat(segment)?;
        let kind = SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT;
        if [SFlag::S_IFSOCK, SFlag::S_IFDIR, SFlag::S_IFIFO, SFlag::S_IFCHR, SFlag::S_IFBLK]
            .contains(&kind)
        {
            return Err(io::Error::new(
                io::ErrorKind::InvalidData,
                "expected shared memory, found another kind of file",
            ));
        }
        // Not equal: macOS rounds up to pages.
        if u64::try_from(about.st_size).unwrap_or(0) < bytes {
            let text = format!("expected shared memory of {bytes} bytes, found {}", about.st_size);
            return Err(io::Error::new(io::ErrorKind::InvalidData, text));
        }
        platform::check_fixed_size(segment)
    }

    /// Maps a segment after [`Segment::check`].
    ///
    /// # Errors
    /// It is not what it should be, or there is no room in the address space.
    pub fn map(segment: BorrowedFd<'_>, bytes: u64) -> io::Result<Self> {
        Self::check(segment, bytes)?;
        let bytes = usize::try_from(bytes).map_err(|_| io::ErrorKind::InvalidInput)?;
        let length = NonZeroUsize::new(bytes).ok_or(io::ErrorKind::InvalidInput)?;
        let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
        // SAFETY: a new mapping at an address of the system's choice; nothing of ours is replaced
        // by it.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, segment, 0)? };
        Ok(Self { base: base.cast(), bytes })
    }

    /// Size of the segment in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `data` in at `offset`. Both are of our own choosing.
    ///
    /// # Panics
    /// If it would reach over the end.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        assert!(
            offset <= self.bytes && data.len() <= self.bytes - offset,
            "a write over the segment's end"
        );
        // After the Ack of what lay here before.
        fence(Ordering::Acquire);
        // SAFETY: the range is inside the mapping, which lives as long as `self`. `data` is not in
        // it, because no reference into it exists.
        unsafe { copy_in(data, self.base.as_ptr().add(offset)) };
        // Before the frame that names it.
        fence(Ordering::Release);
    }

    /// Copies `length` bytes at `offset` out.
    ///
    /// # Panics
    /// If it would reach over the end: callers check what a peer names ([`crate::tensor::check`]).
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(
            offset <= self.bytes && length <= self.bytes - offset,
            "a read over the segment's end"
        );
        // After the frame that names it.
        fence(Ordering::Acquire);
        let mut copy = Vec::with_capacity(length);
        // SAFETY: the range is inside the mapping, which lives as long as `self`, and the file
        // behind it cannot shrink (`check`). `copy` has room for `length` bytes, and they are all
        // written before its length is set.
        unsafe {
            copy_out(self.base.as_ptr().add(offset), copy.as_mut_ptr(), length);
            copy.set_len(length);
        }
        // Before the Ack.
        fence(Ordering::Release);
        copy
    }
}

/// Bytes of a word.
const WORD: usize = size_of::<u64>();

/// Copies `data` to shared memory, in words where they are aligned there.
///
/// # Safety
/// `to` has room for `data` in a mapping that no reference of this process points into.
unsafe fn copy_in(data: &[u8], to: *mut u8) {
    let (head, words) = data.split_at(to.align_offset(WORD).min(data.len()));
    let (words, tail) = words.as_chunks::<WORD>();
    // SAFETY: the caller's; each place is inside the range, and the words are aligned.
    unsafe {
        let byte =
            |at: usize, byte: u8| AtomicU8::from_ptr(to.add(at)).store(byte, Ordering::Relaxed);
        head.iter().enumerate().for_each(|(at, value)| byte(at, *value));
        let place = to.add(head.len()).cast::<u64>();
        for (at, word) in words.iter().enumerate() {
            AtomicU64::from_ptr(place.add(at)).store(u64::from_ne_bytes(*word), Ordering::Relaxed);
        }
        let behind = data.len() - tail.len();
        tail.iter().enumerate().for_each(|(at, value)| byte(behind + at, *value));
    }
}

/// Copies `length` bytes out of shared memory, in words where they are aligned there.
///
/// # Safety
/// `from` has `length` bytes in a mapping that no reference of this process points into. `to` has
/// room for them.
unsafe fn copy_out(from: *mut u8, to: *mut u8, length: usize) {
    let head = from.align_offset(WORD).min(length);
    let words = (length - head) / WORD;
    // SAFETY: the caller's; each place is inside the range, and the words are aligned.
    unsafe {
        let byte =
            |at: usize| to.add(at).write(AtomicU8::from_ptr(from.add(at)).load(Ordering::Relaxed));
        (0..head).for_each(byte);
        let (place, copy) = (from.add(head).cast::<u64>(), to.add(head).cast::<u64>());
        for at in 0..words {
            copy.add(at)
                .write_unaligned(AtomicU64::from_ptr(place.add(at)).load(Ordering::Relaxed));
        }
        (head + words * WORD..length).for_each(byte);
    }
}

impl Drop for SharedSegment {
    fn drop(&mut self) {
        // SAFETY: mapped in `map` with this length, and nothing points into it.
        if let Err(error) = unsafe { munmap(self.base.cast(), self.bytes) } {
            tracing::error!(%error, "cannot unmap a link's segment");
        }
    }
}

fn check_size(bytes: u64) -> io::Result<()> {
    match bytes > 0 && bytes <= MAX_SEGMENT_BYTES && bytes.is_multiple_of(2 * ALIGN) {
        true => Ok(()),
        false => {
            let text = format!(
                "a segment has a multiple of {} bytes, at most {MAX_SEGMENT_BYTES}; found {bytes}",
                2 * ALIGN
            );
            Err(io::Error::new(io::ErrorKind::InvalidInput, text))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd;

    #[test]
    fn two_mappings_share_their_bytes_and_the_size_is_fixed() {
        let segment = SharedSegment::create(1 << 16).expect("created");
        let mut ours = SharedSegment::map(segment.as_fd(), 1 << 16).expect("mapped");
        let theirs = SharedSegment::map(segment.as_fd(), 1 << 16).expect("mapped");
        ours.write(64, b"abc");
        assert_eq!(theirs.read(63, 5), b"\0abc\0");
        #[cfg(target_os = "linux")]
        for size in [0, 1 << 15, 1 << 17] {
            assert_eq!(
                nix::unistd::ftruncate(&segment, size),
                Err(nix::errno::Errno::EPERM),
                "{size}"
            );
        }
        let error = SharedSegment::map(segment.as_fd(), 1 << 17).expect_err("too small");
        assert!(
            error.to_string().contains("expected shared memory of 131072 bytes, found 65536"),
            "{error}"
        );
    }

    #[test]
    fn every_offset_and_length_is_copied_whole_and_nothing_beside() {
        let segment = SharedSegment::create(1 << 12).expect("created");
        let mut ours = SharedSegment::map(segment.as_fd(), 1 << 12).expect("mapped");
        let theirs = SharedSegment::map(segment.as_fd(), 1 << 12).expect("mapped");
        let mut expected = vec![0u8; 1 << 12];
        let mut next = 0u8;
        for offset in (0..24).chain(4050..4096) {
            for length in (0..40).filter(|length| offset + length <= 4096) {
                let bytes = std::iter::repeat_with(|| {
                    next = next.wrapping_mul(5).wrapping_add(3);
                    next
                });
                let data: Vec<u8> = bytes.take(length).collect();
                ours.write(offset, &data);
                expected[offset..offset + length].copy_from_slice(&data);
                assert_eq!(theirs.read(offset, length), data, "{length} bytes at {offset}");
                assert_eq!(theirs.read(0, 4096), expected, "beside {length} bytes at {offset}");
            }
        }
    }

    #[test]
    fn other_files_are_no_segments() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 16).expect("grown");
        #[cfg(target_os = "linux")]
        SharedSegment::check(file.as_fd(), 1 << 16).expect_err("a plain file can shrink");
        let (socket, _other) = platform::socket_pair().expect("a pair");
        SharedSegment::check(socket.as_fd(), 1 << 16).expect_err("a socket");
        for bytes in [0, 1, 64, 4 << 30 | 128] {
            SharedSegment::create(bytes).expect_err("a size that is none");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_may_shrink_is_refused() {
        let open = nix::sys::memfd::memfd_create("t", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING)
            .expect("created");
        nix::unistd::ftruncate(&open, 1 << 16).expect("sized");
        let error = SharedSegment::check(open.as_fd(), 1 << 16).expect_err("not sealed");
        assert!(error.to_string().contains("may still be resized"), "{error}");
    }
}
