//! The status as a load: what waits, in the queue and in the target.

use paceline_proto::v1::RequestsStatus;

use crate::{Stack, request};

/// The requests of the status, once it has `wanted`.
async fn requests(stack: &mut Stack, wanted: impl Fn(&RequestsStatus) -> bool) -> RequestsStatus {
    crate::within(async {
        loop {
            let requests = stack.status().await.requests.expect("always there");
            if wanted(&requests) {
                return requests;
            }
        }
    })
    .await
}

#[tokio::test]
async fn what_waits_is_counted_in_the_queue_and_by_the_targets_heartbeat() {
    let (mut stack, mut life) = Stack::ready(|_| {}).await;
    let idle = requests(&mut stack, |_| true).await;
    assert!(idle.idle_s > 0.0, "{idle:?}");
    assert_eq!(idle, RequestsStatus { most_active: 2, idle_s: idle.idle_s, ..Default::default() });
    let (_first, _first_answer) = stack.running(&mut life).await;
    let (_second, second_answer) = stack.running(&mut life).await;
    // A prompt of three tokens.
    let waiting = stack.submit(request());
    let full = requests(&mut stack, |requests| requests.queued == 1).await;
    let expected = RequestsStatus {
        active: 2,
        queued: 1,
        most_active: 2,
        queued_tokens: 3,
        idle_s: 0.0,
        ..full
    };
    assert_eq!((full, full.unstarted, full.unstarted_tokens), (expected, 0, 0));
    life.unstarted(1, 70);
    let begun = requests(&mut stack, |requests| requests.unstarted > 0).await;
    assert_eq!((begun.unstarted, begun.unstarted_tokens, begun.queued_tokens), (1, 70, 3));
    waiting.abort();
    let left = requests(&mut stack, |requests| requests.queued == 0).await;
    assert_eq!((left.queued_tokens, left.active), (0, 2));
    // A heartbeat that is older than the end of requests counts none that is gone.
    life.unstarted(2, 140);
    requests(&mut stack, |requests| requests.unstarted == 2).await;
    drop(second_answer);
    let one = requests(&mut stack, |requests| requests.active == 1).await;
    assert_eq!(one.unstarted, 1);
}
