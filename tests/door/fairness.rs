//! Fairness between API keys: which request is admitted next, counted in admissions, not in
//! seconds.

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_tests::stack::Pending;
use paceline_tests::{Live, Stack, continue_ids, wait};

use crate::keys::{make, private};

/// Waits of this length end no test: what is admitted is decided by which requests end.
const LONG_QUEUE_WAIT: &str = "limits.queue_wait_s = 300\nrouting.force = \"plain\"\n";

/// A service with keys of Alice and Bob.
struct KeyedStack {
    stack: Stack,
    alice: String,
    bob: String,
}

fn with_keys(settings: &str) -> KeyedStack {
    let mut stack = Stack::new(&format!("{LONG_QUEUE_WAIT}{settings}"));
    let file = stack.path("keys");
    let ((alice, alices), (bob, bobs)) = (make("alice"), make("bob"));
    private(&file, &format!("{alices}\n{bobs}\n"));
    stack.set(&format!("gateway.api_keys_file = {file:?}\n"));
    stack.serve();
    stack.wait_ready();
    KeyedStack { stack, alice, bob }
}

/// A request that runs until it hangs up.
fn endless() -> paceline_tests::ask::Ask {
    continue_ids(&[5, 6, 7, 8]).exactly(4_000)
}

fn run(stack: &Stack, key: &str) -> Live {
    let mut live = stack.open_as(key, endless()).expect("served");
    live.read(1);
    live
}

/// Requests that run and requests that wait.
fn counts(stack: &Stack) -> (u32, u32) {
    let requests = stack.snapshot().expect("a supervisor").requests.unwrap_or_default();
    (requests.active, requests.queued)
}

fn until(stack: &Stack, what: &str, wanted: (u32, u32)) {
    let mut last = (0, 0);
    wait(&format!("{what}: {wanted:?} that run and wait"), || {
        last = counts(stack);
        (last == wanted).then_some(())
    });
}

#[test]
fn one_request_beside_a_flood_of_another_key_is_the_next_to_be_admitted() {
    let KeyedStack { stack, alice, bob } = with_keys("target.max_sequences = 2\n");
    let mut running = vec![run(&stack, &alice), run(&stack, &alice)];
    let flood: Vec<Pending> = (0..58).map(|_| stack.start_as(&alice, endless())).collect();
    until(&stack, "the flood", (2, 58));
    let his = stack.start_as(&bob, continue_ids(&[9, 10, 11]).exactly(4));
    until(&stack, "one more", (2, 59));
    // One place becomes free. Were it not for the key, it would be that of the flood's first.
    drop(running.pop());
    let answer = his.finish().expect("admitted as the next one");
    assert_eq!(answer.ids.len(), 4);
    // Its end lets one of the flood in; no other of the flood has come before.
    until(&stack, "the flood goes on", (2, 57));
    flood.into_iter().for_each(|pending| drop(pending.hang_up()));
    drop(running);
    until(&stack, "nothing", (0, 0));
    stack.stop();
}

#[test]
fn a_key_runs_sixteen_and_its_others_wait_while_another_key_runs_at_once() {
    let KeyedStack { stack, alice, bob } = with_keys("");
    let hers: Vec<Pending> = (0..20).map(|_| stack.start_as(&alice, endless())).collect();
    until(&stack, "sixteen of twenty run", (16, 4));
    // There is memory for more. Another key gets it, and does not wait for the first key's queue.
    let his = run(&stack, &bob);
    assert_eq!(counts(&stack), (17, 4));
    // One of hers ends: the first that waits is admitted, and no more.
    let mut hers = hers.into_iter();
    assert!(hers.next().expect("twenty").hang_up().is_none(), "it has not ended by itself");
    // The first of twenty requests need not be the first to arrive: it ran or waited, and one fewer
    // is left either way.
    until(&stack, "one fewer", (17, 3));
    hers.for_each(|pending| drop(pending.hang_up()));
    drop(his);
    until(&stack, "nothing", (0, 0));
    stack.stop();
}

#[test]
fn a_full_queue_takes_another_keys_request_and_refuses_the_newest_of_the_flood() {
    let KeyedStack { stack, alice, bob } =
        with_keys("target.max_sequences = 1\nlimits.queue = 3\n");
    let running = run(&stack, &alice);
    let mut flood = vec![];
    for waiting in 1..=3 {
        // They wait while `running` runs, and are short because one may run before Bob's.
        flood.push(stack.start_as(&alice, continue_ids(&[5, 6, 7, 8]).exactly(40)));
        until(&stack, "the flood", (1, waiting));
    }
    let refused = stack.open_as(&alice, endless()).err().expect("the queue is full");
    assert_eq!(Reason::of(&refused), Some(Reason::QueueFull), "{refused:?}");
    // Bob has nothing in the queue: his request takes the place of her newest one, which is
    // refused.
    let his = stack.start_as(&bob, continue_ids(&[9, 10, 11]).exactly(4));
    let displaced = flood.pop().expect("three").finish().expect_err("it made room");
    assert_eq!(Reason::of(&displaced), Some(Reason::QueueFull), "{displaced:?}");
    assert!(displaced.metadata().contains_key("grpc-retry-pushback-ms"), "{displaced:?}");
    assert_eq!(counts(&stack), (1, 3));
    drop(running);
    assert_eq!(his.finish().expect("served").ids.len(), 4);
    flood.into_iter().for_each(|pending| drop(pending.hang_up()));
    until(&stack, "nothing", (0, 0));
    stack.stop();
}
