//! Streams that go on after a process below the gateway has ended: the client gets a pause, and the
//! tokens of an undisturbed run.

#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

mod drained;
mod kinds;
mod streams;
mod suspect;

use nix::sys::signal::Signal;
use paceline_tests::{Stack, signal};

/// A budget of restarts that these tests do not use up, and a queue that waits for a slow machine.
const MANY_LIVES: &str =
    "supervisor.restarts = 100000\nsupervisor.lease_s = 30\nlimits.queue_wait_s = 60\n";

fn kill(stack: &Stack, process: &str) {
    signal(stack.pid(process), Signal::SIGKILL);
}

/// Waits until the target of the next life serves.
fn replaced(stack: &Stack, before: u32) {
    stack.wait_status("another target", |status| {
        status["target"]["state"] == "ready" && status["target"]["pid"] != before
    });
}
