//! Eight streams under which target or supervisor are killed or restarted, again and again.

use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1::ProcessState;
use paceline_system::clock::monotonic_ns;
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{Prompt, same_but_near_ties, some_of_each};
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, chat, share, wait};
use tonic::{Code, Status};
use tonic_types::StatusExt as _;

use super::{MANY_LIVES, kill, replaced};

/// Streams at once.
const STREAMS: usize = 8;
/// Tokens of a stream: long enough that all of them run when a process is killed.
pub const TOKENS: u32 = 200;
/// Time for the first token beside load, pause and prefill, in milliseconds.
const MARGIN_MS: f64 = 1_000.0;
/// Longest pause of a stream in the suite, in milliseconds. The goal is [`MARGIN_MS`] beside load
/// and prefill, which take some hundred; this is for a busy machine.
const LONGEST_PAUSE_MS: f64 = 12_000.0;

/// Requests of different prompts, greedy and seeded in turn.
pub fn asks() -> Vec<Ask> {
    let prompts = some_of_each(2).into_iter().take(STREAMS).enumerate();
    let ask = |(at, prompt): (usize, Prompt)| {
        prompt.sampled((at % 2 == 1).then_some(7 + at as u64)).exactly(TOKENS).with_margins()
    };
    prompts.map(ask).collect()
}

/// Answers of an undisturbed service.
pub fn undisturbed(stack: &Stack, asks: &[Ask]) -> Vec<Answer> {
    let all: Vec<Pending> = asks.iter().map(|ask| stack.start(ask.clone())).collect();
    all.into_iter().map(|one| one.finish().expect("served")).collect()
}

/// Sends all requests at once and waits until all of them run.
pub fn running(stack: &Stack, asks: &[Ask]) -> Vec<Pending> {
    let streams: Vec<Pending> = asks.iter().map(|ask| stack.start(ask.clone())).collect();
    wait("all streams to have tokens", || {
        streams.iter().all(|stream| stream.tokens() >= 3).then_some(())
    });
    streams
}

/// Outcome of disturbed streams.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How often streams were submitted again.
    pub resumed: u32,
    streams: usize,
    /// Streams that ended with an error that asks their clients to try again.
    lost: usize,
    /// The longest pause of a stream, in milliseconds.
    longest_pause_ms: f64,
}

impl Outcome {
    fn add(&mut self, other: &Outcome) {
        self.resumed += other.resumed;
        self.streams += other.streams;
        self.lost += other.lost;
        self.longest_pause_ms = self.longest_pause_ms.max(other.longest_pause_ms);
    }

    /// At least 99 of 100 streams are whole, and none stood still for long.
    fn check(&self) {
        println!("{self:?}");
        assert!(self.longest_pause_ms <= LONGEST_PAUSE_MS, "{self:?}");
        assert!(self.lost * 100 <= self.streams, "{self:?}");
    }
}

/// An error that tells its client when to try again.
fn asks_for_another_try(status: &Status) -> bool {
    status.code() == Code::Unavailable
        && Reason::of(status).is_some_and(Reason::retryable)
        && status.get_details_retry_info().is_some()
}

/// Checks that answers are those of the undisturbed run.
pub fn completed(streams: Vec<Pending>, expected: &[Answer], what: &str) -> Outcome {
    let mut outcome = Outcome { streams: streams.len(), ..Outcome::default() };
    for (at, (stream, expected)) in streams.into_iter().zip(expected).enumerate() {
        let answer = match stream.finish() {
            Ok(answer) => answer,
            Err(status) => {
                assert!(asks_for_another_try(&status), "{what}, stream {at}: {status:?}");
                println!("{what}, stream {at}: {status:?}");
                outcome.lost += 1;
                continue;
            }
        };
        let what = format!("{what}, stream {at}");
        same_but_near_ties(expected, &answer, &what, &mut 0);
        let (usage, whole) = (answer.usage(), expected.usage());
        assert_eq!(
            (usage.prompt_tokens, usage.completion_tokens),
            (whole.prompt_tokens, whole.completion_tokens),
            "{what}"
        );
        assert_eq!(answer.end.finish_reason, expected.end.finish_reason, "{what}");
        outcome.resumed += answer.end.resumed;
        outcome.longest_pause_ms = outcome.longest_pause_ms.max(answer.longest_gap_ms());
    }
    outcome
}

/// Kills the target under eight streams, `rounds` times. With `timed` it also checks when tokens
/// come again.
fn target_killed(rounds: usize, timed: bool) {
    let stack = Stack::drafting(MANY_LIVES);
    let asks = asks();
    let expected = undisturbed(&stack, &asks);
    let prefill_ms: f64 =
        expected.iter().map(|answer| answer.end.timing.unwrap_or_default().ttft_ms).sum();
    let mut all = Outcome::default();
    for round in 0..rounds {
        let streams = running(&stack, &asks);
        let before = stack.pid("target");
        kill(&stack, "target");
        let killed_ns = monotonic_ns();
        let ready_ms = timed.then(|| until_ready_ms(&stack, before, killed_ns));
        let outcome = completed(streams, &expected, &format!("round {round}"));
        all.add(&outcome);
        if let Some(ready_ms) = ready_ms {
            let most_ms = ready_ms + prefill_ms + MARGIN_MS;
            println!("{round}: ready after {ready_ms:.0} ms, {:.0} ms", outcome.longest_pause_ms);
            assert!(
                outcome.longest_pause_ms <= most_ms,
                "expected a pause of at most {most_ms} ms, found {outcome:?}"
            );
        }
        replaced(&stack, before);
        stack.wait_linked();
    }
    all.check();
    // In some round all streams may have ended before the kill.
    assert!(all.resumed > 0, "no stream ran when the target was killed");
    stack.wait_memory_back();
    if all.lost == 0 {
        assert_eq!(resumed_of_metrics(&stack), all.resumed);
    }
    stack.stop();
}

/// Milliseconds from the kill to the next target's report that it is ready: the restart's pause and
/// the load.
fn until_ready_ms(stack: &Stack, before: u32, killed_ns: i64) -> f64 {
    wait("the next target", || {
        let target = stack.snapshot().ok()?.target?;
        let is_next = target.pid != before && target.state() == ProcessState::Ready;
        is_next.then(|| (monotonic_ns() - killed_ns) as f64 / 1e6)
    })
}

fn resumed_of_metrics(stack: &Stack) -> u32 {
    let text = stack.http_get("/metrics").expect("served").body;
    let line = text.lines().find(|line| line.starts_with("paceline_resumed_total"));
    line.and_then(|line| line.split(' ').nth(1)?.parse().ok()).expect("a metric")
}

#[test]
fn streams_go_on_after_a_killed_target() {
    target_killed(5, false);
}

#[test]
#[ignore = "more: 20 kills; in `make soak` 200, and the time of the pauses"]
fn streams_go_on_after_each_of_many_killed_targets() {
    target_killed(share::of(200), share::is_all());
}

/// Kills the supervisor under eight streams, `rounds` times.
fn supervisor_killed(rounds: usize) {
    let stack = Stack::drafting(MANY_LIVES);
    let asks = asks();
    let expected = undisturbed(&stack, &asks);
    let (target, mut all) = (stack.pid("target"), Outcome::default());
    for round in 0..rounds {
        let streams = running(&stack, &asks);
        kill(&stack, "supervisor");
        all.add(&completed(streams, &expected, &format!("round {round}")));
        stack.wait_linked();
        assert_eq!(stack.pid("target"), target, "round {round}: the weights are loaded once");
    }
    all.check();
    assert!(all.resumed > 0, "no stream ran when the supervisor was killed");
    stack.stop();
}

#[test]
fn streams_go_on_after_a_killed_supervisor_with_the_same_target() {
    supervisor_killed(2);
}

#[test]
#[ignore = "soak: 50 kills; run by `make soak`"]
fn streams_go_on_after_each_of_fifty_killed_supervisors() {
    supervisor_killed(50);
}

/// An operator restarts the target under eight streams, `rounds` times, and then the supervisor.
fn restarted(rounds: usize) {
    let stack = Stack::drafting(MANY_LIVES);
    let asks = asks();
    let expected = undisturbed(&stack, &asks);
    let targets = (0..rounds).map(|round| ("target", round));
    for (process, round) in targets.chain([("supervisor", 0)]) {
        let streams = running(&stack, &asks);
        let output = stack.paceline(&["restart", process], "");
        assert!(output.status.success(), "{output:?}");
        let what = format!("{process}, round {round}");
        let outcome = completed(streams, &expected, &what);
        assert_eq!(outcome.lost, 0, "{what}");
        outcome.check();
        stack.wait_linked();
    }
    let status = stack.wait_linked();
    for process in ["target", "supervisor", "gateway"] {
        assert_eq!(status[process]["restarts"], 0, "{process}: an operator asked for it");
    }
    stack.stop();
}

#[test]
fn an_operators_restart_of_the_target_loses_no_stream() {
    restarted(5);
}

#[test]
#[ignore = "more: 20 restarts"]
fn twenty_restarts_of_the_target_by_an_operator_lose_no_stream() {
    restarted(20);
}

#[test]
fn a_request_that_arrives_without_a_target_waits_for_it() {
    let stack = Stack::drafting(MANY_LIVES);
    let ask = chat("List three fruits.").max_tokens(8);
    let expected = stack.ask(ask.clone()).expect("served");
    for _ in 0..3 {
        let before = stack.pid("target");
        kill(&stack, "target");
        let answer = stack.ask(ask.clone()).expect("it waits");
        assert_eq!(answer.ids, expected.ids);
        replaced(&stack, before);
        let second = stack.pid("target");
        let body = serde_json::json!({
            "messages": [{ "role": "user", "content": "List three fruits." }],
            "max_tokens": 8,
            "temperature": 0,
        });
        kill(&stack, "target");
        let answer = stack.http_json("/v1/chat/completions", &body).expect("an answer");
        assert_eq!(answer.status(), 200, "it waits over HTTP too: {}", answer.body);
        replaced(&stack, second);
    }
    stack.stop();
}
