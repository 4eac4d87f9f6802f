//! Data for the training of drafters: answers of a model, many at once, and its hidden states.
//!
//! `cargo run --release -p paceline-models --example teacher -- MODEL_DIR PROMPTS.jsonl OUT_DIR
//! [LAYER,LAYER,…]`
//!
//! A line in: `{"ids": [prompt], "temperature": 0.8, "seed": 1, "tokens": 256}`. An answer ends with
//! a token that ends a text, or after `tokens`. [`SHARD`] lines become one file in OUT_DIR. A file
//! that is there is left alone, so a run that was interrupted goes on where it was.
//!
//! `00000.safetensors`: `lengths` `[lines, 2]`, int32: ids of the prompt, and of prompt and answer;
//! `ids` `[sum of all]`, int32; with layers also `states` `[sum of all, layers · hidden]`, bfloat16:
//! the output of each layer for the id of the row, 0 for the last id of a line, which is not read.

use std::path::Path;

use half::bf16;
use paceline_models::load::{ConfigJson, stop_ids};
use paceline_models::sample::noise::NoiseKey;
use paceline_models::sample::{RowRule, choose};
use paceline_models::{
    Batch, DeviceChoice, FeatureLayers, KvStore, ProductsChoice, Segment, SequenceId, Target,
    Wants, device, load_target, products,
};
use safetensors::Dtype;
use safetensors::tensor::TensorView;
use serde::Deserialize;

/// Lines of a file, which are answered at once.
const SHARD: usize = 128;
/// Rows of a chunk of prompts.
const CHUNK: usize = 1_024;

/// A prompt, and how it is answered.
#[derive(Deserialize)]
struct Line {
    ids: Vec<u32>,
    temperature: f32,
    seed: u64,
    tokens: usize,
}

/// A text as far as it is there.
struct Text {
    line: Line,
    ids: Vec<u32>,
    /// Numbers of each row that was read.
    states: Vec<bf16>,
    /// Rows that were read.
    read: usize,
    ended: bool,
}

/// The model, and the layers whose hidden states are kept.
struct Teacher {
    model: Box<dyn Target>,
    kv: KvStore,
    layers: Vec<usize>,
    stops: Vec<u32>,
}

impl Teacher {
    /// Computes the next rows of some texts. `chosen`: number of each text, and of its rows. Chooses
    /// the next token of each text that has no further rows.
    fn step(&mut self, texts: &mut [Text], chosen: &[(usize, usize)]) {
        let (mut ids, mut segments, mut logit_rows, mut ends) = (vec![], vec![], vec![], vec![]);
        for (at, rows) in chosen {
            let text = &texts[*at];
            ids.extend(&text.ids[text.read..text.read + rows]);
            if text.read + rows == text.ids.len() {
                logit_rows.push(ids.len() as i32 - 1);
                ends.push(*at);
            }
            let (start, length) = (text.read as i32, *rows as i32);
            segments.push(Segment { sequence: SequenceId(*at as u64), start, length, drafted: 0 });
        }
        let rows: Vec<i32> = (0..ids.len() as i32).collect();
        let features = FeatureLayers { layers: self.layers.clone(), rows };
        let hidden_states = (!self.layers.is_empty()).then_some(features);
        let wants = Wants { logit_rows, hidden_states, ..Wants::default() };
        let batch = Batch::text(ids, segments.clone());
        let forward = self.model.forward(&batch, &mut self.kv, &wants).expect("a forward");
        let states = forward.hidden_states.map(|states| states.side_by_side().expect("lazy"));
        let with: Vec<_> = states.iter().collect();
        mlx_rs::transforms::eval(with.iter().copied()).expect("evaluates");
        self.keep(texts, chosen, states.as_ref());
        for segment in &segments {
            self.kv.commit(segment.sequence, segment.end()).expect("commits");
        }
        let Some(logits) = &forward.logits else { return };
        let rules: Vec<RowRule<'_>> = ends.iter().map(|at| texts[*at].rule()).collect();
        let next = choose(logits, &rules, &[]).expect("choices");
        for (at, choice) in ends.into_iter().zip(next) {
            let text = &mut texts[at];
            text.ids.push(choice.token);
            let answered = text.ids.len() - text.line.ids.len();
            text.ended = self.stops.contains(&choice.token) || answered >= text.line.tokens;
            if text.ended {
                self.kv.free(SequenceId(at as u64));
            }
        }
    }

    /// Keeps the hidden states of the rows of a step.
    fn keep(&self, texts: &mut [Text], chosen: &[(usize, usize)], states: Option<&mlx_rs::Array>) {
        let numbers = states.map(|states| {
            let floats = states.as_dtype(mlx_rs::Dtype::Float32).expect("floats");
            floats.eval().expect("evaluates");
            (floats.try_as_slice::<f32>().expect("floats").to_vec(), states.dim(1) as usize)
        });
        let mut begin = 0;
        for (at, rows) in chosen {
            let text = &mut texts[*at];
            if let Some((numbers, width)) = &numbers {
                let own = &numbers[begin * width..(begin + rows) * width];
                text.states.extend(own.iter().map(|number| bf16::from_f32(*number)));
            }
            text.read += rows;
            begin += rows;
        }
    }

    /// Answers all lines.
    fn answer(&mut self, lines: Vec<Line>) -> Vec<Text> {
        let mut texts: Vec<Text> = lines.into_iter().map(Text::new).collect();
        for at in 0..texts.len() {
            self.kv.open(SequenceId(at as u64)).expect("new");
            while texts[at].read < texts[at].line.ids.len() {
                let rows = (texts[at].line.ids.len() - texts[at].read).min(CHUNK);
                self.step(&mut texts, &[(at, rows)]);
            }
        }
        loop {
            let goes_on = |(at, text): (usize, &Text)| (!text.ended).then_some((at, 1));
            let chosen: Vec<_> = texts.iter().enumerate().filter_map(goes_on).collect();
            if chosen.is_empty() {
                return texts;
            }
            self.step(&mut texts, &chosen);
        }
    }
}

impl Text {
    fn new(line: Line) -> Self {
        let ids = line.ids.clone();
        Self { line, ids, states: vec![], read: 0, ended: false }
    }

    /// How the next token is chosen.
    fn rule(&self) -> RowRule<'_> {
        let mut rule = RowRule::greedy(&self.ids, self.line.ids.len());
        rule.sampling.temperature = self.line.temperature;
        rule.noise = NoiseKey { seed: self.line.seed, sample: 0 };
        rule
    }
}

/// Writes a file whole or not at all.
fn write(texts: &[Text], path: &Path) {
    let (mut lengths, mut ids, mut states, mut rows) = (vec![], vec![], vec![], 0);
    let width = texts[0].states.len() / texts[0].read;
    for text in texts {
        for number in [text.line.ids.len(), text.ids.len()] {
            lengths.extend((number as i32).to_le_bytes());
        }
        ids.extend(text.ids.iter().flat_map(|id| (*id as i32).to_le_bytes()));
        states.extend(text.states.iter().flat_map(|number| number.to_le_bytes()));
        states.resize(states.len() + (text.ids.len() - text.read) * width * 2, 0);
        rows += text.ids.len();
    }
    let view =
        |dtype, shape: Vec<usize>, bytes| TensorView::new(dtype, shape, bytes).expect("fits");
    let mut tensors = vec![
        ("lengths", view(Dtype::I32, vec![texts.len(), 2], &lengths)),
        ("ids", view(Dtype::I32, vec![rows], &ids)),
    ];
    if width > 0 {
        tensors.push(("states", view(Dtype::BF16, vec![rows, width], &states)));
    }
    let unfinished = path.with_extension("part");
    safetensors::serialize_to_file(tensors, None, &unfinished).expect("written");
    std::fs::rename(&unfinished, path).expect("renamed");
}

#[expect(clippy::disallowed_methods, clippy::print_stdout, reason = "a tool for a terminal")]
fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [dir, prompts, out, layers @ ..] = arguments.as_slice() else {
        panic!("usage: teacher MODEL_DIR PROMPTS.jsonl OUT_DIR [LAYER,LAYER,…]")
    };
    let (dir, out) = (Path::new(dir), Path::new(out));
    let layers = layers.first().map_or(vec![], |text| {
        text.split(',').map(|layer| layer.parse().expect("a layer's number")).collect()
    });
    device::choose(DeviceChoice::Auto).expect("a device");
    let load = || load_target(dir, &mut |_, _| {});
    // Rounded activations change single answers, and hardly what a drafter learns from many. Weights
    // that are not quantized, and other devices, have no such products.
    let rounded = products::choose(ProductsChoice::Integer).ok().and_then(|_| load().ok());
    let model = rounded.unwrap_or_else(|| {
        products::choose(ProductsChoice::Auto).expect("products");
        load().expect("loads")
    });
    let config = ConfigJson::read(dir).expect("a config");
    let stops = stop_ids(dir, &config).expect("ids that end a text");
    let kv = KvStore::new(&model.kv_layers(), model.dtype(), model.info().context);
    let mut teacher = Teacher { model, kv: kv.expect("a store"), layers, stops };
    let text = std::fs::read_to_string(prompts).expect("prompts");
    let lines: Vec<&str> = text.lines().collect();
    std::fs::create_dir_all(out).expect("a directory");
    let began = std::time::Instant::now();
    let (mut tokens, shards) = (0, lines.len().div_ceil(SHARD));
    for (number, shard) in lines.chunks(SHARD).enumerate() {
        let path = out.join(format!("{number:05}.safetensors"));
        if path.exists() {
            continue;
        }
        let lines = shard.iter().map(|line| serde_json::from_str(line).expect("a prompt"));
        let texts = teacher.answer(lines.collect());
        tokens += texts.iter().map(|text| text.ids.len() - text.line.ids.len()).sum::<usize>();
        write(&texts, &path);
        let seconds = began.elapsed().as_secs_f64();
        println!(
            "{} of {shards}: {tokens} tokens, {:.0} a second",
            number + 1,
            tokens as f64 / seconds
        );
    }
}
