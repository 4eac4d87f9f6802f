//! The `cblas_sgemm` behind ours.

use std::ffi::{c_int, c_void};
use std::sync::OnceLock;

/// As in cblas.h; enums are ints. OpenBLAS and the reference BLAS of Linux distributions have
/// 32-bit integers here, and MLX is compiled for them.
pub(crate) type Sgemm = unsafe extern "C" fn(
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    c_int,
    f32,
    *const f32,
    c_int,
    *const f32,
    c_int,
    f32,
    *mut f32,
    c_int,
);

/// The next one in the dynamic linker's order behind the executable: OpenBLAS, which mlx-sys puts
/// before libmlx. `None` in a process without any. `ours` is the function of that name in this
/// crate.
pub(crate) fn sgemm(ours: Sgemm) -> Option<Sgemm> {
    static NEXT: OnceLock<Option<Sgemm>> = OnceLock::new();
    *NEXT.get_or_init(|| {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"cblas_sgemm".as_ptr()) };
        // Were this crate in a shared library, the next one could be ourselves: a call without end.
        // SAFETY: a function of that name has CBLAS's signature.
        (!found.is_null() && found != ours as *mut c_void)
            .then(|| unsafe { std::mem::transmute::<*mut c_void, Sgemm>(found) })
    })
}
