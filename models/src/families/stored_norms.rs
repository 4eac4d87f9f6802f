//! How a checkpoint of Qwen3.5 stores its norms: as they are multiplied by, or less 1. Nothing in a
//! checkpoint says so, and a wrong choice gives a model that answers nonsense. So contradictions are
//! errors.

use crate::layers::NormWeight;
use crate::load::{CheckpointError, LoadError, Tensors};

/// How names begin in files of transformers, and in those of the speculators package.
const ORIGINAL_NAMES: [&str; 3] = ["model.", "mtp.", "mtp_layers."];
/// End of the name of a convolution's weight.
const CONVOLUTION: &str = ".linear_attn.conv1d.weight";
/// Beginnings of names, and the only writer of files with such names. A text model alone has names
/// that both write.
const WRITTEN_BY: [(&str, SavedBy); 2] =
    [("model.language_model.", SavedBy::Transformers), ("language_model.", SavedBy::Mlx)];
/// Ends of names of the norms whose signs are counted: those of rows, which are the widest.
const ROW_NORMS: [&str; 3] =
    [".input_layernorm.weight", ".post_attention_layernorm.weight", "model.norm.weight"];

/// Who turned a checkpoint's weights into files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum SavedBy {
    Transformers,
    Mlx,
}

impl SavedBy {
    /// By the axes of a convolution's weight, `[channels, 1, taps]` or `[channels, taps, 1]`; `None`
    /// for a shape that is neither.
    fn of_convolution(shape: &[usize]) -> Option<Self> {
        match shape {
            [_, 1, taps] if *taps != 1 => Some(Self::Transformers),
            [_, taps, 1] if *taps != 1 => Some(Self::Mlx),
            _ => None,
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Transformers => "transformers",
            Self::Mlx => "MLX",
        }
    }
}

/// How a checkpoint of the family stores its norms, but for those of states; also one that has only
/// a part of a model.
///
/// MLX's conversion adds 1 to the norms where it turns the convolutions' axes, so their shape tells
/// which writer it was. Files without a convolution are told by their names: conversions have no
/// name that begins as transformers' do, and only conversions are quantized. Source: mlx-lm 0.32.2,
/// `sanitize` of qwen3_5.py, and mlx-vlm 0.7.10, `speculative/drafters/qwen3_5_mtp`.
///
/// # Errors
/// Convolutions that contradict one another or their names, and norms that contradict them.
pub(crate) fn stored_norms(files: &Tensors) -> Result<NormWeight, LoadError> {
    let is_original = match convolutions(files)? {
        Some(writer) => writer == SavedBy::Transformers,
        None => {
            let begins = |name: &str| ORIGINAL_NAMES.iter().any(|first| name.starts_with(first));
            files.shapes().any(|(name, _)| begins(name))
                && !files.shapes().any(|(name, _)| name.ends_with(".scales"))
        }
    };
    if is_original {
        return Ok(NormWeight::LessOne);
    }
    check_factors(files)?;
    Ok(NormWeight::Whole)
}

/// The writer of all convolutions; `None` without one.
fn convolutions(files: &Tensors) -> Result<Option<SavedBy>, LoadError> {
    let mut first: Option<(&str, SavedBy)> = None;
    for (name, shape) in files.shapes().filter(|(name, _)| name.ends_with(CONVOLUTION)) {
        let Some(writer) = SavedBy::of_convolution(shape) else { continue };
        let named = WRITTEN_BY.iter().find(|(first, _)| name.starts_with(first));
        let contradiction = match (named, first) {
            (Some((start, named)), _) if *named != writer => {
                Some(format!("names that begin with {start} are written by {}", named.name()))
            }
            (_, Some((other, before))) if before != writer => {
                Some(format!("those of {other} are in that of {}", before.name()))
            }
            _ => None,
        };
        if let Some(contradiction) = contradiction {
            let what = format!(
                "its axes, {shape:?}, are in the order of {}, and {contradiction}; so it is unknown \
                 whether norms are stored less 1",
                writer.name()
            );
            return Err(LoadError::from(CheckpointError::Mixed { name: name.to_owned(), what }));
        }
        first.get_or_insert((name, writer));
    }
    Ok(first.map(|(_, writer)| writer))
}

/// Refuses norms that cannot be factors. A trained norm multiplies by numbers above 0, but for a
/// few. Weights that are stored less 1 lie around 0, so a large part of them is negative.
///
/// Norms that are stored less 1 and are above 0 all the same are not found, and neither is the
/// opposite mistake: factors may be above 1 everywhere.
fn check_factors(files: &Tensors) -> Result<(), LoadError> {
    let is_of_rows = |name: &str| ROW_NORMS.iter().any(|end| name.ends_with(end));
    for (name, _) in files.shapes().filter(|(name, _)| is_of_rows(name)) {
        let Some(signs) = files.signs(name)? else { continue };
        if signs.negative * 4 > signs.all {
            let what = format!(
                "expected factors, as MLX's conversions store norms, found {} negative numbers of \
                 {}: they are stored less 1, as transformers does",
                signs.negative, signs.all
            );
            return Err(LoadError::from(CheckpointError::Mixed { name: name.to_owned(), what }));
        }
    }
    Ok(())
}
