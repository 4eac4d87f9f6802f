//! `paceline target swap`: another checkpoint is served without an end of the service.

use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Output;

use nix::sys::signal::Signal;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, chat, images, programs, repository, signal, wait};
use serde_json::Value;
use tonic::Code;

/// The embedded target.
fn demo() -> PathBuf {
    repository().join("demo/target")
}

/// A target of another family, with other weights, another template and other ids.
fn seeing() -> PathBuf {
    images::model()
}

fn swap_words<'a>(model: &'a str, more: &[&'a str]) -> Vec<&'a str> {
    [&["target", "swap", "--model", model], more].concat()
}

fn swap(stack: &Stack, model: &Path, more: &[&str]) -> Output {
    stack.paceline(&swap_words(&model.display().to_string(), more), "")
}

#[track_caller]
fn done(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(0), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[track_caller]
fn refused(output: &Output) -> String {
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Ids of an answer and length of its prompt: those of the model and of its template.
fn fruits(stack: &Stack) -> (Vec<u32>, u32) {
    let answer = stack.ask(chat("List three fruits.").max_tokens(24)).expect("served");
    let prompt_tokens = answer.usage().prompt_tokens;
    (answer.ids, prompt_tokens)
}

/// A request that runs.
fn running(stack: &Stack, tokens: u32) -> Pending {
    let pending = stack.start(chat("Tell a long story.").exactly(tokens));
    wait("the stream to have tokens", || (pending.tokens() >= 3).then_some(()));
    pending
}

fn served_model(stack: &Stack) -> Value {
    stack.status().expect("status")["target"]["model"].clone()
}

/// What a service that was started with the model answers.
fn started_with(model: &Path) -> (Vec<u32>, u32) {
    let settings =
        format!("target.model = {:?}\ndrafter.model = \"\"\n", model.display().to_string());
    let stack = Stack::ready(&settings);
    let found = fruits(&stack);
    stack.stop();
    found
}

#[test]
fn another_model_is_served_with_its_own_text_side_and_drafters_and_back_again() {
    let expected = started_with(&seeing());
    let stack = Stack::drafting("limits.queue_wait_s = 60\n");
    let before = fruits(&stack);
    let whole: Answer = stack.ask(chat("Tell a long story.").exactly(200)).expect("served");
    let stream = running(&stack, 200);
    let model = seeing().display().to_string();
    let swapping = stack.begin(&swap_words(&model, &[]));
    stack.wait_status("the swap to begin", |status| {
        status["target"]["state"] != "ready" || stream.tokens() == 200
    });
    // It waits, and is answered by the new model.
    let waiting = stack.start(chat("List three fruits.").max_tokens(24));
    assert_eq!(stream.finish().expect("served by the earlier model").ids, whole.ids);
    let printed = done(&swapping.wait_with_output().expect("a child"));
    assert!(stack.healthy(), "the order returned before requests are accepted");
    assert!(printed.contains("target ready") && printed.contains(&model), "{printed}");
    let waited = waiting.finish().expect("served");
    assert_eq!((waited.ids.clone(), waited.usage().prompt_tokens), expected);
    assert_eq!(fruits(&stack), expected);
    assert_eq!(served_model(&stack), model.as_str());
    // The embedded drafter was for the embedded target: with this one it is prompt lookup.
    let status = stack.wait_linked();
    assert_eq!(status["drafter"]["model"], "lookup", "{}", status["drafter"]);
    // A supervisor that is killed finds the swapped target and takes it over.
    let target = stack.pid("target");
    let supervisor = stack.pid("supervisor");
    signal(supervisor, Signal::SIGKILL);
    stack.wait_status("the next supervisor", |status| {
        status["supervisor"]["pid"] != supervisor && status["target"]["state"] == "ready"
    });
    assert_eq!((stack.pid("target"), served_model(&stack)), (target, model.as_str().into()));
    assert_eq!(fruits(&stack), expected);
    // Both are killed at once: the service goes on with the swapped model.
    let (target, supervisor) = (stack.pid("target"), stack.pid("supervisor"));
    signal(supervisor, Signal::SIGKILL);
    signal(target, Signal::SIGKILL);
    stack.wait_status("both to be replaced", |status| {
        status["supervisor"]["pid"] != supervisor
            && status["target"]["pid"] != target
            && status["target"]["state"] == "ready"
    });
    assert_eq!(served_model(&stack), model.as_str());
    assert_eq!(fruits(&stack), expected);
    done(&swap(&stack, &demo(), &[]));
    assert_eq!(fruits(&stack), before);
    stack.stop();
}

#[test]
fn a_model_whose_files_cannot_be_used_is_refused_and_nothing_is_ended() {
    let stack = Stack::ready("drafter.model = \"\"\n");
    let before = fruits(&stack);
    let target = stack.pid("target");
    let nowhere = refused(&swap(&stack, Path::new("/nowhere/model"), &[]));
    assert!(
        nowhere.contains("expected a model directory or a GGUF file, found nothing at /nowhere"),
        "{nowhere}"
    );
    // Without text files the gateway could not serve it.
    let mute = stack.path("mute");
    std::fs::create_dir(&mute).expect("made");
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(demo().join(name), mute.join(name)).expect("copied");
    }
    let words = refused(&swap(&stack, &mute, &[]));
    assert!(words.contains("tokenizer"), "{words}");
    assert_eq!(stack.pid("target"), target, "nothing was ended");
    let cut = stack.path("cut");
    std::fs::create_dir(&cut).expect("made");
    for entry in std::fs::read_dir(demo()).expect("there").flatten() {
        std::fs::copy(entry.path(), cut.join(entry.file_name())).expect("copied");
    }
    std::fs::write(cut.join("tokenizer.json"), "{}").expect("written");
    let words = refused(&swap(&stack, &cut, &[]));
    assert!(words.contains("tokenizer.json"), "{words}");
    assert_eq!((fruits(&stack), stack.pid("target")), (before, target));
    stack.stop();
}

#[test]
fn a_model_that_does_not_come_up_is_followed_by_the_earlier_one() {
    let mut stack = Stack::new("drafter.model = \"\"\nlimits.queue_wait_s = 60\n");
    // A program that loads every model but this one, as a broken tensor would have it.
    let broken = seeing().display().to_string();
    let program = stack.path("target.sh");
    let target = programs().join("paceline-target");
    let script = format!(
        "#!/bin/sh\nif [ \"$1\" = --epoch ] && [ \"$PACELINE_PINNED_TARGET\" = '{broken}' ]; then\n\
         echo 'a tensor is broken' >&2; exit 69; fi\nexec '{}' \"$@\"\n",
        target.display()
    );
    std::fs::write(&program, script).expect("written");
    std::fs::set_permissions(&program, std::fs::Permissions::from_mode(0o700)).expect("ours");
    stack.env("PACELINE_TARGET_BIN", &program.display().to_string());
    stack.serve();
    stack.wait_ready();
    let before = fruits(&stack);
    let words = refused(&swap(&stack, &seeing(), &[]));
    let told = [
        "was not loaded, and the earlier model is served again",
        "exit code 69",
        "a tensor is broken",
    ];
    assert!(told.iter().all(|part| words.contains(part)), "{words}");
    assert_eq!(fruits(&stack), before);
    assert_eq!(stack.status().expect("status")["target"]["restarts"], 0);
    stack.stop();
}

#[test]
fn a_stream_that_runs_too_long_ends_and_one_of_the_same_model_goes_on() {
    let stack = Stack::ready("drafter.model = \"\"\n");
    let whole = stack.ask(chat("Tell a long story.").exactly(1_000)).expect("served");
    let stream = running(&stack, 1_000);
    done(&swap(&stack, &demo(), &["--timeout", "0"]));
    let answer = stream.finish().expect("it goes on");
    assert_eq!((answer.ids, answer.end.resumed), (whole.ids, 1));
    let stream = running(&stack, 3_000);
    done(&swap(&stack, &seeing(), &["--timeout", "0"]));
    let status = stream.finish().expect_err("the model is another");
    assert_eq!(
        (status.code(), Reason::of(&status)),
        (Code::Unavailable, Some(Reason::ModelChanged))
    );
    stack.stop();
}
