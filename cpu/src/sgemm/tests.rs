use super::*;
use crate::samples::{TestProduct, bits};

// So that there is one behind us. Nothing else in this executable asks for it.
#[link(name = "openblas")]
unsafe extern "C" {
    fn openblas_set_num_threads(n: c_int);
}

fn with_openblas() {
    // SAFETY: takes any positive number.
    unsafe { openblas_set_num_threads(1) };
}

/// Calls `cblas_sgemm` as MLX does.
fn call(product: &Product) {
    let Product { transposed, m, n, k, alpha, a, a_row, a_step, b, ldb, beta, c, ldc, .. } =
        *product;
    let int = |n: usize| c_int::try_from(n).expect("small");
    let (trans_a, lda) = if a_step == 1 { (PLAIN, a_row) } else { (TRANSPOSED, a_step) };
    let trans_b = if transposed { TRANSPOSED } else { PLAIN };
    // SAFETY: samples own their matrices.
    unsafe {
        let [m, n, k, lda, ldb, ldc] = [m, n, k, lda, ldb, ldc].map(int);
        cblas_sgemm(ROW_MAJOR, trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);
    }
}

#[test]
fn every_exported_product_is_right() {
    for transposed in [true, false] {
        for m in [1, 2, 31, 49, 64, 500] {
            for (alpha, beta) in [(1.0, 0.0), (1.0, 1.0), (-0.5, 0.25), (0.0, 2.0), (0.0, 0.0)] {
                let sample = TestProduct::new(transposed, (m, 77, 130), 2).scaled(alpha, beta);
                let found = sample.compute(call);
                sample.check(&found, "called");
                let across = sample.across().compute(call);
                assert_eq!(bits(&across), bits(&found), "A stored by columns, {m} rows");
            }
        }
    }
}

#[test]
fn products_are_counted_as_own_or_forwarded() {
    let sizes = [4, 8, 16, 16, 8, 8];
    assert!(ours(ROW_MAJOR, PLAIN, PLAIN, sizes).is_some());
    let by_rows = [4, 8, 16, 16, 16, 8];
    let across =
        ours(ROW_MAJOR, TRANSPOSED, TRANSPOSED, [4, 8, 16, 4, 16, 8]).expect("A by columns");
    assert_eq!((across.a_row, across.a_step), (1, 4));
    assert!(ours(ROW_MAJOR, TRANSPOSED, TRANSPOSED, [4, 8, 16, 3, 16, 8]).is_none());
    assert!(
        ours(ROW_MAJOR, PLAIN, TRANSPOSED, [5000, 8, 16, 16, 16, 8]).is_some(),
        "any number of rows"
    );
    assert!(ours(ROW_MAJOR, PLAIN, TRANSPOSED, by_rows).is_some());
    for (order, trans_a, trans_b) in [
        (COLUMN_MAJOR, PLAIN, PLAIN),
        (ROW_MAJOR, PLAIN, CONJUGATED),
        (ROW_MAJOR, CONJUGATED, TRANSPOSED),
        (0, PLAIN, PLAIN),
        (ROW_MAJOR, PLAIN, 7),
    ] {
        assert!(ours(order, trans_a, trans_b, by_rows).is_none(), "{order} {trans_a} {trans_b}");
    }
    // Rows, columns, depth, leading dimensions of A, B, C.
    for (at, wrong) in [(0, 0), (0, -1), (1, 0), (1, -3), (2, 0), (2, -1), (3, 15), (4, 15), (5, 7)]
    {
        let mut sizes = by_rows;
        sizes[at] = wrong;
        assert!(ours(ROW_MAJOR, PLAIN, TRANSPOSED, sizes).is_none(), "{at} {wrong}");
    }
}

#[test]
fn nothing_to_sum_leaves_c_to_its_factor() {
    with_openblas();
    let (a, b) = ([f32::NAN; 16], [f32::NAN; 16]);
    for (m, n, k, beta, expected) in [
        (0, 2, 2, 0.0, 3.0f32),
        (2, 0, 2, 0.0, 3.0),
        (2, 2, 0, 0.5, 1.5),
        (2, 2, 0, 0.0, 0.0),
        (2, 2, 0, 1.0, 3.0),
    ] {
        let before = crate::calls();
        let mut c = [3.0f32; 4];
        // SAFETY: all matrices have room for 2 × 2.
        unsafe {
            cblas_sgemm(
                ROW_MAJOR,
                PLAIN,
                TRANSPOSED,
                m,
                n,
                k,
                1.0,
                a.as_ptr(),
                2,
                b.as_ptr(),
                2,
                beta,
                c.as_mut_ptr(),
                2,
            );
        }
        assert_eq!(c, [expected; 4], "{m} {n} {k} {beta}");
        assert!(crate::calls().forwarded > before.forwarded);
    }
}

/// Checks every layout against OpenBLAS, so that the reference is not our own.
#[test]
fn without_openblas_every_layout_is_computed() {
    with_openblas();
    let theirs = openblas::sgemm(cblas_sgemm).expect("linked");
    let (m, n, k) = (5usize, 7usize, 9usize);
    let numbers = |count: usize, seed: f32| -> Vec<f32> {
        (0..count).map(|at| (at as f32 * seed).sin()).collect()
    };
    for order in [ROW_MAJOR, COLUMN_MAJOR] {
        for trans_a in [PLAIN, TRANSPOSED, CONJUGATED] {
            for trans_b in [PLAIN, TRANSPOSED, CONJUGATED] {
                for (alpha, beta) in [(1.0, 0.0), (0.5, -2.0), (0.0, 1.0)] {
                    let ld = 12;
                    let (a, b) = (numbers(ld * ld, 0.7), numbers(ld * ld, 1.3));
                    let mut both = [numbers(ld * ld, 0.1), numbers(ld * ld, 0.1)];
                    let [ours, right] = &mut both;
                    let sizes = [m, n, k].map(|size| size as c_int);
                    let ld = ld as c_int;
                    // SAFETY: every matrix has 12 rows and columns.
                    unsafe {
                        alone(
                            order,
                            [trans_a, trans_b],
                            sizes,
                            alpha,
                            (a.as_ptr(), ld),
                            (b.as_ptr(), ld),
                            beta,
                            (ours.as_mut_ptr(), ld),
                        );
                        let [m, n, k] = sizes;
                        let (a, b, c) = (a.as_ptr(), b.as_ptr(), right.as_mut_ptr());
                        theirs(order, trans_a, trans_b, m, n, k, alpha, a, ld, b, ld, beta, c, ld);
                    }
                    for (at, (ours, right)) in ours.iter().zip(right.iter()).enumerate() {
                        assert!(
                            (ours - right).abs() < 1e-5,
                            "{order} {trans_a} {trans_b} {at}: {ours} for {right}"
                        );
                    }
                }
            }
        }
    }
    let mut c = [1.0f32; 4];
    let (a, b) = ([1.0f32; 4], [1.0f32; 4]);
    for (order, trans, size) in [(9, PLAIN, 2), (ROW_MAJOR, 9, 2), (ROW_MAJOR, PLAIN, -2)] {
        let sizes = [2, size, 2];
        let c = c.as_mut_ptr();
        // SAFETY: nothing is read or written.
        unsafe {
            alone(order, [trans, PLAIN], sizes, 1.0, (a.as_ptr(), 2), (b.as_ptr(), 2), 0.0, (c, 2))
        };
    }
    assert_eq!(c, [1.0; 4]);
}

#[test]
fn callers_at_once_get_what_a_lone_one_gets() {
    let sample = || TestProduct::new(true, (4, 512, 600), 0);
    let right = bits(&sample().compute(call));
    std::thread::scope(|scope| {
        for _ in 0..3 {
            scope.spawn(|| {
                let sample = sample();
                (0..200).for_each(|_| assert_eq!(bits(&sample.compute(call)), right));
            });
        }
    });
}

#[test]
fn kernels_are_taken_by_name_and_else_the_best() {
    let best = kernel::available().next().expect("one at least").name;
    for kernels in kernel::available() {
        assert_eq!(named(kernels.name).name, kernels.name);
    }
    for name in ["", "avx1024"] {
        assert_eq!(named(name).name, best, "{name:?}");
    }
}
