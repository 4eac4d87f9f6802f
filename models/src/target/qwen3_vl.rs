//! Qwen3-VL (arXiv 2511.21631): a Qwen3 whose rows stand on three axes, and a vision tower. What is
//! its own is here: where a checkpoint keeps its parts, and how they must fit each other.

use std::path::Path;

use super::qwen3::{Config, FamilySpec, Qwen3};

use crate::layers::Rope;
use crate::load::{ConfigJson, LoadError, Weights};
use crate::vision::{QwenTower, TextModelSizes};

/// Loads it, in the layout of transformers or of mlx-vlm.
pub(super) fn load(
    dir: &Path,
    config: &ConfigJson,
    mut weights: Weights,
    weight_bytes: u64,
) -> Result<Qwen3, LoadError> {
    let sizes = Config::read(config)?;
    let rope = Rope::load(config, sizes.head_dim)?.on_three_axes(config)?;
    let (text, head, vision) = match weights.has("language_model.model.embed_tokens.weight") {
        true => ("language_model.model", "language_model.lm_head", "vision_tower"),
        false => ("model.language_model", "lm_head", "model.visual"),
    };
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
    let tower = QwenTower::load(&vision_config, &mut weights, vision, text_sizes)?;
    let family =
        FamilySpec { architecture: "qwen3_vl", text, head, rope, tower: Some(Box::new(tower)) };
    Qwen3::load_family(dir, sizes, weights, weight_bytes, family)
}
