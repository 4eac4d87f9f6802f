//! How the images of each family are prepared if no file of a checkpoint says otherwise.
//!
//! Sources: the image processors of transformers 5.24, `models/<family>/image_processing_pil_*.py`.

use paceline_checkpoint::families::name_of_type;

use crate::checkpoint::VisionSettings;
use crate::images::resize::SmallSides;

/// Mean and deviation of red, green and blue with which CLIP was trained.
const CLIP: Colours = Colours {
    mean: [0.481_454_66, 0.457_827_5, 0.408_210_73],
    deviation: [0.268_629_54, 0.261_302_58, 0.275_777_11],
};
/// Red, green and blue become numbers from -1 to 1.
pub(super) const CENTRED: Colours = Colours { mean: [0.5; 3], deviation: [0.5; 3] };

/// By what colours are moved and divided.
#[derive(Clone, Copy, Debug)]
pub(super) struct Colours {
    pub(super) mean: [f64; 3],
    pub(super) deviation: [f64; 3],
}

/// The sizes that the images of a family get.
#[derive(Clone, Copy, Debug)]
pub(super) enum Resizing {
    /// Their own, as far as they lie within bounds of pixels.
    Within {
        min_pixels: u64,
        max_pixels: u64,
        /// How many times the pixels of an image count against the bounds.
        frames: u32,
        small: SmallSides,
    },
    /// As large as a budget allows.
    Filling,
}

/// The tokens that an image has in a prompt, beside marks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageTokens {
    /// One for each merged patch.
    Squares,
    /// One for each merged patch, one after each line of them, one before the first line and one after
    /// the last one.
    Lines,
}

/// Settings of a family.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    /// Names of the families, as `paceline_checkpoint::families` has them.
    names: &'static [&'static str],
    /// Pixels of a patch's side.
    pub(super) patch: u32,
    /// Patches of a side that become one token.
    pub(super) merge: u32,
    pub(super) resizing: Resizing,
    /// `None`: colours are numbers from 0 to 1.
    pub(super) colours: Option<Colours>,
    pub(super) tokens: ImageTokens,
    /// Whether the filter that a file names is ignored. It is bicubic in any case.
    pub(super) ignores_filter: bool,
}

/// A family of Qwen's image processor with these bounds.
const fn qwen(names: &'static [&'static str], bounds: (u64, u64)) -> Family {
    Family {
        names,
        patch: 16,
        merge: 2,
        resizing: Resizing::Within {
            min_pixels: bounds.0,
            max_pixels: bounds.1,
            frames: 1,
            small: SmallSides::AsTheyAre,
        },
        colours: Some(CENTRED),
        tokens: ImageTokens::Squares,
        ignores_filter: false,
    }
}

const FAMILIES: [Family; 6] = [
    qwen(&["qwen3_vl", "qwen3_vl_moe", "qwen3_5", "qwen3_5_moe"], (65_536, 16_777_216)),
    Family {
        patch: 14,
        colours: Some(CLIP),
        ..qwen(&["qwen2_vl", "qwen2_5_vl"], (3_136, 1_003_520))
    },
    // A still image counts as two frames.
    Family {
        patch: 14,
        resizing: Resizing::Within {
            min_pixels: 12_544,
            max_pixels: 11_760_000,
            frames: 2,
            small: SmallSides::RaisedTogether,
        },
        colours: Some(CLIP),
        ..qwen(&["glm4v", "glm_ocr"], (0, 0))
    },
    Family {
        patch: 14,
        resizing: Resizing::Within {
            min_pixels: 147_456,
            max_pixels: 2_359_296,
            frames: 1,
            small: SmallSides::RaisedOneByOne,
        },
        colours: Some(CLIP),
        ..qwen(&["paddleocr_vl"], (0, 0))
    },
    // Published files name another filter than the one of the reference.
    Family {
        colours: Some(CLIP),
        tokens: ImageTokens::Lines,
        ignores_filter: true,
        ..qwen(&["hunyuan_vl"], (262_144, 4_194_304))
    },
    // Each square of patches becomes one token, with a tower or without one.
    Family { merge: 3, resizing: Resizing::Filling, colours: None, ..qwen(&["gemma4"], (0, 0)) },
];

impl Family {
    /// The family of a model with these settings; `None` if this version knows no images of it.
    pub(super) fn of(settings: &VisionSettings) -> Option<&'static Self> {
        let name = name_of_type(settings.model_type.as_deref()?)?;
        FAMILIES.iter().find(|family| family.names.contains(&name))
    }

    /// Whether images fill a budget, and their rows have marks around them.
    pub(super) fn is_filling(&self) -> bool {
        matches!(self.resizing, Resizing::Filling)
    }

    /// The key of [`Family::merge`] in config.json, and in the image processor's files.
    pub(super) fn merge_keys(&self) -> (&'static str, &'static str) {
        match self.is_filling() {
            true => ("pooling_kernel_size", "pooling_kernel_size"),
            false => ("spatial_merge_size", "merge_size"),
        }
    }
}
