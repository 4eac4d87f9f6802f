//! Unmodified packages for Python against a whole service, each of their manners as one test, and a
//! fuzzer of requests that are made from `docs/openapi.json`. The packages are `openai` and
//! `anthropic`, frameworks over them, and the agent `aider`.
//!
//! The tests' expectations of the packages are asserted in Python, in `tests/http_clients`.
//! `scripts/test-more.sh` installs the packages first, so no test uses a network.

#![expect(clippy::print_stdout, reason = "figures of a run, beside what it asserts")]

use std::io::{BufRead as _, BufReader, Write as _};
use std::process::Stdio;

use nix::sys::signal::Signal;
use paceline_proto::v1::CountTokensRequest;
use paceline_proto::v1::count_tokens_request::Request as Kind;
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_tests::ask::{Ask, conversation, message};
use paceline_tests::python::{Clients, Packages};
use paceline_tests::replay::kinds::service;
use paceline_tests::skip::smollm2;
use paceline_tests::stack::Pending;
use paceline_tests::{Stack, chat, model, repository, share, signal, wait};
use serde_json::{Value, json};

/// The name of the served model.
fn served(stack: &Stack) -> String {
    let answer = stack.http_get("/v1/models").expect("answered");
    let models: Value = serde_json::from_str(&answer.body).expect("JSON");
    models["data"][0]["id"].as_str().expect("a name").to_owned()
}

/// Runs a manner of a program against this service.
fn drive(clients: &Clients, stack: &Stack, program: &str, manner: &str) {
    let mut command = clients.command(&[program, manner]);
    command.env("PACELINE_HTTP", stack.http_address()).env("PACELINE_MODEL", served(stack));
    Clients::passes(&mut command);
}

/// The packages that a program of `tests/http_clients` imports.
fn packages(program: &str) -> Packages {
    match program {
        "frameworks.py" => Packages::Frameworks,
        "litellm_instructor.py" => Packages::LiteLlm,
        "aider_turn.py" => Packages::Aider,
        _ => Packages::Vendors,
    }
}

/// One manner against the embedded pair.
fn with_the_pair(test: &str, program: &str, manner: &str) {
    let Some(clients) = Clients::with(packages(program), test) else { return };
    let stack = Stack::drafting("");
    drive(&clients, &stack, program, manner);
    stack.wait_memory_back();
    stack.stop();
}

/// One manner against the embedded target with a template that knows tools. Without a drafter each
/// token is a piece of its own, so that arguments arrive in pieces.
fn with_tools(test: &str, program: &str, manner: &str) {
    let Some(clients) = Clients::with(packages(program), test) else { return };
    let parent = tempfile::tempdir().expect("a directory");
    let stack = Stack::ready(&format!(
        "target.model = {:?}\ndrafter.model = \"\"\n",
        model::calling(parent.path())
    ));
    drive(&clients, &stack, program, manner);
    stack.stop();
}

/// One manner of a client of Ollama's API against the embedded pair.
fn with_ollama(test: &str, program: &str, manner: &str) {
    ollama_client(test, program, manner, &Stack::drafting("gateway.ollama = true\n"));
}

/// The same with tools, as [`with_tools`].
fn with_ollama_tools(test: &str, program: &str, manner: &str) {
    let parent = tempfile::tempdir().expect("a directory");
    let stack = Stack::ready(&format!(
        "target.model = {:?}\ndrafter.model = \"\"\ngateway.ollama = true\n",
        model::calling(parent.path())
    ));
    ollama_client(test, program, manner, &stack);
}

/// The same with the embedded model that sees.
fn with_ollama_images(test: &str, program: &str, manner: &str) {
    let stack = Stack::ready(
        "target.model = \"demo-vision\"\ndrafter.model = \"\"\ngateway.ollama = true\n",
    );
    ollama_client(test, program, manner, &stack);
}

fn ollama_client(test: &str, program: &str, manner: &str, stack: &Stack) {
    let litellm = manner.starts_with("litellm");
    let packages = if litellm { Packages::LiteLlm } else { Packages::Frameworks };
    let Some(clients) = Clients::with(packages, test) else { return };
    drive(&clients, stack, program, manner);
    stack.wait_memory_back();
}

/// One test for each manner, named after it. `scripts/ignored.sh` reads the list.
macro_rules! manners {
    ($(#[$attribute:meta] fn $test:ident = $with:ident($program:literal, $manner:literal);)*) => {
        $(#[test]
        #[$attribute]
        fn $test() {
            $with(stringify!($test), $program, $manner);
        })*
    };
}

manners! {
    #[ignore = "more: a package of a registry"]
    fn openai_models = with_the_pair("openai_package.py", "models");
    #[ignore = "more: a package of a registry"]
    fn openai_chat_completions = with_the_pair("openai_package.py", "chat_whole");
    #[ignore = "more: a package of a registry"]
    fn openai_chat_completions_streamed = with_the_pair("openai_package.py", "chat_streamed");
    #[ignore = "more: a package of a registry"]
    fn openai_chat_completions_of_a_second_turn_are_cached = with_the_pair("openai_package.py", "chat_cached");
    #[ignore = "more: a package of a registry"]
    fn openai_chat_completions_with_tools = with_tools("openai_package.py", "chat_tools");
    #[ignore = "more: a package of a registry"]
    fn openai_completions = with_the_pair("openai_package.py", "completions");
    #[ignore = "more: a package of a registry"]
    fn openai_responses = with_the_pair("openai_package.py", "responses");
    #[ignore = "more: a package of a registry"]
    fn openai_responses_with_tools = with_tools("openai_package.py", "responses_tools");
    #[ignore = "more: a package of a registry"]
    fn openai_errors = with_the_pair("openai_package.py", "errors");
    #[ignore = "more: a package of a registry"]
    fn anthropic_messages = with_the_pair("anthropic_package.py", "messages_whole");
    #[ignore = "more: a package of a registry"]
    fn anthropic_messages_streamed = with_the_pair("anthropic_package.py", "messages_streamed");
    #[ignore = "more: a package of a registry"]
    fn anthropic_messages_with_tools = with_tools("anthropic_package.py", "messages_tools");
    #[ignore = "more: a package of a registry"]
    fn anthropic_count_tokens_is_the_sum_of_input_and_cached_tokens = with_the_pair("anthropic_package.py", "count_tokens");
    #[ignore = "more: a package of a registry"]
    fn anthropic_errors = with_the_pair("anthropic_package.py", "errors");
    #[ignore = "more: a package of a registry"]
    fn openai_messages_of_parsed_answers_can_be_sent_back = with_the_pair("openai_package.py", "parsed");
    #[ignore = "more: a package of a registry"]
    fn openai_messages_of_parsed_tool_calls_can_be_sent_back = with_tools("openai_package.py", "parsed_tools");
    #[ignore = "more: a package of a registry"]
    fn anthropic_models = with_the_pair("anthropic_package.py", "models");
    #[ignore = "more: a package of a registry"]
    fn anthropic_tool_runner_goes_on_without_a_thread = with_tools("anthropic_package.py", "tool_runner");
    #[ignore = "more: a package of a registry"]
    fn pydantic_ai_forms = with_the_pair("frameworks.py", "pydantic_ai_forms");
    #[ignore = "more: a package of a registry"]
    fn pydantic_ai_with_tools = with_tools("frameworks.py", "pydantic_ai_tools");
    #[ignore = "more: a package of a registry"]
    fn langchain_chats_and_batches = with_the_pair("frameworks.py", "langchain");
    #[ignore = "more: a package of a registry"]
    fn langchain_with_tools = with_tools("frameworks.py", "langchain_tools");
    #[ignore = "more: a package of a registry"]
    fn openai_agents_with_tools_and_forms = with_tools("frameworks.py", "agents_of_openai");
    #[ignore = "more: a package of a registry"]
    fn llm_answers_and_forms = with_the_pair("frameworks.py", "llm");
    #[ignore = "more: a package of a registry"]
    fn litellm_by_each_protocol = with_the_pair("litellm_instructor.py", "litellm");
    #[ignore = "more: a package of a registry"]
    fn litellm_with_tools = with_tools("litellm_instructor.py", "litellm_tools");
    #[ignore = "more: a package of a registry"]
    fn instructor_forms = with_the_pair("litellm_instructor.py", "instructor");
    #[ignore = "more: a package of a registry"]
    fn instructor_forced_tool_calls = with_tools("litellm_instructor.py", "instructor_tools");
    #[ignore = "more: a package of a registry"]
    fn ollama_answers_lists_and_facts = with_ollama("ollama_package.py", "ollama");
    #[ignore = "more: a package of a registry"]
    fn ollama_with_tools = with_ollama_tools("ollama_package.py", "ollama_tools");
    #[ignore = "more: a package of a registry"]
    fn ollama_with_images = with_ollama_images("ollama_package.py", "ollama_images");
    #[ignore = "more: a package of a registry"]
    fn langchain_of_ollama = with_ollama("ollama_package.py", "langchain");
    #[ignore = "more: a package of a registry"]
    fn langchain_of_ollama_with_tools = with_ollama_tools("ollama_package.py", "langchain_tools");
    #[ignore = "more: a package of a registry"]
    fn litellm_of_ollama = with_ollama("ollama_package.py", "litellm");
    #[ignore = "more: a package of a registry"]
    fn litellm_of_ollama_with_tools = with_ollama_tools("ollama_package.py", "litellm_tools");
    #[ignore = "more: a package of a registry"]
    fn aider_turn_is_served = with_the_pair("aider_turn.py", "whole");
}

#[test]
#[ignore = "more: a package of a registry"]
fn ollama_of_javascript() {
    let list = Packages::OllamaJs;
    let Some(mut command) = Clients::javascript(list, "ollama_of_javascript") else { return };
    let stack = Stack::drafting("gateway.ollama = true\n");
    command.env("PACELINE_HTTP", stack.http_address()).env("PACELINE_MODEL", served(&stack));
    Clients::passes(&mut command);
}

/// Runs the streams of a package, and kills the target under each. The other stream runs so that no
/// end of the target counts against the package's request.
fn killed_under(test: &str, package: &str) {
    let Some(clients) = Clients::installed(test) else { return };
    let stack = service("supervisor.restarts = 100000\nlimits.queue_wait_s = 60\n");
    let mut command = clients.command(&["killed.py", package]);
    command.env("PACELINE_HTTP", stack.http_address()).env("PACELINE_MODEL", served(&stack));
    command.stdin(Stdio::piped()).stdout(Stdio::piped());
    let mut program = command.spawn().expect("it starts");
    let mut orders = program.stdin.take().expect("a pipe");
    let (mut other, mut before) = (None, 0);
    for line in BufReader::new(program.stdout.take().expect("a pipe")).lines() {
        let line = line.expect("text");
        match line.as_str() {
            "ready" => {
                let running = stack.start(chat("Count to ten.").exactly(3_000));
                wait("the other stream", || (running.tokens() > 0).then_some(()));
                other = Some(running);
                writeln!(orders, "go").expect("it reads");
            }
            "begun" => {
                before = stack.pid("target");
                signal(before, Signal::SIGKILL);
            }
            _ => {
                println!("{line}");
                other.take().map(Pending::hang_up);
                stack.wait_status("another target", |status| {
                    status["target"]["state"] == "ready" && status["target"]["pid"] != before
                });
            }
        }
    }
    let status = program.wait().expect("a child");
    assert!(status.success(), "{command:?} ended with {status}");
    stack.stop();
}

#[test]
#[ignore = "more: a package of a registry"]
fn openai_streams_are_the_same_after_a_killed_target() {
    killed_under("openai_streams_are_the_same_after_a_killed_target", "openai");
}

#[test]
#[ignore = "more: a package of a registry"]
fn anthropic_streams_are_the_same_after_a_killed_target() {
    killed_under("anthropic_streams_are_the_same_after_a_killed_target", "anthropic");
}

/// A sampled conversation over gRPC: its text, and the tokens of its prompt by `CountTokens`.
fn over_grpc(stack: &Stack, messages: &[(&str, &str)], seed: u64) -> Value {
    let messages = messages.iter().map(|(role, text)| message(role, text)).collect();
    let ask = conversation(messages).max_tokens(24).sampled(0.8, 0.95, seed);
    let Ask::Chat(request) = ask.clone() else { unreachable!("a conversation") };
    let request = CountTokensRequest { request: Some(Kind::Chat(request)), report_ids: false };
    let client = &mut InferenceClient::new(stack.channel());
    let counted = stack.block_on(client.count_tokens(request)).expect("counted").into_inner();
    json!({ "text": stack.ask(ask).expect("served").text, "prompt_tokens": counted.prompt_tokens })
}

/// Compares the answers to equal conversations by all protocols against a service.
fn same_by_all_protocols(clients: &Clients, settings: &str) {
    let stack = Stack::ready(settings);
    let story = [("system", "You are a helpful assistant."), ("user", "Tell a story of a fox.")];
    let turns = [("user", "List three fruits."), ("assistant", "Figs."), ("user", "Three birds?")];
    let cases: Vec<Value> = [&story[..], &turns[..]]
        .iter()
        .zip([7, u64::from(u32::MAX)])
        .map(|(messages, seed)| {
            let turn = |(role, text): &(&str, &str)| json!({ "role": role, "content": text });
            let turns: Vec<Value> = messages.iter().map(turn).collect();
            let expected = over_grpc(&stack, messages, seed);
            json!({ "messages": turns, "seed": seed, "expected": expected })
        })
        .collect();
    let mut command = clients.command(&["same_text.py", &json!(cases).to_string()]);
    command.env("PACELINE_HTTP", stack.http_address()).env("PACELINE_MODEL", served(&stack));
    Clients::passes(&mut command);
    stack.stop();
}

#[test]
#[ignore = "more: a package of a registry"]
fn a_seeded_conversation_has_the_same_text_over_grpc_and_http() {
    let test = "a_seeded_conversation_has_the_same_text_over_grpc_and_http";
    let Some(clients) = Clients::installed(test) else { return };
    same_by_all_protocols(&clients, "");
}

#[test]
#[ignore = "more: a package of a registry"]
fn a_seeded_conversation_with_smollm2_has_the_same_text_over_grpc_and_http() {
    let test = "a_seeded_conversation_with_smollm2_has_the_same_text_over_grpc_and_http";
    let Some(clients) = Clients::installed(test) else { return };
    if smollm2(test).is_none() {
        return;
    }
    same_by_all_protocols(&clients, "target.model = \"smollm2\"\n");
}

/// Sends `cases` requests that are made from `docs/openapi.json`.
fn fuzz(test: &str, cases: usize) {
    let Some(clients) = Clients::installed(test) else { return };
    let stack = Stack::ready("limits.max_new_tokens = 16\n");
    let pids = ["gateway", "supervisor", "target"].map(|process| stack.pid(process));
    let document = repository().join("docs/openapi.json");
    let document = document.to_str().expect("a path of text");
    let mut command = clients.command(&["fuzz.py", document, &cases.to_string()]);
    command.env("PACELINE_HTTP", stack.http_address()).env("PACELINE_MODEL", served(&stack));
    Clients::passes(&mut command);
    assert_eq!(["gateway", "supervisor", "target"].map(|process| stack.pid(process)), pids);
    stack.stop();
}

#[test]
#[ignore = "more: packages of a registry; minutes in `make soak`"]
fn requests_of_the_openapi_file_have_documented_answers() {
    fuzz("requests_of_the_openapi_file_have_documented_answers", share::of(1000));
}
