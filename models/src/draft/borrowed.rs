//! Parts of a drafter's target that the drafter computes with: the embedding; the output head; both
//! ends, which are embedding, final norm and head; or what computes keys and values of two layers.
//! A kind that chooses its drafts one after another computes logits itself; its publishers leave
//! these parts out, because the target's checkpoint has them.

use std::path::{Path, PathBuf};

use mlx_rs::{Array, Dtype};
use paceline_checkpoint::families::is_tied;

use super::vocabulary::{RowsById, proposed_ids};
use super::{DraftInfo, DraftOptions, Kind, forms};
use crate::error::Result;
use crate::families::{self, AssistedLayers, AssistedTarget};
use crate::layers::{Embedding, Linear, NormWeight, RmsNorm};
use crate::load::{
    CheckpointError, ConfigJson, Layout, LoadError, Packing, StoragePlan, Tensors, WeightForms,
    Weights,
};

/// Where the families that are served keep their parts.
const LAYOUTS: [Layout; 3] = [Layout::TEXT, Layout::WITH_VISION[0], Layout::WITH_VISION[1]];

/// Parts that a drafter takes from its target's checkpoint.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Borrows {
    /// It has all that it needs.
    Nothing,
    /// The embedding of any family that is served.
    Embedding,
    /// The output head.
    Head,
    /// The embedding, the final norm and the output head of a Qwen3.5.
    Ends,
    /// The same of a GLM-OCR.
    GlmEnds,
    /// The embedding and the final norm of a Gemma 4, and the weights of two layers' keys and
    /// values.
    KeysAndValues,
}

/// Parts of a target, as far as a drafter borrows them.
#[derive(Default)]
pub(super) struct BorrowedParts {
    /// Token ids → `[rows, hidden]`.
    pub(super) embedding: Option<Embedding>,
    /// `[rows, hidden]` → `[rows, vocab]`.
    pub(super) head: Option<Linear>,
    pub(super) ends: Option<TargetEnds>,
    pub(super) assisted: Option<AssistedTarget>,
}

/// Both ends of a target. Field names are the checkpoint's tensor names.
pub(super) struct TargetEnds {
    embed_tokens: Embedding,
    norm: RmsNorm,
    /// `None`: tied to the embedding.
    lm_head: Option<Linear>,
    /// `None`: the head has a row for each id.
    rows: Option<RowsById>,
}

impl TargetEnds {
    /// Embeddings of `ids` `[R]` → `[R, hidden]`.
    pub(super) fn embed(&self, ids: &Array) -> Result<Array> {
        self.embed_tokens.rows_of(ids)
    }

    /// Outputs of the last layer `[R, hidden]` → the same shape, as the head reads them.
    pub(super) fn norm(&self, states: &Array) -> Result<Array> {
        self.norm.forward(states)
    }

    /// `normed` `[R, hidden]` → logits `[R, ids]`, float32: of all ids, or of [`Self::proposed`].
    pub(super) fn logits(&self, normed: &Array) -> Result<Array> {
        let logits = match &self.lm_head {
            Some(head) => head.forward(normed)?,
            None => self.embed_tokens.as_head(normed)?,
        };
        Ok(logits.as_dtype(Dtype::Float32)?)
    }

    /// The ids that are proposed, if they are not all.
    pub(super) fn proposed(&self) -> Option<&RowsById> {
        self.rows.as_ref()
    }
}

/// Parts of a target that were found and not read yet.
pub(super) struct FoundParts {
    /// The target's directory, and its config.json.
    dir: PathBuf,
    config: ConfigJson,
    /// Their tensors alone.
    files: Tensors,
    forms: WeightForms,
    parts: Borrows,
    /// Name of the text model in the checkpoint.
    text: &'static str,
    /// Names of the modules in the checkpoint.
    embedding: String,
    norm: String,
    /// `None`: tied to the embedding.
    head: Option<String>,
    norms: NormWeight,
    rms_norm_eps: f32,
    vocab: i32,
    hidden: i32,
}

impl FoundParts {
    /// Finds the parts for a drafter with these tensors and this description; `None` if its kind
    /// does without.
    ///
    /// # Errors
    /// No target is given, its files are broken, or its sizes are not the drafter's.
    pub(super) fn of(
        kind: &Kind,
        drafter: &Tensors,
        target: Option<&Path>,
        info: &DraftInfo,
    ) -> Result<Option<Self>, LoadError> {
        let (parts, what) = match (kind.borrows)(drafter) {
            Borrows::Nothing => return Ok(None),
            Borrows::Embedding => (Borrows::Embedding, "its target's embedding"),
            Borrows::Head => (Borrows::Head, "its target's output head"),
            ends @ (Borrows::Ends | Borrows::GlmEnds) => {
                (ends, "its target's embedding, final norm and output head")
            }
            Borrows::KeysAndValues => {
                (Borrows::KeysAndValues, "its target's embedding, final norm, keys and values")
            }
        };
        let missing = || {
            let what = format!(
                "expected the target's directory, found none: this drafter of kind {} computes \
                 with {what}; set target.model",
                kind.name
            );
            LoadError::from(CheckpointError::Config { key: "target.model".into(), what })
        };
        Self::open(target.ok_or_else(missing)?, parts, info).map(Some)
    }

    fn open(target: &Path, parts: Borrows, info: &DraftInfo) -> Result<Self, LoadError> {
        let config = ConfigJson::read(target)?;
        let (vocab, hidden) = (config.size("vocab_size")?, config.size("hidden_size")?);
        check_sizes(info, vocab, hidden)?;
        match parts {
            Borrows::Ends => families::check_hybrid(&config)?,
            Borrows::GlmEnds => families::check_glm_ocr(&config)?,
            _ => {}
        }
        let mut files = Tensors::open(target)?;
        let embedding = |layout: &Layout| format!("{}.embed_tokens", layout.text);
        let weight = |module: &str| format!("{module}.weight");
        let layout = LAYOUTS.iter().find(|layout| files.has(&weight(&embedding(layout))));
        let layout = layout.ok_or_else(|| {
            let names: Vec<_> = LAYOUTS.iter().map(embedding).map(|name| weight(&name)).collect();
            LoadError::from(CheckpointError::Missing { name: names.join(" or ") })
        })?;
        let is_tied = is_tied(&config)?;
        files.settle_head(is_tied)?;
        let (embedding, norm) = (embedding(layout), format!("{}.norm", layout.text));
        let has_head = !is_tied || files.has(&weight(layout.head));
        let head = has_head.then(|| layout.head.to_owned());
        let last = head.as_deref().filter(|_| parts != Borrows::Embedding);
        let last = last.unwrap_or(&embedding);
        if parts != Borrows::KeysAndValues && !files.has(&weight(last)) {
            return Err(LoadError::from(CheckpointError::Missing { name: weight(last) }));
        }
        let norms = match parts {
            Borrows::Ends => families::stored_norms(&files)?,
            _ => NormWeight::Whole,
        };
        match parts {
            Borrows::Ends | Borrows::GlmEnds => files.keep_modules(&[&embedding, &norm, last]),
            Borrows::KeysAndValues => {
                let mut modules = AssistedLayers::of(&config)?.modules(layout.text);
                modules.extend([embedding.clone(), norm.clone()]);
                let modules: Vec<&str> = modules.iter().map(String::as_str).collect();
                files.keep_modules(&modules);
            }
            _ => files.keep_modules(&[last]),
        }
        // What the families have if their config names none.
        let usual = if parts == Borrows::GlmEnds { 1e-5 } else { 1e-6 };
        let rms_norm_eps = config.optional("rms_norm_eps")?.unwrap_or(usual);
        Ok(Self {
            dir: target.to_path_buf(),
            forms: forms(&config)?,
            config,
            files,
            parts,
            text: layout.text,
            embedding,
            norm,
            head,
            norms,
            rms_norm_eps,
            vocab,
            hidden,
        })
    }

    /// Bytes of their tensors in the files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.total_bytes()
    }

    /// Storage of the borrowed tensors.
    ///
    /// # Errors
    /// One is quantized in a format that the target's config.json does not name.
    pub(super) fn storage(&self, packing: Option<Packing>) -> Result<StoragePlan, LoadError> {
        Ok(StoragePlan::of_packed(&self.files, &self.forms, packing)?)
    }

    /// Reads them, or checks them alone if `rehearses`. Quantized as they are stored, else as `options`
    /// says. `progress` is called with the bytes read.
    ///
    /// # Errors
    /// Their tensors are not those of the target's config.json, or a reduced vocabulary is wanted
    /// and the target's files about its tokens cannot be read.
    pub(super) fn load(
        self,
        options: DraftOptions,
        rehearses: bool,
        progress: &mut dyn FnMut(u64),
    ) -> Result<BorrowedParts, LoadError> {
        let (vocab, hidden, eps) = (self.vocab, self.hidden, self.rms_norm_eps);
        let bits = options.quantize.bits();
        let weights = Weights::new(self.files, self.forms, progress)?.quantizing(bits);
        let mut weights = if rehearses { weights.rehearsing() } else { weights };
        let mut parts = BorrowedParts::default();
        if matches!(self.parts, Borrows::Ends | Borrows::GlmEnds) {
            let embed_tokens = Embedding::load(&mut weights, &self.embedding, vocab, hidden)?;
            let norm = RmsNorm::load_stored(&mut weights, &self.norm, hidden, eps, self.norms)?;
            let (lm_head, rows) = match (&self.head, options.draft_vocabulary) {
                (None, 0) => (None, None),
                (Some(name), 0) => {
                    (Some(Linear::load(&mut weights, name, vocab, hidden, false)?), None)
                }
                (head, count) => {
                    let ids = proposed_ids(&self.dir, &self.config, count, vocab)?;
                    let head = match head {
                        Some(name) => Linear::load_rows(&mut weights, name, vocab, hidden, &ids)?,
                        None => embed_tokens.head_of(&ids)?,
                    };
                    (Some(head), Some(RowsById::of_ids(&ids, vocab)))
                }
            };
            parts.ends = Some(TargetEnds { embed_tokens, norm, lm_head, rows });
        } else if self.parts == Borrows::KeysAndValues {
            let assisted = AssistedTarget::load(&mut weights, &self.config, self.text)?;
            parts.assisted = Some(assisted);
        } else if self.parts == Borrows::Embedding {
            let embedding = Embedding::load(&mut weights, &self.embedding, vocab, hidden)?;
            parts.embedding = Some(embedding);
        } else {
            let name = self.head.unwrap_or(self.embedding);
            parts.head = Some(Linear::load(&mut weights, &name, vocab, hidden, false)?);
        }
        weights.finish()?;
        Ok(parts)
    }
}

/// Refuses a target whose sizes are not those the drafter was made for.
fn check_sizes(info: &DraftInfo, vocab: i32, hidden: i32) -> Result<(), LoadError> {
    for (key, drafter, target) in
        [("hidden_size", Some(info.hidden), hidden), ("vocab_size", info.vocab, vocab)]
    {
        if drafter.is_some_and(|drafter| drafter != target) {
            let what = format!(
                "expected the target's, {target}, found {}: this drafter was made for another \
                 target",
                drafter.unwrap_or_default()
            );
            return Err(LoadError::from(CheckpointError::Config { key: key.into(), what }));
        }
    }
    Ok(())
}
