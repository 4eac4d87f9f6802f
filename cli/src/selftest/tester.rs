//! The test of one drafter, or of none: asks all prompts in both lanes in turn, and compares the
//! answers.

use paceline_client::answer::Answer;
use paceline_client::ask::{Ask, Choice};
use paceline_client::compare::{JudgedDifferences, first_difference, weigh};
use paceline_client::failure::SELFTEST;
use paceline_client::own_service::OwnService;
use paceline_client::own_service::subject::Subject;
use paceline_client::prompts::Prompt;
use paceline_client::{Failure, Screen};
use paceline_proto::v1::inference_client::InferenceClient;
use paceline_proto::v1::{RouteWish, StatusResponse};
use paceline_system::Clock;
use paceline_vocabulary::Millis;
use tonic::transport::Channel;

use super::figures::{Decode, Pair, SelftestRow, TokenComparison, rows, undrafted};
use super::pace::{PARTS, Pace};
use super::plan::SelftestPlan;
use super::report::SelftestReport;
use super::verdict::{Findings, verdict};
use crate::status::products_words;
use crate::step_costs::StepMs;

/// Interval between lines of progress where none replaces the last one.
const LINES_MS: u64 = 10_000;
/// Longest time of an answer in the plain lane in seconds, within the bounds of tokens below. The
/// run then ends while a person waits, and a shortened answer still has enough cycles.
const ANSWER_S: f64 = 1.5;
const TOKENS: std::ops::RangeInclusive<u32> = 32..=256;

/// The test, once the service has been started.
pub(super) struct Tester<'a> {
    pub(super) plan: &'a SelftestPlan,
    pub(super) service: OwnService,
    pub(super) screen: &'a mut Screen,
    clock: Clock,
    /// When the next line of progress is due.
    next_line: Millis,
}

impl<'a> Tester<'a> {
    /// A test by this plan.
    pub(super) fn new(plan: &'a SelftestPlan, service: OwnService, screen: &'a mut Screen) -> Self {
        Self { plan, service, screen, clock: Clock::start(), next_line: Millis(0) }
    }

    /// As [`OwnService::until_ready`]; shows each step on the way.
    pub(super) async fn until_ready(&mut self) -> Result<(StatusResponse, bool), Failure> {
        let Self { service, screen, clock, next_line, .. } = self;
        service.until_ready(|what| progress(screen, clock.now(), next_line, what)).await
    }

    /// Asks all prompts in both lanes.
    pub(super) async fn measure(
        &mut self,
        client: &mut InferenceClient<Channel>,
        status: &StatusResponse,
        drafter: bool,
    ) -> Result<SelftestReport, Failure> {
        let prompts = &self.plan.prompts;
        let max_tokens = warm_up(client, &prompts[0], drafter).await?;
        self.screen
            .note(&format!("{} prompts, answers of up to {max_tokens} tokens", prompts.len()));
        // The first step of a new part is shown, however short the part is.
        self.next_line = Millis(0);

        let judged = JudgedDifferences::of(status);
        let mut identity = TokenComparison { judged, ..TokenComparison::default() };
        let mut pairs = Vec::new();
        // Cycles and accepted tokens.
        let mut sampled = (0, 0);
        let limit_ms = self.plan.seconds.map(|seconds| seconds * 1_000);
        let begun = self.clock.now();
        let mut pace = Pace { prompts: prompts.len(), limit_ms, begun, done: 0 };
        while pace.done < PARTS.len() * prompts.len() && pace.goes_on(self.clock.now()) {
            let (part, at) = (pace.done / prompts.len(), pace.done % prompts.len());
            let (prompt, now) = (&prompts[at], self.clock.now());
            let words = pace.words(&prompt.kind, now);
            progress(self.screen, now, &mut self.next_line, &words);
            let run = PromptRun { client: &mut *client, prompt, max_tokens, drafter };
            if part + 1 < PARTS.len() {
                // In the second round the order of the lanes is reversed, so that a machine that
                // warms up or slows down favours neither.
                pairs.push(run.timed((part + at) % 2 == 1, &mut identity).await?);
            } else {
                let answer = run.sampled(1 + at as u64, &mut identity).await?;
                sampled.0 += answer.speculation.cycles;
                sampled.1 += answer.speculation.accepted;
            }
            pace.done += 1;
        }
        self.screen.clear();
        let sampled = (sampled.0 > 0).then(|| 1.0 + sampled.1 as f64 / sampled.0 as f64);
        let after = self.service.snapshot().await.unwrap_or_default();
        let not_checked = pace.left_out();
        let report = SelftestReport { max_tokens, not_checked, identity, ..Default::default() };
        let report = self.report(status, &after, &pairs, report)?;
        Ok(SelftestReport { sampled_tokens_per_cycle: sampled, ..report })
    }

    /// Adds to `begun` the figures of the answers and of the service.
    fn report(
        &self,
        before: &StatusResponse,
        after: &StatusResponse,
        pairs: &[Pair],
        begun: SelftestReport,
    ) -> Result<SelftestReport, Failure> {
        let drafted = before.drafter.is_some() && pairs.iter().any(|pair| pair.drafted.is_some());
        let (kinds, all) = (rows(pairs), SelftestRow::of("all", pairs.iter()));
        let undrafted = undrafted(pairs);
        if drafted && all.cycles == 0 && begun.not_checked.is_empty() {
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
        let words = verdict(&Findings {
            kinds: &kinds,
            all: &all,
            identity: &begun.identity,
            drafter: drafted,
        });
        Ok(SelftestReport {
            subject: Subject::new(before, drafted),
            prompts_per_kind: self.plan.per_kind,
            overall_ratio: all.overall(),
            kinds,
            all,
            exact_lanes: after.model.as_ref().is_some_and(|model| model.exact_lanes),
            products: after.model.clone().map(|model| products_words(&model.into())),
            late_drafts: late(after).saturating_sub(late(before)),
            undrafted,
            step_costs: after
                .routing
                .iter()
                .flat_map(|routing| &routing.step_costs)
                .map(StepMs::of)
                .collect(),
            verdict: words,
            ..begun
        })
    }
}

/// Shows a step; where the next one does not replace it, one each [`LINES_MS`].
fn progress(screen: &mut Screen, now: Millis, next_line: &mut Millis, what: &str) {
    let is_due = now >= *next_line;
    if is_due {
        *next_line = now + LINES_MS;
    }
    screen.progress(what, is_due);
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
