//! Answers that are held to a format, through the whole service: schemas and forced tool calls over
//! every protocol, in both lanes, each valid by another implementation of JSON schema.

use std::io::{Read as _, Write as _};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::time::Duration;

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::grammar::Kind;
use paceline_proto::v1::{self, Grammar, RouteWish};
use paceline_tests::ask::Ask;
use paceline_tests::model::{Weights, single, templated};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, chat, continue_text, repository, wait};
use serde_json::{Value, json};

/// A service of the demo model with the template of a family with tool calls, and its drafter.
fn tooled() -> Stack {
    let mut stack = Stack::new("");
    let dir = single(&stack.path(""), "tooled", &Weights::demo().bytes());
    let template = repository().join("text/tests/templates/qwen3.jinja");
    std::fs::copy(template, dir.join("chat_template.jinja")).expect("copied");
    let drafter = repository().join("demo/drafter");
    stack.set(&format!("target.model = {dir:?}\ndrafter.model = {drafter:?}\n"));
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();
    stack
}

/// The status and the body of an answer.
fn post(stack: &Stack, path: &str, body: &Value) -> (u16, Value) {
    let (address, body) = (stack.http_address(), body.to_string());
    let mut stream = TcpStream::connect(&address).expect("it listens");
    stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a timeout");
    let length = body.len();
    let head = format!(
        "POST {path} HTTP/1.1\r\nhost: {address}\r\nconnection: close\r\ncontent-type: application/json\r\ncontent-length: {length}\r\n\r\n"
    );
    stream.write_all((head + &body).as_bytes()).expect("sent");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("text");
    let status = answer.split(' ').nth(1).and_then(|code| code.parse().ok()).expect("a status");
    let body = answer.split_once("\r\n\r\n").expect("a body").1;
    (status, serde_json::from_str(body).unwrap_or_else(|error| panic!("{error}: {answer}")))
}

fn served(stack: &Stack, path: &str, body: &Value) -> Value {
    let (status, answer) = post(stack, path, body);
    assert_eq!(status, 200, "{answer}");
    answer
}

/// A schema whose answers are short. It says nothing of further fields, and has a base.
fn event() -> Value {
    json!({
        "$defs": {"Named": {
            "type": "object",
            "properties": {
                "name": {"type": "string", "maxLength": 12},
                "kind": {"enum": ["talk", "walk"]},
            },
        }},
        "type": "object",
        "allOf": [{"$ref": "#/$defs/Named"}],
        "properties": {
            "day": {"type": "integer", "minimum": 1, "maximum": 31},
            "tags": {"type": "array", "items": {"type": "string", "maxLength": 4}, "maxItems": 2},
        },
        "required": ["name", "kind", "day", "tags"],
    })
}

/// Checks that a text is valid, and that its object has the declared fields alone.
#[track_caller]
fn check(schema: &Value, text: &str) {
    let mut schema = schema.clone();
    schema["unevaluatedProperties"] = Value::Bool(false);
    let value: Value =
        serde_json::from_str(text).unwrap_or_else(|error| panic!("{error}: {text:?}"));
    assert!(jsonschema::validator_for(&schema).expect("a schema").is_valid(&value), "{text}");
}

/// The fields of a request of OpenAI's chat, greedy and without thoughts.
fn openai(route: &str, more: Value) -> Value {
    let mut body = json!({
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
        "max_tokens": 300, "temperature": 0.0, "seed": 5,
        "chat_template_kwargs": {"enable_thinking": false}, "paceline": {"route": route},
    });
    body.as_object_mut().expect("an object").extend(more.as_object().cloned().expect("an object"));
    body
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all protocols.
fn every_protocol_holds_the_answer_to_a_schema() {
    let stack = tooled();
    let schema = json!({"type": "json_schema", "json_schema": {"name": "event", "schema": event(), "strict": true}});
    for more in [json!({}), json!({"temperature": 0.9, "top_p": 0.95, "presence_penalty": 0.4})] {
        let mut format = more;
        format["response_format"] = schema.clone();
        let content = |route: &str| {
            let answer = served(&stack, "/v1/chat/completions", &openai(route, format.clone()));
            assert_eq!(answer["choices"][0]["finish_reason"], "stop", "{answer}");
            answer["choices"][0]["message"]["content"].as_str().expect("text").to_owned()
        };
        let (plain, speculative) = (content("plain"), content("speculative"));
        assert_eq!(plain, speculative, "the lanes agree");
        check(&event(), &plain);
    }
    let several = json!({"n": 3, "temperature": 1.0, "logprobs": true, "response_format": schema});
    let answer = served(&stack, "/v1/chat/completions", &openai("speculative", several));
    let contents: Vec<&str> = (0..3)
        .map(|at| answer["choices"][at]["message"]["content"].as_str().expect("text"))
        .collect();
    contents.iter().for_each(|content| check(&event(), content));
    let object = json!({"response_format": {"type": "json_object"}, "logit_bias": {}});
    let answer = served(&stack, "/v1/chat/completions", &openai("auto", object));
    let content = answer["choices"][0]["message"]["content"].as_str().expect("text");
    assert!(content.starts_with('{'), "{content}");

    let body = json!({
        "input": "Tell me about the sea.", "max_output_tokens": 300, "temperature": 0.0,
        "reasoning": {"effort": "none"},
        "text": {"format": {"type": "json_schema", "name": "event", "schema": event()}},
    });
    let answer = served(&stack, "/v1/responses", &body);
    assert_eq!(answer["text"]["format"]["type"], "json_schema");
    let content = answer["output"][0]["content"][0]["text"].as_str().expect("text");
    check(&event(), content);

    let body = json!({
        "model": "m", "max_tokens": 300, "temperature": 0.0, "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": "Tell me about the sea."}],
        "output_config": {"format": {"type": "json_schema", "schema": event()}},
    });
    let answer = served(&stack, "/v1/messages", &body);
    check(&event(), answer["content"][0]["text"].as_str().expect("text"));

    let regex = "(sun|rain|snow), [0-9]{1,2} degrees";
    for route in [RouteWish::Plain, RouteWish::Speculative] {
        let answer = held(&stack, Kind::Regex(regex.into()), route);
        let (word, rest) = answer.text.split_once(", ").expect("two parts");
        assert!(["sun", "rain", "snow"].contains(&word) && rest.ends_with(" degrees"), "{rest}");
        let lark = "start: \"a\" B+ \"c\"?\nB: /b{1,3}/\n";
        let answer = held(&stack, Kind::Lark(lark.into()), route);
        assert!(answer.text.starts_with("ab"), "{:?}", answer.text);
    }
    stack.stop();
}

/// The answer to a prompt that is held to a grammar.
fn held(stack: &Stack, kind: Kind, route: RouteWish) -> Answer {
    let Ask::Continue(request) = continue_text("The weather: ").max_tokens(60).route(route) else {
        panic!("a prompt was meant")
    };
    let grammar = Some(Grammar { kind: Some(kind) });
    stack.ask(Ask::Continue(v1::GenerateRequest { grammar, ..request })).expect("an answer")
}

#[test]
fn forced_and_strict_tool_calls_follow_the_tools() {
    let stack = tooled();
    let function =
        json!({"name": "add", "description": "Adds", "strict": true, "parameters": event()});
    let other =
        json!({"name": "list", "parameters": {"type": "object", "additionalProperties": false}});
    let tools = json!([{"type": "function", "function": function}, {"type": "function", "function": other}]);
    let calls = |choice: Value, route: &str| {
        let more = json!({"tools": tools, "tool_choice": choice, "parallel_tool_calls": false});
        let answer = served(&stack, "/v1/chat/completions", &openai(route, more));
        let choice = &answer["choices"][0];
        assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
        choice["message"]["tool_calls"][0]["function"].clone()
    };
    let named = json!({"type": "function", "function": {"name": "add"}});
    let plain = calls(named.clone(), "plain");
    assert_eq!(plain["name"], "add");
    check(&event(), plain["arguments"].as_str().expect("text"));
    assert_eq!(plain, calls(named, "speculative"), "the lanes agree");
    let any = calls(json!("required"), "auto");
    assert!(any["name"] == "add" || any["name"] == "list", "{any}");

    let body = json!({
        "input": "Add it.", "max_output_tokens": 300, "temperature": 0.0, "reasoning": {"effort": "none"},
        "tools": [{"type": "function", "name": "add", "parameters": event(), "strict": true}],
        "tool_choice": {"type": "function", "name": "add"}, "parallel_tool_calls": false,
    });
    let answer = served(&stack, "/v1/responses", &body);
    assert_eq!(answer["output"][0]["type"], "function_call", "{answer}");
    check(&event(), answer["output"][0]["arguments"].as_str().expect("text"));

    let body = json!({
        "model": "m", "max_tokens": 300, "temperature": 0.0, "thinking": {"type": "disabled"},
        "messages": [{"role": "user", "content": "Add it."}],
        "tools": [{"name": "add", "input_schema": event(), "strict": true}],
        "tool_choice": {"type": "tool", "name": "add", "disable_parallel_tool_use": true},
    });
    let answer = served(&stack, "/v1/messages", &body);
    assert_eq!(answer["content"][0]["type"], "tool_use", "{answer}");
    check(&event(), &answer["content"][0]["input"].to_string());
    stack.stop();
}

#[test]
fn forced_calls_end_at_the_line_break_that_a_model_writes_after_one() {
    let stack = tooled();
    let parameters = json!({"type": "object", "properties": {"unit": {"enum": ["C", "F"]}}, "required": ["unit"]});
    let function = json!({"name": "get_weather", "parameters": parameters});
    // The bias stands for the habit of Qwen2.5-Coder: a line break (id 202) wherever it may be, and
    // else the end of the answer (id 2) in place of another call.
    let habit = json!({"202": 100, "2": 60});
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for choice in [json!("required"), named] {
        for route in ["plain", "speculative"] {
            let more = json!({
                "tools": [{"type": "function", "function": function}], "tool_choice": choice,
                "logit_bias": habit, "max_tokens": 200,
            });
            let answer = served(&stack, "/v1/chat/completions", &openai(route, more));
            let choice = &answer["choices"][0];
            assert_eq!(choice["finish_reason"], "tool_calls", "{answer}");
            let calls = choice["message"]["tool_calls"].as_array().expect("calls");
            assert_eq!(calls.len(), 1, "{answer}");
        }
    }
    stack.stop();
}

/// The embedded target with a template that opens a thought, and tags of thoughts that are tokens.
fn thinking(parent: &Path) -> PathBuf {
    let template = "{%- for m in messages %}{{- '<|im_start|>' + m.role + '\n' + m.content + '<|im_end|>\n' }}{%- endfor %}\
        {%- if add_generation_prompt %}{{- '<|im_start|>assistant\n<think>' }}{%- endif %}{#- </think> -#}";
    let dir = templated(parent, "thinking", template);
    let path = dir.join("tokenizer.json");
    let text = std::fs::read_to_string(&path).expect("readable");
    let text = text.replace("<|endoftext|>", "<think>").replace("<|mask|>", "</think>");
    std::fs::write(path, text).expect("written");
    dir
}

#[test]
fn a_thought_ends_at_its_budget_in_every_protocol() {
    const BUDGET: u64 = 12;
    let mut stack = Stack::new("");
    let dir = thinking(&stack.path(""));
    stack.set(&format!("target.model = {dir:?}\ndrafter.model = \"lookup\"\n"));
    stack.serve();
    stack.wait_ready();
    stack.wait_linked();
    let messages = json!([{"role": "user", "content": "Tell me about the sea."}]);
    // No answer ends by itself before the thought's budget.
    let ask = |path: &str, more: Value| {
        let mut body =
            json!({"model": "m", "messages": messages, "max_tokens": 40, "temperature": 0.0});
        let (body_fields, more) =
            (body.as_object_mut().expect("an object"), more.as_object().cloned());
        body_fields.extend(more.expect("an object"));
        served(&stack, path, &body)
    };
    let chat = |more: Value, route: &str| {
        let mut more = more;
        more["paceline"] = json!({"route": route});
        more["logit_bias"] = json!({"2": -100});
        let answer = ask("/v1/chat/completions", more);
        let spent = answer["usage"]["completion_tokens_details"]["reasoning_tokens"].as_u64();
        (answer["choices"][0]["message"].clone(), spent.expect("a number"))
    };
    let (free, spent) = chat(json!({}), "plain");
    assert!(spent > BUDGET + 4 && free["content"].as_str().is_none_or(str::is_empty), "{free}");
    for budget in [
        json!({"reasoning": {"max_tokens": BUDGET}}),
        json!({"thinking": {"type": "enabled", "budget_tokens": BUDGET}}),
    ] {
        let (plain, spent) = chat(budget.clone(), "plain");
        // The tokens of the end count as the model's own.
        assert!((BUDGET..BUDGET + 4).contains(&spent), "{spent}: {plain}");
        let thought = plain["reasoning_content"].as_str().expect("a thought");
        let whole = free["reasoning_content"].as_str().expect("a thought");
        assert!(whole.starts_with(thought.trim_end()) && thought.len() < whole.len(), "{plain}");
        assert!(plain["content"].as_str().is_some_and(|content| !content.is_empty()), "{plain}");
        assert_eq!((plain, spent), chat(budget, "speculative"), "the lanes agree");
    }
    let budget = json!({"thinking": {"type": "enabled", "budget_tokens": BUDGET}});
    let answer = ask("/v1/messages", budget);
    let kinds: Vec<_> =
        answer["content"].as_array().expect("blocks").iter().map(|block| &block["type"]).collect();
    assert_eq!(kinds, ["thinking", "text"], "{answer}");
    let Ask::Chat(request) = paceline_tests::chat("Tell me about the sea.").max_tokens(40) else {
        panic!("a conversation was meant")
    };
    let thinking_budget = Some(BUDGET as u32);
    let answer =
        stack.ask(Ask::Chat(v1::ChatRequest { thinking_budget, ..request })).expect("served");
    let spent = answer.end.usage.as_ref().expect("counted").reasoning_tokens;
    assert!((BUDGET..BUDGET + 4).contains(&u64::from(spent)), "{answer:?}");
    stack.stop();
}

#[test]
fn what_cannot_be_enforced_is_refused_with_its_path() {
    let stack = tooled();
    let refused = |path: &str, body: Value, field: &str, word: &str| {
        let (status, answer) = post(&stack, path, &body);
        assert_eq!(status, 400, "{answer}");
        let text = answer["error"].to_string();
        assert!(text.contains(field) && text.contains(word), "{field} and {word} in {answer}");
    };
    let unserved = json!({"type": "object", "properties": {"a": {"not": {}}}});
    let format = |schema: &Value| json!({"response_format": {"type": "json_schema", "json_schema": {"schema": schema}}});
    let (chat_path, field) = ("/v1/chat/completions", "response_format.json_schema.schema");
    refused(chat_path, openai("auto", format(&unserved)), field, "not at properties.a.not");
    let looks = json!({"type": "object", "properties": {"code": {"type": "string", "pattern": "^(?!a)b$"}}});
    let place =
        "properties.code.pattern, found `(?!` at character 2 of `^(?!a)b$`, which looks around";
    refused(chat_path, openai("auto", format(&looks)), field, place);
    let deep = (0..66).fold(json!({}), |inner, _| json!({ "items": inner }));
    refused(chat_path, openai("auto", format(&deep)), field, "64 levels");
    let function = json!({"name": "f", "strict": true, "parameters": unserved});
    let tools = json!({"tools": [{"type": "function", "function": function}]});
    refused(chat_path, openai("auto", tools), "tools[0].function.parameters", "not at");
    let mut waits = format(&event());
    waits["min_tokens"] = json!(3);
    refused(chat_path, openai("auto", waits), "min_tokens", "ends where the form does");
    let missing = json!({"tool_choice": "required"});
    refused(chat_path, openai("auto", missing), "tool_choice", "none");
    let body =
        json!({"input": "Hi", "text": {"format": {"type": "json_schema", "schema": unserved}}});
    refused("/v1/responses", body, "text.format.schema", "not at");

    let Ask::Chat(request) = chat("Hi").max_tokens(9) else { panic!("a conversation was meant") };
    let grammar = Some(Grammar { kind: Some(Kind::Regex("a(?=b)".into())) });
    let status = stack.ask(Ask::Chat(v1::ChatRequest { grammar, ..request })).expect_err("refused");
    assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument), "{status}");
    // The service goes on.
    stack.ask(chat("Hi").max_tokens(3)).expect("an answer");
    stack.stop();
}

/// Tokens a second between the first and the last step.
fn rate(answer: &Answer) -> f64 {
    let (first, last) = (answer.step_ends_ns.first(), answer.step_ends_ns.last());
    let seconds = (last.expect("steps") - first.expect("steps")) as f64 / 1e9;
    (answer.ids.len() - 1) as f64 / seconds
}

#[test]
#[ignore = "soak: timed"]
fn the_speed_of_an_answer_that_is_held_to_a_schema() {
    const TOKENS: u32 = 200;
    let item = json!({"type": "object", "properties": {
        "name": {"type": "string", "maxLength": 12}, "count": {"type": "integer", "minimum": 0, "maximum": 999},
    }, "required": ["name", "count"], "additionalProperties": false});
    let schema = json!({"type": "array", "items": item, "minItems": 40}).to_string();
    let prompt =
        "[{\"name\": \"apples\", \"count\": 12}, {\"name\": \"pears\", \"count\": 7}]\nMore: ";
    for drafter in ["auto", "lookup"] {
        let stack = Stack::drafting(&format!("drafter.model = {drafter:?}\n"));
        let run = |is_held: bool, route: RouteWish| {
            let ask = continue_text(prompt).exactly(TOKENS).route(route);
            let Ask::Continue(mut request) = ask else { panic!("a prompt was meant") };
            if is_held {
                request.grammar = Some(Grammar { kind: Some(Kind::JsonSchema(schema.clone())) });
                request.limits =
                    Some(v1::Limits { max_tokens: Some(TOKENS), ..Default::default() });
            }
            let mut best = (0.0, Answer::default());
            for _ in 0..5 {
                let answer = stack.ask(Ask::Continue(request.clone())).expect("an answer");
                best = if rate(&answer) > best.0 { (rate(&answer), answer) } else { best };
            }
            best
        };
        let (free, _) = run(false, RouteWish::Plain);
        let (held, plain) = run(true, RouteWish::Plain);
        let (fast, speculative) = run(true, RouteWish::Speculative);
        assert_eq!(plain.ids, speculative.ids, "the lanes agree");
        let counts = speculative.speculation();
        println!(
            "drafter {drafter}: plain {free:.1} tokens/s, with a schema {held:.1} ({:.2}); speculative with it {fast:.1} ({:.2}), {} of {} drafts accepted",
            held / free,
            fast / held,
            counts.accepted,
            counts.drafted
        );
        stack.stop();
    }
}

/// A schema that takes the compiler long. Each `at` makes another one.
fn dear(at: usize) -> Value {
    let text = json!({"type": "string", "maxLength": 8_000});
    let properties = (0..500).map(|n| (format!("property_{at}_{n:03}"), text.clone()));
    json!({"type": "object", "properties": properties.collect::<serde_json::Map<_, _>>()})
}

#[test]
fn requests_without_a_schema_are_served_while_dear_schemas_compile() {
    const DEAR: usize = 6;
    // One running place: a request that waited for the compiler in it would hold up all others.
    let stack =
        Stack::ready("drafter.model = \"\"\ntarget.max_sequences = 1\nlimits.queue_wait_s = 60\n");
    let held: Vec<_> = (0..DEAR)
        .map(|at| {
            let ask = continue_text("A thing: ").max_tokens(2);
            let Ask::Continue(request) = ask else { panic!("a prompt was meant") };
            let grammar = Some(Grammar { kind: Some(Kind::JsonSchema(dear(at).to_string())) });
            stack.start(Ask::Continue(v1::GenerateRequest { grammar, ..request }))
        })
        .collect();
    wait("the dear requests to be there", || {
        let scraped = stack.http_get("/metrics").ok()?.body;
        let series = scraped.lines().filter_map(|line| line.rsplit_once(' '));
        let counted = series.filter(|(name, _)| {
            name.starts_with("paceline_calls") || name.starts_with("paceline_requests_total")
        });
        let all: f64 = counted.filter_map(|(_, value)| value.parse::<f64>().ok()).sum();
        (all >= DEAR as f64).then_some(())
    });
    let plain = stack.start(continue_text("The sea: ").max_tokens(2)).ended();
    plain.outcome.expect("served");
    let held: Vec<_> = held.into_iter().map(Pending::ended).collect();
    let before = held.iter().filter(|request| request.ended_ns < plain.ended_ns).count();
    println!("{before} of {DEAR} dear requests ended before the plain one");
    assert!(before < DEAR / 2, "{before} of {DEAR} dear requests came first");
    // The dear ones are served, too.
    for request in held {
        request.outcome.expect("served");
        assert!(request.answer.text.starts_with('{'), "{:?}", request.answer.text);
    }
    stack.stop();
}

#[test]
#[ignore = "needs Qwen2.5-Coder-1.5B-Instruct in 4 bits, in the directory that PACELINE_TEST_CODER names"]
fn forced_tool_calls_of_a_real_model_end_by_themselves() {
    let dir = std::env::var_os("PACELINE_TEST_CODER").expect("it names a checkpoint");
    let dir = dir.into_string().expect("UTF-8");
    let stack = Stack::ready(&format!("target.model = {dir:?}\ndrafter.model = \"\"\n"));
    let tool = |name: &str, properties: Value| {
        let required: Vec<String> =
            properties.as_object().expect("an object").keys().cloned().collect();
        let parameters = json!({"type": "object", "properties": properties, "required": required});
        json!({"type": "function", "function": {"name": name, "parameters": parameters}})
    };
    let weather =
        json!({"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}});
    let hour = json!({"type": "integer", "minimum": 0, "maximum": 23});
    let alarm = json!({"hour": hour, "label": {"type": "string", "maxLength": 16}});
    let tools = json!([tool("get_weather", weather), tool("set_alarm", alarm)]);
    let named = json!({"type": "function", "function": {"name": "get_weather"}});
    for place in ["Paris", "Oslo", "Cairo", "Lima", "the kitchen"] {
        for question in
            ["How warm is it in PLACE?", "Wake me at 7 in PLACE.", "Hi from PLACE", "PLACE"]
        {
            let question = question.replace("PLACE", place);
            let choice = if question.len() % 2 == 0 { json!("required") } else { named.clone() };
            let body = json!({
                "messages": [{"role": "user", "content": question}],
                "tools": tools, "tool_choice": choice, "max_tokens": 200, "temperature": 0.0,
            });
            let answer = served(&stack, "/v1/chat/completions", &body);
            assert_eq!(answer["choices"][0]["finish_reason"], "tool_calls", "{question}: {answer}");
        }
    }
}
