//! Storage of a checkpoint's tensors by format: in the files, and once they are loaded.

use std::collections::BTreeMap;

use safetensors::tensor::Dtype;

use super::forms::{PACKED_GROUP, Precision, WeightForms, packed_bits};
use crate::gguf::BlockType;
use crate::numbers::is_float;
use crate::{CheckpointError, QuantFormat, TensorEntry, Tensors};

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

impl FormatUse {
    /// Adds what more tensors hold. A hub may claim any length of a file.
    fn add(&mut self, parameters: u64, disk_bytes: u64, memory_bytes: u64) {
        self.parameters = self.parameters.saturating_add(parameters);
        self.disk_bytes = self.disk_bytes.saturating_add(disk_bytes);
        self.memory_bytes = self.memory_bytes.saturating_add(memory_bytes);
    }
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
        let format = QuantFormat::affine(packed_bits(self.bits, module), PACKED_GROUP);
        let inputs = *entry.shape.get(1..)?.last()?;
        let is_packed = is_float(entry.dtype)
            && !self.floats.contains(&part)
            && inputs.is_multiple_of(PACKED_GROUP as usize)
            && (forms.keeps)(format);
        is_packed.then_some(format)
    }
}

impl StoragePlan {
    /// Adds up the tensors of a checkpoint.
    ///
    /// # Errors
    /// A quantized module whose format config.json does not name.
    pub fn of(tensors: &Tensors, forms: &WeightForms) -> Result<Self, CheckpointError> {
        Self::of_packed(tensors, forms, None)
    }

    /// The plan of [`StoragePlan::of`] with float matrices that are quantized as they are loaded.
    ///
    /// # Errors
    /// As [`StoragePlan::of`].
    pub fn of_packed(
        tensors: &Tensors,
        forms: &WeightForms,
        packing: Option<Packing>,
    ) -> Result<Self, CheckpointError> {
        let mut formats: BTreeMap<String, FormatUse> = BTreeMap::new();
        let mut add = |used: Used, name: &str| {
            let sum = formats.entry(used.format.clone()).or_default();
            sum.format = used.format;
            sum.tensors += 1;
            sum.add(used.parameters, used.disk_bytes, used.memory_bytes);
            *sum.paths.entry(pattern(name)).or_default() += 1;
        };
        let entries = &tensors.entries;
        for (name, entry) in entries {
            let (module, part) = name.rsplit_once('.').unwrap_or((name, ""));
            let scales = format!("{module}.scales");
            let Some(scales) = entries.get(&scales) else {
                let format = packing.and_then(|packing| packing.format(name, entry, forms));
                let used = match (format, entry.blocks()) {
                    (_, Some(kind)) => Used::blocks(entry, kind, forms),
                    (Some(format), None) => Used::packed(entry, format, forms.precision),
                    (None, None) => Used::floats(entry, forms.precision),
                };
                add(used, name);
                continue;
            };
            // The other parts are counted with the weight.
            if part == "weight" {
                let biases = entries.get(&format!("{module}.biases"));
                let format = forms.quantization.format(module);
                let format = format.ok_or_else(|| CheckpointError::Quantized {
                    module: module.to_owned(),
                    what: "the checkpoint has its scales, and by config.json it is not quantized"
                        .into(),
                })?;
                let stored = [Some(entry), Some(scales), biases];
                let stored = stored.iter().flatten().map(|entry| entry.bytes as u64);
                let stored = stored.fold(0, u64::saturating_add);
                add(Used::quantized(entry, format, stored, forms), module);
            } else if !matches!(part, "scales" | "biases") {
                add(Used::floats(entry, forms.precision), name);
            }
        }
        let mut formats: Vec<_> = formats.into_values().collect();
        formats.sort_by_key(|used| std::cmp::Reverse(used.parameters));
        Ok(Self { formats })
    }

    /// The plan of `bytes` bytes of tensors of which nothing else is known but the usual format of the
    /// checkpoint, else floats of `float_bytes` bytes, which may be quantized as they are loaded.
    pub fn of_bytes(
        bytes: u64,
        float_bytes: u64,
        forms: &WeightForms,
        packing: Option<Packing>,
    ) -> Self {
        let (format, parameters, memory_bytes) = match forms.quantization.usual() {
            Some(format) => {
                // A group has a scale and a bias of 16 bits each.
                let bits = format.bits as f64 + 32.0 / format.group as f64;
                let parameters = (bytes as f64 * 8.0 / bits) as u64;
                match forms.kept(format) {
                    Some(_) => (format.to_string(), parameters, bytes),
                    None => {
                        let floats = parameters.saturating_mul(4);
                        (format!("{format}, expanded to float32"), parameters, floats)
                    }
                }
            }
            None => {
                let parameters = bytes / float_bytes;
                let (words, floats) = match forms.precision {
                    Precision::Float32 => ("as float32", parameters.saturating_mul(4)),
                    Precision::AsStored => ("as stored", bytes),
                };
                match packing {
                    None => (words.to_owned(), parameters, floats),
                    Some(Packing { bits, .. }) => {
                        let packed = parameters.saturating_mul(bits as u64) / 8;
                        // A scale and a bias for each group.
                        let memory = packed.saturating_add(2 * (floats / PACKED_GROUP as u64));
                        (format!("quantized to {bits} bits"), parameters, memory)
                    }
                }
            }
        };
        let all = FormatUse {
            format,
            parameters,
            disk_bytes: bytes,
            memory_bytes,
            ..FormatUse::default()
        };
        Self { formats: vec![all] }
    }

    /// The plan of a GGUF file of `bytes` bytes of which the type of most tensors alone is known.
    pub fn of_block_bytes(bytes: u64, kind: BlockType, forms: &WeightForms) -> Self {
        let parameters = (bytes / kind.bytes()).saturating_mul(kind.values());
        let Used { format, parameters, disk_bytes, memory_bytes } =
            Used::of_blocks(parameters, bytes, kind, forms);
        let all =
            FormatUse { format, parameters, disk_bytes, memory_bytes, ..FormatUse::default() };
        Self { formats: vec![all] }
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
            sum.add(used.parameters, used.disk_bytes, used.memory_bytes);
            for (path, count) in used.paths {
                *sum.paths.entry(path).or_default() += count;
            }
        }
        formats.sort_by_key(|used| std::cmp::Reverse(used.parameters));
        Self { formats }
    }

    fn sum(&self, of: fn(&FormatUse) -> u64) -> u64 {
        self.formats.iter().map(of).fold(0, u64::saturating_add)
    }

    /// Numbers that all tensors hold.
    pub fn parameters(&self) -> u64 {
        self.sum(|used| used.parameters)
    }

    /// Bytes of all tensors in the files.
    pub fn disk_bytes(&self) -> u64 {
        self.sum(|used| used.disk_bytes)
    }

    /// Bytes of all tensors once they are loaded.
    pub fn memory_bytes(&self) -> u64 {
        self.sum(|used| used.memory_bytes)
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
        let parameters = entry.elements();
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

    /// The blocks of a GGUF file.
    fn blocks(entry: &TensorEntry, kind: BlockType, forms: &WeightForms) -> Self {
        Self::of_blocks(entry.elements(), entry.bytes as u64, kind, forms)
    }

    fn of_blocks(parameters: u64, disk_bytes: u64, kind: BlockType, forms: &WeightForms) -> Self {
        let (bytes, note) = match forms.keeps_blocks() {
            true => loaded_bytes(kind, forms.precision),
            false => (4 * kind.values(), ", expanded to float32"),
        };
        let memory_bytes = (parameters / kind.values()).saturating_mul(bytes);
        let format = format!("{} of GGUF{note}", kind.name());
        Self { format, parameters, disk_bytes, memory_bytes }
    }

    fn quantized(
        weight: &TensorEntry,
        format: QuantFormat,
        disk_bytes: u64,
        forms: &WeightForms,
    ) -> Self {
        // Words of 32 bits hold the numbers of a row one after another.
        let parameters = weight.elements().saturating_mul(32) / (format.bits as u64).max(1);
        let (memory_bytes, note) = match forms.kept(format) {
            Some(kept) if kept == format => (disk_bytes, ""),
            // With a scale and a bias of 16 bits for 32 numbers of 5.
            Some(_) => (parameters.saturating_mul(3) / 4, ", as affine numbers of 5 bits"),
            None => (parameters.saturating_mul(4), ", expanded to float32"),
        };
        Self { format: format!("{format}{note}"), parameters, disk_bytes, memory_bytes }
    }
}

/// Bytes of a block of this type once it is loaded, and what became of its numbers. A group of 32 has a
/// scale and a bias of float16 each; those of 256 values have the codes of the file on a CPU, and on a GPU
/// float32.
fn loaded_bytes(kind: BlockType, precision: Precision) -> (u64, &'static str) {
    let on_gpu = precision == Precision::AsStored;
    match kind {
        BlockType::Q4_0 | BlockType::Q4_1 => (16 + 4, ""),
        BlockType::Q5_0 | BlockType::Q5_1 => (20 + 4, ""),
        BlockType::Q8_0 => (32 + 4, ""),
        BlockType::Q4K => (128 + if on_gpu { 64 } else { 20 }, ""),
        BlockType::Q5K => (160 + if on_gpu { 64 } else { 20 }, ""),
        BlockType::Q6K if on_gpu => (256 + 64, ", rounded to 8 bits"),
        BlockType::Q6K => (192 + 36, ""),
        _ => (4 * kind.values(), ", expanded to float32"),
    }
}

/// A name with `*` for each part that is a number: layers and experts differ in nothing else.
fn pattern(name: &str) -> String {
    let is_number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    let parts: Vec<&str> =
        name.split('.').map(|part| if is_number(part) { "*" } else { part }).collect();
    parts.join(".")
}
