//! Bounds of a body over HTTP, in every protocol: numbers within their ranges, each key once,
//! lists within the bounds of the contract, whole chunks, no compression.

use std::io::Write as _;

use crate::stage::http::{CHAT, COMPLETIONS, HttpClient, RawHttp, Reply, completion};
use crate::stage::{Stage, within};
use http::StatusCode;
use paceline_proto::status::{Reason, ReasonStatus as _};
use serde_json::Value;

const RESPONSES: &str = "/v1/responses";
const MESSAGES: &str = "/v1/messages";
const COUNT: &str = "/v1/messages/count_tokens";

/// The path of the field that an error names.
fn field(reply: &Reply) -> String {
    let error = &reply.json()["error"];
    let named = error.get("param").or_else(|| error.get("field"));
    named.and_then(Value::as_str).unwrap_or_default().to_owned()
}

/// A request that is served, with further fields as text.
fn with(path: &str, more: &str) -> String {
    let base = match path {
        CHAT => r#""messages":[{"role":"user","content":"a"}]"#,
        COMPLETIONS => r#""prompt":"a""#,
        RESPONSES => r#""input":"a""#,
        _ => r#""model":"m","max_tokens":4,"messages":[{"role":"user","content":"a"}]"#,
    };
    format!("{{{base},{more}}}")
}

#[tokio::test]
async fn a_number_of_answers_is_checked_before_anything_is_sized_by_it() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    for path in [CHAT, COMPLETIONS] {
        for n in ["4294967295", "500000000", "2147483648", "17", "0", "-1", "1e300"] {
            for more in ["", r#","logprobs":1"#, r#","stream":true"#] {
                if path == CHAT && more.contains("logprobs") {
                    continue;
                }
                let reply =
                    client.send("POST", path, with(path, &format!("\"n\":{n}{more}"))).await;
                assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path} {n}: {reply:?}");
                assert_eq!(field(&reply), "n", "{path} {n}: {reply:?}");
            }
        }
    }
    let reply = client.send("POST", CHAT, with(CHAT, "\"n\":4294967295")).await;
    let message = reply.error().1;
    let expected = "n: expected a whole number from 1 to 16, found 4294967295";
    assert_eq!(message, expected);
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

/// Bodies in which an object has a key twice, and the field that the refusal names.
fn with_a_key_twice() -> Vec<(&'static str, String, &'static str)> {
    let schema = r#"{"type":"object","properties":{"a":{},"a":{}}}"#;
    let mut bodies = Vec::new();
    for path in [CHAT, COMPLETIONS] {
        bodies.push((path, with(path, r#""logit_bias":{"1":5,"1":-5}"#), "logit_bias"));
        bodies.push((path, with(path, r#""user":"a","user":"b""#), "user"));
        bodies.push((path, with(path, r#""n":1,"n":2"#), "n"));
    }
    for path in [CHAT, RESPONSES, MESSAGES, COUNT] {
        let more = r#""paceline":{"template_arguments":{"x":1,"x":2}}"#;
        bodies.push((path, with(path, more), "paceline.template_arguments"));
        let nested = r#""paceline":{"template_arguments":{"x":{"y":1,"y":2}}}"#;
        bodies.push((path, with(path, nested), "paceline.template_arguments"));
        let more = r#""temperature":1,"temperature":0"#;
        bodies.push((path, with(path, more), "temperature"));
    }
    bodies.extend([
        (CHAT, with(CHAT, r#""metadata":{"a":1,"a":2}"#), "body"),
        (CHAT, with(CHAT, r#""chat_template_kwargs":{"a":1,"a":2}"#), "chat_template_kwargs"),
        (
            CHAT,
            with(CHAT, &format!(r#""tools":[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]"#)),
            "tools[0].function.parameters",
        ),
        (
            CHAT,
            with(CHAT, r#""tool_choice":{"type":"function","function":{"name":"f","name":"g"}}"#),
            "tool_choice",
        ),
        (CHAT, with(CHAT, r#""tool_choice":{"type":"function","type":"x"}"#), "tool_choice.type"),
        (
            CHAT,
            with(CHAT, &format!(r#""response_format":{{"type":"json_schema","json_schema":{{"schema":{schema}}}}}"#)),
            "response_format.json_schema.schema",
        ),
        (CHAT, r#"{"messages":[{"role":"user","role":"system","content":"a"}]}"#.into(), "messages[0].role"),
        (
            CHAT,
            r#"{"messages":[{"role":"user","content":"a","refusal":null,"refusal":null}]}"#.into(),
            "messages[0].refusal",
        ),
        (RESPONSES, with(RESPONSES, r#""metadata":{"a":"1","a":"2"}"#), "metadata"),
        (RESPONSES, with(RESPONSES, r#""user":"a","user":"b""#), "user"),
        (RESPONSES, with(RESPONSES, r#""prompt_cache_key":{"a":1,"a":2}"#), "body"),
        (
            RESPONSES,
            with(RESPONSES, &format!(r#""tools":[{{"type":"function","name":"f","parameters":{schema}}}]"#)),
            "tools[0]",
        ),
        (RESPONSES, with(RESPONSES, r#""tools":[{"type":"web_search","a":1,"a":2}]"#), "tools[0]"),
        (
            RESPONSES,
            with(RESPONSES, &format!(r#""text":{{"format":{{"type":"json_schema","schema":{schema}}}}}"#)),
            "text.format.schema",
        ),
        (
            RESPONSES,
            r#"{"input":[{"role":"user","role":"system","content":"a"}]}"#.into(),
            "input[0].role",
        ),
        (
            RESPONSES,
            r#"{"input":[{"type":"message","role":"user","content":[{"type":"input_text","text":"a","text":"b"}]}]}"#
                .into(),
            "input[0]",
        ),
        (MESSAGES, with(MESSAGES, r#""metadata":{"a":1,"a":2}"#), "body"),
        (MESSAGES, with(MESSAGES, r#""betas":[],"betas":[]"#), "betas"),
        (
            MESSAGES,
            with(MESSAGES, &format!(r#""tools":[{{"name":"f","input_schema":{schema}}}]"#)),
            "tools[0].input_schema",
        ),
        (
            MESSAGES,
            with(MESSAGES, &format!(r#""output_config":{{"format":{{"type":"json_schema","schema":{schema}}}}}"#)),
            "output_config.format.schema",
        ),
        (
            MESSAGES,
            with(MESSAGES, r#""context_management":{"edits":[{"type":"a","type":"b"}]}"#),
            "context_management.edits[0]",
        ),
        (
            MESSAGES,
            r#"{"model":"m","max_tokens":4,"messages":[{"role":"user","content":[{"type":"text","text":"a","text":"b"}]}]}"#
                .into(),
            "messages[0].content[0]",
        ),
    ]);
    bodies
}

#[tokio::test]
async fn a_key_that_comes_twice_is_refused_wherever_objects_are_read() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    for (path, body, expected) in with_a_key_twice() {
        let reply = client.send("POST", path, body.clone()).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path} {body}: {reply:?}");
        let message = reply.error().1;
        assert!(message.contains("twice") || message.contains("duplicate"), "{body}: {message}");
        assert!(field(&reply).starts_with(expected), "{path} {body}: {reply:?}");
    }
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn of_a_key_twice_in_arguments_of_an_earlier_tool_call_the_last_value_counts() {
    let mut exchange = crate::stage::exchange::Exchange::serving().await;
    let arguments = r#"{\"a\": 1, \"a\": 2}"#;
    let bodies = [
        (CHAT, format!(
            r#"{{"messages":[{{"role":"user","content":"q"}},{{"role":"assistant","tool_calls":[{{"id":"c","type":"function","function":{{"name":"f","arguments":"{arguments}"}}}}]}},{{"role":"tool","tool_call_id":"c","content":"r"}}]}}"#
        )),
        (RESPONSES, format!(
            r#"{{"input":[{{"role":"user","content":"q"}},{{"type":"function_call","call_id":"c","name":"f","arguments":"{arguments}"}},{{"type":"function_call_output","call_id":"c","output":"r"}}]}}"#
        )),
        (MESSAGES, r#"{"model":"m","max_tokens":4,"messages":[{"role":"user","content":"q"},{"role":"assistant","content":[{"type":"tool_use","id":"c","name":"f","input":{"a":1,"a":2}}]},{"role":"user","content":[{"type":"tool_result","tool_use_id":"c","content":"r"}]}]}"#.to_owned()),
    ];
    for (path, body) in bodies {
        let answer = crate::stage::exchange::Answer { text: "ok", cached: 0 };
        let served = exchange.answered_text(path, body, &answer).await;
        assert_eq!(served.reply.status, StatusCode::OK, "{path}: {}", served.reply.body);
        let prompt = exchange.text(&served.prompt);
        assert!(prompt.contains(r#""arguments": {"a": 2}"#), "{path}: {prompt}");
    }
}

/// A list of JSON texts.
fn list(item: &str, count: usize) -> String {
    format!("[{}]", vec![item; count].join(","))
}

/// A list of tools with names of their own.
fn tools(count: usize, tool: impl Fn(usize) -> String) -> String {
    let tools: Vec<String> = (0..count).map(tool).collect();
    format!("[{}]", tools.join(","))
}

/// Bodies with one list that is too long, and the field of the list.
fn with_a_long_list() -> Vec<(&'static str, String, &'static str, usize)> {
    let turn = r#"{"role":"user","content":"a"}"#;
    let chat_tool = |at| format!(r#"{{"type":"function","function":{{"name":"f{at}"}}}}"#);
    let flat_tool = |at| format!(r#"{{"type":"function","name":"f{at}"}}"#);
    let schema_tool = |at| format!(r#"{{"name":"f{at}","input_schema":{{"type":"object"}}}}"#);
    let call = r#"{"id":"c","function":{"name":"f","arguments":"{}"}}"#;
    let text = r#"{"type":"text","text":"a"}"#;
    let use_block = r#"{"type":"tool_use","id":"c","name":"f","input":{}}"#;
    let of_messages = |turns: &str| format!(r#"{{"model":"m","max_tokens":4,"messages":{turns}}}"#);
    let one_turn =
        |role: &str, content: &str| format!(r#"[{{"role":"{role}","content":{content}}}]"#);
    let mut bodies = vec![
        (CHAT, format!(r#"{{"messages":{}}}"#, list(turn, 20_000)), "messages", 16_384),
        (
            CHAT,
            format!(r#"{{"messages":{}}}"#, one_turn("user", &list(text, 5_000))),
            "messages[0].content",
            4_096,
        ),
        (
            CHAT,
            format!(
                r#"{{"messages":[{{"role":"assistant","tool_calls":{}}}]}}"#,
                list(call, 1_100)
            ),
            "messages[0].tool_calls",
            1_024,
        ),
        (CHAT, with(CHAT, &format!(r#""tools":{}"#, tools(1_100, chat_tool))), "tools", 1_024),
        (CHAT, with(CHAT, &format!(r#""tools":{}"#, tools(13_000, chat_tool))), "tools", 1_024),
        (
            CHAT,
            with(CHAT, &format!(r#""tool_choice":"none","tools":{}"#, tools(1_100, chat_tool))),
            "tools",
            1_024,
        ),
        (RESPONSES, format!(r#"{{"input":{}}}"#, list(turn, 20_000)), "input", 16_384),
        (
            RESPONSES,
            format!(
                r#"{{"input":{}}}"#,
                one_turn("user", &list(r#"{"type":"input_text","text":"a"}"#, 5_000))
            ),
            "input[0].content",
            4_096,
        ),
        (
            RESPONSES,
            with(RESPONSES, &format!(r#""tools":{}"#, tools(1_100, flat_tool))),
            "tools",
            1_024,
        ),
        (
            RESPONSES,
            with(RESPONSES, &format!(r#""tools":{}"#, list(r#"{"type":"web_search"}"#, 1_100))),
            "tools",
            1_024,
        ),
        (
            RESPONSES,
            with(
                RESPONSES,
                &format!(
                    r#""tools":[{{"type":"namespace","name":"g","tools":{}}}]"#,
                    tools(1_100, flat_tool)
                ),
            ),
            "tools[0].tools",
            1_024,
        ),
    ];
    for path in [MESSAGES, COUNT] {
        bodies.extend([
            (path, of_messages(&list(turn, 20_000)), "messages", 16_384),
            (
                path,
                of_messages(&one_turn("user", &list(text, 5_000))),
                "messages[0].content",
                4_096,
            ),
            (
                path,
                of_messages(&format!(
                    r#"[{{"role":"assistant","content":{}}},{turn}]"#,
                    list(use_block, 1_100)
                )),
                "messages[0].content",
                1_024,
            ),
            (
                path,
                with(path, &format!(r#""tools":{}"#, tools(1_100, schema_tool))),
                "tools",
                1_024,
            ),
        ]);
    }
    bodies
}

#[tokio::test]
async fn lists_have_the_bounds_of_the_contract_in_every_protocol() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let client = HttpClient::new(stage.http);
    for (path, body, expected, limit) in with_a_long_list() {
        let reply = client.send("POST", path, body).await;
        assert_eq!(reply.status, StatusCode::BAD_REQUEST, "{path} {expected}: {reply:?}");
        let message = reply.error().1;
        assert!(message.contains(&format!("at most {limit} elements")), "{expected}: {message}");
        assert_eq!(field(&reply), expected, "{path}: {message}");
    }
    let ids = list("7", (1 << 20) + 1);
    let reply = client.send("POST", COMPLETIONS, format!(r#"{{"prompt":{ids}}}"#)).await;
    assert_eq!(reply.status, StatusCode::BAD_REQUEST);
    assert_eq!(field(&reply), "prompt", "{reply:?}");
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn a_broken_body_in_chunks_is_answered_400() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    for path in [CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT] {
        for body in [
            "zz\r\n{}\r\n0\r\n\r\n",
            "-1\r\n{}\r\n0\r\n\r\n",
            "2\r\n{}xx0\r\n\r\n",
            "ffffffffffffffffff\r\n{}",
            "\r\n{}\r\n0\r\n\r\n",
            "2 {}\r\n",
            "2\n{}\n0\n\n",
        ] {
            let mut stream = RawHttp::connect(stage.http).await;
            let head = format!(
                "POST {path} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
            );
            stream.write(format!("{head}{body}")).await;
            let answer = stream.read().await;
            assert!(answer.starts_with("HTTP/1.1 400 "), "{path} {body:?}: {answer}");
            assert!(answer.contains("body: expected chunks"), "{path} {body:?}: {answer}");
        }
    }
    // Cut before the last chunk, by a client that waits for the answer.
    for body in ["5\r\n{}", "2\r\n{}\r\n", ""] {
        let mut stream = RawHttp::connect(stage.http).await;
        let head = format!(
            "POST {CHAT} HTTP/1.1\r\nhost: localhost\r\ntransfer-encoding: chunked\r\n\r\n"
        );
        stream.write(format!("{head}{body}")).await;
        tokio::io::AsyncWriteExt::shutdown(&mut stream.0).await.expect("open");
        let answer = stream.read().await;
        assert!(answer.is_empty() || answer.starts_with("HTTP/1.1 400 "), "{body:?}: {answer}");
    }
    assert!(fake.submissions.try_recv().is_err(), "nothing was submitted");
}

#[tokio::test]
async fn a_compressed_body_is_answered_415_with_a_sentence() {
    let (stage, mut fake, _attachment) = Stage::serving(|_| {}).await;
    let mut packed = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    packed.write_all(completion().to_string().as_bytes()).expect("memory");
    let packed = packed.finish().expect("memory");
    for client in [HttpClient::new(stage.http), HttpClient::http2(stage.http)] {
        for path in [CHAT, COMPLETIONS, RESPONSES, MESSAGES, COUNT] {
            for encoding in ["gzip", "zstd", "br", "deflate", "identity, gzip", "aws-chunked"] {
                let client = client.with("content-encoding", encoding);
                let reply = client.send("POST", path, packed.clone()).await;
                assert_eq!(reply.status, StatusCode::UNSUPPORTED_MEDIA_TYPE, "{path} {encoding}");
                let message = reply.error().1;
                assert!(message.contains("content-encoding: expected none"), "{message}");
                assert_eq!(reply.header("accept-encoding"), Some("identity"));
            }
        }
        let plain = client.with("content-encoding", "identity");
        let body = completion();
        let (reply, ()) = within(async {
            tokio::join!(plain.post(COMPLETIONS, &body), async {
                fake.submission().await.refuse(Reason::KvExhausted.status("full"));
            })
        })
        .await;
        assert!(reply.error().1.contains("full"), "it was submitted: {reply:?}");
    }
    assert!(fake.submissions.try_recv().is_err(), "nothing else was submitted");
}
