//! Whether the message of a request has arrived.

use std::sync::atomic::{AtomicU8, Ordering};
use std::task::Waker;

use futures::task::AtomicWaker;

const ARRIVING: u8 = 0;
const ARRIVED: u8 = 1;
const DISPLACED: u8 = 2;

/// State of one request's message, shared between the front that reads the message and
/// [`super::RequestSlots`]. It changes once: the message arrives, or its request is displaced.
#[derive(Debug, Default)]
pub struct MessageArrival {
    state: AtomicU8,
    reader: AtomicWaker,
}

impl MessageArrival {
    /// Whether the message is still on its way.
    pub fn is_arriving(&self) -> bool {
        self.state.load(Ordering::Acquire) == ARRIVING
    }

    /// Ends the request because another one gets its slot. False if the message has arrived: then
    /// the request goes on.
    pub fn displace(&self) -> bool {
        let displaced = self.change(DISPLACED);
        if displaced {
            self.reader.wake();
        }
        displaced
    }

    /// Notes that the message is there, or that nothing waits for it any more. False if the request
    /// was displaced before.
    pub fn arrived(&self) -> bool {
        self.change(ARRIVED)
    }

    /// Whether another request got the slot.
    pub fn is_displaced(&self) -> bool {
        self.state.load(Ordering::Acquire) == DISPLACED
    }

    /// Wakes this reader when the request is displaced.
    pub fn wake_on_displacement(&self, reader: &Waker) {
        self.reader.register(reader);
    }

    fn change(&self, to: u8) -> bool {
        self.state.compare_exchange(ARRIVING, to, Ordering::AcqRel, Ordering::Acquire).is_ok()
    }
}
