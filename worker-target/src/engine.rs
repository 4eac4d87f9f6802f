//! The one MLX thread: takes commands, asks the core for a step, runs it, hands out tokens. Everything that touches an
//! array happens here, at step borders.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, RecvTimeoutError, TryRecvError};
use std::time::Duration;

use paceline_models::sample::{RowRule, choose};
use paceline_models::{Batch, KvStore, ModelError, Purpose, Segment, SequenceId, Target, Wants};
use paceline_process::clock::monotonic_ns;
use paceline_process::{Clock, Millis};
use paceline_proto::internal::v1::{Done, TokenBatch, WorkerPhase};
use paceline_proto::status::Reason;
use paceline_proto::v1;
use tokio::sync::oneshot;
use tonic::Status;

use crate::core::{Chosen, Ended, Finish, Part, Scheduler, SequenceKey, Step};
use crate::emit::{Flow, Outlet};
use crate::error;
use crate::heartbeat::Pulse;
use crate::progress::Progress;
use crate::request::Checked;

/// Pause between attempts to hand out tokens to slow readers while there is nothing else to do.
const RETRY: Duration = Duration::from_millis(5);

/// Requests that wait for room at the next step border: the commands' own bound once more.
const ARRIVALS: usize = 64;

/// What the engine is asked.
#[derive(Debug)]
pub(crate) enum Command {
    /// Run a request.
    Run(Box<Checked>, Outlet),
    /// End a request at the next step border; answers whether it was there.
    Cancel(String, oneshot::Sender<bool>),
    /// Finish what runs until `until`, then end the rest and return.
    Stop { until: Millis },
}

/// A request being run.
#[derive(Debug)]
struct Running {
    checked: Checked,
    outlet: Outlet,
}

/// The engine's state. Not `Send`: made on the thread that runs it.
pub(crate) struct Engine {
    model: Box<dyn Target>,
    kv: KvStore,
    scheduler: Scheduler,
    running: HashMap<SequenceKey, Running>,
    /// Requests not started yet. The supervisor admits by our figures, so none waits longer than a request whose client has
    /// gone takes to be noticed: the supervisor hears of that first.
    arrivals: VecDeque<Running>,
    /// Ended streams whose last messages did not fit their channels yet.
    leaving: Vec<Outlet>,
    progress: Arc<Progress>,
    pulse: Pulse,
    clock: Clock,
    stop: Option<Millis>,
    broken: bool,
}

impl Engine {
    pub(crate) fn new(
        model: Box<dyn Target>,
        kv: KvStore,
        scheduler: Scheduler,
        reports: (Arc<Progress>, Pulse),
        clock: Clock,
    ) -> Self {
        let (progress, pulse) = reports;
        let running = HashMap::new();
        let (arrivals, leaving) = (VecDeque::new(), vec![]);
        let engine = Self { model, kv, scheduler, running, arrivals, leaving, progress, pulse, clock, stop: None, broken: false };
        engine.report();
        engine
    }

    /// Runs until it is asked to stop, or nobody can ask any more. `false` if MLX failed: what is in the store is not known
    /// then, and the worker must start again.
    pub(crate) fn run(mut self, commands: &Receiver<Command>) -> bool {
        while !self.broken {
            if !self.take_commands(commands) {
                break;
            }
            self.drop_abandoned();
            self.start_arrivals();
            if self.stop.is_some_and(|until| self.running.is_empty() || self.clock.now() >= until) {
                break;
            }
            let step = self.scheduler.next_step(self.clock.now());
            for (key, ended) in &step.ended {
                self.end(*key, error::ended(*ended));
            }
            if !step.parts.is_empty() {
                self.run_step(&step);
            }
            self.leaving.retain_mut(|outlet| outlet.flush() == Flow::Kept);
            self.report();
        }
        self.progress.set_phase(WorkerPhase::Stopping);
        let status = match self.broken {
            true => Reason::TargetGone.status("the target's engine failed and starts again"),
            false => Reason::Draining.status("the target was asked to stop before the request was finished"),
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

    /// Takes what has arrived; waits for it when there is nothing else to do. `false` when nobody can ask any more.
    fn take_commands(&mut self, commands: &Receiver<Command>) -> bool {
        let busy = !self.scheduler.is_empty() || !self.arrivals.is_empty() || self.stop.is_some();
        if !busy {
            self.progress.set_phase(WorkerPhase::Idle);
            let first = match self.leaving.is_empty() {
                true => commands.recv().map_err(|_| RecvTimeoutError::Disconnected),
                false => commands.recv_timeout(RETRY),
            };
            match first {
                Ok(command) => self.obey(command),
                Err(RecvTimeoutError::Timeout) => {}
                Err(RecvTimeoutError::Disconnected) => return false,
            }
        }
        loop {
            match commands.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return busy,
            }
        }
    }

    fn obey(&mut self, command: Command) {
        match command {
            Command::Run(_, outlet) if self.arrivals.len() >= ARRIVALS => {
                self.refuse(outlet, Reason::QueueFull.status("more requests wait for room in the target than may"));
            }
            Command::Run(checked, outlet) => self.arrivals.push_back(Running { checked: *checked, outlet }),
            Command::Cancel(id, answer) => {
                let found = self.running.iter().find(|(_, running)| running.checked.id.as_str() == id).map(|(key, _)| *key);
                let arrived = self.arrivals.iter().position(|arrival| arrival.checked.id.as_str() == id);
                if let Some(key) = found {
                    self.end(key, error::ended(Ended::Cancelled));
                } else if let Some(arrival) = arrived.and_then(|at| self.arrivals.remove(at)) {
                    self.refuse(arrival.outlet, error::cancelled());
                }
                // Whoever asked may be gone.
                let _ = answer.send(found.is_some() || arrived.is_some());
            }
            Command::Stop { until } => self.stop = Some(self.stop.map_or(until, |before| before.min(until))),
        }
    }

    /// Starts what has arrived, in order, as far as there is room.
    fn start_arrivals(&mut self) {
        while let Some(arrival) = self.arrivals.pop_front() {
            if arrival.outlet.is_gone() {
                continue;
            }
            if arrival.checked.request.deadline.is_some_and(|deadline| self.clock.now() >= deadline) {
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

    /// Reserves what a request needs. No status: there is no room at this moment.
    fn admit(&mut self, checked: &Checked) -> Result<SequenceKey, Option<Status>> {
        if self.stop.is_some() {
            return Err(Some(Reason::Draining.status("the target was asked to stop and takes nothing new")));
        }
        let key = self.scheduler.admit(checked.request.clone()).map_err(|error| error::refused(&error))?;
        if let Err(error) = self.kv.open(SequenceId(key.0)) {
            self.scheduler.remove(key);
            return Err(Some(Reason::Bug.status(error.to_string())));
        }
        Ok(key)
    }

    fn refuse(&mut self, mut outlet: Outlet, status: Status) {
        outlet.fail(status);
        self.leave(outlet);
    }

    /// Ends requests nobody reads: their memory is free at this step border.
    fn drop_abandoned(&mut self) {
        let gone: Vec<_> = self.running.iter().filter(|(_, running)| running.outlet.is_gone()).map(|(key, _)| *key).collect();
        for key in gone {
            self.end(key, None);
        }
    }

    /// Forgets a request and gives its memory back; with a status, its stream ends in it.
    fn end(&mut self, key: SequenceKey, status: Option<Status>) {
        self.scheduler.remove(key);
        self.kv.free(SequenceId(key.0));
        if let Some(mut running) = self.running.remove(&key) {
            // Whoever reads the end of a stream finds its memory free, here and, at the end of the last, in the supervisor.
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
        self.progress.set_phase(if prefill { WorkerPhase::Prefill } else { WorkerPhase::Decode });
        let started_ns = monotonic_ns();
        match self.forward(&parts) {
            Ok(chosen) => {
                let ended_ns = monotonic_ns();
                let took_us = ((ended_ns - started_ns) / 1000) as u64;
                let rows = |of_prefill: bool| parts.iter().filter(|part| part.prefill == of_prefill).map(|part| part.rows).sum();
                self.progress.step_done(rows(true), rows(false), took_us);
                self.hand_out(&parts, &chosen, took_us, ended_ns);
            }
            Err(error) => {
                tracing::error!(%error, sequences = parts.len(), "step failed");
                self.broken = matches!(error, ModelError::Mlx(_));
                for part in parts.iter().filter(|_| !self.broken).copied().collect::<Vec<_>>() {
                    self.end(part.key, Some(Reason::Bug.status("the engine failed on this request; the log has the reason")));
                }
            }
        }
    }

    fn forward(&mut self, parts: &[Part]) -> Result<Vec<Chosen>, ModelError> {
        let (mut ids, mut segments, mut wants) = (Vec::new(), Vec::with_capacity(parts.len()), Wants::default());
        let mut rules: Vec<(SequenceKey, RowRule<'_>)> = Vec::with_capacity(parts.len());
        for part in parts {
            let (Some(sequence), Some(running)) = (self.scheduler.get(part.key), self.running.get(&part.key)) else {
                return Err(ModelError::Batch(format!("sequence {} is not running", part.key.0)));
            };
            ids.extend_from_slice(&sequence.ids[part.start..part.start + part.rows]);
            segments.push(Segment {
                sequence: SequenceId(part.key.0),
                start: part.start as i32,
                length: part.rows as i32,
                purpose: if part.prefill { Purpose::Prefill } else { Purpose::Decode },
                image_spans: vec![],
            });
            if part.chooses {
                wants.logit_rows.push(ids.len() as i32 - 1);
                let checked = &running.checked;
                let rule = RowRule {
                    history: &sequence.ids,
                    sampling: checked.sampling,
                    noise: checked.noise,
                    position: sequence.ids.len() as u32,
                    id_limit: checked.id_limit,
                    mask: None,
                    wants_margin: checked.wants_margins,
                };
                rules.push((part.key, rule));
            }
        }
        let forward = self.model.forward(&Batch::text(ids, segments), &mut self.kv, &wants)?;
        let chosen = match &forward.logits {
            Some(logits) => {
                let only: Vec<RowRule<'_>> = rules.iter().map(|(_, rule)| *rule).collect();
                let choices = choose(logits, &only, &[])?;
                let chosen = |((key, _), choice): (&(SequenceKey, _), &paceline_models::sample::Choice)| Chosen {
                    key: *key,
                    token: choice.token,
                    margin: choice.margin,
                };
                rules.iter().zip(&choices).map(chosen).collect()
            }
            None => {
                // Nothing is chosen: only what was written to the store is computed, not what the last layer makes of it.
                self.kv.evaluate()?;
                vec![]
            }
        };
        for part in parts {
            self.kv.commit(SequenceId(part.key.0), (part.start + part.rows) as i32)?;
        }
        Ok(chosen)
    }

    fn hand_out(&mut self, parts: &[Part], chosen: &[Chosen], took_us: u64, step_end_ns: i64) {
        for emission in self.scheduler.on_step(parts, chosen, took_us) {
            let Some(running) = self.running.get_mut(&emission.key) else { continue };
            let reason = |finish| match finish {
                Finish::Stop => v1::FinishReason::Stop,
                Finish::Length => v1::FinishReason::Length,
            };
            running.outlet.add(TokenBatch {
                stamp: None,
                first_index: emission.index,
                ids: vec![emission.token],
                margins: if running.checked.wants_margins { vec![emission.margin] } else { vec![] },
                step_end_ns,
                done: emission.finish.map(|finish| Done {
                    finish_reason: reason(finish).into(),
                    cached_tokens: 0,
                    route: Some(running.checked.route),
                    speculation: Some(v1::Speculation::default()),
                    queue_ms: 0.0,
                }),
            });
            if emission.finish.is_some() {
                self.end(emission.key, None);
            } else {
                // Kept tokens go with the next step's; a reader that is gone is noticed before it.
                let _ = running.outlet.flush();
            }
        }
    }

    fn report(&self) {
        let held = self.running.keys().map(|key| self.kv.bytes(SequenceId(key.0))).sum();
        let ledger = self.scheduler.ledger();
        self.progress.set_kv(ledger.budget(), held, ledger.reserved());
        self.progress.set_sequences(self.running.len());
    }
}
