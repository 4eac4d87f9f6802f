//! Memory of a model before it is fetched, by what the hub says of it.

use paceline_checkpoint::plan::{
    CheckpointPlan, Packing, PlanOptions, StoragePlan, WeightForms, stored_float_bytes,
};
use paceline_checkpoint::{CheckpointError, ConfigJson};
use paceline_process::config::{Config, DrafterQuantize};
use paceline_proto::report::DeviceReport;
use paceline_vocabulary::Products;

use super::plan::PullPlan;
use crate::device::plan_of;

/// Tokens whose KV is a part of the need, unless the context is shorter: a conversation.
const KV_TOKENS: u32 = 4_096;
/// Bytes of a float in files of which nothing is known.
const USUAL_FLOAT_BYTES: u64 = 2;

/// Memory that a model takes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ModelMemory {
    /// Bytes of the weights.
    pub weight_bytes: u64,
    /// Bytes of the keys and values of one conversation; 0 if they are not known, and for a drafter,
    /// whose worker counts them.
    pub kv_bytes: u64,
    /// Form of most weights, in words.
    pub form: String,
}

impl ModelMemory {
    /// Of a target that is to be fetched.
    ///
    /// # Errors
    /// It is of a family that is not served, or its files are broken.
    pub fn of_target(
        pull: &PullPlan,
        config: &Config,
        device: &DeviceReport,
    ) -> Result<Self, CheckpointError> {
        let options = config.plan_options(device);
        Ok(match pull.of_target(&options)? {
            Some(plan) => Self::of_plan(&plan, config),
            None => Self::of_storage(&of_bytes(pull, &options, None, None)?),
        })
    }

    /// Of a target on this machine; `None` if it cannot be read.
    pub async fn of_local(config: &Config, device: &DeviceReport) -> Option<Self> {
        let plan = plan_of(config.model_dir().ok()?, config.plan_options(device)).await;
        Some(Self::of_plan(&plan.ok()?, config))
    }

    /// Of a drafter that is to be fetched.
    ///
    /// # Errors
    /// Its files are broken.
    pub fn of_drafter(
        pull: &PullPlan,
        config: &Config,
        device: &DeviceReport,
    ) -> Result<Self, CheckpointError> {
        let options = PlanOptions { keep_quantized: true, ..config.plan_options(device) };
        let bits = match config.drafter.quantize {
            DrafterQuantize::None => None,
            DrafterQuantize::Q8 => Some(8),
            DrafterQuantize::Q4 => Some(4),
        };
        let packing = bits.map(|bits| Packing { bits, floats: &[] });
        let storage = match (pull.config_json()?, pull.tensors()?) {
            (Some(json), Some(tensors)) => {
                let forms = WeightForms::of(&json, options.device, true, Products::Float)?;
                StoragePlan::of_packed(&tensors, &forms, packing)?
            }
            (json, _) => of_bytes(pull, &options, json.as_ref(), packing)?,
        };
        Ok(Self::of_storage(&storage))
    }

    fn of_plan(plan: &CheckpointPlan, config: &Config) -> Self {
        let most = config.limits.context_tokens.or(KV_TOKENS).min(KV_TOKENS);
        let classes = plan.kv_sizes().class_bytes();
        let class = classes.iter().find(|(positions, _)| *positions as u32 >= most);
        let kv_bytes = class.or(classes.last()).map_or(0, |(_, bytes)| *bytes);
        Self { kv_bytes, ..Self::of_storage(&plan.storage) }
    }

    fn of_storage(storage: &StoragePlan) -> Self {
        let form = storage.formats.first().map_or_else(String::new, |used| used.format.clone());
        Self { weight_bytes: storage.memory_bytes(), kv_bytes: 0, form }
    }

    /// Bytes of all.
    pub fn total(&self) -> u64 {
        self.weight_bytes.saturating_add(self.kv_bytes)
    }
}

/// Storage of weights of which their bytes alone are known, and perhaps a config.json.
fn of_bytes(
    pull: &PullPlan,
    options: &PlanOptions,
    json: Option<&ConfigJson>,
    packing: Option<Packing>,
) -> Result<StoragePlan, CheckpointError> {
    let (forms, float_bytes) = match json {
        Some(json) => {
            let forms = WeightForms::of(json, options.device, true, Products::Float)?;
            (forms, stored_float_bytes(json)?)
        }
        None => (WeightForms::of_floats(options.device), USUAL_FLOAT_BYTES),
    };
    Ok(StoragePlan::of_bytes(pull.weight_bytes, float_bytes, &forms, packing))
}

#[cfg(test)]
mod tests {
    use paceline_process::Loaded;
    use serde_json::{Value, json};

    use super::super::plan::RemoteHeader;
    use super::*;

    const MIB: u64 = 1 << 20;

    fn config(text: &str) -> Config {
        Loaded::from_text(text, &[]).expect("accepted").config
    }

    fn pull(json: Value, headers: Vec<RemoteHeader>) -> PullPlan {
        PullPlan { config: json, headers, weight_bytes: 100 * MIB, ..PullPlan::default() }
    }

    #[test]
    fn floats_are_float32_on_the_cpu_and_as_stored_on_a_gpu() {
        let (cpu, gpu) =
            (DeviceReport::default(), DeviceReport { on_gpu: true, ..DeviceReport::default() });
        let memory = |device: &DeviceReport| {
            ModelMemory::of_drafter(&pull(Value::Null, vec![]), &config(""), device)
        };
        assert_eq!(memory(&cpu).expect("sizes").weight_bytes, 200 * MIB);
        assert_eq!(memory(&gpu).expect("sizes").weight_bytes, 100 * MIB);
        let q8 = config("drafter.quantize = \"q8\"");
        let q8 = ModelMemory::of_drafter(&pull(json!({}), vec![]), &q8, &cpu).expect("sizes");
        assert_eq!(q8.weight_bytes, 100 * MIB / 2 * 9 / 8);
    }

    #[test]
    fn keys_and_values_count_in_the_layers_that_have_them() {
        // Of eight layers of Qwen3.5 two attend: keys and values of two heads of 16 elements.
        let json = json!({
            "model_type": "qwen3_5", "hidden_size": 64, "num_hidden_layers": 8, "vocab_size": 100,
            "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16,
            "max_position_embeddings": 4_096, "linear_num_key_heads": 1,
            "linear_num_value_heads": 1, "linear_key_head_dim": 2, "linear_value_head_dim": 2,
        });
        let memory = ModelMemory::of_target(
            &pull(json, vec![]),
            &config("limits.context_tokens = 256"),
            &DeviceReport::default(),
        );
        let memory = memory.expect("served");
        let states = memory.kv_bytes - 2 * 256 * (2 * 2 * 16 * 4);
        assert!(states > 0 && states < 10_000, "{memory:?}");
    }

    #[test]
    fn a_family_that_is_not_served_is_refused_before_the_fetch() {
        let json = json!({ "model_type": "mllama" });
        let device = DeviceReport::default();
        let error = ModelMemory::of_target(&pull(json, vec![]), &config(""), &device);
        assert!(error.expect_err("refused").to_string().contains("cross-attention"));
    }

    #[test]
    fn headers_say_what_each_tensor_takes() {
        let header = r#"{"a.weight":{"dtype":"BF16","shape":[4,64],"data_offsets":[0,512]}}"#;
        let file = RemoteHeader {
            name: "model.safetensors".into(),
            bytes: 8 + header.len() as u64 + 512,
            header: header.into(),
        };
        let memory = |quantize: &str| {
            let config = config(&format!("drafter.quantize = {quantize:?}"));
            let pull = pull(json!({}), vec![file.clone()]);
            let device = DeviceReport { instructions: Some("AVX2".into()), ..Default::default() };
            ModelMemory::of_drafter(&pull, &config, &device).expect("a header").weight_bytes
        };
        assert_eq!(memory("none"), 4 * 256);
        // A byte an element, and a scale and a bias of four bytes for each group of 64.
        assert_eq!(memory("q8"), 256 + 2 * 16);
    }
}
