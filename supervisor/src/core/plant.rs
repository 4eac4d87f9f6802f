//! Bugs that tests plant in the core, to see that the simulations catch them. In a product build
//! nothing of this exists.

use std::cell::Cell;

/// A planted bug.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Bug {
    /// Once the drafter was lost, requests are routed as if it were for ever.
    StickyFallback,
    /// Who waits when the target falls is never told.
    LostStatus,
    /// News of an earlier life of a worker is taken for news of this one.
    OldEpoch,
    /// A permit that did not reach the target is taken for one that did.
    LostPermit,
    /// Waiting requests are admitted in the order of their arrival, whatever their keys run.
    UnfairTurn,
}

thread_local! {
    static PLANTED: Cell<Option<Bug>> = const { Cell::new(None) };
    static FELL_BACK: Cell<bool> = const { Cell::new(false) };
}

/// Plants it in this thread, or takes what is planted out.
pub(super) fn plant(bug: Option<Bug>) {
    PLANTED.set(bug);
}

/// Whether it is planted.
pub(super) fn is(bug: Bug) -> bool {
    PLANTED.get() == Some(bug)
}

/// A core begins: it has not fallen back.
pub(super) fn begin() {
    FELL_BACK.set(false);
}

/// Whether it has fallen back, now or before.
pub(super) fn fell_back(now: bool) -> bool {
    FELL_BACK.set(FELL_BACK.get() || now);
    FELL_BACK.get()
}
