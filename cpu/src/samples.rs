//! Numbers for tests: products with room around their matrices, and what they should give.

use crate::kernel::Product;

/// A product that owns its matrices. What lies around them is NaN, so that reading it shows.
pub(crate) struct TestProduct {
    a: Vec<f32>,
    b: Vec<f32>,
    c: Vec<f32>,
    lda: usize,
    shape: Product,
}

/// Rows of B.
fn rows_of_b(p: &Product) -> (usize, usize) {
    if p.transposed { (p.n, p.k) } else { (p.k, p.n) }
}

/// Numbers in -1..1, the same for the same seed.
pub(crate) fn numbers(seed: u64) -> impl Iterator<Item = f32> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    std::iter::repeat_with(move || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        ((state >> 40) as f32) / (1u64 << 23) as f32 - 1.0
    })
}

fn matrix(seed: u64, (rows, columns): (usize, usize), ld: usize) -> Vec<f32> {
    let mut cells = vec![f32::NAN; rows * ld + 1];
    let mut numbers = numbers(seed);
    for row in 0..rows {
        for cell in &mut cells[row * ld..][..columns] {
            *cell = numbers.next().expect("without end");
        }
    }
    cells
}

impl TestProduct {
    /// `more`: by how much leading dimensions are larger than they must be.
    pub(crate) fn new(transposed: bool, (m, n, k): (usize, usize, usize), more: usize) -> Self {
        let nothing = (std::ptr::null(), std::ptr::null_mut());
        let ldb = if transposed { k } else { n } + more;
        let (lda, ldc) = (k + more, n + more);
        let shape = Product {
            transposed,
            m,
            n,
            k,
            alpha: 1.0,
            a: nothing.0,
            a_row: lda,
            a_step: 1,
            packed: nothing.0,
            b: nothing.0,
            ldb,
            weight: std::ptr::null(),
            beta: 0.0,
            c: nothing.1,
            ldc,
        };
        let (a, b) = (matrix(1, (m, k), lda), matrix(2, rows_of_b(&shape), ldb));
        Self { a, b, c: matrix(3, (m, n), ldc), lda, shape }
    }

    pub(crate) fn scaled(mut self, alpha: f32, beta: f32) -> Self {
        (self.shape.alpha, self.shape.beta) = (alpha, beta);
        self
    }

    /// The product with A stored by columns.
    pub(crate) fn across(&self) -> Self {
        let Product { m, k, .. } = self.shape;
        let step = m + 2;
        let mut a = vec![f32::NAN; k * step];
        for row in 0..m {
            for at in 0..k {
                a[at * step + row] = self.a[row * self.lda + at];
            }
        }
        let shape = Product { a_row: 1, a_step: step, ..self.shape };
        Self { a, b: self.b.clone(), c: self.c.clone(), lda: self.lda, shape }
    }

    /// Sets an element of A.
    pub(crate) fn set_a(&mut self, row: usize, column: usize, value: f32) {
        self.a[row * self.lda + column] = value;
    }

    /// C before and after `compute`: its rows, without what lies between them.
    pub(crate) fn compute(&self, compute: impl FnOnce(&Product)) -> Vec<Vec<f32>> {
        let mut c = self.c.clone();
        if self.shape.beta == 0.0 {
            c.fill(f32::NAN);
        }
        let product =
            Product { a: self.a.as_ptr(), b: self.b.as_ptr(), c: c.as_mut_ptr(), ..self.shape };
        compute(&product);
        let Product { m, n, ldc, .. } = self.shape;
        for row in 0..m {
            assert!(
                c[row * ldc + n..(row + 1) * ldc].iter().all(|value| value.is_nan()),
                "written beside C"
            );
        }
        (0..m).map(|row| c[row * ldc..][..n].to_vec()).collect()
    }

    /// A part of the product: rows and columns of C.
    pub(crate) fn part(
        &self,
        rows: std::ops::Range<usize>,
        columns: std::ops::Range<usize>,
    ) -> Self {
        let (Product { transposed, ldb, ldc, .. }, lda) = (self.shape, self.lda);
        let shape = Product { m: rows.len(), n: columns.len(), ..self.shape };
        Self {
            a: self.a[rows.start * lda..].to_vec(),
            b: self.b[columns.start * if transposed { ldb } else { 1 }..].to_vec(),
            c: {
                // What was C's and is not the part's is beside it now.
                let mut c = vec![f32::NAN; rows.len() * ldc + 1];
                for row in 0..rows.len() {
                    let from = (rows.start + row) * ldc + columns.start;
                    c[row * ldc..][..columns.len()]
                        .copy_from_slice(&self.c[from..][..columns.len()]);
                }
                c
            },
            lda,
            shape,
        }
    }

    /// Asserts that `found` is the product, each element within what summing k products in any
    /// order may cost.
    pub(crate) fn check(&self, found: &[Vec<f32>], who: &str) {
        let (Product { transposed, m, n, k, alpha, ldb, beta, ldc, .. }, lda) =
            (self.shape, self.lda);
        assert_eq!((found.len(), found[0].len()), (m, n));
        for (i, row) in found.iter().enumerate() {
            for (j, found) in row.iter().enumerate() {
                let (mut sum, mut size) = (0.0f64, 0.0f64);
                for p in 0..k {
                    let b = if transposed { self.b[j * ldb + p] } else { self.b[p * ldb + j] };
                    let term = f64::from(self.a[i * lda + p]) * f64::from(b);
                    (sum, size) = (sum + term, size + term.abs());
                }
                let before = if beta == 0.0 {
                    0.0
                } else {
                    f64::from(beta) * f64::from(self.c[i * ldc + j])
                };
                let right = f64::from(alpha) * sum + before;
                let bound = (k as f64 + 4.0)
                    * f64::from(f32::EPSILON)
                    * (f64::from(alpha).abs() * size + before.abs());
                let off = (f64::from(*found) - right).abs();
                assert!(
                    off <= bound,
                    "{who} {m}x{n}x{k} transposed {transposed} ({i}, {j}): {found} for {right}"
                );
            }
        }
    }
}

pub(crate) fn bits(rows: &[Vec<f32>]) -> Vec<Vec<u32>> {
    rows.iter().map(|row| row.iter().map(|value| value.to_bits()).collect()).collect()
}
