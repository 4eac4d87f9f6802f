//! Plan of a checkpoint: its properties and its memory on a device, from its headers and config.json
//! alone, whether its files are here or still on a hub. No weight is read but a head that may be the
//! embedding. Whether the tensors are those that the graph needs is found by `models/` alone.

mod fit;
mod forms;
mod storage;

use std::path::Path;

use paceline_vocabulary::Products;
use safetensors::tensor::Dtype;

use crate::families::{Family, Sizes};
use crate::gguf::BlockType;
use crate::kv_sizes::{KvSizes, MOST_ROWS};
use crate::{CheckpointError, ConfigJson, KvHeads, Quantization, RecurrentSizes, Tensors};

pub use fit::{DoesNotFit, Fit, KV_SHARE, KvBudget};
pub use forms::{
    DeviceKind, PACKED_GROUP, Precision, ProductsChoice, SMALL, WeightForms, packed_bits,
};
pub use storage::{FormatUse, Packing, StoragePlan};

/// Most layers. Published checkpoints have up to some 130; a list of any number of layers could be larger
/// than memory.
const MOST_LAYERS: i32 = 4_096;

/// How a target is to be loaded.
#[derive(Clone, Copy, Debug)]
pub struct PlanOptions {
    /// The device.
    pub device: DeviceKind,
    /// Quantized weights stay as they are stored if the device has products by them. Otherwise the
    /// CPU computes with their elements as float32; the GPU keeps them in any case.
    pub keep_quantized: bool,
    /// The vision tower of a checkpoint that has one is served. Otherwise it is left unread.
    pub vision: bool,
    /// Products by quantized weights.
    pub products: ProductsChoice,
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
    /// Most rows that a pass adds to a sequence: enough for the rows of an image that must be in one
    /// pass.
    pub most_rows: i32,
    /// How products by its weights are computed.
    pub products: Products,
    /// Bytes of an element of keys and values.
    pub number_bytes: u64,
    /// Bytes of loaded weights that a token of an answer reads: not an input embedding that is not
    /// also the output head, not a vision tower, and of experts those that the token goes through.
    pub token_bytes: u64,
    /// What an operator should know of the checkpoint, one sentence each.
    pub notes: Vec<String>,
}

/// A target's files without the parts that are not served.
#[derive(Debug)]
pub struct ServedCheckpoint {
    /// Its config.json; without the sizes of a tower that is left out.
    pub config: ConfigJson,
    /// The tensors of the served parts.
    pub tensors: Tensors,
    /// In which form the device keeps them.
    pub forms: WeightForms,
    /// Its family.
    pub family: &'static Family,
    /// Whether its vision tower is served.
    pub has_vision: bool,
    /// Most rows of an image, if all of them must be in one pass.
    whole_image: Option<u32>,
}

impl ServedCheckpoint {
    /// Opens the target in `dir`.
    ///
    /// # Errors
    /// Files that are missing, broken, or of a family that is not served.
    pub fn open(dir: &Path, options: &PlanOptions) -> Result<Self, CheckpointError> {
        let config = ConfigJson::read(dir)?;
        // What config.json says is refused before a file of weights is opened.
        Family::of(&config)?;
        Quantization::read(&config)?;
        Self::of(dir, config, Tensors::open(dir)?, options)
    }

    /// A target with this config.json and these tensors, of which `dir` has, or will have, the other
    /// files.
    ///
    /// # Errors
    /// A key is missing or has another type, the family is not served, or products of integers are asked
    /// for and there are none.
    pub fn of(
        dir: &Path,
        config: ConfigJson,
        mut tensors: Tensors,
        options: &PlanOptions,
    ) -> Result<Self, CheckpointError> {
        // Without the sizes of a tower it is that of a text model.
        let config = if options.vision { config } else { config.without("vision_config") };
        let family = Family::of(&config)?;
        let parts = family.parts(dir, &config, &tensors)?;
        parts.keep(&mut tensors, options.vision)?;
        let PlanOptions { device, keep_quantized, products, .. } = *options;
        let products = products.on(device, tensors.quantized_bytes());
        let forms = WeightForms::of(&config, device, keep_quantized, products)?;
        let has_vision = parts.has_tower && config.part("vision_config")?.is_some();
        let whole_image = if has_vision { (family.whole_image)(dir, &config)? } else { None };
        let served = Self { config, tensors, forms, family, has_vision, whole_image };
        if options.products == ProductsChoice::Integer {
            served.check_products(device)?;
        }
        Ok(served)
    }

    /// Refuses a target without products of integers.
    fn check_products(&self, device: DeviceKind) -> Result<(), CheckpointError> {
        let Self { tensors, forms, .. } = self;
        if forms.products_of(tensors) == Products::Integer {
            return Ok(());
        }
        let first = || {
            let storage = StoragePlan::of(tensors, forms)?;
            let first = storage.formats.into_iter().next();
            Ok(first.map_or_else(String::new, |first| first.format))
        };
        let found = if device.on_gpu { "a GPU".to_owned() } else { first()? };
        Err(CheckpointError::Products { found })
    }

    /// Its plan.
    ///
    /// # Errors
    /// A size is missing or out of range, or config.json names no format for a quantized module.
    pub fn plan(&self) -> Result<CheckpointPlan, CheckpointError> {
        let Self { config, tensors, forms, family, .. } = self;
        let storage = StoragePlan::of(tensors, forms)?;
        let number_bytes = match forms.precision {
            Precision::Float32 => 4,
            Precision::AsStored => float_bytes(tensors),
        };
        let share = share_read(tensors, share_of_experts(config)?);
        let token_bytes = (storage.memory_bytes() as f64 * share) as u64;
        let sized = CheckpointPlan::sized(config, family, storage, number_bytes)?;
        Ok(CheckpointPlan {
            token_bytes,
            has_vision: self.has_vision,
            most_rows: most_rows(self.whole_image),
            products: forms.products_of(tensors),
            notes: tensors.notes.iter().chain(&sized.notes).cloned().collect(),
            ..sized
        })
    }
}

impl CheckpointPlan {
    /// Plan of a target of which config.json is known, and `weight_bytes`, the bytes of its tensors: what
    /// is known before a fetch where not even headers can be had. Weights count as if all were in the
    /// format that config.json names.
    ///
    /// # Errors
    /// As [`ServedCheckpoint::of`] and [`ServedCheckpoint::plan`], for config.json.
    pub fn of_bytes(
        config: &ConfigJson,
        weight_bytes: u64,
        options: &PlanOptions,
    ) -> Result<Self, CheckpointError> {
        let PlanOptions { device, keep_quantized, .. } = *options;
        let forms = WeightForms::of(config, device, keep_quantized, Products::Float)?;
        let stored = stored_float_bytes(config)?;
        let blocks = config.optional::<String>("gguf_type")?;
        let blocks = BlockType::ALL.into_iter().find(|kind| Some(kind.name()) == blocks.as_deref());
        let storage = match blocks.filter(|kind| kind.is_quantized()) {
            Some(kind) => StoragePlan::of_block_bytes(weight_bytes, kind, &forms),
            None => StoragePlan::of_bytes(weight_bytes, stored, &forms, None),
        };
        let number_bytes = if forms.precision == Precision::Float32 { 4 } else { stored };
        let mut plan = Self::sized(config, Family::of(config)?, storage, number_bytes)?;
        plan.notes.push("the weights' headers are not known, so their memory is estimated".into());
        Ok(plan)
    }

    /// A plan with the sizes that config.json names.
    fn sized(
        config: &ConfigJson,
        family: &Family,
        storage: StoragePlan,
        number_bytes: u64,
    ) -> Result<Self, CheckpointError> {
        let (n_layers, context) = (config.size("num_hidden_layers")?, config.context()?);
        let (recurrent, kv_heads) = layers(config, family, n_layers)?;
        Ok(Self {
            family: config.required("model_type")?,
            token_bytes: storage.memory_bytes(),
            storage,
            context: context.positions,
            vocab: config.size("vocab_size")?,
            hidden: config.size("hidden_size")?,
            n_layers,
            kv_heads,
            recurrent,
            has_vision: false,
            most_rows: MOST_ROWS,
            products: Products::Float,
            notes: context.note.into_iter().collect(),
            number_bytes,
        })
    }

    /// Sizes of its keys, values and states.
    pub fn kv_sizes(&self) -> KvSizes {
        let Self { kv_heads, recurrent, number_bytes, context, most_rows, .. } = self;
        KvSizes::new(kv_heads, recurrent, *number_bytes, *context, *most_rows)
    }
}

/// Most rows that a pass adds to a sequence, with the rows of an image that must be in one pass.
pub fn most_rows(image: Option<u32>) -> i32 {
    let image = image.map_or(0, |rows| i32::try_from(rows).unwrap_or(i32::MAX));
    MOST_ROWS.max(image)
}

/// Sizes of the layers that remember states, and keys and values of the others.
///
/// # Errors
/// A key is missing, out of range, or names a layer that is not computed.
fn layers(
    config: &ConfigJson,
    family: &Family,
    n_layers: i32,
) -> Result<(Vec<RecurrentSizes>, Vec<KvHeads>), CheckpointError> {
    config.check_most("num_hidden_layers", n_layers, MOST_LAYERS)?;
    let recurrent: Vec<_> = (family.recurrent)(config)?.into_iter().flatten().collect();
    if let Some(kv_heads) = (family.kv_heads)(config)? {
        return Ok((recurrent, kv_heads));
    }
    let same = Sizes::read_any(config)?.kv_heads();
    let attending = (n_layers as usize).saturating_sub(recurrent.len());
    Ok((recurrent, vec![same; attending]))
}

/// Bytes of a float in the files, by config.json. Checkpoints that do not tell have 16 bits.
///
/// # Errors
/// A key has another type.
pub fn stored_float_bytes(config: &ConfigJson) -> Result<u64, CheckpointError> {
    let named: Option<String> = config.optional("dtype")?;
    let named = named.or(config.optional("torch_dtype")?);
    Ok(if named.as_deref() == Some("float32") { 4 } else { 2 })
}

/// Bytes of a float in the files, by the first tensor of floats.
fn float_bytes(tensors: &Tensors) -> u64 {
    let first = tensors.entries.values().find_map(|entry| match entry.dtype {
        Dtype::F16 | Dtype::BF16 => Some(2),
        Dtype::F32 => Some(4),
        _ => None,
    });
    first.unwrap_or(4)
}

/// Number of the parameters of the model in `dir`.
///
/// # Errors
/// The files cannot be read, or are broken.
pub fn parameters(dir: &Path) -> Result<u64, CheckpointError> {
    let device = DeviceKind { on_gpu: true, has_kernels: false };
    let forms = WeightForms::of(&ConfigJson::read(dir)?, device, true, Products::Float)?;
    Ok(StoragePlan::of(&Tensors::open(dir)?, &forms)?.parameters())
}

/// Share of the bytes of the weights in `dir` that a token of an answer reads; see
/// [`CheckpointPlan::token_bytes`].
///
/// # Errors
/// The files cannot be read, or are broken.
pub fn share_read_of(dir: &Path) -> Result<f64, CheckpointError> {
    let config = ConfigJson::read(dir)?;
    Ok(share_read(&Tensors::open(dir)?, share_of_experts(&config)?))
}

/// Share of the experts that a token goes through; 1 without experts.
fn share_of_experts(config: &ConfigJson) -> Result<f64, CheckpointError> {
    let chosen: Option<u32> = config.optional("num_experts_per_tok")?;
    let all: Option<u32> = config.optional("num_experts")?;
    Ok(match (chosen, all) {
        (Some(chosen), Some(all)) if all > 0 => (f64::from(chosen) / f64::from(all)).min(1.0),
        _ => 1.0,
    })
}

/// Share of the files' bytes that a token reads, if it reads the share `experts` of all experts. The
/// tensors of a quantized matrix have its name with other endings.
fn share_read(tensors: &Tensors, experts: f64) -> f64 {
    let has_head = tensors.entries.keys().any(|name| name.contains("lm_head."));
    let read = |name: &str| match name {
        _ if name.contains("embed_tokens.") && has_head => 0.0,
        _ if name.contains("visual.") || name.contains("vision_tower.") => 0.0,
        _ if name.contains(".experts.") || name.contains(".switch_mlp.") => experts,
        _ => 1.0,
    };
    let (mut all, mut sum) = (0.0, 0.0);
    for (name, entry) in &tensors.entries {
        all += entry.bytes as f64;
        sum += read(name) * entry.bytes as f64;
    }
    if all == 0.0 { 1.0 } else { sum / all }
}

#[cfg(test)]
mod tests {
    use std::fmt::Write as _;
    use std::path::Path;

    use super::*;
    use crate::{QuantFormat, QuantMode};

    /// A checkpoint of tensors that are all zero: name, type, shape.
    fn checkpoint(dir: &Path, tensors: &[(&str, &str, &[usize])]) -> Tensors {
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
        Tensors::open(dir).expect("opens")
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
        let family = Family::of(&config).expect("served");
        let served = ServedCheckpoint {
            config,
            tensors: files,
            forms,
            family,
            has_vision: false,
            whole_image: None,
        };
        served.plan().expect("a plan")
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

    fn shares(tensors: &[(&str, &str, &[usize])], config: &str) -> f64 {
        let dir = tempfile::tempdir().expect("a temporary directory");
        checkpoint(dir.path(), tensors);
        std::fs::write(dir.path().join("config.json"), config).expect("written");
        share_read_of(dir.path()).expect("read")
    }

    #[test]
    fn an_input_embedding_is_read_where_it_is_the_head_too() {
        let embedding = ("model.embed_tokens.weight", "F32", &[10, 4][..]);
        let norm = ("model.norm.weight", "F32", &[20][..]);
        let head = ("lm_head.weight", "F32", &[10, 4][..]);
        assert_eq!(shares(&[embedding, norm], "{}"), 1.0);
        assert_eq!(shares(&[embedding, norm, head], "{}"), 240.0 / 400.0);
        let tower = ("model.visual.norm.weight", "F32", &[60][..]);
        assert_eq!(shares(&[embedding, norm, tower], "{}"), 0.5);
    }

    #[test]
    fn a_token_reads_the_experts_that_it_goes_through() {
        let norm = ("norm.weight", "F32", &[10][..]);
        for name in ["mlp.experts.0.up_proj.weight", "mlp.switch_mlp.up_proj.weight"] {
            let experts = (name, "F32", &[10, 4][..]);
            let of = |config: &str| shares(&[norm, experts], config);
            assert_eq!(of("{}"), 1.0);
            let chosen = r#"{"num_local_experts": 8, "num_experts_per_tok": 2}"#;
            assert_eq!(of(chosen), 80.0 / 200.0);
            assert_eq!(of(&format!(r#"{{"text_config": {chosen}}}"#)), 80.0 / 200.0);
        }
    }

    const CPU: PlanOptions = PlanOptions {
        device: DeviceKind { on_gpu: false, has_kernels: true },
        keep_quantized: true,
        vision: true,
        products: ProductsChoice::Auto,
    };

    #[test]
    fn bytes_alone_tell_about_what_weights_take() {
        let memory = |changes: serde_json::Value, options: &PlanOptions| {
            let base: serde_json::Value = serde_json::from_str(CONFIG).expect("JSON");
            let config = ConfigJson::changed(base, &changes);
            let plan = CheckpointPlan::of_bytes(&config, 9 << 20, options).expect("a plan");
            assert_eq!(plan.notes.len(), 1, "it is an estimate");
            plan.storage.memory_bytes()
        };
        let q4 = serde_json::json!({ "quantization": { "bits": 4, "group_size": 64 } });
        assert_eq!(memory(q4.clone(), &CPU), 9 << 20);
        // 4.5 bits become 32.
        assert_eq!(memory(q4, &PlanOptions { keep_quantized: false, ..CPU }), 64 << 20);
        let floats = |dtype: &str| serde_json::json!({ "quantization": null, "dtype": dtype });
        assert_eq!(memory(floats("bfloat16"), &CPU), 18 << 20);
        assert_eq!(memory(floats("float32"), &CPU), 9 << 20);
        let gpu = PlanOptions { device: DeviceKind { on_gpu: true, has_kernels: false }, ..CPU };
        assert_eq!(memory(floats("bfloat16"), &gpu), 9 << 20);
    }

    #[test]
    fn sizes_that_no_model_has_are_refused_before_anything_is_counted() {
        let base: serde_json::Value = serde_json::from_str(CONFIG).expect("JSON");
        for (key, size, expected) in [
            ("num_hidden_layers", 1_u64 << 24, "expected at most 4096"),
            ("num_hidden_layers", u64::MAX, "num_hidden_layers"),
            ("head_dim", 1 << 24, "expected heads of at most 4096 numbers"),
            ("head_dim", 31, "an even head_dim"),
            ("num_key_value_heads", 3, "expected a divisor of 4 heads"),
        ] {
            let config = ConfigJson::changed(base.clone(), &serde_json::json!({ key: size }));
            let error = CheckpointPlan::of_bytes(&config, 1, &CPU).expect_err(key).to_string();
            assert!(error.contains(expected), "{key}: {error}");
        }
    }
}
