//! `paceline selftest` checks the user's own model and machine. It reports whether the lanes are
//! identical, how many drafted tokens are accepted for each kind of prompt, how fast each lane is,
//! and what to change. It starts a service of its own and uses it like any client.
//!
//! [`plan`] what is tested │ [`stage`] the service of its own │ [`ready`], [`service`] its way to
//! ready │ [`prompts`] what is asked │ [`ask`] one request │ [`compare`] identity │ [`figures`]
//! numbers │ [`verdict`] words │ [`report`] the table │ [`drafters`] several drafters in turn. This
//! file has the order of the steps: start, wait, ask in both lanes in turn, compare, report, stop.

pub mod ask;
pub mod compare;
pub mod drafters;
pub mod figures;
pub mod plan;
pub mod prompts;
pub mod ready;
pub mod report;
pub mod service;
pub mod stage;
pub mod verdict;

use paceline_process::{Clock, RuntimeDir};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{RouteWish, StatusResponse};
use serde::Serialize;
use tonic::transport::Channel;

use self::ask::{Ask, Choice};
use self::compare::{first_difference, weigh};
use self::drafters::DraftersReport;
use self::figures::{
    DifferencePlace, LaneAnswer, Pair, SelftestRow, TokenComparison, rows, undrafted,
};
use self::plan::SelftestPlan;
use self::prompts::Prompt;
use self::report::{SelftestReport, Subject, place_line};
use self::service::{StopSignals, another_runs, snapshot, until_ready};
use self::stage::Stage;
use self::verdict::{Findings, verdict};
use crate::args::SelftestArgs;
use crate::client;
use crate::failure::Failure;
use crate::screen::Screen;
use crate::step_costs::StepMs;

/// How often each prompt is sent in each lane. The second time the order is reversed, so that a
/// machine that warms up or slows down favours neither lane.
const ROUNDS: usize = 2;
/// Longest time of an answer in the plain lane in seconds, within the bounds of tokens below. The
/// run then ends while a person waits, and a shortened answer still has enough cycles.
const ANSWER_S: f64 = 1.5;
const TOKENS: std::ops::RangeInclusive<u32> = 32..=256;

/// Runs the command.
///
/// # Errors
/// The lanes differ, the service or its drafter does not come up, or it cannot be asked. With
/// `--json` it has been printed as an object too.
pub async fn run(args: &SelftestArgs, screen: &mut Screen) -> Result<(), Failure> {
    let outcome = match test(args, screen).await {
        Ok(outcome) => outcome,
        Err(failure) => {
            if args.json {
                screen.line(&failure.object().to_string());
            }
            return Err(failure);
        }
    };
    let text = match (&outcome, args.json) {
        (Outcome::One(report), true) => object(report),
        (Outcome::One(report), false) => report.text(),
        (Outcome::Several(report), true) => object(report),
        (Outcome::Several(report), false) => report.text(),
    };
    screen.text(&text).map_err(|_| Failure::output_closed())?;
    outcome.difference().map_or(Ok(()), |what| Err(Failure::selftest(what)))
}

fn object(report: &impl Serialize) -> String {
    serde_json::to_string(report).expect("a report is plain JSON") + "\n"
}

/// What was measured.
enum Outcome {
    /// The configured drafter, or the one that was named.
    One(Box<SelftestReport>),
    /// Each of several drafters.
    Several(DraftersReport),
}

impl Outcome {
    fn after(self, seconds: f64) -> Self {
        match self {
            Self::One(report) => Self::One(Box::new(SelftestReport { seconds, ..*report })),
            Self::Several(report) => Self::Several(DraftersReport { seconds, ..report }),
        }
    }

    /// Where the lanes differ, if they do.
    fn difference(&self) -> Option<String> {
        match self {
            Self::One(report) => {
                let place = report.identity.differences.first()?;
                Some(format!("the lanes differ: {}", place_line(place)))
            }
            Self::Several(report) => report.difference(),
        }
    }
}

/// Starts the service, tests it and stops it, whatever happens in between.
async fn test(args: &SelftestArgs, screen: &mut Screen) -> Result<Outcome, Failure> {
    let plan = SelftestPlan::from_args(args)?;
    let mut stops = StopSignals::new()?;
    if another_runs(args.config.config.as_deref()) {
        screen.note("another service runs on this machine: it shares the cores, and the speeds below will show it");
    }
    let clock = Clock::start();
    let mut stage = Stage::start("selftest", &plan.config, plan.file.as_deref())?;
    let (address, dir) = (stage.address(), stage.dir());
    let outcome = tokio::select! {
        biased;
        () = stops.next() => Err(Failure::interrupted()),
        failure = stage.end() => Err(failure),
        outcome = work(Tester { plan: &plan, dir, screen: &mut *screen, quiet: args.json }, &address) => outcome,
    };
    if outcome.is_err() {
        screen.note("stopping the service");
    }
    stage.stop(async || stops.next().await).await;
    outcome.map(|outcome| outcome.after(clock.now().0 as f64 / 1e3))
}

async fn work(mut tester: Tester<'_>, address: &str) -> Result<Outcome, Failure> {
    if !tester.plan.drafters.is_empty() {
        let drafters = &tester.plan.drafters;
        return drafters::compare(tester, address, drafters).await.map(Outcome::Several);
    }
    let (status, drafter) = until_ready(&tester.dir.clone(), |what| tester.passing(what)).await?;
    let mut client = client::connect(address).await?;
    let report = tester.measure(&mut client, &status, drafter).await?;
    Ok(Outcome::One(Box::new(report)))
}

/// The test, once the service has been started.
struct Tester<'a> {
    plan: &'a SelftestPlan,
    dir: RuntimeDir,
    screen: &'a mut Screen,
    /// Standard output is for the object alone.
    quiet: bool,
}

impl Tester<'_> {
    /// Asks all prompts in both lanes.
    async fn measure(
        &mut self,
        client: &mut InferenceClient<Channel>,
        status: &StatusResponse,
        drafter: bool,
    ) -> Result<SelftestReport, Failure> {
        let prompts = prompts::embedded(self.plan.prompts);
        let max_tokens = warm_up(client, &prompts[0], drafter).await?;
        self.screen
            .note(&format!("{} prompts, answers of up to {max_tokens} tokens", prompts.len()));

        let mut identity = TokenComparison::default();
        let mut pairs = Vec::new();
        for round in 0..ROUNDS {
            for (at, prompt) in prompts.iter().enumerate() {
                self.passing(&format!(
                    "round {} of {ROUNDS}: {} of {} ({})",
                    round + 1,
                    at + 1,
                    prompts.len(),
                    prompt.kind
                ));
                let pair = PromptRun { client: &mut *client, prompt, max_tokens, drafter };
                pairs.push(pair.timed((round + at) % 2 == 1, &mut identity).await?);
            }
        }
        // Cycles and accepted tokens.
        let mut sampled = (0, 0);
        for (at, prompt) in prompts.iter().enumerate() {
            self.passing(&format!("sampled: {} of {} ({})", at + 1, prompts.len(), prompt.kind));
            let run = PromptRun { client: &mut *client, prompt, max_tokens, drafter };
            let answer = run.sampled(1 + at as u64, &mut identity).await?;
            sampled.0 += answer.speculation.cycles;
            sampled.1 += answer.speculation.accepted;
        }
        let sampled = (sampled.0 > 0).then(|| 1.0 + sampled.1 as f64 / sampled.0 as f64);
        let after = snapshot(&self.dir).await.unwrap_or_default();
        let report = self.report(status, &after, &pairs, identity, max_tokens)?;
        Ok(SelftestReport { sampled_tokens_per_cycle: sampled, ..report })
    }

    fn passing(&mut self, what: &str) {
        if !self.quiet {
            self.screen.transient(what);
        }
    }

    fn report(
        &self,
        before: &StatusResponse,
        after: &StatusResponse,
        pairs: &[Pair],
        identity: TokenComparison,
        max_tokens: u32,
    ) -> Result<SelftestReport, Failure> {
        let drafted = before.drafter.is_some() && pairs.iter().any(|pair| pair.drafted.is_some());
        let (kinds, all) = (rows(pairs), SelftestRow::of("all", pairs.iter()));
        let undrafted = undrafted(pairs);
        if drafted && all.cycles == 0 {
            let reasons: Vec<_> = undrafted
                .iter()
                .map(|(reason, count)| format!("{reason} ({count} answers)"))
                .collect();
            let link = after.link.clone().unwrap_or_default();
            let message = format!(
                "the drafter drafted nothing: {}; link {} {}",
                reasons.join(", "),
                link.state,
                link.reason
            );
            return Err(Failure::selftest(message.trim_end().to_owned()));
        }
        let late = |status: &StatusResponse| status.link.as_ref().map_or(0, |link| link.late);
        let words =
            verdict(&Findings { kinds: &kinds, all: &all, identity: &identity, drafter: drafted });
        Ok(SelftestReport {
            subject: Subject::new(before, drafted),
            prompts_per_kind: self.plan.prompts,
            max_tokens,
            overall_ratio: all.overall(),
            kinds,
            all,
            identity,
            late_drafts: late(after).saturating_sub(late(before)),
            undrafted,
            sampled_tokens_per_cycle: None,
            step_costs: after
                .routing
                .iter()
                .flat_map(|routing| &routing.step_costs)
                .map(StepMs::of)
                .collect(),
            verdict: words,
            seconds: 0.0,
        })
    }
}

/// Untimed answers, because the first step of a process is slow in many ways. Returns the length of
/// the timed answers in tokens.
async fn warm_up(
    client: &mut InferenceClient<Channel>,
    prompt: &Prompt,
    drafter: bool,
) -> Result<u32, Failure> {
    let lanes = if drafter {
        &[RouteWish::Plain, RouteWish::Speculative, RouteWish::Plain][..]
    } else {
        &[RouteWish::Plain; 2]
    };
    let mut last = None;
    for lane in lanes {
        let ask = Ask {
            prompt,
            choice: Choice::Greedy,
            lane: *lane,
            max_tokens: *TOKENS.start(),
            margins: false,
            ignore_eos: false,
        };
        last = ask.send(client).await?.decode;
    }
    let speed = last.map_or(0.0, |decode| decode.tokens as f64 / decode.seconds);
    Ok(((ANSWER_S * speed) as u32).clamp(*TOKENS.start(), *TOKENS.end()))
}

/// A prompt that is sent in both lanes; without a drafter twice in the plain lane.
struct PromptRun<'a> {
    client: &'a mut InferenceClient<Channel>,
    prompt: &'a Prompt,
    max_tokens: u32,
    drafter: bool,
}

impl PromptRun<'_> {
    /// Greedy and timed. `drafter_first` decides the order.
    async fn timed(
        mut self,
        drafter_first: bool,
        identity: &mut TokenComparison,
    ) -> Result<Pair, Failure> {
        let other = if self.drafter { RouteWish::Speculative } else { RouteWish::Plain };
        let order =
            if drafter_first { [other, RouteWish::Plain] } else { [RouteWish::Plain, other] };
        let first = self.ask(Choice::Greedy, order[0], false).await?;
        let second = self.ask(Choice::Greedy, order[1], false).await?;
        let (plain, other) = if drafter_first { (second, first) } else { (first, second) };
        self.compare(Choice::Greedy, &plain, &other, identity).await?;
        Ok(Pair { kind: self.prompt.kind.clone(), plain, drafted: self.drafter.then_some(other) })
    }

    /// Sampled, for identity and for the length of cycles. Returns the answer with the drafter.
    async fn sampled(
        mut self,
        seed: u64,
        identity: &mut TokenComparison,
    ) -> Result<LaneAnswer, Failure> {
        let choice = Choice::Sampled(seed);
        let other = if self.drafter { RouteWish::Speculative } else { RouteWish::Plain };
        let plain = self.ask(choice, RouteWish::Plain, false).await?;
        let other = self.ask(choice, other, false).await?;
        self.compare(choice, &plain, &other, identity).await?;
        Ok(other)
    }

    async fn ask(
        &mut self,
        choice: Choice,
        lane: RouteWish,
        margins: bool,
    ) -> Result<LaneAnswer, Failure> {
        Ask {
            prompt: self.prompt,
            choice,
            lane,
            max_tokens: self.max_tokens,
            margins,
            ignore_eos: false,
        }
        .send(self.client)
        .await
    }

    /// Compares two answers to one request. A difference is judged by the margins of one more plain
    /// run.
    async fn compare(
        &mut self,
        choice: Choice,
        plain: &LaneAnswer,
        other: &LaneAnswer,
        identity: &mut TokenComparison,
    ) -> Result<(), Failure> {
        let (equal, different) = first_difference(&plain.ids, &other.ids);
        identity.streams += 1;
        identity.tokens += equal;
        if !different {
            return Ok(());
        }
        let again = self.ask(choice, RouteWish::Plain, true).await?;
        let difference = weigh(&plain.ids, &other.ids, &again.ids, &again.margins);
        let list =
            if difference.near_tie() { &mut identity.near_ties } else { &mut identity.differences };
        list.push(DifferencePlace {
            kind: self.prompt.kind.clone(),
            prompt: self.prompt.index,
            choice: choice.word(),
            difference,
        });
        Ok(())
    }
}
