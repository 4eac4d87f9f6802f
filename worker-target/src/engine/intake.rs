//! First phase: commands, requests whose readers have gone, and arrivals.

use std::sync::mpsc::TryRecvError;
use std::time::Duration;

use paceline_models::device;
use paceline_process::worker::Inbox;
use paceline_proto::internal::v1::WorkerPhase;
use paceline_proto::status::{Reason, ReasonStatus as _};
use paceline_system::clock::monotonic_ns;
use paceline_system::platform;
use paceline_target_core::{Policy, Request, SequenceKey};
use tonic::Status;

use super::{Engine, EngineCommand, PermitChange, RequestEnd};
use crate::error;
use crate::request::ValidRequest;
use crate::running::RunningRequest;

/// Interval of attempts to send to slow readers while the engine is idle.
const RETRY_INTERVAL: Duration = Duration::from_millis(5);

/// Interval at which an idle engine checks for the drafter's answer to Hello.
const HANDSHAKE_INTERVAL: Duration = Duration::from_millis(500);

/// After this time without work the engine returns freed memory to the system.
const TRIM_AFTER: Duration = Duration::from_secs(5);

/// Least number of requests that may wait for admission. The bound is twice as many as run at once
/// if that is more, because each request that ends may be followed by another.
const MIN_ARRIVALS: usize = 64;

impl Engine {
    /// Takes all commands that are there. Waits for one if the engine has nothing else to do.
    /// Returns `false` if it has nothing to do and no sender of commands is left.
    pub(super) fn take_commands(&mut self, inbox: &mut Inbox<EngineCommand>) -> bool {
        let is_busy =
            !self.scheduler.is_empty() || !self.arrivals.is_empty() || self.stop.is_some();
        if !is_busy {
            self.wait_for_work(inbox);
        }
        loop {
            match inbox.try_recv() {
                Ok(command) => self.obey(command),
                Err(TryRecvError::Empty) => return true,
                Err(TryRecvError::Disconnected) => return is_busy,
            }
        }
    }

    fn wait_for_work(&mut self, inbox: &mut Inbox<EngineCommand>) {
        self.progress.set_phase(WorkerPhase::Idle);
        let at_most = match (self.closing.is_empty(), self.drafting.is_in_handshake()) {
            _ if self.drafting.has_unread() => Some(Duration::ZERO),
            (false, _) => Some(RETRY_INTERVAL),
            (true, true) => Some(HANDSHAKE_INTERVAL),
            (true, false) => (!self.is_trimmed).then_some(TRIM_AFTER),
        };
        let unwires_after = self.wired.rests(self.clock.now());
        let wait = at_most.into_iter().chain(unwires_after).min();
        let was_woken = inbox.wait(&self.drafting.poll_fds(), wait);
        self.mark_ns = monotonic_ns();
        if !was_woken && wait == Some(TRIM_AFTER) && !self.is_trimmed {
            device::drop_cache();
            platform::give_back_freed_memory();
            self.is_trimmed = true;
        }
    }

    fn obey(&mut self, command: EngineCommand) {
        match command {
            EngineCommand::Run(arrival) => self.take_arrival(*arrival),
            EngineCommand::Cancel { request_id, found } => {
                let was_found = self.cancel(&request_id);
                // The caller may have gone.
                let _ = found.send(was_found);
            }
            EngineCommand::Repermit { changes, unknown } => {
                let not_found = self.repermit(changes);
                // The caller may have gone.
                let _ = unknown.send(not_found);
            }
            EngineCommand::SetPolicy(policy) => self.set_policy(policy),
            EngineCommand::Link(handover) => self.drafting.connect(handover, self.clock.now()),
            EngineCommand::Stop { until } => {
                self.stop = Some(self.stop.map_or(until, |before| before.min(until)));
            }
        }
    }

    fn take_arrival(&mut self, arrival: RunningRequest) {
        if self.arrivals.len() >= MIN_ARRIVALS.max(2 * self.scheduler.max_sequences()) {
            let message = "more requests wait for room in the target than may";
            self.refuse(arrival.outlet, Reason::QueueFull.status(message));
        } else {
            self.arrivals.push_back(arrival);
        }
    }

    fn cancel(&mut self, request_id: &str) -> bool {
        if let Some(key) = self.key_of(request_id) {
            self.end_early(key, RequestEnd::Failed(error::cancelled()));
            return true;
        }
        let arrived = self.arrivals.iter().position(|arrival| arrival.id() == request_id);
        let arrival = arrived.and_then(|at| self.arrivals.remove(at));
        let was_found = arrival.is_some();
        if let Some(arrival) = arrival {
            self.refuse(arrival.outlet, error::cancelled());
        }
        was_found
    }

    /// Returns the ids of requests that were not found.
    fn repermit(&mut self, changes: Vec<PermitChange>) -> Vec<String> {
        let mut unknown = vec![];
        for PermitChange { request_id, permit } in changes {
            if let Some(key) = self.key_of(&request_id) {
                self.scheduler.set_permit(key, permit);
            } else if let Some(arrival) =
                self.arrivals.iter_mut().find(|arrival| arrival.id() == request_id)
            {
                arrival.request.scheduling.permit = permit;
            } else {
                unknown.push(request_id);
            }
        }
        unknown
    }

    fn set_policy(&mut self, policy: Policy) {
        let taken = self.scheduler.speculation.set_policy(policy);
        tracing::info!(
            epoch = policy.epoch,
            force = ?policy.force,
            kv_pressure = policy.kv_pressure,
            taken,
            "policy"
        );
    }

    /// The sequence of a request that was admitted.
    fn key_of(&self, request_id: &str) -> Option<SequenceKey> {
        let found = self.running.iter().find(|(_, running)| running.id() == request_id);
        found.map(|(key, _)| *key)
    }

    /// Ends requests whose readers have gone: their memory is free at this step border.
    pub(super) fn drop_abandoned(&mut self) {
        let abandoned = self.running.iter().filter(|(_, running)| running.outlet.is_gone());
        for key in abandoned.map(|(key, _)| *key).collect::<Vec<_>>() {
            self.end_early(key, RequestEnd::Abandoned);
        }
    }

    /// Admits arrivals in order, until as many sequences run as may.
    pub(super) fn admit_arrivals(&mut self) {
        while let Some(arrival) = self.arrivals.pop_front() {
            if arrival.outlet.is_gone() {
                continue;
            }
            let deadline = arrival.request.scheduling.deadline;
            if deadline.is_some_and(|deadline| self.clock.now() >= deadline) {
                self.refuse(arrival.outlet, error::deadline_passed());
                continue;
            }
            match self.admit(&arrival.request) {
                ArrivalOutcome::Admitted(key) => {
                    self.running.insert(key, arrival);
                    self.log_admitted(key);
                }
                ArrivalOutcome::Refused(status) => self.refuse(arrival.outlet, status),
                ArrivalOutcome::Full => return self.arrivals.push_front(arrival),
            }
        }
    }

    fn admit(&mut self, request: &ValidRequest) -> ArrivalOutcome {
        if self.stop.is_some() {
            let message = "the target was asked to stop and takes nothing new";
            return ArrivalOutcome::Refused(Reason::Draining.status(message));
        }
        match self.scheduler.add(request.scheduling.clone()) {
            Ok(key) => {
                let Request { cache_scope, images, .. } = &request.scheduling;
                self.pages.open(key, cache_scope, images.clone());
                ArrivalOutcome::Admitted(key)
            }
            Err(error) => {
                error::refused(&error).map_or(ArrivalOutcome::Full, ArrivalOutcome::Refused)
            }
        }
    }
}

/// Outcome of an arrival.
enum ArrivalOutcome {
    Admitted(SequenceKey),
    Refused(Status),
    /// As many sequences run as may: the arrival waits.
    Full,
}
