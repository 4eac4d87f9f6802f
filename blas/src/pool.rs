//! The threads that work is given out to in pieces (some columns and rows of a product, some rows of a function), first come,
//! first served: a helper that the system keeps waiting (two workers share the cores) leaves its share to the others, and the
//! caller waits only for helpers that have begun. A product allocates nothing, unless its packed rows are more than any
//! before on the calling thread.
//!
//! ```text
//!  caller   takes the pool ─ writes the job ─ opens it ─ rings ─ pieces… ─ closes it ─ waits until nobody is inside
//!  helper   sleeps on the bell ─ enters if the job is open ─ pieces… ─ leaves ─ listens for SPIN ─ sleeps
//! ```
//! A second caller meanwhile computes alone on its own thread. Which thread computes a column does not change its bits.

use std::cell::{RefCell, UnsafeCell};
use std::hint::spin_loop;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use crate::kernel::{COLUMNS, Kernels, Product, ROWS, Room};

/// How long a thread listens before it sleeps. The matrix products of one forward are some ten microseconds apart; more
/// would be taken from the other processes on the same cores.
const SPIN: Duration = Duration::from_micros(20);

/// More are not used: the products are bound by memory.
const MOST_THREADS: usize = 64;

/// What a product costs beside its weights, in the same unit: multiplications of so many rows cost as much as reading the
/// weight.
const ROWS_PER_READ: usize = 4;

/// Weights (times [`ROWS_PER_READ`] rows) below which a product is computed by its caller alone: waking another thread takes
/// as long.
const ALONE: usize = 64 * 1024;

/// Weights of a piece, at least.
const PIECE: usize = 16 * 1024;

/// Up to so many rows a product is bound by reading its weights.
const FEW: usize = 48;

/// Most rows that are packed at a time: 240 of 11,008 numbers are 10 MiB.
const BAND: usize = 240;

/// A cache line of its own, so that threads that write here do not slow those that read beside.
#[repr(align(128))]
struct Line<T>(T);

struct Job {
    /// What `piece` is told; the caller's, alive while somebody may be inside.
    work: *const (),
    /// Computes one piece of the work.
    piece: unsafe fn(*const (), usize),
    pieces: usize,
}

/// A product as the helpers see it.
struct Multiplication<'a> {
    kernels: &'a Kernels,
    product: &'a Product,
    cut: Cut,
}

impl Multiplication<'_> {
    /// One piece of the product at `work`.
    ///
    /// # Safety
    /// [`Cut::compute`]'s; `work` is a multiplication.
    unsafe fn piece(work: *const (), piece: usize) {
        // SAFETY: the caller's.
        unsafe {
            let Self { kernels, product, cut } = &*work.cast();
            cut.compute(kernels, product, piece);
        }
    }
}

/// Work whose pieces any thread may do, once each.
struct Shared<'a, F>(&'a F);

impl<F: Fn(usize) + Sync> Shared<'_, F> {
    /// # Safety
    /// `work` is one of these.
    unsafe fn piece(work: *const (), piece: usize) {
        // SAFETY: the caller's.
        let Self(function) = unsafe { &*work.cast() };
        function(piece);
    }
}

/// Numbers below which a function of rows is computed by its caller alone: some ten microseconds of the dearest function.
const ROWS_ALONE: usize = 16 * 1024;

/// Fills `out`, rows of `length`, by `fill(row, numbers)`: with the helpers' help where it is much. A row looks at `each` numbers.
pub(crate) fn fill_rows(out: &mut [f32], length: usize, each: usize, fill: impl Fn(usize, &mut [f32]) + Sync) {
    let rows = out.len().checked_div(length).unwrap_or(0);
    let work = rows.saturating_mul(each);
    let threads = if work < ROWS_ALONE { 1 } else { threads() };
    let pieces = (work / (ROWS_ALONE / 4)).clamp(1, 4 * threads).min(rows.max(1));
    if threads == 1 || pieces == 1 {
        out.chunks_exact_mut(length.max(1)).enumerate().for_each(|(row, numbers)| fill(row, numbers));
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
    let work = Shared(&piece);
    let job = Job { work: (&raw const work).cast(), piece: piece_of(&work), pieces };
    // SAFETY: the work lives until `run` is back.
    if !unsafe { POOL.run(job, threads - 1) } {
        (0..pieces).for_each(piece);
    }
}

/// How a piece of such work is done; a function of its own because closures' types have no names.
fn piece_of<F: Fn(usize) + Sync>(_: &Shared<'_, F>) -> unsafe fn(*const (), usize) {
    Shared::<'_, F>::piece
}

struct Pool {
    /// Some caller's.
    taken: Line<AtomicBool>,
    /// OPEN, WAITED_FOR, how many helpers may be inside (bits 8 to 15), how many are (bits 0 to 7).
    state: Line<AtomicU32>,
    /// Rung at each job. A futex.
    bell: Line<AtomicU32>,
    /// Helpers that sleep, or are about to.
    asleep: Line<AtomicU32>,
    /// Next piece.
    next: Line<AtomicUsize>,
    /// Written by the caller that has taken the pool while nobody is inside and the job is closed, read by those inside.
    job: UnsafeCell<Job>,
    helpers: AtomicUsize,
}

const OPEN: u32 = 1 << 31;
const WAITED_FOR: u32 = 1 << 30;
const INSIDE: u32 = 0xff;

// SAFETY: `job` is reached as its line says; the pointer in it is used only while the caller that owns it waits.
unsafe impl Sync for Pool {}

static POOL: Pool = Pool::new();

/// 0: not asked yet.
static THREADS: AtomicUsize = AtomicUsize::new(0);

pub(crate) fn set_threads(n: usize) {
    THREADS.store(n.clamp(1, MOST_THREADS), Ordering::Relaxed);
}

/// Threads of a product, the caller's included.
fn threads() -> usize {
    match THREADS.load(Ordering::Relaxed) {
        0 => {
            #[expect(clippy::disallowed_methods, reason = "OpenBLAS's own variable, which the supervisor sets for us too")]
            let told = std::env::var("OPENBLAS_NUM_THREADS").ok();
            let told = told.and_then(|text| text.trim().parse::<usize>().ok()).filter(|n| *n > 0);
            set_threads(told.unwrap_or_else(|| std::thread::available_parallelism().map_or(1, usize::from)));
            THREADS.load(Ordering::Relaxed)
        }
        n => n,
    }
}

/// Computes a product, many rows in bands.
///
/// # Safety
/// A, B and C are as large as the product says, and C is nobody else's.
pub(crate) unsafe fn run(kernels: &Kernels, product: &Product) {
    thread_local!(static ROOM: RefCell<Room> = const { RefCell::new(Room::new()) });
    let bands = product.m.div_ceil(BAND).max(1);
    let rows = product.m.div_ceil(bands).next_multiple_of(ROWS);
    ROOM.with_borrow_mut(|room| {
        for from in (0..product.m).step_by(rows) {
            // SAFETY: the caller's, and a band is of the product's rows.
            unsafe { band(kernels, &product.rows(from, (from + rows).min(product.m)), room) }
        }
    });
}

/// Computes a product of at most [`BAND`] rows.
///
/// # Safety
/// [`run`]'s.
unsafe fn band(kernels: &Kernels, product: &Product, room: &mut Room) {
    let Product { m, n, k, .. } = *product;
    let work = n.saturating_mul(k).saturating_mul(m.max(ROWS_PER_READ)) / ROWS_PER_READ;
    let threads = if work < ALONE { 1 } else { threads() };
    let cut = if threads == 1 { Cut::none(product) } else { Cut::new(product, work, threads) };
    // SAFETY: the caller's.
    unsafe {
        let product = kernels.prepare(product, cut.rows, room);
        let pieces = cut.pieces(&product);
        let work = Multiplication { kernels, product: &product, cut };
        let job = Job { work: (&raw const work).cast(), piece: Multiplication::piece, pieces };
        if cut.is_none(&product) || !POOL.run(job, threads - 1) {
            for piece in 0..pieces {
                cut.compute(kernels, &product, piece);
            }
        }
    }
}

/// How a product is cut into pieces: so many columns and rows each.
#[derive(Clone, Copy)]
struct Cut {
    columns: usize,
    rows: usize,
}

impl Cut {
    fn none(product: &Product) -> Self {
        Self { columns: product.n.max(1), rows: product.m.max(1) }
    }

    fn is_none(self, product: &Product) -> bool {
        self.columns >= product.n && self.rows >= product.m
    }

    /// Four pieces a thread keep the wait for the last one short; tiny ones would cost more than they save. Few rows are cut
    /// only where there are fewer columns than threads, as every piece of rows reads all weights.
    fn new(product: &Product, work: usize, threads: usize) -> Self {
        let Product { m, n, .. } = *product;
        let pieces = (work / PIECE).clamp(1, 4 * threads);
        let columns = n.div_ceil(pieces).next_multiple_of(COLUMNS);
        let across = n.div_ceil(columns).max(1);
        let rows = match m {
            ..=FEW if across >= threads => m,
            ..=FEW => m.div_ceil(threads.min(pieces)),
            _ => m.div_ceil(pieces.div_ceil(across)).next_multiple_of(ROWS),
        };
        Self { columns, rows: rows.max(1) }
    }

    fn pieces(self, product: &Product) -> usize {
        product.n.div_ceil(self.columns) * product.m.div_ceil(self.rows)
    }

    /// Neighbouring pieces have the same columns, as weights are more than rows.
    ///
    /// # Safety
    /// [`Kernels::columns`]'s, for the piece's rows and columns; the product was prepared in tiles of `rows`.
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

impl Pool {
    const fn new() -> Self {
        /// Nobody asks for a piece before there is a job.
        unsafe fn nothing(_: *const (), _: usize) {}
        Self {
            taken: Line(AtomicBool::new(false)),
            state: Line(AtomicU32::new(0)),
            bell: Line(AtomicU32::new(0)),
            asleep: Line(AtomicU32::new(0)),
            next: Line(AtomicUsize::new(0)),
            job: UnsafeCell::new(Job { work: std::ptr::null(), piece: nothing, pieces: 0 }),
            helpers: AtomicUsize::new(0),
        }
    }

    /// Does all pieces of a job with the helpers' help; `false`, and none of them, if the pool is another caller's.
    ///
    /// # Safety
    /// Each piece may be computed on any thread, and the job's work lives.
    unsafe fn run(&'static self, job: Job, helpers: usize) -> bool {
        if self.taken.0.compare_exchange(false, true, Ordering::Acquire, Ordering::Relaxed).is_err() {
            return false;
        }
        let helpers = self.hire(helpers);
        // SAFETY: the pool is ours, the last job was closed and everybody had left before it became ours.
        unsafe { *self.job.get() = job };
        self.next.0.store(0, Ordering::Relaxed);
        self.state.0.store(OPEN | (helpers as u32) << 8, Ordering::Release);
        // Bell before `asleep` here, `asleep` before bell in `helper`: one of us sees the other.
        self.bell.0.fetch_add(1, Ordering::SeqCst);
        if self.asleep.0.load(Ordering::SeqCst) > 0 {
            wake(&self.bell.0, helpers);
        }
        // SAFETY: the job is as the caller says.
        unsafe { self.pieces() };
        self.state.0.fetch_and(!OPEN, Ordering::AcqRel);
        self.wait_until_empty();
        self.taken.0.store(false, Ordering::Release);
        true
    }

    /// Pieces, until there are no more.
    ///
    /// # Safety
    /// The pool is the caller's, or the caller is inside.
    unsafe fn pieces(&self) {
        // SAFETY: nobody writes the job while somebody is inside.
        let Job { work, piece: compute, pieces } = unsafe { &*self.job.get() };
        loop {
            let piece = self.next.0.fetch_add(1, Ordering::Relaxed);
            if piece >= *pieces {
                return;
            }
            // SAFETY: each piece is given out once.
            unsafe { compute(*work, piece) };
        }
    }

    fn wait_until_empty(&self) {
        let state = &self.state.0;
        let empty = || state.load(Ordering::Acquire) & INSIDE == 0;
        if spin(empty) {
            return;
        }
        // A helper was taken off its core in the middle of a piece. Our own core is the best it can get.
        loop {
            let before = state.fetch_or(WAITED_FOR, Ordering::AcqRel);
            if before & INSIDE == 0 {
                return;
            }
            sleep(state, before | WAITED_FOR);
        }
    }

    /// How many helpers there are, of so many wanted.
    fn hire(&'static self, wanted: usize) -> usize {
        let there = self.helpers.load(Ordering::Relaxed);
        for at in there..wanted {
            let thread = std::thread::Builder::new().name(format!("blas-{}", at + 1)).stack_size(64 * 1024);
            // Without them the caller does the work: that is no reason to fail.
            if thread.spawn(move || self.helper()).is_err() {
                break;
            }
            self.helpers.store(at + 1, Ordering::Relaxed);
        }
        self.helpers.load(Ordering::Relaxed).min(wanted)
    }

    /// A helper's life.
    fn helper(&self) {
        let mut heard = self.bell.0.load(Ordering::SeqCst);
        loop {
            // A job whose bell rang before this thread was there is entered as well.
            if self.enter() {
                // SAFETY: inside.
                unsafe { self.pieces() };
                self.leave();
            }
            if !spin(|| self.bell.0.load(Ordering::Acquire) != heard) {
                self.asleep.0.fetch_add(1, Ordering::SeqCst);
                while self.bell.0.load(Ordering::SeqCst) == heard {
                    sleep(&self.bell.0, heard);
                }
                self.asleep.0.fetch_sub(1, Ordering::SeqCst);
            }
            heard = self.bell.0.load(Ordering::Acquire);
        }
    }

    fn enter(&self) -> bool {
        let admit = |state: u32| {
            let (inside, most) = (state & INSIDE, (state >> 8) & INSIDE);
            (state & OPEN != 0 && inside < most).then_some(state + 1)
        };
        self.state.0.fetch_update(Ordering::AcqRel, Ordering::Relaxed, admit).is_ok()
    }

    fn leave(&self) {
        let before = self.state.0.fetch_sub(1, Ordering::AcqRel);
        if before & INSIDE == 1 && before & WAITED_FOR != 0 {
            wake(&self.state.0, 1);
        }
    }
}

/// Whether something came true within [`SPIN`].
#[expect(clippy::disallowed_methods, reason = "a bound on spinning; nothing that is decided depends on it")]
fn spin(done: impl Fn() -> bool) -> bool {
    if done() {
        return true;
    }
    let begin = Instant::now();
    loop {
        for _ in 0..16 {
            if done() {
                return true;
            }
            spin_loop();
        }
        if begin.elapsed() >= SPIN {
            return false;
        }
    }
}

/// Sleeps while the word is still `expected`; may return early.
fn sleep(word: &AtomicU32, expected: u32) {
    let flags = libc::FUTEX_WAIT | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: the word outlives the call, and without a time the other arguments are not read.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), flags, expected, std::ptr::null::<libc::timespec>()) };
}

fn wake(word: &AtomicU32, most: usize) {
    let flags = libc::FUTEX_WAKE | libc::FUTEX_PRIVATE_FLAG;
    // SAFETY: as above.
    unsafe { libc::syscall(libc::SYS_futex, word.as_ptr(), flags, most as libc::c_int) };
}

#[cfg(test)]
mod tests;
