//! The one function of macOS that `mlx-rs` calls: the seed of its random state where none is given.

use std::time::{SystemTime, UNIX_EPOCH};

/// A number that differs from run to run; on macOS the ticks since the machine started.
#[unsafe(no_mangle)]
#[expect(clippy::disallowed_methods, reason = "a seed; no order and no duration is taken from it")]
pub extern "C" fn mach_approximate_time() -> u64 {
    let since_epoch = SystemTime::now().duration_since(UNIX_EPOCH);
    since_epoch.map_or(0, |elapsed| elapsed.as_nanos() as u64)
}
