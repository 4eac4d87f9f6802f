use std::os::unix::process::ExitStatusExt as _;
use std::process::{Command, Stdio};
use std::sync::Barrier;
use std::time::{Duration, Instant};

use super::helpers::{INSIDE, OPEN};

use super::*;
use crate::kernel::{PORTABLE, available};
use crate::samples::{TestProduct, bits};

/// A pool of its own, with its helpers for the rest of the test process.
fn pool() -> &'static Pool {
    Box::leak(Box::new(Pool::new()))
}

impl Pool {
    /// Prepares and runs.
    ///
    /// # Safety
    /// The matrices are as large as the product says.
    unsafe fn run_prepared(
        &'static self,
        kernels: &Kernels,
        product: &Product,
        work: usize,
        helpers: usize,
    ) -> bool {
        let mut buffer = PackBuffer::new();
        // SAFETY: the caller's.
        unsafe {
            let partition = Partition::new(product, work, helpers + 1);
            {
                let product = &kernels.prepare(product, partition.rows, &mut buffer);
                let work = Multiplication { kernels, product, partition };
                let job = Job {
                    work: (&raw const work).cast(),
                    piece: Multiplication::piece,
                    pieces: partition.pieces(product),
                };
                self.run(job, helpers)
            }
        }
    }
}

fn best() -> Kernels {
    available().next().unwrap_or(PORTABLE)
}

#[test]
fn any_number_of_threads_gives_the_same_bits() {
    for kernels in available() {
        for transposed in [true, false] {
            for (m, n, k) in [
                (1, 1000, 333),
                (2, 65, 64),
                (7, 700, 50),
                (16, 515, 129),
                (32, 257, 40),
                (16, 64, 600),
                (100, 130, 70),
            ] {
                let sample = TestProduct::new(transposed, (m, n, k), 1);
                // SAFETY: the sample owns its matrices.
                let alone = sample.compute(|product| unsafe { kernels.whole(product) });
                sample.check(&alone, kernels.name);
                for threads in [2, 3] {
                    let pool = pool();
                    // Often, so that helpers come early, late and not at all.
                    for _ in 0..20 {
                        // SAFETY: as above.
                        let together = sample.compute(|product| unsafe {
                            assert!(pool.run_prepared(&kernels, product, m * n * k, threads - 1));
                        });
                        assert_eq!(
                            bits(&together),
                            bits(&alone),
                            "{} {threads} threads",
                            kernels.name
                        );
                    }
                    assert_eq!(pool.helpers.load(Ordering::Relaxed), threads - 1);
                }
            }
        }
    }
}

#[test]
fn callers_at_once_are_each_served() {
    let (pool, kernels) = (pool(), best());
    let refused = AtomicUsize::new(0);
    std::thread::scope(|scope| {
        for caller in 0..4 {
            let refused = &refused;
            scope.spawn(move || {
                let sample =
                    TestProduct::new(caller % 2 == 0, (1 + caller * 5, 600 + caller, 200), 0);
                // SAFETY: the sample owns its matrices.
                let right = sample.compute(|product| unsafe { kernels.whole(product) });
                for _ in 0..300 {
                    let found = sample.compute(|product| {
                        // SAFETY: as above.
                        if !unsafe { pool.run_prepared(&kernels, product, 1 << 20, 2) } {
                            refused.fetch_add(1, Ordering::Relaxed);
                            // SAFETY: as above.
                            unsafe { kernels.whole(product) }
                        }
                    });
                    assert_eq!(bits(&found), bits(&right));
                }
            });
        }
    });
    assert!(!pool.taken.0.load(Ordering::Relaxed));
    assert_eq!(pool.state.0.load(Ordering::Relaxed) & (OPEN | INSIDE), 0);
}

/// Helpers that sleep are woken: the bell is rung after they lay down, again and again.
#[test]
fn helpers_wake_from_sleep() {
    let (pool, kernels) = (pool(), best());
    let sample = TestProduct::new(true, (4, 640, 256), 0);
    // SAFETY: the sample owns its matrices.
    let right = sample.compute(|product| unsafe { kernels.whole(product) });
    for _ in 0..50 {
        // SAFETY: as above.
        let found = sample.compute(|product| unsafe {
            assert!(pool.run_prepared(&kernels, product, 1 << 20, 2));
        });
        assert_eq!(bits(&found), bits(&right));
        let end = Duration::from_secs(30);
        #[expect(clippy::disallowed_methods, reason = "a bound on a wait")]
        let begin = Instant::now();
        while pool.asleep.0.load(Ordering::SeqCst) < 2 {
            assert!(begin.elapsed() < end, "helpers do not lie down");
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_product_of_every_size_goes_through_the_shared_pool() {
    set_threads(3);
    assert_eq!(threads(), 3);
    for (m, n, k) in
        [(1, 1, 1), (1, 64, 4096), (1, 4096, 64), (32, 65, 2049), (3, 300, 300), (500, 70, 90)]
    {
        let sample = TestProduct::new(true, (m, n, k), 0);
        // SAFETY: the sample owns its matrices.
        sample.check(&sample.compute(|product| unsafe { run(&best(), product) }), "shared");
    }
    // A prompt's rows go through in bands, each of them cut; a row alone has the same bits.
    for transposed in [true, false] {
        let sample = TestProduct::new(transposed, (2 * BAND + 5, 200, 64), 0);
        // SAFETY: as above.
        let all = bits(&sample.compute(|product| unsafe { run(&best(), product) }));
        for row in [0, 5, BAND - 1, BAND, 2 * BAND + 4] {
            // SAFETY: as above.
            let alone = bits(
                &sample
                    .part(row..row + 1, 0..200)
                    .compute(|product| unsafe { run(&best(), product) }),
            );
            assert_eq!(alone[0], all[row], "row {row}");
        }
    }
    set_threads(0);
    assert_eq!(threads(), 1, "none would be no caller either");
}

/// Set in the process whose piece panics: the thread that does so.
const PANICS_ON: &str = "PACELINE_TEST_PANICS_ON";

/// Two pieces, one on the caller and one on a helper. The piece on `thread` panics while the other
/// thread is inside.
fn panic_on(thread: &str) {
    let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: a limit of this process, read during the call only. Without it the abort may leave a
    // core file.
    unsafe { libc::setrlimit(libc::RLIMIT_CORE, &none) };
    set_threads(2);
    let both_inside = Barrier::new(2);
    let mut rows = vec![0.0; 2 * ROWS_ALONE];
    fill_rows(&mut rows, ROWS_ALONE, ROWS_ALONE, |_, _| {
        both_inside.wait();
        let helper = std::thread::current().name() == Some("cpu-1");
        assert!(helper != (thread == "helper"), "a piece panics on the {thread}");
    });
}

#[test]
fn a_panic_in_a_shared_piece_aborts_the_process() {
    if let Some(thread) = std::env::var_os(PANICS_ON) {
        return panic_on(&thread.to_string_lossy());
    }
    // A backtrace needs more stack than any kernel.
    for (thread, backtrace) in [("helper", "0"), ("helper", "1"), ("caller", "0")] {
        let mut child = Command::new(std::env::current_exe().expect("a path"));
        child.args([
            "pool::tests::a_panic_in_a_shared_piece_aborts_the_process",
            "--exact",
            "--nocapture",
        ]);
        child.env(PANICS_ON, thread).env("RUST_BACKTRACE", backtrace);
        let child = child.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("it starts");
        let id = child.id() as libc::pid_t;
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        std::thread::spawn(move || sender.send(child.wait_with_output()));
        let Ok(output) = receiver.recv_timeout(Duration::from_secs(30)) else {
            // SAFETY: our own child, which nobody has waited for yet.
            unsafe { libc::kill(id, libc::SIGKILL) };
            panic!("a panic on the {thread} left the process hanging");
        };
        let output = output.expect("its end is read");
        let text = String::from_utf8_lossy(&output.stderr);
        assert_eq!(
            output.status.signal(),
            Some(libc::SIGABRT),
            "{thread}: {}\n{text}",
            output.status
        );
        assert!(text.contains(&format!("a piece panics on the {thread}")), "{text}");
        assert!(text.contains("a piece of a shared job panicked"), "{text}");
    }
}
