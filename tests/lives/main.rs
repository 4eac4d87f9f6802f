//! Processes that hang, die often or cannot start, a machine that went down, and a wall clock that
//! jumps.

mod boot_mark;
mod circuit;
#[cfg(target_os = "linux")]
mod clock;
mod emptied;
mod frozen;
mod misplaced;
mod unloadable;
