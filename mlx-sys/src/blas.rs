//! OpenBLAS: keeps it in the executable's list of libraries, and says how many threads it may use.

/// How many threads one matrix product may use, for the whole process. Does nothing where OpenBLAS
/// is not used (macOS). Without a call OpenBLAS takes `OPENBLAS_NUM_THREADS`, else one thread per
/// core.
pub fn set_blas_threads(n: usize) {
    imp::set_threads(n);
}

#[cfg(mlx_openblas)]
mod imp {
    use std::ffi::c_int;

    unsafe extern "C" {
        fn openblas_set_num_threads(n: c_int);
    }

    pub fn set_threads(n: usize) {
        let n = c_int::try_from(n.max(1)).unwrap_or(c_int::MAX);
        // SAFETY: takes any positive number (it clamps to what it was built for) and locks its own
        // thread pool.
        unsafe { openblas_set_num_threads(n) }
    }

    /// The linker drops libraries nothing refers to (`--as-needed`), and only libmlx calls
    /// OpenBLAS. A start-up function is a reference that no optimization and no section collection
    /// removes.
    #[used]
    #[unsafe(link_section = ".init_array")]
    static KEEP_OPENBLAS: extern "C" fn() = {
        extern "C" fn keep() {
            std::hint::black_box(openblas_set_num_threads as unsafe extern "C" fn(c_int));
        }
        keep
    };
}

#[cfg(not(mlx_openblas))]
mod imp {
    pub fn set_threads(_: usize) {}
}
