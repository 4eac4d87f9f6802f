//! What products of 8-bit integers change in a model: perplexity, the divergence of the
//! distributions of the next token, and the first greedy token that is another.
//!
//! `cargo run --release -p paceline-models --example product_loss -- MODEL_DIR WINDOWS [ANSWERS]`
//!
//! WINDOWS: a JSON list of lists of ids. Of each window the second half counts. ANSWERS: how many
//! windows are continued by 64 greedy tokens from their first 64 ids (default 50).

use std::path::Path;

use paceline_models::{
    Batch, DeviceChoice, KvStore, ProductsChoice, Segment, SequenceId, Target, Wants, device,
    load_target, products,
};

/// Ids that a greedy answer begins with, and tokens of it.
const PROMPT: usize = 64;
const ANSWER: usize = 64;

/// A model and the only sequence that it reads.
struct Reader {
    model: Box<dyn Target>,
    kv: KvStore,
    read: i32,
}

impl Reader {
    fn new(dir: &str, choice: ProductsChoice) -> Self {
        let chosen = products::choose(choice).expect("products");
        let model = load_target(Path::new(dir), &mut |_, _| {}).expect("loads");
        assert_eq!(model.info().products, chosen, "the weights are not quantized");
        let kv = KvStore::new(&model.kv_layers(), model.dtype(), model.info().context);
        let mut reader = Self { model, kv: kv.expect("a store"), read: 0 };
        reader.kv.open(SequenceId(0)).expect("new");
        reader
    }

    fn begin(&mut self) {
        self.kv.free(SequenceId(0));
        self.kv.open(SequenceId(0)).expect("it was freed");
        self.read = 0;
    }

    /// The logits of the last `wanted` of these ids.
    fn logits(&mut self, ids: &[u32], wanted: usize) -> Vec<Vec<f32>> {
        let (count, wanted) = (ids.len() as i32, wanted as i32);
        let segment =
            Segment { sequence: SequenceId(0), start: self.read, length: count, drafted: 0 };
        let wants = Wants { logit_rows: (count - wanted..count).collect(), ..Wants::default() };
        let batch = Batch::text(ids.to_vec(), vec![segment]);
        let forward = self.model.forward(&batch, &mut self.kv, &wants).expect("a forward");
        let logits = forward.logits.expect("wanted");
        logits.eval().expect("evaluates");
        self.read += count;
        self.kv.commit(SequenceId(0), self.read).expect("commits");
        let numbers = logits.try_as_slice::<f32>().expect("floats");
        numbers.chunks_exact(numbers.len() / wanted as usize).map(<[f32]>::to_vec).collect()
    }

    /// Greedy tokens behind a prompt, each with its lead over the next best.
    fn answer(&mut self, prompt: &[u32]) -> Vec<(u32, f32)> {
        self.begin();
        let mut next = prompt.to_vec();
        let mut tokens = vec![];
        while tokens.len() < ANSWER {
            let logits = self.logits(&next, 1).remove(0);
            let mut best = [(0, f32::MIN); 2];
            for (id, logit) in logits.into_iter().enumerate() {
                if logit > best[0].1 {
                    best = [(id as u32, logit), best[0]];
                } else if logit > best[1].1 {
                    best[1] = (id as u32, logit);
                }
            }
            tokens.push((best[0].0, best[0].1 - best[1].1));
            next = vec![best[0].0];
        }
        tokens
    }
}

/// Logarithms of the probabilities.
fn logarithms(logits: &[f32]) -> Vec<f64> {
    let largest = f64::from(logits.iter().copied().fold(f32::MIN, f32::max));
    let sum: f64 = logits.iter().map(|logit| (f64::from(*logit) - largest).exp()).sum();
    logits.iter().map(|logit| f64::from(*logit) - largest - sum.ln()).collect()
}

#[expect(clippy::print_stdout, reason = "a measurement for a terminal")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, windows, answers @ ..] = arguments.as_slice() else {
        panic!("usage: product_loss MODEL_DIR WINDOWS [ANSWERS]")
    };
    let answers = answers.first().map_or(50, |text| text.parse().expect("a number"));
    let windows = std::fs::read_to_string(windows).expect("a file");
    let windows: Vec<Vec<u32>> = serde_json::from_str(&windows).expect("lists of ids");
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let [mut floats, mut integers] =
        [ProductsChoice::Float, ProductsChoice::Integer].map(|choice| Reader::new(dir, choice));
    let (mut losses, mut divergence, mut same, mut count) = ([0.0; 2], 0.0, 0, 0);
    for ids in &windows {
        let half = ids.len() / 2;
        let [of_floats, of_integers] = [&mut floats, &mut integers].map(|reader| {
            reader.begin();
            reader.logits(ids, ids.len() - half)
        });
        let pairs = of_floats.iter().zip(&of_integers).zip(&ids[half + 1..]);
        for ((of_floats, of_integers), next) in pairs {
            let both = [logarithms(of_floats), logarithms(of_integers)];
            losses[0] -= both[0][*next as usize];
            losses[1] -= both[1][*next as usize];
            divergence += both[0].iter().zip(&both[1]).map(|(p, q)| p.exp() * (p - q)).sum::<f64>();
            let best = |logarithms: &[f64]| {
                logarithms.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1)).map(|best| best.0)
            };
            same += usize::from(best(&both[0]) == best(&both[1]));
            count += 1;
        }
    }
    let [of_floats, of_integers] = losses.map(|loss| (loss / count as f64).exp());
    println!(
        "{count} tokens: perplexity {of_floats:.4} of floats, {of_integers:.4} of integers ({:+.3} %); \
         divergence {:.6} nats a token; the same best token {:.2} %",
        (of_integers / of_floats - 1.0) * 100.0,
        divergence / count as f64,
        same as f64 * 100.0 / count as f64
    );
    let prompts = windows.iter().filter(|ids| ids.len() >= PROMPT).take(answers);
    let (mut whole, mut margins) = (0, vec![]);
    for ids in prompts {
        let [of_floats, of_integers] =
            [&mut floats, &mut integers].map(|reader| reader.answer(&ids[..PROMPT]));
        let other = of_floats.iter().zip(&of_integers).position(|(a, b)| a.0 != b.0);
        match other {
            Some(at) => margins.push((at, of_floats[at].1)),
            None => whole += 1,
        }
    }
    margins.sort_by(|a, b| a.1.total_cmp(&b.1));
    let places: usize = margins.iter().map(|(at, _)| at).sum();
    println!(
        "{whole} of {} answers of {ANSWER} tokens are the same; the others differ first at token {:.0} on \
         average, where the float model's lead was {:.4} (median), {:.4} (largest)",
        whole + margins.len(),
        places as f64 / margins.len().max(1) as f64,
        margins.get(margins.len() / 2).map_or(0.0, |margin| margin.1),
        margins.last().map_or(0.0, |margin| margin.1)
    );
}
