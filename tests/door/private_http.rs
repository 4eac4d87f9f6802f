//! No text of a client over HTTP reaches a file: texts, schemas, tools, tool calls and their
//! results, and the values that errors quote. The protocols differ in where a text may stand, so
//! that each place of each protocol has a word of its own.

use std::io::Read as _;

use nix::sys::signal::Signal;
use paceline_tests::{Stack, repository, signal};
use serde_json::{Value, json};

use super::private::written_nowhere;

/// In no text of ours. A place adds its own characters.
const CANARY: &str = "zqcanaryh";

/// A body of one protocol, at its path.
struct Body {
    path: &'static str,
    body: Value,
}

fn body(path: &'static str, body: Value) -> Body {
    Body { path, body }
}

/// A model with the template of a family that has tools.
fn stack() -> Stack {
    let mut stack = Stack::new("routing.route_log = \"\"\n");
    let dir = stack.path("model");
    std::fs::create_dir(&dir).expect("a new directory");
    for entry in std::fs::read_dir(repository().join("demo/target")).expect("the demo model") {
        let entry = entry.expect("a file");
        std::fs::copy(entry.path(), dir.join(entry.file_name())).expect("copied");
    }
    let template = repository().join("text/tests/templates/qwen3.jinja");
    std::fs::copy(template, dir.join("chat_template.jinja")).expect("copied");
    stack.set(&format!("target.model = {dir:?}\n"));
    stack.serve();
    stack.wait_ready();
    stack
}

/// A schema whose every text is a canary.
fn schema(place: &str) -> Value {
    let name = |part: &str| format!("{CANARY}{place}{part}");
    json!({
        "type": "object", "title": name("title"), "description": name("description"),
        "properties": {(name("key")): {"type": "string", "enum": [name("value")], "default": name("default")}},
        "required": [name("key")], "additionalProperties": false,
    })
}

/// Requests that are served, with a canary in each place that has a text.
fn served() -> Vec<Body> {
    let word = |place: &str| format!("the {CANARY}{place} word");
    let id = |place: &str| format!("{CANARY}{place}");
    let arguments = json!({ (id("argument")): word("arguments") });
    let chat = json!({
        "messages": [
            {"role": "system", "content": word("system")},
            {"role": "user", "content": [{"type": "text", "text": word("user")}]},
            {"role": "assistant", "content": word("assistant"), "reasoning_content": word("thought"),
             "tool_calls": [{"id": id("callid"), "type": "function",
                             "function": {"name": "f", "arguments": arguments.to_string()}}]},
            {"role": "tool", "tool_call_id": id("callid"), "content": word("result")},
        ],
        "tools": [{"type": "function", "function": {"name": id("tool"), "description": word("tooltext"), "parameters": schema("tool")}}],
        "stop": [word("stop")], "user": id("username"), "max_tokens": 12, "metadata": {"k": word("metadata")},
    });
    let schema_of_chat = json!({
        "messages": [{"role": "user", "content": word("user")}], "max_tokens": 60,
        "response_format": {"type": "json_schema", "json_schema": {"name": id("schemaname"), "schema": schema("schema")}},
    });
    let stream = |mut body: Value| {
        body["stream"] = true.into();
        body
    };
    let responses = json!({
        "instructions": word("instructions"), "max_output_tokens": 12, "metadata": {(id("metakey")): word("metadata")},
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": word("input")}]},
            {"type": "function_call", "call_id": id("callid"), "name": id("tool"), "arguments": arguments.to_string()},
            {"type": "function_call_output", "call_id": id("callid"), "output": word("output")},
        ],
        "tools": [{"type": "function", "name": id("tool"), "description": word("tooltext"), "parameters": schema("tool")}],
    });
    let messages = json!({
        "model": "demo", "max_tokens": 12, "system": word("system"), "stop_sequences": [word("stop")],
        "metadata": {"user_id": id("userid")},
        "messages": [
            {"role": "user", "content": word("user")},
            {"role": "assistant", "content": [{"type": "text", "text": word("assistant")},
                {"type": "tool_use", "id": id("callid"), "name": id("tool"), "input": arguments}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": id("callid"), "content": word("result")}]},
        ],
        "tools": [{"name": id("tool"), "description": word("tooltext"), "input_schema": schema("tool")}],
    });
    let count = json!({"model": "demo", "system": word("system"), "messages": [{"role": "user", "content": word("user")}]});
    vec![
        body("/v1/chat/completions", chat.clone()),
        body("/v1/chat/completions", stream(chat)),
        body("/v1/chat/completions", schema_of_chat),
        body(
            "/v1/completions",
            json!({"prompt": word("prompt"), "stop": word("stop"), "max_tokens": 8}),
        ),
        body("/v1/responses", responses.clone()),
        body("/v1/responses", stream(responses)),
        body("/v1/messages", messages.clone()),
        body("/v1/messages", stream(messages)),
        body("/v1/messages/count_tokens", count),
    ]
}

/// Requests whose errors quote a value, or are about one.
fn refused() -> Vec<Body> {
    let id = |place: &str| format!("{CANARY}{place}");
    let turn = json!([{"role": "user", "content": "hi"}]);
    let paths = ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"];
    let mut all = vec![];
    for path in paths {
        let good = match path {
            "/v1/completions" => json!({"prompt": "hi"}),
            "/v1/responses" => json!({"input": "hi"}),
            "/v1/messages" => json!({"model": "demo", "max_tokens": 5, "messages": turn}),
            _ => json!({"messages": turn}),
        };
        let with = |name: &str, value: Value| {
            let mut bad = good.clone();
            bad[name] = value;
            body(path, bad)
        };
        all.push(with(&id("field"), json!(id("value"))));
        all.push(with("temperature", json!(id("temperature"))));
        all.push(with("stream", json!(id("stream"))));
        all.push(with("model", json!(["x", id("model")])));
        all.push(with("tools", json!([{"type": id("type"), "name": id("name")}])));
        all.push(with(
            "tool_choice",
            json!({"type": "function", "name": id("choice"), "function": {"name": id("choice")}}),
        ));
        all.push(with("prompt", json!({ (id("key")): id("prompt") })));
        all.push(with("messages", json!([{"role": id("role"), "content": id("content")}])));
        all.push(with("input", json!([{"type": id("item"), "text": id("text")}])));
    }
    let format = |schema: Value| {
        body(
            "/v1/chat/completions",
            json!({"messages": turn, "response_format": {"type": "json_schema",
            "json_schema": {"name": "s", "schema": schema}}}),
        )
    };
    all.extend([
        format(json!({"type": id("type")})),
        format(json!({"type": "string", "pattern": format!("({}", id("pattern"))})),
        format(json!({"properties": {(id("property")): {"not": {"const": id("const")}}}})),
        format(json!({"$ref": format!("#/$defs/{}", id("reference"))})),
        format(json!({"type": "string", "pattern": format!("(?={})a", id("ahead"))})),
        body("/v1/chat/completions", json!({"messages": turn, "paceline": {"template_arguments": {"k": id("argument")}, (id("own")): 1}})),
    ]);
    all
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all outcomes.
fn no_text_of_a_request_over_http_reaches_a_file_in_any_outcome() {
    let stack = stack();
    let headers = format!(
        "content-type: application/json\r\nuser-agent: {CANARY}agent\r\nreferer: http://{CANARY}.example/\r\nx-title: {CANARY}title\r\n"
    );
    let post = |path: &str, body: &str| stack.http_post(path, &headers, body).expect("an answer");
    let requests = served();
    for Body { path, body } in &requests {
        let answer = post(path, &body.to_string());
        assert_eq!(answer.status(), 200, "{path} {body}: {answer:?}");
    }
    for Body { path, body } in refused() {
        let answer = post(path, &body.to_string());
        assert!((400..500).contains(&answer.status()), "{path} {body}: {answer:?}");
    }
    // No JSON, broken JSON, a body that is cut, paths and headers of a stranger.
    for path in ["/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"] {
        for text in [format!("{CANARY}plain"), format!("{{\"{CANARY}key\": \"{CANARY}cut")] {
            assert_eq!(post(path, &text).status(), 400, "{path} {text}");
        }
        let wrong = format!("{path}?{CANARY}={CANARY}query");
        let _ = post(&wrong, &format!("[\"{CANARY}list\"]"));
    }
    // On a loopback address every name stands for the model.
    for (path, status) in
        [(format!("/{CANARY}path"), 404), (format!("/v1/models/{CANARY}model"), 200)]
    {
        assert_eq!(stack.http_get(&path).expect("an answer").status(), status, "{path}");
    }
    // Cut short: the client goes, and target and gateway are ended in the middle of an answer.
    let long = |body: &Value| {
        let mut body = body.clone();
        (body["stream"], body["max_tokens"]) = (true.into(), 1_500.into());
        body["ignore_eos"] = true.into();
        body.to_string()
    };
    let chat = json!({"messages": [{"role": "user", "content": format!("{CANARY}long")}]});
    let begin = || {
        let mut stream =
            stack.http_send("POST", "/v1/chat/completions", &headers, &long(&chat)).expect("sent");
        let mut first = [0; 512];
        assert!(stream.read(&mut first).expect("it streams") > 0);
        assert!(first.starts_with(b"HTTP/1.1 200"), "{}", String::from_utf8_lossy(&first));
        stream
    };
    drop(begin());
    for (process, with) in
        [("target", Signal::SIGKILL), ("target", Signal::SIGABRT), ("gateway", Signal::SIGABRT)]
    {
        let (stream, pid) = (begin(), stack.pid(process));
        signal(pid, with);
        stack.wait_status("another process", |status| {
            status[process]["pid"] != pid && status[process]["state"] == "ready"
        });
        drop(stream);
        stack.wait_ready();
        // A request at which two targets ended would be refused.
        let mut short = chat.clone();
        short["max_tokens"] = 4.into();
        let answer = post("/v1/chat/completions", &short.to_string());
        assert_eq!(answer.status(), 200, "{answer:?}");
    }
    for path in ["/metrics", "/status", "/health", "/v1/models"] {
        let answer = stack.http_get(path).expect("an answer");
        assert!(!answer.body.contains(CANARY), "{path}: {answer:?}");
    }
    written_nowhere(&stack, &[CANARY]);
    stack.stop();
}
