//! The layer with which GLM-OCR predicts the token after the next: one layer of the family after the
//! model's last one, with the target's embedding, final norm and output head. R rows.
//!
//! ```text
//!  z      = eh_proj [enorm(embedding of the token), hnorm(h)]      the embedding of position 0 is 0
//!  o      = layer(z), and o is the h of the next row
//!  logits = target's head(shared_head.norm(o))
//! ```
//!
//! h of a context row is the target's output after its final norm. The arithmetic is that of vLLM's
//! `glm_ocr_mtp.py`. SGLang's `glm_ocr_nextn.py` differs after the first draft: there h is normed by
//! `shared_head.norm`, and no embedding is 0. Which of both a published checkpoint drafts better with
//! is not measured here.
//!
//! The checkpoint also has copies of the embedding and of the output head under the layer's name. They
//! are left unread. Conversions to MLX leave the whole layer out.

use super::mtp_head::Head;
use super::{DraftFacts, DraftInfo, DrafterFiles};
use crate::families::{glm_ocr_layer, glm_ocr_sizes};
use crate::layers::{Linear, NormWeight, RmsNorm};
use crate::load::{CheckpointError, LoadError, Tensors};

/// The name of the layer with a dot after it, if a checkpoint has one.
pub(super) fn layer(files: &Tensors) -> Option<String> {
    let mut names = files.shapes().map(|(name, _)| name);
    names.find_map(|name| name.strip_suffix("eh_proj.weight").map(str::to_owned))
}

/// Forgets the tensors of the model around the layer, and the layer's copies of both ends.
pub(super) fn own_tensors(files: &mut Tensors) -> Result<NormWeight, LoadError> {
    let first = layer(files).unwrap_or_default();
    let copies = ["embed_tokens.", "shared_head.head."];
    files.keep(|name| {
        name.strip_prefix(&first)
            .is_some_and(|part| !copies.iter().any(|copy| part.starts_with(copy)))
    });
    Ok(NormWeight::Whole)
}

/// Reads the layer, which has these inputs and proposals.
///
/// # Errors
/// A key or a tensor is missing or does not fit.
pub(super) fn load(files: DrafterFiles<'_>, info: DraftInfo) -> Result<Head, LoadError> {
    let DrafterFiles { config, weights, quantize, ends, .. } = files;
    let missing = |name: &str| LoadError::from(CheckpointError::Missing { name: name.to_owned() });
    let first = layer(weights.files()).ok_or_else(|| missing("eh_proj.weight"))?;
    let target = ends.ok_or_else(|| missing("embed_tokens.weight"))?;
    let mut weights = weights.quantizing(quantize.bits()).with_prefix(&first);
    let dtype = weights.dtype_of("eh_proj.weight");
    let (hidden, eps) = (info.hidden, glm_ocr_sizes(config)?.rms_norm_eps);
    let fc = Linear::load(&mut weights, "eh_proj", hidden, 2 * hidden, false)?;
    let mut norm = |name: &str| RmsNorm::load(&mut weights, name, hidden, eps);
    let [pre_fc_norm_embedding, pre_fc_norm_hidden, norm] =
        [norm("enorm")?, norm("hnorm")?, norm("shared_head.norm")?];
    let layer = glm_ocr_layer(&mut weights, config)?;
    weights.finish()?;
    Ok(Head {
        facts: DraftFacts { info, kv_layers: vec![layer.kv().into()], dtype },
        target,
        pre_fc_norm_embedding,
        pre_fc_norm_hidden,
        fc,
        layer,
        norm,
        hands_on_normed: false,
        reads_at_0: false,
    })
}
