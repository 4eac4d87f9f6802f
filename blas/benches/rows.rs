//! How fast few rows read their weights, ours and OpenBLAS's in turn: GB/s of weights by shape and rows, medians.
//!
//! `cargo bench -p paceline-blas [-- rounds [threads]]`; all figures of one run are from the same minutes.

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

    use paceline_blas::{cblas_sgemm, instructions, set_threads};

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

    /// Weights of one shape, as many sets as asked for, so that they come from the cache or from memory as in a model.
    struct Case {
        name: &'static str,
        transposed: bool,
        n: usize,
        k: usize,
        weights: Vec<Vec<f32>>,
    }

    impl Case {
        fn new(name: &'static str, transposed: bool, (n, k): (usize, usize), sets: usize) -> Self {
            let weights = (0..sets).map(|set| (0..n * k).map(|at| ((at + set) % 17) as f32 * 0.1).collect()).collect();
            Self { name, transposed, n, k, weights }
        }

        /// Seconds for all sets once.
        fn seconds(&self, sgemm: Sgemm, a: &[f32], c: &mut [f32], m: usize) -> f64 {
            let (trans, ldb) = if self.transposed { (112, self.k) } else { (111, self.n) };
            let begin = Instant::now();
            for weights in &self.weights {
                let [m, n, k, ldb] = [m, self.n, self.k, ldb].map(|size| size as c_int);
                // SAFETY: `a` and `c` hold 64 rows of the largest shape, weights are n × k.
                unsafe {
                    sgemm(101, 111, trans, m, n, k, 1.0, a.as_ptr(), k, weights.as_ptr(), ldb, 0.0, c.as_mut_ptr(), n);
                }
            }
            begin.elapsed().as_secs_f64()
        }
    }

    fn median(mut values: Vec<f64>) -> f64 {
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    }

    pub fn main() {
        // cargo adds `--bench`.
        let numbers: Vec<usize> = std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
        let rounds = numbers.first().copied().unwrap_or(15);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = numbers.get(1).copied().unwrap_or(cores);
        let ours: Sgemm = cblas_sgemm;
        let theirs = theirs();
        set_threads(threads);
        // SAFETY: takes any positive number.
        unsafe { openblas_set_num_threads(threads as c_int) };
        let cases = [
            Case::new("demo head 4096x256", true, (4096, 256), 1),
            Case::new("demo down 256x768", true, (256, 768), 8),
            Case::new("1024x1024", true, (1024, 1024), 1),
            Case::new("2816x1024", true, (2816, 1024), 1),
            Case::new("288 MB of 1024x1024", true, (1024, 1024), 72),
            Case::new("270 MB of 4096x4096", true, (4096, 4096), 4),
            Case::new("270 MB of 1024x11008", true, (1024, 11008), 6),
            Case::new("values 64 of 1024 positions", false, (64, 1024), 8),
        ];
        let a: Vec<f32> = (0..64 * 11008).map(|at| (at % 13) as f32 * 0.1 - 0.5).collect();
        let mut c = vec![0.0f32; 64 * 4096];
        println!("{} threads, {}; GB/s of weights: ours / OpenBLAS = ratio", threads, instructions().unwrap_or("nothing"));
        for case in &cases {
            let bytes = (case.n * case.k * case.weights.len() * 4) as f64;
            // A case that fits the cache is repeated, or the clock would be most of what is measured.
            let repeats = (20e6 / bytes).ceil() as usize;
            println!("{}", case.name);
            // The last is OpenBLAS's in both columns: what the machine's other work does to the ratios.
            for m in [1, 2, 4, 8, 16, 32, 64] {
                let (mut own, mut other, mut ratios) = (vec![], vec![], vec![]);
                for _ in 0..=rounds {
                    let mut time = |sgemm| (0..repeats).map(|_| case.seconds(sgemm, &a, &mut c, m)).sum::<f64>();
                    let (mine, its) = (time(ours), time(theirs));
                    own.push(bytes * repeats as f64 / mine / 1e9);
                    other.push(bytes * repeats as f64 / its / 1e9);
                    ratios.push(its / mine);
                }
                println!("  {m:3} rows {:6.1} / {:6.1} = {:.2}", median(own), median(other), median(ratios));
            }
        }
    }
}
