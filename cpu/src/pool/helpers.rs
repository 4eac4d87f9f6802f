//! The helper threads of a process, and the protocol by which they share the pieces of a job with
//! the thread that has it.
//!
//! ```text
//!  caller   takes the pool ─ writes the job ─ opens it ─ rings ─ pieces… ─ closes it ─ waits until no helper is inside
//!  helper   sleeps on the bell ─ enters if the job is open ─ pieces… ─ leaves ─ spins on the bell ─ sleeps
//! ```
//! Three rules hold, whatever the order in which the threads run:
//! - The job is written only while no helper is inside. A helper enters by adding itself to
//!   `state`, which fails unless the job is open. The caller returns only after it closed the job
//!   and saw no helper inside. Every change of `state` is a read-modify-write, or happens while no
//!   helper is inside. So each entry synchronizes with the opening of its job, and the caller's
//!   last look synchronizes with every leaving.
//! - A job wakes the helpers that sleep. The caller rings and then counts the sleepers; a helper
//!   counts itself and then looks at the bell. A sequentially consistent fence stands between the
//!   two steps on either side, so one side sees the other.
//! - The last helper to leave wakes a caller that sleeps. Both change `state` by
//!   read-modify-writes, so either the helper finds `WAITED_FOR` set, or the caller finds no helper
//!   inside.
//!
//! The file is compiled twice: here with the types of the standard library, and in
//! `tests/pool_model` with loom's, which runs it in every order of the threads.

use std::sync::atomic::Ordering;

use super::sync::{self, AtomicBool, AtomicU32, AtomicUsize, UnsafeCell, fence};

/// A cache line of its own, so that writers of this value do not slow the readers of its
/// neighbours.
#[repr(align(128))]
pub(super) struct CacheAligned<T>(pub(super) T);

pub(super) struct Job {
    /// First argument of `piece`. It belongs to the caller and lives until [`Pool::run`] returns.
    pub(super) work: *const (),
    /// Computes one piece of the work.
    pub(super) piece: unsafe fn(*const (), usize),
    pub(super) pieces: usize,
}

pub(super) struct Pool {
    /// Whether a caller has the pool.
    pub(super) taken: CacheAligned<AtomicBool>,
    /// `OPEN`, `WAITED_FOR`, how many helpers may be inside (bits 8 to 15), how many are (bits 0 to
    /// 7). A futex for the caller that waits.
    pub(super) state: CacheAligned<AtomicU32>,
    /// Changes with each job. A futex for the helpers.
    pub(super) bell: CacheAligned<AtomicU32>,
    /// Helpers that sleep, or are about to.
    pub(super) asleep: CacheAligned<AtomicU32>,
    /// The next piece to give out.
    next: CacheAligned<AtomicUsize>,
    /// Written by the caller that has the pool while the job is closed and no helper is inside.
    /// Read by the threads inside.
    job: UnsafeCell<Job>,
    /// Threads that were started.
    pub(super) helpers: AtomicUsize,
}

pub(super) const OPEN: u32 = 1 << 31;
const WAITED_FOR: u32 = 1 << 30;
pub(super) const INSIDE: u32 = 0xff;

// SAFETY: the first rule of the module's head orders every access to `job`. The pointer in it is
// used only by threads inside, while the caller that owns its target waits for them.
unsafe impl Sync for Pool {}
// SAFETY: the pointer in `job` is not used outside of `run`.
unsafe impl Send for Pool {}

/// Ends the process if a piece panics. Other threads may be inside, so the job's memory must not be
/// freed by unwinding; and a helper that unwinds never leaves, so that its caller would wait for
/// ever.
struct AbortOnPanic;

impl Drop for AbortOnPanic {
    fn drop(&mut self) {
        sync::abort(
            "cpu: a piece of a shared job panicked; the process ends, because other threads use the same memory",
        );
    }
}

impl Pool {
    pub(super) fn new() -> Self {
        /// No thread asks for a piece before there is a job.
        unsafe fn nothing(_: *const (), _: usize) {}
        Self {
            taken: CacheAligned(AtomicBool::new(false)),
            state: CacheAligned(AtomicU32::new(0)),
            bell: CacheAligned(AtomicU32::new(0)),
            asleep: CacheAligned(AtomicU32::new(0)),
            next: CacheAligned(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { work: std::ptr::null(), piece: nothing, pieces: 0 }),
            helpers: AtomicUsize::new(0),
        }
    }

    /// Computes all pieces of a job, together with the helpers. Returns `false`, without a piece
    /// computed, if another caller has the pool. A panic in a piece ends the process.
    ///
    /// # Safety
    /// Each piece may be computed on any thread, and the job's work lives until this returns.
    pub(super) unsafe fn run(&'static self, job: Job, helpers: usize) -> bool {
        if self.taken.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err()
        {
            return false;
        }
        let helpers = self.hire(helpers);
        // SAFETY: the pool is ours. The last job was closed and every helper had left before the
        // pool became ours.
        self.job.with_mut(|place| unsafe { *place = job });
        self.next.0.store(0, Ordering::Relaxed);
        self.state.0.store(OPEN | (helpers as u32) << 8, Ordering::Release);
        self.bell.0.fetch_add(1, Ordering::Release);
        // Pairs with the fence in `listen`.
        fence(Ordering::SeqCst);
        if self.asleep.0.load(Ordering::Relaxed) > 0 {
            sync::wake(&self.bell.0, helpers);
        }
        // SAFETY: the pool is ours and the job is as the caller says.
        unsafe { self.pieces() };
        self.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        self.wait_until_empty();
        self.taken.0.store(false, Ordering::Release);
        true
    }

    /// Computes pieces until none is left.
    ///
    /// # Safety
    /// The calling thread has the pool or is inside.
    unsafe fn pieces(&self) {
        self.job.with(|job| {
            // SAFETY: the job is not written while a thread is inside.
            let Job { work, piece: compute, pieces } = unsafe { &*job };
            let guard = AbortOnPanic;
            loop {
                let piece = self.next.0.fetch_add(1, Ordering::Relaxed);
                if piece >= *pieces {
                    break;
                }
                // SAFETY: each piece is given out once.
                unsafe { compute(*work, piece) };
            }
            std::mem::forget(guard);
        });
    }

    fn wait_until_empty(&self) {
        let state = &self.state.0;
        if sync::spin(|| state.load(Ordering::Acquire) & INSIDE == 0) {
            return;
        }
        // A helper was taken off its core in the middle of a piece. This thread's core is the best
        // it can get.
        loop {
            let before = state.fetch_or(WAITED_FOR, Ordering::AcqRel);
            if before & INSIDE == 0 {
                return;
            }
            sync::sleep(state, before | WAITED_FOR);
        }
    }

    /// Starts helpers until there are `wanted`. Returns how many of them there are.
    fn hire(&'static self, wanted: usize) -> usize {
        let there = self.helpers.load(Ordering::Relaxed);
        for at in there..wanted {
            // Without them the caller computes the pieces: that is no reason to fail.
            if sync::spawn(at + 1, move || self.helper()).is_err() {
                break;
            }
            self.helpers.store(at + 1, Ordering::Relaxed);
        }
        self.helpers.load(Ordering::Relaxed).min(wanted)
    }

    /// A helper's life.
    fn helper(&self) {
        let mut heard = self.bell.0.load(Ordering::Acquire);
        while sync::goes_on(heard) {
            // A job whose bell rang before this thread was there is entered as well.
            if self.enter() {
                // SAFETY: this thread is inside.
                unsafe { self.pieces() };
                self.leave();
            }
            heard = self.listen(heard);
        }
    }

    /// Waits until the bell is no longer `heard`. Returns what it is.
    fn listen(&self, heard: u32) -> u32 {
        let bell = &self.bell.0;
        if !sync::spin(|| bell.load(Ordering::Acquire) != heard) {
            self.asleep.0.fetch_add(1, Ordering::Relaxed);
            // Pairs with the fence in `run`.
            fence(Ordering::SeqCst);
            while bell.load(Ordering::Relaxed) == heard {
                sync::sleep(bell, heard);
            }
            self.asleep.0.fetch_sub(1, Ordering::Relaxed);
        }
        bell.load(Ordering::Acquire)
    }

    fn enter(&self) -> bool {
        let admit = |state: u32| {
            let (inside, most) = (state & INSIDE, (state >> 8) & INSIDE);
            (state & OPEN != 0 && inside < most).then_some(state + 1)
        };
        self.state.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, admit).is_ok()
    }

    fn leave(&self) {
        let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
        if before & INSIDE == 1 && before & WAITED_FOR != 0 {
            sync::wake(&self.state.0, 1);
        }
    }
}
