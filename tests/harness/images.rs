//! Requests with images, a service with a vision tower, and a drafter that fits it. The model is
//! the tiny Qwen3-VL of the parity tests. Its weights are random, so its answers mean nothing and
//! depend on every pixel.

use std::io::Write as _;
use std::path::{Path, PathBuf};

use base64::Engine as _;
use flate2::write::ZlibEncoder;
use flate2::{Compression, Crc};
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::{ContentPart, Image, ImageUrl, Message};
use serde_json::json;

use crate::ask::{Ask, conversation};
use crate::model::{Weights, random_checkpoint, set_template, tools_and_thoughts};
use crate::prompts::Dice;
use crate::{Stack, repository};

/// Directory of the model with a vision tower.
pub fn model() -> PathBuf {
    repository().join("models/tests/golden/qwen3-vl-tiny")
}

/// Directory of a model with a vision tower whose text model has states.
pub fn hybrid_model() -> PathBuf {
    repository().join("models/tests/golden/qwen3_5-vl-tiny")
}

/// Writes a copy of the model into `to` whose template knows images, tools and thoughts.
pub fn templated(to: &Path) {
    copy(&model(), to);
    set_template(to, &tools_and_thoughts(PARTS));
}

/// Writes a content that is a text, or parts of which some are images.
const PARTS: &str = "{%- if m.content is string %}{{- m.content }}{%- else %}{%- for part in m.content or [] %}\
{%- if part.type == 'image' or 'image' in part or 'image_url' in part %}{{- '<|vision_start|><|image_pad|><|vision_end|>' }}\
{%- elif 'text' in part %}{{- part.text }}{%- endif %}{%- endfor %}{%- endif %}";

/// Copies the files of a model.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir(to).expect("the directory is the test's own");
    for entry in std::fs::read_dir(from).expect("the model is in the repository") {
        let entry = entry.expect("readable");
        std::fs::copy(entry.path(), to.join(entry.file_name())).expect("copied");
    }
}

/// Writes a copy of a model without the tensors of its tower into `to`, as mlx-lm's conversions are.
pub fn without_tower(from: &Path, to: &Path) {
    copy(from, to);
    let file = "model.safetensors";
    let text = Weights::read(&from.join(file)).kept(|name| !name.contains("visual"));
    std::fs::write(to.join(file), text.bytes()).expect("written");
}

/// A service of it without a drafter, with more settings.
pub fn seeing(settings: &str) -> Stack {
    seeing_with(&model(), settings)
}

/// A service of another model without a drafter, with more settings.
pub fn seeing_with(model: &Path, settings: &str) -> Stack {
    Stack::ready(&format!("target.model = {model:?}\ndrafter.start = \"manual\"\n{settings}"))
}

/// A service of it with a drafter that proposes noise, linked.
pub fn seeing_and_drafting(settings: &str) -> Stack {
    seeing_beside(settings, drafter)
}

/// The service of [`seeing_and_drafting`] with a drafter whose config says that it drafts for text
/// alone.
pub fn seeing_and_drafting_text(settings: &str) -> Stack {
    seeing_beside(settings, |dir| {
        drafter(dir);
        let path = dir.join("config.json");
        let text = std::fs::read_to_string(&path).expect("the drafter has a config");
        let mut config: serde_json::Value =
            serde_json::from_str(&text).expect("the config is JSON");
        config["dflash_config"]["serves_images"] = false.into();
        std::fs::write(&path, config.to_string()).expect("the directory is the test's own");
    })
}

fn seeing_beside(settings: &str, make_drafter: impl FnOnce(&Path)) -> Stack {
    let mut stack = Stack::new(&format!("target.model = {:?}\n{settings}", model()));
    let dir = stack.path("noise");
    make_drafter(&dir);
    stack.set(&format!("drafter.model = {dir:?}\n"));
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();
    stack
}

/// A file of an image from the gateway's tests.
pub fn file(name: &str) -> Vec<u8> {
    std::fs::read(path(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

/// Where it is.
pub fn path(name: &str) -> PathBuf {
    repository().join("text/tests/golden/images").join(name)
}

/// A PNG of this many random pixels, a multiple of what the model reads, so that they reach it as
/// they are. Another number, another image, which no cache has.
pub fn noise(columns: u32, rows: u32, number: u64) -> Vec<u8> {
    let mut dice = Dice(number);
    let pixels: Vec<u8> = (0..columns * rows * 3).map(|_| dice.roll(256) as u8).collect();
    png(columns, rows, &pixels, &[])
}

/// A PNG of these pixels, three bytes each, with more chunks before them.
pub fn png(columns: u32, rows: u32, pixels: &[u8], more: &[(&[u8; 4], &[u8])]) -> Vec<u8> {
    let head = [&columns.to_be_bytes()[..], &rows.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let mut packed = ZlibEncoder::new(vec![], Compression::fast());
    for row in pixels.chunks(columns as usize * 3) {
        packed.write_all(&[0]).and_then(|()| packed.write_all(row)).unwrap();
    }
    let packed = packed.finish().unwrap();
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let all = [&[(b"IHDR", &head[..])], more, &[(b"IDAT", &packed[..]), (b"IEND", &[])]].concat();
    for (kind, content) in all {
        let mut crc = Crc::new();
        crc.update(kind);
        crc.update(content);
        png.extend(
            [&(content.len() as u32).to_be_bytes()[..], kind, content, &crc.sum().to_be_bytes()]
                .concat(),
        );
    }
    png
}

/// Text as a part.
pub fn text(text: &str) -> ContentPart {
    ContentPart { part: Some(Part::Text(text.into())) }
}

/// An image's file as a part.
pub fn image(file: impl Into<bytes::Bytes>) -> ContentPart {
    ContentPart { part: Some(Part::Image(Image { data: file.into() })) }
}

/// An address as a part.
pub fn address(url: impl Into<String>) -> ContentPart {
    ContentPart { part: Some(Part::ImageUrl(ImageUrl { url: url.into() })) }
}

/// Bytes as text of the base64 alphabet.
pub fn base64(file: &[u8]) -> String {
    base64::engine::general_purpose::STANDARD.encode(file)
}

/// A file in its own address.
pub fn data_url(file: &[u8]) -> String {
    format!("data:image/png;base64,{}", base64(file))
}

/// One turn of the user's with these parts.
pub fn turn(parts: Vec<ContentPart>) -> Message {
    Message { role: "user".into(), content: parts, ..Default::default() }
}

/// Asks about an image, greedily.
pub fn about(file: impl Into<bytes::Bytes>, question: &str) -> Ask {
    conversation(vec![turn(vec![image(file), text(question)])])
}

/// Files that wait for the target.
pub fn waiting(stack: &Stack) -> Vec<String> {
    let entries = std::fs::read_dir(stack.run_dir().join("images"))
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// Writes a DFlash checkpoint of random weights that fits the model. Its drafts are as good as
/// chance, and only the speed may depend on that.
///
/// # Panics
/// It cannot be written.
pub fn drafter(dir: &Path) {
    const HIDDEN: usize = 40;
    const HEAD: usize = 16;
    const HEADS: usize = 4;
    const KV_HEADS: usize = 2;
    const INNER: usize = 64;
    const TAPS: [usize; 2] = [0, 1];
    let mut tensors: Vec<(String, Vec<usize>)> = vec![
        ("fc.weight".into(), vec![HIDDEN, TAPS.len() * HIDDEN]),
        ("hidden_norm.weight".into(), vec![HIDDEN]),
        ("norm.weight".into(), vec![HIDDEN]),
    ];
    let of_layer: [(&str, &[usize]); 11] = [
        ("input_layernorm", &[HIDDEN]),
        ("post_attention_layernorm", &[HIDDEN]),
        ("self_attn.q_proj", &[HEADS * HEAD, HIDDEN]),
        ("self_attn.k_proj", &[KV_HEADS * HEAD, HIDDEN]),
        ("self_attn.v_proj", &[KV_HEADS * HEAD, HIDDEN]),
        ("self_attn.o_proj", &[HIDDEN, HEADS * HEAD]),
        ("self_attn.q_norm", &[HEAD]),
        ("self_attn.k_norm", &[HEAD]),
        ("mlp.gate_proj", &[INNER, HIDDEN]),
        ("mlp.up_proj", &[INNER, HIDDEN]),
        ("mlp.down_proj", &[HIDDEN, INNER]),
    ];
    tensors.extend(
        of_layer.iter().map(|(name, shape)| (format!("layers.0.{name}.weight"), shape.to_vec())),
    );
    let config = json!({
        "architectures": ["DFlashDraftModel"], "model_type": "qwen3", "num_hidden_layers": 1, "num_target_layers": 3,
        "block_size": 8, "layer_types": ["full_attention"], "tie_word_embeddings": false, "hidden_size": HIDDEN,
        "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "head_dim": HEAD, "intermediate_size": INNER,
        "vocab_size": 272, "rms_norm_eps": 1e-6, "rope_theta": 10_000.0, "max_position_embeddings": 2048, "hidden_act": "silu",
        "attention_bias": false, "dflash_config": {"mask_token_id": 263, "target_layer_ids": TAPS},
    });
    random_checkpoint(dir, &config, &tensors);
}
