//! Sequences with images, put into batches as an engine would.

use std::collections::HashMap;
use std::path::{Path, PathBuf};

use paceline_models::sample::{RowRule, choose};
use paceline_models::testing::bounds::{allowed, follow, is_half};
pub use paceline_models::testing::bounds::{floats, worst};
use paceline_models::vision::{
    Features, ImageForm, ImagePixels, ImagePlacement, Vision, positions,
};
use paceline_models::{
    Array, Batch, DeviceChoice, Dtype, Forward, HiddenStates, KvStore, Override, Positions,
    Segment, SequenceId, Target, Wants, device, load_target,
};
use serde::Deserialize;

#[derive(Deserialize)]
pub struct Golden {
    #[serde(default)]
    pub tap_layers: Vec<usize>,
    pub images: Vec<Shot>,
    pub cases: Vec<Case>,
}

#[derive(Deserialize)]
pub struct Shot {
    pub name: String,
    pub rows: u32,
    pub columns: u32,
    /// Of a byte's share of 255, by channel; 0.5 if a golden file names none.
    #[serde(default = "half")]
    mean: [f32; 3],
    #[serde(default = "half")]
    std: [f32; 3],
    pixels: String,
    pub merged: Vec<f32>,
    pub deepstack: Vec<Vec<f32>>,
}

#[derive(Deserialize)]
pub struct Case {
    pub prompt: Vec<u32>,
    pub images: Vec<String>,
    #[serde(default)]
    pub positions: Vec<Vec<i32>>,
    pub logits: Vec<f32>,
    #[serde(default)]
    pub tap_rows: Vec<i32>,
    #[serde(default)]
    pub taps: Vec<Vec<Vec<f32>>>,
    pub greedy: Vec<u32>,
}

/// The reference's mean and standard deviation of 0.5, in terms of bytes.
pub const SCALE: [f32; 3] = [2.0 / 255.0; 3];
pub const BIAS: [f32; 3] = [-1.0; 3];

fn half() -> [f32; 3] {
    [0.5; 3]
}

impl Shot {
    pub fn pixels(&self) -> Vec<u8> {
        let digits: Vec<u8> =
            self.pixels.chars().map(|digit| digit.to_digit(16).expect("hex") as u8).collect();
        digits.as_chunks::<2>().0.iter().map(|[high, low]| high << 4 | low).collect()
    }

    /// The bytes' numbers for a tower: Gemma's reference divides by 255 and subtracts nothing.
    fn numbers(&self, tower: &dyn Vision) -> ([f32; 3], [f32; 3]) {
        if tower.info().form == ImageForm::Indexed {
            return ([1.0 / 255.0; 3], [0.0; 3]);
        }
        let of_channel = |number: fn(f32, f32) -> f32| {
            [0, 1, 2].map(|channel| number(self.mean[channel], self.std[channel]))
        };
        (of_channel(|_, std| 1.0 / (255.0 * std)), of_channel(|mean, std| -mean / std))
    }

    pub fn features(&self, tower: &dyn Vision, blocks: usize) -> Features {
        let (pixels, (scale, bias)) = (self.pixels(), self.numbers(tower));
        let (rows, columns) = (self.rows, self.columns);
        let image = ImagePixels { pixels: &pixels, rows, columns, scale, bias };
        features(tower, &image, blocks)
    }
}

pub fn features(tower: &dyn Vision, image: &ImagePixels<'_>, blocks: usize) -> Features {
    let mut pass = tower.begin(image).expect("taken in");
    assert_eq!((pass.done(), pass.patches()), (0, image.rows * image.columns));
    loop {
        let before = pass.done();
        if let Some(features) = tower.advance(&mut pass, blocks).expect("goes on") {
            assert_eq!(pass.done(), tower.info().blocks);
            return features;
        }
        assert_eq!(pass.done(), before + blocks);
    }
}

pub fn folder(name: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

pub fn load(name: &str) -> (Box<dyn Target>, Golden) {
    device::choose(DeviceChoice::Cpu).expect("there is a CPU");
    let text = std::fs::read(folder(name).with_extension("json"))
        .expect("the golden file is in the repository");
    let golden = serde_json::from_slice(&text).expect("it has the fields named here");
    (load_dir(&folder(name)), golden)
}

/// Loads the checkpoint in `dir` after the device was chosen.
pub fn load_dir(dir: &Path) -> Box<dyn Target> {
    load_target(dir, &mut |_, _| {}).expect("loads")
}

/// A sequence and its images.
pub struct Sequence {
    pub ids: Vec<u32>,
    pub placed: Vec<ImagePlacement>,
    features: Vec<Features>,
    /// Ids of a reference after the prompt, which a model of 16 bits goes on with: it may choose the
    /// other of two near ids. Without them every model goes on with its own.
    along: Vec<u32>,
    prompt: usize,
}

impl Sequence {
    /// One without images.
    pub fn of_text(prompt: &[u32]) -> Self {
        let (ids, prompt) = (prompt.to_vec(), prompt.len());
        Self { ids, placed: vec![], features: vec![], along: vec![], prompt }
    }

    pub fn new(
        prompt: &[u32],
        shots: &[&Shot],
        tower: &dyn Vision,
        known: &HashMap<String, Features>,
    ) -> Self {
        let info = tower.info();
        let (mut placed, mut at) = (Vec::new(), 0);
        for shot in shots {
            let skipped = prompt[at..]
                .iter()
                .position(|id| *id == info.image_token)
                .expect("a place for every image");
            let (rows, columns) =
                ((shot.rows / info.merge) as i32, (shot.columns / info.merge) as i32);
            let (first, form) = ((at + skipped) as i32, info.form);
            let image = ImagePlacement { first, rows, columns, form };
            at = image.end() as usize;
            placed.push(image);
        }
        let features = shots.iter().map(|shot| known[&shot.name].clone()).collect();
        Self { placed, features, ..Self::of_text(prompt) }
    }

    /// The sequence with other ids of a reference; with none every model goes on freely.
    pub fn along(self, ids: Vec<u32>) -> Self {
        Self { along: ids, ..self }
    }

    /// Appends the id that a row of logits chooses.
    pub fn choose(&mut self, dtype: Dtype, logits: &[f32], chosen: u32) {
        let at = self.ids.len() - self.prompt;
        let reference = self.along.get(at).filter(|_| is_half(dtype));
        let follows =
            |id: &u32| follow(&format!("id {at}"), allowed(dtype, logits, 0.0), logits, *id);
        self.ids.push(reference.map_or(chosen, follows));
    }

    /// The rows `start..start + length`: their positions appended, and the images' parts among
    /// them.
    fn rows(
        &self,
        start: i32,
        length: i32,
        first_row: i32,
        axes: &mut [Vec<i32>],
    ) -> Vec<Override> {
        positions(&self.placed, start, length, axes);
        let mut overrides = vec![];
        for (image, features) in self.placed.iter().zip(&self.features) {
            let (from, to) = (image.first.max(start), image.end().min(start + length));
            if from >= to {
                continue;
            }
            let part = Array::from_slice(
                &(from - image.first..to - image.first).collect::<Vec<_>>(),
                &[to - from],
            );
            let cut = |array: &Array| array.take_axis(&part, 0).expect("its rows");
            overrides.push(Override {
                rows: (from - start + first_row..to - start + first_row).collect(),
                embeddings: cut(&features.embeddings),
                after_layer: features
                    .after_layer
                    .iter()
                    .map(|(layer, array)| (*layer, cut(array)))
                    .collect(),
            });
        }
        overrides
    }
}

/// Some sequences and the store they are read into.
pub struct Scene<'a> {
    pub model: &'a dyn Target,
    pub kv: KvStore,
    pub sequences: Vec<Sequence>,
}

impl<'a> Scene<'a> {
    pub fn new(model: &'a dyn Target, sequences: Vec<Sequence>) -> Self {
        Self::with_most_rows(model, sequences, model.most_rows())
    }

    /// With a store for passes of `most_rows` rows.
    pub fn with_most_rows(model: &'a dyn Target, sequences: Vec<Sequence>, most_rows: i32) -> Self {
        let (layers, context) = (model.kv_layers(), model.info().context);
        let mut kv =
            KvStore::with_most_rows(&layers, model.dtype(), context, most_rows).expect("made");
        (0..sequences.len()).for_each(|at| kv.open(SequenceId(at as u64)).expect("new"));
        Self { model, kv, sequences }
    }

    /// A batch of the next rows of these sequences (place, rows).
    pub fn batch(&self, next: &[(usize, i32)]) -> Batch {
        let (mut ids, mut segments, mut overrides) = (vec![], vec![], vec![]);
        let mut axes = vec![vec![]; self.form().axes()];
        for (at, length) in next {
            let (sequence, id) = (&self.sequences[*at], SequenceId(*at as u64));
            let start = self.kv.length(id).expect("open");
            let first_row = ids.len() as i32;
            let mut parts = sequence.rows(start, *length, first_row, &mut axes);
            ids.extend_from_slice(&sequence.ids[start as usize..(start + length) as usize]);
            segments.push(Segment { sequence: id, start, length: *length, drafted: 0 });
            overrides.append(&mut parts);
        }
        let positions = match axes.len() {
            1 => Positions::One(axes.remove(0)),
            _ => Positions::Axes(axes),
        };
        Batch { ids, pending: None, overrides, segments, positions }
    }

    fn form(&self) -> ImageForm {
        self.model.vision().map_or(ImageForm::Indexed, |vision| vision.info().form)
    }

    /// The next rows of a sequence, `chunk` at most, but no part of an image that must be whole.
    fn chunk(&self, at: usize, chunk: i32) -> i32 {
        let sequence = &self.sequences[at];
        let start = self.kv.length(SequenceId(at as u64)).expect("open");
        let end = (sequence.ids.len() as i32).min(start + chunk);
        let is_whole = self.model.vision().is_some_and(|vision| vision.info().whole);
        let cut = |image: &&ImagePlacement| is_whole && image.first < end && end < image.end();
        match sequence.placed.iter().find(cut) {
            None => end - start,
            Some(image) if image.first > start => image.first - start,
            Some(image) => image.end() - start,
        }
    }

    /// Runs a batch and commits its rows.
    pub fn run(&mut self, batch: &Batch, wants: &Wants) -> Forward {
        let forward = self.model.forward(batch, &mut self.kv, wants).expect("a forward");
        let hidden = forward.hidden_states.iter().flat_map(HiddenStates::arrays);
        forward.logits.iter().chain(hidden).for_each(|array| array.eval().expect("evaluates"));
        for segment in &batch.segments {
            self.kv.commit(segment.sequence, segment.start + segment.length).expect("commits");
        }
        forward
    }

    /// Reads every sequence in, `chunk` rows at a time, and lets it go on greedily until it has
    /// `more` ids more.
    pub fn go_on(&mut self, chunk: i32, more: usize) -> Vec<Vec<u32>> {
        let prompts: Vec<usize> =
            self.sequences.iter().map(|sequence| sequence.ids.len()).collect();
        loop {
            let mut next: Vec<(usize, i32)> = vec![];
            for (at, sequence) in self.sequences.iter().enumerate() {
                if sequence.ids.len() < prompts[at] + more {
                    next.push((at, self.chunk(at, chunk)));
                }
            }
            if next.is_empty() {
                break;
            }
            next.sort_by_key(|(at, _)| self.kv.order(SequenceId(*at as u64)));
            let batch = self.batch(&next);
            let (mut logit_rows, mut ends, mut row) = (vec![], vec![], 0);
            for ((at, _), segment) in next.iter().zip(&batch.segments) {
                row += segment.length;
                if (segment.start + segment.length) as usize == self.sequences[*at].ids.len() {
                    logit_rows.push(row - 1);
                    ends.push(*at);
                }
            }
            let forward = self.run(&batch, &Wants { logit_rows, ..Wants::default() });
            match &forward.logits {
                None => self.kv.evaluate().expect("evaluates"),
                Some(logits) => {
                    let rules = vec![RowRule::greedy(&[], 0); ends.len()];
                    let choices = choose(logits, &rules, &[]).expect("choices");
                    let numbers = floats(logits);
                    let rows = numbers.chunks(self.model.info().vocab as usize);
                    for ((at, choice), row) in ends.iter().zip(choices).zip(rows) {
                        self.sequences[*at].choose(self.model.dtype(), row, choice.token);
                    }
                }
            }
        }
        self.sequences
            .iter()
            .zip(prompts)
            .map(|(sequence, prompt)| sequence.ids[prompt..].to_vec())
            .collect()
    }
}
