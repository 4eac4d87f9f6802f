//! macOS: libproc and sysctl. Names and layouts checked against libc's bindings; not run on a Mac
//! yet.

use std::ffi::{CStr, CString};
use std::fs::File;
use std::io;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::unix::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use nix::sys::socket::{SockType, getsockopt, setsockopt, sockopt};
use nix::time::ClockId;
use paceline_checkpoint::{home_dir, xdg};

/// CLOCK_MONOTONIC of macOS goes on during sleep. This clock stands still, as do the timers of std,
/// tokio, poll and kqueue. Source: Apple's Libc, gen/clock_gettime.c.
pub(super) const CLOCK: ClockId = ClockId::from_raw(libc::CLOCK_UPTIME_RAW);

/// Memory that Metal has wired may stay wired.
pub(super) const KILL_STRANDS_MEMORY: bool = true;

/// sun_path is 104 bytes, NUL included.
pub(super) const MAX_SOCKET_PATH: usize = 103;

/// Near the 208 KiB that Linux gives a socket by default.
const SOCKET_BUFFER_BYTES: usize = 256 << 10;

pub(super) fn process_start(pid: u32) -> Option<u64> {
    let info = bsdinfo(pid)?;
    // A zombie has the status SZOMB (5 in <sys/proc.h>).
    (info.pbi_status != 5).then(|| info.pbi_start_tvsec * 1_000_000 + info.pbi_start_tvusec)
}

pub(super) fn process_age(pid: u32) -> Option<Duration> {
    // The kernel notes the start by the wall clock.
    let now = Duration::from(nix::time::clock_gettime(ClockId::CLOCK_REALTIME).ok()?);
    // After a step of the wall clock backwards the age is unknown, and the least is taken.
    Some(now.saturating_sub(Duration::from_micros(process_start(pid)?)))
}

pub(super) fn process_stopped(pid: u32) -> bool {
    // SSTOP (4 in <sys/proc.h>).
    bsdinfo(pid).is_some_and(|info| info.pbi_status == 4)
}

pub(super) fn port_holder(port: u16) -> Option<(String, u32)> {
    // The sockets of a process have no stable layout in libproc. lsof comes with the system; in each
    // line a letter says what follows.
    let filter = format!("-iTCP:{port}");
    let arguments = ["-nP", &filter, "-sTCP:LISTEN", "-Fpc"];
    let output = std::process::Command::new("/usr/sbin/lsof").args(arguments).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let field = |letter: char| text.lines().find_map(|line| line.strip_prefix(letter));
    Some((field('c')?.to_owned(), field('p')?.parse().ok()?))
}

fn bsdinfo(pid: u32) -> Option<libc::proc_bsdinfo> {
    let size = std::mem::size_of::<libc::proc_bsdinfo>() as libc::c_int;
    // SAFETY: proc_bsdinfo is plain data; proc_pidinfo writes at most `size` bytes into it.
    let (info, written) = unsafe {
        let mut info: libc::proc_bsdinfo = std::mem::zeroed();
        let target = (&raw mut info).cast::<libc::c_void>();
        let written =
            libc::proc_pidinfo(pid as libc::c_int, libc::PROC_PIDTBSDINFO, 0, target, size);
        (info, written)
    };
    (written == size).then_some(info)
}

pub(super) fn process_end(pid: u32) -> io::Result<OwnedFd> {
    use nix::sys::event::{EvFlags, EventFilter, FilterFlag, KEvent, Kqueue};
    // A queue is readable while an event waits in it. ESRCH is a process that is gone.
    let queue = Kqueue::new()?;
    let flags = EvFlags::EV_ADD | EvFlags::EV_ONESHOT;
    let exit =
        KEvent::new(pid as usize, EventFilter::EVFILT_PROC, flags, FilterFlag::NOTE_EXIT, 0, 0);
    queue.kevent(&[exit], &mut [], None)?;
    let queue = OwnedFd::from(queue);
    fcntl(&queue, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC))?;
    Ok(queue)
}

pub(super) fn boot_id() -> Option<String> {
    // A UUID in text, made at each boot (sysctl(8): kern.bootsessionuuid).
    sysctl_text(c"kern.bootsessionuuid")
}

pub(super) fn processor_name() -> Option<String> {
    sysctl_text(c"machdep.cpu.brand_string")
}

/// A text of sysctl(3), if it is shorter than 128 bytes.
fn sysctl_text(name: &CStr) -> Option<String> {
    let mut text = [0u8; 128];
    let mut length: libc::size_t = text.len();
    // SAFETY: the name ends with NUL; the call writes at most `length` bytes to `text` and sets
    // `length` to how many.
    let outcome = unsafe {
        libc::sysctlbyname(
            name.as_ptr(),
            text.as_mut_ptr().cast(),
            &raw mut length,
            std::ptr::null_mut(),
            0,
        )
    };
    let text = text.get(..length).filter(|_| outcome == 0)?;
    CStr::from_bytes_until_nul(text).ok()?.to_str().ok().map(str::to_owned)
}

pub(super) fn write_barrier(file: &File) -> io::Result<()> {
    use std::os::fd::AsRawFd as _;
    // fsync(2) leaves the order to the drive, and F_FULLFSYNC (which `File::sync_all` is here)
    // empties its cache, tens of milliseconds each time. The barrier keeps the order, which is all
    // that is needed. SAFETY: takes no argument beside the descriptor, which is open as long as
    // `file` is borrowed.
    if unsafe { libc::fcntl(file.as_raw_fd(), libc::F_BARRIERFSYNC) } == 0 {
        return Ok(());
    }
    // Not every file system has barriers.
    // SAFETY: as above.
    match unsafe { libc::fsync(file.as_raw_fd()) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

pub(super) fn deny_memory_access() {
    // Memory of another process needs its task port. Without root, task_for_pid gives that only for
    // programs that are signed with the entitlement get-task-allow. PT_DENY_ATTACH is not used: it
    // would kill a process that a person debugs on purpose, and denies nothing beyond ptrace. Core
    // files are stopped by RLIMIT_CORE.
}

pub(super) fn available_memory() -> Option<u64> {
    let statistics = vm_statistics()?;
    // Free pages, pages that belong to files, and purgeable ones. The kernel gives these up without
    // compressing anything. Inactive pages do not count: most are anonymous, and freeing those
    // needs compression. Speculative pages are in both of the first two counts (osfmk/kern/host.c
    // and vm_page_speculate of osfmk/vm/vm_resident.c), so they are taken from one.
    let free = statistics.free_count.saturating_sub(statistics.speculative_count);
    let pages = [free, statistics.external_page_count, statistics.purgeable_count];
    Some(pages.into_iter().map(u64::from).sum::<u64>() * page_bytes()?)
}

pub(super) fn peak_memory_bytes(pid: u32) -> Option<u64> {
    // SAFETY: rusage_info_v4 is plain data; proc_pid_rusage fills one structure of this flavor.
    let (usage, result) = unsafe {
        let mut usage: libc::rusage_info_v4 = std::mem::zeroed();
        let buffer = (&raw mut usage).cast::<libc::rusage_info_t>();
        let result = libc::proc_pid_rusage(pid as libc::c_int, libc::RUSAGE_INFO_V4, buffer);
        (usage, result)
    };
    (result == 0).then_some(usage.ri_lifetime_max_phys_footprint)
}

pub(super) fn wired_memory() -> Option<super::WiredMemory> {
    let pages = u64::from(vm_statistics()?.wire_count);
    Some(super::WiredMemory {
        wired_bytes: pages * page_bytes()?,
        machine_bytes: machine_memory()?,
    })
}

/// Bytes of a page as host_statistics64 counts them: the kernel's page, which sysconf reports.
fn page_bytes() -> Option<u64> {
    let bytes = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    u64::try_from(bytes).ok()
}

/// All bytes of the machine (sysctl(3): hw.memsize, 64 bits).
pub(super) fn machine_memory() -> Option<u64> {
    let mut bytes: u64 = 0;
    let mut length: libc::size_t = std::mem::size_of::<u64>();
    // SAFETY: the name ends with NUL; the call writes at most `length` bytes to `bytes` and sets
    // `length` to how many.
    let outcome = unsafe {
        libc::sysctlbyname(
            c"hw.memsize".as_ptr(),
            (&raw mut bytes).cast(),
            &raw mut length,
            std::ptr::null_mut(),
            0,
        )
    };
    (outcome == 0 && length == std::mem::size_of::<u64>() && bytes > 0).then_some(bytes)
}

/// Counts of the machine's pages, as the command vm_stat prints them.
fn vm_statistics() -> Option<libc::vm_statistics64> {
    #[allow(
        deprecated,
        reason = "libc advises the crate mach2, which would be one more dependency for one function"
    )]
    // SAFETY: takes nothing and returns the task's own port of the host, which lives as long as the
    // task.
    let host = unsafe { libc::mach_host_self() };
    let mut count = libc::HOST_VM_INFO64_COUNT;
    // SAFETY: the structure is plain data. host_statistics64 writes at most `count` words into it,
    // which is its size.
    let (statistics, result) = unsafe {
        let mut statistics: libc::vm_statistics64 = std::mem::zeroed();
        let words = (&raw mut statistics).cast::<libc::integer_t>();
        let result = libc::host_statistics64(host, libc::HOST_VM_INFO64, words, &raw mut count);
        (statistics, result)
    };
    (result == libc::KERN_SUCCESS).then_some(statistics)
}

pub(super) fn is_tcp_listener(socket: BorrowedFd<'_>) -> io::Result<bool> {
    // The kernel has no SO_ACCEPTCONN (bsd/kern/uipc_socket.c), so the state of the connection says
    // it. Only TCP has one.
    if getsockopt(&socket, sockopt::SockType)? != SockType::Stream {
        return Ok(false);
    }
    /// TCPS_LISTEN of <netinet/tcp_fsm.h>.
    const LISTEN: u8 = 1;
    let mut length = std::mem::size_of::<libc::tcp_connection_info>() as libc::socklen_t;
    // SAFETY: the structure is plain data. getsockopt writes at most `length` bytes into it.
    let (info, result) = unsafe {
        let mut info: libc::tcp_connection_info = std::mem::zeroed();
        let value = (&raw mut info).cast::<libc::c_void>();
        let (level, name) = (libc::IPPROTO_TCP, libc::TCP_CONNECTION_INFO);
        let result = libc::getsockopt(socket.as_raw_fd(), level, name, value, &raw mut length);
        (info, result)
    };
    if result == 0 { Ok(info.tcpi_state == LISTEN) } else { Err(io::Error::last_os_error()) }
}

pub(super) fn enlarge_buffers(socket: BorrowedFd<'_>) {
    // Unix sockets start with 8 KiB (PIPSIZ of bsd/kern/uipc_usrreq.c). Smaller buffers cost
    // wake-ups and nothing else, so errors are ignored.
    let _ = setsockopt(&socket, sockopt::SndBuf, &SOCKET_BUFFER_BYTES);
    let _ = setsockopt(&socket, sockopt::RcvBuf, &SOCKET_BUFFER_BYTES);
}

pub(super) fn stderr_path() -> io::Result<PathBuf> {
    // Opening /dev/fd/2 would duplicate the descriptor, and fails for reading where it is open for
    // writing only.
    let mut path = PathBuf::new();
    fcntl(io::stderr(), FcntlArg::F_GETPATH(&mut path))?;
    Ok(path)
}

pub(super) fn share_heap() {
    // Its zones are shared by all threads, and give back what they can under pressure.
}

pub(super) fn give_back_freed_memory() {
    // malloc_zone_pressure_relief of <malloc/malloc.h>, which libc does not bind: no zone is all
    // zones, a goal of 0 as much as there is.
    unsafe extern "C" {
        fn malloc_zone_pressure_relief(zone: *mut libc::c_void, goal: libc::size_t)
        -> libc::size_t;
    }
    // SAFETY: declared as the header has it; it takes the zones' own locks.
    unsafe {
        malloc_zone_pressure_relief(std::ptr::null_mut(), 0);
    }
}

pub(super) fn launchd_sockets(key: &str) -> io::Result<Option<Vec<OwnedFd>>> {
    // launch_activate_socket of <launch.h> (libSystem), which libc does not bind.
    unsafe extern "C" {
        fn launch_activate_socket(
            name: *const libc::c_char,
            fds: *mut *mut libc::c_int,
            count: *mut libc::size_t,
        ) -> libc::c_int;
    }
    let name = CString::new(key).map_err(|_| io::Error::from(io::ErrorKind::InvalidInput))?;
    let (mut fds, mut count) = (std::ptr::null_mut::<libc::c_int>(), 0);
    // SAFETY: declared as the header has it; on success it sets both to an array that is ours to
    // free.
    match unsafe { launch_activate_socket(name.as_ptr(), &mut fds, &mut count) } {
        0 => {}
        // Not a job of launchd, or a job without such a socket: this process binds its own.
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

pub(super) fn config_dir() -> Option<PathBuf> {
    // First the place that command-line users expect, then the system's.
    let set = xdg("XDG_CONFIG_HOME", ".config").filter(|dir| dir.join("paceline").is_dir());
    set.or_else(|| home_dir().map(|home| home.join("Library/Application Support")))
}
