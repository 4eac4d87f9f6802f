//! The exported function: which products are ours.

use std::ffi::c_int;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::kernel::{self, Kernels, Product, ProductSizes, Steps, size};
use crate::{ProductCounts, openblas, pool};

// cblas.h
const ROW_MAJOR: c_int = 101;
const COLUMN_MAJOR: c_int = 102;
const PLAIN: c_int = 111;
const TRANSPOSED: c_int = 112;
const CONJUGATED: c_int = 113;

static OWN: AtomicU64 = AtomicU64::new(0);
static FORWARDED: AtomicU64 = AtomicU64::new(0);

pub(crate) fn calls() -> ProductCounts {
    ProductCounts { own: OWN.load(Ordering::Relaxed), forwarded: FORWARDED.load(Ordering::Relaxed) }
}

/// Chosen once: those that `PACELINE_INSTRUCTIONS` names, for measurements, else the best.
pub(crate) fn kernels() -> &'static Kernels {
    static CHOSEN: OnceLock<Kernels> = OnceLock::new();
    CHOSEN.get_or_init(|| {
        #[expect(clippy::disallowed_methods, reason = "read once, before the first product")]
        let wanted = std::env::var("PACELINE_INSTRUCTIONS").unwrap_or_default();
        named(&wanted)
    })
}

/// The kernels of this name; the best that the processor has if it lacks them, or nothing is named.
fn named(name: &str) -> Kernels {
    let found = kernel::available().find(|kernels| kernels.name == name);
    found.or_else(|| kernel::available().next()).unwrap_or(kernel::PORTABLE)
}

/// C = α·op(A)·op(B) + β·C, as CBLAS defines it.
///
/// # Safety
/// As for CBLAS: the matrices are as large as the arguments say, and C is nobody else's.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn cblas_sgemm(
    order: c_int,
    trans_a: c_int,
    trans_b: c_int,
    m: c_int,
    n: c_int,
    k: c_int,
    alpha: f32,
    a: *const f32,
    lda: c_int,
    b: *const f32,
    ldb: c_int,
    beta: f32,
    c: *mut f32,
    ldc: c_int,
) {
    if let Some(product) = ours(order, trans_a, trans_b, [m, n, k, lda, ldb, ldc]) {
        OWN.fetch_add(1, Ordering::Relaxed);
        let product = Product { alpha, a, b, beta, c, ..product };
        // SAFETY: the caller's; `kernels` are of this processor.
        unsafe { pool::run(kernels(), &product) }
        return;
    }
    FORWARDED.fetch_add(1, Ordering::Relaxed);
    match openblas::sgemm(cblas_sgemm) {
        // SAFETY: the caller's.
        Some(sgemm) => unsafe {
            sgemm(order, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc)
        },
        // SAFETY: the caller's.
        None => unsafe {
            alone(order, [trans_a, trans_b], [m, n, k], alpha, (a, lda), (b, ldb), beta, (c, ldc))
        },
    }
}

/// The product, its pointers still to be filled in, if it is one of those computed here. MLX always
/// asks in row-major order (mlx/backend/cpu/gemms/cblas.cpp), so products that are ours by
/// symmetry, in columns, are not looked for. It calls A transposed where strides allow both
/// readings, as in a single row (check_transpose in mlx/backend/cpu/matmul.cpp).
fn ours(order: c_int, trans_a: c_int, trans_b: c_int, sizes: [c_int; 6]) -> Option<Product> {
    if order != ROW_MAJOR
        || [trans_a, trans_b].iter().any(|trans| ![PLAIN, TRANSPOSED].contains(trans))
    {
        return None;
    }
    let [m, n, k, lda, ldb, ldc] = sizes.map(|size| usize::try_from(size).unwrap_or(0));
    let (across, transposed) = (trans_a == TRANSPOSED, trans_b == TRANSPOSED);
    let fits =
        lda >= if across { m } else { k } && ldb >= if transposed { k } else { n } && ldc >= n;
    let (a_row, a_step) = if across { (1, lda) } else { (lda, 1) };
    // Nothing to sum, and leading dimensions that cannot be, are OpenBLAS's to answer.
    (fits && m > 0 && n > 0 && k > 0).then_some(Product {
        transposed,
        m,
        n,
        k,
        alpha: 0.0,
        a: std::ptr::null(),
        a_row,
        a_step,
        packed: std::ptr::null(),
        b: std::ptr::null(),
        ldb,
        weight: std::ptr::null(),
        beta: 0.0,
        c: std::ptr::null_mut(),
        ldc,
    })
}

/// Any product without OpenBLAS. Arguments that CBLAS does not know change nothing.
///
/// # Safety
/// [`cblas_sgemm`]'s.
#[expect(clippy::too_many_arguments, reason = "a product has as many")]
unsafe fn alone(
    order: c_int,
    trans: [c_int; 2],
    sizes: [c_int; 3],
    alpha: f32,
    (a, lda): (*const f32, c_int),
    (b, ldb): (*const f32, c_int),
    beta: f32,
    (c, ldc): (*mut f32, c_int),
) {
    let [m, n, k] = sizes.map(size);
    let (Some(m), Some(n), Some(k), Some(lda), Some(ldb), Some(ldc)) =
        (m, n, k, size(lda), size(ldb), size(ldc))
    else {
        return;
    };
    let (rows, columns) = match order {
        ROW_MAJOR => (true, false),
        COLUMN_MAJOR => (false, true),
        _ => return,
    };
    if trans.iter().any(|trans| ![PLAIN, TRANSPOSED, CONJUGATED].contains(trans)) {
        return;
    }
    // Elements from row to row and from column to column.
    let steps = |ld: usize, transposed: bool| {
        if rows != transposed { Steps { row: ld, column: 1 } } else { Steps { row: 1, column: ld } }
    };
    let [a_steps, b_steps] =
        [(lda, trans[0]), (ldb, trans[1])].map(|(ld, trans)| steps(ld, trans != PLAIN));
    let c_steps = steps(ldc, columns && rows);
    // SAFETY: the caller's.
    unsafe {
        kernel::any_layout(
            ProductSizes { m, n, k },
            alpha,
            a,
            a_steps,
            b,
            b_steps,
            beta,
            c,
            c_steps,
        )
    }
}

#[cfg(test)]
mod tests;
