//! The engine: one thread that owns MLX and runs the steps that the core decides. It touches arrays
//! only between taking commands, at step borders.
//!
//! Every turn of [`Engine::run`] has the same five phases:
//!
//! ```text
//! intake ──▶ schedule ──▶ run ──▶ draft ──▶ report ──┐
//!    ▲                                               │
//!    └───────────────────────────────────────────────┘
//! ```
//! `intake` takes commands and admits requests. `schedule` gives them memory and chooses the next
//! step. `run` computes it. `draft` exchanges hidden states and proposals with the drafter. `report`
//! sends tokens and writes the figures that heartbeats carry. While a draft is under way tokens wait
//! a moment, because their readers share the drafter's cores.

mod command;
mod draft;
mod draft_wait;
mod image_slices;
mod intake;
mod prefix_pages;
mod report;
mod requests;
mod schedule;
mod spans;
mod step;
#[cfg(test)]
pub(crate) mod tests;
mod trace;
mod wired;

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use paceline_models::{KvStore, ModelError, Target};
use paceline_process::worker::{Inbox, Progress, Pulse};
use paceline_proto::internal::v1::{SpeculationTotals, WorkerPhase};
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_system::Clock;
use paceline_system::clock::monotonic_ns;
use paceline_target_core::{Scheduler, SequenceKey, Step};
use paceline_vocabulary::Millis;
use paceline_vocabulary::report::LinkReport;

use crate::cost_file::CostFile;
use crate::drafting::Drafting;
use crate::features::ImageFeatures;
use crate::outlet::TokenOutlet;
use crate::page_store::PageStore;
use crate::running::RunningRequest;
pub(crate) use command::{EngineCommand, PermitChange};
use requests::RequestEnd;
pub(crate) use wired::WiredState;

/// Whether a row alone is computed by the kernels of blocks
/// ([`exact_lanes`](paceline_models::exact_lanes)).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LaneForm {
    /// It is not.
    Fast,
    /// It is, from the first link to a drafter on.
    ExactOnceLinked,
    /// It is.
    Exact,
}

/// Parts of an engine.
pub(crate) struct EngineParts {
    pub(crate) model: Box<dyn Target>,
    pub(crate) kv: KvStore,
    pub(crate) scheduler: Scheduler,
    pub(crate) drafting: Drafting,
    pub(crate) pages: PageStore,
    pub(crate) cost_file: CostFile,
    pub(crate) wired: WiredState,
    pub(crate) lanes: LaneForm,
    pub(crate) progress: Arc<Progress>,
    pub(crate) pulse: Pulse,
    pub(crate) clock: Clock,
}

/// The engine's state. Not `Send`: it is made on the thread that runs it.
pub(crate) struct Engine {
    model: Box<dyn Target>,
    kv: KvStore,
    scheduler: Scheduler,
    drafting: Drafting,
    pages: PageStore,
    features: ImageFeatures,
    /// Sequences that reached places of states in this turn, and their rows there.
    due_states: Vec<(SequenceKey, usize)>,
    /// Layers whose hidden states the prefix cache stores.
    feature_layers: Vec<usize>,
    running: HashMap<SequenceKey, RunningRequest>,
    /// Requests that the scheduler has not admitted. The supervisor admits by this worker's
    /// figures, so a request waits here only until the end of another one is noticed.
    arrivals: VecDeque<RunningRequest>,
    /// Ended streams whose last messages did not fit their channels yet.
    closing: Vec<TokenOutlet>,
    progress: Arc<Progress>,
    pulse: Pulse,
    clock: Clock,
    totals: SpeculationTotals,
    /// The link report that was sent last.
    sent_link: Option<LinkReport>,
    /// End of the drafter's cool-down that was logged last.
    cooldown_until: Option<Millis>,
    stop: Option<Millis>,
    /// MLX failed: the contents of the store are unknown.
    broken: bool,
    /// Freed memory was returned to the system, and nothing was freed since.
    is_trimmed: bool,
    /// End of the last step, or of the wait after it. The time from one mark to the next is the
    /// cost of one step or one draft, so that no time is lost between them.
    mark_ns: i64,
    /// When the figures were computed last.
    figures_at: Option<Millis>,
    /// Ranges of load and length in which speculation paid according to these figures.
    paying_ranges: Vec<bool>,
    cost_file: CostFile,
    wired: WiredState,
    lanes: LaneForm,
    /// Fingerprint of the drafter whose costs are measured.
    measured_drafter: Option<String>,
    /// When costs were saved last.
    saved_at: Millis,
}

impl Engine {
    pub(crate) fn new(parts: EngineParts) -> Self {
        let EngineParts {
            model,
            kv,
            mut scheduler,
            drafting,
            pages,
            cost_file,
            wired,
            lanes,
            progress,
            pulse,
            clock,
        } = parts;
        scheduler.speculation.restore_steps(&cost_file.steps());
        let feature_layers = drafting.feature_layers().to_vec();
        let mut engine = Self {
            model,
            kv,
            scheduler,
            drafting,
            pages,
            features: ImageFeatures::default(),
            due_states: vec![],
            feature_layers,
            running: HashMap::new(),
            arrivals: VecDeque::new(),
            closing: vec![],
            progress,
            pulse,
            clock,
            totals: SpeculationTotals::default(),
            sent_link: None,
            cooldown_until: None,
            stop: None,
            broken: false,
            is_trimmed: false,
            mark_ns: monotonic_ns(),
            figures_at: None,
            paying_ranges: vec![],
            cost_file,
            wired,
            lanes,
            measured_drafter: None,
            saved_at: clock.now(),
        };
        engine.write_figures();
        engine
    }

    /// Runs until a stop order, or until no sender of commands is left. Returns `false` if MLX
    /// failed: the contents of the store are unknown then, and the worker must start again.
    pub(crate) fn run(mut self, mut inbox: Inbox<EngineCommand>) -> bool {
        while !self.broken {
            if !self.intake(&mut inbox) || self.is_stopped() {
                break;
            }
            let step = self.schedule();
            self.run_work(&mut inbox, &step);
            self.draft();
            self.report();
        }
        self.end_all();
        self.save_costs();
        self.wired.ends();
        !self.broken
    }

    /// Takes commands, ends requests whose readers have gone, and admits arrivals. It is the first
    /// phase, so that a cancelled request costs no further step and a new one waits for none.
    /// Returns `false` if no sender of commands is left.
    fn intake(&mut self, inbox: &mut Inbox<EngineCommand>) -> bool {
        if !self.take_commands(inbox) {
            return false;
        }
        self.drop_abandoned();
        self.admit_arrivals();
        true
    }

    /// Gives memory to waiting sequences, looks their prompts up in the prefix cache, and chooses
    /// the next step. It follows `intake`, so that the step counts every admitted request. It
    /// applies the scheduler's preemptions and evictions before the step needs the memory.
    fn schedule(&mut self) -> Step {
        self.start_sequences();
        self.look_up_prefixes();
        let step = self.choose_step();
        self.apply_losses(&step);
        self.features.retain_named(&self.scheduler);
        self.bound_kv();
        step
    }

    /// Computes the step: a slice of the vision tower, rows of sequences, or nothing but the wait
    /// for a draft. It is the only phase that takes long.
    fn run_work(&mut self, inbox: &mut Inbox<EngineCommand>, step: &Step) {
        if !self.scheduler.is_empty() {
            self.wired.works();
        }
        if step.tower.is_some() || !step.parts.is_empty() {
            // Tokens that waited for a draft do not wait for this work, too.
            self.offer_tokens();
        }
        match (step.tower, self.scheduler.waits_until()) {
            (Some(slice), _) => self.run_slice(slice),
            _ if !step.parts.is_empty() => self.run_step(step),
            (None, Some(until)) => self.wait_for_draft(inbox, until),
            (None, None) => {}
        }
    }

    /// Takes in what the drafter sent, then sends it what was committed and asks for drafts. It
    /// follows `run`, because the drafter worked during the step, and its progress decides which
    /// sequences draft next.
    fn draft(&mut self) {
        self.receive_drafts();
        self.request_drafts();
        self.log_decision();
        self.log_parked();
        self.log_lane_events();
    }

    /// Sends the tokens of the step unless a draft is under way, copies states and pages to the prefix
    /// cache, and writes figures. It is the last phase, so that the drafter does not wait for it.
    fn report(&mut self) {
        if self.scheduler.waits_until().is_none() {
            self.offer_tokens();
        }
        self.keep_states();
        self.retain_some();
        self.flush_closing();
        self.write_figures();
        self.report_link();
        self.save_costs_at_times();
    }

    fn is_stopped(&self) -> bool {
        self.stop.is_some_and(|until| self.running.is_empty() || self.clock.now() >= until)
    }

    /// Ends every request, because the engine stops or MLX failed.
    fn end_all(&mut self) {
        self.progress.set_phase(WorkerPhase::Stopping);
        let status = match self.broken {
            true => Reason::TargetGone.status("the target's engine failed and starts again"),
            false => Reason::Draining
                .status("the target was asked to stop before the request was finished"),
        };
        for key in self.running.keys().copied().collect::<Vec<_>>() {
            self.end(key, RequestEnd::Failed(status.clone()));
        }
        for arrival in std::mem::take(&mut self.arrivals) {
            self.refuse(arrival.outlet, status.clone());
        }
        self.write_figures();
    }

    fn fail(&mut self, error: &ModelError) {
        tracing::error!(error = paceline_process::chain(error), "the engine failed");
        self.broken = true;
    }
}
