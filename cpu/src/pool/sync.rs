//! Primitives of the helper threads from the standard library and Linux: atomics, a cell, a futex,
//! threads. The model of the pool (`tests/pool_model`) has the same names with loom's types behind
//! them.

use std::hint::spin_loop;
use std::io::{self, Write as _};
use std::time::{Duration, Instant};

pub(super) use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, fence};

/// How long a thread polls before it sleeps. The matrix products of one forward are about ten
/// microseconds apart. A longer time would be taken from the other processes on the same cores.
const SPIN: Duration = Duration::from_micros(20);

/// Stack of a helper, of which only touched pages take memory. Kernels need a few of them; a panic
/// that prints its backtrace overflowed 64 KiB.
const STACK_BYTES: usize = 1 << 20;

/// A value that the pool's protocol protects. The caller of each function guarantees that no write
/// is concurrent.
pub(super) struct UnsafeCell<T>(std::cell::UnsafeCell<T>);

impl<T> UnsafeCell<T> {
    pub(super) const fn new(value: T) -> Self {
        Self(std::cell::UnsafeCell::new(value))
    }

    #[inline(always)]
    pub(super) fn with<R>(&self, read: impl FnOnce(*const T) -> R) -> R {
        read(self.0.get())
    }

    #[inline(always)]
    pub(super) fn with_mut<R>(&self, write: impl FnOnce(*mut T) -> R) -> R {
        write(self.0.get())
    }
}

/// Polls `done` for [`SPIN`]. Returns whether it became true.
#[expect(
    clippy::disallowed_methods,
    reason = "a bound on spinning; nothing that is decided depends on it"
)]
pub(super) fn spin(done: impl Fn() -> bool) -> bool {
    if done() {
        return true;
    }
    let begin = Instant::now();
    loop {
        for _ in 0..16 {
            if done() {
                return true;
            }
            spin_loop();
        }
        if begin.elapsed() >= SPIN {
            return false;
        }
    }
}

/// Sleeps while the word is still `expected`. May return early.
pub(super) fn sleep(word: &AtomicU32, expected: u32) {
    let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call, and without a time the other arguments are not read.
    unsafe {
        libc::syscall(
            libc::SYS_futex,
            word.as_ptr(),
            flags,
            expected,
            std::ptr::null::<libc::timespec>(),
        )
    };
}

/// Wakes at most `most` threads that sleep on the word.
pub(super) fn wake(word: &AtomicU32, most: usize) {
    let flags = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call, and a wake reads no other argument.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), flags, most as libc::c_int) };
}

/// Starts helper number `number`, counted from 1.
///
/// # Errors
/// The system has no thread to give.
pub(super) fn spawn(number: usize, life: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let thread = std::thread::Builder::new().name(format!("cpu-{number}")).stack_size(STACK_BYTES);
    thread.spawn(life).map(drop)
}

/// Whether a helper that read this value from the bell goes on. Helpers live as long as their
/// process.
#[inline(always)]
pub(super) fn goes_on(_bell: u32) -> bool {
    true
}

/// Ends the process with a message. The panic itself was reported by the panic hook.
pub(super) fn abort(message: &str) -> ! {
    // A closed stderr changes nothing: the signal is the report that the parent process reads.
    let _ = writeln!(io::stderr(), "{message}");
    std::process::abort()
}
