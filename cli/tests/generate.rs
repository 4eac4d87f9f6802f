//! `generate` and `chat` against a scripted service: what is sent, what is printed, how it ends.

#![expect(clippy::unwrap_used, reason = "what a test needs and does not get fails it")]

#[path = "../../tests/harness/built.rs"]
mod built;

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::sync::{Arc, Mutex};

use clap::Parser as _;
use paceline_cli::args::{Cli, Command};
use paceline_client::Screen;
use paceline_client::failure::{Failure, REFUSED, UNREACHABLE, USAGE};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::strict::Deferred;
use paceline_proto::v1::content_part::Part;
use paceline_proto::v1::generate_request::Prompt;
use paceline_proto::v1::inference_server::{Inference, InferenceServer};
use paceline_proto::v1::{self, ChatRequest, GenerateRequest, GenerateResponse};
use tokio_stream::wrappers::TcpListenerStream;
use tonic::{Request, Response, Status};

use built::built;

type Script = Vec<Result<GenerateResponse, Status>>;
type Stream = tokio_stream::Iter<std::vec::IntoIter<Result<GenerateResponse, Status>>>;

#[derive(Debug, Clone, PartialEq)]
enum Received {
    Generate(GenerateRequest),
    Chat(ChatRequest),
}

/// Answers every request with the same script and keeps what it was asked.
#[derive(Clone)]
struct Scripted {
    script: Result<Script, Status>,
    seen: Arc<Mutex<Vec<Received>>>,
}

impl Scripted {
    fn answer(&self, seen: Received) -> Result<Response<Stream>, Status> {
        self.seen.lock().unwrap().push(seen);
        Ok(Response::new(tokio_stream::iter(self.script.clone()?)))
    }
}

#[tonic::async_trait]
impl Inference for Scripted {
    type GenerateStream = Stream;
    type ChatStream = Stream;

    async fn generate(
        &self,
        request: Request<Deferred<GenerateRequest>>,
    ) -> Result<Response<Stream>, Status> {
        self.answer(Received::Generate(request.into_inner().decode()?))
    }

    async fn chat(
        &self,
        request: Request<Deferred<ChatRequest>>,
    ) -> Result<Response<Stream>, Status> {
        self.answer(Received::Chat(request.into_inner().decode()?))
    }

    async fn count_tokens(
        &self,
        _: Request<Deferred<v1::CountTokensRequest>>,
    ) -> Result<Response<v1::CountTokensResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }

    async fn get_model(
        &self,
        _: Request<v1::GetModelRequest>,
    ) -> Result<Response<v1::GetModelResponse>, Status> {
        Err(Status::unimplemented("not in the script"))
    }
}

/// Bytes that a [`Screen`] was given.
#[derive(Clone, Default)]
struct Paper(Arc<Mutex<Vec<u8>>>);

impl Paper {
    fn read(&self) -> String {
        String::from_utf8(self.0.lock().unwrap().clone()).unwrap()
    }
}

impl Write for Paper {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        self.0.lock().unwrap().write(bytes)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

struct Outcome {
    result: Result<(), Failure>,
    out: String,
    err: String,
    seen: Vec<Received>,
}

impl Outcome {
    fn exit(&self) -> u8 {
        self.result.as_ref().err().map_or(0, |failure| failure.exit)
    }
}

/// Runs `paceline generate WORDS` against a service that answers with `script`.
async fn generate(words: &[&str], script: Result<Script, Status>) -> Outcome {
    let listener =
        tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = Scripted { script, seen: Arc::default() };
    let server = tonic::transport::Server::builder().serve_with_incoming(
        InferenceServer::new(service.clone()),
        TcpListenerStream::new(listener),
    );
    let serving = paceline_process::task::spawn("scripted service", server);
    let line =
        ["paceline", "generate", "--address", &address].into_iter().chain(words.iter().copied());
    let Command::Generate(args) = Cli::try_parse_from(line).unwrap().command else {
        panic!("generate")
    };
    let (out, err) = (Paper::default(), Paper::default());
    let result =
        paceline_cli::generate::run(&args, &mut Screen::over(out.clone(), err.clone())).await;
    serving.abort();
    let seen = service.seen.lock().unwrap().clone();
    Outcome { result, out: out.read(), err: err.read(), seen }
}

fn piece(text: &str, token_ids: &[u32]) -> Result<GenerateResponse, Status> {
    Ok(GenerateResponse {
        request_id: "r1".into(),
        text: text.into(),
        token_ids: token_ids.to_vec(),
        ..Default::default()
    })
}

fn last() -> Result<GenerateResponse, Status> {
    let done = v1::Final {
        finish_reason: v1::FinishReason::Stop.into(),
        usage: Some(v1::Usage { prompt_tokens: 5, completion_tokens: 3, ..Default::default() }),
        route: Some(v1::Route {
            lane: v1::Lane::Plain.into(),
            reason: v1::RouteReason::DrafterAbsent.into(),
        }),
        speculation: Some(v1::Speculation::default()),
        timing: Some(v1::Timing { ttft_ms: 10.0, total_ms: 20.0, ..Default::default() }),
        resumed: 0,
        seed: 42,
        ..Default::default()
    };
    Ok(GenerateResponse {
        request_id: "r1".into(),
        token_ids: vec![2],
        r#final: Some(done),
        ..Default::default()
    })
}

fn hello() -> Result<Script, Status> {
    Ok(vec![piece("Hel", &[7]), piece("lo", &[8]), last()])
}

#[tokio::test]
async fn text_goes_to_standard_output_and_figures_to_standard_error() {
    let outcome = generate(&["--prompt", "x", "--verbose"], hello()).await;
    assert_eq!((outcome.exit(), outcome.out.as_str()), (0, "Hello\n"));
    assert_eq!(outcome.err, "3 tokens, first after 10 ms, - tok/s, plain (drafter_absent), stop\n");
    assert_eq!(generate(&["--prompt", "x"], hello()).await.err, "", "no terminal, no figures");
}

#[tokio::test]
async fn an_empty_answer_to_a_prompt_as_it_is_names_the_chat_template() {
    let empty = || Ok(vec![last()]);
    let found = generate(&["--prompt", "Hello"], empty()).await;
    assert_eq!((found.exit(), found.out.as_str()), (0, "\n"));
    assert!(found.err.contains("--message puts the text through"), "{}", found.err);
    let found = generate(&["--message", "Hello"], empty()).await;
    assert!(!found.err.contains("--message"), "{}", found.err);
}

#[tokio::test]
async fn json_is_one_object() {
    let outcome = generate(&["--prompt", "x", "--json"], hello()).await;
    assert_eq!(outcome.exit(), 0);
    let object: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(object["text"], "Hello");
    assert_eq!(object["token_ids"], serde_json::json!([7, 8, 2]));
    assert_eq!(object["route"]["reason"], "drafter_absent");
    assert_eq!(object["usage"]["completion_tokens"], 3);
    assert_eq!(
        (&object["resumed"], &object["seed"]),
        (&serde_json::json!(0), &serde_json::json!(42))
    );
    assert!(object.get("margins").is_none());
}

#[tokio::test]
async fn every_flag_reaches_the_service() {
    let flags = "--max-tokens 4 --temperature 0.5 --seed 7 --top-p 0.9 --top-k 3 --min-p 0.1 --top-a 0.2 --repetition-penalty 1.1 \
                 --presence-penalty 0.5 --frequency-penalty -0.5 --logit-bias 9=-100 --logit-bias 7=1.5 --min-tokens 2 \
                 --stop-token-id 8 --stop-token-id 6 --logprobs 3 --ignore-eos --route plain --model m \
                 --stop END --stop \u{1} --samples 1";
    let mut words = vec!["--token-ids", "1,2", "--json", "--margins"];
    words.extend(flags.split(' '));
    let outcome = generate(&words, hello()).await;
    let expected = GenerateRequest {
        model: "m".into(),
        prompt: Some(Prompt::TokenIds(v1::TokenIds { ids: vec![1, 2] })),
        sampling: Some(v1::Sampling {
            temperature: Some(0.5),
            top_k: Some(3),
            top_p: Some(0.9),
            min_p: Some(0.1),
            top_a: Some(0.2),
            seed: Some(7),
            repetition_penalty: Some(1.1),
            presence_penalty: Some(0.5),
            frequency_penalty: Some(-0.5),
            logit_bias: vec![
                v1::LogitBias { token_id: 9, bias: -100.0 },
                v1::LogitBias { token_id: 7, bias: 1.5 },
            ],
        }),
        limits: Some(v1::Limits {
            max_tokens: Some(4),
            ignore_eos: true,
            min_tokens: 2,
            stop_token_ids: vec![8, 6],
            stop: vec!["END".into(), "\u{1}".into()],
        }),
        route: v1::RouteWish::Plain.into(),
        report_margins: true,
        logprobs: Some(3),
        samples: 1,
        grammar: None,
    };
    assert_eq!(outcome.seen, [Received::Generate(expected)]);
}

#[tokio::test]
async fn log_probabilities_are_part_of_the_object() {
    let one = v1::TokenLogprobs {
        logprob: -0.5,
        top: vec![v1::TopLogprob { token_id: 9, logprob: -0.25 }],
    };
    let mut messages = hello().unwrap();
    for message in messages.iter_mut().flatten() {
        message.logprobs = vec![one.clone(); message.token_ids.len()];
    }
    let outcome = generate(&["--message", "x", "--json", "--logprobs", "1"], Ok(messages)).await;
    let Received::Chat(request) = &outcome.seen[0] else { panic!("{:?}", outcome.seen) };
    assert_eq!(request.logprobs, Some(1));
    let object: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    let expected =
        serde_json::json!({ "logprob": -0.5, "top": [{ "token_id": 9, "logprob": -0.25 }] });
    assert_eq!(
        object["logprobs"].as_array().unwrap().len(),
        object["token_ids"].as_array().unwrap().len()
    );
    assert!(object["logprobs"].as_array().unwrap().iter().all(|one| *one == expected));
}

#[tokio::test]
async fn samples_are_told_apart() {
    let of = |index: u32, message: Result<v1::GenerateResponse, Status>| {
        message.map(|message| v1::GenerateResponse { sample_index: index, ..message })
    };
    let script = || {
        Ok(vec![
            of(1, piece("se", &[9])),
            of(0, piece("Hel", &[7])),
            of(1, piece("cond", &[8])),
            of(1, last()),
            of(0, last()),
        ])
    };
    let words = [
        "--message",
        "x",
        "--samples",
        "2",
        "--template-arguments",
        "{\"a\": 1}",
        "--reasoning-effort",
        "low",
    ];
    let outcome = generate(&words, script()).await;
    assert_eq!(
        (outcome.exit(), outcome.out.as_str()),
        (0, "--- 1 of 2\nHel\n--- 2 of 2\nsecond\n")
    );
    let Received::Chat(request) = &outcome.seen[0] else { panic!("{:?}", outcome.seen) };
    assert_eq!((request.samples, request.template_arguments.as_str()), (2, "{\"a\": 1}"));
    assert_eq!(request.reasoning_effort, "low");
    let outcome = generate(&[&words[..], &["--json"]].concat(), script()).await;
    let object: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    assert_eq!(
        (&object["samples"][0]["text"], &object["samples"][1]["token_ids"][0]),
        (&"Hel".into(), &9.into())
    );
    // One that never ends is no answer.
    let outcome = generate(&words, Ok(vec![of(0, last())])).await;
    assert_ne!(outcome.exit(), 0);
}

#[tokio::test]
async fn a_flag_left_out_is_left_to_the_service() {
    let outcome = generate(&["--prompt", "x"], hello()).await;
    let Received::Generate(request) = &outcome.seen[0] else { panic!("{:?}", outcome.seen) };
    assert_eq!(request.prompt, Some(Prompt::Text("x".into())));
    assert_eq!(request.sampling, Some(v1::Sampling::default()));
    assert_eq!(request.limits, Some(v1::Limits::default()));
}

fn short(part: &v1::ContentPart) -> String {
    match &part.part {
        Some(Part::Text(text)) => format!(" {text}"),
        Some(Part::Image(image)) => format!(" [{}]", image.data.len()),
        Some(Part::ImageUrl(image)) => format!(" <{}>", image.url),
        None => " nothing".into(),
    }
}

#[tokio::test]
async fn conversations_and_images_become_messages() {
    let dir = tempfile::tempdir().unwrap();
    let write = |name: &str, content: &[u8]| {
        let path = dir.path().join(name);
        std::fs::write(&path, content).unwrap();
        path.display().to_string()
    };
    let image = write("p.png", b"\x89PNG");
    let talk = write(
        "m.json",
        br#"{"messages": [{"role": "system", "content": "s"}, {"role": "user", "content": "u"}]}"#,
    );
    let far =
        write("far.json", br#"[{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "https://x/y.png"}}]}]"#);
    let forms: [(&[&str], &str); 5] = [
        (&["--messages", &far], "user <https://x/y.png>"),
        (&["--message", "hi"], "user hi"),
        (&["--messages", &talk], "system s; user u"),
        (&["--messages", &talk, "--image", &image], "system s; user [4] u"),
        (&["--prompt", "what?", "--image", &image, "--image", &image], "user [4] [4] what?"),
    ];
    for (words, expected) in forms {
        let outcome = generate(words, hello()).await;
        let Received::Chat(request) = &outcome.seen[0] else { panic!("{:?}", outcome.seen) };
        let message = |message: &v1::Message| {
            message.role.clone() + &message.content.iter().map(short).collect::<String>()
        };
        assert_eq!(request.messages.iter().map(message).collect::<Vec<_>>().join("; "), expected);
    }
}

/// Runs a chat with these lines of input. Returns each turn's last message, and the text on
/// standard error.
async fn chat(lines: String) -> (Vec<String>, String) {
    let listener =
        tokio::net::TcpListener::bind(SocketAddr::from(([127, 0, 0, 1], 0))).await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let service = Scripted { script: hello(), seen: Arc::default() };
    let server = tonic::transport::Server::builder().serve_with_incoming(
        InferenceServer::new(service.clone()),
        TcpListenerStream::new(listener),
    );
    let serving = paceline_process::task::spawn("scripted service", server);
    let talk = move || {
        let mut command = std::process::Command::new(built("paceline"));
        command.args(["chat", "--address", &address]).env("PACELINE_CONFIG", "");
        let pipe = std::process::Stdio::piped;
        let mut child = command.stdin(pipe()).stdout(pipe()).stderr(pipe()).spawn().unwrap();
        child.stdin.take().unwrap().write_all(lines.as_bytes()).unwrap();
        String::from_utf8(child.wait_with_output().unwrap().stderr).unwrap()
    };
    let told = tokio::task::spawn_blocking(talk).await.unwrap();
    serving.abort();
    let last = |seen: &Received| {
        let Received::Chat(request) = seen else { panic!("{seen:?}") };
        request.messages.last().unwrap().content.iter().map(short).collect::<String>()
    };
    let seen = service.seen.lock().unwrap().iter().map(last).collect();
    (seen, told)
}

#[tokio::test]
async fn a_chat_shows_images_with_the_next_message() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("an image.png");
    std::fs::write(&image, b"\x89PNG").unwrap();
    let image = image.display().to_string();
    let lines = format!(
        "/image {image}\n/image /nowhere.png\n/image\nwhat?\nand now?\n/image {image}\n/reset\nplain\n/images x\n"
    );
    let (seen, told) = chat(lines).await;
    assert_eq!(seen, [" [4] what?", " and now?", " plain", " /images x"]);
    assert!(told.contains("an image.png (4 bytes) goes with the next message"), "{told}");
    assert!(
        told.contains("cannot read /nowhere.png") && told.contains("expected a file after it"),
        "{told}"
    );
}

#[tokio::test]
async fn a_refusal_is_exit_1_with_code_reason_and_pause() {
    let outcome =
        generate(&["--prompt", "x", "--json"], Err(Reason::TargetLoading.status("loading"))).await;
    assert_eq!(outcome.exit(), REFUSED);
    let object: serde_json::Value = serde_json::from_str(&outcome.out).unwrap();
    let error = serde_json::json!({"code": "UNAVAILABLE", "reason": "TARGET_LOADING", "message": "loading", "retry_after_ms": 1000});
    assert_eq!(object, serde_json::json!({ "error": error }));
    assert_eq!(
        outcome.result.unwrap_err().to_string(),
        "UNAVAILABLE (TARGET_LOADING): loading; try again in 1.0 s"
    );
}

#[tokio::test]
async fn a_failure_in_the_middle_of_an_answer_ends_the_line_and_exits_1() {
    let outcome = generate(
        &["--prompt", "x"],
        Ok(vec![piece("Hel", &[7]), Err(Reason::TargetGone.status("gone"))]),
    )
    .await;
    assert_eq!((outcome.exit(), outcome.out.as_str()), (REFUSED, "Hel\n"));
    assert_eq!(outcome.result.unwrap_err().reason, "TARGET_GONE");
}

#[tokio::test]
async fn a_stream_without_its_last_message_is_an_error() {
    let outcome = generate(&["--prompt", "x", "--json"], Ok(vec![piece("Hel", &[7])])).await;
    assert_eq!(outcome.exit(), REFUSED);
    assert!(outcome.out.contains("without its last message"), "{}", outcome.out);
}

#[tokio::test]
async fn bad_input_is_refused_before_anything_is_sent() {
    let dir = tempfile::tempdir().unwrap();
    let bad = dir.path().join("m.json");
    std::fs::write(&bad, r#"[{"role": "user", "content": [{"type": "audio"}]}]"#).unwrap();
    let bad = bad.display().to_string();
    let cases: [(&[&str], u8, &str); 3] = [
        (&["--messages", &bad], USAGE, "audio"),
        (&["--messages", "/nowhere.json"], USAGE, "/nowhere.json"),
        (&["--prompt", "x", "--image", "/nowhere.png"], USAGE, "/nowhere.png"),
    ];
    for (words, exit, expected) in cases {
        let outcome = generate(words, hello()).await;
        assert_eq!(outcome.exit(), exit, "{words:?}");
        assert_eq!(outcome.seen, []);
        let message = outcome.result.unwrap_err().to_string();
        assert!(message.contains(expected), "{message}");
    }
}

#[tokio::test]
async fn a_service_that_hangs_up_is_not_reachable() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    let hanging_up = paceline_process::task::spawn("hangs up", async move {
        loop {
            drop(listener.accept().await);
        }
    });
    let line = ["paceline", "generate", "--address", &address, "--prompt", "x"];
    let Command::Generate(args) = Cli::try_parse_from(line).unwrap().command else {
        panic!("generate")
    };
    let failure =
        paceline_cli::generate::run(&args, &mut Screen::over(Paper::default(), Paper::default()))
            .await
            .unwrap_err();
    assert_eq!(failure.exit, UNREACHABLE, "{failure}");
    hanging_up.abort();
}

#[test]
fn exit_codes_of_the_program() {
    let nobody =
        std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().to_string();
    let dir = tempfile::tempdir().unwrap();
    let config = dir.path().join("paceline.toml");
    std::fs::write(&config, format!("[supervisor]\nruntime_dir = {:?}\n", dir.path().join("run")))
        .unwrap();
    let broken = dir.path().join("broken.toml");
    std::fs::write(&broken, "[target]\nmodle = \"x\"\n").unwrap();
    let run = |words: &[&str], config: &Path| {
        let output = std::process::Command::new(built("paceline"))
            .args(words)
            .env("PACELINE_CONFIG", config)
            .output()
            .unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    let cases: [(&[&str], &Path, i32, &str); 13] = [
        (&["--version"], &config, 0, ""),
        (&["generate", "--help"], &config, 0, ""),
        (&["generate"], &config, 2, "--prompt"),
        (&["generate", "--prompt", "x", "--address", &nobody], &config, 3, &nobody),
        (&["chat", "--address", &nobody], &config, 3, "paceline serve"),
        (&["status", "--json"], &config, 3, "supervisor.sock"),
        (&["status"], &broken, 2, "did you mean target.model?"),
        (&["serve"], &broken, 64, "did you mean target.model?"),
        (&["drafter", "swap", "--model", "d"], &config, 3, "supervisor.sock"),
        (&["events", "--follow"], &config, 3, "supervisor.sock"),
        (&["restart", "target"], &config, 3, "supervisor.sock"),
        (&["drain"], &config, 3, "supervisor.sock"),
        (&["top"], &config, 2, "paceline top --once"),
    ];
    for (words, config, code, expected) in cases {
        let (found, stderr) = run(words, config);
        assert_eq!(found, Some(code), "{words:?}: {stderr}");
        assert!(stderr.contains(expected), "{words:?}: {stderr}");
    }
}
