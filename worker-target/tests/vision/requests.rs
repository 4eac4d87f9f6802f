//! Requests with images, and the cases of the parity tests.

use std::path::PathBuf;
use std::sync::Arc;

use paceline_models::vision::ImageForm;
use paceline_proto::internal::v1::{Generation, Image as AnnouncedImage, SamplingRule};
use serde::Deserialize;
use sha2::{Digest as _, Sha256};

use crate::stage::drafter::roll;
use crate::stage::{GREEDY, generation};

pub const IMAGE: u32 = 261;
pub const PATCH: usize = 4;
pub const MERGE: u32 = 2;
pub const VOCAB: u64 = 256;
pub const PAGE: usize = 64;

/// A model with a vision tower.
#[derive(Clone, Copy, Debug)]
pub struct VisionModel {
    name: &'static str,
    /// Numbers of a hidden row.
    pub hidden: u32,
    /// Id of an image's rows.
    image: u32,
    /// Patches of a side that become one row.
    merge: u32,
    /// Rows of an image in a prompt.
    form: ImageForm,
    /// What a byte of a channel becomes: `byte · scale + bias`.
    scale: [f32; 3],
    bias: [f32; 3],
}

/// All of its layers attend.
pub const ATTENDING: VisionModel = qwen("qwen3-vl-tiny", 40);
/// Two of its three layers have states.
pub const HYBRID: VisionModel = qwen("qwen3_5-vl-tiny", 32);
/// Rows of an image attend to one another in layers with windows.
pub const WINDOWED: VisionModel = gemma("gemma4-vl-tiny");
/// As [`WINDOWED`], without a tower.
pub const UNIFIED: VisionModel = gemma("gemma4-unified-tiny");
/// Layers have windows, and rows of an image attend as text does.
pub const EDGE: VisionModel = gemma("gemma4-vl-edge");

/// Pairs of neighbouring numbers of its heads turn, and its tower has norms of heads.
pub const NEIGHBOURS: VisionModel = {
    let mean: [f64; 3] = [0.48145466, 0.4578275, 0.40821073];
    let std: [f64; 3] = [0.26862954, 0.26130258, 0.27577711];
    let (mut scale, mut bias, mut channel) = ([0.0; 3], [0.0; 3], 0);
    while channel < 3 {
        scale[channel] = (1.0 / 255.0 / std[channel]) as f32;
        bias[channel] = (-mean[channel] / std[channel]) as f32;
        channel += 1;
    }
    VisionModel { scale, bias, ..qwen("glm-ocr-tiny", 32) }
};

/// Three axes whose frequencies belong to them one after another.
pub const SECTIONS: VisionModel = VisionModel { image: 260, ..qwen("paddleocr_vl-tiny", 32) };
/// Lines of an image end in rows of their own, and rows have positions on four axes.
pub const LINES: VisionModel =
    VisionModel { image: 260, form: ImageForm::Lines, ..qwen("hunyuan_vl-tiny", 32) };

const fn qwen(name: &'static str, hidden: u32) -> VisionModel {
    let (scale, bias, form) = ([2.0 / 255.0; 3], [-1.0; 3], ImageForm::Grid);
    VisionModel { name, hidden, image: IMAGE, merge: MERGE, form, scale, bias }
}

const fn gemma(name: &'static str) -> VisionModel {
    let (scale, bias, form) = ([1.0 / 255.0; 3], [0.0; 3], ImageForm::Indexed);
    VisionModel { name, hidden: 36, image: 121, merge: 3, form, scale, bias }
}

impl VisionModel {
    pub fn dir(self) -> PathBuf {
        PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../models/tests/golden").join(self.name)
    }
}

/// An image, sizes in patches.
#[derive(Clone)]
pub struct TestImage {
    pub rows: u32,
    pub columns: u32,
    pub pixels: Arc<Vec<u8>>,
}

impl TestImage {
    pub fn random(rows: u32, columns: u32, mut seed: u64) -> Self {
        seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
        let pixels = (0..rows as usize * columns as usize * PATCH * PATCH * 3)
            .map(|_| roll(&mut seed) as u8)
            .collect();
        Self { rows, columns, pixels: Arc::new(pixels) }
    }

    /// Rows of a prompt.
    pub fn places(&self) -> usize {
        (self.rows * self.columns / MERGE / MERGE) as usize
    }

    pub fn announced(&self, first: usize) -> AnnouncedImage {
        self.announced_to(ATTENDING, first)
    }

    fn announced_to(&self, model: VisionModel, first: usize) -> AnnouncedImage {
        let VisionModel { scale, bias, .. } = model;
        let mut digest = Sha256::new();
        [self.rows, self.columns].iter().for_each(|size| digest.update(size.to_le_bytes()));
        scale.iter().chain(&bias).for_each(|number| digest.update(number.to_le_bytes()));
        digest.update(&*self.pixels);
        AnnouncedImage {
            file: String::new(),
            bytes: self.pixels.len() as u64,
            digest: digest.finalize().to_vec().into(),
            first: first as u32,
            rows: self.rows,
            columns: self.columns,
            scale: scale.to_vec(),
            bias: bias.to_vec(),
        }
    }
}

#[derive(Clone)]
pub enum Piece<'a> {
    /// This many ids, from this seed.
    Text(usize, u64),
    Image(&'a TestImage),
}
pub use Piece::{Image, Text};

/// A request and the images it needs.
#[derive(Clone)]
pub struct ImageRequest {
    pub generation: Generation,
    pub images: Vec<TestImage>,
}

pub fn request(pieces: &[Piece<'_>], max_tokens: u32) -> ImageRequest {
    let (mut prompt, mut announced, mut images) = (vec![], vec![], vec![]);
    for piece in pieces {
        match piece {
            Text(length, seed) => {
                let mut seed = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
                prompt.extend((0..*length).map(|_| (roll(&mut seed) % VOCAB) as u32));
            }
            Image(image) => {
                announced.push(image.announced(prompt.len()));
                prompt.extend(vec![IMAGE; image.places()]);
                images.push((*image).clone());
            }
        }
    }
    ImageRequest {
        generation: Generation { images: announced, ..generation("r", &prompt, max_tokens) },
        images,
    }
}

impl ImageRequest {
    pub fn scope(&self, scope: &str) -> Self {
        Self {
            generation: Generation { cache_scope: scope.into(), ..self.generation.clone() },
            images: self.images.clone(),
        }
    }

    pub fn warm(&self, seed: u64) -> Self {
        let sampling =
            Some(SamplingRule { temperature: 0.9, top_p: 0.95, repetition_penalty: 1.1, ..GREEDY });
        Self {
            generation: Generation { sampling, seed, ..self.generation.clone() },
            images: self.images.clone(),
        }
    }

    pub fn continued(&self, ids: &[u32]) -> Self {
        Self {
            generation: Generation { continuation_ids: ids.to_vec(), ..self.generation.clone() },
            images: self.images.clone(),
        }
    }

    pub fn prompt(&self) -> &[u32] {
        &self.generation.prompt_ids
    }
}

/// The cases of a model's parity tests, with the ids that transformers chooses.
pub fn golden(model: VisionModel) -> Vec<(ImageRequest, Vec<u32>)> {
    #[derive(Deserialize)]
    struct Golden {
        images: Vec<Taken>,
        cases: Vec<Case>,
    }
    #[derive(Deserialize)]
    struct Taken {
        name: String,
        rows: u32,
        columns: u32,
        pixels: String,
    }
    #[derive(Deserialize)]
    struct Case {
        prompt: Vec<u32>,
        images: Vec<String>,
        greedy: Vec<u32>,
    }
    let text = std::fs::read(model.dir().with_extension("json"))
        .expect("the golden file is in the repository");
    let golden: Golden = serde_json::from_slice(&text).expect("it has these fields");
    let image = |name: &String| {
        let taken =
            golden.images.iter().find(|taken| taken.name == *name).expect("an image of this name");
        let digits: Vec<u8> = taken
            .pixels
            .bytes()
            .map(|digit| (digit as char).to_digit(16).expect("hex") as u8)
            .collect();
        let pixels = digits.chunks(2).map(|pair| pair[0] << 4 | pair[1]).collect();
        TestImage { rows: taken.rows, columns: taken.columns, pixels: Arc::new(pixels) }
    };
    let case = |(at, case): (usize, &Case)| {
        let images: Vec<TestImage> = case.images.iter().map(image).collect();
        let (mut announced, mut behind) = (vec![], 0);
        for image in &images {
            let is_place = |id: &u32| *id == model.image;
            let first = behind + case.prompt[behind..].iter().position(is_place).expect("a place");
            announced.push(image.announced_to(model, first));
            let (lines, columns) = (image.rows / model.merge, image.columns / model.merge);
            behind = first + model.form.rows(lines, columns) as usize;
        }
        let generation = Generation {
            images: announced,
            ..generation(&format!("g{at}"), &case.prompt, case.greedy.len() as u32)
        };
        (ImageRequest { generation, images }, case.greedy.clone())
    };
    golden.cases.iter().enumerate().map(case).collect()
}

/// Eight streams of text, greedy and warm.
pub fn texts() -> Vec<ImageRequest> {
    let text = |at: u64| {
        let one = request(&[Text(20 + 30 * at as usize, 100 + at)], 60);
        if at.is_multiple_of(2) { one } else { one.warm(at) }
    };
    (0..8).map(text).collect()
}
