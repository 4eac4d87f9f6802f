//! How fast products are, ours or OpenBLAS's: GB/s of weights and GFLOP/s by shape and rows,
//! medians.
//!
//! `cargo bench -p paceline-cpu -- [openblas] [rounds [threads]] [word]`. One of them in a
//! process: OpenBLAS's threads spin behind each product, on the core where ours would work. With a
//! word only the shapes with it in their names.

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
mod linux {
    use std::ffi::c_int;
    use std::time::Instant;

    use paceline_cpu::{cblas_sgemm, instructions, set_threads};

    #[link(name = "openblas")]
    unsafe extern "C" {
        fn openblas_set_num_threads(n: c_int);
    }

    type Sgemm = unsafe extern "C" fn(
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

    /// The one behind ours.
    fn theirs() -> Sgemm {
        // SAFETY: the name ends with a zero.
        let found = unsafe { libc::dlsym(libc::RTLD_NEXT, c"cblas_sgemm".as_ptr()) };
        assert!(!found.is_null(), "OpenBLAS is linked");
        // SAFETY: a function of that name has that signature.
        unsafe { std::mem::transmute::<*mut libc::c_void, Sgemm>(found) }
    }

    /// Weights of one shape, as many sets as asked for, so that they come from the cache or from
    /// memory as in a model.
    struct Case {
        transposed: bool,
        n: usize,
        k: usize,
        weights: Vec<Vec<f32>>,
    }

    impl Case {
        fn new(transposed: bool, (n, k): (usize, usize), sets: usize) -> Self {
            let weights = (0..sets)
                .map(|set| (0..n * k).map(|at| ((at + set) % 17) as f32 * 0.1).collect())
                .collect();
            Self { transposed, n, k, weights }
        }

        /// Seconds for one pass over `sets` sets of weights.
        fn seconds(&self, sgemm: Sgemm, sets: usize, a: &[f32], c: &mut [f32], m: usize) -> f64 {
            let (trans, ldb) = if self.transposed { (112, self.k) } else { (111, self.n) };
            let begin = Instant::now();
            for weights in &self.weights[..sets] {
                let [m, n, k, ldb] = [m, self.n, self.k, ldb].map(|size| size as c_int);
                // SAFETY: `a` and `c` hold 1024 rows of the largest shape, weights are n × k.
                unsafe {
                    sgemm(
                        101,
                        111,
                        trans,
                        m,
                        n,
                        k,
                        1.0,
                        a.as_ptr(),
                        k,
                        weights.as_ptr(),
                        ldb,
                        0.0,
                        c.as_mut_ptr(),
                        n,
                    );
                }
            }
            begin.elapsed().as_secs_f64()
        }
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    // More than 60 lines: a tool's steps in order, with nothing to share.
    pub fn main() {
        // cargo adds `--bench`.
        let numbers: Vec<usize> =
            std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
        let rounds = numbers.first().copied().unwrap_or(15);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = numbers.get(1).copied().unwrap_or(cores);
        let is_theirs = std::env::args().any(|text| text == "openblas");
        let sgemm: Sgemm = if is_theirs { theirs() } else { cblas_sgemm };
        set_threads(threads);
        // SAFETY: takes any positive number.
        unsafe { openblas_set_num_threads(threads as c_int) };
        let word = std::env::args().skip(1).find(|text| {
            !text.starts_with('-') && text != "openblas" && text.parse::<usize>().is_err()
        });
        let cases = [
            ("demo q 256x256", true, (256, 256), 8),
            ("demo gate 768x256", true, (768, 256), 16),
            ("demo down 256x768", true, (256, 768), 8),
            ("demo head 4096x256", true, (4096, 256), 1),
            ("100M k 384x768", true, (384, 768), 24),
            ("100M q 768x768", true, (768, 768), 24),
            ("100M gate 2304x768", true, (2304, 768), 24),
            ("100M down 768x2304", true, (768, 2304), 12),
            ("100M head 8192x768", true, (8192, 768), 2),
            ("scores 1024 positions x64", true, (1024, 64), 8),
            ("values 64x1024 positions", false, (64, 1024), 8),
            ("270 MB of 1024x11008", true, (1024, 11008), 6),
        ];
        let a: Vec<f32> = (0..1024 * 11008).map(|at| (at % 13) as f32 * 0.1 - 0.5).collect();
        let mut c = vec![0.0f32; 1024 * 8192];
        println!(
            "{threads} threads, {}",
            if is_theirs { "OpenBLAS" } else { instructions().unwrap_or("nothing") }
        );
        for (name, transposed, shape, sets) in cases {
            if word.as_ref().is_some_and(|word| !name.contains(word.as_str())) {
                continue;
            }
            let case = Case::new(transposed, shape, sets);
            println!("{name}, {sets} of it");
            for m in [1, 2, 4, 8, 16, 32, 64, 128, 256, 1024] {
                // Many rows are bound by arithmetic, wherever the weights are.
                let flop = 2.0 * (case.n * case.k * m) as f64;
                let sets = ((4e9 / flop) as usize).clamp(1, sets);
                let bytes = (case.n * case.k * sets * 4) as f64;
                // What fits the cache is repeated, or the clock would be most of what is measured.
                let repeats = (20e6 / bytes).min(2e9 / flop).ceil() as usize;
                // The first round is for the caches and the threads to wake up.
                let mut time =
                    || (0..repeats).map(|_| case.seconds(sgemm, sets, &a, &mut c, m)).sum::<f64>();
                time();
                let speed =
                    bytes * repeats as f64 / median((0..rounds).map(|_| time()).collect()) / 1e9;
                println!("  {m:4} rows {speed:6.1} GB/s {:4.0} GFLOP/s", speed / 2.0 * m as f64);
            }
        }
    }
}
