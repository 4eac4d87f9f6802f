//! Several products of few rows each as one job, so that the threads meet once and not after each.

use super::{BAND, BUFFER, run_pieces, threads_for, work_of};
use crate::kernel::{COLUMNS, Kernels, Product};

/// Columns `from..to` of a product.
struct Piece {
    product: usize,
    from: usize,
    to: usize,
}

/// Products as the helpers see them.
struct Shared<'a>(&'a [Product]);

// SAFETY: the products are read only, and what they point at is the caller's of [`run_several`]
// until it returns; pieces write columns of their own.
unsafe impl Sync for Shared<'_> {}

impl Shared<'_> {
    /// A method, so that a closure captures all of this and not the slice in it.
    fn product(&self, at: usize) -> &Product {
        &self.0[at]
    }
}

/// Computes products, as many of them at a time as [`BAND`] rows are.
///
/// # Safety
/// [`super::run`]'s, for each; no C is another's.
pub(crate) unsafe fn run_several(kernels: &Kernels, products: &[Product]) {
    let mut rest = products;
    while !rest.is_empty() {
        let mut rows = 0;
        let fits = |product: &&Product| {
            rows += product.m;
            rows <= BAND
        };
        let count = rest.iter().take_while(fits).count();
        // SAFETY: the caller's.
        unsafe {
            if count == 0 {
                super::run(kernels, &rest[0]);
            } else {
                group(kernels, &rest[..count]);
            }
        }
        rest = &rest[count.max(1)..];
    }
}

/// Computes products of at most [`BAND`] rows together.
///
/// # Safety
/// [`run_several`]'s.
unsafe fn group(kernels: &Kernels, products: &[Product]) {
    let mut products = products.to_vec();
    let work: usize = products.iter().map(work_of).sum();
    let threads = threads_for(work);
    let pieces = pieces(&products, work, threads);
    BUFFER.with_borrow_mut(|buffer| {
        // SAFETY: the caller's.
        unsafe { kernels.prepare_all(&mut products, buffer) };
        let shared = Shared(&products);
        let piece = |piece: usize| {
            let Piece { product, from, to } = pieces[piece];
            // SAFETY: the caller's; each piece is given out once.
            unsafe { kernels.columns(shared.product(product), from, to) }
        };
        run_pieces(pieces.len(), threads, &piece);
    });
}

/// Four pieces a thread in all, each of whole blocks of columns.
fn pieces(products: &[Product], work: usize, threads: usize) -> Vec<Piece> {
    let mut pieces = Vec::with_capacity(products.len() + 4 * threads);
    for (product, Product { n, .. }) in products.iter().enumerate() {
        let share = (work_of(&products[product]) * 4 * threads).div_ceil(work.max(1));
        let step = if threads == 1 { *n } else { n.div_ceil(share.max(1)) };
        let step = step.next_multiple_of(COLUMNS).max(COLUMNS);
        for from in (0..*n).step_by(step) {
            pieces.push(Piece { product, from, to: (from + step).min(*n) });
        }
    }
    pieces
}
