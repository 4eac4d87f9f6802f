//! The pool of helper threads under loom: the protocol of `src/pool/helpers.rs` runs in every order
//! of its threads, and with every value that a relaxed load may return.
//!
//! Each model checks one rule. A piece writes loom's cells, so an access that is not ordered fails
//! the model; a piece that waits for the other threads makes a lost wake-up a deadlock, which loom
//! reports. Stray wake-ups come from a thread of their own. The planted bugs show that the models
//! can fail.
#![cfg(target_os = "linux")]

#[path = "../../src/pool/helpers.rs"]
mod helpers;
mod sync;

use loom::cell::UnsafeCell;
use loom::sync::{Condvar, Mutex};

use helpers::{Job, Pool};
use sync::{Bug, stop};

/// A pool that lives as long as one execution of a model.
struct Leased(*mut Pool);

impl Leased {
    fn new() -> Self {
        Self(Box::into_raw(Box::new(Pool::new())))
    }

    fn pool(&self) -> &'static Pool {
        // SAFETY: freed by `end` only, when no other thread is left.
        unsafe { &*self.0 }
    }

    /// Ends the helpers and frees the pool. An execution that fails leaks it.
    fn end(self) {
        stop(&self.pool().bell.0);
        // SAFETY: the helpers are joined, and the callers too.
        drop(unsafe { Box::from_raw(self.0) });
    }
}

/// A job whose pieces count how often each was computed.
struct Counted<const N: usize> {
    pieces: [UnsafeCell<u32>; N],
}

impl<const N: usize> Counted<N> {
    /// Runs the job once. Returns whether the pool took it; then every piece was computed once.
    fn run(pool: &'static Pool, helpers: usize) -> bool {
        let work = Self { pieces: std::array::from_fn(|_| UnsafeCell::new(0)) };
        let job = Job { work: (&raw const work).cast(), piece: Self::piece, pieces: N };
        // SAFETY: the work lives until `run` returns, and its pieces may be computed anywhere.
        let taken = unsafe { pool.run(job, helpers) };
        for piece in &work.pieces {
            // SAFETY: the pool returned, so no other thread is at the piece; loom checks that.
            assert_eq!(piece.with(|count| unsafe { *count }), u32::from(taken));
        }
        taken
    }

    /// # Safety
    /// `work` is such a job.
    unsafe fn piece(work: *const (), piece: usize) {
        // SAFETY: the caller's; each piece is given out once, which loom checks.
        unsafe { (*work.cast::<Self>()).pieces[piece].with_mut(|count| *count += 1) };
    }
}

/// A job whose pieces wait for one another, so that as many threads are needed as there are pieces.
struct Meeting {
    pieces: usize,
    begun: Mutex<usize>,
    all: Condvar,
}

impl Meeting {
    fn run(pool: &'static Pool, helpers: usize) {
        let work = Self { pieces: helpers + 1, begun: Mutex::new(0), all: Condvar::new() };
        let job = Job { work: (&raw const work).cast(), piece: Self::piece, pieces: work.pieces };
        // SAFETY: the work lives until `run` returns, and its pieces may be computed anywhere.
        assert!(unsafe { pool.run(job, helpers) });
    }

    /// # Safety
    /// `work` is a meeting.
    unsafe fn piece(work: *const (), _: usize) {
        // SAFETY: the caller's.
        let meeting = unsafe { &*work.cast::<Self>() };
        let mut begun = meeting.begun.lock().expect("no thread panics");
        *begun += 1;
        meeting.all.notify_all();
        while *begun < meeting.pieces {
            begun = meeting.all.wait(begun).expect("no thread panics");
        }
    }
}

/// Runs a model in every order of its threads that has at most `preemptions` switches away from a
/// thread that could go on. Without such a bound the smallest model here has more than half a
/// million orders.
fn check(preemptions: usize, bug: Option<Bug>, model: impl Fn() + Sync + Send + 'static) {
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.check(move || {
        sync::begin(bug);
        model();
    });
}

/// `jobs` jobs of N pieces, one after another.
fn counted<const N: usize>(helpers: usize, jobs: usize) -> impl Fn() + Sync + Send + 'static {
    move || {
        let leased = Leased::new();
        for _ in 0..jobs {
            assert!(Counted::<N>::run(leased.pool(), helpers));
        }
        leased.end();
    }
}

/// `jobs` jobs, one after another, each of which needs all helpers.
fn meetings(helpers: usize, jobs: usize) -> impl Fn() + Sync + Send + 'static {
    move || {
        let leased = Leased::new();
        for _ in 0..jobs {
            Meeting::run(leased.pool(), helpers);
        }
        leased.end();
    }
}

/// A job beside a thread that wakes both kinds of sleepers without a reason.
fn stray_wakes() {
    let leased = Leased::new();
    let pool = leased.pool();
    let stray = loom::thread::spawn(move || {
        sync::wake(&pool.bell.0, 1);
        sync::wake(&pool.state.0, 1);
    });
    Meeting::run(pool, 1);
    stray.join().expect("no panic");
    leased.end();
}

fn two_callers() {
    let leased = Leased::new();
    let pool = leased.pool();
    let second = loom::thread::spawn(move || Counted::<2>::run(pool, 1));
    let first = Counted::<2>::run(pool, 1);
    let second = second.join().expect("no panic");
    assert!(first || second, "one of two callers has the pool");
    leased.end();
}

#[test]
fn more_pieces_than_threads_are_computed_once_each() {
    check(3, None, counted::<3>(1, 1));
}

#[test]
fn the_next_job_waits_until_the_last_one_is_left() {
    check(2, None, counted::<2>(1, 2));
}

#[test]
fn two_helpers_share_a_job() {
    check(1, None, counted::<2>(2, 1));
}

#[test]
fn a_sleeping_helper_is_woken_for_each_job() {
    check(3, None, meetings(1, 2));
}

#[test]
fn two_sleeping_helpers_are_woken_for_each_job() {
    check(1, None, meetings(2, 2));
}

#[test]
fn stray_wake_ups_change_nothing() {
    check(2, None, stray_wakes);
}

#[test]
fn a_second_caller_is_refused_or_served() {
    check(2, None, two_callers);
}

#[test]
#[ignore = "soak: one more preemption in each model"]
fn with_one_more_preemption_all_rules_hold() {
    check(4, None, counted::<3>(1, 1));
    check(3, None, counted::<2>(1, 2));
    check(2, None, counted::<2>(2, 1));
    check(4, None, meetings(1, 2));
    check(2, None, meetings(2, 1));
    check(3, None, stray_wakes);
    check(3, None, two_callers);
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_lost_wake_up_is_found() {
    check(1, Some(Bug::LostWake), meetings(1, 1));
}

#[test]
#[should_panic(expected = "deadlock")]
fn a_missing_fence_is_found() {
    check(1, Some(Bug::NoFence), meetings(1, 1));
}

#[test]
#[should_panic(expected = "Causality violation")]
fn a_helper_that_leaves_without_a_release_is_found() {
    check(1, Some(Bug::RelaxedLeave), counted::<2>(1, 1));
}
