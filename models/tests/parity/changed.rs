//! Copies of golden checkpoints with another config.json and other tensors.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use safetensors::tensor::{Dtype, TensorView};
use safetensors::{SafeTensors, serialize_to_file};
use serde_json::Value;

fn golden(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name)
}

/// A tensor of a checkpoint.
pub struct Tensor {
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    pub bytes: Vec<u8>,
}

pub type Tensors = BTreeMap<String, Tensor>;

/// A golden checkpoint with a changed config and changed tensors.
pub fn changed(
    name: &str,
    config: impl Fn(&mut Value),
    tensors: impl Fn(&mut Tensors),
) -> tempfile::TempDir {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let read = |file: &str| std::fs::read(golden(name).join(file)).expect("in the repository");
    let mut values: Value = serde_json::from_slice(&read("config.json")).expect("JSON");
    config(&mut values);
    std::fs::write(dir.path().join("config.json"), values.to_string()).expect("written");
    let bytes = read("model.safetensors");
    let stored = SafeTensors::deserialize(&bytes).expect("tensors").tensors().into_iter();
    let mut all: Tensors = stored
        .map(|(name, tensor)| {
            let (dtype, shape) = (tensor.dtype(), tensor.shape().to_vec());
            (name, Tensor { dtype, shape, bytes: tensor.data().to_vec() })
        })
        .collect();
    tensors(&mut all);
    let views = all.iter().map(|(name, tensor)| {
        let view = TensorView::new(tensor.dtype, tensor.shape.clone(), &tensor.bytes);
        (name, view.expect("as many bytes as its shape has"))
    });
    serialize_to_file(views, None, &dir.path().join("model.safetensors")).expect("written");
    dir
}

/// A change of nothing.
pub fn unchanged(_: &mut Tensors) {}
