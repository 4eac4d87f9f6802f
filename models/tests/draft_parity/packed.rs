//! A checkpoint's copy with quantized weights, in MLX's layout.

use std::path::Path;

use mlx_rs::ops::quantize;
use mlx_rs::transforms::eval;
use paceline_models::testing::{TestGraph, graph};
use paceline_models::{Array, Dtype};
use safetensors::tensor::{Dtype as Stored, SafeTensors, TensorView};

const GROUP: i32 = 64;

/// Name, type, shape and bytes.
type Tensor = (String, Stored, Vec<usize>, Vec<u8>);

/// Quantizes every matrix whose inputs are whole groups; with 4 bits `fc` has 8, as mixed
/// checkpoints give the parts that matter most.
pub fn quantized_copy(source: &Path, bits: i32) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let text = std::fs::read(source.join("config.json")).expect("there is one");
    let mut config: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
    config["quantization"] = serde_json::json!({
        "group_size": GROUP, "bits": bits, "mode": "affine", "fc": {"group_size": GROUP, "bits": 8},
    });
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    let file = std::fs::read(source.join("model.safetensors")).expect("there is one");
    let tensors = SafeTensors::deserialize(&file).expect("a safetensors file");
    let mut all: Vec<Tensor> = vec![];
    for (name, view) in tensors.iter() {
        let shape: Vec<i32> = view.shape().iter().map(|length| *length as i32).collect();
        match (shape.as_slice(), name.strip_suffix(".weight")) {
            ([_, input], Some(module)) if input % GROUP == 0 => {
                let bits = if module == "fc" { 8 } else { bits };
                all.extend(pack(module, &floats(&view, &shape), bits));
            }
            _ => {
                let bytes = view.data().to_vec();
                all.push((name.to_owned(), view.dtype(), view.shape().to_vec(), bytes));
            }
        }
    }
    let views = all.iter().map(|(name, dtype, shape, bytes)| {
        (name, TensorView::new(*dtype, shape.clone(), bytes).expect("as many bytes"))
    });
    let file = safetensors::serialize(views, None).expect("serialized");
    std::fs::write(dir.path().join("model.safetensors"), file).expect("written");
    dir
}

fn floats(view: &TensorView<'_>, shape: &[i32]) -> Array {
    let numbers: Vec<f32> = match view.dtype() {
        Stored::F32 => {
            view.data().as_chunks().0.iter().map(|four| f32::from_le_bytes(*four)).collect()
        }
        Stored::BF16 => {
            let widened = |two: &[u8; 2]| f32::from_le_bytes([0, 0, two[0], two[1]]);
            view.data().as_chunks().0.iter().map(widened).collect()
        }
        other => panic!("expected F32 or BF16, found {other:?}"),
    };
    Array::from_slice(&numbers, shape)
}

/// The three tensors of a module. Scales and biases are float16, or bfloat16 in the graph of a GPU,
/// which keeps them and whose drafters refuse `fc` in float16.
fn pack(module: &str, matrix: &Array, bits: i32) -> Vec<Tensor> {
    let (packed, scales, biases) = quantize(matrix, GROUP, bits).expect("packs");
    let (in_mlx, stored) = match graph() {
        TestGraph::Gpu => (Dtype::Bfloat16, Stored::BF16),
        _ => (Dtype::Float16, Stored::F16),
    };
    let half = |array: Array| array.as_dtype(in_mlx).expect("lazy");
    let (scales, biases) = (half(scales), half(biases));
    eval([&packed, &scales, &biases]).expect("evaluates");
    let shape = |array: &Array| array.shape().iter().map(|length| *length as usize).collect();
    let words: &[u32] = packed.try_as_slice().expect("words");
    let words = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let halves = |array: &Array| -> Vec<u8> {
        let bits = array.view::<u16>().expect("a view of halves");
        bits.eval().expect("evaluates");
        let bits: &[u16] = bits.try_as_slice().expect("bits");
        bits.iter().flat_map(|number| number.to_le_bytes()).collect()
    };
    vec![
        (format!("{module}.weight"), Stored::U32, shape(&packed), words),
        (format!("{module}.scales"), stored, shape(&scales), halves(&scales)),
        (format!("{module}.biases"), stored, shape(&biases), halves(&biases)),
    ]
}
