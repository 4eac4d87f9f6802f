//! Loom's counterparts of `src/pool/sync.rs`: its types, a modelled futex, and the bugs that tests
//! plant in it.

use std::cell::{Cell, RefCell};
use std::io;

pub(crate) use loom::cell::UnsafeCell;
use loom::sync::atomic::Ordering;
pub(crate) use loom::sync::atomic::{AtomicBool, AtomicUsize};
use loom::thread::{self, JoinHandle, Thread};

/// A bug of the pool, planted where its calls come through.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Bug {
    /// Nobody is ever woken.
    LostWake,
    /// Bell and sleepers are not ordered by fences.
    NoFence,
    /// A helper leaves without a release, so that the caller may not see what it wrote.
    RelaxedLeave,
}

thread_local! {
    // All threads of a model run on one thread of the system. These are not loom's: they order
    // nothing.
    static BUG: Cell<Option<Bug>> = const { Cell::new(None) };
    /// Threads that sleep, longest first, with the address of their futex.
    static SLEEPERS: RefCell<Vec<(usize, Thread)>> = const { RefCell::new(vec![]) };
    static HELPERS: RefCell<Vec<JoinHandle<()>>> = const { RefCell::new(vec![]) };
}

/// Begins an execution of a model.
pub(crate) fn begin(bug: Option<Bug>) {
    BUG.set(bug);
    // An execution that failed may have left some.
    SLEEPERS.take();
    HELPERS.take();
}

fn planted(bug: Bug) -> bool {
    BUG.get() == Some(bug)
}

/// Loom's, with the orders that bugs change.
pub(crate) struct AtomicU32(loom::sync::atomic::AtomicU32);

impl AtomicU32 {
    pub(crate) fn new(value: u32) -> Self {
        Self(loom::sync::atomic::AtomicU32::new(value))
    }

    pub(crate) fn load(&self, order: Ordering) -> u32 {
        self.0.load(order)
    }

    pub(crate) fn store(&self, value: u32, order: Ordering) {
        self.0.store(value, order);
    }

    pub(crate) fn fetch_add(&self, more: u32, order: Ordering) -> u32 {
        self.0.fetch_add(more, order)
    }

    pub(crate) fn fetch_sub(&self, less: u32, order: Ordering) -> u32 {
        self.0.fetch_sub(less, if planted(Bug::RelaxedLeave) { Ordering::Relaxed } else { order })
    }

    pub(crate) fn fetch_and(&self, bits: u32, order: Ordering) -> u32 {
        self.0.fetch_and(bits, order)
    }

    pub(crate) fn fetch_or(&self, bits: u32, order: Ordering) -> u32 {
        self.0.fetch_or(bits, order)
    }

    pub(crate) fn fetch_update(
        &self,
        success: Ordering,
        failure: Ordering,
        update: impl FnMut(u32) -> Option<u32>,
    ) -> Result<u32, u32> {
        self.0.fetch_update(success, failure, update)
    }

    /// The newest value, and no order with other memory: as the kernel reads a futex under its
    /// lock. In loom that is what a compare-exchange does which fails; neither word ever has this
    /// value.
    fn newest(&self) -> u32 {
        let none = u32::MAX;
        self.0
            .compare_exchange(none, none, Ordering::Relaxed, Ordering::Relaxed)
            .unwrap_or_else(|found| found)
    }
}

pub(crate) fn fence(order: Ordering) {
    if !planted(Bug::NoFence) {
        loom::sync::atomic::fence(order);
    }
}

/// One look stands for all of a spin's: loom runs it early and late.
pub(crate) fn spin(done: impl Fn() -> bool) -> bool {
    done()
}

fn address(word: &AtomicU32) -> usize {
    (&raw const *word).addr()
}

/// The system's futex: reading the word and lying down are one step for every other call on the
/// word. A wake orders memory here, because it does in loom. The pool does not rely on that: it
/// loads the word again after each wake-up.
pub(crate) fn sleep(word: &AtomicU32, expected: u32) {
    if word.newest() != expected {
        return;
    }
    let this = thread::current();
    SLEEPERS.with_borrow_mut(|sleepers| sleepers.push((address(word), this.clone())));
    let sleeps = || {
        SLEEPERS.with_borrow(|sleepers| sleepers.iter().any(|(_, thread)| thread.id() == this.id()))
    };
    while sleeps() {
        thread::park();
    }
}

/// Wakes the threads that sleep longest.
pub(crate) fn wake(word: &AtomicU32, most: usize) {
    // Loom orders this against every call on the word.
    word.newest();
    if planted(Bug::LostWake) {
        return;
    }
    let mut left = most;
    let woken = |(at, _): &mut (usize, Thread)| {
        let wakes = *at == address(word) && left > 0;
        left -= usize::from(wakes);
        wakes
    };
    let woken: Vec<_> =
        SLEEPERS.with_borrow_mut(|sleepers| sleepers.extract_if(.., woken).collect());
    woken.iter().for_each(|(_, thread)| thread.unpark());
}

pub(crate) fn spawn(_: usize, life: impl FnOnce() + Send + 'static) -> io::Result<()> {
    let helper = thread::spawn(life);
    HELPERS.with_borrow_mut(|helpers| helpers.push(helper));
    Ok(())
}

/// In the bell: the model is over.
const STOP: u32 = 1 << 31;

pub(crate) fn goes_on(bell: u32) -> bool {
    bell & STOP == 0
}

/// Ends all helpers and waits for them.
pub(crate) fn stop(bell: &AtomicU32) {
    bell.fetch_or(STOP, Ordering::Release);
    BUG.set(None);
    wake(bell, usize::MAX);
    for helper in HELPERS.take() {
        helper.join().expect("no helper panics");
    }
}

/// The panic goes on: loom's own come through here and are its report.
pub(crate) fn abort(_message: &str) {}
