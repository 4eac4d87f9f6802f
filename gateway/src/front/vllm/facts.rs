//! Facts of the model and of the service, which become labels of a worker in a router.

use std::path::Path;

use paceline_checkpoint::{CheckpointError, ConfigJson};
use paceline_proto::vllm::grpc::engine as vllm;
use paceline_protocols::inference::model::ModelDescription;
use paceline_vocabulary::report::ImageLimits;
use paceline_vocabulary::sampling::SamplingRule;
use serde_json::json;

/// Positions of a page of the prefix cache.
const PAGE_POSITIONS: i32 = 64;
/// Name of this service among engines.
const SERVER: &str = "paceline";
/// Schemes of the addresses of images: the service fetches nothing.
const SCHEMES: &str = "data";
/// Where images are read: in this process.
const PROCESSOR: &str = "inprocess";
/// A constraint begins after the thought that a prompt has opened.
const CONSTRAINT_START: &str = "after_reasoning";

/// Fields of config.json that a router asks for and this service does not use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ConfigFacts {
    architectures: Vec<String>,
    bos_token_id: Option<serde_json::Value>,
    pad_token_id: Option<serde_json::Value>,
}

impl ConfigFacts {
    /// Those of the model in this directory. A file that cannot be read has none: the service does
    /// not need them.
    pub(super) fn read(directory: &Path) -> Self {
        Self::of(directory).unwrap_or_default()
    }

    fn of(directory: &Path) -> Result<Self, CheckpointError> {
        let config = ConfigJson::top_level(directory)?;
        Ok(Self {
            architectures: config.optional("architectures")?.unwrap_or_default(),
            bos_token_id: config.optional("bos_token_id")?,
            pad_token_id: config.optional("pad_token_id")?,
        })
    }
}

/// The served model as a router registers it. Its name is the key by which requests find it.
pub(super) fn model(model: ModelDescription, config: ConfigFacts) -> vllm::GetModelInfoResponse {
    let id = |id: Option<serde_json::Value>| {
        let id = id.as_ref().and_then(serde_json::Value::as_i64);
        id.and_then(|id| i32::try_from(id).ok()).unwrap_or_default()
    };
    vllm::GetModelInfoResponse {
        model_path: model.name.clone(),
        is_generation: true,
        max_context_length: model.context_length,
        vocab_size: model.vocab_size,
        supports_vision: model.images.is_some(),
        served_model_name: model.name,
        tokenizer_path: String::new(),
        model_type: model.architecture,
        architectures: config.architectures,
        eos_token_ids: model.stop_token_ids.into_iter().map(signed).collect(),
        pad_token_id: id(config.pad_token_id),
        bos_token_id: id(config.bos_token_id),
        max_req_input_len: signed(model.max_prompt_tokens),
        default_sampling_params_json: sampling(&model.default_sampling),
    }
}

/// The model's own sampling, as far as it differs from none.
fn sampling(rule: &SamplingRule) -> String {
    let none = SamplingRule { temperature: 1.0, ..SamplingRule::GREEDY };
    let mut set = serde_json::Map::new();
    for (name, value, off) in [
        ("temperature", rule.temperature, none.temperature),
        ("top_p", rule.top_p, none.top_p),
        ("min_p", rule.min_p, none.min_p),
        ("repetition_penalty", rule.repetition_penalty, none.repetition_penalty),
        ("presence_penalty", rule.presence_penalty, none.presence_penalty),
        ("frequency_penalty", rule.frequency_penalty, none.frequency_penalty),
    ] {
        if value != off {
            set.insert(name.to_owned(), json!(value));
        }
    }
    if rule.top_k != none.top_k {
        set.insert("top_k".to_owned(), json!(rule.top_k));
    }
    serde_json::Value::Object(set).to_string()
}

/// Facts of the process for [`server`].
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerFacts {
    /// Requests inside the gateway.
    pub(super) requests: usize,
    /// Seconds since the gateway's start.
    pub(super) uptime_s: f64,
    /// Most requests that run at once; 0 if it is not known.
    pub(super) most_running: u32,
    /// Limits of images, if they are served.
    pub(super) images: Option<ImageLimits>,
}

/// The service as a router registers it: what it can do, and how much at once.
pub(super) fn server(facts: ServerFacts) -> vllm::GetServerInfoResponse {
    let ServerFacts { requests, uptime_s, most_running, images } = facts;
    let some = |text: &str| images.map(|_| text.to_owned()).unwrap_or_default();
    vllm::GetServerInfoResponse {
        active_requests: u32::try_from(requests).unwrap_or(u32::MAX),
        uptime_seconds: uptime_s,
        server_type: SERVER.to_owned(),
        data_parallel_size: 1,
        block_size: PAGE_POSITIONS,
        mm_processor: some(PROCESSOR),
        mm_media_ref_schemes: some(SCHEMES),
        mm_item_limits: images
            .map(|limits| format!("image={}", limits.max_images))
            .unwrap_or_default(),
        max_num_seqs: signed(most_running),
        engine_reasoning_parser: SERVER.to_owned(),
        constrained_decoding_start: CONSTRAINT_START.to_owned(),
        ..Default::default()
    }
}

/// A number of the protocol that has a sign although it has none.
pub(super) fn signed(number: u32) -> i32 {
    i32::try_from(number).unwrap_or(i32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_a_model_sets_is_its_sampling() {
        assert_eq!(sampling(&SamplingRule::GREEDY), "{\"temperature\":0.0}");
        let rule = SamplingRule { temperature: 1.0, top_k: 20, ..SamplingRule::GREEDY };
        assert_eq!(sampling(&rule), "{\"top_k\":20}");
    }

    #[test]
    fn ids_of_a_config_that_are_no_numbers_are_left_out() {
        let directory = tempfile::tempdir().expect("a directory");
        let config = r#"{"architectures": ["A"], "bos_token_id": 7, "pad_token_id": [1], "x": 1}"#;
        std::fs::write(directory.path().join("config.json"), config).expect("written");
        let description = ModelDescription {
            name: "m".into(),
            architecture: "a".into(),
            vocab_size: 9,
            context_length: 64,
            max_prompt_tokens: 60,
            max_new_tokens: 8,
            weight_bytes: 0,
            chat: true,
            tools: true,
            thinks: false,
            infills: false,
            images: None,
            default_sampling: SamplingRule::GREEDY,
            stop_token_ids: vec![2],
        };
        let info = model(description.clone(), ConfigFacts::read(directory.path()));
        assert_eq!(info.architectures, ["A"]);
        assert_eq!((info.bos_token_id, info.pad_token_id, info.max_req_input_len), (7, 0, 60));
        assert_eq!((info.served_model_name.as_str(), info.eos_token_ids), ("m", vec![2]));
        let unknown = model(description, ConfigFacts::read(Path::new("/nowhere")));
        assert_eq!((unknown.architectures.len(), unknown.bos_token_id), (0, 0));
    }

    #[test]
    fn a_service_without_images_names_no_way_to_send_them() {
        let facts = ServerFacts { requests: 2, uptime_s: 1.5, most_running: 32, images: None };
        let info = server(facts);
        assert_eq!((info.mm_processor.as_str(), info.mm_item_limits.as_str()), ("", ""));
        assert_eq!((info.active_requests, info.max_num_seqs), (2, 32));
        let images = Some(ImageLimits { max_images: 8, ..Default::default() });
        let info = server(ServerFacts { images, ..facts });
        assert_eq!(info.mm_processor, "inprocess");
        assert_eq!(
            (info.mm_media_ref_schemes.as_str(), info.mm_item_limits.as_str()),
            ("data", "image=8")
        );
    }
}
