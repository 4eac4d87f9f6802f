//! Gemma 4: sliding and full layers with heads of other sizes and rotations, keys that are values,
//! layers that share them, experts beside a dense block, and per-layer embeddings: an input of each
//! layer that is looked up by the row's id. The model of these parts: `gemma.rs`. Source: Gemma 4
//! in transformers.

mod assisted;
mod attention;
mod config;
mod images;
mod layer;
mod per_layer;

use half::{bf16, f16};
use mlx_rs::Dtype;

pub(crate) use assisted::{AssistedLayers, AssistedTarget};
pub(super) use config::{Config, LayerForm};
pub(super) use images::load as load_tower;
pub(super) use layer::Layer;
pub(super) use per_layer::PerLayerInputs;

/// A factor in the type in which its table is stored: models are trained with it so.
pub(super) fn rounded(factor: f32, stored: Dtype) -> f32 {
    match stored {
        Dtype::Bfloat16 => bf16::from_f32(factor).to_f32(),
        Dtype::Float16 => f16::from_f32(factor).to_f32(),
        _ => factor,
    }
}
