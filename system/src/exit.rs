//! The end of a process without its destructors.

use paceline_vocabulary::Exit;

/// Ends the process at once, without destructors: a thread that cannot be ended may still use what
/// they would destroy.
pub fn exit_at_once(exit: Exit) -> ! {
    // SAFETY: no code of this process runs after it, so no state of its other threads matters.
    unsafe { libc::_exit(exit as i32) }
}
