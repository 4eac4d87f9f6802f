//! Memory of a model by its configuration and the bytes of its weights, before they are fetched. An
//! estimate: the worker computes the exact figure from the headers of the weights. Pure.

use paceline_process::config::{Auto, Config, DrafterQuantize};
use serde_json::Value;

/// Tokens whose KV is a part of the estimate, unless the context is shorter: a conversation.
const KV_TOKENS: u64 = 4_096;
/// Bytes of a float on the CPU, which computes with float32.
const CPU_FLOAT: u64 = 4;

/// What decides the form of weights in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct WeightForm {
    /// A GPU computes with the floats of the files.
    pub on_gpu: bool,
    /// The CPU computes with quantized weights as they are stored.
    pub keep_quantized: bool,
    /// Quantization of floats at load.
    pub quantize: DrafterQuantize,
}

/// Memory that a model takes, about.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryEstimate {
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of the KV of one conversation; 0 if the configuration does not tell.
    pub kv_bytes: u64,
    /// Form of the weights, in words.
    pub form: &'static str,
}

impl WeightForm {
    /// The form of the target.
    pub fn of_target(config: &Config, on_gpu: bool) -> Self {
        let keep_quantized = config.target.keep_quantized;
        Self { on_gpu, keep_quantized, quantize: DrafterQuantize::None }
    }

    /// The form of the drafter.
    pub fn of_drafter(config: &Config, on_gpu: bool) -> Self {
        Self { on_gpu, keep_quantized: true, quantize: config.drafter.quantize }
    }
}

impl MemoryEstimate {
    /// The memory of a model with this config.json and `stored` bytes of weights.
    pub fn of(model: &Value, stored: u64, form: WeightForm, settings: &Config) -> Self {
        let (weight_bytes, words) = weights(model, stored, form);
        let limit = match settings.limits.context_tokens {
            Auto::Auto => KV_TOKENS,
            Auto::Is(tokens) => KV_TOKENS.min(u64::from(tokens)),
        };
        let number = |key| field(model, key).and_then(Value::as_u64);
        let context = number("max_position_embeddings").unwrap_or(KV_TOKENS);
        let row = kv_numbers(model).unwrap_or(0);
        let element = if form.on_gpu { float_bytes(model) } else { CPU_FLOAT };
        let kv_bytes = row.saturating_mul(element).saturating_mul(limit.min(context));
        Self { weight_bytes, kv_bytes, form: words }
    }

    /// Bytes of all.
    pub fn total(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_bytes)
    }
}

/// Bytes of the weights in memory, and their form.
fn weights(model: &Value, stored: u64, form: WeightForm) -> (u64, &'static str) {
    let settings = ["quantization", "quantization_config"].iter().map(|key| &model[*key]);
    if let Some(settings) = settings.into_iter().find(|value| value.is_object()) {
        if form.on_gpu || form.keep_quantized {
            return (stored, "quantized as stored");
        }
        let bits = settings["bits"].as_u64().unwrap_or(4).clamp(1, 16);
        let group = settings["group_size"].as_u64().unwrap_or(64).max(1);
        // A group has a scale and a bias of 16 bits each.
        let bits = bits as f64 + 32.0 / group as f64;
        return ((stored as f64 * 32.0 / bits) as u64, "expanded to float32");
    }
    let numbers = stored / float_bytes(model);
    match (form.quantize, form.on_gpu) {
        (DrafterQuantize::Q8, _) => (numbers.saturating_mul(9) / 8, "quantized to 8 bits"),
        (DrafterQuantize::Q4, _) => (numbers.saturating_mul(5) / 8, "quantized to 4 bits"),
        (DrafterQuantize::None, true) => (stored, "as stored"),
        (DrafterQuantize::None, false) => (numbers.saturating_mul(CPU_FLOAT), "as float32"),
    }
}

/// Bytes of a float in the files. Checkpoints that do not tell have 16 bits.
fn float_bytes(model: &Value) -> u64 {
    let dtype = field(model, "dtype").or_else(|| field(model, "torch_dtype"));
    if dtype.and_then(Value::as_str) == Some("float32") { 4 } else { 2 }
}

/// Numbers of a token in the KV of all layers: keys and values.
fn kv_numbers(model: &Value) -> Option<u64> {
    let number = |key| field(model, key).and_then(Value::as_u64);
    let heads = number("num_attention_heads");
    let kv_heads = number("num_key_value_heads").or(heads)?;
    let head_dim = number("head_dim")
        .or_else(|| number("hidden_size")?.checked_div(heads.filter(|heads| *heads > 0)?))?;
    let layers = number("num_hidden_layers")?;
    2u64.checked_mul(layers)?.checked_mul(kv_heads)?.checked_mul(head_dim)
}

/// A field of the configuration. Models with vision keep those of the language model apart.
fn field<'a>(model: &'a Value, key: &str) -> Option<&'a Value> {
    model.get(key).or_else(|| model.get("text_config")?.get(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    const MIB: u64 = 1 << 20;
    const CPU: WeightForm =
        WeightForm { on_gpu: false, keep_quantized: true, quantize: DrafterQuantize::None };

    fn estimate(model: Value, form: WeightForm) -> MemoryEstimate {
        MemoryEstimate::of(&model, 100 * MIB, form, &Config::default())
    }

    #[test]
    fn floats_are_float32_on_the_cpu_and_as_stored_on_a_gpu() {
        let gpu = WeightForm { on_gpu: true, ..CPU };
        for (dtype, on_cpu) in [("bfloat16", 200), ("float16", 200), ("float32", 100)] {
            let model = json!({ "torch_dtype": dtype });
            assert_eq!(estimate(model.clone(), CPU).weight_bytes, on_cpu * MIB, "{dtype}");
            assert_eq!(estimate(model, gpu).weight_bytes, 100 * MIB, "{dtype}");
        }
        let nested = json!({ "text_config": { "dtype": "float32" } });
        assert_eq!(estimate(nested, CPU).weight_bytes, 100 * MIB);
        assert_eq!(estimate(json!("no object"), CPU).form, "as float32");
    }

    #[test]
    fn quantized_weights_stay_or_are_expanded() {
        let model = json!({ "quantization": { "bits": 4, "group_size": 64 } });
        assert_eq!(estimate(model.clone(), CPU).weight_bytes, 100 * MIB);
        let expanded = estimate(model, WeightForm { keep_quantized: false, ..CPU });
        // 4.5 bits become 32.
        assert_eq!(expanded.weight_bytes / MIB, 711);
        let q8 = WeightForm { quantize: DrafterQuantize::Q8, ..CPU };
        assert_eq!(estimate(json!({}), q8).weight_bytes, 100 * MIB / 2 * 9 / 8);
    }

    #[test]
    fn the_kv_is_that_of_a_conversation_within_the_context() {
        let model = json!({
            "num_hidden_layers": 2, "num_key_value_heads": 3, "num_attention_heads": 6,
            "hidden_size": 60, "max_position_embeddings": 8_192,
        });
        // Keys and values of 2 layers, 3 heads of 10 numbers of 4 bytes.
        let row = 2 * 2 * 3 * 10 * 4;
        assert_eq!(estimate(model.clone(), CPU).kv_bytes, row * 4_096);
        let short = json!({ "text_config": model, "max_position_embeddings": 256 });
        assert_eq!(estimate(short.clone(), CPU).kv_bytes, row * 256);
        let mut settings = Config::default();
        settings.limits.context_tokens = Auto::Is(16);
        assert_eq!(MemoryEstimate::of(&short, 0, CPU, &settings).kv_bytes, row * 16);
        assert_eq!(estimate(json!({ "num_hidden_layers": u64::MAX }), CPU).kv_bytes, 0);
    }
}
