//! Faults and orders behind `smg`: what dies below the engine's port is not noticed above it, and a
//! service is taken out without a failed request.

use std::process::Command;

use nix::sys::signal::Signal;
use paceline_tests::http::{Events, HttpAnswer};
use paceline_tests::router::Router;
use paceline_tests::{Stack, signal, wait};
use serde_json::Value;

use crate::crowd::{all_are_answered, served};
use crate::smg::{CHAT, KIND, MODEL, end, one, read};
use crate::texts::{QUESTION, Streamed, chat_body, object, streamed};

/// A request that is still running when a process is killed.
fn long() -> Value {
    let mut body = streamed(chat_body(MODEL, QUESTION, 600));
    body["ignore_eos"] = true.into();
    body
}

/// The answer, with `process` killed after its first words.
fn disturbed(stack: &Stack, router: &Router, process: &str) -> Streamed {
    let mut events: Events = router.events(CHAT, &long());
    let mut answer = Streamed::default();
    read(&mut events, &mut answer, 20);
    let begun = answer.text.len();
    signal(stack.pid(process), Signal::SIGKILL);
    read(&mut events, &mut answer, usize::MAX);
    assert!(answer.done, "{process}: the stream ended after {:?}", answer.text);
    assert!(answer.text.len() > begun, "the stream was over before the {process} died");
    answer
}

#[test]
#[ignore = "more: a package of a registry"]
fn a_stream_of_smg_is_the_same_after_the_death_of_drafter_and_target() {
    let settings = "routing.force = \"speculative\"\n";
    let Some((stack, router)) = one("a_stream_of_smg_is_the_same", settings, &[]) else { return };
    let undisturbed = disturbed_by_none(&router);
    assert_eq!(disturbed(&stack, &router, "drafter").text, undisturbed.text);
    stack.wait_linked();
    let answer = disturbed(&stack, &router, "target");
    assert_eq!(answer.text, undisturbed.text);
    assert_eq!(answer.usage["completion_tokens"], undisturbed.usage["completion_tokens"]);
    stack.wait_ready();
    end(stack, router);
}

fn disturbed_by_none(router: &Router) -> Streamed {
    let mut answer = Streamed::default();
    read(&mut router.events(CHAT, &long()), &mut answer, usize::MAX);
    assert!(answer.done);
    answer
}

/// Types a line of deploy/many/README.md for this router. Status and body of the answer.
fn curl(router: &Router, line: &str) -> HttpAnswer {
    let line = line.replace("127.0.0.1:30000", &router.address());
    let mut shell = Command::new("sh");
    shell.args(["-c", &format!("{line} --silent --include")]).env("no_proxy", "127.0.0.1");
    let output = shell.output().expect("sh is there");
    assert!(output.status.success(), "{line}: {output:?}");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (head, body) = text.split_once("\r\n\r\n").expect("a head");
    HttpAnswer { head: head.to_owned(), body: body.to_owned() }
}

/// The id that the router has given a worker. `None` if it has no such worker.
fn worker_id(router: &Router, url: &str) -> Option<String> {
    let list = object(&curl(router, "curl http://127.0.0.1:30000/workers"));
    let workers = list["workers"].as_array().expect("a list");
    let worker = workers.iter().find(|worker| worker["url"] == url)?;
    Some(worker["id"].as_str().expect("an id").to_owned())
}

#[test]
#[ignore = "more: a package of a registry"]
fn a_service_is_drained_behind_smg_without_a_failed_request() {
    let Some(clients) = KIND.installed("a_service_is_drained_behind_smg") else { return };
    let stacks = [Stack::ready("drafter.model = \"\"\n"), Stack::ready("drafter.model = \"\"\n")];
    let [first, second] = &stacks;
    let router = Router::start(KIND, &clients, &[first, second], &["--policy", "round_robin"]);
    let worker = KIND.worker(second);
    let mut at_drain = 0;
    let body = chat_body(MODEL, QUESTION, 16);
    all_are_answered(&router, &body, |go_on| {
        go_on();
        // First at the router, then at the machine.
        let id = worker_id(&router, &worker).expect("it is listed");
        let line = "curl -X DELETE http://127.0.0.1:30000/workers/ID";
        let removed = curl(&router, &line.replace("ID", &id));
        assert!((200..300).contains(&removed.status()), "{removed:?}");
        wait("the worker to be gone", || worker_id(&router, &worker).is_none().then_some(()));
        let drained = second.paceline(&["drain"], "");
        assert!(drained.status.success(), "{drained:?}");
        at_drain = served(second);
        go_on();
        assert_eq!(served(second), at_drain);
        let undrained = second.paceline(&["drain", "--undo"], "");
        assert!(undrained.status.success(), "{undrained:?}");
        let line = "curl -X POST http://127.0.0.1:30000/workers -H 'content-type: application/json' -d '{\"url\": \"URL\"}'";
        let added = curl(&router, &line.replace("URL", &worker));
        assert!((200..300).contains(&added.status()), "{added:?}");
        wait("both workers", || (router.ready_workers() == Some(2)).then_some(()));
        go_on();
        go_on();
    });
    assert!(at_drain > 0 && served(second) > at_drain, "{at_drain}, {}", served(second));
    assert!(served(first) > 0);
    drop(router);
    stacks.into_iter().for_each(Stack::stop);
}
