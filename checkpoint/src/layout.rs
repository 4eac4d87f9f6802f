//! Names of tensors that differ by where a checkpoint comes from.

use crate::{CheckpointError, Tensors};

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

/// Beginnings of names, and [`Layout::text`] of the layouts that have them.
const BEGINNINGS: [(&str, &str); 7] = [
    ("model.language_model.", Layout::WITH_VISION[0].text),
    ("model.visual.", Layout::WITH_VISION[0].text),
    ("language_model.", Layout::WITH_VISION[1].text),
    ("vision_tower.", Layout::WITH_VISION[1].text),
    ("model.embed_tokens.", Layout::TEXT.text),
    ("model.layers.", Layout::TEXT.text),
    ("model.norm.", Layout::TEXT.text),
];

impl Layout {
    /// A text model as transformers and mlx-lm write it.
    pub const TEXT: Self = Self { text: "model", head: "lm_head", vision: "" };

    /// A text model as transformers and mlx-lm write it, and as mlx-vlm does.
    pub const TEXT_ALONE: [Self; 2] = [Self::TEXT, Self::WITH_VISION[1]];

    /// A text model beside a vision tower as older releases of transformers wrote it: most published
    /// checkpoints of Qwen2-VL and Qwen2.5-VL.
    pub const OLDER_WITH_VISION: Self = Self { text: "model", head: "lm_head", vision: "visual" };

    /// A text model beside a vision tower, as transformers writes it and as mlx-vlm does.
    pub const WITH_VISION: [Self; 2] = [
        Self { text: "model.language_model", head: "lm_head", vision: "model.visual" },
        Self {
            text: "language_model.model",
            head: "language_model.lm_head",
            vision: "vision_tower",
        },
    ];

    /// HunyuanOCR as published.
    pub const HUNYUAN: Self = Self { text: "model", head: "lm_head", vision: "vit" };

    /// PaddleOCR-VL as mlx-vlm's conversions have it.
    pub const PADDLE_MLX: Self =
        Self { text: Self::WITH_VISION[1].text, head: Self::WITH_VISION[1].head, vision: "visual" };

    /// The layout of a checkpoint, among those of its family. The embedding's name tells.
    ///
    /// # Errors
    /// The checkpoint has none of them, or names of two.
    pub fn of(tensors: &Tensors, family: &[Self]) -> Result<Self, CheckpointError> {
        let embedding = |layout: &Self| format!("{}.embed_tokens.weight", layout.text);
        let Some(layout) = family.iter().find(|layout| tensors.has(&embedding(layout))) else {
            let names: Vec<_> = family.iter().map(embedding).collect();
            return Err(CheckpointError::Missing { name: names.join(" or ") });
        };
        layout.check_alone(tensors)?;
        Ok(*layout)
    }

    /// Refuses a checkpoint with names of another layout. Layouts also differ in what is stored, so
    /// a part in another layout is not just renamed.
    fn check_alone(&self, tensors: &Tensors) -> Result<(), CheckpointError> {
        let is_foreign = |name: &str| {
            let known = BEGINNINGS.iter().find(|(first, _)| name.starts_with(first));
            known.is_some_and(|(_, text)| *text != self.text)
        };
        match tensors.shapes().find(|(name, _)| is_foreign(name)) {
            None => Ok(()),
            Some((name, _)) => Err(CheckpointError::Mixed {
                name: name.to_owned(),
                what: format!(
                    "its name is of another layout than {}.embed_tokens.weight; a checkpoint has \
                     all of its tensors in one layout",
                    self.text
                ),
            }),
        }
    }
}
