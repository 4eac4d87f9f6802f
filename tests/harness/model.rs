//! Model directories made from the demo model: broken in one way each, or with another template.

use std::path::{Path, PathBuf};

use serde_json::{Value, json};

use crate::prompts::Dice;
use crate::repository;

/// First part of a template: writes the tools in the place of another role, and begins each message
/// `m`. The pair was trained to answer with tool calls without any description of them.
const TOOLS: &str = "{%- if tools %}{{- '<|im_start|>tools\n' }}{%- for t in tools %}{{- t | tojson }}{%- endfor %}{{- '<|im_end|>\n' }}{%- endif %}\
{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' }}";
/// Part of a template: writes a content that is a text.
const TEXT: &str = "{%- if m.content %}{{- m.content }}{%- endif %}";
/// Part of a template: writes the tool calls of a message, and ends it.
const CALLS: &str = "{%- for c in m.tool_calls or [] %}{{- '<tool_call>\n{\"name\": \"' + c.function.name + '\", \"arguments\": ' + (c.function.arguments | tojson) + '}\n</tool_call>' }}{%- endfor %}\
{{- '<|im_end|>\n' }}{%- endfor %}";
/// Part of a template: begins the answer.
const ANSWER: &str = "{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}{%- endif %}";
/// Part of a template: opens a thought if the request switches thinking on.
const THOUGHT: &str = "{%- if add_generation_prompt and enable_thinking is defined and enable_thinking %}{{- '<think>' }}{%- endif %}{#- </think> -#}";

/// A template with tools and thoughts. `content` writes the content of the message `m`.
pub(crate) fn tools_and_thoughts(content: &str) -> String {
    format!("{TOOLS}{content}{CALLS}{ANSWER}{THOUGHT}")
}

/// A safetensors file taken apart.
pub struct Weights {
    /// The JSON header; keys keep their order.
    pub header: Value,
    /// Bytes after the header.
    pub data: Vec<u8>,
}

impl Weights {
    /// Those of the demo model.
    pub fn demo() -> Self {
        Self::read(&repository().join("demo/target/model.safetensors"))
    }

    /// Those of a file.
    pub fn read(path: &Path) -> Self {
        let bytes = std::fs::read(path).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        Self {
            header: serde_json::from_slice(&bytes[8..8 + length]).unwrap(),
            data: bytes[8 + length..].to_vec(),
        }
    }

    /// Their file.
    pub fn bytes(&self) -> Vec<u8> {
        assemble(&self.header.to_string(), &self.data)
    }

    /// The tensors with names that `is_kept` accepts.
    pub fn kept(&self, is_kept: impl Fn(&str) -> bool) -> Self {
        let (mut header, mut data) = (serde_json::Map::new(), vec![]);
        for name in self.names().into_iter().filter(|name| is_kept(name)) {
            let mut tensor = self.header[&name].clone();
            let place = |at: usize| tensor["data_offsets"][at].as_u64().unwrap() as usize;
            let begin = data.len();
            data.extend_from_slice(&self.data[place(0)..place(1)]);
            tensor["data_offsets"] = json!([begin, data.len()]);
            header.insert(name, tensor);
        }
        Self { header: header.into(), data }
    }

    /// The same tensors under other names.
    pub fn renamed(&self, name: impl Fn(&str) -> String) -> Self {
        let all = self.names().into_iter().map(|old| (name(&old), self.header[&old].clone()));
        Self { header: Value::Object(all.collect()), data: self.data.clone() }
    }

    /// Names of the tensors.
    pub fn names(&self) -> Vec<String> {
        self.header
            .as_object()
            .unwrap()
            .keys()
            .filter(|name| *name != "__metadata__")
            .cloned()
            .collect()
    }
}

/// A safetensors file.
pub(crate) fn assemble(header: &str, data: &[u8]) -> Vec<u8> {
    [&(header.len() as u64).to_le_bytes(), header.as_bytes(), data].concat()
}

/// Writes a checkpoint of random weights in float32 into `dir`, the same ones for the same shapes. The
/// weights of norms are 1.
///
/// # Panics
/// It cannot be written.
pub fn random_checkpoint(dir: &Path, config: &Value, tensors: &[(String, Vec<usize>)]) {
    let (mut header, mut data, mut dice) = (serde_json::Map::new(), vec![], Dice(40));
    for (name, shape) in tensors {
        let from = data.len();
        for _ in 0..shape.iter().product() {
            let random = dice.roll(2_000) as f32 / 1_000.0 - 1.0;
            let value: f32 = if shape.len() == 1 { 1.0 } else { random / (shape[1] as f32).sqrt() };
            data.extend(value.to_le_bytes());
        }
        header.insert(
            name.clone(),
            json!({"dtype": "F32", "shape": shape, "data_offsets": [from, data.len()]}),
        );
    }
    std::fs::create_dir_all(dir).unwrap();
    std::fs::write(dir.join("config.json"), config.to_string()).unwrap();
    let file = assemble(&Value::Object(header).to_string(), &data);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
}

/// The demo model without its weights, in a fresh directory `name` below `parent`.
fn without_weights(parent: &Path, name: &str) -> PathBuf {
    let dir = parent.join(name);
    std::fs::create_dir_all(&dir).unwrap();
    for entry in std::fs::read_dir(repository().join("demo/target")).unwrap().map(Result::unwrap) {
        if entry.path().extension().is_none_or(|extension| extension != "safetensors") {
            std::fs::copy(entry.path(), dir.join(entry.file_name())).unwrap();
        }
    }
    dir
}

/// The demo model's other files with this as `model.safetensors`.
pub fn single(parent: &Path, name: &str, file: &[u8]) -> PathBuf {
    let dir = without_weights(parent, name);
    std::fs::write(dir.join("model.safetensors"), file).unwrap();
    dir
}

/// The embedded target with a template that knows tools, in a directory.
pub fn calling(parent: &Path) -> PathBuf {
    templated(parent, "calling", &format!("{TOOLS}{TEXT}{CALLS}{ANSWER}"))
}

/// The embedded target with a template that knows tools and thoughts, in a directory.
pub fn calling_and_thinking(parent: &Path) -> PathBuf {
    templated(parent, "thinking", &tools_and_thoughts(TEXT))
}

/// The embedded target with this template, in a directory of this name.
pub fn templated(parent: &Path, name: &str, template: &str) -> PathBuf {
    let dir = single(parent, name, &Weights::demo().bytes());
    set_template(&dir, template);
    dir
}

/// Gives a checkpoint this template.
pub fn set_template(dir: &Path, template: &str) {
    let path = dir.join("tokenizer_config.json");
    let text = std::fs::read_to_string(&path).unwrap();
    let mut config: Value = serde_json::from_str(&text).unwrap();
    config["chat_template"] = template.into();
    std::fs::write(path, config.to_string()).unwrap();
}

/// The demo model's other files with all weights in one shard, of which the index says that
/// `tensor` is in `shard`.
pub fn sharded(parent: &Path, name: &str, tensor: &str, shard: &str) -> PathBuf {
    let dir = without_weights(parent, name);
    let weights = Weights::demo();
    let place = |name: String| {
        let file = if name == tensor { shard } else { "model-00001-of-00002.safetensors" };
        (name, Value::from(file))
    };
    let map: serde_json::Map<String, Value> = weights.names().into_iter().map(place).collect();
    std::fs::write(dir.join("model-00001-of-00002.safetensors"), weights.bytes()).unwrap();
    let index = json!({ "metadata": {}, "weight_map": map });
    std::fs::write(dir.join("model.safetensors.index.json"), index.to_string()).unwrap();
    dir
}

/// A file whose header names one tensor twice.
pub fn duplicate(tensor: &str) -> Vec<u8> {
    let weights = Weights::demo();
    let header = weights.header.to_string();
    assemble(
        &format!("{{{}:{},{}", json!(tensor), weights.header[tensor], &header[1..]),
        &weights.data,
    )
}
