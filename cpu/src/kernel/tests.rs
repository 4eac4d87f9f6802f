use super::*;
use crate::samples::{TestProduct, bits};

impl Kernels {
    /// Computes a product.
    ///
    /// # Safety
    /// A, B and C are as large as the product says.
    pub(crate) unsafe fn whole(&self, product: &Product) {
        let mut buffer = PackBuffer::new();
        // SAFETY: the caller's.
        unsafe { self.columns(&self.prepare(product, product.m, &mut buffer), 0, product.n) }
    }
}

fn whole(kernels: Kernels) -> impl Fn(&Product) {
    // SAFETY: samples own their matrices, and `available` gives what the processor has.
    move |product| unsafe { kernels.whole(product) }
}

#[test]
fn every_shape_is_as_a_sum_in_double_precision() {
    for kernels in available() {
        for transposed in [true, false] {
            for m in 1..=33 {
                for (n, k) in [(1, 1), (3, 7), (17, 16), (64, 33), (71, 64), (130, 129)] {
                    for more in [0, 5] {
                        let sample = TestProduct::new(transposed, (m, n, k), more);
                        sample.check(&sample.compute(whole(kernels)), kernels.name);
                    }
                }
            }
        }
    }
}

#[test]
fn every_length_of_a_row_and_of_a_column_has_its_tail() {
    for kernels in available() {
        for transposed in [true, false] {
            for length in 1..=80 {
                for (n, k) in [(length, 19), (19, length)] {
                    let sample = TestProduct::new(transposed, (3, n, k), 1);
                    sample.check(&sample.compute(whole(kernels)), kernels.name);
                }
            }
        }
    }
}

/// Small enough for Miri, which checks the address of every block: `cargo +nightly miri test -p
/// paceline-cpu --lib ends_of_c`.
#[test]
fn blocks_at_the_ends_of_c_stay_inside_its_allocation() {
    for kernels in available() {
        for transposed in [true, false] {
            for m in [1, 2, 3, 7] {
                for n in [1, 2, 4, 5, 8, 9, 12] {
                    let sample = TestProduct::new(transposed, (m, n, 9), 0);
                    sample.check(&sample.compute(whole(kernels)), kernels.name);
                }
            }
        }
    }
}

#[test]
fn factors_are_applied_and_c_is_not_read_without_one() {
    for kernels in available() {
        for transposed in [true, false] {
            for alpha in [0.0, 1.0, -0.75] {
                for beta in [0.0, 1.0, 2.5] {
                    let sample = TestProduct::new(transposed, (5, 37, 41), 3).scaled(alpha, beta);
                    sample.check(&sample.compute(whole(kernels)), kernels.name);
                }
            }
        }
    }
}

/// Tests the purpose of the crate.
#[test]
fn a_row_has_the_same_bits_among_any_others() {
    for kernels in available() {
        for transposed in [true, false] {
            for (n, k) in [(70, 100), (129, 256), (9, 1)] {
                // More than any border between ways of computing.
                let most = 300;
                let sample = TestProduct::new(transposed, (most, n, k), 2);
                let all = bits(&sample.compute(whole(kernels)));
                for m in (1..=52).chain([95, 96, 97, 239, 240, 241, most]) {
                    for from in [0, (most - m) / 2, most - m] {
                        let part = bits(&sample.part(from..from + m, 0..n).compute(whole(kernels)));
                        assert_eq!(
                            part,
                            all[from..from + m],
                            "{} {m} rows from {from}",
                            kernels.name
                        );
                    }
                }
            }
        }
    }
}

#[test]
fn an_element_has_the_same_bits_in_any_column() {
    for kernels in available() {
        for transposed in [true, false] {
            for m in [1, 2, 3, 7, 16] {
                let (n, k) = (93, 77);
                let sample = TestProduct::new(transposed, (m, n, k), 0);
                let all = bits(&sample.compute(whole(kernels)));
                for (from, to) in [(0, 1), (1, 2), (5, 93), (64, 80), (13, 30), (92, 93)] {
                    let part = bits(&sample.part(0..m, from..to).compute(whole(kernels)));
                    let cut: Vec<Vec<u32>> = all.iter().map(|row| row[from..to].to_vec()).collect();
                    assert_eq!(part, cut, "{} columns {from}..{to} of {m} rows", kernels.name);
                }
            }
        }
    }
}

/// Masked positions have probability 0 in attention: how many there are behind the last must not
/// show.
#[test]
fn zeros_behind_the_last_probability_change_nothing() {
    for kernels in available() {
        let mut sample = TestProduct::new(false, (2, 64, 90), 0);
        for row in 0..2 {
            (50..90).for_each(|p| sample.set_a(row, p, 0.0));
        }
        let shorter = sample.compute(|product| {
            // SAFETY: fewer columns of A and rows of B are a part of the product.
            unsafe { kernels.whole(&Product { k: 50, ..*product }) }
        });
        assert_eq!(bits(&shorter), bits(&sample.compute(whole(kernels))), "{}", kernels.name);
    }
}

#[test]
fn a_nan_stays_in_its_row() {
    for kernels in available() {
        for transposed in [true, false] {
            for (value, k) in [(f32::NAN, 40), (f32::INFINITY, 40), (f32::NAN, 16)] {
                let clean = TestProduct::new(transposed, (7, 21, k), 1);
                let mut sample = TestProduct::new(transposed, (7, 21, k), 1);
                sample.set_a(3, k - 1, value);
                let (clean, found) =
                    (clean.compute(whole(kernels)), sample.compute(whole(kernels)));
                for row in 0..7 {
                    match row {
                        3 => assert!(
                            found[row].iter().all(|value| !value.is_finite()),
                            "{}",
                            kernels.name
                        ),
                        _ => assert_eq!(found[row], clean[row], "{}", kernels.name),
                    }
                }
            }
        }
    }
}
