//! The output head of a drafter's target: `lm_head`, or the embedding if the two are tied. A kind
//! that chooses its drafts one after another computes logits itself; its publishers leave the head
//! out, because the target's checkpoint has it.

use std::path::Path;

use super::{DraftInfo, Kind, forms};
use crate::layers::Linear;
use crate::load::{ConfigJson, Layout, LoadError, StoragePlan, TensorFiles, WeightForms, Weights};

/// Where the families that are served keep their parts.
const LAYOUTS: [Layout; 3] = [Layout::TEXT, Layout::WITH_VISION[0], Layout::WITH_VISION[1]];

/// A target's head that was found and not read yet.
pub(super) struct BorrowedHead {
    /// The head's tensors alone.
    files: TensorFiles,
    forms: WeightForms,
    /// Its name in the checkpoint.
    module: String,
    vocab: i32,
    hidden: i32,
}

impl BorrowedHead {
    /// Finds the head for a drafter with these tensors and this description; `None` if its kind
    /// does without.
    ///
    /// # Errors
    /// No target is given, its files are broken, or its sizes are not the drafter's.
    pub(super) fn of(
        kind: &Kind,
        drafter: &TensorFiles,
        target: Option<&Path>,
        info: &DraftInfo,
    ) -> Result<Option<Self>, LoadError> {
        if !(kind.borrows_head)(drafter) {
            return Ok(None);
        }
        let missing = || {
            let what = format!(
                "expected the target's directory, found none: this drafter of kind {} computes \
                 with its target's output head; set target.model",
                kind.name
            );
            LoadError::Config { key: "target.model".into(), what }
        };
        let head = Self::open(target.ok_or_else(missing)?)?;
        head.check(info)?;
        Ok(Some(head))
    }

    fn open(target: &Path) -> Result<Self, LoadError> {
        let config = ConfigJson::read(target)?;
        let mut files = TensorFiles::open(target)?;
        let embedding = |layout: &Layout| format!("{}.embed_tokens", layout.text);
        let weight = |module: &str| format!("{module}.weight");
        let layout = LAYOUTS.iter().find(|layout| files.has(&weight(&embedding(layout))));
        let layout = layout.ok_or_else(|| {
            let names: Vec<_> = LAYOUTS.iter().map(embedding).map(|name| weight(&name)).collect();
            LoadError::Missing { name: names.join(" or ") }
        })?;
        let is_tied = config.optional("tie_word_embeddings")?.unwrap_or(false);
        let module = if is_tied { embedding(layout) } else { layout.head.to_owned() };
        if !files.has(&weight(&module)) {
            return Err(LoadError::Missing { name: weight(&module) });
        }
        files.keep_module(&module);
        Ok(Self {
            files,
            forms: forms(&config)?,
            module,
            vocab: config.size("vocab_size")?,
            hidden: config.size("hidden_size")?,
        })
    }

    /// Refuses a head whose sizes are not those the drafter was made for.
    fn check(&self, info: &DraftInfo) -> Result<(), LoadError> {
        let sizes = [
            ("hidden_size", Some(info.hidden), self.hidden),
            ("vocab_size", info.vocab, self.vocab),
        ];
        for (key, drafter, target) in sizes {
            if drafter.is_some_and(|drafter| drafter != target) {
                let what = format!(
                    "expected the target's, {target}, found {}: this drafter was made for another \
                     target",
                    drafter.unwrap_or_default()
                );
                return Err(LoadError::Config { key: key.into(), what });
            }
        }
        Ok(())
    }

    /// Bytes of its tensors in the files.
    pub(super) fn bytes(&self) -> u64 {
        self.files.total_bytes()
    }

    /// What its tensors take.
    ///
    /// # Errors
    /// It is quantized in a format that the target's config.json does not name.
    pub(super) fn storage(&self) -> Result<StoragePlan, LoadError> {
        StoragePlan::of(&self.files, &self.forms)
    }

    /// Reads it: `[rows, hidden]` → `[rows, vocab]`. Quantized as it is stored, else to `bits`.
    /// `progress` is called with the bytes read.
    ///
    /// # Errors
    /// Its tensors are not those of its config.json.
    pub(super) fn load(
        self,
        bits: Option<i32>,
        progress: &mut dyn FnMut(u64),
    ) -> Result<Linear, LoadError> {
        let mut weights = Weights::new(self.files, self.forms, progress);
        let head = Linear::load(&mut weights, &self.module, self.vocab, self.hidden, false)?;
        weights.finish()?;
        head.quantized(bits)
    }
}
