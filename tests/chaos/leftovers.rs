//! What a service must not have left after the faults: processes, descriptors, threads, shared
//! memory, KV memory, files of images, sockets.

use paceline_tests::resources::Resources;
use paceline_tests::{Stack, images, wait};

/// Processes whose resources are compared.
const PROCESSES: [&str; 5] = ["serve", "gateway", "supervisor", "target", "drafter"];

/// Resources of a service without requests.
#[derive(Debug)]
pub struct Leftovers {
    resources: Resources,
    sockets: usize,
    held_bytes: u64,
    images: usize,
}

impl Leftovers {
    /// Resources that the service holds now.
    pub fn of(stack: &Stack) -> Self {
        Self {
            resources: Resources::of(stack, &PROCESSES),
            sockets: stack.sockets().len(),
            held_bytes: stack.held_bytes(),
            images: images::waiting(stack).len(),
        }
    }

    /// Waits until the service holds no more than before the faults.
    ///
    /// # Panics
    /// It does not come to be so; the message has both.
    pub fn wait_for_none(&self, stack: &Stack) {
        // The supervisor stops a drafter that costs more than it gains. One of an earlier supervisor
        // is taken over first.
        wait("the drafter to be started", || {
            stack.paceline(&["drafter", "start"], "").status.success().then_some(())
        });
        stack.wait_linked();
        let mut now = None;
        let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            wait("the resources of before", || {
                let found = Self::of(stack);
                let settled = found.within(self);
                now = Some(found);
                settled.then_some(())
            });
        }));
        assert!(waited.is_ok(), "before {self:?}, now {now:?}, {:?}", stack.processes());
    }

    fn within(&self, before: &Self) -> bool {
        self.resources.within(&before.resources)
            && self.sockets == before.sockets
            && (self.held_bytes, self.images) == (0, 0)
    }
}
