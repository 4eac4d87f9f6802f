//! Requests whose grammars are being compiled: they take no running place.

use super::*;
use crate::fake::Preparation;

/// A request whose answer is held to a grammar.
fn held(id: u32) -> SubmitRequest {
    let mut request = with(|generation| {
        generation.request_id = format!("held{id}");
        generation.grammar = Some(Grammar { frame: id.to_string(), ..Default::default() });
    });
    request.key_id = 7;
    request
}

/// Requests that wait for the compiler, more than run at once.
async fn compiling(
    stack: &Stack,
    life: &mut Life,
) -> (Vec<JoinHandle<Result<Answer, Status>>>, Vec<Preparation>) {
    let waiting = (0..8).map(|id| stack.submit(held(id))).collect();
    let mut preparations = vec![];
    for _ in 0..8 {
        preparations.push(life.preparation().await);
    }
    (waiting, preparations)
}

#[tokio::test]
async fn a_plain_request_runs_while_more_grammars_than_running_places_are_compiled() {
    let (mut stack, mut life) = Stack::ready(|settings| settings.admission.queue_places = 1).await;
    let (_waiting, preparations) = compiling(&stack, &mut life).await;
    stack.counts(0, 0).await;
    let (running, mut answer) = stack.running(&mut life).await;
    stack.counts(1, 0).await;
    running.tokens(1, &[8], true).await;
    assert!(batch(&mut answer).await.done.is_some());
    for preparation in &preparations {
        assert_eq!(preparation.request.key_id, 7);
        assert!(!preparation.answer.is_closed(), "it still waits for the compiler");
    }
}

#[tokio::test]
async fn a_compiled_grammar_is_kept_until_the_target_has_its_request() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let first = stack.running(&mut life).await;
    let _second = stack.running(&mut life).await;
    let waiting = stack.submit(held(1));
    let Preparation { request, answer, stream } = life.preparation().await;
    assert_eq!(request.grammar.map(|grammar| grammar.frame), Some("1".into()));
    answer.send(Ok(())).expect("it waits");
    stack.counts(2, 1).await;
    assert!(!stream.is_closed(), "the request waits in the queue");
    first.0.tokens(1, &[8], true).await;
    let running = life.next_request().await;
    assert!(!stream.is_closed(), "the target reads the request");
    running.tokens(0, &[7], false).await;
    let mut answer = within(waiting).await.expect("no panic").expect("served");
    assert_eq!(batch(&mut answer).await.ids, [7]);
    within(stream.closed()).await;
}

#[tokio::test]
async fn a_wait_for_the_compiler_ends_with_its_request_and_with_the_queues_time() {
    let (mut stack, mut life) =
        Stack::ready(|settings| settings.admission.queue_wait_ms = 50).await;
    let status = stack.refused(held(1)).await;
    assert_retryable(&status, Reason::QueueWait);
    let Preparation { mut answer, .. } = life.preparation().await;
    within(answer.closed()).await;
    drop(stack);

    let (stack, mut life) = Stack::ready(|_| {}).await;
    let gone = stack.submit(held(2));
    let Preparation { mut answer, .. } = life.preparation().await;
    gone.abort();
    within(answer.closed()).await;
}

#[tokio::test]
async fn a_grammar_that_cannot_be_enforced_is_refused_before_its_request_is_queued() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let _first = stack.running(&mut life).await;
    let _second = stack.running(&mut life).await;
    let waiting = stack.submit(held(1));
    let refusal = Reason::InvalidArgument.field("response_format", "expected another one");
    life.preparation().await.answer.send(Err(refusal)).expect("it waits");
    let status = within(waiting).await.expect("no panic").map(drop).expect_err("refused");
    assert_eq!(Reason::of(&status), Some(Reason::InvalidArgument));
    assert_eq!(status.message(), "expected another one");
    stack.counts(2, 0).await;
}

#[tokio::test]
async fn requests_that_wait_for_a_compiler_that_dies_are_told_that_the_target_is_gone() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let (waiting, preparations) = compiling(&stack, &mut life).await;
    life.die(worker::WorkerExit::Signal(9)).await;
    for request in waiting {
        let status = within(request).await.expect("no panic").map(drop).expect_err("refused");
        let reason = Reason::of(&status).expect("ours");
        // TARGET_GONE if it was admitted before the end was noticed.
        assert!(reason.is_interruption(), "{status:?}");
    }
    drop(preparations);
    stack.life().await;
}
