//! The one MLX thread: takes commands, asks the core for a step, runs it, hands out tokens.
//! Everything that touches an array happens here, at step borders.

mod caching;
#[cfg(test)]
mod faulty_tests;
#[cfg(test)]
pub(crate) mod fixture;
mod pictures;
#[cfg(test)]
mod speed;
mod stages;
mod waiting;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use paceline_link::Handover;
use paceline_models::sample::Logprobs;
use paceline_models::{KvStore, ModelError, SequenceId, Target, device};
use paceline_process::clock::monotonic_ns;
use paceline_process::worker::{Inbox, Progress, Pulse};
use paceline_process::{Clock, platform};
use paceline_proto::internal::v1::{
    Done, LinkReport, MemoryUse, SpeculationTotals, TokenBatch, WorkerPhase,
};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_proto::v1;
use paceline_vocabulary::{Millis, Permit, report};
use tokio::sync::oneshot;
use tonic::Status;

use crate::cache::Cache;
use crate::core::{Chosen, EndReason, Finish, Policy, Scheduler, SequenceKey, Step, StepPart};
use crate::drafting::{Border, Drafting, News};
use crate::emit::{Flow, Outlet};
use crate::error;
use crate::pass::{self, Outcome};
use crate::request::Checked;
use crate::wire;
pub(crate) use pictures::Seen;
pub(crate) use stages::Stages;

/// Pause between attempts to hand out tokens to slow readers while there is nothing else to do.
const RETRY: Duration = Duration::from_millis(5);

/// How often a link's answer to Hello is looked for while there is nothing else to do.
const GREETING: Duration = Duration::from_millis(500);

/// Without work for so long, what was freed goes back to the system.
const IDLE: Duration = Duration::from_secs(5);

/// How old figures may be.
const FIGURES_MS: u64 = 250;

/// A gain that counts as one.
const PAYS: f64 = 1.02;

/// Requests that wait for room at the next step border: twice as many as run at once, as each that
/// ends is followed by another; and never fewer than this.
const LEAST_ARRIVALS: usize = 64;

/// What the engine is asked.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run a request.
    Run(Box<Running>),
    /// End a request at the next step border; answers whether it was there.
    Cancel(String, oneshot::Sender<bool>),
    /// Give these requests other permits; answers which of them are not there.
    Repermit(Vec<(String, Permit)>, oneshot::Sender<Vec<String>>),
    /// Another routing policy, from the next cycle border on.
    Policy(Policy),
    /// Greet a drafter over this link.
    Link(Handover),
    /// Finish what runs until `until`, then end the rest and return.
    Stop { until: Millis },
}

/// A request being run.
#[derive(Debug)]
pub(crate) struct Running {
    pub(crate) checked: Checked,
    pub(crate) outlet: Outlet,
    pub(crate) stages: Stages,
}

/// The engine's state. Not `Send`: made on the thread that runs it.
pub(crate) struct Engine {
    model: Box<dyn Target>,
    kv: KvStore,
    scheduler: Scheduler,
    drafting: Drafting,
    cache: Cache,
    /// Pictures as the model reads them.
    seen: Seen,
    /// Of the taps in the cache.
    tap_layers: Vec<usize>,
    running: HashMap<SequenceKey, Running>,
    /// Requests not started yet. The supervisor admits by our figures, so none waits longer than a
    /// request whose client has gone takes to be noticed: the supervisor hears of that first.
    arrivals: VecDeque<Running>,
    /// Ended streams whose last messages did not fit their channels yet.
    leaving: Vec<Outlet>,
    progress: Arc<Progress>,
    pulse: Pulse,
    clock: Clock,
    totals: SpeculationTotals,
    /// What the supervisor was last told of the link.
    told: LinkReport,
    stop: Option<Millis>,
    broken: bool,
    /// Nothing was freed since freed memory was last given back.
    tidy: bool,
    /// When the last step ended, or the wait behind it: all time is some step's or some draft's.
    mark_ns: i64,
    /// When figures were last worked out.
    figured: Option<Millis>,
    /// In which ranges speculation paid then.
    paid: Vec<bool>,
}

impl Engine {
    pub(crate) fn new(
        model: Box<dyn Target>,
        kv: KvStore,
        scheduler: Scheduler,
        drafting: Drafting,
        cache: Cache,
        reports: (Arc<Progress>, Pulse),
        clock: Clock,
    ) -> Self {
        let (progress, pulse) = reports;
        let tap_layers = drafting.tap_layers().to_vec();
        let mut engine = Self {
            model,
            kv,
            scheduler,
            drafting,
            cache,
            seen: Seen::default(),
            tap_layers,
            running: HashMap::new(),
            arrivals: VecDeque::new(),
            leaving: vec![],
            progress,
            pulse,
            clock,
            totals: SpeculationTotals::default(),
            told: LinkReport::default(),
            stop: None,
            broken: false,
            tidy: false,
            mark_ns: monotonic_ns(),
            figured: None,
            paid: vec![],
        };
        engine.report();
        engine
    }

    /// Runs until it is asked to stop, or nobody can ask any more. `false` if MLX failed: what is
    /// in the store is not known then, and the worker must start again.
    pub(crate) fn run(mut self, mut inbox: Inbox<Command>) -> bool {
        while !self.broken {
            if !self.take_commands(&mut inbox) {
                break;
            }
            self.drop_abandoned();
            self.start_arrivals();
            let now = self.clock.now();
            if self.stop.is_some_and(|until| self.running.is_empty() || now >= until) {
                break;
            }
            let (scheduler, cache) = (&mut self.scheduler, &mut self.cache);
            let started = scheduler.start(|bytes| cache.evict(bytes));
            started.lost_hidden.iter().for_each(|key| self.drafting.give_up(*key));
            self.bound_kv();
            for key in started.keys {
                self.begin(key);
            }
            self.look_up();
            let (scheduler, cache) = (&mut self.scheduler, &mut self.cache);
            let step = scheduler.next_step(now, |bytes| cache.evict(bytes));
            if let Some(late) = self.drafting.late(&step.late, &self.border()) {
                self.pass_on(&[late]);
            }
            for (key, ended) in &step.ended {
                self.end(*key, error::ended(*ended));
            }
            self.make_way(&step);
            self.forget_pictures();
            self.bound_kv();
            match (step.tower, self.scheduler.waits_until()) {
                (Some(slice), _) => self.run_slice(slice),
                _ if !step.parts.is_empty() => self.run_step(&step),
                (None, Some(until)) => self.wait_for_draft(&mut inbox, until),
                (None, None) => {}
            }
            // Before it is decided who drafts: what the drafter read and drafted during the step.
            self.listen();
            self.feed();
            self.keep_some();
            self.leaving.retain_mut(|outlet| outlet.flush() == Flow::Kept);
            self.report();
            self.tell_link();
        }
        self.progress.set_phase(WorkerPhase::Stopping);
        let status = match self.broken {
            true => Reason::TargetGone.status("the target's engine failed and starts again"),
            false => Reason::Draining
                .status("the target was asked to stop before the request was finished"),
        };
        for key in self.running.keys().copied().collect::<Vec<_>>() {
            self.end(key, Some(status.clone()));
        }
        for arrival in std::mem::take(&mut self.arrivals) {
            self.refuse(arrival.outlet, status.clone());
        }
        self.report();
        !self.broken
    }

    /// Takes what has arrived; waits for it when there is nothing else to do. `false` when nobody
    /// can ask any more.
    fn take_commands(&mut self, inbox: &mut Inbox<Command>) -> bool {
        let busy = !self.scheduler.is_empty() || !self.arrivals.is_empty() || self.stop.is_some();
        if !busy {
            self.progress.set_phase(WorkerPhase::Idle);
            let at_most = match (self.leaving.is_empty(), self.drafting.is_greeting()) {
                _ if self.drafting.has_unread() => Some(Duration::ZERO),
                (false, _) => Some(RETRY),
                (true, true) => Some(GREETING),
                (true, false) => (!self.tidy).then_some(IDLE),
            };
            let waited = inbox.wait(&self.drafting.fds(), at_most);
            self.mark_ns = monotonic_ns();
            if !waited && at_most == Some(IDLE) {
                device::drop_cache();
                platform::give_back_freed_memory();
                self.tidy = true;
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return busy,
            }
        }
    }

    /// Takes in what came over the link.
    fn listen(&mut self) {
        match self.drafting.hear(&self.border(), self.model.as_ref()) {
            Ok(news) => self.pass_on(&news),
            Err(error) => self.break_down(&error),
        }
        self.check_taps();
    }

    fn border(&self) -> Border {
        Border { now: self.clock.now(), at_ns: self.mark_ns }
    }

    /// Shows the drafter what was committed, and asks it for drafts.
    fn feed(&mut self) {
        let running = &self.running;
        let checked = |key: SequenceKey| running.get(&key).map(|running| &running.checked);
        let pressed =
            self.scheduler.ledger().pressure() > self.scheduler.speculation.policy().kv_pressure;
        let border = self.border();
        match self.drafting.feed(
            &mut self.scheduler,
            checked,
            (&border, pressed),
            self.model.as_ref(),
        ) {
            Ok(news) => self.pass_on(&news),
            Err(error) => self.break_down(&error),
        }
    }

    fn pass_on(&mut self, news: &[News]) {
        for news in news {
            match *news {
                News::Drafted(key, tokens) => {
                    self.scheduler.proposed(key, tokens);
                }
                News::NoDraft(key) => self.scheduler.give_up_draft(key),
                News::Took(took) if took.tower => self.scheduler.speculation.answered(),
                News::Took(took) => {
                    self.scheduler.speculation.drafted(
                        took.sequences,
                        took.rows,
                        took.us as f64,
                        took.steps,
                    );
                }
            }
        }
    }

    fn break_down(&mut self, error: &ModelError) {
        tracing::error!(%error, "the engine failed");
        self.broken = true;
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Run(arrival)
                if self.arrivals.len()
                    >= LEAST_ARRIVALS.max(2 * self.scheduler.max_sequences()) =>
            {
                self.refuse(
                    arrival.outlet,
                    Reason::QueueFull.status("more requests wait for room in the target than may"),
                );
            }
            Command::Run(arrival) => self.arrivals.push_back(*arrival),
            Command::Cancel(id, answer) => {
                let found = self
                    .running
                    .iter()
                    .find(|(_, running)| running.checked.id.as_str() == id)
                    .map(|(key, _)| *key);
                let arrived =
                    self.arrivals.iter().position(|arrival| arrival.checked.id.as_str() == id);
                if let Some(key) = found {
                    self.end_early(key, Some(EndReason::Cancelled));
                } else if let Some(arrival) = arrived.and_then(|at| self.arrivals.remove(at)) {
                    self.refuse(arrival.outlet, error::cancelled());
                }
                // Whoever asked may be gone.
                let _ = answer.send(found.is_some() || arrived.is_some());
            }
            Command::Repermit(changes, answer) => {
                let mut unknown = vec![];
                for (id, permit) in changes {
                    let found = self
                        .running
                        .iter()
                        .find(|(_, running)| running.checked.id.as_str() == id)
                        .map(|(key, _)| *key);
                    if let Some(key) = found {
                        self.scheduler.set_permit(key, permit);
                    } else if let Some(arrival) =
                        self.arrivals.iter_mut().find(|arrival| arrival.checked.id.as_str() == id)
                    {
                        arrival.checked.request.permit = permit;
                    } else {
                        unknown.push(id);
                    }
                }
                // Whoever asked may be gone.
                let _ = answer.send(unknown);
            }
            Command::Policy(policy) => {
                let taken = self.scheduler.speculation.set_policy(policy);
                tracing::info!(epoch = policy.epoch, force = ?policy.force, kv_pressure = policy.kv_pressure, taken, "policy");
            }
            Command::Link(handover) => self.drafting.take_over(handover, self.clock.now()),
            Command::Stop { until } => {
                self.stop = Some(self.stop.map_or(until, |before| before.min(until)))
            }
        }
    }

    /// Starts what has arrived, in order, as far as there is room.
    fn start_arrivals(&mut self) {
        while let Some(arrival) = self.arrivals.pop_front() {
            if arrival.outlet.is_gone() {
                continue;
            }
            if arrival.checked.request.deadline.is_some_and(|deadline| self.clock.now() >= deadline)
            {
                self.refuse(arrival.outlet, error::deadline_passed());
                continue;
            }
            match self.admit(&arrival.checked) {
                Ok(key) => {
                    self.running.insert(key, arrival);
                }
                Err(Some(status)) => self.refuse(arrival.outlet, status),
                Err(None) => return self.arrivals.push_front(arrival),
            }
        }
    }

    /// Takes a request. No status: as many run at this moment as may.
    fn admit(&mut self, checked: &Checked) -> Result<SequenceKey, Option<Status>> {
        if self.stop.is_some() {
            return Err(Some(
                Reason::Draining.status("the target was asked to stop and takes nothing new"),
            ));
        }
        let key = self
            .scheduler
            .admit(checked.request.clone())
            .map_err(|error| error::refused(&error))?;
        self.cache.open(key, &checked.request.cache_scope, checked.request.images.clone());
        Ok(key)
    }

    /// A sequence has memory now: its place in the store is as large as what it holds in the
    /// ledger.
    fn begin(&mut self, key: SequenceKey) {
        let (sequence, positions) = (SequenceId(key.0), self.scheduler.ledger().room_of(key));
        let opened =
            self.kv.open(sequence).and_then(|()| self.kv.reserve(sequence, positions as i32));
        if let Err(error) = opened {
            tracing::error!(%error, sequence = key.0, "no place in the store");
            self.end(
                key,
                Some(
                    Reason::Bug.status(
                        "the engine found no place for this request; the log has the reason",
                    ),
                ),
            );
        }
    }

    /// The store keeps places that sequences leave for the next ones, as far as the ledger leaves
    /// room for them.
    fn bound_kv(&mut self) {
        if let Err(error) = self.kv.set_limit(self.scheduler.ledger().for_kv()) {
            self.break_down(&error);
        }
    }

    /// Sequences that gave something up for others, by the scheduler's decision.
    fn make_way(&mut self, step: &Step) {
        for key in &step.dropped_drafts {
            self.drafting.take(*key);
        }
        for key in &step.preempted.lost_hidden {
            self.drafting.give_up(*key);
        }
        for key in &step.preempted.sequences {
            tracing::info!(
                sequence = key.0,
                "gives its memory up and begins again when there is room"
            );
            self.drafting.give_up(*key);
            self.kv.free(SequenceId(key.0));
            if let Some(running) = self.running.get_mut(key) {
                let _ = running.outlet.flush();
            }
        }
    }

    fn refuse(&mut self, mut outlet: Outlet, status: Status) {
        outlet.fail(status);
        self.leave(outlet);
    }

    /// Ends requests nobody reads: their memory is free at this step border.
    fn drop_abandoned(&mut self) {
        let gone: Vec<_> = self
            .running
            .iter()
            .filter(|(_, running)| running.outlet.is_gone())
            .map(|(key, _)| *key)
            .collect();
        for key in gone {
            self.end_early(key, None);
        }
    }

    /// Forgets a request and gives its memory back; with a status, its stream ends in it.
    fn end(&mut self, key: SequenceKey, status: Option<Status>) {
        self.scheduler.remove(key);
        self.drafting.close(key);
        self.cache.close(key);
        self.kv.free(SequenceId(key.0));
        if let Some(mut running) = self.running.remove(&key) {
            // Whoever reads the end of a stream finds its memory free, here and, at the end of the
            // last, in the supervisor.
            self.report();
            if self.running.is_empty() {
                self.pulse.now();
            }
            if let Some(status) = status {
                running.outlet.fail(status);
            }
            self.leave(running.outlet);
        }
    }

    fn leave(&mut self, mut outlet: Outlet) {
        if outlet.flush() == Flow::Kept {
            self.leaving.push(outlet);
        }
    }

    fn run_step(&mut self, step: &Step) {
        // The store says in which order rows need the fewest products.
        let mut parts = step.parts.clone();
        parts.sort_by_key(|part| self.kv.order(SequenceId(part.key.0)));
        let prefill = parts.iter().any(|part| part.prefill);
        if prefill {
            // A long step: nobody's tokens wait for its end.
            for running in self.running.values_mut() {
                let _ = running.outlet.flush();
            }
        }
        self.progress.set_phase(if prefill { WorkerPhase::Prefill } else { WorkerPhase::Decode });
        self.tidy = false;
        let started_ns = monotonic_ns();
        let Self { model, kv, scheduler, drafting, running, seen, .. } = self;
        match pass::run(model.as_ref(), kv, scheduler, drafting, (running, seen), &parts) {
            Ok(Outcome { chosen, faulty, doubts, logprobs }) => {
                let ended_ns = monotonic_ns();
                let took_us = ((ended_ns - started_ns) / 1000) as u64;
                let rows = |of_prefill: bool| {
                    parts
                        .iter()
                        .filter(|part| part.prefill == of_prefill)
                        .map(|part| part.rows)
                        .sum()
                };
                self.progress.step_done(rows(true), rows(false), took_us);
                for part in parts.iter().filter(|part| part.prefill) {
                    if let Some(running) = self.running.get_mut(&part.key) {
                        running.stages.read(took_us);
                    }
                }
                let plain = parts.iter().all(|part| !part.prefill && part.rows == 1);
                self.drafting.stepped(plain.then_some(took_us as f64 / 1e3));
                let whole_us = ((ended_ns - self.mark_ns) / 1000) as u64;
                self.mark_ns = ended_ns;
                for part in parts.iter().filter(|part| part.drafted > 0) {
                    let chosen = chosen.iter().find(|chosen| chosen.key == part.key);
                    self.totals.cycles += 1;
                    self.totals.drafted += part.drafted as u64;
                    self.totals.accepted +=
                        chosen.map_or(0, |chosen| chosen.tokens.len() - 1) as u64;
                }
                for (key, nats) in &doubts {
                    self.scheduler.speculation.observe_entropy(*key, nats);
                }
                self.hand_out(&parts, chosen, logprobs, whole_us, ended_ns);
                // Behind the tokens that were chosen before the fault. One of them may have ended
                // the sequence well.
                faulty.into_iter().for_each(|key| self.end_faulty(key));
            }
            Err(error) => {
                tracing::error!(%error, sequences = parts.len(), "step failed");
                self.broken = matches!(error, ModelError::Mlx(_));
                if !self.broken {
                    let status = Reason::Bug
                        .status("the engine failed on this request; the log has the reason");
                    parts.iter().for_each(|part| self.end(part.key, Some(status.clone())));
                }
            }
        }
    }

    fn hand_out(
        &mut self,
        parts: &[StepPart],
        chosen: Vec<Chosen>,
        mut logprobs: HashMap<SequenceKey, Vec<Logprobs>>,
        took_us: u64,
        step_end_ns: i64,
    ) {
        self.scheduler.speculation.set_linked(self.drafting.is_linked());
        for emission in self.scheduler.on_step(parts, chosen, took_us) {
            let Some(running) = self.running.get_mut(&emission.key) else { continue };
            running.stages.first_token();
            let stages = running.stages;
            let reason = |finish| match finish {
                Finish::Stop => v1::FinishReason::Stop,
                Finish::Length => v1::FinishReason::Length,
            };
            let done = |finish_reason: v1::FinishReason| Done {
                finish_reason: finish_reason.into(),
                cached_tokens: emission.served.cached_tokens,
                route: Some(emission.served.route.into()),
                speculation: Some(v1::Speculation {
                    cycles: emission.served.counts.cycles,
                    drafted: emission.served.counts.drafted,
                    accepted: emission.served.counts.accepted,
                }),
                queue_ms: 0.0,
                tower_ms: stages.tower_ms(),
                prefill_ms: stages.prefill_ms(),
            };
            let running_on = emission.end.is_none() && running.checked.wants_so_far;
            running.outlet.add(TokenBatch {
                stamp: None,
                // A stop id in a block ends the stream before tokens that were chosen too.
                logprobs: logprobs
                    .remove(&emission.key)
                    .into_iter()
                    .flatten()
                    .take(emission.tokens.len())
                    .map(reported)
                    .collect(),
                first_index: emission.index,
                ids: emission.tokens.iter().map(|token| token.id).collect(),
                margins: match running.checked.wants_margins {
                    true => emission.tokens.iter().map(|token| token.margin).collect(),
                    false => vec![],
                },
                step_end_ns,
                done: emission.end.as_ref().map(|end| done(reason(end.finish))),
                so_far: running_on.then(|| done(v1::FinishReason::Unspecified)),
            });
            if let Some(end) = emission.end {
                self.keep_all(emission.key, &end.ids);
                self.end(emission.key, None);
            } else {
                running.outlet.offer();
            }
        }
    }

    /// The supervisor routes by the link: it hears of a change at once.
    fn tell_link(&mut self) {
        let now = self.drafting.report();
        if now != self.told {
            self.progress.set_link(now.clone());
            self.pulse.now();
            self.told = now;
        }
    }

    fn report(&mut self) {
        let ledger = self.scheduler.ledger();
        self.progress.set_kv(ledger.budget(), ledger.held(), ledger.hidden_bytes());
        self.progress.set_prefix_bytes(self.cache.bytes());
        self.progress.set_sequences(self.running.len());
        self.progress.set_speculation(self.drafting.count(self.totals));
        let now = self.clock.now();
        if self.figured.is_none_or(|before| now - before >= FIGURES_MS) {
            self.figured = Some(now);
            self.figure();
        }
    }

    /// Works out what costs some time to say; once for a heartbeat.
    fn figure(&mut self) {
        let (active_bytes, cache_bytes) = device::memory();
        let (limit_bytes, recommended_bytes) =
            (device::memory_limit(), device::recommended_memory());
        self.progress.set_memory(MemoryUse {
            active_bytes,
            cache_bytes,
            limit_bytes,
            recommended_bytes,
        });
        let figures = self.scheduler.speculation.figures();
        let pays = |figures: &report::SpeculationFigures| -> Vec<bool> {
            figures
                .by_sequences
                .iter()
                .chain(&figures.by_context)
                .map(|range| range.steps > 0 && range.gain > PAYS)
                .collect()
        };
        let paid = pays(&figures);
        self.progress.set_figures(wire::speculation_figures(figures));
        // Where speculation begins or ceases to pay the supervisor routes otherwise.
        if paid != self.paid {
            self.paid = paid;
            self.pulse.now();
        }
    }
}

fn reported(logprobs: Logprobs) -> v1::TokenLogprobs {
    let top = logprobs
        .top
        .into_iter()
        .map(|(token_id, logprob)| v1::TopLogprob { token_id, logprob })
        .collect();
    v1::TokenLogprobs { logprob: logprobs.chosen, top }
}
