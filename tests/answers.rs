//! Answers through the whole service: tool calls that the limit of tokens cuts in every protocol,
//! thinking that is off beside a form, and characters of several bytes in both lanes.

use paceline_proto::v1::grammar::Kind;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{
    ChatRequest, FinishReason, GenerateResponse, Grammar, RouteWish, Tool, ToolCallPiece,
};
use paceline_tests::ask::Ask;
use paceline_tests::{Stack, chat, continue_text, model};
use serde_json::{Value, json};

/// The embedded target answers it with a tool call of about 46 tokens.
const CALL: &str = "Call the tools to move 46 bricks to shelf RB-839.";

/// The schema of the tool that [`CALL`] means.
fn parameters() -> Value {
    json!({"type": "object", "properties": {
        "item": {"type": "string"}, "count": {"type": "integer"}, "shelf": {"type": "string"},
    }})
}

/// The body of a whole answer.
fn served(stack: &Stack, path: &str, body: &Value) -> Value {
    let answer = stack.http_json(path, body).expect("answered");
    assert_eq!(answer.status(), 200, "{}", answer.body);
    serde_json::from_str(&answer.body).expect("JSON")
}

/// The data of a stream's events.
fn events(stack: &Stack, path: &str, body: &Value) -> Vec<Value> {
    let mut body = body.clone();
    body["stream"] = true.into();
    let answer = stack.http_json(path, &body).expect("answered");
    assert_eq!(answer.status(), 200, "{}", answer.body);
    let data = answer.body.lines().filter_map(|line| line.strip_prefix("data: "));
    data.filter_map(|data| serde_json::from_str(data).ok()).collect()
}

/// The texts at a place of all values, together.
fn joined<'a>(values: impl IntoIterator<Item = &'a Value>, place: &str) -> String {
    values.into_iter().filter_map(|value| value.pointer(place)?.as_str()).collect()
}

/// All messages of a conversation's answer.
fn messages(stack: &Stack, request: ChatRequest) -> Vec<GenerateResponse> {
    stack.block_on(async {
        let mut client = InferenceClient::new(stack.channel());
        let mut stream = client.chat(request).await.expect("served").into_inner();
        let mut all = Vec::new();
        while let Some(message) = stream.message().await.expect("it ends well") {
            all.push(message);
        }
        all
    })
}

fn request(ask: Ask) -> ChatRequest {
    match ask {
        Ask::Chat(request) => request,
        Ask::Continue(_) => panic!("a conversation was meant"),
    }
}

/// A service of the embedded target with tools, whose tokenizer spells the tags of tool calls.
fn calling(parent: &tempfile::TempDir) -> Stack {
    let dir = model::calling(parent.path());
    Stack::ready(&format!("target.model = {dir:?}\ndrafter.model = \"\"\n"))
}

fn chat_cut(stack: &Stack, max_tokens: u32) -> Option<String> {
    let function = json!({"name": "move_stock", "parameters": parameters()});
    let body = json!({
        "messages": [{"role": "user", "content": CALL}], "temperature": 0.0,
        "tools": [{"type": "function", "function": function}], "max_tokens": max_tokens,
    });
    let whole = served(stack, "/v1/chat/completions", &body);
    let choice = &whole["choices"][0];
    assert_eq!(choice["finish_reason"], "length", "{whole}");
    assert_eq!(choice["message"]["content"].as_str().unwrap_or_default(), "", "{whole}");
    assert!(whole["paceline"].get("warnings").is_none(), "{whole}");
    let chunks = events(stack, "/v1/chat/completions", &body);
    assert_eq!(joined(&chunks, "/choices/0/delta/content"), "");
    assert_eq!(joined(&chunks, "/choices/0/finish_reason"), "length");
    let streamed = "/choices/0/delta/tool_calls/0/function";
    let (name, arguments) = (
        joined(&chunks, &format!("{streamed}/name")),
        joined(&chunks, &format!("{streamed}/arguments")),
    );
    let Some(call) = choice["message"].pointer("/tool_calls/0/function") else {
        assert_eq!((name.as_str(), arguments.as_str()), ("", ""));
        return None;
    };
    assert_eq!(*call, json!({"name": name, "arguments": arguments}));
    Some(arguments)
}

#[test]
fn a_tool_call_that_the_limit_cuts_is_alone_in_the_answer_of_every_protocol() {
    let parent = tempfile::tempdir().expect("a directory");
    let stack = calling(&parent);
    let mut found = Vec::new();
    for max_tokens in (1..28).step_by(3) {
        found.push(chat_cut(&stack, max_tokens));
    }
    assert!(found.first().is_some_and(Option::is_none), "the name is not known: {found:?}");
    let longest = found.last().cloned().flatten().expect("the name is known");
    assert!(longest.starts_with("{\"item\": ") && !longest.ends_with('}'), "{longest}");
    for arguments in found.into_iter().flatten() {
        assert!(longest.starts_with(&arguments), "{arguments}");
    }

    let tool = json!({"type": "function", "name": "move_stock", "parameters": parameters()});
    let body = json!({"input": CALL, "temperature": 0.0, "tools": [tool], "max_output_tokens": 24});
    let whole = served(&stack, "/v1/responses", &body);
    let output = whole["output"].as_array().expect("a list");
    assert_eq!((&whole["status"], output.len()), (&json!("incomplete"), 1), "{whole}");
    assert_eq!(output[0]["type"], "function_call", "{whole}");
    assert_eq!(
        (&output[0]["status"], &output[0]["name"]),
        (&json!("incomplete"), &json!("move_stock"))
    );
    let streamed = events(&stack, "/v1/responses", &body);
    let last = streamed.last().expect("an end");
    assert_eq!(last["type"], "response.incomplete");
    assert_eq!(last["response"]["output"][0]["arguments"], output[0]["arguments"]);
    assert_eq!(joined(&streamed, "/delta"), output[0]["arguments"].as_str().expect("text"));

    let tool = json!({"name": "move_stock", "input_schema": parameters()});
    let body = json!({
        "model": "m", "max_tokens": 24, "temperature": 0.0, "tools": [tool],
        "messages": [{"role": "user", "content": CALL}],
    });
    let whole = served(&stack, "/v1/messages", &body);
    let content = whole["content"].as_array().expect("a list");
    assert_eq!((&whole["stop_reason"], content.len()), (&json!("max_tokens"), 1), "{whole}");
    let streamed = events(&stack, "/v1/messages", &body);
    let sent = joined(&streamed, "/delta/partial_json");
    assert_eq!(content[0]["input"], json!({"incomplete": sent}), "{whole}");
    assert_eq!(joined(&streamed, "/delta/text"), "");

    let tool = Tool {
        name: "move_stock".into(),
        parameters: parameters().to_string(),
        ..Default::default()
    };
    let tools = vec![tool];
    let messages = messages(&stack, ChatRequest { tools, ..request(chat(CALL).max_tokens(24)) });
    let pieces: Vec<&ToolCallPiece> = messages.iter().flat_map(|one| &one.tool_calls).collect();
    assert_eq!(pieces.iter().map(|piece| piece.arguments.as_str()).collect::<String>(), sent);
    assert!(pieces.last().is_some_and(|piece| piece.cut && !piece.complete));
    assert!(messages.iter().all(|one| one.text.is_empty() && one.warnings.is_empty()));
    stack.stop();
}

/// A template that opens a thought unless thinking is off, and writes nothing then.
const THINKING: &str = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}\
{%- if add_generation_prompt %}{{- '<|im_start|>assistant\n' }}\
{%- if enable_thinking is not defined or enable_thinking %}{{- '<think>' }}{%- endif %}{%- endif %}{#- </think> -#}";

/// The token of the first character of a thought's tag. A bias chooses it wherever a form allows
/// it.
const LESS: u32 = 31;

#[test]
fn thinking_that_is_off_leaves_no_thought_beside_a_form() {
    let parent = tempfile::tempdir().expect("a directory");
    let dir = model::templated(parent.path(), "thinking", THINKING);
    let stack = Stack::ready(&format!("target.model = {dir:?}\ndrafter.model = \"\"\n"));
    let schema = json!({"type": "object", "properties": {"n": {"type": "integer"}},
        "required": ["n"], "additionalProperties": false});
    let format = json!({"type": "json_schema", "json_schema": {"name": "n", "schema": schema}});
    for off in [
        json!({"reasoning_effort": "none"}),
        json!({"chat_template_kwargs": {"enable_thinking": false}}),
        json!({"paceline": {"template_arguments": {"enable_thinking": false}}}),
    ] {
        let mut body = json!({
            "messages": [{"role": "user", "content": "Tell me a joke."}], "max_tokens": 60,
            "temperature": 0.0, "response_format": format, "logit_bias": {LESS.to_string(): 100},
        });
        body.as_object_mut().expect("an object").extend(off.as_object().cloned().expect("one"));
        let answer = served(&stack, "/v1/chat/completions", &body);
        let message = &answer["choices"][0]["message"];
        assert!(message.get("reasoning_content").is_none(), "{answer}");
        assert!(message["content"].as_str().is_some_and(|text| text.starts_with('{')), "{answer}");
        let details = &answer["usage"]["completion_tokens_details"];
        assert_eq!(details["reasoning_tokens"], 0);
    }
    let grammar = Some(Grammar { kind: Some(Kind::JsonSchema(schema.to_string())) });
    let mut ask = chat("Tell me a joke.").max_tokens(60);
    ask.sampling().logit_bias = vec![paceline_proto::v1::LogitBias { token_id: LESS, bias: 100.0 }];
    let off = ChatRequest { grammar, reasoning_effort: "none".into(), ..request(ask) };
    let said = messages(&stack, off.clone());
    assert!(said.iter().all(|message| message.reasoning.is_empty()));
    let text: String = said.iter().map(|message| message.text.as_str()).collect();
    assert!(text.starts_with('{'), "{text}");
    // With thinking on, the template opens a thought, and its tokens are counted.
    let on = ChatRequest { reasoning_effort: "low".into(), grammar: None, ..off };
    let said = messages(&stack, on);
    let last = said.last().and_then(|message| message.r#final.clone()).expect("an end");
    let usage = last.usage.expect("set");
    assert_eq!(usage.reasoning_tokens, usage.completion_tokens);
    stack.stop();
}

/// The text of a prompt's answer, checked: no piece ends inside a character.
fn pieces(stack: &Stack, ask: Ask) -> (String, FinishReason, u64) {
    let Ask::Continue(request) = ask else { panic!("a prompt was meant") };
    let all = stack.block_on(async {
        let mut client = InferenceClient::new(stack.channel());
        let mut stream = client.generate(request).await.expect("served").into_inner();
        let mut all = Vec::new();
        while let Some(message) = stream.message().await.expect("it ends well") {
            all.push(message);
        }
        all
    });
    assert!(all.iter().all(|message| !message.text.contains('\u{FFFD}')), "{all:?}");
    let last = all.last().and_then(|message| message.r#final.clone()).expect("an end");
    let drafted = last.speculation.unwrap_or_default().drafted;
    (all.iter().map(|message| message.text.as_str()).collect(), last.finish_reason(), drafted)
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn characters_of_several_bytes_are_the_same_in_both_lanes_whole_and_streamed() {
    let stack = Stack::drafting("drafter.model = \"lookup\"\n");
    let prompt = "海は広い。👩‍👩‍👧🦀한국어 海は広い。👩‍👩‍👧🦀한국어 海は";
    let regex = "((海は広い。|👩‍👩‍👧|🦀|한국어) ?){9}";
    let ask = |route: RouteWish, stop: &[&str]| {
        let mut ask = continue_text(prompt).max_tokens(400).route(route);
        ask.limits().stop = stop.iter().map(ToString::to_string).collect();
        let Ask::Continue(mut request) = ask else { panic!("a prompt was meant") };
        request.grammar = Some(Grammar { kind: Some(Kind::Regex(regex.into())) });
        Ask::Continue(request)
    };
    let (whole, end, _) = pieces(&stack, ask(RouteWish::Plain, &[]));
    assert_eq!(end, FinishReason::Stop, "{whole}");
    let characters: Vec<char> = whole.chars().collect();
    // From inside a group to inside another one.
    let stop: String = characters[characters.len() / 2..][..3].iter().collect();
    let shown = &whole[..whole.find(&stop).expect("it is there")];
    let mut drafted = 0;
    for route in [RouteWish::Plain, RouteWish::Speculative] {
        let (text, _, tokens) = pieces(&stack, ask(route, &[]));
        assert_eq!(text, whole, "{route:?}");
        drafted += tokens;
        let (text, end, _) = pieces(&stack, ask(route, &["\u{1}", &stop]));
        assert_eq!((text.as_str(), end), (shown, FinishReason::Stop), "{route:?} {stop:?}");
    }
    assert!(drafted > 0, "the other lane drafts");

    let schema = json!({
        "type": "object", "additionalProperties": false, "required": ["town", "note", "again"],
        "properties": {
            "town": {"enum": ["東京🗼", "서울🌆"]},
            "note": {"type": "string", "pattern": "^(海|🦀|é){6}$"},
            "again": {"enum": ["東京🗼 서울🌆"]},
        },
    });
    let mut contents = Vec::new();
    for (route, stop) in [
        ("plain", None),
        ("speculative", None),
        ("plain", Some("京🗼 ")),
        ("speculative", Some("京🗼 ")),
    ] {
        let mut body = json!({
            "messages": [{"role": "user", "content": prompt}], "max_tokens": 300,
            "temperature": 0.0, "paceline": {"route": route},
            "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": schema}},
        });
        if let Some(stop) = stop {
            body["stop"] = stop.into();
        }
        let whole = served(&stack, "/v1/chat/completions", &body);
        let content = whole["choices"][0]["message"]["content"].as_str().expect("text").to_owned();
        assert_eq!(whole["choices"][0]["finish_reason"], "stop", "{whole}");
        let chunks = events(&stack, "/v1/chat/completions", &body);
        assert!(!chunks.iter().any(|chunk| chunk.to_string().contains('\u{FFFD}')), "{chunks:?}");
        assert_eq!(joined(&chunks, "/choices/0/delta/content"), content);
        contents.push(content);
    }
    assert_eq!((&contents[0], &contents[2]), (&contents[1], &contents[3]), "the lanes agree");
    let value: Value = serde_json::from_str(&contents[0]).expect("JSON");
    assert!(jsonschema::validator_for(&schema).expect("a schema").is_valid(&value), "{value}");
    let stopped = contents[0].find("京🗼 ").expect("it is there");
    assert_eq!(contents[2], contents[0][..stopped]);
    stack.stop();
}
