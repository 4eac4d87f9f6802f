//! The shared segment: made by the supervisor, mapped by both workers.
//!
//! A peer may write to it at any time. So no reference into it ever exists: bytes are copied in and out through raw
//! pointers, and only copies are looked at.

use std::io;
use std::num::NonZeroUsize;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::ptr::NonNull;
use std::sync::atomic::{Ordering, fence};

use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::stat::{SFlag, fstat};

use crate::platform;
use crate::ring::ALIGN;

/// Size of a link's segment: two rings of 32 MiB. Pages are taken by the system when they are first written, so a link
/// that carries little holds little.
pub const SEGMENT_BYTES: u64 = 64 << 20;

/// Largest segment that is mapped.
const MAX_SEGMENT_BYTES: u64 = 4 << 30;

/// What a link is made of: for the supervisor, which hands one end and the segment to each worker and keeps nothing.
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
    let segment = Segment::create(segment_bytes)?;
    let (target, drafter) = platform::socket_pair()?;
    Ok(Pair { target, drafter, segment })
}

/// A mapping of shared memory; unmapped on drop.
#[derive(Debug)]
pub struct Segment {
    base: NonNull<u8>,
    bytes: usize,
}

// SAFETY: the mapping belongs to the process, not to a thread, and `Segment` owns it alone. It is not `Sync`: one thread
// copies at a time.
unsafe impl Send for Segment {}

impl Segment {
    /// New shared memory of so many bytes, all nought.
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
    /// It is not.
    pub fn check(segment: BorrowedFd<'_>, bytes: u64) -> io::Result<()> {
        check_size(bytes)?;
        let about = fstat(segment)?;
        let kind = SFlag::from_bits_truncate(about.st_mode) & SFlag::S_IFMT;
        if [SFlag::S_IFSOCK, SFlag::S_IFDIR, SFlag::S_IFIFO, SFlag::S_IFCHR, SFlag::S_IFBLK].contains(&kind) {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "expected shared memory, found another kind of file"));
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
        // SAFETY: a new mapping at an address of the system's choice; nothing of ours is replaced by it.
        let base = unsafe { mmap(None, length, access, MapFlags::MAP_SHARED, segment, 0)? };
        Ok(Self { base: base.cast(), bytes })
    }

    /// Its size.
    pub fn bytes(&self) -> usize {
        self.bytes
    }

    /// Copies `data` in at `offset`. Both are of our own choosing.
    ///
    /// # Panics
    /// If it would reach over the end.
    pub fn write(&mut self, offset: usize, data: &[u8]) {
        assert!(offset <= self.bytes && data.len() <= self.bytes - offset, "a write over the segment's end");
        // SAFETY: the range is inside the mapping, which lives as long as `self`; `data` is not in it, as no reference into
        // it exists. A peer that reads or writes here meanwhile sees or leaves bytes, which are never more than bytes.
        unsafe { std::ptr::copy_nonoverlapping(data.as_ptr(), self.base.as_ptr().add(offset), data.len()) };
        // Before the frame that names it; the system calls order it anyway.
        fence(Ordering::Release);
    }

    /// Copies `length` bytes at `offset` out.
    ///
    /// # Panics
    /// If it would reach over the end: callers check what a peer names ([`crate::tensor::check`]).
    pub fn read(&self, offset: usize, length: usize) -> Vec<u8> {
        assert!(offset <= self.bytes && length <= self.bytes - offset, "a read over the segment's end");
        fence(Ordering::Acquire);
        let mut copy = Vec::with_capacity(length);
        // SAFETY: the range is inside the mapping, which lives as long as `self`, and the file behind it cannot shrink
        // (`check`). `copy` has room for `length` bytes and they are all written before its length is set. A peer may write
        // meanwhile: then the copy holds some mixture of bytes, and only the copy is used.
        unsafe {
            std::ptr::copy_nonoverlapping(self.base.as_ptr().add(offset), copy.as_mut_ptr(), length);
            copy.set_len(length);
        }
        copy
    }
}

impl Drop for Segment {
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
            let text = format!("a segment has a multiple of {} bytes, at most {MAX_SEGMENT_BYTES}; found {bytes}", 2 * ALIGN);
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
        let segment = Segment::create(1 << 16).expect("created");
        let mut ours = Segment::map(segment.as_fd(), 1 << 16).expect("mapped");
        let theirs = Segment::map(segment.as_fd(), 1 << 16).expect("mapped");
        ours.write(64, b"abc");
        assert_eq!(theirs.read(63, 5), b"\0abc\0");
        #[cfg(target_os = "linux")]
        for size in [0, 1 << 15, 1 << 17] {
            assert_eq!(nix::unistd::ftruncate(&segment, size), Err(nix::errno::Errno::EPERM), "{size}");
        }
        let error = Segment::map(segment.as_fd(), 1 << 17).expect_err("too small");
        assert!(error.to_string().contains("expected shared memory of 131072 bytes, found 65536"), "{error}");
    }

    #[test]
    fn other_files_are_no_segments() {
        let file = tempfile::tempfile().expect("a file");
        file.set_len(1 << 16).expect("grown");
        #[cfg(target_os = "linux")]
        Segment::check(file.as_fd(), 1 << 16).expect_err("a plain file can shrink");
        let (socket, _other) = platform::socket_pair().expect("a pair");
        Segment::check(socket.as_fd(), 1 << 16).expect_err("a socket");
        for bytes in [0, 1, 64, 4 << 30 | 128] {
            Segment::create(bytes).expect_err("a size that is none");
        }
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn memory_that_may_shrink_is_refused() {
        let open = nix::sys::memfd::memfd_create("t", nix::sys::memfd::MFdFlags::MFD_ALLOW_SEALING).expect("created");
        nix::unistd::ftruncate(&open, 1 << 16).expect("sized");
        let error = Segment::check(open.as_fd(), 1 << 16).expect_err("not sealed");
        assert!(error.to_string().contains("may still be resized"), "{error}");
    }
}
