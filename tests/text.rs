//! Text through all processes: several answers to one request, stop strings in both lanes, counts
//! of tokens, tools.

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::count_tokens_request::Request as Kind;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{
    ChatRequest, CountTokensRequest, FinishReason, GenerateResponse, GetModelRequest, Lane,
    RouteWish, Tool,
};
use paceline_tests::ask::{Ask, conversation, message};
use paceline_tests::model::{Weights, single};
use paceline_tests::prompts::some_of_each;
use paceline_tests::{Stack, chat, repository, wait};
use serde_json::Value;
use tonic::Status;
use tonic::transport::Channel;

fn client(stack: &Stack) -> InferenceClient<Channel> {
    InferenceClient::new(stack.channel())
}

fn request(ask: Ask) -> ChatRequest {
    match ask {
        Ask::Chat(request) => request,
        Ask::Continue(_) => panic!("a conversation was meant"),
    }
}

/// All messages of an answer, checked: one end of each sample, and it is its last.
fn read(stack: &Stack, request: ChatRequest) -> Result<Vec<Vec<GenerateResponse>>, Status> {
    let samples = request.samples.max(1) as usize;
    stack.block_on(async {
        let mut stream = client(stack).chat(request).await?.into_inner();
        let mut all = vec![Vec::<GenerateResponse>::new(); samples];
        while let Some(message) = stream.message().await? {
            let sample = &mut all[message.sample_index as usize];
            assert!(
                sample.last().is_none_or(|last| last.r#final.is_none()),
                "nothing comes after the end"
            );
            sample.push(message);
        }
        assert!(
            all.iter().all(|sample| sample.last().is_some_and(|last| last.r#final.is_some())),
            "each has its end"
        );
        Ok(all)
    })
}

fn ids(messages: &[GenerateResponse]) -> Vec<u32> {
    messages.iter().flat_map(|message| message.token_ids.clone()).collect()
}

fn count(stack: &Stack, request: ChatRequest) -> Result<u32, Status> {
    let asked = CountTokensRequest { request: Some(Kind::Chat(request)), report_ids: false };
    stack
        .block_on(async { Ok(client(stack).count_tokens(asked).await?.into_inner().prompt_tokens) })
}

/// Waits until nothing runs and nothing is held.
fn wait_idle(stack: &Stack) {
    wait("nothing to run", || {
        let status = stack.snapshot().ok()?;
        let (requests, kv) = (status.requests?, status.kv?);
        (requests.active == 0 && requests.queued == 0 && kv.held_bytes == 0).then_some(())
    });
}

#[test]
fn samples_are_drawn_independently_under_one_seed() {
    let stack = Stack::drafting("");
    let asked = |samples: u32, wish: RouteWish| {
        let ask = chat("Tell me about the sea.").max_tokens(24).sampled(1.5, 1.0, 7).route(wish);
        ChatRequest { samples, ..request(ask) }
    };
    for wish in [RouteWish::Plain, RouteWish::Speculative] {
        let single = read(&stack, asked(1, wish)).expect("an answer");
        let several = read(&stack, asked(5, wish)).expect("answers");
        assert_eq!(several.len(), 5);
        assert_eq!(ids(&several[0]), ids(&single[0]), "the first is the one that comes alone");
        for (at, sample) in several.iter().enumerate() {
            let said = sample.last().and_then(|last| last.r#final.clone()).expect("checked");
            assert_eq!(said.seed, 7);
            assert_eq!(said.usage.expect("set").completion_tokens as usize, ids(sample).len());
            assert!(
                sample.iter().all(|message| message.request_id == several[0][0].request_id),
                "one id for its client"
            );
            for other in &several[..at] {
                assert_ne!(ids(sample), ids(other), "drawn independently");
            }
        }
        let again = read(&stack, asked(5, wish)).expect("answers");
        for (sample, again) in several.iter().zip(&again) {
            assert_eq!(ids(sample), ids(again), "and the same again");
        }
    }
    wait_idle(&stack);
    // Who leaves leaves all.
    let long = ChatRequest { samples: 8, ..request(chat("Tell me about the sea.").exactly(2000)) };
    stack.block_on(async {
        let mut stream = client(&stack).chat(long).await.expect("begun").into_inner();
        stream.message().await.expect("fine").expect("tokens");
    });
    wait_idle(&stack);
    stack.stop();
}

#[test]
fn a_stop_string_ends_the_answer_in_both_lanes() {
    let stack = Stack::drafting("");
    let mut drafted = 0;
    for prompt in some_of_each(1) {
        let whole = stack.ask(prompt.ask.clone().route(RouteWish::Plain)).expect("an answer");
        let characters: Vec<char> = whole.text.chars().collect();
        assert!(characters.len() > 16, "{}: {:?}", prompt.kind, whole.text);
        // Seven characters from the middle; what is shown ends where they stand first.
        let stop: String = characters[characters.len() / 2..][..7].iter().collect();
        let shown = &whole.text[..whole.text.find(&stop).expect("it is there")];
        for wish in [RouteWish::Plain, RouteWish::Speculative] {
            let mut ask = prompt.ask.clone().route(wish);
            ask.limits().stop = vec!["\u{1}never".into(), stop.clone()];
            let answer = stack.ask(ask).expect("an answer");
            assert_eq!(answer.text, shown, "{} {wish:?}", prompt.kind);
            assert_eq!(
                (answer.end.finish_reason(), answer.end.stop.as_str()),
                (FinishReason::Stop, stop.as_str())
            );
            assert_eq!(answer.ids, whole.ids[..answer.ids.len()], "{} {wish:?}", prompt.kind);
            assert!(answer.ids.len() < whole.ids.len());
            let usage = answer.usage();
            assert_eq!(
                (usage.completion_tokens as usize, usage.prompt_tokens),
                (answer.ids.len(), whole.usage().prompt_tokens)
            );
            let (lane, speculation) = (answer.route().0, answer.speculation());
            assert_eq!(lane == Lane::Speculative, speculation.cycles > 0);
            assert!(wish == RouteWish::Speculative || lane == Lane::Plain);
            drafted += speculation.drafted;
        }
    }
    assert!(drafted > 0, "the other lane was taken");
    // Generation below ends with it.
    let mut long = chat("Tell me about the sea.").exactly(3000);
    long.limits().stop = vec![" ".into()];
    assert_eq!(stack.ask(long).expect("an answer").end.finish_reason(), FinishReason::Stop);
    wait_idle(&stack);
    stack.stop();
}

#[test]
fn counted_tokens_equal_those_of_the_answer() {
    let stack = Stack::ready("");
    let conversations = [
        vec![message("user", "Hi")],
        vec![
            message("user", "Hi 🦀"),
            message("system", "Be brief."),
            message("developer", "Really."),
            message("user", "So?"),
        ],
        vec![
            message("system", "Be brief."),
            message("user", "a"),
            message("assistant", "b"),
            message("user", "c"),
        ],
    ];
    for messages in conversations {
        let ask = conversation(messages).max_tokens(1);
        let counted = count(&stack, request(ask.clone())).expect("counted");
        assert_eq!(stack.ask(ask).expect("an answer").usage().prompt_tokens, counted);
    }
    // Messages of one author in a row are one message, and a developer is the system.
    let parts = vec![
        message("system", "s"),
        message("developer", "t"),
        message("user", "a"),
        message("user", "b"),
    ];
    let whole = vec![message("system", "s\n\nt"), message("user", "a\n\nb")];
    let greedy = |messages| stack.ask(conversation(messages).max_tokens(8)).expect("an answer");
    assert_eq!(greedy(parts).ids, greedy(whole).ids);
    stack.stop();
}

#[test]
// More than 60 lines: one service, which takes seconds to start, is taken through all steps.
fn tools_reach_a_template_that_knows_them_and_no_other() {
    let tool = Tool {
        name: "read_file".into(),
        description: "Reads a file".into(),
        parameters: r#"{"type": "object", "properties": {"path": {"type": "string"}}}"#.into(),
        strict: false,
    };
    let with = |tools: Vec<Tool>| ChatRequest { tools, ..request(chat("Read a.rs").max_tokens(4)) };
    let stack = Stack::ready("");
    let status = read(&stack, with(vec![tool.clone()])).expect_err("its template knows none");
    assert_eq!(Reason::of(&status), Some(Reason::NoTools), "{status:?}");
    let model = |stack: &Stack| {
        let mut client = client(stack);
        stack.block_on(client.get_model(GetModelRequest::default())).expect("known").into_inner()
    };
    assert!(!model(&stack).tools);
    stack.stop();

    let stack = Stack::new("drafter.model = \"\"\n");
    let dir = single(&stack.path(""), "tooled", &Weights::demo().bytes());
    std::fs::copy(
        repository().join("text/tests/templates/qwen3.jinja"),
        dir.join("chat_template.jinja"),
    )
    .expect("copied");
    stack.set(&format!("target.model = {dir:?}\n"));
    let mut stack = stack;
    stack.serve();
    stack.wait_ready();
    assert!(model(&stack).tools);
    let plain = count(&stack, with(vec![])).expect("counted");
    let tooled = count(&stack, with(vec![tool.clone()])).expect("counted");
    assert!(tooled > plain + 40, "{tooled} and {plain}");
    let quiet =
        ChatRequest { template_arguments: r#"{"enable_thinking": false}"#.into(), ..with(vec![]) };
    assert!(count(&stack, quiet).expect("counted") > plain);
    let answer = read(&stack, with(vec![tool])).expect("an answer");
    let usage = answer[0].last().and_then(|last| last.r#final.as_ref()?.usage).expect("checked");
    assert_eq!(usage.prompt_tokens, tooled);

    // The same by the command line, with a tool call and its answer.
    let file = stack.path("talk.json");
    let talk = r#"{"messages": [{"role": "user", "content": "Read a.rs"},
        {"role": "assistant", "content": null, "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "read_file", "arguments": "{\"path\": \"a.rs\"}"}}]},
        {"role": "tool", "tool_call_id": "c1", "content": "fn main() {}"}],
        "tools": [{"type": "function", "function": {"name": "read_file", "parameters": {"type": "object"}}}]}"#;
    std::fs::write(&file, talk).expect("written");
    let file = file.display().to_string();
    let words = [
        "generate",
        "--messages",
        &file,
        "--max-tokens",
        "8",
        "--samples",
        "2",
        "--stop",
        "\n\n\n",
        "--json",
    ];
    let output = stack.paceline(
        &[&words[..], &["--template-arguments", "{\"enable_thinking\": false}"]].concat(),
        "",
    );
    assert!(output.status.success(), "{output:?}");
    let object: Value = serde_json::from_slice(&output.stdout).expect("one object");
    let samples = object["samples"].as_array().expect("two answers");
    assert_eq!(samples.len(), 2);
    assert!(
        samples
            .iter()
            .all(|sample| sample["usage"]["prompt_tokens"].as_u64() > Some(u64::from(plain))),
        "{object}"
    );
    let output = stack.paceline(
        &["generate", "--messages", &file, "--template-arguments", "{\"tools\": []}"],
        "",
    );
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    assert!(String::from_utf8_lossy(&output.stderr).contains("template_arguments"), "{output:?}");
    stack.stop();
}
