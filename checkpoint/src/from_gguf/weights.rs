//! The tensors of a GGUF file as a checkpoint on Hugging Face names them, and what the converter of
//! llama.cpp did to their numbers.

use super::architecture::Architecture;
use crate::error::{FormatError, shown};
use crate::gguf::{BlockType, Gguf, Tensor};

/// Divisors of the frequencies of rotation. They become a part of config.json.
pub(crate) const ROPE_FACTORS: &str = "rope_freqs.weight";
/// The embedding, whose rows are the vocabulary.
const EMBEDDING: &str = "token_embd.weight";
/// The output head, if the model has one of its own.
const HEAD: &str = "output.weight";

/// Modules outside of the layers, as GGUF and as Hugging Face name them.
const OUTER: [(&str, &str); 3] =
    [("token_embd", "model.embed_tokens"), ("output_norm", "model.norm"), ("output", "lm_head")];

/// The order in which a tensor's rows are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RowOrder {
    /// As the checkpoint has them.
    Stored,
    /// Those of each head alternate between its first half and its second one: 0, D/2, 1, D/2 + 1, …
    Interleaved {
        /// Heads of the tensor.
        heads: usize,
    },
}

impl RowOrder {
    /// The stored row that is row `row` of the checkpoint, of `rows` rows.
    pub fn source(self, row: usize, rows: usize) -> usize {
        let Self::Interleaved { heads } = self else { return row };
        let (width, half) = (rows / heads, rows / heads / 2);
        let (head, within) = (row / width, row % width);
        head * width + within % half * 2 + within / half
    }
}

/// How a GGUF file stores a tensor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StoredForm {
    /// Type of the blocks. Rows are stored one after another.
    pub kind: BlockType,
    /// Order of the rows. For a vector: of its numbers.
    pub order: RowOrder,
    /// The stored numbers are larger by 1 than those of the checkpoint.
    pub minus_one: bool,
}

/// A tensor of the model.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufWeight {
    /// Its name on Hugging Face. The experts of a layer are one tensor, named as mlx-lm does.
    pub name: String,
    /// Its lengths, the outermost axis first.
    pub shape: Vec<usize>,
    /// How it is stored.
    pub form: StoredForm,
    /// Number of its file among those of the model.
    pub part: usize,
    /// Its first byte in that file.
    pub begin: usize,
    /// Bytes that it takes there.
    pub bytes: usize,
}

/// The tensors of a model, in the order of its files.
///
/// # Errors
/// The architecture or a type is not served, or a tensor is none of the architecture's.
pub fn weights(gguf: &Gguf<'_>) -> Result<Vec<GgufWeight>, FormatError> {
    let architecture = Architecture::of(&gguf.metadata)?;
    let layers = architecture.count("block_count")?;
    let model = gguf.tensors.iter().filter(|tensor| tensor.name != ROPE_FACTORS);
    model.map(|tensor| GgufWeight::of(tensor, &architecture, layers)).collect()
}

/// Rows and columns of the embedding.
pub(super) fn embedding(gguf: &Gguf<'_>) -> Result<(u64, u64), FormatError> {
    let tensor = gguf.tensors.iter().find(|tensor| tensor.name == EMBEDDING);
    let tensor = tensor.ok_or_else(|| FormatError::new("tensors", EMBEDDING, "none"))?;
    Ok((tensor.rows(), tensor.columns()))
}

/// Whether the head is the embedding.
pub(super) fn is_tied(gguf: &Gguf<'_>) -> bool {
    gguf.tensors.iter().all(|tensor| tensor.name != HEAD)
}

impl GgufWeight {
    fn of(
        tensor: &Tensor<'_>,
        architecture: &Architecture<'_>,
        layers: u64,
    ) -> Result<Self, FormatError> {
        let Some((name, role)) = known(tensor.name, architecture, layers) else {
            let expected =
                format!("tensors of the architecture {} with {layers} layers", architecture.name);
            return Err(FormatError::new("tensors", expected, shown(tensor.name)));
        };
        tensor.kind.check_served(&format!("tensor {}", shown(tensor.name)))?;
        let heads = match role {
            "attn_q" if architecture.is_interleaved() => Some(architecture.heads()?),
            "attn_k" if architecture.is_interleaved() => Some(architecture.kv_heads()?),
            _ => None,
        };
        let rows = match tensor.dimensions.as_slice() {
            [numbers] => *numbers,
            _ => tensor.rows(),
        };
        let order = match heads {
            None => RowOrder::Stored,
            // No tensor has 0 rows, so 0 heads do not pass.
            Some(heads) if rows.is_multiple_of(heads.saturating_mul(2)) => {
                RowOrder::Interleaved { heads: heads as usize }
            }
            Some(heads) => {
                let expected = format!("rows of two halves for each of {heads} heads");
                return Err(tensor.error(expected, rows));
            }
        };
        let is_norm = role.ends_with("_norm");
        let minus_one = is_norm && architecture.adds_one_to_norms();
        if order != RowOrder::Stored && tensor.dimensions.len() == 1 && tensor.kind.is_quantized() {
            return Err(tensor.error("a vector of floats", tensor.kind.name()));
        }
        let length = |number: &u64| {
            usize::try_from(*number).map_err(|_| tensor.error("lengths in memory", number))
        };
        Ok(Self {
            name,
            shape: tensor.dimensions.iter().rev().map(length).collect::<Result<_, _>>()?,
            form: StoredForm { kind: tensor.kind, order, minus_one },
            part: tensor.part,
            begin: length(&tensor.begin)?,
            bytes: length(&tensor.bytes)?,
        })
    }
}

/// The name on Hugging Face of a tensor of this name in GGUF, and its role in its layer, or outside.
fn known<'a>(
    name: &'a str,
    architecture: &Architecture<'_>,
    layers: u64,
) -> Option<(String, &'a str)> {
    match *name.split('.').collect::<Vec<_>>() {
        ["blk", layer, role, kind @ ("weight" | "bias")] => {
            let number = layer.parse::<u64>().ok().filter(|number| *number < layers)?;
            // No second name for the same layer, such as 00.
            let module = architecture.module(role).filter(|_| number.to_string() == layer)?;
            Some((format!("model.layers.{number}.{module}.{kind}"), role))
        }
        [role, "weight"] => {
            let (_, module) = OUTER.iter().find(|(known, _)| *known == role)?;
            Some((format!("{module}.weight"), role))
        }
        _ => None,
    }
}
