//! macOS: libproc. Layouts as libc binds them; not run on a Mac yet.

use std::mem::{size_of, zeroed};

pub(super) fn resident(pid: u32) -> u64 {
    rusage(pid).ri_phys_footprint
}

pub(super) fn bytes_read(pid: u32) -> u64 {
    rusage(pid).ri_diskio_bytesread
}

fn rusage(pid: u32) -> libc::rusage_info_v2 {
    // SAFETY: the structure is plain data, and the flavor says that it is the one of version 2.
    let (usage, result) = unsafe {
        let mut usage: libc::rusage_info_v2 = zeroed();
        let result = libc::proc_pid_rusage(
            pid as libc::c_int,
            libc::RUSAGE_INFO_V2,
            (&raw mut usage).cast(),
        );
        (usage, result)
    };
    assert_eq!(result, 0, "process {pid}: {}", std::io::Error::last_os_error());
    usage
}

pub(super) fn descriptors(pid: u32) -> Option<usize> {
    // Without a buffer the call estimates the bytes it needs, with some to spare.
    // SAFETY: a null buffer of no size is not written to.
    let bytes = unsafe {
        libc::proc_pidinfo(pid as libc::c_int, libc::PROC_PIDLISTFDS, 0, std::ptr::null_mut(), 0)
    };
    let mut list = vec![0_u8; usize::try_from(bytes).ok().filter(|bytes| *bytes > 0)?];
    // SAFETY: the call writes at most as many bytes as the argument allows, all of them into the
    // buffer.
    let written = unsafe {
        libc::proc_pidinfo(
            pid as libc::c_int,
            libc::PROC_PIDLISTFDS,
            0,
            list.as_mut_ptr().cast(),
            bytes,
        )
    };
    usize::try_from(written)
        .ok()
        .filter(|written| *written > 0)
        .map(|written| written / size_of::<libc::proc_fdinfo>())
}

pub(super) fn threads(pid: u32) -> Option<usize> {
    let size = size_of::<libc::proc_taskinfo>() as libc::c_int;
    // SAFETY: the structure is plain data. proc_pidinfo writes at most `size` bytes into it.
    let (info, written) = unsafe {
        let mut info: libc::proc_taskinfo = zeroed();
        let target = (&raw mut info).cast::<libc::c_void>();
        let written =
            libc::proc_pidinfo(pid as libc::c_int, libc::PROC_PIDTASKINFO, 0, target, size);
        (info, written)
    };
    (written == size).then_some(info.pti_threadnum as usize)
}
