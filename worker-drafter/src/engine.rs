//! The one MLX thread: takes links and what comes over them, does the steps the core decides,
//! answers.

use std::sync::Arc;
use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use paceline_link::{End, Handover, Side};
use paceline_models::{ModelError, device};
use paceline_process::clock::monotonic_ns;
use paceline_process::worker::{Inbox, Progress, Pulse};
use paceline_process::{Exit, platform};
use paceline_proto::internal::v1::{LinkPhase, LinkReport, MemoryUse, Welcome, WorkerPhase};

use crate::core::Step;
use crate::model::Model;
use crate::peer::{Ended, Peer};

/// How long it waits while its own words wait to be written: rarely, as the target reads at every
/// step border.
const UNWRITTEN: Duration = Duration::from_millis(5);

/// Without work for so long, what was freed goes back to the system.
const IDLE: Duration = Duration::from_secs(5);

/// What the engine is told.
#[derive(Debug)]
pub(crate) enum Command {
    /// A link, of this life and a term that is not stale.
    Link(Handover),
    /// End at the next step border.
    Stop,
}

/// What a turn may end in.
enum Trouble {
    Link(Ended),
    /// MLX failed: what is in the store is not known, the worker must start again.
    Broken(ModelError),
}

impl From<Ended> for Trouble {
    fn from(ended: Ended) -> Self {
        Self::Link(ended)
    }
}

impl From<ModelError> for Trouble {
    fn from(error: ModelError) -> Self {
        Self::Broken(error)
    }
}

/// The engine's state. Not `Send`: made on the thread that runs it (I8).
pub(crate) struct Engine {
    model: Model,
    /// What is said to every target; the generation is each link's own.
    welcome: Welcome,
    /// Of the contexts of ended sessions, at most.
    keep_bytes: u64,
    peer: Option<Peer>,
    /// Term and number of the newest link that was handed over.
    newest: (u64, u64),
    link: LinkReport,
    next_slot: u64,
    progress: Arc<Progress>,
    pulse: Pulse,
    /// Nothing was freed since freed memory was last given back.
    tidy: bool,
}

impl Engine {
    pub(crate) fn new(
        model: Model,
        welcome: Welcome,
        keep_bytes: u64,
        progress: Arc<Progress>,
        pulse: Pulse,
    ) -> Self {
        let link = LinkReport { phase: LinkPhase::Absent.into(), ..LinkReport::default() };
        let mut engine = Self {
            model,
            welcome,
            keep_bytes,
            peer: None,
            newest: (0, 0),
            link,
            next_slot: 1,
            progress,
            pulse,
            tidy: false,
        };
        engine.tell(0, LinkPhase::Absent, String::new());
        engine
    }

    /// Runs until it is asked to stop, or nobody can ask any more.
    pub(crate) fn run(mut self, mut inbox: Inbox<Command>) -> Exit {
        while self.take_commands(&mut inbox) {
            match self.turn(&mut inbox) {
                Ok(()) => {}
                Err(Trouble::Link(ended)) => {
                    if let Err(error) = self.drop_link(ended.phase, ended.reason) {
                        return self.broken(&error);
                    }
                }
                Err(Trouble::Broken(error)) => return self.broken(&error),
            }
            self.report();
        }
        self.progress.set_phase(WorkerPhase::Stopping);
        Exit::Asked
    }

    fn broken(&mut self, error: &ModelError) -> Exit {
        tracing::error!(%error, "a step failed; what the store holds is not known");
        self.progress.set_phase(WorkerPhase::Stopping);
        Exit::Bug
    }

    /// Takes what was ordered; waits for it where there is no link. `false`: the end.
    fn take_commands(&mut self, inbox: &mut Inbox<Command>) -> bool {
        if self.peer.is_none() {
            self.progress.set_phase(WorkerPhase::Idle);
            let at_most = (!self.tidy).then_some(IDLE);
            if !inbox.wait(&[], at_most) {
                self.tidy_up();
            }
        }
        loop {
            match inbox.try_recv() {
                Ok(Command::Link(handover)) => self.take_link(handover),
                Ok(Command::Stop) | Err(TryRecvError::Disconnected) => return false,
                Err(TryRecvError::Empty) => return true,
            }
        }
    }

    /// A newer link takes an older one's place; one that is not newer is let go.
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
        if self.peer.is_some() {
            let replaced = self.drop_link(LinkPhase::Lost, "a newer link took its place".into());
            if let Err(error) = replaced {
                // Nothing of the old link is used any more; the next forward would fail alike and
                // end the worker.
                tracing::error!(%error, "cannot give memory back");
            }
        }
        self.newest = number;
        match End::open(handover, Side::Drafter) {
            Ok(end) => {
                let context = self.model.info().context as u32;
                let keep = (self.model.row_bytes(), self.keep_bytes);
                self.peer =
                    Some(Peer::new(end, self.welcome.clone(), context, keep, self.next_slot));
                self.tell(0, LinkPhase::Greeting, String::new());
            }
            Err(error) => {
                let ended = Ended::from(error);
                self.tell(0, ended.phase, ended.reason);
            }
        }
    }

    /// Lets the target go and forgets its sessions.
    fn drop_link(&mut self, phase: LinkPhase, reason: String) -> Result<(), ModelError> {
        if let Some(peer) = self.peer.take() {
            self.next_slot = peer.next_slot();
        }
        self.model.clear()?;
        self.tidy = false;
        self.report();
        self.tell(0, phase, reason);
        Ok(())
    }

    /// Takes in what has come and does one step; with nothing to do it waits for the target, or for
    /// an order.
    fn turn(&mut self, inbox: &mut Inbox<Command>) -> Result<(), Trouble> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        let was_up = peer.is_up();
        peer.receive()?;
        let step = peer.next_step();
        let moves = peer.take_moves();
        self.tidy &= moves.is_empty();
        self.model.perform(&moves)?;
        if peer.is_up() && !was_up {
            let generation = peer.generation();
            self.tell(generation, LinkPhase::Up, String::new());
        }
        if let Some(step) = step {
            return self.run_step(&step);
        }
        // Nothing is left to be said or done before the next word comes.
        self.report();
        self.progress.set_phase(WorkerPhase::Idle);
        let Some(peer) = &self.peer else { return Ok(()) };
        let at_most =
            if peer.is_flushed() { (!self.tidy).then_some(IDLE) } else { Some(UNWRITTEN) };
        if !inbox.wait(&[peer.poll_fd()], at_most) && at_most == Some(IDLE) {
            self.tidy_up();
        }
        Ok(())
    }

    fn tidy_up(&mut self) {
        device::drop_cache();
        platform::give_back_freed_memory();
        self.tidy = true;
    }

    fn run_step(&mut self, step: &Step) -> Result<(), Trouble> {
        let Some(peer) = &mut self.peer else { return Ok(()) };
        self.tidy = false;
        self.progress.set_phase(if step.round.is_some() {
            WorkerPhase::Decode
        } else {
            WorkerPhase::Prefill
        });
        let started_ns = monotonic_ns();
        let proposed = match step.parts.is_empty() {
            true => None,
            false => {
                let (kind, mask) = peer.rows();
                match self.model.forward(step, kind, mask) {
                    Ok(proposed) => proposed,
                    // The store is as before, and nothing of another link is in it.
                    Err(ModelError::Batch(what)) => {
                        tracing::error!(what, "a step contradicts itself");
                        return Err(Ended {
                            phase: LinkPhase::Ejected,
                            reason: "the drafter's own fault; its log says which".into(),
                        }
                        .into());
                    }
                    Err(error) => return Err(error.into()),
                }
            }
        };
        if let Some(round) = step.round {
            peer.propose(round, proposed.as_ref())?;
        }
        if !step.reach.is_empty() {
            self.model.settle()?;
        }
        let took_us = ((monotonic_ns() - started_ns) / 1000) as u64;
        let rows = |count: fn(&crate::core::Part) -> u32| {
            step.parts.iter().map(|part| count(part) as usize).sum()
        };
        // Context that rides with drafts is no prefill: it comes with every cycle.
        let prefill = if step.round.is_some() { 0 } else { rows(|part| part.context) };
        self.progress.step_done(prefill, rows(|part| part.block), took_us);
        peer.reach(step)?;
        Ok(())
    }

    fn report(&self) {
        self.progress.set_sequences(self.peer.as_ref().map_or(0, Peer::sessions));
        self.progress.set_kv(0, self.model.kv_bytes(), 0);
        self.progress.set_prefix_bytes(self.peer.as_ref().map_or(0, Peer::kept_bytes));
        let (active_bytes, cache_bytes) = device::memory();
        let (limit_bytes, recommended_bytes) =
            (device::memory_limit(), device::recommended_memory());
        self.progress.set_memory(MemoryUse {
            active_bytes,
            cache_bytes,
            limit_bytes,
            recommended_bytes,
        });
    }

    /// Says how the newest link stands; `serving`: the link drafts go over, 0 for none.
    fn tell(&mut self, serving: u64, phase: LinkPhase, reason: String) {
        let link = LinkReport { generation: self.newest.1, phase: phase.into(), reason, serving };
        tracing::info!(generation = link.generation, from = ?self.link.phase(), to = ?phase, reason = link.reason, "link phase");
        self.progress.set_link(link.clone());
        self.link = link;
        self.pulse.now();
    }
}
