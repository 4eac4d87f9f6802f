//! What is known of each family of targets before a weight is read: one row for each, in the file of the
//! family. How its layers compute is in `models/`.
//!
//! A new family has a file with its row here, a line in [`FAMILIES`], and a loader in `models/`.

pub mod gemma3;
pub mod gemma4;
pub mod glm;
pub mod hunyuan_vl;
pub mod llama;
mod paddleocr_vl;
mod qwen;
pub mod qwen3_5;
mod refused;
mod sizes;
mod smollm3;

use std::path::Path;

use crate::files::TOWERS;
use crate::layers::RecurrentSizes;
use crate::{CheckpointError, ConfigJson, KvHeads, Tensors, Unserved};

pub use sizes::Sizes;

/// A family of checkpoints.
#[derive(Debug)]
pub struct Family {
    /// Its `model_type`s in config.json; the first one names the family.
    pub model_types: &'static [&'static str],
    /// For each layer the sizes of its states, if it has some instead of attention. Empty: none has.
    pub recurrent: fn(&ConfigJson) -> Result<Vec<Option<RecurrentSizes>>, CheckpointError>,
    /// Keys and values of the layers that have some; `None`: as config.json's usual keys say.
    pub kv_heads: fn(&ConfigJson) -> Result<Option<Vec<KvHeads>>, CheckpointError>,
    /// Most rows of an image, if all of them must be in one pass, by the files of a directory.
    pub whole_image: fn(&Path, &ConfigJson) -> Result<Option<u32>, CheckpointError>,
    /// Parts that its checkpoints may have and that are not read.
    unserved: Unserved,
    towers: Towers,
    /// Module of layers that are no layers of the model: heads that predict a further token.
    next_token: Option<&'static str>,
    /// Whether the output head is the embedding if config.json does not say it.
    is_tied: bool,
}

/// Whether the vision towers of a family are served.
#[derive(Debug)]
enum Towers {
    /// They are left unread.
    Unread,
    /// In checkpoints that have one, of which these parts are unserved.
    IfThere(Unserved),
}

/// All families that are served.
pub static FAMILIES: [Family; 18] = [
    llama::FAMILY,
    llama::MISTRAL,
    smollm3::FAMILY,
    qwen::QWEN2,
    qwen::QWEN3,
    qwen::QWEN3_MOE,
    qwen::QWEN3_VL,
    qwen::QWEN3_VL_MOE,
    qwen::QWEN2_VL,
    qwen::QWEN2_5_VL,
    paddleocr_vl::FAMILY,
    hunyuan_vl::FAMILY,
    glm::FAMILY,
    glm::OCR,
    gemma3::FAMILY,
    gemma4::FAMILY,
    qwen3_5::FAMILY,
    qwen3_5::MOE,
];

/// Served parts of one checkpoint.
#[derive(Debug)]
pub struct ServedParts<'a> {
    /// Whether it has a vision tower that is served.
    pub has_tower: bool,
    unserved: &'a Unserved,
    next_token: Option<&'static str>,
    /// Whether config.json ties the head to the embedding.
    tied: bool,
}

impl ServedParts<'_> {
    /// Leaves the other parts unread, the tower unless `vision` is set, and a head that the embedding
    /// is.
    ///
    /// # Errors
    /// A file cannot be read.
    pub fn keep(&self, tensors: &mut Tensors, vision: bool) -> Result<(), CheckpointError> {
        tensors.skip(self.unserved);
        if !vision {
            tensors.skip(&Unserved { prefixes: &TOWERS, suffixes: &[] });
        }
        if let Some(module) = self.next_token {
            tensors.skip_layers_with(module);
        }
        tensors.settle_head(self.tied)
    }
}

impl Family {
    /// A family whose layers all attend.
    const fn attending(model_types: &'static [&'static str], unserved: Unserved) -> Self {
        Self {
            model_types,
            recurrent: |_| Ok(vec![]),
            kv_heads: |_| Ok(None),
            whole_image: |_, _| Ok(None),
            unserved,
            towers: Towers::Unread,
            next_token: None,
            is_tied: false,
        }
    }

    /// Its name: the first of its `model_type`s.
    pub const fn name(&self) -> &'static str {
        self.model_types[0]
    }

    /// The family of a model with this config.json.
    ///
    /// # Errors
    /// None is named, or one that is not served.
    pub fn of(config: &ConfigJson) -> Result<&'static Self, CheckpointError> {
        let model_type: String = config.required("model_type")?;
        Self::named(&model_type).ok_or_else(|| {
            let known: Vec<&str> =
                FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
            let what = format!("expected one of {}, found {model_type}", known.join(", "));
            let why = refused::reason(&model_type).map_or_else(String::new, |reason| {
                format!(", which is not served: {reason} (docs/models.md)")
            });
            config.wrong("model_type", what + &why)
        })
    }

    /// The family of this `model_type`.
    fn named(model_type: &str) -> Option<&'static Self> {
        FAMILIES.iter().find(|family| family.model_types.contains(&model_type))
    }

    /// Served parts of a checkpoint of the family in `dir`.
    ///
    /// # Errors
    /// It is saved to embed texts, or a key has another type.
    pub fn parts(
        &self,
        dir: &Path,
        config: &ConfigJson,
        tensors: &Tensors,
    ) -> Result<ServedParts<'_>, CheckpointError> {
        tensors.check_answers(dir)?;
        let has_tower = match self.towers {
            Towers::Unread => false,
            Towers::IfThere(_) => has_tower(config, tensors)?,
        };
        let unserved = match &self.towers {
            Towers::IfThere(unserved) if has_tower => unserved,
            _ => &self.unserved,
        };
        let tied = is_tied(config)?;
        Ok(ServedParts { has_tower, unserved, next_token: self.next_token, tied })
    }
}

/// Whether a checkpoint has the sizes of a tower and tensors of one.
///
/// mlx-lm's conversions keep `vision_config` and leave the tensors out. They are text models.
///
/// # Errors
/// `vision_config` is no object.
pub fn has_tower(config: &ConfigJson, tensors: &Tensors) -> Result<bool, CheckpointError> {
    let is_of_tower = |name: &str| TOWERS.iter().any(|first| name.starts_with(first));
    Ok(config.part("vision_config")?.is_some()
        && tensors.shapes().any(|(name, _)| is_of_tower(name)))
}

/// Whether a target's output head is its embedding if its files have no head: as config.json says, else
/// as its family has it.
///
/// # Errors
/// A key has another type.
pub fn is_tied(config: &ConfigJson) -> Result<bool, CheckpointError> {
    let model_type: Option<String> = config.optional("model_type")?;
    let family = model_type.as_deref().and_then(Family::named);
    let usual = family.is_some_and(|family| family.is_tied);
    Ok(config.optional("tie_word_embeddings")?.unwrap_or(usual))
}

/// Name of the family that has this `model_type`; `None` if it is not served.
pub fn name_of_type(model_type: &str) -> Option<&'static str> {
    Family::named(model_type).map(Family::name)
}

/// Whether config.json is that of a family that is served.
///
/// # Errors
/// `model_type` is no text.
pub fn is_served(config: &ConfigJson) -> Result<bool, CheckpointError> {
    let model_type: Option<String> = config.optional("model_type")?;
    Ok(model_type.as_deref().and_then(Family::named).is_some())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_model_type_is_in_one_row() {
        let mut all: Vec<&str> =
            FAMILIES.iter().flat_map(|family| family.model_types).copied().collect();
        let count = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), count, "{all:?}");
        for model_type in all {
            let json = format!(r#"{{"model_type": "{model_type}"}}"#);
            let config = ConfigJson::parse(Path::new("config.json"), json.as_bytes());
            let family = Family::of(&config.expect("an object")).expect("served");
            assert_eq!(name_of_type(model_type), Some(family.name()));
        }
        assert_eq!(name_of_type("gemma4_unified_text"), Some("gemma4"));
        assert_eq!(name_of_type("qwen3_8"), Some("qwen3_5"));
        assert_eq!(name_of_type("mllama"), None);
    }

    #[test]
    fn a_head_is_tied_as_the_family_has_it_unless_the_config_says_otherwise() {
        let tied = |json: &str| {
            let config = ConfigJson::parse(Path::new("config.json"), json.as_bytes());
            is_tied(&config.expect("an object")).expect("read")
        };
        assert!(
            tied(r#"{"model_type": "gemma4_text"}"#) && tied(r#"{"model_type": "hunyuan_vl"}"#)
        );
        assert!(!tied(r#"{"model_type": "qwen3"}"#) && !tied("{}"));
        assert!(!tied(r#"{"model_type": "gemma4", "tie_word_embeddings": false}"#));
    }
}
