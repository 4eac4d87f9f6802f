//! Writes inputs for the targets to begin with into the folder that it is given, one folder for
//! each target. Those that are files of the repository are copied by scripts/fuzz.sh.

use std::error::Error;
use std::fs;
use std::path::Path;

use paceline_checkpoint::samples::SampleGguf;
use paceline_link::{Message as Frame, frame};
use paceline_proto::internal::v1 as internal;
use paceline_proto::v1;
use prost::Message;

fn main() -> Result<(), Box<dyn Error>> {
    let out = std::env::args_os().nth(1).ok_or("expected a folder")?;
    let write = |target: &str, name: &str, bytes: &[u8]| -> std::io::Result<()> {
        let dir = Path::new(&out).join(target);
        fs::create_dir_all(&dir)?;
        fs::write(dir.join(name), bytes)
    };
    for (name, frame) in frames() {
        let mut bytes = vec![];
        frame::encode(frame, &mut bytes)?;
        write("frame", name, &bytes)?;
    }
    write("tensor", "f32", &tensor().encode_to_vec())?;
    let codec = |kind: u8, message: &dyn Fn() -> Vec<u8>| [&[kind][..], &message()].concat();
    write("codec", "chat", &codec(0, &|| chat().encode_to_vec()))?;
    write("codec", "generate", &codec(1, &|| generate().encode_to_vec()))?;
    let counted = v1::CountTokensRequest {
        request: Some(v1::count_tokens_request::Request::Chat(chat())),
        report_ids: true,
    };
    write("codec", "count", &codec(2, &|| counted.encode_to_vec()))?;
    let response = v1::GenerateResponse {
        request_id: "r".into(),
        text: "é".into(),
        token_ids: vec![1, 300],
        margins: vec![0.5],
        ..Default::default()
    };
    write("codec", "response", &codec(3, &|| response.encode_to_vec()))?;
    let generation = internal::Generation {
        prompt_ids: vec![1, 2, 151_000],
        stop_token_ids: vec![2],
        max_tokens: 9,
        grammar: Some(internal::Grammar {
            frame: "start: @part_0".into(),
            parts: vec![internal::GrammarPart {
                field: "grammar.regex".into(),
                lenient: true,
                content: Some(internal::grammar_part::Content::Regex("[a-z]+".into())),
            }],
            end_ids: vec![2],
        }),
        ..Default::default()
    };
    let submit = internal::SubmitRequest { generation: Some(generation), ..Default::default() };
    write("codec", "submit", &codec(4, &|| submit.encode_to_vec()))?;
    let batch = internal::TokenBatch { ids: vec![5, 6], first_index: 3, ..Default::default() };
    write("codec", "batch", &codec(5, &|| batch.encode_to_vec()))?;
    for (name, bytes) in http_bodies() {
        write("http_body", name, &bytes)?;
    }
    for (name, bytes) in answers() {
        write("tool_calls", &name, &bytes)?;
    }
    for architecture in ["llama", "qwen2", "qwen3moe", "gemma3"] {
        write("gguf", architecture, &SampleGguf::of(architecture).bytes())?;
    }
    write("address", "png", b"data:image/png;base64,iVBORw0KGgo=")?;
    let ids: Vec<u8> =
        [300u16, 301, 2, 4000, 0x1f, 0xe9].into_iter().flat_map(u16::to_le_bytes).collect();
    write("detokenizer", "ids", &ids)?;
    write("config", "environment", b"[limits]\nqueue = 3\n\0LIMITS__QUEUE=7\0TARGET__MODEL=/m")?;
    let turns = "{% for m in messages %}{{ m.role }}: {{ m.content }}{% endfor %}\0sBe brief.\0uHi\0aHello\0c{\"a\": [1]}\0tdone\0o{\"type\": \"object\"}";
    write("template", "turns", turns.as_bytes())?;
    let json =
        br#"{"a":{"dtype":"F32","shape":[2],"data_offsets":[0,8]},"__metadata__":{"format":"pt"}}"#;
    write("safetensors", "one", &[&(json.len() as u64).to_le_bytes()[..], json, &[0; 8]].concat())?;
    Ok(())
}

/// A body of each protocol with a tool, a tool call and its result. The first byte is the protocol.
fn http_bodies() -> Vec<(&'static str, Vec<u8>)> {
    let of = |kind: u8, body: &str| [&[kind][..], body.as_bytes()].concat();
    let chat = r#"{"model":"m","messages":[{"role":"system","content":"s"},{"role":"user","content":[{"type":"text","text":"hi"},
        {"type":"image_url","image_url":{"url":"data:image/png;base64,iVBORw0KGgo="}}]},
        {"role":"assistant","content":null,"tool_calls":[{"id":"c1","type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]},
        {"role":"tool","tool_call_id":"c1","content":"r"}],
        "tools":[{"type":"function","function":{"name":"f","description":"d","parameters":{"type":"object","properties":{"a":{"type":"integer"}}}}}],
        "tool_choice":"auto","n":2,"max_tokens":9,"temperature":0.5,"top_p":0.9,"stop":["x"],"seed":7,"stream":true,"logprobs":true,
        "top_logprobs":3,"logit_bias":{"5":1.5},"response_format":{"type":"json_schema","json_schema":{"name":"s","schema":{"type":"object"}}}}"#;
    let completion = r#"{"model":"m","prompt":[1,2,300],"max_tokens":5,"logprobs":2,"n":2,"echo":false,"stop":"x"}"#;
    let responses = r#"{"model":"m","instructions":"s","input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"hi"}]},
        {"type":"function_call","call_id":"c1","name":"f","arguments":"{}"},{"type":"function_call_output","call_id":"c1","output":"r"}],
        "tools":[{"type":"function","name":"f","parameters":{"type":"object","properties":{}}}],"metadata":{"k":"v"},"max_output_tokens":9,
        "text":{"format":{"type":"json_schema","name":"s","schema":{"type":"object"}}}}"#;
    let messages = r#"{"model":"m","max_tokens":9,"system":[{"type":"text","text":"s"}],"messages":[{"role":"user","content":"hi"},
        {"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":"g"},{"type":"tool_use","id":"c1","name":"f","input":{"a":[1]}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"c1","content":[{"type":"text","text":"r"}],"is_error":true}]}],
        "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],"tool_choice":{"type":"any"},"thinking":{"type":"enabled","budget_tokens":1024}}"#;
    vec![
        ("chat", of(0, chat)),
        ("completion", of(1, completion)),
        ("responses", of(2, responses)),
        ("messages", of(3, messages)),
        ("count", of(4, messages)),
    ]
}

/// An answer of each family with a thought and a tool call: first the format, then the size of
/// batches. Each comes with tags as characters and as tokens.
fn answers() -> Vec<(String, Vec<u8>)> {
    let answers = [
        "<think>\nso\n</think>\n\nIt is 5.",
        "<think>so</think>a<tool_call>\n{\"name\": \"read\", \"arguments\": {\"text\": \"a\\n\", \"n\": [1.0, null]}}\n</tool_call>",
        "<tool_call>\n<function=read>\n<parameter=text>\nab\n</parameter>\n<parameter=n>\n5\n</parameter>\n</function>\n</tool_call>",
        "<|python_tag|>{\"name\": \"read\", \"parameters\": {\"n\": 5}}; {\"name\": \"read\", \"parameters\": {}}",
        "<|channel>thought\nso<channel|><|tool_call>call:read{text:<|\"|>a<|\"|>,n:5,list:[1,{a:true}]}<tool_call|>",
        "<|channel|>analysis<|message|>so<|end|><|start|>assistant<|channel|>commentary to=functions.read <|constrain|>json<|message|>{\"n\":5}<|call|>",
        "a[TOOL_CALLS] [{\"name\": \"read\", \"arguments\": {\"n\": 5}, \"id\": \"a1b2c3d4e\"}, {\"name\": \"read\", \"arguments\": {}}]",
        "a[TOOL_CALLS]read[CALL_ID]a1b2c3d4e[ARGS]{\"n\": 5}[TOOL_CALLS]read[ARGS]{}",
        "<function name=\"read\"><param name=\"text\"><![CDATA[a]]></param><param name=\"list\">[1, 'a', {'b': None}]</param></function>",
        "<tool_call>read\n<arg_key>text</arg_key>\n<arg_value>a</arg_value>\n<arg_key>n</arg_key>\n<arg_value>5</arg_value>\n</tool_call>",
    ];
    let mut all = vec![];
    for (at, answer) in (0u8..).zip(answers) {
        for (name, first) in [("characters", at), ("tokens", 130 + at)] {
            all.push((format!("{name}{at}"), [&[first, at][..], answer.as_bytes()].concat()));
        }
    }
    all
}

fn tensor() -> internal::TensorRef {
    let f32 = internal::TensorType::F32 as i32;
    internal::TensorRef { number: 1, offset: 4096, length: 64, rows: 4, columns: 4, r#type: f32 }
}

fn frames() -> Vec<(&'static str, Frame)> {
    // More than 60 lines: a list, one frame of each kind.
    let contexts = vec![internal::Context {
        session: 1,
        position: 0,
        rows: 4,
        fresh: true,
        request_id: "r".into(),
        ids: vec![5; 4],
        next_id: Some(6),
        traceparent: "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".into(),
        images: vec![internal::ImageSpan { first: 1, rows: 1, columns: 2 }],
    }];
    let requests = vec![internal::DraftRequest {
        session: 1,
        position: 4,
        block: 4,
        bonus_id: 7,
        ..Default::default()
    }];
    let feed = internal::Feed {
        contexts,
        requests,
        hidden: Some(tensor()),
        bonus: Some(tensor()),
        round: 1,
        closed: vec![2],
        ..Default::default()
    };
    let tokens = internal::DraftTokens {
        session: 1,
        position: 4,
        ids: vec![8, 9],
        logprobs: vec![-0.5, -1.0],
        drafts_from: 0,
    };
    let tokens = internal::TokenDrafts { drafts: vec![tokens] };
    let tokens = internal::proposal::Drafts::Tokens(tokens);
    let shapes = vec![internal::DraftShape { session: 1, position: 4, rows: 4 }];
    let hidden = internal::HiddenDrafts { shapes, rows: Some(tensor()) };
    let hidden = internal::proposal::Drafts::Hidden(hidden);
    let proposal = |drafts| Frame::Proposal(internal::Proposal { round: 1, drafts: Some(drafts) });
    vec![
        (
            "hello",
            Frame::Hello(internal::Hello {
                version: 1,
                hidden_size: 64,
                vocab_size: 4096,
                ..Default::default()
            }),
        ),
        (
            "welcome",
            Frame::Welcome(internal::Welcome {
                version: 1,
                kind: "dflash".into(),
                feature_layers: vec![1, 3],
                ..Default::default()
            }),
        ),
        ("feed", Frame::Feed(feed)),
        ("proposal", proposal(hidden)),
        ("tokens", proposal(tokens)),
        ("ack", Frame::Ack(internal::Ack { number: 3 })),
    ]
}

fn generate() -> v1::GenerateRequest {
    let sampling = v1::Sampling {
        temperature: Some(0.7),
        seed: Some(5),
        logit_bias: vec![v1::LogitBias { token_id: 3, bias: 1.5 }],
        ..Default::default()
    };
    let limits = v1::Limits {
        max_tokens: Some(9),
        stop: vec!["\n".into()],
        stop_token_ids: vec![2],
        ..Default::default()
    };
    let prompt =
        Some(v1::generate_request::Prompt::TokenIds(v1::TokenIds { ids: vec![1, 300, 4000] }));
    v1::GenerateRequest {
        prompt,
        sampling: Some(sampling),
        limits: Some(limits),
        logprobs: Some(2),
        ..Default::default()
    }
}

fn chat() -> v1::ChatRequest {
    let part = |part| v1::ContentPart { part: Some(part) };
    let text = |words: &str| part(v1::content_part::Part::Text(words.into()));
    let image = part(v1::content_part::Part::Image(v1::Image { data: vec![1, 2].into() }));
    let url =
        part(v1::content_part::Part::ImageUrl(v1::ImageUrl { url: "data:;base64,AA".into() }));
    let call = v1::ToolCall {
        id: "c1".into(),
        name: "read".into(),
        arguments: r#"{"path": ["a", 1, null, {"b": 2.5}]}"#.into(),
    };
    let tool = v1::Tool {
        name: "read".into(),
        description: "d".into(),
        parameters: r#"{"type": "object", "properties": {"path": {"type": "string"}}}"#.into(),
        strict: true,
    };
    let turn =
        |role: &str, content| v1::Message { role: role.into(), content, ..Default::default() };
    let assistant =
        v1::Message { tool_calls: vec![call], reasoning: "hm".into(), ..turn("assistant", vec![]) };
    let answer = v1::Message {
        tool_call_id: "c1".into(),
        name: "read".into(),
        ..turn("tool", vec![text("x")])
    };
    let messages = vec![
        turn("developer", vec![text("s")]),
        turn("user", vec![text("Hi"), image, url]),
        assistant,
        answer,
    ];
    v1::ChatRequest {
        messages,
        tools: vec![tool],
        template_arguments: r#"{"enable_thinking": false}"#.into(),
        grammar: Some(v1::Grammar { kind: Some(v1::grammar::Kind::Regex("[a-z]+".into())) }),
        tool_choice: Some(v1::ToolChoice { mode: v1::ToolMode::Named.into(), name: "read".into() }),
        ..Default::default()
    }
}
