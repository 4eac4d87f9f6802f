//! A model that sees, for the gateway: the demo's tokenizer with the tokens of images, a template
//! that shows them, and how they are made. Nobody serves it; the supervisor is the test.

use std::path::Path;

use paceline_proto::internal::v1::{ModelInfo, ServiceState};
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::{ChatRequest, ContentPart, Image, ImageUrl, Message};
use serde_json::{Value, json};

/// The id that stands for an image's rows.
pub const PAD: u32 = 4097;

/// As Qwen's: images of the user and of the assistant are shown, those of the system are not.
const TEMPLATE: &str = "{%- for message in messages %}<|im_start|>{{ message.role }}\n\
    {%- if message.content is string %}{{ message.content }}\
    {%- else %}{%- for part in message.content %}\
    {%- if part.type == 'image' and message.role != 'system' %}<|vision_start|><|image_pad|><|vision_end|>\
    {%- elif part.type == 'text' %}{{ part.text }}{%- endif %}{%- endfor %}{%- endif %}<|im_end|>\n\
    {%- endfor %}<|im_start|>assistant\n";

/// Writes its directory.
pub fn model(dir: &Path) {
    std::fs::create_dir_all(dir).expect("writable");
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    let read = |name: &str| -> Value {
        serde_json::from_slice(&std::fs::read(demo.join(name)).expect("in the repository"))
            .expect("JSON")
    };
    let mut tokenizer = read("tokenizer.json");
    let added = tokenizer["added_tokens"].as_array_mut().expect("a list");
    for (id, content) in
        [(4096, "<|vision_start|>"), (PAD, "<|image_pad|>"), (4098, "<|vision_end|>")]
    {
        added.push(json!({"id": id, "content": content, "special": true, "single_word": false, "lstrip": false, "rstrip": false, "normalized": false}));
    }
    let config = json!({"model_type": "qwen3_vl", "image_token_id": PAD, "eos_token_id": 2,
        "vision_config": {"patch_size": 16, "spatial_merge_size": 2}});
    let images = json!({"size": {"shortest_edge": 1024, "longest_edge": 1_048_576}, "image_mean": [0.5, 0.5, 0.5],
        "image_std": [0.5, 0.5, 0.5], "patch_size": 16, "merge_size": 2});
    let write = |name: &str, value: &Value| {
        std::fs::write(dir.join(name), value.to_string()).expect("writable")
    };
    write("tokenizer.json", &tokenizer);
    write("config.json", &config);
    write("preprocessor_config.json", &images);
    write("tokenizer_config.json", &json!({"eos_token": "<|im_end|>"}));
    std::fs::write(dir.join("chat_template.jinja"), TEMPLATE).expect("writable");
    // A tower is looked for by the names of tensors.
    let header = json!({"model.visual.pos_embed.weight": {"dtype": "U8", "shape": [0], "data_offsets": [0, 0]}});
    let header = header.to_string();
    let length = (header.len() as u64).to_le_bytes();
    std::fs::write(dir.join("model.safetensors"), [&length[..], header.as_bytes()].concat())
        .expect("writable");
}

/// It, served.
pub fn ready() -> ServiceState {
    let model = ModelInfo {
        name: "seeing".into(),
        architecture: "qwen3_vl".into(),
        vocab_size: 4099,
        vision: true,
        context_length: 4096,
        ..Default::default()
    };
    ServiceState { can_serve: true, model: Some(model), ..Default::default() }
}

pub fn text(words: &str) -> ContentPart {
    ContentPart { part: Some(Part::Text(words.into())) }
}

pub fn image(file: Vec<u8>) -> ContentPart {
    ContentPart { part: Some(Part::Image(Image { data: file.into() })) }
}

pub fn url(url: &str) -> ContentPart {
    ContentPart { part: Some(Part::ImageUrl(ImageUrl { url: url.into() })) }
}

pub fn says(role: &str, content: Vec<ContentPart>) -> Message {
    Message { role: role.into(), content, ..Default::default() }
}

pub fn chat(messages: Vec<Message>) -> ChatRequest {
    ChatRequest { messages, ..Default::default() }
}

/// A file of the goldens.
pub fn file(name: &str) -> Vec<u8> {
    std::fs::read(
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../text/tests/golden/images").join(name),
    )
    .expect("in the repository")
}
