//! Memory that an idle target holds.

use crate::{Stack, usage, wait};

/// Memory of an idle target that has given back what was freed: what MLX holds in arrays, and what
/// is resident of its own memory. Not the link's ring: how much of that was touched depends on the
/// traffic since the last link.
pub fn memory(stack: &Stack) -> (u64, u64) {
    settle(stack);
    let stats = wait("the cache to be given back", || {
        Some(stack.target_stats()).filter(|stats| stats.mlx_cache_bytes == 0)
    });
    (stats.mlx_active_bytes, resident(stack.pid("target")))
}

/// Waits until no request is in the supervisor and none holds memory in the target. The target is
/// asked itself: the supervisor knows what the last heartbeat had, which may be older than the last
/// request.
pub fn settle(stack: &Stack) {
    wait("all requests to be over", || {
        let requests = stack.snapshot().ok()?.requests.unwrap_or_default();
        (requests.active == 0 && requests.queued == 0).then_some(())
    });
    stack.probe_target().until_held("all memory to be given back", |bytes| bytes == 0);
}

/// Bytes of a process's own that are resident, once they stand still.
pub fn resident(pid: u32) -> u64 {
    let mut before = vec![];
    wait("resident memory to stand still", || {
        let now = usage::resident(pid);
        before.push(now);
        before.iter().rev().take(5).all(|bytes| *bytes == now).then_some(now)
    })
}
