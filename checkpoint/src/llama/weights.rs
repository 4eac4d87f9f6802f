//! The modules of a llama model: their names, the order of their rows, and their blocks as MLX's
//! weights, scales and biases.
//!
//! ```text
//! Q4_1  w = d * q + m          4 bits, scale d, bias m
//! Q8_0  w = d * q, q signed    8 bits, stored q + 128, scale d, bias -128 * d
//! ```

use std::io;

use serde_json::{Map, Value, json};

use crate::error::{FormatError, shown};
use crate::from_gguf::RowOrder;
use crate::gguf::{BlockType, Gguf, Tensor};

/// Values that share a scale.
const GROUP: u64 = 32;
/// Key of the number of heads of the queries.
pub(super) const HEADS: &str = "llama.attention.head_count";

/// A kind of module: its names in GGUF and in MLX, the type of its weight, and for a projection whose
/// rows llama.cpp interleaves the key of the number of its heads.
type Kind = (&'static str, &'static str, BlockType, Option<&'static str>);

const LAYER_KINDS: [Kind; 9] = [
    ("attn_norm", "input_layernorm", BlockType::F32, None),
    ("attn_q", "self_attn.q_proj", BlockType::Q4_1, Some(HEADS)),
    ("attn_k", "self_attn.k_proj", BlockType::Q4_1, Some("llama.attention.head_count_kv")),
    ("attn_v", "self_attn.v_proj", BlockType::Q4_1, None),
    ("attn_output", "self_attn.o_proj", BlockType::Q4_1, None),
    ("ffn_norm", "post_attention_layernorm", BlockType::F32, None),
    ("ffn_gate", "mlp.gate_proj", BlockType::Q4_1, None),
    ("ffn_up", "mlp.up_proj", BlockType::Q4_1, None),
    ("ffn_down", "mlp.down_proj", BlockType::Q4_1, None),
];
/// Modules outside of the layers. The embedding is the head as well.
const OUTER_KINDS: [Kind; 2] = [
    ("token_embd", "model.embed_tokens", BlockType::Q8_0, None),
    ("output_norm", "model.norm", BlockType::F32, None),
];

/// A module and the tensor that is its weight.
#[derive(Debug)]
pub(super) struct Module<'a> {
    name: String,
    tensor: &'a Tensor<'a>,
    /// Heads of a projection whose rows llama.cpp interleaves.
    heads: Option<u64>,
}

/// The modules of a file, in its order.
pub(super) fn modules<'a>(gguf: &'a Gguf<'a>) -> Result<Vec<Module<'a>>, FormatError> {
    let layers = gguf.metadata.count("llama.block_count")?;
    let module = |tensor| Module::of(tensor, gguf, layers);
    let modules = gguf.tensors.iter().map(module).collect::<Result<Vec<_>, _>>()?;
    // Each name is one of the model's, and no name is there twice.
    let all = layers.saturating_mul(LAYER_KINDS.len() as u64);
    let all = all.saturating_add(OUTER_KINDS.len() as u64);
    if modules.len() as u64 != all {
        let expected = format!("{all} for {layers} layers");
        return Err(FormatError::new("tensors", expected, modules.len()));
    }
    Ok(modules)
}

/// MLX's name of the module that has a tensor of this name as its weight, and the module's kind.
fn known(name: &str, layers: u64) -> Option<(String, Kind)> {
    let find = |kinds: &[Kind], role: &str| kinds.iter().find(|kind| kind.0 == role).copied();
    match *name.split('.').collect::<Vec<_>>() {
        ["blk", layer, role, "weight"] => {
            let number = layer.parse::<u64>().ok().filter(|number| *number < layers)?;
            // No second name for the same layer, such as 00.
            let kind = find(&LAYER_KINDS, role).filter(|_| number.to_string() == layer)?;
            Some((format!("model.layers.{number}.{}", kind.1), kind))
        }
        [role, "weight"] => find(&OUTER_KINDS, role).map(|kind| (kind.1.to_owned(), kind)),
        _ => None,
    }
}

impl<'a> Module<'a> {
    fn of(tensor: &'a Tensor<'a>, gguf: &Gguf<'_>, layers: u64) -> Result<Self, FormatError> {
        let (name, (_, _, kind, heads)) = known(tensor.name, layers).ok_or_else(|| {
            let expected = format!("tensors of a llama model of {layers} layers with a tied head");
            FormatError::new("tensors", expected, shown(tensor.name))
        })?;
        if tensor.kind != kind {
            return Err(tensor.error(format!("the type {}", kind.name()), tensor.kind.name()));
        }
        let dimensions = if kind == BlockType::F32 { 1 } else { 2 };
        if tensor.dimensions.len() != dimensions {
            let expected = format!("{dimensions} dimensions");
            return Err(tensor.error(expected, tensor.dimensions.len()));
        }
        let heads = heads.map(|key| gguf.metadata.count(key)).transpose()?;
        // No tensor has 0 rows, so 0 heads do not pass.
        let has_halves = |heads: u64| tensor.rows().is_multiple_of(heads.saturating_mul(2));
        if let Some(heads) = heads.filter(|heads| !has_halves(*heads)) {
            let expected = format!("rows of two halves for each of {heads} heads");
            return Err(tensor.error(expected, tensor.rows()));
        }
        let module = Self { name, tensor, heads };
        let has_biases = |block: &[u8]| tensor.kind != BlockType::Q8_0 || bias(block).is_some();
        if !module.blocks().all(has_biases) {
            let expected = "scales whose 128-fold is finite in float16";
            return Err(tensor.error(expected, "a larger one"));
        }
        Ok(module)
    }

    /// The tensors of the checkpoint, in their order: name, type, shape, and bytes of an element.
    fn parts(&self) -> Vec<(&'static str, &'static str, Vec<u64>, u64)> {
        let (rows, columns) = (self.tensor.rows(), self.tensor.columns());
        let bits = match self.tensor.kind {
            BlockType::F32 => return vec![("weight", "F32", vec![columns], 4)],
            BlockType::Q8_0 => 8,
            _ => 4,
        };
        let groups = columns / GROUP;
        vec![
            // 32 values of `bits` bits are `bits` words of 32 bits.
            ("weight", "U32", vec![rows, groups * bits], 4),
            ("scales", "F16", vec![rows, groups], 2),
            ("biases", "F16", vec![rows, groups], 2),
        ]
    }

    /// The blocks in the order of MLX's rows: of each head first the first half, then the second. The
    /// rows of llama.cpp alternate between the halves.
    fn blocks(&self) -> impl Iterator<Item = &'a [u8]> {
        let (data, rows) = (&*self.tensor.data, self.tensor.rows());
        let heads = self.heads.map(|heads| RowOrder::Interleaved { heads: heads as usize });
        let order = heads.unwrap_or(RowOrder::Stored);
        // Numbers of rows and bytes fit, because the tensor is a slice.
        let (row_bytes, block_bytes) =
            (data.len() / rows as usize, self.tensor.kind.bytes() as usize);
        let rows = rows as usize;
        (0..rows).flat_map(move |row| {
            let begin = order.source(row, rows) * row_bytes;
            data[begin..begin + row_bytes].chunks_exact(block_bytes)
        })
    }

    /// Writes the bytes of the module's tensors.
    pub(super) fn write(&self, to: &mut impl io::Write) -> io::Result<()> {
        if self.tensor.kind == BlockType::F32 {
            return to.write_all(&self.tensor.data);
        }
        let (mut packed, mut scales, mut biases) = (vec![], vec![], vec![]);
        for block in self.blocks() {
            scales.extend_from_slice(&block[..2]);
            if self.tensor.kind == BlockType::Q8_0 {
                biases.extend_from_slice(&bias(block).unwrap_or_default().to_le_bytes());
                packed.extend(block[2..].iter().map(|value| value ^ 0x80));
            } else {
                biases.extend_from_slice(&block[2..4]);
                packed.extend_from_slice(&repacked(&block[4..]));
            }
        }
        [packed, scales, biases].iter().try_for_each(|bytes| to.write_all(bytes))
    }
}

/// The 32 values of a Q4_1 block as MLX packs them: value after value, the lower bits first. GGUF's low
/// halves are the values 0 to 15, its high halves 16 to 31.
fn repacked(values: &[u8]) -> [u8; 16] {
    let mut packed = [0; 16];
    for (at, pair) in values.chunks_exact(2).enumerate() {
        packed[at] = pair[0] & 0x0F | pair[1] << 4;
        packed[at + 8] = pair[0] >> 4 | pair[1] & 0xF0;
    }
    packed
}

/// The scale of a Q8_0 block times -128 in float16, which is exact. `None` if it is not finite.
pub(super) fn bias(block: &[u8]) -> Option<u16> {
    const EXPONENT_BIT: u16 = 1 << 10;
    let scale = u16::from_le_bytes([block[0], block[1]]);
    let (sign, magnitude) = (!scale & 0x8000, scale & 0x7FFF);
    let scaled = match magnitude / EXPONENT_BIT {
        // Zero and subnormal numbers are multiples of 2^-24. The product has more than ten bits of them
        // if it is a normal number: then all but eleven go into the exponent.
        0 => match u32::from(magnitude) << 7 {
            units @ ..0x400 => units as u16,
            units => {
                let shift = units.ilog2() - 10;
                (shift as u16 + 1) * EXPONENT_BIT + (units >> shift) as u16 - EXPONENT_BIT
            }
        },
        1..24 => magnitude + 7 * EXPONENT_BIT,
        _ => return None,
    };
    Some(sign | scaled)
}

/// The header of the safetensors file.
pub(super) fn header(modules: &[Module<'_>]) -> String {
    let (mut header, mut at) = (Map::new(), 0);
    header.insert("__metadata__".to_owned(), json!({ "format": "mlx" }));
    for module in modules {
        for (name, dtype, shape, width) in module.parts() {
            let end = at + shape.iter().product::<u64>() * width;
            let entry = json!({ "dtype": dtype, "shape": shape, "data_offsets": [at, end] });
            header.insert(format!("{}.{name}", module.name), entry);
            at = end;
        }
    }
    let mut text = Value::Object(header).to_string();
    // The data begins at a multiple of 8 bytes.
    text.push_str(&" ".repeat(text.len().next_multiple_of(8) - text.len()));
    text
}
