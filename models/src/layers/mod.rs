//! What model families share. Device branches and weight formats are settled here, not in a model's file.

mod attention;
mod linear;
mod mlp;
mod norm;
mod rope;

pub(crate) use attention::attention;
pub(crate) use linear::{Embedding, Linear};
pub(crate) use mlp::GatedMlp;
pub(crate) use norm::{RmsNorm, rms};
pub(crate) use rope::{Rope, RopeTables};
