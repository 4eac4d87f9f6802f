//! Extreme numbers and mutated bodies at the program itself (C14): no request of them is a fault of
//! the service, none ends the gateway, and its memory stays small. The fields are those of
//! `docs/openapi.json`, so a new number of a request is tried without a change here.

// The kernel's figures of a process's memory are those of Linux.
#![cfg(target_os = "linux")]

mod stage;

use std::collections::HashSet;
use std::path::Path;

use futures::StreamExt as _;
use http::StatusCode;
use paceline_process::task;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1;
use serde_json::{Map, Value, json};
use stage::http::{CHAT, COMPLETIONS, HttpClient};
use stage::program::Program;
use stage::supervisor::{Fake, Submission};
use stage::within;
use tonic::Code;

/// Most memory of the gateway, at any time (goal C14).
const MAX_MEMORY: u64 = 300 << 20;
/// Requests that are sent at once.
const AT_ONCE: usize = 8;
/// The goals' counts.
const NUMBERS: usize = 811;
const MUTATIONS: usize = 19_000;

/// Numbers as a body may have them, and texts that are nearly numbers.
const VALUES: &str = "\
    0 -0 -0.0 1 -1 2 16 17 20 21 127 128 255 256 32767 32768 65535 65536 100000000 500000000 \
    2147483647 2147483648 -2147483648 -2147483649 4294967294 4294967295 4294967296 \
    9007199254740992 9007199254740993 9223372036854775807 9223372036854775808 \
    -9223372036854775808 -9223372036854775809 18446744073709551615 18446744073709551616 0.1 1.0 \
    1e1 1E+2 -1e-5 1e-45 5e-324 1e-308 -1e-308 1e-400 3.4e38 3.5e38 1e308 -1e308 \
    1.7976931348623157e308 1e309 1e999 -1e999 1e2147483648 NaN Infinity -Infinity \"NaN\" \"1\" \
    null true [] {} [1] 01 +1 .5 1. 0x10 1_000 --1 1e";

fn values() -> impl Iterator<Item = &'static str> + Clone {
    VALUES.split(' ')
}

/// A field with numbers.
#[derive(Clone, Debug)]
struct NumberField {
    path: String,
    name: String,
    form: Form,
}

/// Where the numbers of a field are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    Alone,
    InList,
    InObject,
}

impl NumberField {
    /// A request that is served but for this number.
    fn body(&self, number: &str) -> String {
        let Value::Object(mut base) = served(&self.path) else { unreachable!("an object") };
        base.remove(&self.name);
        if self.name == "top_logprobs" {
            let include = json!(["message.output_text.logprobs"]);
            let (name, value) = match self.path.as_str() {
                CHAT => ("logprobs", json!(true)),
                _ => ("include", include),
            };
            base.insert(name.to_owned(), value);
        }
        let value = match self.form {
            Form::Alone => number.to_owned(),
            Form::InList => format!("[{number}]"),
            Form::InObject => format!("{{\"5\":{number}}}"),
        };
        let text = Value::Object(base).to_string();
        let rest = text.strip_prefix('{').expect("an object");
        format!("{{\"{}\":{value},{rest}", self.name)
    }
}

/// A request of this path that is served.
fn served(path: &str) -> Value {
    let messages = json!([{ "role": "user", "content": "a" }]);
    match path {
        CHAT => json!({ "messages": messages, "max_tokens": 4 }),
        COMPLETIONS => json!({ "prompt": "a", "max_tokens": 4 }),
        "/v1/responses" => json!({ "input": "a", "max_output_tokens": 4 }),
        "/v1/messages" | "/v1/messages/count_tokens" => {
            json!({ "model": "m", "messages": messages, "max_tokens": 4 })
        }
        other => panic!("no request of {other}"),
    }
}

/// The fields with numbers of every request in `docs/openapi.json`.
fn fields() -> Vec<NumberField> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../docs/openapi.json");
    let document: Value =
        serde_json::from_str(&std::fs::read_to_string(path).expect("there")).expect("JSON");
    let mut fields = Vec::new();
    // The path of the page's chat has the fields of chat completions, and refuses requests of programs.
    let paths = document["paths"].as_object().expect("paths").iter();
    for (path, methods) in paths.filter(|(path, _)| *path != "/status/chat") {
        let schema = &methods["post"]["requestBody"]["content"]["application/json"]["schema"];
        let Some(reference) = schema["$ref"].as_str() else { continue };
        let properties = &resolved(&document, reference)["properties"];
        for (name, schema) in properties.as_object().expect("fields") {
            for form in forms(&document, schema) {
                fields.push(NumberField { path: path.clone(), name: name.clone(), form });
            }
        }
    }
    fields
}

fn resolved<'a>(document: &'a Value, reference: &str) -> &'a Value {
    document.pointer(reference.strip_prefix('#').expect("of this file")).expect("a schema")
}

/// The forms in which a schema has numbers.
fn forms(document: &Value, schema: &Value) -> Vec<Form> {
    if let Some(reference) = schema["$ref"].as_str() {
        // Objects with fields of their own have no numbers.
        let inner = resolved(document, reference);
        return if inner.get("properties").is_some() { vec![] } else { forms(document, inner) };
    }
    let is = |schema: &Value, word: &str| match &schema["type"] {
        Value::Array(words) => words.contains(&json!(word)),
        one => one == word,
    };
    let is_number = |schema: &Value| is(schema, "integer") || is(schema, "number");
    let mut found: Vec<Form> = ["oneOf", "anyOf"]
        .iter()
        .filter_map(|name| schema[*name].as_array())
        .flatten()
        .flat_map(|one| forms(document, one))
        .collect();
    if is_number(schema) {
        found.push(Form::Alone);
    }
    let has_numbers = |inner: &Value| forms(document, inner).contains(&Form::Alone);
    if schema.get("items").is_some_and(has_numbers) {
        found.push(Form::InList);
    }
    if schema
        .get("additionalProperties")
        .is_some_and(|inner| inner.is_object() && has_numbers(inner))
    {
        found.push(Form::InObject);
    }
    found.dedup();
    found
}

/// A request with an extreme number.
struct Extreme {
    path: String,
    /// The field and its form, as one word.
    field: String,
    /// The number, short.
    number: String,
    body: String,
}

impl Extreme {
    fn of(field: &NumberField, number: &str) -> Self {
        Self {
            path: field.path.clone(),
            field: format!("{} {:?}", field.name, field.form),
            number: number.chars().take(4).chain(number.chars().rev().take(20)).collect(),
            body: field.body(number),
        }
    }
}

/// All requests with an extreme number.
fn extremes() -> Vec<Extreme> {
    let fields = fields();
    let mut all: Vec<Extreme> =
        fields.iter().flat_map(|field| values().map(|number| Extreme::of(field, number))).collect();
    for path in [CHAT, COMPLETIONS] {
        let base = served(path).to_string();
        let rest = base.strip_prefix('{').expect("an object");
        all.extend(values().map(|number| {
            let token = number.trim_matches('"');
            Extreme {
                path: path.to_owned(),
                field: "a token of logit_bias".to_owned(),
                number: number.to_owned(),
                body: format!("{{\"logit_bias\":{{\"{token}\":1}},{rest}"),
            }
        }));
    }
    let digits = "9".repeat(100_000);
    for field in &fields {
        for number in [digits.clone(), format!("0.{digits}"), format!("1e{digits}")] {
            all.push(Extreme::of(field, &number));
        }
    }
    all
}

/// Those that reach another path of the code than the ones before, in a fixed order: each field, and
/// each number, of each path.
fn of_each_kind(mut all: Vec<Extreme>) -> Vec<Extreme> {
    // Mixed, so that the numbers are spread over the fields.
    let mut random = Random(811);
    for at in (1..all.len()).rev() {
        all.swap(at, random.below(at + 1));
    }
    let (mut fields, mut numbers) = (HashSet::new(), HashSet::new());
    all.retain(|one| {
        let is_first = fields.insert((one.path.clone(), one.field.clone()));
        numbers.insert((one.path.clone(), one.number.clone())) || is_first
    });
    all
}

/// The program, with a supervisor that answers every request at once.
async fn serving(dir: &Path) -> Program {
    paceline_process::runtime_dir::private_dir(&dir.join("run")).expect("made");
    let mut fake = Fake::start(&dir.join("run/supervisor.sock"), 1);
    stage::exchange::write_model(&dir.join("model"), "qwen3.jinja");
    let program = Program::start(dir, &dir.join("model"));
    let mut attachment = within(fake.attachments.recv()).await.expect("the gateway attaches");
    attachment.service(stage::exchange::ready()).await;
    task::spawn("supervisor", async move {
        let _reports = task::spawn("reports", attachment.read_on());
        while let Some(submission) = fake.submissions.recv().await {
            answer(submission).await;
        }
    });
    let client = HttpClient::new(program.http);
    within(async {
        while client.get("/health").await.status != StatusCode::OK {
            tokio::task::yield_now().await;
        }
    })
    .await;
    program
}

/// Two tokens; a refusal where figures of each token are asked for, which this supervisor has not.
async fn answer(submission: Submission) {
    let generation = submission.generation();
    if generation.logprobs.is_some() || generation.report_margins {
        return submission.refuse(Reason::KvExhausted.status("no figures of tokens here"));
    }
    let mut accepted = submission.accept();
    accepted.so_far = true;
    let _over = accepted.done(&[300, 2]).await;
}

/// Sends all of them, some at once. Each has an answer that is no fault of the service.
async fn send_all(program: &Program, bodies: impl Iterator<Item = (String, Vec<u8>)>) -> usize {
    let client = HttpClient::new(program.http);
    let send = |(path, body): (String, Vec<u8>)| {
        let client = client.clone();
        async move {
            let reply = client.send("POST", &path, body.clone()).await;
            let shown = String::from_utf8_lossy(&body[..body.len().min(2_000)]);
            assert!(reply.status.as_u16() < 500, "{path} {shown}\n{reply:?}");
            reply.status == StatusCode::OK
        }
    };
    let served = futures::stream::iter(bodies).map(send).buffer_unordered(AT_ONCE);
    let served: Vec<bool> = served.collect().await;
    served.into_iter().filter(|served| *served).count()
}

/// Checks that the gateway is alive and took little memory.
async fn is_well(program: &Program) {
    let reply = HttpClient::new(program.http).get("/health").await;
    assert_eq!(reply.status, StatusCode::OK, "{reply:?}");
    let most = program.memory("VmHWM");
    assert!(most <= MAX_MEMORY, "expected at most 300 MiB, found {} MiB", most >> 20);
}

/// The extreme numbers that are tried.
#[derive(Clone, Copy, Debug)]
enum Share {
    /// One for each path of the code, a tenth of them at least.
    EachKind,
    /// Every such one. Steps that share no factor with the number of values try all values in turn.
    Step(usize),
}

/// Tries a share of the extreme numbers of HTTP, and those of gRPC.
async fn try_numbers(share: Share) -> usize {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = serving(dir.path()).await;
    let all = extremes();
    assert!(all.len() >= NUMBERS, "expected {NUMBERS} or more, found {}", all.len());
    let (all_count, grpc_step) = (all.len(), if let Share::Step(step) = share { step } else { 1 });
    let tried = match share {
        Share::EachKind => of_each_kind(all),
        Share::Step(step) => all.into_iter().step_by(step).collect(),
    };
    let bodies: Vec<_> = tried.into_iter().map(|one| (one.path, one.body.into_bytes())).collect();
    let count = bodies.len();
    if matches!(share, Share::EachKind) {
        assert!(count * 10 >= all_count, "expected a tenth of {all_count}, found {count}");
    }
    send_all(&program, bodies.into_iter()).await;
    for request in grpc_extremes().into_iter().step_by(grpc_step.min(10)) {
        let outcome = within(program.client.clone().chat(request.clone())).await;
        let refused = match outcome {
            Ok(stream) => within(stream.into_inner().collect::<Vec<_>>()).await.pop(),
            Err(status) => Some(Err(status)),
        };
        if let Some(Err(status)) = refused {
            let faults = [Code::Internal, Code::Unknown, Code::Unavailable];
            assert!(!faults.contains(&status.code()), "{request:?}: {status:?}");
        }
    }
    is_well(&program).await;
    count
}

/// Requests of gRPC with one extreme number each.
fn grpc_extremes() -> Vec<v1::ChatRequest> {
    let part = v1::ContentPart { part: Some(v1::content_part::Part::Text("a".into())) };
    let user = v1::Message { role: "user".into(), content: vec![part], ..Default::default() };
    let base = v1::ChatRequest { messages: vec![user], ..Default::default() };
    let limits = |limits| v1::ChatRequest { limits: Some(limits), ..base.clone() };
    let sampling = |sampling| v1::ChatRequest { sampling: Some(sampling), ..base.clone() };
    let mut all = Vec::new();
    for number in [0, 1, 16, 17, 20, 21, 65_536, i32::MAX as u32, 1 << 31, u32::MAX - 1, u32::MAX] {
        let bias = v1::LogitBias { token_id: number, bias: 1.0 };
        all.extend([
            v1::ChatRequest { samples: number, ..base.clone() },
            v1::ChatRequest { logprobs: Some(number), ..base.clone() },
            v1::ChatRequest { route: number.cast_signed(), ..base.clone() },
            limits(v1::Limits { max_tokens: Some(number), ..Default::default() }),
            limits(v1::Limits { min_tokens: number, ..Default::default() }),
            limits(v1::Limits { stop_token_ids: vec![number], ..Default::default() }),
            sampling(v1::Sampling { top_k: Some(number), ..Default::default() }),
            sampling(v1::Sampling { logit_bias: vec![bias], ..Default::default() }),
        ]);
    }
    for number in
        [0.0, -0.0, 1.0, f32::MIN_POSITIVE, 1e-45, f32::MAX, f32::MIN, f32::NAN, f32::INFINITY]
    {
        let some = Some(number);
        let bias = v1::LogitBias { token_id: 5, bias: number };
        all.extend(
            [
                v1::Sampling { temperature: some, ..Default::default() },
                v1::Sampling { top_p: some, ..Default::default() },
                v1::Sampling { min_p: some, ..Default::default() },
                v1::Sampling { repetition_penalty: some, ..Default::default() },
                v1::Sampling { presence_penalty: some, ..Default::default() },
                v1::Sampling { frequency_penalty: some, ..Default::default() },
                v1::Sampling { logit_bias: vec![bias], ..Default::default() },
            ]
            .map(sampling),
        );
    }
    all
}

/// Numbers from a seed (splitmix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut word = self.0;
        word = (word ^ (word >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        word = (word ^ (word >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        word ^ (word >> 31)
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() % bound.max(1) as u64) as usize
    }

    fn of<'a, T>(&mut self, list: &'a [T]) -> &'a T {
        &list[self.below(list.len())]
    }
}

/// Pieces that mean something in JSON or to a protocol.
const PIECES: &[&str] = &[
    "{",
    "}",
    "[",
    "]",
    ",",
    ":",
    "\"",
    "\\",
    "null",
    "true",
    "\"\\ud800\"",
    "\"\\u0000\"",
    "\u{0}",
    "\u{feff}",
    "\"stream\":true,",
    "\"n\":16,",
    "\"n\":4294967295,",
    "\"stop\":[\"\"],",
    "\"tools\":[],",
    "\"tool_choice\":\"required\",",
    "\"messages\":[],",
    "\"logit_bias\":{\"1\":1},",
    "\"max_tokens\":1,",
    "\"response_format\":{\"type\":\"json_object\"},",
    "\"type\":\"text\",",
    "\"role\":\"tool\",",
    "[[[[[[[[",
    "{\"a\":{\"a\":{\"a\":",
];

/// One of the bodies with up to four changes.
fn mutated(random: &mut Random, bodies: &[(String, Vec<u8>)]) -> (String, Vec<u8>) {
    let (path, body) = random.of(bodies);
    let mut body = body.clone();
    for _ in 0..=random.below(4) {
        let at = random.below(body.len());
        let end = (at + 1 + random.below(40)).min(body.len());
        match random.below(8) {
            0 => {
                if let Some(byte) = body.get_mut(at) {
                    *byte ^= 1 << random.below(8);
                }
            }
            1 => drop(body.drain(at..end)),
            2 => {
                let piece = body[at..end].to_vec();
                body.splice(at..at, piece);
            }
            3 | 4 => drop(body.splice(at..at, random.of(PIECES).bytes())),
            5 => drop(body.splice(at..end, random.of(&values().collect::<Vec<_>>()).bytes())),
            6 => body.truncate(at),
            _ => {
                let other = &random.of(bodies).1;
                let from = random.below(other.len());
                let to = (from + random.below(200)).min(other.len());
                body.splice(at..at, other[from..to].iter().copied());
            }
        }
    }
    (path.clone(), body)
}

/// Bodies of every protocol: those of clients, and short ones with many fields.
fn whole_bodies() -> Vec<(String, Vec<u8>)> {
    let fixtures = [
        ("/v1/messages/count_tokens", "claude_code_count_tokens.json"),
        ("/v1/messages", "claude_code_image.json"),
        ("/v1/messages", "claude_code_turn_2.json"),
        (CHAT, "cline_turn_1.json"),
        (CHAT, "opencode_turn_2.json"),
        ("/v1/responses", "codex_cli_turn_1.json"),
        ("/v1/responses", "codex_cli_turn_2.json"),
    ];
    let fixture = |(path, name)| (path, stage::exchange::fixture(name));
    let mut bodies: Vec<(&str, Value)> = fixtures.map(fixture).to_vec();
    let sampling = json!({
        "temperature": 0.5, "top_p": 0.9, "seed": 7, "presence_penalty": 0.1, "n": 2, "stop": ["x"],
        "frequency_penalty": 0.1, "logit_bias": { "5": 1 }, "top_k": 9, "min_p": 0.1,
        "repetition_penalty": 1.1, "min_tokens": 1, "stop_token_ids": [9], "user": "u",
    });
    for path in [CHAT, COMPLETIONS] {
        let Value::Object(mut body) = served(path) else { unreachable!("an object") };
        body.extend(sampling.as_object().cloned().unwrap_or_else(Map::new));
        body.insert("stream".into(), true.into());
        bodies.push((path, Value::Object(body)));
    }
    bodies.push((COMPLETIONS, json!({ "prompt": [300, 301, 302], "logprobs": 2, "echo": false })));
    let schema = json!({ "type": "object", "properties": { "a": { "type": "integer" } } });
    let function = json!({ "name": "f", "parameters": schema, "strict": true });
    bodies.push((
        CHAT,
        json!({
            "messages": [{ "role": "user", "content": [{ "type": "text", "text": "a" }] }],
            "tools": [{ "type": "function", "function": function }],
            "tool_choice": { "type": "function", "function": { "name": "f" } },
        }),
    ));
    bodies
        .into_iter()
        .map(|(path, body)| (path.to_owned(), body.to_string().into_bytes()))
        .collect()
}

/// Sends `count` mutated bodies.
async fn try_mutations(count: usize) {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let program = serving(dir.path()).await;
    let whole = whole_bodies();
    let served = send_all(&program, whole.clone().into_iter()).await;
    assert!(
        served * 2 > whole.len(),
        "expected most of {} to be served, found {served}",
        whole.len()
    );
    let mut random = Random(26);
    let bodies = (0..count).map(move |_| mutated(&mut random, &whole));
    send_all(&program, bodies).await;
    is_well(&program).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_extreme_number_of_each_kind_is_no_fault_of_the_service() {
    let count = try_numbers(Share::EachKind).await;
    println!("{count} extreme numbers over HTTP");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "more: seconds; run by `make test-more`"]
async fn a_tenth_of_the_extreme_numbers_is_no_fault_of_the_service() {
    try_numbers(Share::Step(7)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "soak: a minute; run by `make soak`"]
async fn extreme_numbers_are_no_fault_of_the_service() {
    let count = try_numbers(Share::Step(1)).await;
    println!("{count} extreme numbers over HTTP");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn two_hundred_mutated_bodies_are_no_fault_of_the_service() {
    try_mutations(MUTATIONS / 100).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "more: seconds; run by `make test-more`"]
async fn two_thousand_mutated_bodies_are_no_fault_of_the_service() {
    try_mutations(MUTATIONS / 10).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "soak: minutes; run by `make soak`"]
async fn nineteen_thousand_mutated_bodies_are_no_fault_of_the_service() {
    try_mutations(MUTATIONS).await;
}
