//! The one thread that drafts, and that MLX belongs to. It takes links and their frames, runs the
//! steps that the core decides, and answers.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use paceline_drafter_core::{SessionWork, Step};
use paceline_link::handshake::Mismatch;
use paceline_link::{End, Handover, Side};
use paceline_models::ModelError;
use paceline_process::worker::{Inbox, Progress, Pulse};
use paceline_system::clock::monotonic_ns;
use paceline_system::platform;
use paceline_vocabulary::Exit;
use paceline_vocabulary::link::Welcome;
use paceline_vocabulary::report::LinkReport;
use paceline_vocabulary::state::{LinkPhase, WorkerPhase};

use crate::proposer::Proposer;
use crate::target_link::{LinkEnd, RetentionLimits, TargetLink};

/// Longest wait while bytes for the target are not written yet. That is rare, because the target
/// reads at each step border.
const UNWRITTEN: Duration = Duration::from_millis(5);

/// After this time without work, freed memory goes back to the system.
const IDLE: Duration = Duration::from_secs(5);

/// A command of another thread.
#[derive(Debug)]
pub(crate) enum DrafterCommand {
    /// Take a link, of this life and a term that is not stale.
    Link(Handover),
    /// End at the next step border.
    Stop,
}

/// Errors that end a turn.
enum TurnError {
    /// The link is over.
    Link(LinkEnd),
    /// MLX failed: what is in the store is not known, the worker must start again.
    Broken(ModelError),
}

impl From<LinkEnd> for TurnError {
    fn from(end: LinkEnd) -> Self {
        Self::Link(end)
    }
}

impl From<ModelError> for TurnError {
    fn from(error: ModelError) -> Self {
        Self::Broken(error)
    }
}

/// The engine's state. Not `Send`: made on the thread that runs it (I8).
pub(crate) struct Engine {
    drafter: Box<dyn Proposer>,
    /// Describes the drafter to every target; the generation is each link's own.
    welcome: Welcome,
    /// Why every link is refused, if the drafter is not loaded.
    misfit: Option<Mismatch>,
    /// Most bytes of retained contexts.
    retain_bytes: u64,
    target: Option<TargetLink>,
    /// Term and number of the newest link that was handed over.
    newest: (u64, u64),
    link: LinkReport,
    next_slot: u64,
    progress: Arc<Progress>,
    pulse: Pulse,
    /// No memory was freed since freed memory last went back to the system.
    tidy: bool,
}

impl Engine {
    pub(crate) fn new(
        drafter: Box<dyn Proposer>,
        welcome: Welcome,
        retain_bytes: u64,
        progress: Arc<Progress>,
        pulse: Pulse,
    ) -> Self {
        let link = LinkReport {
            generation: 0,
            phase: LinkPhase::Absent,
            reason: String::new(),
            serving: 0,
        };
        let mut engine = Self {
            drafter,
            welcome,
            misfit: None,
            retain_bytes,
            target: None,
            newest: (0, 0),
            link,
            next_slot: 1,
            progress,
            pulse,
            tidy: false,
        };
        engine.report_link(0, LinkPhase::Absent, String::new());
        engine
    }

    /// The engine of a drafter that is not loaded, which refuses every link for this reason; `None`
    /// changes nothing.
    pub(crate) fn refusing(self, misfit: Option<Mismatch>) -> Self {
        Self { misfit, ..self }
    }

    /// Runs until a command stops it, or until no thread can send one any more.
    pub(crate) fn run(mut self, mut inbox: Inbox<DrafterCommand>) -> Exit {
        while self.take_commands(&mut inbox) {
            match self.turn(&mut inbox) {
                Ok(()) => {}
                Err(TurnError::Link(end)) => {
                    if let Err(error) = self.drop_link(end) {
                        return self.broken(&error);
                    }
                }
                Err(TurnError::Broken(error)) => return self.broken(&error),
            }
            self.report();
        }
        self.progress.set_phase(WorkerPhase::Stopping.into());
        Exit::Asked
    }

    fn broken(&mut self, error: &ModelError) -> Exit {
        tracing::error!(
            error = paceline_process::chain(error),
            "a step failed; what the store holds is not known"
        );
        self.progress.set_phase(WorkerPhase::Stopping.into());
        Exit::Bug
    }

    /// Takes the commands that have come. Without a link it waits for one. Returns `false` if the
    /// worker ends.
    fn take_commands(&mut self, inbox: &mut Inbox<DrafterCommand>) -> bool {
        if self.target.is_none() {
            self.progress.set_phase(WorkerPhase::Idle.into());
            let at_most = (!self.tidy).then_some(IDLE);
            if !inbox.wait(&[], at_most) {
                self.tidy_up();
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(DrafterCommand::Link(handover)) => self.take_link(handover),
                Ok(DrafterCommand::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// A newer link replaces an older one; a link that is not newer is dropped.
    fn take_link(&mut self, handover: Handover) {
        let number = (handover.stamp.term, handover.generation);
        if number <= self.newest {
            tracing::warn!(
                generation = handover.generation,
                newest = self.newest.1,
                "a link that is not newer is dropped"
            );
            return;
        }
        if self.target.is_some() {
            let reason = "a newer link took its place".into();
            if let Err(error) = self.drop_link(LinkEnd { phase: LinkPhase::Lost, reason }) {
                // Nothing of the old link is used any more. If the failure lasts, the next forward
                // ends the worker.
                tracing::error!(error = paceline_process::chain(&error), "cannot give memory back");
            }
        }
        self.newest = number;
        match End::open(handover, Side::Drafter) {
            Ok(end) => {
                let limits = RetentionLimits {
                    row_bytes: self.drafter.row_bytes(),
                    end_bytes: self.drafter.end_bytes(),
                    total_bytes: self.retain_bytes,
                };
                let (welcome, misfit) = (self.welcome.clone(), self.misfit.clone());
                self.target = Some(TargetLink::new(end, welcome, misfit, limits, self.next_slot));
                self.report_link(0, LinkPhase::Greeting, String::new());
            }
            Err(error) => {
                let end = LinkEnd::from(error);
                self.report_link(0, end.phase, end.reason);
            }
        }
    }

    /// Closes the link and forgets its sessions.
    fn drop_link(&mut self, end: LinkEnd) -> Result<(), ModelError> {
        if let Some(target) = self.target.take() {
            self.next_slot = target.next_slot();
        }
        self.drafter.clear()?;
        self.tidy = false;
        self.report();
        self.report_link(0, end.phase, end.reason);
        Ok(())
    }

    /// Takes in the frames that have come and runs one step. Without work it waits for the target,
    /// or for a command.
    fn turn(&mut self, inbox: &mut Inbox<DrafterCommand>) -> Result<(), TurnError> {
        let Some(target) = &mut self.target else { return Ok(()) };
        let was_up = target.is_up();
        target.receive()?;
        let step = target.next_step();
        let commands = target.take_commands();
        self.tidy &= commands.is_empty();
        self.drafter.perform(&commands)?;
        if target.is_up() && !was_up {
            let generation = target.generation();
            self.report_link(generation, LinkPhase::Up, String::new());
        }
        if let Some(step) = step {
            return self.run_step(step);
        }
        // All work is done: the reported figures are those of a drafter that waits.
        self.report();
        self.progress.set_phase(WorkerPhase::Idle.into());
        let Some(target) = &self.target else { return Ok(()) };
        let at_most =
            if target.is_flushed() { (!self.tidy).then_some(IDLE) } else { Some(UNWRITTEN) };
        if !inbox.wait(&[target.poll_fd()], at_most) && at_most == Some(IDLE) {
            self.tidy_up();
        }
        Ok(())
    }

    fn tidy_up(&mut self) {
        self.drafter.drop_cache();
        platform::give_back_freed_memory();
        self.tidy = true;
    }

    fn run_step(&mut self, mut step: Step) -> Result<(), TurnError> {
        let Some(target) = &mut self.target else { return Ok(()) };
        self.tidy = false;
        let phase = if step.round.is_some() { WorkerPhase::Decode } else { WorkerPhase::Prefill };
        self.progress.set_phase(phase.into());
        let started_ns = monotonic_ns();
        let proposed = match target.terms() {
            Some(terms) if !step.sessions.is_empty() => {
                let proposed = self.drafter.propose(&mut step, terms.element, target.mask());
                proposed.map_err(batch_fault)?
            }
            _ => None,
        };
        if let Some(round) = step.round {
            target.propose(round, proposed)?;
        }
        // Context of sessions that the model did not draft for is computed after the answer.
        if step.sessions.iter().any(|work| work.block.is_none()) {
            self.drafter.settle()?;
        }
        let took_us = ((monotonic_ns() - started_ns) / 1000) as u64;
        let rows = |count: fn(&SessionWork) -> u32| {
            step.sessions.iter().map(|work| count(work) as usize).sum()
        };
        // Context that rides with drafts is no prefill: it comes with every cycle.
        let prefill = if step.round.is_some() { 0 } else { rows(|work| work.context) };
        self.progress.step_done(prefill, rows(SessionWork::block_rows), took_us);
        target.report_progress(step)?;
        Ok(())
    }

    fn report(&self) {
        let target = self.target.as_ref();
        self.progress.set_sequences(target.map_or(0, TargetLink::n_sessions));
        self.progress.set_kv(0, self.drafter.store_bytes(), 0);
        self.progress.set_prefix_bytes(target.map_or(0, TargetLink::retained_bytes));
        self.progress.set_memory(self.drafter.memory().into());
    }

    /// Reports the phase of the newest link; `serving`: the link that drafts go over, 0 for none.
    fn report_link(&mut self, serving: u64, phase: LinkPhase, reason: String) {
        let link = LinkReport { generation: self.newest.1, phase, reason, serving };
        let (from, to, reason) = (self.link.phase, phase, &link.reason);
        tracing::info!(generation = link.generation, ?from, ?to, reason, "link phase");
        self.progress.set_link(link.clone().into());
        self.link = link;
        self.pulse.now();
    }
}

/// A batch that contradicts itself ends the link: the store is as before, and nothing of another
/// link is in it. Any other failure ends the worker.
fn batch_fault(error: ModelError) -> TurnError {
    match error {
        ModelError::Batch(_) | ModelError::Unreadable(_) => {
            tracing::error!(error = paceline_process::chain(&error), "a step contradicts itself");
            let reason = "the drafter's own fault; its log says which".into();
            LinkEnd { phase: LinkPhase::Ejected, reason }.into()
        }
        error => error.into(),
    }
}
