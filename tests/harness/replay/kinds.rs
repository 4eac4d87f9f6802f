//! Requests of every kind that has state beyond its prompt and its ids, by every protocol, and the
//! services that they are for.

use paceline_proto::v1::grammar::Kind;
use paceline_proto::v1::{self, ChatRequest, Grammar, Tool, ToolChoice, ToolMode};
use serde_json::{Value, json};

use super::Request;
use crate::ask::{Ask, chat, continue_text};
use crate::{Stack, images, model, repository};

/// A request and the name of its kind.
pub type NamedRequest = (&'static str, Request);

/// Text that begins as the answers' words do: while an answer could be the beginning of a stop
/// string, its text is held back.
const STOPS: [&str; 3] = ["ezzzz", " azzzz", "tzzzz"];

/// A service of the embedded pair, whose template knows tools and thoughts.
pub fn service(settings: &str) -> Stack {
    let mut stack = Stack::new(settings);
    let dir = model::calling_and_thinking(&stack.path(""));
    let drafter = repository().join("demo/drafter");
    stack.set(&format!("target.model = {dir:?}\ndrafter.model = {drafter:?}\n"));
    linked(&mut stack);
    stack
}

/// A service of the tiny model with a vision tower, whose template knows tools and thoughts. Its
/// drafter proposes noise.
pub fn seeing_service(settings: &str) -> Stack {
    let mut stack = Stack::new(settings);
    let (target, drafter) = (stack.path("templated"), stack.path("noise"));
    images::templated(&target);
    images::drafter(&drafter);
    stack.set(&format!("target.model = {target:?}\ndrafter.model = {drafter:?}\n"));
    linked(&mut stack);
    stack
}

fn linked(stack: &mut Stack) {
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();
}

/// One request of each kind by gRPC, of about `tokens` tokens. Another question makes other answers.
pub fn grpc(question: &str, tokens: u32) -> Vec<NamedRequest> {
    let ask = || chat(question);
    let story = || ask().exactly(tokens);
    let mut penalties = story().sampled(0.8, 1.0, 5).penalty(1.2);
    penalties.sampling().presence_penalty = Some(0.5);
    penalties.sampling().frequency_penalty = Some(0.25);
    let mut stopped = story();
    stopped.limits().stop = STOPS.map(Into::into).to_vec();
    let asks = [
        ("greedy", story()),
        ("seeded", story().sampled(0.9, 0.9, 42)),
        ("penalties", penalties),
        ("stop strings", stopped),
        ("several samples", ask().exactly(tokens / 2).sampled(0.9, 1.0, 3).samples(3)),
        ("log-probabilities", story().with_logprobs(3)),
        ("a thought", of_chat(story(), |request| request.reasoning_effort = "low".into())),
        ("a schema", of_chat(ask().max_tokens(tokens), to_a_schema)),
        ("a tool", of_chat(ask().max_tokens(tokens), to_a_tool)),
        ("a regular expression", regular(question, tokens)),
    ];
    asks.map(|(kind, ask)| (kind, Request::Grpc(Box::new(ask.with_margins())))).to_vec()
}

/// A question about an image by gRPC. Another number makes another image.
pub fn grpc_image(number: u64, tokens: u32) -> NamedRequest {
    let ask = images::about(images::noise(96, 64, number), "What is it?").exactly(tokens);
    ("an image", Request::Grpc(Box::new(ask.with_margins())))
}

fn of_chat(ask: Ask, change: impl FnOnce(&mut ChatRequest)) -> Ask {
    let Ask::Chat(mut request) = ask else { panic!("a conversation was meant") };
    change(&mut request);
    Ask::Chat(request)
}

fn to_a_schema(request: &mut ChatRequest) {
    request.reasoning_effort = "none".into();
    request.grammar = Some(Grammar { kind: Some(Kind::JsonSchema(list().to_string())) });
}

fn to_a_tool(request: &mut ChatRequest) {
    request.reasoning_effort = "none".into();
    let parameters = arguments().to_string();
    request.tools =
        vec![Tool { name: "store".into(), parameters, strict: true, ..Tool::default() }];
    let mode = ToolMode::Named.into();
    request.tool_choice = Some(ToolChoice { mode, name: "store".into() });
}

fn regular(question: &str, tokens: u32) -> Ask {
    let ask = continue_text(&format!("{question} Words: ")).max_tokens(tokens);
    let Ask::Continue(request) = ask else { panic!("a prompt was meant") };
    let grammar = Some(Grammar { kind: Some(Kind::Regex("([a-z]{3} ){60}".into())) });
    Ask::Continue(v1::GenerateRequest { grammar, ..request })
}

/// A schema of a list that is as long as the answers of the other kinds.
fn list() -> Value {
    let item = json!({
        "type": "object", "additionalProperties": false, "required": ["name", "count"],
        "properties": {
            "name": {"type": "string", "maxLength": 12},
            "count": {"type": "integer", "minimum": 0, "maximum": 999},
        },
    });
    json!({"type": "array", "items": item, "minItems": 12, "maxItems": 16})
}

/// A tool's parameters: such a list.
fn arguments() -> Value {
    json!({
        "type": "object", "additionalProperties": false, "required": ["items"],
        "properties": {"items": list()},
    })
}

/// A body with more fields.
fn with(mut body: Value, more: Value) -> Value {
    let fields = body.as_object_mut().expect("a body is an object");
    fields.extend(more.as_object().cloned().expect("fields are an object"));
    body
}

fn requests<const N: usize>(
    path: &'static str,
    bodies: [(&'static str, Value); N],
) -> Vec<NamedRequest> {
    bodies.map(|(kind, body)| (kind, Request::Http { path, body })).to_vec()
}

/// One request of each kind by `/v1/chat/completions`.
pub fn chat_completions(question: &str, tokens: u32, stream: bool) -> Vec<NamedRequest> {
    let turns = json!([{"role": "user", "content": question}]);
    let ask = json!({"model": "m", "messages": turns, "max_tokens": tokens, "temperature": 0, "stream": stream});
    let usage = if stream { json!({"stream_options": {"include_usage": true}}) } else { json!({}) };
    let ask = |more: Value| with(with(ask.clone(), usage.clone()), more);
    let story = |more: Value| with(ask(json!({"ignore_eos": true})), more);
    let held = |more: Value| with(ask(json!({"reasoning_effort": "none"})), more);
    let penalties = json!({
        "temperature": 0.8, "seed": 5, "presence_penalty": 0.5, "frequency_penalty": 0.25, "repetition_penalty": 1.2,
    });
    let schema = json!({"type": "json_schema", "json_schema": {"name": "list", "schema": list(), "strict": true}});
    let function = json!({"name": "store", "parameters": arguments(), "strict": true});
    let tools = json!({
        "tools": [{"type": "function", "function": function}], "tool_choice": "required", "parallel_tool_calls": false,
    });
    let bodies = [
        ("chat", story(json!({}))),
        ("chat, seeded", story(json!({"temperature": 0.9, "top_p": 0.9, "seed": 42}))),
        ("chat, penalties", story(penalties)),
        ("chat, stop strings", story(json!({ "stop": STOPS }))),
        ("chat, several samples", story(json!({"temperature": 0.9, "seed": 3, "n": 3}))),
        ("chat, log-probabilities", story(json!({"logprobs": true, "top_logprobs": 2}))),
        ("chat, a thought", story(json!({"reasoning_effort": "low"}))),
        ("chat, a schema", held(json!({ "response_format": schema }))),
        ("chat, a tool", held(tools)),
    ];
    requests("/v1/chat/completions", bodies)
}

/// One request of each kind by `/v1/responses`, which has fewer: no seed, no stop strings.
pub fn responses(question: &str, tokens: u32, stream: bool) -> Vec<NamedRequest> {
    let ask = json!({"model": "m", "input": question, "max_output_tokens": tokens, "temperature": 0, "stream": stream});
    let ask = |effort: &str, more: Value| {
        with(with(ask.clone(), json!({"reasoning": {"effort": effort}})), more)
    };
    let format = json!({"type": "json_schema", "name": "list", "schema": list(), "strict": true});
    let tool =
        json!({"type": "function", "name": "store", "parameters": arguments(), "strict": true});
    let bodies = [
        ("responses", ask("none", json!({}))),
        ("responses, a thought", ask("low", json!({}))),
        ("responses, a schema", ask("none", json!({"text": {"format": format}}))),
        ("responses, a tool", ask("none", json!({"tools": [tool], "tool_choice": "required"}))),
    ];
    requests("/v1/responses", bodies)
}

/// One request of each kind by `/v1/messages`.
pub fn messages(question: &str, tokens: u32, stream: bool) -> Vec<NamedRequest> {
    let turns = json!([{"role": "user", "content": question}]);
    let ask = json!({"model": "m", "messages": turns, "max_tokens": tokens, "temperature": 0, "stream": stream});
    let ask = |more: Value| with(ask.clone(), more);
    let held = |more: Value| with(ask(json!({"thinking": {"type": "disabled"}})), more);
    let thought = json!({"thinking": {"type": "enabled", "budget_tokens": 1024}});
    let format = json!({"type": "json_schema", "schema": list()});
    let tool = json!({"name": "store", "input_schema": arguments(), "strict": true});
    let bodies = [
        ("messages", ask(json!({}))),
        ("messages, stop strings", ask(json!({ "stop_sequences": STOPS }))),
        ("messages, a thought", ask(thought)),
        ("messages, a schema", held(json!({"output_config": {"format": format}}))),
        ("messages, a tool", held(json!({"tools": [tool], "tool_choice": {"type": "any"}}))),
    ];
    requests("/v1/messages", bodies)
}

/// A question about an image by each protocol of HTTP. Another number makes another image.
pub fn http_images(number: u64, tokens: u32, stream: bool) -> Vec<NamedRequest> {
    let file = images::noise(96, 64, number);
    let (data, url) = (images::base64(&file), images::data_url(&file));
    let (question, common) =
        ("What is it?", json!({"model": "m", "temperature": 0, "stream": stream}));
    let turn = |parts: Value| json!([{"role": "user", "content": parts}]);
    let parts = json!([{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": question}]);
    let chat = json!({"messages": turn(parts), "max_tokens": tokens, "ignore_eos": true});
    let parts = json!([{"type": "input_image", "image_url": url}, {"type": "input_text", "text": question}]);
    let response = json!({"input": turn(parts), "max_output_tokens": tokens});
    let source = json!({"type": "base64", "media_type": "image/png", "data": data});
    let parts = json!([{"type": "image", "source": source}, {"type": "text", "text": question}]);
    let message = json!({"messages": turn(parts), "max_tokens": tokens});
    [
        ("chat, an image", "/v1/chat/completions", chat),
        ("responses, an image", "/v1/responses", response),
        ("messages, an image", "/v1/messages", message),
    ]
    .map(|(kind, path, body)| (kind, Request::Http { path, body: with(common.clone(), body) }))
    .to_vec()
}
