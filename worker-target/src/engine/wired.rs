//! When the GPU's memory is wired (`target.wired`): from the first work on, until the engine has been
//! idle for a while. Decides; [`paceline_models::device::wire`] acts.

use std::time::Duration;

use paceline_process::config::WiredMemory;
use paceline_vocabulary::Millis;

/// Time without work after which memory is wired no longer, in milliseconds: between the messages of
/// a conversation it stays, and a forgotten service leaves the machine's memory to others.
const IDLE_MS: u64 = 60_000;

/// Whether memory is wired now, and since when the engine has been idle.
pub(crate) struct WiredState {
    setting: WiredMemory,
    is_wired: bool,
    idle_since: Option<Millis>,
    /// Wires, or ends that.
    wire: Box<dyn FnMut(bool)>,
}

impl WiredState {
    /// Nothing is wired yet.
    pub(crate) fn new(setting: WiredMemory, wire: impl FnMut(bool) + 'static) -> Self {
        Self { setting, is_wired: false, idle_since: None, wire: Box::new(wire) }
    }

    /// There is work: a step runs or waits for a draft.
    pub(super) fn works(&mut self) {
        self.idle_since = None;
        self.set(self.setting == WiredMemory::Running);
    }

    /// There is no work. Returns the time after which to ask again, if memory is wired.
    pub(super) fn rests(&mut self, now: Millis) -> Option<Duration> {
        let since = *self.idle_since.get_or_insert(now);
        let left = (since + IDLE_MS).0.saturating_sub(now.0);
        if left == 0 {
            self.set(false);
        }
        self.is_wired.then(|| Duration::from_millis(left))
    }

    /// The engine ends.
    pub(super) fn ends(&mut self) {
        self.set(false);
    }

    fn set(&mut self, wired: bool) {
        if self.is_wired != wired {
            self.is_wired = wired;
            (self.wire)(wired);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;
    use std::rc::Rc;

    use super::*;

    /// A state, and the calls that it made.
    fn state(setting: WiredMemory) -> (WiredState, Rc<RefCell<Vec<bool>>>) {
        let calls = Rc::new(RefCell::new(vec![]));
        let made = calls.clone();
        (WiredState::new(setting, move |wired| made.borrow_mut().push(wired)), calls)
    }

    #[test]
    fn memory_is_wired_from_the_first_work_until_a_minute_after_the_last() {
        let (mut wired, calls) = state(WiredMemory::Running);
        assert_eq!(wired.rests(Millis(0)), None, "before the first request nothing is wired");
        wired.works();
        wired.works();
        assert_eq!(*calls.borrow(), [true]);
        assert_eq!(wired.rests(Millis(1_000)), Some(Duration::from_secs(60)));
        assert_eq!(wired.rests(Millis(60_999)), Some(Duration::from_millis(1)));
        wired.works();
        assert_eq!(wired.rests(Millis(61_000)), Some(Duration::from_secs(60)), "a new pause");
        assert_eq!(*calls.borrow(), [true]);
        assert_eq!(wired.rests(Millis(121_000)), None);
        assert_eq!(*calls.borrow(), [true, false]);
        wired.works();
        wired.ends();
        wired.ends();
        assert_eq!(*calls.borrow(), [true, false, true, false]);
    }

    #[test]
    fn nothing_is_wired_unless_it_is_set() {
        let (mut wired, calls) = state(WiredMemory::Off);
        wired.works();
        assert_eq!(wired.rests(Millis(5)), None);
        wired.ends();
        assert!(calls.borrow().is_empty());
    }
}
