//! `paceline inspect` on every checkpoint of the repository, and a model that is too large for any
//! machine.

#[path = "harness/built.rs"]
mod built;

use std::fs::File;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use paceline_client::failure::REFUSED;
use serde_json::Value;

use built::built;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("..")
}

fn golden(name: &str) -> PathBuf {
    repository().join("models/tests/golden").join(name)
}

fn asked() -> Command {
    let mut command = Command::new(built("paceline"));
    command.args(["inspect", "--json"]);
    command.env("PACELINE_CONFIG", "").env("PACELINE_TARGET__DEVICE", "cpu");
    command
}

fn output(dir: &Path, drafter: Option<&Path>) -> Output {
    let mut command = asked();
    command.arg(dir);
    if let Some(drafter) = drafter {
        command.arg("--drafter").arg(drafter);
    }
    command.output().expect("it starts")
}

fn inspect(dir: &Path, drafter: Option<&Path>) -> Value {
    let output = output(dir, drafter);
    assert!(output.status.success(), "{}: {output:?}", dir.display());
    serde_json::from_slice(&output.stdout).expect("one JSON object")
}

fn json(path: &Path) -> Value {
    serde_json::from_slice(&std::fs::read(path).expect("readable")).expect("JSON")
}

/// All model directories of the repository whose weights are in it, but for drafters.
fn targets() -> Vec<PathBuf> {
    let mut dirs = vec![repository().join("demo/target"), repository().join("demo/vision/target")];
    for entry in std::fs::read_dir(golden("")).expect("there").map(|entry| entry.expect("read")) {
        dirs.push(entry.path());
    }
    dirs.retain(|dir| {
        let config = dir.join("config.json");
        let drafts = || {
            let config = json(&config);
            let architecture = config["architectures"][0].to_string();
            ["DFlash", "DSpark", "Speculator"].iter().any(|kind| architecture.contains(kind))
                || ["qwen3_5_mtp", "gemma4_assistant"]
                    .iter()
                    .any(|kind| config["model_type"] == *kind)
        };
        config.is_file() && !drafts()
    });
    dirs.sort();
    dirs
}

/// The tensors of a model by name, as its headers have them.
fn tensors(dir: &Path) -> serde_json::Map<String, Value> {
    let files = std::fs::read_dir(dir).expect("there").map(|entry| entry.expect("read").path());
    let files = files.filter(|path| path.extension().is_some_and(|kind| kind == "safetensors"));
    files
        .flat_map(|path| {
            let bytes = std::fs::read(path).expect("readable");
            let length = u64::from_le_bytes(bytes[..8].try_into().expect("a length")) as usize;
            let header: Value = serde_json::from_slice(&bytes[8..8 + length]).expect("JSON");
            header.as_object().expect("tensors").clone()
        })
        .filter(|(name, _)| name != "__metadata__")
        .collect()
}

/// Bytes of all tensors that are served. Heads that predict further tokens are drafters, and
/// PaddleOCR-VL's files have parts of a tower that no model reads.
fn tensor_bytes(dir: &Path) -> u64 {
    let place = |tensor: &Value, at: usize| tensor["data_offsets"][at].as_u64().expect("a place");
    let all = tensors(dir);
    let heads = all.keys().filter_map(|name| name.strip_suffix("eh_proj.weight"));
    let heads: Vec<&str> = heads.chain(["mtp."]).collect();
    let unread = ["visual.vision_model.head.", "packing_position_embedding."];
    let is_served = |name: &str| {
        let is_head = heads.iter().any(|head| name.starts_with(head));
        !is_head && unread.iter().all(|part| !name.contains(part))
    };
    let served = all.iter().filter(|(name, _)| is_served(name));
    served.map(|(_, tensor)| place(tensor, 1) - place(tensor, 0)).sum()
}

fn serves_vision(dir: &Path) -> bool {
    let towers = [
        "visual.",
        "vit.",
        "model.visual.",
        "vision_tower.",
        "model.vision_tower.",
        "model.vision_embedder.",
    ];
    tensors(dir).keys().any(|name| towers.iter().any(|first| name.starts_with(first)))
}

/// Layers that have keys and values.
fn kv_layers(text: &Value, layers: u64) -> u64 {
    if let Some(kinds) = text["layer_types"].as_array() {
        return kinds.iter().filter(|kind| *kind != "linear_attention").count() as u64;
    }
    text["full_attention_interval"].as_u64().map_or(layers, |interval| layers / interval)
}

#[test]
fn every_checkpoint_is_described_as_its_config_says() {
    let dirs = targets();
    assert!(dirs.len() > 10, "{dirs:?}");
    for dir in dirs {
        let (found, config) = (inspect(&dir, None), json(&dir.join("config.json")));
        let name = dir.display();
        let text = config.get("text_config").unwrap_or(&config);
        let key = |key: &str| text.get(key).or_else(|| config.get(key)).cloned();
        let model = &found["model"];
        for (shown, expected) in [
            ("family", config.get("model_type").cloned()),
            ("layers", key("num_hidden_layers")),
            ("hidden_size", key("hidden_size")),
            ("vocabulary", key("vocab_size")),
            ("context", key("max_position_embeddings")),
            ("vision", Some(serves_vision(&dir).into())),
            ("disk_bytes", Some(tensor_bytes(&dir).into())),
        ] {
            assert_eq!(Some(&model[shown]), expected.as_ref(), "{name}: {shown}");
        }
        let number = |key: &str, or: u64| {
            self::key(text, &config, key).and_then(|value| value.as_u64()).unwrap_or(or)
        };
        let heads = number("num_attention_heads", 0);
        let head_dim = number("head_dim", number("hidden_size", 0) / heads);
        let layers = kv_layers(text, number("num_hidden_layers", 0));
        let position = 2 * 4 * layers * number("num_key_value_heads", heads) * head_dim;
        let position = gemma_position(text).unwrap_or(position);
        assert_eq!(found["kv"]["position_bytes"], position, "{name}");
        check_sequences(&found, text, &name.to_string());
        check_formats(&found, &config, &name.to_string());
        assert_eq!(found["machine"]["fits"], true, "{name}");
        assert_eq!(found["machine"]["device"], "cpu");
        // All checkpoints of the repository are small.
        assert_eq!(found["machine"]["products"], "float", "{name}");
        assert_eq!(found["machine"]["instructions"].is_string(), cfg!(target_os = "linux"));
    }
}

#[cfg(target_os = "linux")]
#[test]
fn products_of_integers_are_refused_where_there_are_none() {
    let ask = |model: &str, settings: &[(&str, &str)], more: &[&str]| {
        let mut command = asked();
        command.envs(settings.iter().copied()).arg(golden(model)).args(more);
        command.env("PACELINE_TARGET__PRODUCTS", "integer").output().expect("it starts")
    };
    let served = ask("qwen3-tiny-q4", &[], &[]);
    assert!(served.status.success(), "{served:?}");
    let expanded = [("PACELINE_TARGET__KEEP_QUANTIZED", "false")];
    for (refused, found) in [
        (ask("qwen3-tiny", &[], &[]), "found float32;"),
        (ask("qwen3-tiny-q4", &expanded, &[]), ", expanded to float32;"),
        (ask("qwen3-tiny-q4", &[], &["--machine", "H100"]), "found a GPU;"),
    ] {
        let words = String::from_utf8_lossy(&refused.stderr).into_owned();
        assert_eq!(refused.status.code(), Some(i32::from(REFUSED)), "{words}");
        for part in ["(target.products = \"integer\")", found, "\"auto\" or \"float\""] {
            assert!(words.contains(part), "{part}: {words}");
        }
    }
}

/// Bytes of a position in the layers of Gemma 4 that have keys and values of their own: of one
/// kind.
fn gemma_kind(text: &Value, kind: &str) -> Option<u64> {
    let is_full = kind == "full_attention";
    let head = text[if is_full { "global_head_dim" } else { "head_dim" }].as_u64()?;
    let k_eq_v = is_full && text["attention_k_eq_v"] == true;
    let heads = if k_eq_v { "num_global_key_value_heads" } else { "num_key_value_heads" };
    let kinds = text["layer_types"].as_array()?;
    let own = kinds.len() - text["num_kv_shared_layers"].as_u64().unwrap_or(0) as usize;
    let count = kinds[..own].iter().filter(|of| *of == kind).count() as u64;
    Some(2 * 4 * count * text[heads].as_u64()? * head)
}

/// The same of both kinds: the contexts of these checkpoints are no longer than what a slot keeps.
fn gemma_position(text: &Value) -> Option<u64> {
    text.get("global_head_dim")?;
    Some(gemma_kind(text, "full_attention")? + gemma_kind(text, "sliding_attention")?)
}

#[test]
fn windows_are_counted_apart_from_positions() {
    let dir = tempfile::tempdir().expect("a directory");
    let from = golden("gemma4-tiny");
    let weights = "model.safetensors";
    std::fs::copy(from.join(weights), dir.path().join(weights)).expect("copied");
    let mut config = json(&from.join("config.json"));
    config["max_position_embeddings"] = 32_768.into();
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    let kv = &inspect(dir.path(), None)["kv"];
    let number = |key: &str| kv[key].as_u64().expect("a number");
    let position = gemma_kind(&config, "full_attention").expect("sizes");
    // The window of 24, and the rows of a pass, in whole pages.
    let windows = 576 * gemma_kind(&config, "sliding_attention").expect("sizes");
    assert_eq!((number("position_bytes"), number("window_bytes")), (position, windows));
    assert_eq!(number("longest_sequence_bytes"), 32_768 * position + windows);
}

/// Bytes of a sequence's states, and how many sequences of 256 positions fit.
fn check_sequences(found: &Value, text: &Value, name: &str) {
    let size = |key: &str| text[key].as_u64().unwrap_or(0);
    let heads = size("linear_num_value_heads");
    let keys = size("linear_num_key_heads") * size("linear_key_head_dim");
    let values = heads * size("linear_value_head_dim");
    let tail = size("linear_conv_kernel_dim").saturating_sub(1) * (2 * keys + values);
    let layers = text["num_hidden_layers"].as_u64().expect("a number");
    let recurrent = layers - kv_layers(text, layers);
    let states = 4 * recurrent * (size("linear_key_head_dim") * values + tail);
    let kv = &found["kv"];
    assert_eq!(kv["state_bytes"], states, "{name}");
    let number = |value: &Value| value.as_u64().expect("a number");
    let shortest = number(&kv["shortest_sequence_bytes"]);
    assert_eq!(kv["window_bytes"], 0, "{name}");
    assert_eq!(shortest, 256 * number(&kv["position_bytes"]) + states, "{name}");
    let short = &kv["budget_sequences"][0];
    assert_eq!(short["positions"], 256, "{name}");
    assert_eq!(short["sequences"], number(&kv["budget_bytes"]) / shortest, "{name}");
}

fn key(text: &Value, config: &Value, key: &str) -> Option<Value> {
    text.get(key).or_else(|| config.get(key)).filter(|value| !value.is_null()).cloned()
}

/// Each format of config.json is found, and a checkpoint without formats has floats alone, of which
/// each takes four bytes on the CPU.
fn check_formats(found: &Value, config: &Value, name: &str) {
    let formats: Vec<&Value> = found["formats"].as_array().expect("a list").iter().collect();
    let words: Vec<&str> = formats.iter().filter_map(|format| format["format"].as_str()).collect();
    let Some(settings) = config.get("quantization").and_then(Value::as_object) else {
        assert!(words.iter().all(|word| word.contains("float")), "{name}: {words:?}");
        let (bytes, parameters) = (&found["model"]["memory_bytes"], &found["model"]["parameters"]);
        assert_eq!(bytes.as_u64(), parameters.as_u64().map(|count| 4 * count), "{name}");
        return;
    };
    let default = format!("{} bits, groups of {}", settings["bits"], settings["group_size"]);
    assert!(words.iter().any(|word| word.contains(&default)), "{name}: {default} in {words:?}");
    for (path, format) in settings.iter().filter(|(_, format)| format.is_object()) {
        let (Some(bits), Some(group)) = (format.get("bits"), format.get("group_size")) else {
            continue;
        };
        let other = format!("{bits} bits, groups of {group}");
        assert!(words.iter().any(|word| word.contains(&other)), "{name}: {path}: {other}");
    }
}

#[test]
fn a_drafter_is_checked_as_at_its_attachment() {
    let demo = repository().join("demo");
    let fits = inspect(&demo.join("target"), Some(&demo.join("drafter")));
    assert_eq!(
        (&fits["drafter"]["fits"], &fits["drafter"]["kind"]),
        (&true.into(), &"dflash".into())
    );
    // A served model with the same ids is a drafter, too.
    let own = inspect(&demo.join("target"), Some(&demo.join("target")));
    assert_eq!((&own["drafter"]["fits"], &own["drafter"]["kind"]), (&true.into(), &"model".into()));
    let nothing = tempfile::tempdir().expect("a temporary directory");
    for (drafter, reason) in [
        (golden("dflash-full"), "hidden size: expected"),
        (golden("eagle3-qwen3"), "hidden size: expected"),
        (golden("dspark-deepseek"), "expected"),
        (golden("model-llama"), "vocabulary: expected"),
        (nothing.path().to_owned(), "config.json"),
    ] {
        let found = inspect(&demo.join("target"), Some(&drafter));
        assert_eq!(found["drafter"]["fits"], false);
        let found = found["drafter"]["reason"].as_str().expect("a reason").to_owned();
        assert!(found.contains(reason), "{found}");
    }
}

#[test]
fn a_machine_that_is_named_has_a_gpu_and_its_own_memory() {
    let on = |dir: &Path, name: &str| {
        let mut command = asked();
        command.arg(dir).args(["--machine", name]);
        command.output().expect("it starts")
    };
    let of = |dir: &Path, name: &str| -> Value {
        let output = on(dir, name);
        assert!(output.status.success(), "{output:?}");
        serde_json::from_slice(&output.stdout).expect("one JSON object")
    };
    let demo = repository().join("demo/target");
    let (mac, here) = (of(&demo, "M4 Pro 24 GB"), inspect(&demo, None));
    assert_eq!((&mac["machine"]["device"], &mac["machine"]["fits"]), (&"gpu".into(), &true.into()));
    assert_eq!(mac["machine"]["usable_bytes"], 16u64 << 30);
    assert_eq!(here["machine"]["named"], Value::Null);
    let number = |value: &Value| value.as_u64().expect("a number");
    // A GPU keeps the types of the files.
    assert_eq!(mac["model"]["memory_bytes"], mac["model"]["disk_bytes"]);
    assert!(number(&here["model"]["memory_bytes"]) >= number(&mac["model"]["memory_bytes"]));
    // Half of what the weights leave is for the KV.
    let left = (16u64 << 30) - number(&mac["model"]["memory_bytes"]);
    assert_eq!(number(&mac["kv"]["budget_bytes"]), left / 2);
    assert_eq!(mac["kv"]["budget_context"], mac["model"]["context"], "so small a model fits whole");
    let named = &mac["machine"]["named"];
    let speed = 2.73e11 / named["token_bytes"].as_f64().expect("a number");
    assert!((named["most_tokens_s"].as_f64().expect("a number") - speed).abs() < 1e-6 * speed);
    assert!(number(&named["token_bytes"]) <= number(&mac["model"]["memory_bytes"]));
    // Experts that a token does not go through are not read.
    let experts = of(&golden("qwen3-moe-tiny"), "H100");
    let read = number(&experts["machine"]["named"]["token_bytes"]);
    assert!(read < number(&experts["model"]["memory_bytes"]) * 9 / 10, "{experts}");

    let unknown = on(&demo, "Cray 1");
    let words = String::from_utf8_lossy(&unknown.stderr).into_owned();
    assert_eq!(unknown.status.code(), Some(i32::from(REFUSED)), "{words}");
    assert!(words.contains("M4 Pro (24, 48 or 64 GB)") && words.contains("Cray 1"), "{words}");
}

#[test]
fn a_drafters_memory_counts_its_quantization() {
    let demo = repository().join("demo");
    let memory = |quantize: &str| {
        let mut command = asked();
        command.env("PACELINE_DRAFTER__QUANTIZE", quantize);
        command.arg(demo.join("target")).arg("--drafter").arg(demo.join("drafter"));
        let output = command.output().expect("it starts");
        let found: Value = serde_json::from_slice(&output.stdout).expect("one JSON object");
        found["drafter"]["memory_bytes"].as_u64().expect("a number") as f64
    };
    let floats = memory("none");
    // Its matrices have nearly all numbers: 9 and 5 bits of 32, and 8 bits at least for the first one.
    for (quantize, least, most) in [("q8", 0.28, 0.30), ("q4", 0.16, 0.22)] {
        let share = memory(quantize) / floats;
        assert!(share > least && share < most, "{quantize}: {share}");
    }
}

#[test]
fn what_is_no_model_is_refused_with_the_reason() {
    let empty = tempfile::tempdir().expect("a temporary directory");
    let refused = output(empty.path(), None);
    let words = String::from_utf8_lossy(&refused.stderr).into_owned();
    assert_eq!(refused.status.code(), Some(i32::from(REFUSED)), "{words}");
    assert!(words.contains("config.json") && refused.stdout.is_empty(), "{words}");
}

#[test]
fn a_model_that_is_too_large_is_refused_before_a_weight_is_read() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let model = dir.path().join("model");
    std::fs::create_dir(&model).expect("made");
    // More and wider layers than any machine has room for, in a file without blocks on the disk.
    let mut config = json(&golden("qwen3-tiny/config.json"));
    let (wide, layers) = (1u64 << 24, 512);
    config["intermediate_size"] = wide.into();
    config["num_hidden_layers"] = layers.into();
    std::fs::write(model.join("config.json"), config.to_string()).expect("written");
    let mut end = 0u64;
    let mut header = serde_json::Map::new();
    for (name, tensor) in tensors(&golden("qwen3-tiny")) {
        match name.strip_prefix("model.layers.0.") {
            None if name.starts_with("model.layers.") || name == "__metadata__" => {}
            None => drop(header.insert(name, tensor)),
            Some(rest) => (0..layers).for_each(|layer| {
                header.insert(format!("model.layers.{layer}.{rest}"), tensor.clone());
            }),
        }
    }
    for (name, tensor) in &mut header {
        let shape = tensor["shape"].as_array_mut().expect("a shape");
        if name.contains(".mlp.") {
            shape[usize::from(name.contains("down_proj"))] = wide.into();
        }
        let elements: u64 = shape.iter().filter_map(Value::as_u64).product();
        tensor["dtype"] = "F32".into();
        tensor["data_offsets"] = serde_json::json!([end, end + 4 * elements]);
        end += 4 * elements;
    }
    let header = Value::from(header).to_string();
    let mut file = File::create(model.join("model.safetensors")).expect("made");
    file.write_all(&(header.len() as u64).to_le_bytes()).expect("written");
    file.write_all(header.as_bytes()).expect("written");
    file.set_len(8 + header.len() as u64 + end).expect("a file with holes");
    drop(file);
    let asked = output(&model, None);
    assert_eq!(asked.status.code(), Some(i32::from(REFUSED)), "{asked:?}");
    let found: Value = serde_json::from_slice(&asked.stdout).expect("one JSON object");
    assert_eq!(found["machine"]["fits"], false);
    let reason = found["machine"]["reason"].as_str().expect("a reason").to_owned();
    assert!(reason.contains("its weights take ") && reason.contains(" TiB"), "{reason}");

    let run = dir.path().join("run");
    let mut command = Command::new(built("paceline-target"));
    command.env("PACELINE_CONFIG", "").env("PACELINE_TARGET__DEVICE", "cpu");
    command.env("PACELINE_TARGET__MODEL", &model).env("PACELINE_SUPERVISOR__RUNTIME_DIR", &run);
    let refused = command.args(["--epoch", "1", "--term", "1"]).output().expect("it starts");
    let log =
        [refused.stdout, refused.stderr].map(|text| String::from_utf8_lossy(&text).into_owned());
    assert_eq!(refused.status.code(), Some(65), "{log:?}");
    let figure = reason.split(" and its").next().expect("the first figure");
    assert!(log.concat().contains(figure), "{log:?}");
}
