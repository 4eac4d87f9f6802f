//! Linux: /proc.

use std::io;
use std::os::fd::{FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::PathBuf;

/// sun_path is 108 bytes, NUL included.
pub(super) const MAX_SOCKET_PATH: usize = 107;

pub(super) fn process_start(pid: u32) -> Option<u64> {
    let (state, start) = stat(pid)?;
    (!matches!(state, 'Z' | 'X')).then_some(start)
}

pub(super) fn process_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

/// State and starttime of a process.
fn stat(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may hold anything: count from its end. State is then the first
    // field, starttime (22nd of proc(5)) the twentieth.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

pub(super) fn process_end(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes two numbers and returns a new descriptor of our own, close-on-exec, or an error.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made it for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(super) fn available_memory() -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

pub(super) fn give_back_freed_memory() {
    // Blocks freed between blocks in use stay with glibc until it is asked; musl has no such call and keeps little.
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks and may be called at any time from any thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

pub(super) fn launchd_sockets(_key: &str) -> io::Result<Option<Vec<OwnedFd>>> {
    Ok(None)
}

pub(super) fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

pub(super) fn cache_dir() -> Option<PathBuf> {
    super::xdg("XDG_CACHE_HOME", ".cache")
}

pub(super) fn config_dir() -> Option<PathBuf> {
    super::xdg("XDG_CONFIG_HOME", ".config")
}
