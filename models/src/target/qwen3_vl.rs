//! Qwen3-VL (arXiv 2511.21631): a Qwen3 whose rows stand on three axes, and a vision tower. What is
//! its own is here: where a checkpoint keeps its parts, and how they must fit each other.

use super::decoder::{Decoder, DecoderSpec, TargetFiles};
use super::qwen3::Config;
use crate::layers::{NormWeight, Rope};
use crate::load::{Layout, LoadError};
use crate::vision::{QwenTower, TextModelSizes};

/// Loads it, in either layout.
pub(super) fn load(files: TargetFiles<'_>) -> Result<Decoder, LoadError> {
    let TargetFiles { dir, config, mut weights, weight_bytes } = files;
    let read = Config::read(config)?;
    let sizes = read.sizes;
    let rope = Rope::load(config, sizes.head_dim)?.on_three_axes(config)?;
    let layout = Layout::of(&weights, &Layout::WITH_VISION)?;
    let key = if config.optional::<u32>("image_token_id")?.is_some() {
        "image_token_id"
    } else {
        "image_token_index"
    };
    let image_token: u32 =
        config.required(key).map_err(|error| match config.optional::<u32>("image_token_id") {
            Ok(None) => config
                .wrong("image_token_id", "expected the id of a picture's rows, found none".into()),
            _ => error,
        })?;
    if image_token >= sizes.vocab_size as u32 {
        return Err(config.wrong(
            key,
            format!("expected an id below {}, found {image_token}", sizes.vocab_size),
        ));
    }
    let vision_config = config.part("vision_config")?;
    let vision_config = vision_config.ok_or_else(|| {
        config.wrong("vision_config", "expected the vision tower's sizes, found none".into())
    })?;
    let text_sizes =
        TextModelSizes { hidden: sizes.hidden_size, n_layers: sizes.n_layers, image_token };
    let tower = QwenTower::load(&vision_config, &mut weights, layout.vision, text_sizes)?;
    let spec = DecoderSpec {
        architecture: "qwen3_vl".into(),
        layout,
        sizes,
        attention: read.attention,
        recurrent: &[],
        norms: NormWeight::Whole,
        feed_forward: &|weights, _, name| read.feed_forward(weights, name),
        rope,
        tower: Some(Box::new(tower)),
    };
    Decoder::load(dir, weights, weight_bytes, spec)
}
