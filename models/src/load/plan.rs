//! Plan of a checkpoint: its properties and its memory on this device, from its headers and
//! config.json alone. No weight is read. The sizes are those of [`super::Weights`]: floats in the
//! type of [`Precision`], quantized weights as they are stored, or as float32 if the device has no
//! product for them.

use std::collections::BTreeMap;
use std::path::Path;

use paceline_blas::RecurrentSizes;
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::Hello;
use safetensors::tensor::Dtype;

use super::arrays::is_float;
use super::files::TensorEntry;
use super::quantization::QuantFormat;
use super::tokenizer::token_digest;
use super::weights::packed_bits;
use super::{ConfigJson, LoadError, Precision, QuantizedMatrix, TensorFiles, WeightForms};
use crate::products::Products;

/// Tensors of one format.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FormatUse {
    /// The format in words, as `affine, 4 bits, groups of 64` or `bfloat16`.
    pub format: String,
    /// Modules and other tensors. The parts of a quantized module count as one.
    pub tensors: u64,
    /// Numbers that they hold.
    pub parameters: u64,
    /// Bytes in the files.
    pub disk_bytes: u64,
    /// Bytes that they take once they are loaded.
    pub memory_bytes: u64,
    /// Their names with `*` for each number, and how many have such a name.
    pub paths: BTreeMap<String, u64>,
}

/// Storage of a checkpoint's tensors by format, the format of the most numbers first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoragePlan {
    /// The formats.
    pub formats: Vec<FormatUse>,
}

/// Float matrices that are quantized as they are loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Packing {
    /// Bits of a number; [`packed_bits`] has the exceptions.
    pub bits: i32,
    /// Modules that stay floats, by the last parts of their names.
    pub floats: &'static [&'static str],
}

impl Packing {
    /// The format of a tensor once it is loaded; `None` if it stays as it is.
    fn format(self, name: &str, entry: &TensorEntry, forms: &WeightForms) -> Option<QuantFormat> {
        // The experts of a layer in one tensor are a module without `weight` behind its name.
        let module = name.strip_suffix(".weight");
        let module = module.or_else(|| name.contains(".experts.").then_some(name))?;
        let part = module.rsplit('.').next().unwrap_or(module);
        let format = QuantFormat::affine(packed_bits(self.bits, module), QuantizedMatrix::GROUP);
        let inputs = *entry.shape.get(1..)?.last()?;
        let is_packed = is_float(entry.dtype)
            && !self.floats.contains(&part)
            && inputs.is_multiple_of(QuantizedMatrix::GROUP as usize)
            && (forms.keeps)(format);
        is_packed.then_some(format)
    }
}

/// Keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// Number of heads.
    pub n_kv: i32,
    /// Numbers of a key or a value of one head.
    pub head_dim: i32,
    /// Most positions a row attends to, its own included; `None`: all.
    pub window: Option<i32>,
}

/// What the layers of a text model remember.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PlannedLayers {
    /// Layers that remember a key and a value for each position. `None`: all that do not remember
    /// states, with the heads that config.json names.
    pub kv_heads: Option<Vec<KvHeads>>,
    /// Layers that remember states.
    pub recurrent: Vec<RecurrentSizes>,
    /// Most rows that a pass adds to a sequence.
    pub most_rows: i32,
}

/// Sizes of a text model, and what its weights take.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CheckpointPlan {
    /// `model_type`.
    pub family: String,
    /// Storage of the tensors.
    pub storage: StoragePlan,
    /// Most positions of one sequence.
    pub context: i32,
    /// Rows of the output head.
    pub vocab: i32,
    /// Width of the hidden states.
    pub hidden: i32,
    /// Layers.
    pub n_layers: i32,
    /// Layers that remember a key and a value for each position, one for each.
    pub kv_heads: Vec<KvHeads>,
    /// Sizes of the layers that remember states instead, one for each.
    pub recurrent: Vec<RecurrentSizes>,
    /// Whether it has a vision tower.
    pub has_vision: bool,
    /// Most rows that a pass adds to a sequence: see [`crate::Target::most_rows`].
    pub most_rows: i32,
    /// How products by its weights are computed.
    pub products: Products,
    /// Bytes of a number that is computed with.
    pub number_bytes: u64,
    /// Bytes of loaded weights that a token of an answer reads: not an input embedding that is not
    /// also the output head, not a vision tower, and of experts those that the token goes through.
    pub token_bytes: u64,
    /// What an operator should know of the checkpoint, one sentence each.
    pub notes: Vec<String>,
}

impl CheckpointPlan {
    /// Describes the target in `dir` to a drafter: its Hello over a link of this version, without a
    /// generation. A tokenizer that cannot be read counts as none.
    pub fn hello(&self, dir: &Path, version: u32, max_sessions: u32) -> Hello {
        Hello {
            version,
            generation: 0,
            hidden_size: self.hidden as u32,
            vocab_size: self.vocab as u32,
            n_layers: self.n_layers as u32,
            element: TensorType::F32,
            token_digest: token_digest(dir).unwrap_or_default(),
            context_length: self.context as u32,
            max_sessions,
        }
    }
}

impl StoragePlan {
    /// Adds up the tensors of a checkpoint.
    ///
    /// # Errors
    /// A quantized module whose format config.json does not name.
    pub fn of(checkpoint: &TensorFiles, forms: &WeightForms) -> Result<Self, LoadError> {
        Self::of_packed(checkpoint, forms, None)
    }

    /// The plan of [`StoragePlan::of`] with float matrices that are quantized as they are loaded.
    ///
    /// # Errors
    /// As [`StoragePlan::of`].
    pub fn of_packed(
        checkpoint: &TensorFiles,
        forms: &WeightForms,
        packing: Option<Packing>,
    ) -> Result<Self, LoadError> {
        let mut formats: BTreeMap<String, FormatUse> = BTreeMap::new();
        let mut add = |used: Used, name: &str| {
            let sum = formats.entry(used.format.clone()).or_default();
            sum.format = used.format;
            sum.tensors += 1;
            sum.parameters += used.parameters;
            sum.disk_bytes += used.disk_bytes;
            sum.memory_bytes += used.memory_bytes;
            *sum.paths.entry(pattern(name)).or_default() += 1;
        };
        let entries = &checkpoint.entries;
        for (name, entry) in entries {
            let (module, part) = name.rsplit_once('.').unwrap_or((name, ""));
            let scales = format!("{module}.scales");
            let Some(scales) = entries.get(&scales) else {
                let format = packing.and_then(|packing| packing.format(name, entry, forms));
                let used = match format {
                    Some(format) => Used::packed(entry, format, forms.precision),
                    None => Used::floats(entry, forms.precision),
                };
                add(used, name);
                continue;
            };
            // The other parts are counted with the weight.
            if part == "weight" {
                let biases = entries.get(&format!("{module}.biases"));
                let format = forms.quantization.format(module);
                let format = format.ok_or_else(|| LoadError::Quantized {
                    module: module.to_owned(),
                    what: "the checkpoint has its scales, and by config.json it is not quantized"
                        .into(),
                })?;
                let stored = [Some(entry), Some(scales), biases];
                let stored = stored.iter().flatten().map(|entry| entry.bytes as u64).sum();
                add(Used::quantized(entry, format, stored, forms), module);
            } else if !matches!(part, "scales" | "biases") {
                add(Used::floats(entry, forms.precision), name);
            }
        }
        let mut formats: Vec<_> = formats.into_values().collect();
        formats.sort_by_key(|used| std::cmp::Reverse(used.parameters));
        Ok(Self { formats })
    }

    /// The tensors of both plans.
    #[must_use]
    pub fn with(self, other: Self) -> Self {
        let mut formats = self.formats;
        for used in other.formats {
            let Some(sum) = formats.iter_mut().find(|own| own.format == used.format) else {
                formats.push(used);
                continue;
            };
            sum.tensors += used.tensors;
            sum.parameters += used.parameters;
            sum.disk_bytes += used.disk_bytes;
            sum.memory_bytes += used.memory_bytes;
            for (path, count) in used.paths {
                *sum.paths.entry(path).or_default() += count;
            }
        }
        formats.sort_by_key(|used| std::cmp::Reverse(used.parameters));
        Self { formats }
    }

    /// Numbers that all tensors hold.
    pub fn parameters(&self) -> u64 {
        self.formats.iter().map(|used| used.parameters).sum()
    }

    /// Bytes of all tensors in the files.
    pub fn disk_bytes(&self) -> u64 {
        self.formats.iter().map(|used| used.disk_bytes).sum()
    }

    /// Bytes of all tensors once they are loaded.
    pub fn memory_bytes(&self) -> u64 {
        self.formats.iter().map(|used| used.memory_bytes).sum()
    }
}

impl CheckpointPlan {
    /// Reads the sizes and adds up the tensors. Tensors of parts that are not served should have
    /// been skipped ([`TensorFiles::skip`]).
    ///
    /// # Errors
    /// A size is missing or out of range; as [`StoragePlan::of`].
    pub fn of(
        checkpoint: &TensorFiles,
        config: &ConfigJson,
        forms: &WeightForms,
        layers: PlannedLayers,
    ) -> Result<Self, LoadError> {
        let PlannedLayers { kv_heads, recurrent, most_rows } = layers;
        let (n_layers, context) = (config.size("num_hidden_layers")?, config.context()?);
        let (hidden, n_heads) = (config.size("hidden_size")?, config.size("num_attention_heads")?);
        let first_float = checkpoint.entries.values().find_map(|entry| match entry.dtype {
            Dtype::F16 | Dtype::BF16 => Some(2),
            Dtype::F32 => Some(4),
            _ => None,
        });
        let storage = StoragePlan::of(checkpoint, forms)?;
        let share = share_read(checkpoint, share_of_experts(config)?);
        let same = KvHeads {
            n_kv: config.size_or("num_key_value_heads", n_heads)?,
            head_dim: config.size_or("head_dim", (hidden / n_heads).max(1))?,
            window: None,
        };
        let usual = || vec![same; (n_layers as usize).saturating_sub(recurrent.len())];
        Ok(Self {
            family: config.required("model_type")?,
            token_bytes: (storage.memory_bytes() as f64 * share) as u64,
            storage,
            context: context.positions,
            vocab: config.size("vocab_size")?,
            hidden,
            n_layers,
            kv_heads: kv_heads.unwrap_or_else(usual),
            recurrent,
            has_vision: config.part("vision_config")?.is_some(),
            most_rows,
            products: forms.products_of(checkpoint),
            notes: checkpoint.notes.iter().cloned().chain(context.note).collect(),
            number_bytes: match forms.precision {
                Precision::Float32 => 4,
                Precision::AsStored => first_float.unwrap_or(4),
            },
        })
    }
}

/// Storage of one tensor or module.
struct Used {
    format: String,
    parameters: u64,
    disk_bytes: u64,
    memory_bytes: u64,
}

impl Used {
    fn floats(entry: &TensorEntry, precision: Precision) -> Self {
        let parameters = numbers(&entry.shape);
        let disk_bytes = entry.bytes as u64;
        let memory_bytes = match precision {
            Precision::Float32 => parameters.saturating_mul(4),
            Precision::AsStored => disk_bytes,
        };
        let format = match entry.dtype {
            Dtype::F32 => "float32".to_owned(),
            Dtype::F16 => "float16".to_owned(),
            Dtype::BF16 => "bfloat16".to_owned(),
            other => format!("{other:?}"),
        };
        Self { format, parameters, disk_bytes, memory_bytes }
    }

    /// A tensor of floats that is quantized as it is loaded: its numbers, and a scale and a bias for
    /// each group in the type of the floats.
    fn packed(entry: &TensorEntry, format: QuantFormat, precision: Precision) -> Self {
        let floats = Self::floats(entry, precision);
        let parameters = floats.parameters;
        let numbers = parameters.saturating_mul(format.bits as u64) / 8;
        let groups = floats.memory_bytes / format.group as u64;
        Self {
            format: format!("{}, loaded as {format}", floats.format),
            memory_bytes: numbers + 2 * groups,
            ..floats
        }
    }

    fn quantized(
        weight: &TensorEntry,
        format: QuantFormat,
        disk_bytes: u64,
        forms: &WeightForms,
    ) -> Self {
        // Words of 32 bits hold the numbers of a row one after another.
        let parameters = numbers(&weight.shape).saturating_mul(32) / (format.bits as u64).max(1);
        let (memory_bytes, note) = match forms.kept(format) {
            Some(kept) if kept == format => (disk_bytes, ""),
            // With a scale and a bias of 16 bits for 32 numbers of 5.
            Some(_) => (parameters.saturating_mul(3) / 4, ", as affine numbers of 5 bits"),
            None => (parameters.saturating_mul(4), ", expanded to float32"),
        };
        Self { format: format!("{format}{note}"), parameters, disk_bytes, memory_bytes }
    }
}

fn numbers(shape: &[usize]) -> u64 {
    shape.iter().fold(1, |product: u64, length| product.saturating_mul(*length as u64))
}

/// Share of the experts that a token goes through; 1 without experts.
fn share_of_experts(config: &ConfigJson) -> Result<f64, LoadError> {
    let chosen: Option<u32> = config.optional("num_experts_per_tok")?;
    let all: Option<u32> = config.optional("num_experts")?;
    Ok(match (chosen, all) {
        (Some(chosen), Some(all)) if all > 0 => (f64::from(chosen) / f64::from(all)).min(1.0),
        _ => 1.0,
    })
}

/// Share of the files' bytes that a token reads, if it reads the share `experts` of all experts. The
/// tensors of a quantized matrix have its name with other endings.
fn share_read(checkpoint: &TensorFiles, experts: f64) -> f64 {
    let has_head = checkpoint.entries.keys().any(|name| name.contains("lm_head."));
    let read = |name: &str| match name {
        _ if name.contains("embed_tokens.") && has_head => 0.0,
        _ if name.contains("visual.") || name.contains("vision_tower.") => 0.0,
        _ if name.contains(".experts.") || name.contains(".switch_mlp.") => experts,
        _ => 1.0,
    };
    let (mut all, mut sum) = (0.0, 0.0);
    for (name, entry) in &checkpoint.entries {
        all += entry.bytes as f64;
        sum += read(name) * entry.bytes as f64;
    }
    if all == 0.0 { 1.0 } else { sum / all }
}

/// A name with `*` for each part that is a number: layers and experts differ in nothing else.
fn pattern(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> =
        name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::super::{QuantMode, Quantization};
    use super::*;

    /// A checkpoint of tensors that are all zero: name, type, shape.
    fn checkpoint(dir: &Path, tensors: &[(&str, &str, &[usize])]) -> TensorFiles {
        let (mut header, mut end) = (String::new(), 0);
        for (name, dtype, shape) in tensors {
            let width = match *dtype {
                "U8" => 1,
                "F16" | "BF16" => 2,
                _ => 4,
            };
            let begin = end;
            end += shape.iter().product::<usize>() * width;
            let comma = if header.is_empty() { "" } else { "," };
            let _ = write!(
                header,
                r#"{comma}"{name}":{{"dtype":"{dtype}","shape":{shape:?},"data_offsets":[{begin},{end}]}}"#
            );
        }
        let header = format!("{{{header}}}");
        let mut bytes = (header.len() as u64).to_le_bytes().to_vec();
        bytes.extend_from_slice(header.as_bytes());
        bytes.resize(bytes.len() + end, 0);
        std::fs::write(dir.join("model.safetensors"), bytes).expect("written");
        TensorFiles::open(dir).expect("opens")
    }

    const CONFIG: &str = r#"{"model_type":"qwen3","hidden_size":64,"num_attention_heads":4,
        "num_key_value_heads":2,"head_dim":32,"num_hidden_layers":3,"vocab_size":100,
        "max_position_embeddings":512,
        "quantization":{"bits":4,"group_size":32,"layers.1.up":{"bits":8,"group_size":32},
        "layers.0.gate":{"mode":"mxfp4"}}}"#;

    fn plan(precision: Precision, keeps: fn(QuantFormat) -> bool) -> CheckpointPlan {
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("config.json"), CONFIG).expect("written");
        let config = ConfigJson::read(dir.path()).expect("an object");
        let files = checkpoint(
            dir.path(),
            &[
                ("layers.0.up.weight", "U32", &[16, 8]),
                ("layers.0.up.scales", "F16", &[16, 2]),
                ("layers.0.up.biases", "F16", &[16, 2]),
                ("layers.1.up.weight", "U32", &[16, 16]),
                ("layers.1.up.scales", "F16", &[16, 2]),
                ("layers.1.up.biases", "F16", &[16, 2]),
                ("layers.0.gate.weight", "U32", &[16, 8]),
                ("layers.0.gate.scales", "U8", &[16, 2]),
                ("layers.0.norm.weight", "BF16", &[64]),
                ("layers.1.norm.weight", "BF16", &[64]),
                ("layers.0.up.bias", "F32", &[16]),
            ],
        );
        let quantization = Quantization::read(&config).expect("formats");
        let products = Products::Integer;
        let forms = WeightForms { precision, quantization, keeps, products };
        CheckpointPlan::of(&files, &config, &forms, PlannedLayers::default()).expect("a plan")
    }

    fn figures(plan: &CheckpointPlan) -> Vec<(&str, [u64; 4])> {
        let figures =
            |used: &FormatUse| [used.tensors, used.parameters, used.disk_bytes, used.memory_bytes];
        plan.storage.formats.iter().map(|used| (used.format.as_str(), figures(used))).collect()
    }

    #[test]
    fn quantized_modules_are_counted_by_their_formats() {
        let affine = |format: QuantFormat| format.mode == QuantMode::Affine;
        let on_cpu = plan(Precision::Float32, affine);
        let mut found = figures(&on_cpu);
        found.sort_unstable();
        assert_eq!(
            found,
            [
                ("affine, 4 bits, groups of 32", [1, 1_024, 640, 640]),
                ("affine, 8 bits, groups of 32", [1, 1_024, 1_152, 1_152]),
                ("bfloat16", [2, 128, 256, 512]),
                ("float32", [1, 16, 64, 64]),
                ("mxfp4, 4 bits, groups of 32, as affine numbers of 5 bits", [1, 1_024, 544, 768]),
            ]
        );
        assert_eq!(on_cpu.storage.parameters(), 3 * 1_024 + 144);
        assert_eq!(on_cpu.storage.memory_bytes(), 640 + 1_152 + 512 + 64 + 768);
        let bf16 = on_cpu.storage.formats.iter().find(|used| used.format == "bfloat16");
        let paths = &bf16.expect("norms").paths;
        assert_eq!(paths.get("layers.*.norm.weight"), Some(&2));
        assert_eq!(on_cpu.products, Products::Integer);
        let expanded = plan(Precision::Float32, |_| false);
        assert_eq!(expanded.products, Products::Float, "no weight stays quantized");
        let on_gpu = plan(Precision::AsStored, |_| true);
        assert_eq!(on_gpu.storage.memory_bytes(), on_gpu.storage.disk_bytes());
        assert_eq!(on_gpu.storage.disk_bytes(), on_cpu.storage.disk_bytes());
    }

    #[test]
    fn keys_and_values_take_what_the_config_says() {
        let on_cpu = plan(Precision::Float32, |_| true);
        let heads = KvHeads { n_kv: 2, head_dim: 32, window: None };
        assert_eq!((on_cpu.kv_heads, on_cpu.number_bytes), (vec![heads; 3], 4));
        assert_eq!((on_cpu.context, on_cpu.vocab, on_cpu.hidden), (512, 100, 64));
    }

    #[test]
    fn a_module_with_scales_and_no_format_is_refused() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let files =
            checkpoint(dir.path(), &[("a.weight", "U32", &[1, 4]), ("a.scales", "F16", &[1, 1])]);
        let forms = WeightForms {
            precision: Precision::Float32,
            quantization: Quantization::default(),
            keeps: |_| true,
            products: Products::Float,
        };
        assert!(
            StoragePlan::of(&files, &forms).is_err_and(|error| error.to_string().contains('a'))
        );
    }
}
