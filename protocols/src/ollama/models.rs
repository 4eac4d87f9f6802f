//! The served model as Ollama's clients see it: in lists, and with its facts.

use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};

use super::encode::time;
use super::{VERSION, tagged};
use crate::inference::model::ModelDescription;

/// When a model leaves the memory that is not unloaded: in Ollama the same far year.
const NEVER: &str = "2318-01-01T00:00:00Z";

/// The answer of `/api/version`.
pub fn version() -> Value {
    json!({ "version": VERSION })
}

/// The answer of `/api/tags`: the served model, since this second.
pub fn tags(model: &ModelDescription, since: i64) -> Value {
    let mut entry = entry(model);
    entry["modified_at"] = time(since).into();
    entry["capabilities"] = capabilities(model).into();
    json!({ "models": [entry] })
}

/// The answer of `/api/ps`.
pub fn running(model: &ModelDescription) -> Value {
    let mut entry = entry(model);
    entry["expires_at"] = NEVER.into();
    entry["size_vram"] = model.weight_bytes.into();
    entry["context_length"] = model.context_length.into();
    json!({ "models": [entry] })
}

/// The answer of `/api/show`: the served model, since this second.
pub fn show(model: &ModelDescription, since: i64) -> Value {
    let ModelDescription { name, architecture, context_length, default_sampling, .. } = model;
    // Lines of a name and a value. Clients split them at spaces.
    let parameters = format!(
        "num_ctx {context_length}\ntemperature {}\ntop_k {}\ntop_p {}",
        default_sampling.temperature, default_sampling.top_k, default_sampling.top_p
    );
    json!({
        "modelfile": format!("FROM {name}"),
        "parameters": parameters,
        "template": template(model),
        "details": details(model),
        "model_info": {
            "general.architecture": architecture,
            "general.basename": name,
            // Clients take any key with this ending.
            format!("{architecture}.context_length"): context_length,
        },
        "capabilities": capabilities(model),
        "modified_at": time(since),
    })
}

/// Fields of a model in every list.
fn entry(model: &ModelDescription) -> Value {
    let name = tagged(&model.name);
    // Of the facts by which clients tell models apart: Ollama's is the digest of a list of files.
    let facts =
        format!("{name} {} {} {}", model.architecture, model.vocab_size, model.weight_bytes);
    let digest = Sha256::digest(facts);
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    json!({
        "name": name,
        "model": name,
        "size": model.weight_bytes,
        "digest": digest,
        "details": details(model),
    })
}

fn details(model: &ModelDescription) -> Value {
    json!({
        "parent_model": "",
        "format": "safetensors",
        "family": model.architecture,
        "families": [model.architecture],
        // The service does not count them; clients show the texts.
        "parameter_size": "",
        "quantization_level": "",
        "context_length": model.context_length,
    })
}

fn capabilities(model: &ModelDescription) -> Vec<&'static str> {
    let ModelDescription { tools, images, thinks, infills, .. } = model;
    let all = [
        ("completion", true),
        ("tools", *tools),
        ("vision", images.is_some()),
        ("thinking", *thinks),
        ("insert", *infills),
    ];
    all.into_iter().filter(|(_, has)| *has).map(|(name, _)| name).collect()
}

/// In the place of a template in Go's language. Two clients look for the names in it.
fn template(model: &ModelDescription) -> String {
    let tools = if model.tools { "{{ .Tools }}{{- /* tools */ -}}" } else { "" };
    let suffix = if model.infills { "{{ .Suffix }}" } else { "" };
    format!("{{{{ .System }}}}{tools}{{{{ .Prompt }}}}{suffix}")
}

#[cfg(test)]
mod tests {
    use paceline_vocabulary::sampling::SamplingRule;

    use super::*;

    fn model(able: bool) -> ModelDescription {
        ModelDescription {
            name: "org/m".into(),
            architecture: "qwen3".into(),
            vocab_size: 100,
            context_length: 4096,
            max_prompt_tokens: 4000,
            max_new_tokens: 200,
            weight_bytes: 1 << 30,
            chat: true,
            tools: able,
            thinks: able,
            infills: able,
            images: None,
            default_sampling: SamplingRule::GREEDY,
            stop_token_ids: vec![2],
        }
    }

    #[test]
    fn a_list_has_every_field_that_clients_need() {
        let list = tags(&model(true), 0);
        let entry = &list["models"][0];
        assert_eq!([&entry["name"], &entry["model"]], ["org/m:latest"; 2]);
        assert_eq!(
            (&entry["size"], &entry["modified_at"]),
            (&json!(1 << 30), &json!("1970-01-01T00:00:00Z"))
        );
        assert_eq!(entry["digest"].as_str().map(str::len), Some(64));
        for field in ["format", "family", "parameter_size", "quantization_level"] {
            assert!(entry["details"][field].is_string(), "{field}");
        }
        let running = running(&model(true));
        assert_eq!(running["models"][0]["digest"], entry["digest"]);
        assert_eq!(running["models"][0]["expires_at"], NEVER);
    }

    #[test]
    fn a_model_s_abilities_are_shown_where_each_client_looks() {
        let shown = show(&model(true), 0);
        assert_eq!(shown["capabilities"], json!(["completion", "tools", "thinking", "insert"]));
        assert_eq!(shown["model_info"]["qwen3.context_length"], 4096);
        let template = shown["template"].as_str().expect("a text");
        assert!(template.contains("tools") && template.contains(".Suffix"), "{template}");
        let shown = show(&model(false), 0);
        assert_eq!(shown["capabilities"], json!(["completion"]));
        let template = shown["template"].as_str().expect("a text");
        assert!(!template.contains("tools") && !template.contains(".Suffix"), "{template}");
    }
}
