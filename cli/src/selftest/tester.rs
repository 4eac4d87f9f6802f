//! The test of one drafter, or of none: asks all prompts in both lanes in turn, and compares the
//! answers.

use paceline_client::answer::Answer;
use paceline_client::ask::{Ask, Choice};
use paceline_client::compare::{JudgedDifferences, first_difference, weigh};
use paceline_client::failure::SELFTEST;
use paceline_client::own_service::OwnService;
use paceline_client::own_service::subject::Subject;
use paceline_client::prompts::{self, Prompt};
use paceline_client::{Failure, Screen};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{RouteWish, StatusResponse};
use tonic::transport::Channel;

use super::figures::{Decode, Pair, SelftestRow, TokenComparison, rows, undrafted};
use super::plan::SelftestPlan;
use super::report::SelftestReport;
use super::verdict::{Findings, verdict};
use crate::step_costs::StepMs;

/// How often each prompt is sent in each lane. The second time the order is reversed, so that a
/// machine that warms up or slows down favours neither lane.
const ROUNDS: usize = 2;
/// Longest time of an answer in the plain lane in seconds, within the bounds of tokens below. The
/// run then ends while a person waits, and a shortened answer still has enough cycles.
const ANSWER_S: f64 = 1.5;
const TOKENS: std::ops::RangeInclusive<u32> = 32..=256;

/// The test, once the service has been started.
pub(super) struct Tester<'a> {
    pub(super) plan: &'a SelftestPlan,
    pub(super) service: OwnService,
    pub(super) screen: &'a mut Screen,
    /// Standard output is for the object alone.
    pub(super) quiet: bool,
}

impl Tester<'_> {
    /// As [`OwnService::until_ready`]; shows each step on the way.
    pub(super) async fn until_ready(&mut self) -> Result<(StatusResponse, bool), Failure> {
        let Self { service, screen, quiet, .. } = self;
        service.until_ready(|what| passing(screen, *quiet, what)).await
    }

    /// Asks all prompts in both lanes.
    pub(super) async fn measure(
        &mut self,
        client: &mut InferenceClient<Channel>,
        status: &StatusResponse,
        drafter: bool,
    ) -> Result<SelftestReport, Failure> {
        let prompts = prompts::embedded(self.plan.prompts);
        let max_tokens = warm_up(client, &prompts[0], drafter).await?;
        self.screen
            .note(&format!("{} prompts, answers of up to {max_tokens} tokens", prompts.len()));

        let judged = JudgedDifferences::of(status);
        let mut identity = TokenComparison { judged, ..TokenComparison::default() };
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
        let after = self.service.snapshot().await.unwrap_or_default();
        let report = self.report(status, &after, &pairs, identity, max_tokens)?;
        Ok(SelftestReport { sampled_tokens_per_cycle: sampled, ..report })
    }

    fn passing(&mut self, what: &str) {
        passing(self.screen, self.quiet, what);
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
            return Err(Failure::measuring(SELFTEST, message.trim_end()));
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
            exact_lanes: after.model.as_ref().is_some_and(|model| model.exact_lanes),
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

fn passing(screen: &mut Screen, quiet: bool, what: &str) {
    if !quiet {
        screen.transient(what);
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
        last = Decode::of(&ask.send(client).await?.stamps);
    }
    let speed = last.map_or(0.0, Decode::speed);
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
    ) -> Result<Answer, Failure> {
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
    ) -> Result<Answer, Failure> {
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
        plain: &Answer,
        other: &Answer,
        identity: &mut TokenComparison,
    ) -> Result<(), Failure> {
        let (equal, different) = first_difference(&plain.token_ids, &other.token_ids);
        identity.streams += 1;
        identity.tokens += equal;
        if !different {
            return Ok(());
        }
        let again = self.ask(choice, RouteWish::Plain, true).await?;
        let difference =
            weigh(&plain.token_ids, &other.token_ids, &again.token_ids, &again.margins);
        identity.judged.add(self.prompt, choice, difference);
        Ok(())
    }
}
