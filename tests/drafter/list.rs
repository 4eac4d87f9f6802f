//! A list in `drafter.model`: the first drafter that the target takes is used, and the reason of
//! each refused one is shown.

use nix::sys::signal::Signal;
use paceline_tests::prompts::some_of_each;
use paceline_tests::{Stack, is_linked, signal, wait};
use serde_json::Value;

use crate::support::{
    Compared, Drafted, MANY_RESTARTS, compare_with_plain, golden, plain_answers, sum,
};

/// The model and the reason of each refused drafter.
fn refusals(status: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().expect("a text").to_owned();
    let refused = status["refused_drafters"].as_array().expect("an array").iter();
    refused.map(|one| (text(&one["model"]), text(&one["reason"]))).collect()
}

/// A directory that has no checkpoint.
fn without_a_checkpoint(stack: &Stack) -> String {
    let dir = stack.path("nothing");
    std::fs::create_dir(&dir).expect("made");
    std::fs::write(dir.join("config.json"), "{}").expect("written");
    dir.display().to_string()
}

fn listed(models: &[&str]) -> String {
    format!("drafter.model = {models:?}\n{MANY_RESTARTS}")
}

#[test]
fn the_first_drafter_of_a_list_that_fits_is_used_and_the_others_are_named_with_their_reasons() {
    let mut stack = Stack::new("");
    let (other, nothing) =
        (golden("dflash-full").display().to_string(), without_a_checkpoint(&stack));
    stack.set(&listed(&[&other, &nothing, "lookup"]));
    stack.serve();
    stack.wait_ready();
    let status = stack.wait_linked();
    assert_eq!(status["drafter"]["model"], "lookup");
    let refused = refusals(&status);
    let [(first, misfit), (second, unreadable)] = refused.as_slice() else {
        panic!("expected two refused drafters, found {refused:?}")
    };
    assert_eq!((first, second), (&other, &nothing));
    assert!(misfit.contains("expected"), "{misfit}");
    assert!(unreadable.contains("config.json"), "{unreadable}");
    let table = String::from_utf8(stack.paceline(&["status"], "").stdout).expect("text");
    for (model, _) in &refused {
        assert!(table.contains(&format!("drafter {model} was refused: ")), "{table}");
    }
    wait("serve to name the drafter", || {
        let shown = stack.serve_log();
        let all = shown.contains("drafter: lookup\n")
            && refused
                .iter()
                .all(|(model, _)| shown.contains(&format!("drafter {model} was refused: ")));
        all.then_some(())
    });

    let prompts = some_of_each(1);
    let asks: Vec<_> = prompts.iter().map(|prompt| prompt.sampled(None)).collect();
    let (plain, mut counts) = (plain_answers(&stack, &asks), Compared::default());
    let Drafted { alone, together } =
        compare_with_plain(&stack, &asks, &plain, "a list", &mut counts);
    counts.check();
    assert!(sum(alone.iter().chain(&together)).cycles > 0);

    // The next supervisor adopts it, although it is not the first of the list.
    let (drafter, supervisor) = (stack.pid("drafter"), stack.pid("supervisor"));
    signal(supervisor, Signal::SIGKILL);
    let status = stack.wait_status("the drafter to be adopted", |status| {
        status["supervisor"]["pid"] != supervisor && is_linked(status)
    });
    assert_eq!(
        (&status["drafter"]["pid"], &status["drafter"]["model"]),
        (&drafter.into(), &"lookup".into())
    );
    // A crash is no refusal.
    signal(drafter, Signal::SIGKILL);
    let status = stack.wait_status("the drafter to be started again", |status| {
        status["drafter"]["pid"] != drafter
            && status["drafter"]["state"] == "ready"
            && is_linked(status)
    });
    assert_eq!(status["drafter"]["model"], "lookup");
    stack.stop();
}

#[test]
fn without_any_drafter_of_the_list_requests_are_served_plainly() {
    let mut stack = Stack::new("");
    let (other, nothing) =
        (golden("dflash-full").display().to_string(), without_a_checkpoint(&stack));
    // The environment has no arrays. The comma is part of a directory's name.
    let odd = format!("{}\\,b", stack.path("a").display());
    stack.env("PACELINE_DRAFTER__MODEL", &format!("{odd},{other},{nothing}"));
    stack.serve();
    stack.wait_ready();
    let status =
        stack.wait_status("the list to be tried", |status| status["drafter"]["state"] == "failed");
    let models: Vec<_> = refusals(&status).into_iter().map(|(model, _)| model).collect();
    assert_eq!(models, [stack.path("a,b").display().to_string(), other, nothing]);
    wait("serve to name no drafter", || {
        stack.serve_log().contains("drafter: none: ").then_some(())
    });
    let answer = stack.ask(some_of_each(1)[0].ask.clone().max_tokens(4)).expect("served");
    assert_eq!((answer.ids.len(), answer.speculation().cycles), (4, 0));
    // Another one by an order, and the list is not tried again.
    stack.drafter(&["start", "--model", "lookup"]);
    let status = stack.wait_linked();
    assert_eq!(status["drafter"]["model"], "lookup");
    assert!(refusals(&status).is_empty(), "{status}");
    stack.stop();
}
