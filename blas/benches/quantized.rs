//! How fast products by quantized weights are, on the shapes of SmolLM2-135M (groups of 32, float16
//! scales): GB/s of the bytes held and how many times per second all products of a model would be
//! computed, each row a token. Each matrix's best of some rounds, so that
//! a busy machine disturbs little.
//!
//! `cargo bench -p paceline-blas --bench quantized -- [rounds [threads]] [word]`. With a word only
//! the shapes with it in their names.

#[cfg(target_os = "linux")]
fn main() {
    linux::main();
}

#[cfg(not(target_os = "linux"))]
fn main() {}

#[cfg(target_os = "linux")]
#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a measurement for a terminal")]
mod linux {
    use std::time::Instant;

    use paceline_blas::quantized::{Factors, FloatRows, QuantizedFormat, QuantizedMatrix, product};
    use paceline_blas::{instructions, set_threads};

    /// Inputs that share a scale and a bias.
    const GROUP: usize = 32;

    /// 1.0 as a half, and −8.
    const HALVES: [u16; 2] = [0x3c00, 0xc800];

    /// A shape of weights and how many of it a forward multiplies by.
    struct Shape {
        name: &'static str,
        outputs: usize,
        inputs: usize,
        bits: usize,
        count: usize,
    }

    const SHAPES: [Shape; 5] = [
        Shape { name: "q, o 576x576", outputs: 576, inputs: 576, bits: 4, count: 60 },
        Shape { name: "k, v 192x576", outputs: 192, inputs: 576, bits: 4, count: 60 },
        Shape { name: "gate, up 1536x576", outputs: 1536, inputs: 576, bits: 4, count: 60 },
        Shape { name: "down 576x1536", outputs: 576, inputs: 1536, bits: 4, count: 30 },
        // The head in parts, so that some of its runs are undisturbed.
        Shape { name: "head 49152x576", outputs: 49152 / 32, inputs: 576, bits: 8, count: 32 },
    ];

    /// All weights of a shape.
    struct Weights {
        shape: &'static Shape,
        packed: Vec<u32>,
        scales: Vec<u16>,
        biases: Vec<u16>,
    }

    impl Weights {
        fn new(shape: &'static Shape) -> Self {
            let numbers = shape.outputs * shape.inputs * shape.count;
            Self {
                shape,
                packed: (0..numbers / 32 * shape.bits)
                    .map(|at| (at as u32).wrapping_mul(0x9e37_79b9))
                    .collect(),
                scales: vec![HALVES[0]; numbers / GROUP],
                biases: vec![HALVES[1]; numbers / GROUP],
            }
        }

        fn bytes(&self) -> usize {
            self.packed.len() * 4 + self.scales.len() * 4
        }

        /// Multiplies by all of them once. `best`: least seconds for each until now.
        fn run(&self, a: &[f32], c: &mut [f32], rows: usize, best: &mut [f64]) {
            let Shape { outputs, inputs, bits, count, .. } = *self.shape;
            let (words, groups) = (outputs * inputs / 32 * bits, outputs * inputs / GROUP);
            let x = FloatRows { numbers: a, count: rows, stride: inputs, length: inputs };
            for (at, best) in best.iter_mut().enumerate().take(count) {
                let begin = Instant::now();
                let matrix = QuantizedMatrix::new(
                    &self.packed[at * words..][..words],
                    Factors::Float16(&self.scales[at * groups..][..groups]),
                    Factors::Float16(&self.biases[at * groups..][..groups]),
                    QuantizedFormat { bits, group: GROUP },
                    inputs,
                )
                .expect("a matrix");
                product(x, &matrix, &mut c[..rows * outputs]);
                *best = best.min(begin.elapsed().as_secs_f64());
            }
        }
    }

    pub fn main() {
        let numbers: Vec<usize> =
            std::env::args().skip(1).filter_map(|text| text.parse().ok()).collect();
        let rounds = numbers.first().copied().unwrap_or(15);
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = numbers.get(1).copied().unwrap_or(cores);
        set_threads(threads);
        let word = std::env::args()
            .skip(1)
            .find(|text| !text.starts_with('-') && text.parse::<usize>().is_err());
        let chosen =
            |shape: &&Shape| word.as_ref().is_none_or(|word| shape.name.contains(word.as_str()));
        let weights: Vec<Weights> = SHAPES.iter().filter(chosen).map(Weights::new).collect();
        let bytes: usize = weights.iter().map(Weights::bytes).sum();
        let a: Vec<f32> = (0..1024 * 1536).map(|at| (at % 13) as f32 * 0.1 - 0.5).collect();
        // More rows of the head are asked for by nobody.
        let mut c = vec![0.0f32; 1024 * 1536];
        println!(
            "{threads} threads, {}, {} MB, {rounds} rounds",
            instructions().unwrap_or("nothing"),
            bytes / 1_000_000
        );
        for rows in [1, 2, 4, 6, 8, 12, 16, 32, 64, 256, 1024] {
            // A prompt needs the head for its last row only.
            let few = |weights: &Weights| if weights.shape.bits == 8 { rows.min(32) } else { rows };
            let rounds = (rounds * 8 / rows).clamp(rounds.min(2), rounds);
            let mut best: Vec<Vec<f64>> =
                weights.iter().map(|weights| vec![f64::INFINITY; weights.shape.count]).collect();
            for _ in 0..rounds {
                for (weights, best) in weights.iter().zip(&mut best) {
                    weights.run(&a, &mut c, few(weights), best);
                }
            }
            let best: Vec<f64> = best.iter().map(|best| best.iter().sum()).collect();
            let prompt = rows > 32;
            let total: f64 = weights
                .iter()
                .zip(&best)
                .filter(|(weights, _)| !prompt || weights.shape.bits != 8)
                .map(|(_, best)| best)
                .sum();
            println!(
                "{rows:4} rows {:6.0} tok/s {:5.2} ms {:5.1} GB/s",
                rows as f64 / total,
                total * 1e3,
                bytes as f64 / total / 1e9
            );
            for (weights, best) in weights.iter().zip(&best) {
                let Shape { outputs, inputs, count, name, .. } = *weights.shape;
                let flop = 2.0 * (outputs * inputs * count * few(weights)) as f64;
                println!(
                    "     {name:20} {:6.2} ms {:5.1} GB/s {:4.0} GFLOP/s",
                    best * 1e3,
                    weights.bytes() as f64 / best / 1e9,
                    flop / best / 1e9
                );
            }
        }
    }
}
