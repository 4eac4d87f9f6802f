//! Names of tensors that differ by where a checkpoint comes from, and names of parts that this
//! version does not serve.

use super::{LoadError, Weights};

/// Where a checkpoint keeps the parts of a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Layout {
    /// Prefix of the text model's names.
    pub text: &'static str,
    /// Name of the output head.
    pub head: &'static str,
    /// Prefix of the vision tower's names; "" if the family has none.
    pub vision: &'static str,
}

impl Layout {
    /// A text model as transformers and mlx-lm write it.
    pub const TEXT: Self = Self { text: "model", head: "lm_head", vision: "" };

    /// A text model beside a vision tower, as transformers writes it and as mlx-vlm does.
    pub const WITH_VISION: [Self; 2] = [
        Self { text: "model.language_model", head: "lm_head", vision: "model.visual" },
        Self {
            text: "language_model.model",
            head: "language_model.lm_head",
            vision: "vision_tower",
        },
    ];

    /// The layout of a checkpoint, among those of its family. The embedding's name tells.
    ///
    /// # Errors
    /// The checkpoint has none of them.
    pub fn of(weights: &Weights<'_>, family: &[Self]) -> Result<Self, LoadError> {
        let embedding = |layout: &Self| format!("{}.embed_tokens.weight", layout.text);
        match family.iter().find(|layout| weights.has(&embedding(layout))) {
            Some(layout) => Ok(*layout),
            None => {
                let names: Vec<_> = family.iter().map(embedding).collect();
                Err(LoadError::Missing { name: names.join(" or ") })
            }
        }
    }
}

/// Names of tensors of parts that a family's checkpoints may have and this version does not serve.
#[derive(Clone, Copy, Debug, Default)]
pub struct Unserved {
    /// Beginnings of names.
    pub prefixes: &'static [&'static str],
    /// Ends of names.
    pub suffixes: &'static [&'static str],
}

impl Unserved {
    /// The part that a tensor belongs to, if it is one of these.
    pub fn part_of(&self, name: &str) -> Option<&'static str> {
        let begins = self.prefixes.iter().find(|prefix| name.starts_with(**prefix));
        begins.or_else(|| self.suffixes.iter().find(|suffix| name.ends_with(**suffix))).copied()
    }
}
