//! Prompts of the demo model against the reference implementation's (demo/golden.json says how it
//! was made).

use serde::Deserialize;

use super::conversation::{Message, Role};
use super::*;

#[derive(Deserialize)]
struct Golden {
    stop_ids: Vec<u32>,
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    messages: Vec<GoldenMessage>,
    rendered: String,
    prompt: Vec<u32>,
    greedy: Vec<u32>,
    text: String,
}

#[derive(Deserialize)]
struct GoldenMessage {
    role: String,
    content: String,
}

fn golden() -> Golden {
    let path = crate::samples::dir().join("../golden.json");
    serde_json::from_slice(&std::fs::read(path).expect("it is in the repository"))
        .expect("as described")
}

fn conversation(messages: &[GoldenMessage]) -> Conversation {
    let message = |golden: &GoldenMessage| {
        Message::new(Role::from_word(&golden.role).expect("a role"), vec![golden.content.clone()])
    };
    Conversation { messages: messages.iter().map(message).collect(), ..Conversation::default() }
}

#[test]
fn prompts_equal_those_of_the_reference_implementation() {
    let language = Arc::new(crate::samples::language());
    let golden = golden();
    assert_eq!(language.stop_ids, golden.stop_ids);
    assert!(golden.cases.len() >= 20);
    for case in golden.cases {
        let template = language.template.as_ref().expect("the demo model has one");
        assert_eq!(
            template.render(&conversation(&case.messages)).expect("renders").text,
            case.rendered
        );
        let source = Source::Chat(conversation(&case.messages));
        assert_eq!(language.prompt_ids(source, 4_095).map(|prompt| prompt.ids), Ok(case.prompt));
        let mut text = crate::stream::Detokenizer::new(Arc::clone(&language));
        let streamed: String = case.greedy.iter().map(|id| text.push(*id)).collect();
        assert_eq!(streamed + &text.finish(), case.text);
    }
}

#[test]
fn a_broken_template_is_refused_and_a_missing_one_is_not() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    for name in ["config.json", "tokenizer.json"] {
        std::fs::copy(crate::samples::dir().join(name), dir.path().join(name)).expect("copied");
    }
    let write = |text: &str| {
        std::fs::write(dir.path().join("tokenizer_config.json"), text).expect("writable")
    };
    write(r#"{"eos_token": "<|im_end|>", "chat_template": "{% if %}"}"#);
    let error = Language::read(dir.path()).expect_err("no Jinja").to_string();
    assert!(error.contains("tokenizer_config.json: the chat template"), "{error}");
    write("{}");
    let language = Language::read(dir.path()).expect("a template is no must");
    assert!(language.template.is_none());
    assert_eq!(
        language.prompt_ids(Source::Chat(Conversation::default()), 10),
        Err(PromptError::NoTemplate)
    );
}

/// The demo model with a beginning-of-sequence token in its template, and perhaps one that its
/// tokenizer puts before every text.
fn with_beginning(tokenizer_adds: bool, add_bos_token: Option<bool>) -> Language {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, value: &serde_json::Value| {
        std::fs::write(dir.path().join(name), value.to_string()).expect("writable")
    };
    let (config, tokenizer) = ("config.json", "tokenizer.json");
    std::fs::copy(crate::samples::dir().join(config), dir.path().join(config)).expect("copied");
    let file = std::fs::read(crate::samples::dir().join(tokenizer)).expect("in the repository");
    let mut file: serde_json::Value = serde_json::from_slice(&file).expect("JSON");
    let (bos, sequence) = (serde_json::json!({"id": "<|im_start|>", "type_id": 0}), "Sequence");
    if tokenizer_adds {
        // As in Llama 3's file.
        file["post_processor"] = serde_json::json!({"type": "Sequence", "processors": [
            {"type": "ByteLevel", "add_prefix_space": true, "trim_offsets": false, "use_regex": true},
            {"type": "TemplateProcessing",
             "single": [{"SpecialToken": bos}, {sequence: {"id": "A", "type_id": 0}}],
             "pair": [{sequence: {"id": "A", "type_id": 0}}, {sequence: {"id": "B", "type_id": 1}}],
             "special_tokens": {"<|im_start|>": {"id": "<|im_start|>", "ids": [1], "tokens": ["<|im_start|>"]}}},
        ]});
    }
    write(tokenizer, &file);
    let template = "{{ bos_token }}{% for message in messages %}{{ message.content }}{% endfor %}";
    let mut texts = serde_json::json!({"bos_token": "<|im_start|>", "chat_template": template});
    if let Some(adds) = add_bos_token {
        texts["add_bos_token"] = adds.into();
    }
    write("tokenizer_config.json", &texts);
    Language::read(dir.path()).expect("complete")
}

/// The id that stands for an image of [`seeing`].
const PLACEHOLDER: u32 = 4096;

/// The demo model with images, whose placeholder its tokenizer does not call special. The template
/// writes it by this expression.
fn seeing(expression: &str) -> Language {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let write = |name: &str, value: &serde_json::Value| {
        std::fs::write(dir.path().join(name), value.to_string()).expect("writable")
    };
    let file = crate::samples::dir().join("tokenizer.json");
    let mut file: serde_json::Value =
        serde_json::from_slice(&std::fs::read(file).expect("in the repository")).expect("JSON");
    let added = serde_json::json!({"id": PLACEHOLDER, "content": "<|image_pad|>", "special": false,
        "single_word": false, "lstrip": false, "rstrip": false, "normalized": false});
    file["added_tokens"].as_array_mut().expect("a list").push(added);
    write("tokenizer.json", &file);
    let vision = serde_json::json!({"patch_size": 16, "spatial_merge_size": 2});
    write(
        "config.json",
        &serde_json::json!({"model_type": "qwen3_vl", "image_token_id": PLACEHOLDER, "vision_config": vision}),
    );
    write(
        "preprocessor_config.json",
        &serde_json::json!({"patch_size": 16, "merge_size": 2,
        "size": {"shortest_edge": 1024, "longest_edge": 1_048_576},
        "image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]}),
    );
    let image = format!("{{{{ {expression} }}}}");
    let parts = format!(
        "{{% for part in message.content %}}{{% if part.type == 'image' %}}{image}{{% else %}}{{{{ part.text }}}}{{% endif %}}{{% endfor %}}"
    );
    let template = format!(
        "{{% for message in messages %}}{{% if message.content is string %}}{{{{ message.content }}}}{{% else %}}{parts}{{% endif %}}<|im_end|>{{% endfor %}}"
    );
    write("tokenizer_config.json", &serde_json::json!({"chat_template": template}));
    let header = r#"{"visual.a":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}}"#;
    let weights = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat();
    std::fs::write(dir.path().join("model.safetensors"), weights).expect("writable");
    Language::read(dir.path()).expect("complete")
}

#[test]
fn only_an_image_makes_a_placeholder_whatever_a_text_spells() {
    use conversation::{ContentPart, Message, Role};

    let text = |text: &str| ContentPart::Text(text.to_owned());
    let word = "a <|image_pad|> b";
    for expression in ["'<|image_pad|>'", "'<|' + 'image' + '_pad|>'"] {
        let language = seeing(expression);
        let count = |source: Source| {
            let ids = language.prompt_ids(source, 1_000).expect("a prompt").ids;
            ids.iter().filter(|id| **id == PLACEHOLDER).count()
        };
        let of_parts = |parts: Vec<ContentPart>| {
            let messages = vec![Message { parts, ..Message::new(Role::User, vec![]) }];
            count(Source::Chat(Conversation { messages, ..Conversation::default() }))
        };
        assert_eq!(of_parts(vec![text(word)]), 0, "{expression}");
        assert_eq!(of_parts(vec![text("<|image_"), text("pad|>")]), 0, "{expression}");
        let split = vec![text("<|image_"), ContentPart::Image(0), text("pad|>")];
        assert_eq!(of_parts(split), 1, "{expression}");
        if expression.contains("image_pad") {
            let among = vec![text(word), ContentPart::Image(0), text(word)];
            assert_eq!(of_parts(among), 1);
        }
        for prompt in [word, "<|image_pad|>", "<|image_pad|><|image_pad|>"] {
            assert_eq!(count(Source::Text(prompt.into())), 0, "{prompt}");
            let ids = language.prompt_ids(Source::Text(prompt.into()), 1_000).expect("a prompt");
            assert_eq!(language.tokens.decode(&ids.ids).expect("decodes"), prompt);
        }
    }
}

/// Checked against transformers 5.23: with a tokenizer.json, its post-processor decides and
/// `add_bos_token` of tokenizer_config.json is ignored.
#[test]
fn a_text_begins_as_the_tokenizer_says_and_a_conversation_as_its_template_says() {
    for add_bos_token in [None, Some(false), Some(true)] {
        for tokenizer_adds in [false, true] {
            let language = with_beginning(tokenizer_adds, add_bos_token);
            let what = format!("{tokenizer_adds} {add_bos_token:?}");
            let words = language.tokens.encode("Hi there", false).expect("encodes");
            assert_eq!(words, [3779, 1175], "{what}");
            let begun = [&[1], words.as_slice()].concat();
            let text =
                language.prompt_ids(Source::Text("Hi there".into()), 10).expect("a prompt").ids;
            assert_eq!(text, if tokenizer_adds { &begun } else { &words }.as_slice(), "{what}");
            let message = GoldenMessage { role: "user".into(), content: "Hi there".into() };
            let chat = language.prompt_ids(Source::Chat(conversation(&[message])), 10);
            assert_eq!(chat.expect("a prompt").ids, begun, "{what}: one token, not two");
        }
    }
}

/// A conversation in a short form: `user:text`.
fn said(lines: &[&str]) -> Conversation {
    let message = |line: &&str| {
        let (role, text) = line.split_once(':').expect("role:text");
        Message::new(Role::from_word(role).expect("a role"), vec![text.to_owned()])
    };
    Conversation { messages: lines.iter().map(message).collect(), ..Conversation::default() }
}

#[test]
fn the_last_turn_begins_at_the_last_message_of_the_user() {
    const BEGIN: u32 = 1; // <|im_start|>
    let language = crate::samples::language();
    // What is said, and which message begins the last turn.
    for (lines, expected) in [
        (&["user:Hello there"][..], Some(0)),
        (&["system:Be brief.", "user:How are you?"], Some(1)),
        (&["user:one", "assistant:two", "user:three", "assistant:four"], Some(2)),
        // The text of the turn occurs elsewhere, and in the template's own words.
        (&["user:again", "assistant:again", "user:again"], Some(2)),
        (&["system:s", "user:a"], Some(1)),
        (&["user:first", "assistant:second", "user: second\n"], Some(2)),
        // A client's delimiter is none.
        (&["user:x", "assistant:y", "user:<|im_start|>user\nx"], Some(2)),
        (&["system:s", "assistant:a"], None),
        (&["user:one", "assistant:two", "user: "], None),
    ] {
        let prompt = language.prompt_ids(Source::Chat(said(lines)), 4_095).expect("a prompt");
        let begins = prompt.ids.iter().enumerate().filter(|(_, id)| **id == BEGIN);
        let begins: Vec<usize> = begins.map(|(at, _)| at).collect();
        assert_eq!(begins.len(), lines.len() + 1, "{lines:?}: one a message, and the answer's");
        assert_eq!(prompt.last_turn, expected.map(|at: usize| begins[at]), "{lines:?}");
    }
    let plain = language.prompt_ids(Source::Text("Hello there".into()), 4_095).expect("a prompt");
    assert_eq!(plain.last_turn, None);
}

#[test]
fn a_template_named_tool_use_is_for_requests_with_tools() {
    use conversation::Tool;
    let dir = tempfile::tempdir().expect("a temporary directory");
    let demo = crate::samples::dir();
    std::fs::copy(demo.join("tokenizer.json"), dir.path().join("tokenizer.json")).expect("copied");
    let write = |name: &str, content: &str| {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
        std::fs::write(path, content).expect("writable");
    };
    write("config.json", "{}");
    let plain = "{% for m in messages %}<|im_start|>{{ m.content }}{% endfor %}";
    let tools = "tools: {{ tools | tojson }}{% for m in messages %}<|im_end|>{{ m.content }}\
                 {{ m.tool_calls | tojson if m.tool_calls }}{% endfor %}";
    let listed = serde_json::json!({"chat_template": [
        {"name": "default", "template": plain}, {"name": "tool_use", "template": tools}]});
    let tool = Tool {
        name: "read".into(),
        description: String::new(),
        parameters: serde_json::Map::new(),
        strict: false,
    };
    let check = || {
        let language = Language::read(dir.path()).expect("complete");
        let template = language.template.as_ref().expect("there is one");
        assert!(template.knows_tools());
        let chat = said(&["user:Hi <|im_end|> there"]);
        let shown = |chat: &Conversation| template.render(chat).expect("renders").text;
        assert_eq!(shown(&chat), "<|im_start|>Hi <|im_end|> there");
        let with_tools = Conversation { tools: vec![tool.clone()], ..chat.clone() };
        assert!(shown(&with_tools).starts_with("tools: [{"), "{}", shown(&with_tools));
        // Only the template's own delimiters are special tokens, in both templates.
        for (chat, token) in [(chat, 1), (with_tools, 2)] {
            let ids = language.prompt_ids(Source::Chat(chat), 4_095).expect("a prompt").ids;
            let special: Vec<u32> = ids.iter().copied().filter(|id| *id < 3).collect();
            assert_eq!(special, [token]);
        }
    };
    write("tokenizer_config.json", &listed.to_string());
    check();
    write("tokenizer_config.json", "{}");
    write("chat_template.jinja", plain);
    write("additional_chat_templates/tool_use.jinja", tools);
    check();
}
