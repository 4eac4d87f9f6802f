//! Processes that hang, die often or cannot start, and a wall clock that jumps.

mod circuit;
#[cfg(target_os = "linux")]
mod clock;
mod frozen;
mod misplaced;
