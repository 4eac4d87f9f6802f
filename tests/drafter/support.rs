//! Helpers of these tests: prompts, references, running requests, and the resources that a service
//! must give back.

use std::path::PathBuf;

use paceline_proto::v1::{RouteWish, Speculation};
use paceline_tests::ask::Ask;
use paceline_tests::prompts::{Prompt, reference, same_but_near_ties, some_of_each};
use paceline_tests::resources::Resources;
use paceline_tests::stack::Pending;
use paceline_tests::{Answer, Stack, repository, wait};

/// A restart budget that these tests do not use up.
pub const MANY_RESTARTS: &str = "supervisor.restarts = 100000\n";

/// Directory of a golden checkpoint.
pub fn golden(name: &str) -> PathBuf {
    repository().join("models/tests/golden").join(name)
}

/// Prompts of the tests that break things: short answers, so that there is time for many rounds.
pub fn short() -> Vec<Prompt> {
    some_of_each(4)
        .into_iter()
        .map(|prompt| Prompt { ask: prompt.ask.max_tokens(64), ..prompt })
        .collect()
}

/// Processes that live on when a drafter ends.
const LIVE_ON: [&str; 2] = ["target", "supervisor"];

/// Resources that the target and the supervisor hold now.
pub fn resources(stack: &Stack) -> Resources {
    Resources::of(stack, &LIVE_ON)
}

/// Waits until the service holds no more than before.
pub fn wait_for_resources(stack: &Stack, before: &Resources, what: &str) {
    let mut now = None;
    let waited = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        wait("the resources of before", || {
            let found = resources(stack);
            let settled = found.within(before);
            now = Some(found);
            settled.then_some(())
        });
    }));
    assert!(waited.is_ok(), "{what}: before {before:?}, now {now:?}, {:?}", stack.processes());
}

/// The plain answers to prompts, greedy and sampled in turn.
pub fn references(stack: &Stack, prompts: &[Prompt]) -> Vec<Answer> {
    let asks = prompts.iter().enumerate().map(|(at, prompt)| prompt.sampled(seed(at)));
    plain_answers(stack, &asks.collect::<Vec<_>>())
}

/// Answers of the speculative lane to the same requests.
pub struct Drafted {
    /// To one request at a time.
    pub alone: Vec<Answer>,
    /// To eight at once.
    pub together: Vec<Answer>,
}

/// Asks each request in the speculative lane, alone and beside seven others, and compares the
/// answers with the plain ones. Returns them, and adds to the counts of tokens and near-ties.
pub fn compare_with_plain(
    stack: &Stack,
    asks: &[Ask],
    plain: &[Answer],
    what: &str,
    counts: &mut Compared,
) -> Drafted {
    let fast = |ask: &Ask| ask.clone().route(RouteWish::Speculative);
    let alone: Vec<Answer> = asks.iter().map(|ask| stack.ask(fast(ask)).expect("served")).collect();
    let together = eight_at_a_time(stack, asks.iter().map(fast));
    for (at, plain) in plain.iter().enumerate() {
        for (answers, how) in [(&alone, "alone"), (&together, "together")] {
            let what = format!("{what}, request {at}, {how}");
            same_but_near_ties(plain, &answers[at], &what, &mut counts.near_ties);
            counts.tokens += plain.ids.len();
        }
    }
    Drafted { alone, together }
}

/// Number of compared tokens, and of near-ties among them.
#[derive(Default)]
pub struct Compared {
    tokens: usize,
    near_ties: u32,
}

impl Compared {
    /// Near-ties are rare: the aim is one in 100,000 tokens (I1). A few prompts have none.
    pub fn check(&self) {
        let Self { tokens, near_ties } = *self;
        println!("{tokens} tokens compared, {near_ties} near-ties");
        let most = 1 + tokens / 20_000;
        assert!(near_ties as usize <= most, "{near_ties} near-ties in {tokens} tokens");
    }
}

/// The plain answers to these requests, eight at a time: `tests/generate.rs` shows that a plain
/// request alone has the same tokens.
pub fn plain_answers(stack: &Stack, asks: &[Ask]) -> Vec<Answer> {
    eight_at_a_time(stack, asks.iter().cloned().map(reference))
}

/// Answers to these requests, of which eight run at once.
fn eight_at_a_time(stack: &Stack, asks: impl Iterator<Item = Ask>) -> Vec<Answer> {
    let asks: Vec<Ask> = asks.collect();
    asks.chunks(8)
        .flat_map(|asks| asks.iter().map(|ask| stack.start(ask.clone())).collect::<Vec<_>>())
        .map(|pending| pending.finish().expect("served"))
        .collect()
}

/// Every second request is sampled.
pub fn seed(at: usize) -> Option<u64> {
    (at % 2 == 1).then_some(at as u64)
}

/// The totals of these answers.
pub fn sum<'a>(answers: impl IntoIterator<Item = &'a Answer>) -> Speculation {
    answers.into_iter().map(Answer::speculation).fold(Speculation::default(), |all, one| {
        Speculation {
            cycles: all.cycles + one.cycles,
            drafted: all.drafted + one.drafted,
            accepted: all.accepted + one.accepted,
        }
    })
}

/// Tokens committed per cycle.
pub fn per_cycle(speculation: Speculation) -> f64 {
    (speculation.accepted + speculation.cycles) as f64 / speculation.cycles.max(1) as f64
}

/// A request that runs while something happens to the drafter.
pub struct Running {
    /// Index of the prompt, and of its reference.
    prompt_idx: usize,
    pending: Pending,
}

/// Starts eight requests, with the prompts from `first` on.
pub fn start_eight(stack: &Stack, prompts: &[Prompt], first: usize) -> Vec<Running> {
    let start = |prompt_idx: usize| {
        let ask = prompts[prompt_idx].sampled(seed(prompt_idx)).route(RouteWish::Speculative);
        Running { prompt_idx, pending: stack.start(ask) }
    };
    (0..8).map(|n| start((first + n) % prompts.len())).collect()
}

/// Waits for the answers and compares each with its plain reference.
pub fn finish(
    running: Vec<Running>,
    plain: &[Answer],
    what: &str,
    near_ties: &mut u32,
) -> Vec<Answer> {
    let finish_one = |Running { prompt_idx, pending }: Running| {
        let answer = pending
            .finish()
            .unwrap_or_else(|status| panic!("{what}: request {prompt_idx} failed: {status}"));
        let what = format!("{what}, request {prompt_idx}");
        same_but_near_ties(&plain[prompt_idx], &answer, &what, near_ties);
        answer
    };
    running.into_iter().map(finish_one).collect()
}
