//! macOS: libproc and sysctl. Names and layouts checked against libc's bindings; not run on a Mac yet.

use std::ffi::CString;
use std::io;
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::SocketAddr;
use std::path::PathBuf;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};

/// What Metal has wired may stay so.
pub(super) const KILL_STRANDS_MEMORY: bool = true;

/// sun_path is 104 bytes, NUL included.
pub(super) const MAX_SOCKET_PATH: usize = 103;

pub(super) fn process_start(pid: u32) -> Option<u64> {
    let info = bsdinfo(pid)?;
    // A zombie has the status SZOMB (5 in <sys/proc.h>).
    (info.pbi_status != 5).then(|| info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec)
}

pub(super) fn process_stopped(pid: u32) -> bool {
    // SSTOP (4 in <sys/proc.h>).
    bsdinfo(pid).is_some_and(|info| info.pbi_status == 4)
}

fn bsdinfo(pid: u32) -> Option<libc::proc_bsdinfo> {
    let size = std::mem::size_of::<libc::proc_bsdinfo>() as libc::c_int;
    // SAFETY: proc_bsdinfo is plain data; proc_pidinfo writes at most `size` bytes into it.
    let (info, written) = unsafe {
        let mut info: libc::proc_bsdinfo = std::mem::zeroed();
        let target = (&raw mut info).cast::<libc::c_void>();
        let written = libc::proc_pidinfo(pid as libc::c_int, libc::PROC_PIDTBSDINFO, 0, target, size);
        (info, written)
    };
    (written == size).then_some(info)
}

pub(super) fn process_end(pid: u32) -> io::Result<OwnedFd> {
    use std::os::fd::{AsRawFd as _, FromRawFd as _};
    // SAFETY: takes nothing and returns a new descriptor of our own, or an error.
    let queue = unsafe { libc::kqueue() };
    if queue < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made it for us alone. A queue is readable while an event waits in it.
    let queue = unsafe { OwnedFd::from_raw_fd(queue) };
    let watch = libc::kevent {
        ident: pid as usize,
        filter: libc::EVFILT_PROC,
        flags: libc::EV_ADD | libc::EV_ONESHOT,
        fflags: libc::NOTE_EXIT,
        data: 0,
        udata: std::ptr::null_mut(),
    };
    // SAFETY: reads one kevent and writes none; ESRCH, reported as an error, is a process that is gone.
    let done = unsafe { libc::kevent(queue.as_raw_fd(), &raw const watch, 1, std::ptr::null_mut(), 0, std::ptr::null()) };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: sets one flag of our own descriptor.
    unsafe { libc::fcntl(queue.as_raw_fd(), libc::F_SETFD, libc::FD_CLOEXEC) };
    Ok(queue)
}

pub(super) fn available_memory() -> Option<u64> {
    // What is free or can be had back at once: free, inactive and purgeable pages of vm_stat. The command rather than
    // host_statistics64, whose bindings differ between libc versions.
    let output = std::process::Command::new("/usr/bin/vm_stat").output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let page_bytes: u64 = text.lines().next()?.split("page size of ").nth(1)?.split_whitespace().next()?.parse().ok()?;
    let pages = |name: &str| -> u64 {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.and_then(|rest| rest.trim().trim_end_matches('.').parse().ok()).unwrap_or(0)
    };
    Some((pages("Pages free:") + pages("Pages inactive:") + pages("Pages purgeable:")) * page_bytes)
}

pub(super) fn share_heap() {
    // Its zones are shared by all threads, and give back what they can under pressure.
}

pub(super) fn give_back_freed_memory() {
    // malloc_zone_pressure_relief of <malloc/malloc.h>, which libc does not bind: no zone is all zones, a goal of 0 as much as
    // there is.
    unsafe extern "C" {
        fn malloc_zone_pressure_relief(zone: *mut libc::c_void, goal: libc::size_t) -> libc::size_t;
    }
    // SAFETY: declared as the header has it; it takes the zones' own locks.
    unsafe {
        malloc_zone_pressure_relief(std::ptr::null_mut(), 0);
    }
}

pub(super) fn launchd_sockets(key: &str) -> io::Result<Option<Vec<OwnedFd>>> {
    // launch_activate_socket of <launch.h> (libSystem), which libc does not bind.
    unsafe extern "C" {
        fn launch_activate_socket(name: *const libc::c_char, fds: *mut *mut libc::c_int, count: *mut libc::size_t)
        -> libc::c_int;
    }
    let name = CString::new(key).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (mut fds, mut count) = (std::ptr::null_mut::<libc::c_int>(), 0);
    // SAFETY: declared as the header has it; on success it sets both to an array that is ours to free.
    match unsafe { launch_activate_socket(name.as_ptr(), &mut fds, &mut count) } {
        0 => {}
        // Not a job of launchd, or one without such a socket: who started us meant us to bind ourselves.
        libc::ESRCH | libc::ENOENT => return Ok(None),
        error => return Err(io::Error::from_raw_os_error(error)),
    }
    if fds.is_null() {
        return Ok(None);
    }
    let sockets = (0..count).map(|at| {
        // SAFETY: the array has `count` descriptors, each of which is given to us and taken once.
        let socket = unsafe { OwnedFd::from_raw_fd(*fds.add(at)) };
        // Our own children must not keep it open.
        fcntl(&socket, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
        Ok(socket)
    });
    let sockets = sockets.collect::<io::Result<Vec<_>>>();
    // SAFETY: allocated for us by the call above, and not used any more.
    unsafe { libc::free(fds.cast()) };
    sockets.map(Some)
}

pub(super) fn abstract_address(_name: &str) -> io::Result<SocketAddr> {
    Err(io::ErrorKind::Unsupported.into())
}

pub(super) fn cache_dir() -> Option<PathBuf> {
    super::home().map(|home| home.join("Library/Caches"))
}

pub(super) fn config_dir() -> Option<PathBuf> {
    // Where command-line users look first, then the system's place.
    let set = super::xdg("XDG_CONFIG_HOME", ".config").filter(|dir| dir.join("paceline").is_dir());
    set.or_else(|| super::home().map(|home| home.join("Library/Application Support")))
}
