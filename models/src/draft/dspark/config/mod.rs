//! config.json of a DSpark drafter, in the two layouts that it is published in: DeepSeek's, with
//! the keys of DFlash, and that of speculators, with the layers' keys in
//! `transformer_layer_config`.

use crate::draft::block_diffusion::{self, Keys, LayerForm, wrong};
use crate::load::{ConfigJson, LoadError};

/// The names in `architectures`.
const ARCHITECTURES: [&str; 4] =
    ["Qwen3DSparkModel", GEMMA, "DSparkDraftModel", "DSparkSpeculator"];

/// The drafter whose layers are Gemma 4's; the keys of its layers are those of its target.
const GEMMA: &str = "Gemma4DSparkModel";

/// Word in the name of every DSpark drafter, whatever its layers.
const FAMILY: &str = "DSpark";

/// The value of `speculators_model_type` and of `dflash_config.projector_type`.
const NAME: &str = "dspark";

/// `markov_rank` of a config without it, in both layouts.
const USUAL_RANK: i64 = 256;

/// Sizes and rules of one checkpoint.
#[derive(Clone, Debug)]
pub(super) struct Config {
    pub(super) backbone: block_diffusion::Config,
    /// The target's vocabulary.
    pub(super) vocab: i32,
    /// Rows of the head that it computes with.
    pub(super) draft_vocab: i32,
    /// Numbers of a row of the table of pairs; 0: there is none.
    pub(super) rank: i32,
    /// Whether it has a confidence head; `None`: if there are tensors of one.
    pub(super) confidence: Option<bool>,
    /// Whether the confidence head reads the token before.
    pub(super) confidence_with_markov: bool,
}

/// Whether a config.json is that of a DSpark drafter, also of one that is not served.
///
/// # Errors
/// A key has another type.
pub(super) fn is_dspark(config: &ConfigJson) -> Result<bool, LoadError> {
    let keys = Keys::of(config)?;
    let named = keys.architectures()?.iter().any(|name| name.contains(FAMILY));
    let speculators = keys.speculators.as_deref() == Some(NAME);
    let projector = keys.either::<String>("projector_type")?.as_deref() == Some(NAME);
    let ranked = keys.either::<i64>("markov_rank")?.is_some_and(|rank| rank > 0);
    Ok(named || speculators || projector || ranked)
}

/// The config with the rotary keys.
///
/// # Errors
/// A part of the config has another type.
pub(super) fn rotary(config: &ConfigJson) -> Result<ConfigJson, LoadError> {
    Ok(Keys::of(config)?.layers.into_owned())
}

impl Config {
    /// Reads the keys.
    ///
    /// # Errors
    /// A config of another kind, or one that is not served.
    pub(super) fn read(config: &ConfigJson) -> Result<Self, LoadError> {
        let keys = Keys::of(config)?;
        check_kind(&keys, config)?;
        let bonus_proposes = keys.either("sample_from_anchor")?.unwrap_or(true);
        let form = match keys.architectures()?.iter().any(|name| name == GEMMA) {
            true => keys.gemma_form()?,
            false => LayerForm::Qwen3,
        };
        let backbone = block_diffusion::Config {
            bonus_proposes,
            ..keys.backbone_of(form, block_rows(&keys, bonus_proposes)?)?
        };
        let vocab = keys.layers.size("vocab_size")?;
        let draft_vocab = match keys.either::<i64>("draft_vocab_size")? {
            Some(_) => keys.size("draft_vocab_size")?,
            None => vocab,
        };
        if draft_vocab > vocab {
            let what = format!("expected at most {vocab}, found {draft_vocab}");
            return Err(wrong("draft_vocab_size", what));
        }
        let rank = keys.either::<i64>("markov_rank")?.unwrap_or(USUAL_RANK);
        if !(0..=1 << 16).contains(&rank) {
            return Err(wrong("markov_rank", format!("expected 0 to 65536, found {rank}")));
        }
        let head: Option<String> = keys.either("markov_head_type")?;
        if let Some(other) = head.filter(|head| head != "vanilla" && rank > 0) {
            let what = format!("expected vanilla, found {other}: no other head is built");
            return Err(wrong("markov_head_type", what));
        }
        Ok(Self {
            backbone,
            vocab,
            draft_vocab,
            rank: rank as i32,
            confidence: keys.either("enable_confidence_head")?,
            confidence_with_markov: rank > 0
                && keys.either("confidence_head_with_markov")?.unwrap_or(true),
        })
    }

    /// Refuses a reduced vocabulary without a head of its own: the target's head has all rows.
    pub(super) fn check_whole_vocabulary(&self) -> Result<(), LoadError> {
        if self.draft_vocab == self.vocab {
            return Ok(());
        }
        let what = format!(
            "expected {} with the target's head, found {}: a reduced vocabulary needs lm_head in \
             the checkpoint",
            self.vocab, self.draft_vocab
        );
        Err(wrong("draft_vocab_size", what))
    }
}

/// Refuses other kinds, and DSpark drafters with layers of another form.
fn check_kind(keys: &Keys<'_>, config: &ConfigJson) -> Result<(), LoadError> {
    let architectures = keys.architectures()?;
    if !is_dspark(config)? {
        let what = format!(
            "expected one of {ARCHITECTURES:?}, found {architectures:?}: leave drafter.kind at auto"
        );
        return Err(wrong("architectures", what));
    }
    let is_other =
        |name: &&String| name.contains(FAMILY) && !ARCHITECTURES.contains(&name.as_str());
    if let Some(other) = architectures.iter().find(is_other) {
        let what = format!(
            "expected one of {ARCHITECTURES:?}, found {other}: no layers of another form are built"
        );
        return Err(wrong("architectures", what));
    }
    match &keys.speculators {
        Some(kind) if kind != NAME => {
            Err(wrong("speculators_model_type", format!("expected {NAME}, found {kind}")))
        }
        _ => Ok(()),
    }
}

/// Rows of a block with the bonus token's, from `block_size`. DeepSeek's counts proposals, unless
/// `dspark_bonus_anchor` says that the bonus token is among them. That of speculators counts the
/// rows of the drafter, of which the bonus token's may propose.
fn block_rows(keys: &Keys<'_>, bonus_proposes: bool) -> Result<i32, LoadError> {
    let counts_bonus = match keys.speculators {
        Some(_) => !bonus_proposes,
        None => keys.either("dspark_bonus_anchor")?.unwrap_or(false),
    };
    Ok(if counts_bonus { keys.block(2)? } else { keys.block(1)? + 1 })
}

#[cfg(test)]
mod tests;
