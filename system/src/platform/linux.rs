//! Linux: /proc and /sys.

use std::fs::File;
use std::io;
use std::os::fd::{BorrowedFd, FromRawFd as _, OwnedFd};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use nix::sys::socket::{getsockopt, sockopt};
use nix::time::ClockId;
use paceline_checkpoint::xdg;

/// This clock stands still during sleep, as do the timers of std, tokio, poll and epoll.
pub(super) const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;

pub(super) const KILL_STRANDS_MEMORY: bool = false;

/// sun_path is 108 bytes, NUL included.
pub(super) const MAX_SOCKET_PATH: usize = 107;

pub(super) fn process_start(pid: u32) -> Option<u64> {
    let (state, start) = stat(pid)?;
    (!matches!(state, 'Z' | 'X')).then_some(start)
}

pub(super) fn process_age(pid: u32) -> Option<Duration> {
    let started = process_start(pid)?;
    // SAFETY: takes a number and returns one.
    let ticks_per_second = u64::try_from(unsafe { libc::sysconf(libc::_SC_CLK_TCK) }).ok()?;
    // The kernel counts the start from the boot, sleep included.
    let now = Duration::from(nix::time::clock_gettime(ClockId::CLOCK_BOOTTIME).ok()?);
    let started = Duration::from_millis(started.checked_mul(1_000)?.checked_div(ticks_per_second)?);
    Some(now.saturating_sub(started))
}

pub(super) fn process_stopped(pid: u32) -> bool {
    stat(pid).is_some_and(|(state, _)| state == 'T')
}

pub(super) fn port_holder(port: u16) -> Option<(String, u32)> {
    let tables = ["/proc/net/tcp", "/proc/net/tcp6"].map(std::fs::read_to_string);
    let lines = tables.iter().flatten().flat_map(|table| table.lines().skip(1));
    let socket = lines.filter_map(|line| listening_inode(line, port)).next()?;
    let target = format!("socket:[{socket}]");
    let processes = std::fs::read_dir("/proc").ok()?.flatten();
    let mut pids = processes.filter_map(|entry| entry.file_name().to_str()?.parse::<u32>().ok());
    let pid = pids.find(|pid| {
        let files = std::fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
        files.into_iter().any(|file| {
            std::fs::read_link(file.path()).is_ok_and(|link| link.as_os_str() == target.as_str())
        })
    })?;
    let name = std::fs::read_to_string(format!("/proc/{pid}/comm")).ok()?;
    Some((name.trim_end().to_owned(), pid))
}

/// The inode of the socket in a line of `/proc/net/tcp` (proc_pid_net(5)) if it listens on this port.
fn listening_inode(line: &str, port: u16) -> Option<&str> {
    const LISTENS: &str = "0A";
    let mut fields = line.split_whitespace().skip(1);
    let (_, local) = fields.next()?.rsplit_once(':')?;
    let is_it = u16::from_str_radix(local, 16) == Ok(port) && fields.nth(1)? == LISTENS;
    // Queues, timer, retransmissions, user and timeout stand between the state and the inode.
    fields.nth(5).filter(|_| is_it)
}

/// State and starttime of a process.
fn stat(pid: u32) -> Option<(char, u64)> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The second field is a name in parentheses that may hold anything: count from its end. State
    // is then the first field, starttime (22nd of proc(5)) the twentieth.
    let mut fields = stat.rsplit_once(')')?.1.split_whitespace();
    let state = fields.next()?.chars().next()?;
    Some((state, fields.nth(18)?.parse().ok()?))
}

pub(super) fn process_end(pid: u32) -> io::Result<OwnedFd> {
    // SAFETY: takes two numbers and returns a new descriptor of our own, close-on-exec, or an
    // error.
    let fd = unsafe { libc::syscall(libc::SYS_pidfd_open, pid as libc::pid_t, 0) };
    if fd < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the call above made it for us alone.
    Ok(unsafe { OwnedFd::from_raw_fd(fd as i32) })
}

pub(super) fn boot_id() -> Option<String> {
    let id = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").ok()?;
    Some(id.trim().to_owned())
}

pub(super) fn write_barrier(file: &File) -> io::Result<()> {
    // Linux has no weaker call: fsync also empties the drive's cache.
    file.sync_all()
}

/// PR_SET_DUMPABLE 0. Then the kernel writes no core of this process, also not to a program of
/// `core_pattern`, which RLIMIT_CORE 0 does not stop. It refuses ptrace, process_vm_readv,
/// pidfd_getfd and /proc/PID/{environ,maps,mem,fd,io} to other processes, those of the same user
/// included. Exempt are processes with CAP_SYS_PTRACE (for reads of memory also CAP_PERFMON).
///
/// Our processes still work with one another: signals and pidfd_open check the user id,
/// /proc/PID/{stat,status,cmdline} stay readable, SCM_RIGHTS and SO_PEERCRED do not check the flag.
/// A process still reads its own /proc/self/{fd,maps,cgroup,mountinfo}; /proc/self/{environ,io}
/// then belong to root and are not used. `exec` sets the flag back to 1, so each program has to
/// call this.
///
/// A /proc that is mounted with `hidepid` uses the same flag. A supervisor could no longer read
/// /proc/PID/stat of its own workers and would take them for dead. There the flag is left at 1.
pub(super) fn deny_memory_access() {
    let mounts = std::fs::read_to_string("/proc/self/mountinfo").unwrap_or_default();
    if hides_processes(&mounts) {
        return;
    }
    // SAFETY: sets a flag of this process and touches no memory. It cannot fail with this argument.
    unsafe {
        libc::prctl(libc::PR_SET_DUMPABLE, 0, 0, 0, 0);
    }
}

/// Whether /proc shows a user only processes that may be traced, by the lines of
/// /proc/self/mountinfo (proc(5)).
fn hides_processes(mounts: &str) -> bool {
    let mut options = mounts.lines().filter_map(|line| {
        let (mount, file_system) = line.split_once(" - ")?;
        (mount.split(' ').nth(4)? == "/proc").then_some(file_system)
    });
    // The last mount at a place covers the ones before it.
    let hidepid = options.next_back().and_then(|options| {
        options.split([' ', ',']).find_map(|word| word.strip_prefix("hidepid="))
    });
    hidepid.is_some_and(|value| !matches!(value, "0" | "off"))
}

pub(super) fn available_memory() -> Option<u64> {
    memory("MemAvailable:", true)
}

pub(super) fn machine_memory() -> Option<u64> {
    memory("MemTotal:", false)
}

/// Bytes in this line of /proc/meminfo, or in the control group if it allows fewer.
fn memory(line: &str, is_free: bool) -> Option<u64> {
    let table = std::fs::read_to_string("/proc/meminfo").ok()?;
    let line = table.lines().find_map(|text| text.strip_prefix(line))?;
    let machine = line.split_whitespace().next()?.parse::<u64>().ok()? * 1024;
    let groups = std::fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let group = group_memory(&groups, Path::new("/sys/fs/cgroup"), is_free);
    Some(group.map_or(machine, |group| group.min(machine)))
}

/// Bytes that the control group of `groups` (/proc/self/cgroup) and its ancestors allow, as in a
/// container; with `is_free` those that are still free. `None` if they have no bound, or are of
/// version 1. Pages of files are evicted when memory is short, so they count as free, as in
/// MemAvailable.
fn group_memory(groups: &str, root: &Path, is_free: bool) -> Option<u64> {
    let group = root.join(groups.lines().find_map(|line| line.strip_prefix("0::/"))?);
    let left = |dir: &Path| {
        let read = |name: &str| std::fs::read_to_string(dir.join(name)).ok();
        // Without a bound it is the word `max`.
        let most: u64 = read("memory.max")?.trim().parse().ok()?;
        if !is_free {
            return Some(most);
        }
        let current: u64 = read("memory.current")?.trim().parse().ok()?;
        let stat = read("memory.stat").unwrap_or_default();
        let files = stat.lines().filter_map(|line| {
            let (name, bytes) = line.split_once(' ')?;
            matches!(name, "inactive_file" | "active_file").then(|| bytes.parse::<u64>().ok())?
        });
        let held = current.saturating_sub(files.sum());
        Some(most.saturating_sub(held))
    };
    group.ancestors().take_while(|dir| dir.starts_with(root)).filter_map(left).min()
}

pub(super) fn peak_memory_bytes(pid: u32) -> Option<u64> {
    let status = std::fs::read_to_string(format!("/proc/{pid}/status")).ok()?;
    // A zombie has no such line.
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"))?;
    Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
}

pub(super) fn processor_name() -> Option<String> {
    // Processors of ARM have no such line.
    let table = std::fs::read_to_string("/proc/cpuinfo").ok()?;
    let line = table.lines().find(|line| line.starts_with("model name"))?;
    Some(line.split_once(':')?.1.trim().to_owned())
}

pub(super) fn wired_memory() -> Option<super::WiredMemory> {
    // The kernel frees everything that a killed process held, also memory of a GPU.
    None
}

pub(super) fn give_back_freed_memory() {
    // glibc retains freed blocks between blocks in use until this call. musl has no such call and
    // retains little.
    #[cfg(target_env = "gnu")]
    // SAFETY: malloc_trim takes the allocator's own locks and may be called at any time from any
    // thread.
    unsafe {
        libc::malloc_trim(0);
    }
}

pub(super) fn share_heap() {
    // musl has one heap.
    #[cfg(target_env = "gnu")]
    // SAFETY: sets a number of the allocator's under its own lock.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

pub(super) fn is_tcp_listener(socket: BorrowedFd<'_>) -> io::Result<bool> {
    Ok(getsockopt(&socket, sockopt::AcceptConn)?)
}

pub(super) fn enlarge_buffers(_socket: BorrowedFd<'_>) {
    // net.core.wmem_default is 208 KiB, which is enough, and also the most that an ordinary process
    // may set.
}

pub(super) fn stderr_path() -> io::Result<PathBuf> {
    // Opening this link opens the file again.
    Ok("/proc/self/fd/2".into())
}

pub(super) fn launchd_sockets(_key: &str) -> io::Result<Option<Vec<OwnedFd>>> {
    Ok(None)
}

pub(super) fn abstract_address(name: &str) -> io::Result<SocketAddr> {
    SocketAddr::from_abstract_name(name)
}

pub(super) fn config_dir() -> Option<PathBuf> {
    xdg("XDG_CONFIG_HOME", ".config")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_proc_that_hides_processes_is_found() {
        let mounts = |options: &str| {
            format!(
                "21 1 0:20 / / rw - overlay none rw,hidepid=2\n22 27 0:21 / /proc rw,nosuid shared:5 - proc proc {options}\n"
            )
        };
        for (options, hides) in [
            ("rw", false),
            ("rw,hidepid=0", false),
            ("rw,hidepid=off", false),
            ("rw,gid=4,hidepid=1", true),
            ("rw,hidepid=2", true),
            ("rw,hidepid=invisible,subset=pid", true),
            ("rw,hidepid=ptraceable", true),
        ] {
            assert_eq!(hides_processes(&mounts(options)), hides, "{options}");
        }
        assert!(
            !hides_processes(&(mounts("rw,hidepid=2") + &mounts("rw"))),
            "the last mount counts"
        );
        assert!(!hides_processes(""));
    }

    #[test]
    fn the_tightest_control_group_counts() {
        let temp = tempfile::tempdir().expect("a temporary directory");
        let root = temp.path();
        let group = |path: &str, most: &str, current: u64, stat: &str| {
            let dir = root.join(path);
            std::fs::create_dir_all(&dir).expect("a directory");
            for (name, text) in [
                ("memory.max", most),
                ("memory.current", &current.to_string()),
                ("memory.stat", stat),
            ] {
                std::fs::write(dir.join(name), format!("{text}\n")).expect("a file");
            }
        };
        let left = |groups: &str| group_memory(groups, root, true);
        let all = |groups: &str| group_memory(groups, root, false);
        group("pod/worker", "max", 700, "");
        assert_eq!(left("0::/pod/worker\n"), None, "nothing is bounded");
        // Files do not count as held, and what the pod has is not the worker's alone.
        group("pod", "1000", 900, "anon 600\ninactive_file 200\nactive_file 50\nslab 1");
        assert_eq!(left("0::/pod/worker\n"), Some(350));
        group("pod/worker", "500", 400, "anon 300\nfile 100\ninactive_file 0");
        assert_eq!(left("1:name=systemd:/x\n0::/pod/worker\n"), Some(100));
        group("pod/worker", "500", 600, "");
        assert_eq!(left("0::/pod/worker\n"), Some(0), "over its bound");
        assert_eq!(all("0::/pod/worker\n"), Some(500), "the bound itself");
        // In a container its own group is the root.
        group("", "2000", 500, "inactive_file 100");
        assert_eq!((left("0::/\n"), left("0::/elsewhere\n")), (Some(1_600), Some(1_600)));
        assert_eq!((left("4:memory:/pod\n"), left("")), (None, None), "of version 1, or unknown");
    }
}
