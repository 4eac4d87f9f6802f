//! Resources that a running process uses: memory, descriptors, threads, bytes read. One small file
//! for each system.

#[cfg(target_os = "linux")]
mod linux;
#[cfg(target_os = "macos")]
mod macos;

#[cfg(target_os = "linux")]
use linux as system;
#[cfg(target_os = "macos")]
use macos as system;

/// Bytes of the process's own memory that are resident. Linux: anonymous pages. macOS: the
/// footprint, which also counts compressed pages and memory of the GPU.
///
/// # Panics
/// The process does not run.
pub fn resident(pid: u32) -> u64 {
    system::resident(pid)
}

/// Bytes that the process has read from files. macOS counts only those that came from a disk.
///
/// # Panics
/// The process does not run.
pub fn bytes_read(pid: u32) -> u64 {
    system::bytes_read(pid)
}

/// Open descriptors of the process; `None` if it does not run.
pub fn descriptors(pid: u32) -> Option<usize> {
    system::descriptors(pid)
}

/// Threads of the process; `None` if it does not run.
pub fn threads(pid: u32) -> Option<usize> {
    system::threads(pid)
}

#[cfg(test)]
mod tests {
    #[test]
    fn figures_of_this_process_follow_what_it_does() {
        let pid = std::process::id();
        let before = (super::resident(pid), super::descriptors(pid).expect("it runs"));
        let block = vec![1_u8; 64 << 20];
        let files: Vec<_> =
            (0..50).map(|_| std::fs::File::open("/dev/null").expect("there")).collect();
        let after = (super::resident(pid), super::descriptors(pid).expect("it runs"));
        assert!(after.0 >= before.0 + (48 << 20), "{before:?} -> {after:?}, {} more", block.len());
        assert!(after.1 >= before.1 + 40, "{before:?} -> {after:?}, {} more", files.len());
        assert!(super::threads(pid).is_some_and(|threads| threads >= 1));
        let _ = super::bytes_read(pid);
        assert_eq!(
            (super::descriptors(0x7fff_fffe), super::threads(0x7fff_fffe)),
            (None, None),
            "no such process"
        );
    }
}
