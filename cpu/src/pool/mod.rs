//! Cuts work into pieces and shares them with helper threads ([`helpers`]): some columns and rows
//! of a product, some rows of a function. Threads take pieces first come, first served. A helper
//! that the system keeps waiting (two workers share the cores) leaves its share to the others, and
//! the caller waits only for helpers that have begun. A product allocates nothing, unless its
//! packed rows are more than any before on the calling thread.
//!
//! A second caller meanwhile computes alone on its own thread. Which thread computes a column does
//! not change its bits.

mod helpers;
mod several;
mod sync;

use std::cell::RefCell;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, PoisonError};

use self::helpers::{Job, Pool};
use crate::kernel::{COLUMNS, Kernels, PackBuffer, Product};

pub(crate) use several::run_several;

/// More are not used: the products are bound by memory.
const MOST_THREADS: usize = 64;

/// Cost of a product beside its weights, in the same unit: multiplications of this many rows cost
/// as much as reading the weight.
pub(crate) const ROWS_PER_READ: usize = 4;

/// Weights (times [`ROWS_PER_READ`] rows) below which a product is computed by its caller alone:
/// some four microseconds. Above it the attention of one row kept the helpers waiting for longer
/// than they spin, so they slept 13 times a step (SmolLM2-135M, two cores) and now about once.
const ALONE: usize = 16 * 1024;

/// Weights of a piece, at least.
const PIECE: usize = 8 * 1024;

/// Columns of a piece of x · Wᵀ are a multiple of this, which no block is wider than. In multiples of
/// 64, two threads shared 576 columns as 384 and 192.
const FEW_COLUMNS: usize = 16;

/// Up to this many rows a product is bound by reading its weights.
const FEW: usize = 48;

/// Most rows that are packed at a time: 240 of 11,008 numbers are 10 MiB.
const BAND: usize = 240;

/// A product as the helpers see it.
struct Multiplication<'a> {
    kernels: &'a Kernels,
    product: &'a Product,
    partition: Partition,
}

impl Multiplication<'_> {
    /// One piece of the product at `work`.
    ///
    /// # Safety
    /// [`Partition::compute`]'s; `work` is a multiplication.
    unsafe fn piece(work: *const (), piece: usize) {
        // SAFETY: the caller's.
        unsafe {
            let Self { kernels, product, partition } = &*work.cast();
            partition.compute(kernels, product, piece);
        }
    }
}

/// Work whose pieces any thread may do, once each.
struct SharedWork<'a, F>(&'a F);

impl<F: Fn(usize) + Sync> SharedWork<'_, F> {
    /// # Safety
    /// `work` is one of these.
    unsafe fn piece(work: *const (), piece: usize) {
        // SAFETY: the caller's.
        let Self(function) = unsafe { &*work.cast() };
        function(piece);
    }
}

/// Numbers below which a function of rows is computed by its caller alone: some ten microseconds of
/// the dearest function.
const ROWS_ALONE: usize = 16 * 1024;

/// Fills `out`, rows of `length`, by `fill(row, numbers)`: with the helpers' help where it is much.
/// A row looks at `each` numbers.
pub(crate) fn fill_rows(
    out: &mut [f32],
    length: usize,
    each: usize,
    fill: impl Fn(usize, &mut [f32]) + Sync,
) {
    let rows = out.len().checked_div(length).unwrap_or(0);
    let work = rows.saturating_mul(each);
    let threads = if work < ROWS_ALONE { 1 } else { threads() };
    let pieces = (work / (ROWS_ALONE / 4)).clamp(1, 4 * threads).min(rows.max(1));
    if threads == 1 || pieces == 1 {
        out.chunks_exact_mut(length.max(1))
            .enumerate()
            .for_each(|(row, numbers)| fill(row, numbers));
        return;
    }
    /// The output, of which every piece writes its own rows.
    struct Out(*mut f32);
    // SAFETY: pieces do not overlap, and each is given out once.
    unsafe impl Sync for Out {}
    let place = Out(out.as_mut_ptr());
    let place = &place;
    let piece = |piece: usize| {
        for row in piece * rows / pieces..(piece + 1) * rows / pieces {
            // SAFETY: the row is `out`'s, and this piece's alone.
            fill(row, unsafe { std::slice::from_raw_parts_mut(place.0.add(row * length), length) });
        }
    };
    run_pieces(pieces, threads, &piece);
}

/// Calls `each` with every `length` numbers of `all`, on all threads.
pub(crate) fn for_each_part<T: Send>(all: &mut [T], length: usize, each: impl Fn(&mut [T]) + Sync) {
    let parts: Vec<_> = all.chunks_exact_mut(length).map(Mutex::new).collect();
    run_pieces(parts.len(), threads(), &|at: usize| {
        each(&mut parts[at].lock().unwrap_or_else(PoisonError::into_inner));
    });
}

/// Does each piece of some work once, on as many threads.
pub(crate) fn run_pieces(pieces: usize, threads: usize, piece: &(impl Fn(usize) + Sync)) {
    let work = SharedWork(piece);
    let job = Job { work: (&raw const work).cast(), piece: piece_of(&work), pieces };
    // SAFETY: the work lives until `run` is back.
    if threads == 1 || pieces <= 1 || !unsafe { POOL.run(job, threads - 1) } {
        (0..pieces).for_each(piece);
    }
}

/// Threads for work that reads `work` weights.
pub(crate) fn threads_for(work: usize) -> usize {
    if work < ALONE { 1 } else { threads() }
}

/// How a piece of such work is done; a function of its own because closures' types have no names.
fn piece_of<F: Fn(usize) + Sync>(_: &SharedWork<'_, F>) -> unsafe fn(*const (), usize) {
    SharedWork::<'_, F>::piece
}

static POOL: LazyLock<Pool> = LazyLock::new(Pool::new);

/// 0: not asked yet.
static THREADS: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_threads(n: usize) {
    THREADS.store(n.clamp(1, MOST_THREADS), Ordering::Relaxed);
}

/// Threads of a product, the caller's included.
fn threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            #[expect(
                clippy::disallowed_methods,
                reason = "OpenBLAS's own variable, which the supervisor sets for us too"
            )]
            let told = std::env::var("OPENBLAS_NUM_THREADS").ok();
            let told = told.and_then(|text| text.trim().parse::<usize>().ok()).filter(|n| *n > 0);
            set_threads(
                told.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)),
            );
            THREADS.load(Ordering::Relaxed)
        }
        n => n,
    }
}

thread_local! {
    /// The packed rows of a thread's products.
    static BUFFER: RefCell<PackBuffer> = const { RefCell::new(PackBuffer::new()) };
}

/// Computes a product, many rows in bands.
///
/// # Safety
/// A, B and C are as large as the product says, and C is nobody else's.
pub(crate) unsafe fn run(kernels: &Kernels, product: &Product) {
    let bands = product.m.div_ceil(BAND).max(1);
    let rows = product.m.div_ceil(bands).next_multiple_of(product.row_step());
    BUFFER.with_borrow_mut(|buffer| {
        for from in (0..product.m).step_by(rows) {
            // SAFETY: the caller's, and a band is of the product's rows.
            unsafe { band(kernels, &product.rows(from, (from + rows).min(product.m)), buffer) }
        }
    });
}

/// Computes a product of at most [`BAND`] rows.
///
/// # Safety
/// [`run`]'s.
unsafe fn band(kernels: &Kernels, product: &Product, buffer: &mut PackBuffer) {
    let work = work_of(product);
    let threads = threads_for(work);
    let partition = if threads == 1 {
        Partition::none(product)
    } else {
        Partition::new(product, work, threads)
    };
    // SAFETY: the caller's.
    unsafe {
        let product = kernels.prepare(product, partition.rows, buffer);
        let pieces = partition.pieces(&product);
        let work = Multiplication { kernels, product: &product, partition };
        let job = Job { work: (&raw const work).cast(), piece: Multiplication::piece, pieces };
        if partition.is_none(&product) || !POOL.run(job, threads - 1) {
            for piece in 0..pieces {
                partition.compute(kernels, &product, piece);
            }
        }
    }
}

/// Cost of a product, in weights that are read.
fn work_of(product: &Product) -> usize {
    let Product { m, n, k, .. } = *product;
    n.saturating_mul(k).saturating_mul(m.max(ROWS_PER_READ)) / ROWS_PER_READ
}

/// Partition of a product into pieces of `columns` columns and `rows` rows.
#[derive(Clone, Copy)]
struct Partition {
    columns: usize,
    rows: usize,
}

impl Partition {
    fn none(product: &Product) -> Self {
        Self { columns: product.n.max(1), rows: product.m.max(1) }
    }

    fn is_none(self, product: &Product) -> bool {
        self.columns >= product.n && self.rows >= product.m
    }

    /// Four pieces a thread keep the wait for the last one short; tiny ones would cost more than
    /// they save. Few rows are cut only where there are fewer columns than threads, as every piece
    /// of rows reads all weights.
    fn new(product: &Product, work: usize, threads: usize) -> Self {
        let Product { m, n, .. } = *product;
        let pieces = (work / PIECE).clamp(1, 4 * threads);
        let step = if product.transposed { FEW_COLUMNS } else { COLUMNS };
        let columns = n.div_ceil(pieces).next_multiple_of(step);
        let across = n.div_ceil(columns).max(1);
        let rows = match m {
            ..=FEW if across >= threads => m,
            ..=FEW => m.div_ceil(threads.min(pieces)),
            _ => m.div_ceil(pieces.div_ceil(across)).next_multiple_of(product.row_step()),
        };
        Self { columns, rows: rows.max(1) }
    }

    fn pieces(self, product: &Product) -> usize {
        product.n.div_ceil(self.columns) * product.m.div_ceil(self.rows)
    }

    /// Neighbouring pieces have the same columns, as weights are more than rows.
    ///
    /// # Safety
    /// [`Kernels::columns`]'s, for the piece's rows and columns; the product was prepared in tiles
    /// of `rows`.
    unsafe fn compute(self, kernels: &Kernels, product: &Product, piece: usize) {
        let bands = product.m.div_ceil(self.rows);
        let (row, column) = (piece % bands * self.rows, piece / bands * self.columns);
        // SAFETY: the caller's.
        unsafe {
            let part = product.rows(row, (row + self.rows).min(product.m));
            kernels.columns(&part, column, (column + self.columns).min(product.n));
        }
    }
}

#[cfg(test)]
mod tests;
