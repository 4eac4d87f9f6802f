//! How fast products by quantized weights are: milliseconds for one pass over all weights, and
//! which share of the bandwidth that as many threads reach when they only read the same bytes.
//! Every pass reads more weights than the caches hold, in the order in which they lie in memory.
//! Passes that only read take turns with passes of products, because other work on the machine
//! disturbs both. Printed: medians, in brackets the quarter points.
//!
//! `cargo bench -p paceline-cpu --bench quantized -- [rounds [threads]] [word]... [huge]`. With
//! words, only the sets with one of them in their names. `huge`: weights in huge pages. `integers`:
//! products of 8-bit integers, by arranged weights.

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
mod linux {
    use std::hint::black_box;
    use std::time::Instant;

    use paceline_cpu::quantized::{Factors, FloatRows, QuantizedFormat, QuantizedMatrix, product};
    use paceline_cpu::{instructions, set_threads};

    /// 0.01 as a half, and -0.08.
    const HALVES: [u16; 2] = [0x211f, 0xad1f];

    /// Most rows that are multiplied, and most inputs and outputs of a matrix.
    const MOST_ROWS: usize = 1024;
    const MOST_INPUTS: usize = 4096;
    const MOST_OUTPUTS: usize = 49152;

    /// Rows above which the head is left out: a prompt needs it for its last row only.
    const MOST_HEAD_ROWS: usize = 32;

    /// Outputs from which on a matrix is the head of a model.
    const HEAD: usize = 49152;

    /// Bytes of a pass, at least: three times the last cache of the processor that was measured.
    const BYTES: usize = 96 << 20;

    /// One matrix of a pass.
    #[derive(Clone, Copy)]
    struct Shape {
        outputs: usize,
        inputs: usize,
        format: QuantizedFormat,
    }

    impl Shape {
        const fn new(outputs: usize, inputs: usize, bits: usize, group: usize) -> Self {
            Self { outputs, inputs, format: QuantizedFormat { bits, group } }
        }

        fn words(&self) -> usize {
            self.outputs * self.inputs / 32 * self.format.bits
        }

        /// Number of its scales, and of its biases.
        fn groups(&self) -> usize {
            self.outputs * self.inputs / self.format.group
        }

        /// Words of the packed numbers, the scales and the biases, in whole lines of the cache.
        fn size(&self) -> usize {
            (self.words() + self.groups()).next_multiple_of(16)
        }
    }

    /// Matrices that a pass multiplies by, in this order.
    struct Set {
        name: String,
        shapes: Vec<Shape>,
    }

    /// The matrices of SmolLM2-135M, queries, keys and values in one and gates with the inner
    /// layer's inputs in one, and large matrices of each number of bits: 96 MB or more.
    fn sets() -> Vec<Set> {
        let layer = [
            Shape::new(960, 576, 4, 32),
            Shape::new(576, 576, 4, 32),
            Shape::new(3072, 576, 4, 32),
            Shape::new(576, 1536, 4, 32),
        ];
        let mut shapes = layer.repeat(30);
        shapes.push(Shape::new(HEAD, 576, 8, 32));
        let mut sets = vec![Set { name: "smollm2".to_owned(), shapes }];
        for bits in [2, 3, 4, 5, 6, 8] {
            let shape = Shape::new(4096, 4096, bits, 64);
            let count = BYTES.div_ceil(shape.size() * 4);
            sets.push(Set { name: format!("{bits}bits"), shapes: vec![shape; count] });
        }
        for bits in [3, 6, 8] {
            let shape = Shape::new(HEAD, 576, bits, 32);
            let count = BYTES.div_ceil(shape.size() * 4);
            sets.push(Set { name: format!("head{bits}"), shapes: vec![shape; count] });
        }
        sets
    }

    /// All weights of a set in one allocation, matrix by matrix: numbers, scales, biases.
    struct Weights {
        set: Set,
        words: Vec<u32>,
        /// Where the first matrix begins.
        first: usize,
        /// Whether integers are multiplied. Any bits are an arranged matrix, too.
        integers: bool,
    }

    impl Weights {
        fn new(set: Set, huge: bool, integers: bool) -> Self {
            /// Words of a huge page.
            const PAGE: usize = (2 << 20) / 4;
            let size: usize = set.shapes.iter().map(Shape::size).sum();
            let mut words: Vec<u32> = Vec::with_capacity(size + PAGE);
            let first = words.as_ptr().align_offset(2 << 20);
            let advice = if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE };
            // SAFETY: the pages are this vector's, and nothing is in them yet.
            unsafe { libc::madvise(words.as_mut_ptr().add(first).cast(), size * 4, advice) };
            words.resize(first, 0);
            for shape in &set.shapes {
                let end = words.len() + shape.size();
                words.extend((0..shape.words()).map(|at| (at as u32).wrapping_mul(0x9e37_79b9)));
                for half in HALVES {
                    let pair = u32::from(half) << 16 | u32::from(half);
                    words.extend(std::iter::repeat_n(pair, shape.groups() / 2));
                }
                words.resize(end, 0);
            }
            Self { set, words, first, integers }
        }

        fn bytes(&self) -> usize {
            (self.words.len() - self.first) * 4
        }

        /// Seconds in which `threads` threads read all weights and add them up.
        fn read(&self, threads: usize) -> f64 {
            let words = &self.words[self.first..];
            let begin = Instant::now();
            std::thread::scope(|scope| {
                let mut parts = words.chunks(words.len().div_ceil(threads).next_multiple_of(16));
                let own = parts.next();
                parts.for_each(|part| {
                    scope.spawn(|| black_box(sum(part)));
                });
                black_box(own.map(sum));
            });
            begin.elapsed().as_secs_f64()
        }

        /// Seconds in which `rows` rows are multiplied by each matrix once.
        fn multiply(&self, x: &[f32], out: &mut [f32], rows: usize) -> f64 {
            let begin = Instant::now();
            let mut at = self.first;
            for shape in &self.set.shapes {
                let Shape { outputs, inputs, format } = *shape;
                let (words, groups) = (shape.words(), shape.groups());
                let numbers = &self.words[at..][..words];
                let factors = &self.words[at + words..][..groups];
                // SAFETY: two halves lie in each word.
                let factors: &[u16] =
                    unsafe { std::slice::from_raw_parts(factors.as_ptr().cast(), 2 * groups) };
                at += shape.size();
                if outputs == HEAD && rows > MOST_HEAD_ROWS {
                    continue;
                }
                let (scales, biases) = factors.split_at(groups);
                let matrix = QuantizedMatrix::new(
                    numbers,
                    Factors::Float16(scales),
                    Factors::Float16(biases),
                    format,
                    inputs,
                )
                .expect("a matrix");
                let matrix = if self.integers { matrix.of_tiles() } else { matrix };
                let x = FloatRows { numbers: x, count: rows, stride: inputs, length: inputs };
                product(x, &matrix, &mut out[..rows * outputs]);
            }
            begin.elapsed().as_secs_f64()
        }

        /// Prints milliseconds of passes with each number of rows, and of those with one row the
        /// share of the bandwidth.
        fn measure(&self, rounds: usize, threads: usize, x: &[f32], out: &mut [f32]) {
            let mb = self.bytes() / 1_000_000;
            println!("{}: {mb} MB, {threads} threads", self.set.name);
            for rows in [1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 256, 1024] {
                if rows > 1 && (self.set.name != "smollm2" || threads == 1) {
                    break;
                }
                let rounds = if rows > 32 { rounds.min(3) } else { rounds };
                let (mut reads, mut products, mut shares) = (vec![], vec![], vec![]);
                self.multiply(x, out, rows);
                for _ in 0..rounds {
                    let read = self.read(threads);
                    let product = self.multiply(x, out, rows);
                    reads.push(self.bytes() as f64 / read / 1e9);
                    products.push(product * 1e3);
                    shares.push(read / product);
                }
                let (read, product) = (Spread::of(&mut reads), Spread::of(&mut products));
                let share = Spread::of(&mut shares);
                println!(
                    "{rows:5} rows {product:6.2} ms, {:5.1} GB/s, share {share:4.2} of {read:5.1} GB/s",
                    self.bytes() as f64 / product.median / 1e6,
                );
            }
        }
    }

    /// The sum of all words, in several sums at once so that none waits for another.
    fn sum(words: &[u32]) -> u32 {
        let mut sums = [0u32; 64];
        for part in words.chunks_exact(64) {
            for (sum, word) in sums.iter_mut().zip(part) {
                *sum = sum.wrapping_add(*word);
            }
        }
        sums.into_iter().fold(0, u32::wrapping_add)
    }

    /// The median and the quarter points of some numbers.
    struct Spread {
        median: f64,
        quarters: [f64; 2],
    }

    impl Spread {
        fn of(numbers: &mut [f64]) -> Self {
            numbers.sort_by(f64::total_cmp);
            let at = |part: usize| numbers[(numbers.len() - 1) * part / 4];
            Self { median: at(2), quarters: [at(1), at(3)] }
        }
    }

    impl std::fmt::Display for Spread {
        fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
            std::fmt::Display::fmt(&self.median, f)?;
            let [low, high] = self.quarters;
            let digits = f.precision().unwrap_or(2);
            write!(f, " ({low:.digits$} to {high:.digits$})")
        }
    }

    pub fn main() {
        let arguments: Vec<String> =
            std::env::args().skip(1).filter(|text| !text.starts_with('-')).collect();
        let numbers: Vec<usize> = arguments.iter().filter_map(|text| text.parse().ok()).collect();
        let is = |word: &str| arguments.iter().any(|text| text == word);
        let (huge, integers) = (is("huge"), is("integers"));
        let words: Vec<&String> = arguments
            .iter()
            .filter(|text| text.parse::<usize>().is_err())
            .filter(|text| !["huge", "integers"].contains(&text.as_str()))
            .collect();
        let rounds = numbers.first().copied().unwrap_or(15).max(1);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let each = numbers.get(1).map_or(vec![1, cores], |threads| vec![*threads]);
        println!("{}, {rounds} rounds", instructions().unwrap_or("no kernels"));
        let x: Vec<f32> =
            (0..MOST_ROWS * MOST_INPUTS).map(|at| (at % 13) as f32 * 0.1 - 0.5).collect();
        let mut out = vec![0.0f32; MOST_HEAD_ROWS * MOST_OUTPUTS.max(MOST_ROWS * 3072 / 32)];
        for set in sets() {
            if !words.is_empty() && !words.iter().any(|word| set.name.contains(word.as_str())) {
                continue;
            }
            let weights = Weights::new(set, huge, integers);
            for threads in &each {
                set_threads(*threads);
                weights.measure(rounds, *threads, &x, &mut out);
            }
        }
    }
}
