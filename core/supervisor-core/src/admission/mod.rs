//! Which requests wait and which run: a queue that serves API keys in turn ([`queue`]), and a
//! ledger of KV memory. A request is admitted when there is memory for what it is expected to hold
//! ([`expected_memory`]). What it can hold at most is checked once, when it arrives: a request that
//! could never fit is refused.
//!
//! A request is in exactly one place: `queue`, `running`, or gone. `reserved_bytes` is the sum over
//! `running` (I11). An answer that becomes longer than expected holds more than was reserved for
//! it; the target's heartbeats report it (`TargetMemory::held_bytes`), and the larger of the two
//! counts. Between two heartbeats too many requests may be admitted. Then the target, which gives
//! out memory as sequences grow, preempts its youngest sequence.

mod expected_memory;
mod first_token;
mod invariants;
mod queue;

use std::collections::BTreeMap;

use paceline_settings::LimitsConfig;
use paceline_vocabulary::{Epoch, Millis, Permit};

use crate::capacity::Capacity;
use crate::denial::Denial;
use crate::ids::Ticket;
use crate::request::{RequestSummary, ServedRequest};
use expected_memory::AnswerLengths;
use first_token::FirstTokenEstimate;
use queue::{Queue, RunningByKey, WaitingRequest};

/// The target's memory at this moment.
#[derive(Clone, Copy, Debug)]
pub struct TargetMemory<'a> {
    /// Epoch of the target.
    pub epoch: Epoch,
    /// Capacity of the target.
    pub capacity: &'a Capacity,
    /// Bytes its sequences may hold together.
    pub budget_bytes: u64,
    /// Bytes that they held by the last heartbeat, without the prefix cache and without hidden
    /// states for a drafter: both are freed for requests.
    pub held_bytes: u64,
    /// Bytes that the machine has left for requests; `None`: the machine bounds nothing.
    pub spare_bytes: Option<u64>,
}

/// A request that is admitted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Admitted {
    /// Ticket of the request.
    pub ticket: Ticket,
    /// Summary of the request.
    pub summary: RequestSummary,
    /// How long it waited.
    pub queued_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Running {
    summary: RequestSummary,
    /// Expected bytes of the request at its admission.
    cost_bytes: u64,
    epoch: Epoch,
    /// Route of the request, once it has one.
    permit: Option<Permit>,
    /// Whether the target has it.
    delivered: Delivered,
    /// It has new tokens since this admission.
    has_progress: bool,
}

impl Running {
    /// It was resumed, and has no new token yet.
    fn is_returning(&self) -> bool {
        self.summary.resumed && !self.has_progress
    }
}

/// Whether the target has a request's permit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Delivered {
    /// The target has it, or it is on its way.
    Yes,
    /// The target has another permit; this one is to be sent.
    Due,
    /// It was sent, and the target did not take it.
    Missed,
}

/// A running request and its place among all running ones.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RunningRequest {
    /// The request.
    pub ticket: Ticket,
    /// Summary of the request.
    pub summary: RequestSummary,
    /// Rank of the request, the longest running first, from 1.
    pub place: u32,
}

/// A request that lost its place in the queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Displaced {
    /// The request.
    pub ticket: Ticket,
    /// Why.
    pub denial: Denial,
}

/// Bytes reserved for requests that were admitted or ended since the target's last heartbeat.
#[derive(Clone, Copy, Debug, Default)]
struct SinceHeartbeat {
    admitted_bytes: u64,
    ended_bytes: u64,
}

/// Bounds of admission.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct AdmissionBounds {
    /// Places in the queue. Requests that wait already keep their places.
    pub queue_places: usize,
    /// Longest wait in the queue, for requests that arrive from now on.
    pub queue_wait_ms: u64,
    /// Requests that one API key runs at once. Those that run go on.
    pub streams_per_key: usize,
}

impl AdmissionBounds {
    /// The configuration's bounds.
    pub fn of(limits: &LimitsConfig) -> Self {
        Self {
            queue_places: limits.queue as usize,
            queue_wait_ms: limits.queue_wait_s.saturating_mul(1_000),
            streams_per_key: limits.streams_per_key as usize,
        }
    }
}

/// Queue and ledger.
#[derive(Debug)]
pub struct Admission {
    bounds: AdmissionBounds,
    queue: Queue,
    running: BTreeMap<Ticket, Running>,
    reserved_bytes: u64,
    since_heartbeat: SinceHeartbeat,
    answers: AnswerLengths,
    estimate: FirstTokenEstimate,
    /// When the last request was admitted from the queue.
    last_admission: Option<Millis>,
}

impl Admission {
    /// An empty queue.
    pub fn new(bounds: AdmissionBounds) -> Self {
        Self {
            bounds,
            queue: Queue::default(),
            running: BTreeMap::new(),
            reserved_bytes: 0,
            since_heartbeat: SinceHeartbeat::default(),
            answers: AnswerLengths::default(),
            estimate: FirstTokenEstimate::default(),
            last_admission: None,
        }
    }

    /// From now on these bounds hold. Requests that wait keep their places and their deadlines.
    pub fn set_bounds(&mut self, bounds: AdmissionBounds) {
        self.bounds = bounds;
    }

    /// Queues a request after all others of its key. [`Admission::admit`] decides when it runs. If
    /// the queue is full, a key with few waiting requests takes the place of the newest request of
    /// the key with most: that request is returned, with its denial.
    ///
    /// # Errors
    /// The request can never run, its deadline has passed or would pass before its first token, or
    /// there is no place for it.
    pub fn submit(
        &mut self,
        ticket: Ticket,
        summary: RequestSummary,
        memory: &TargetMemory<'_>,
        now: Millis,
    ) -> Result<Option<Displaced>, Denial> {
        let positions = summary.most_positions();
        let Some(need_bytes) = memory.capacity.cost_of(&summary, positions) else {
            let context = memory.capacity.longest();
            return Err(Denial::TooLong {
                prompt_tokens: summary.prompt_tokens,
                max_tokens: summary.max_tokens,
                context,
            });
        };
        if need_bytes > memory.budget_bytes {
            return Err(Denial::KvExhausted {
                positions,
                need_bytes,
                budget_bytes: memory.budget_bytes,
            });
        }
        if summary.deadline.is_some_and(|deadline| deadline <= now) {
            return Err(Denial::DeadlinePassed { waited_ms: 0 });
        }
        if let Some(deadline) = summary.deadline {
            let remaining_ms = deadline.since(now);
            // The requests of its own key are certainly ahead of it. How many turns other keys take
            // is not known, and a request must not be refused for a guess.
            let ahead = self.queue.len_of(summary.key);
            let earliest =
                self.estimate.is_in_time(summary.context_tokens.into(), ahead, remaining_ms);
            earliest
                .map_err(|earliest_ms| Denial::DeadlineInfeasible { earliest_ms, remaining_ms })?;
        }
        let longest_wait = now + self.bounds.queue_wait_ms;
        let until = summary.deadline.map_or(longest_wait, |deadline| deadline.min(longest_wait));
        self.queue.push(WaitingRequest { ticket, summary, since: now, until });
        if self.queue.len() <= self.bounds.queue_places || self.runs_at_once(ticket, memory) {
            return Ok(None);
        }
        let denial = Denial::QueueFull { limit: self.bounds.queue_places };
        match self.queue.displace(summary.key) {
            Some(displaced) => Ok(Some(Displaced { ticket: displaced.ticket, denial })),
            None => {
                self.queue.remove(ticket);
                Err(denial)
            }
        }
    }

    fn runs_at_once(&self, ticket: Ticket, memory: &TargetMemory<'_>) -> bool {
        let next = self.next().filter(|next| next.ticket == ticket);
        next.is_some_and(|next| self.fits(self.expected_bytes(&next.summary, memory), memory))
    }

    fn running_by_key(&self) -> RunningByKey {
        RunningByKey::new(
            self.running.values().map(|running| running.summary.key),
            self.bounds.streams_per_key,
        )
    }

    /// The request to be admitted next.
    fn next(&self) -> Option<WaitingRequest> {
        // No waits nearly always, and this is asked at every event.
        if self.queue.is_empty() { None } else { self.queue.next(&self.running_by_key()) }
    }

    /// Admits the request whose turn it is, if there is memory for it. Else no request is admitted:
    /// a long request is not overtaken for ever by short ones.
    pub fn admit(&mut self, memory: &TargetMemory<'_>, now: Millis) -> Option<Admitted> {
        let head = self.next()?;
        // If the target ends now, the request that is returning is the suspect.
        if head.summary.resumed && self.running.values().any(Running::is_returning) {
            return None;
        }
        let cost_bytes = self.expected_bytes(&head.summary, memory);
        if !self.fits(cost_bytes, memory) {
            return None;
        }
        self.queue.take(head.summary.key);
        // A request that waited already at the admission before this one has waited for a place
        // since then, unless it waited for its own key's limit, which says nothing about places.
        let limited = self.running_by_key().left(head.summary.key) == Some(1);
        if let Some(before) = self.last_admission.replace(now)
            && head.since <= before
            && !limited
        {
            self.estimate.admitted(now.since(before));
        }
        self.running.insert(
            head.ticket,
            Running {
                summary: head.summary,
                cost_bytes,
                epoch: memory.epoch,
                permit: None,
                delivered: Delivered::Yes,
                has_progress: false,
            },
        );
        self.reserved_bytes += cost_bytes;
        self.since_heartbeat.admitted_bytes += cost_bytes;
        self.assert_sum();
        Some(Admitted {
            ticket: head.ticket,
            summary: head.summary,
            queued_ms: now.since(head.since),
        })
    }

    /// Bytes that a request is expected to hold in this target, by the answers so far.
    fn expected_bytes(&self, summary: &RequestSummary, memory: &TargetMemory<'_>) -> u64 {
        // A request that is longer than this epoch's longest sequence was checked against an
        // earlier epoch: the target will refuse it.
        let longest = u64::from(memory.capacity.longest());
        memory
            .capacity
            .cost_of(summary, summary.expected_positions(self.answers.typical()).min(longest))
            .unwrap_or(u64::MAX)
    }

    /// Bytes that are not free for another request.
    fn taken_bytes(&self, memory: &TargetMemory<'_>) -> u64 {
        // What is still held belongs to requests that are over, and is being freed.
        if self.running.is_empty() {
            return 0;
        }
        let held = (memory.held_bytes + self.since_heartbeat.admitted_bytes)
            .saturating_sub(self.since_heartbeat.ended_bytes);
        self.reserved_bytes.max(held)
    }

    fn fits(&self, cost_bytes: u64, memory: &TargetMemory<'_>) -> bool {
        self.fits_ledger(cost_bytes, memory)
            && memory.spare_bytes.is_none_or(|spare| cost_bytes <= spare)
    }

    fn fits_ledger(&self, cost_bytes: u64, memory: &TargetMemory<'_>) -> bool {
        self.running.len() < memory.capacity.max_sequences
            && self.taken_bytes(memory).saturating_add(cost_bytes) <= memory.budget_bytes
    }

    /// Whether the request whose turn it is waits for the machine's memory alone.
    pub fn waits_for_machine_memory(&self, memory: &TargetMemory<'_>) -> bool {
        self.next().is_some_and(|head| {
            let cost_bytes = self.expected_bytes(&head.summary, memory);
            self.fits_ledger(cost_bytes, memory) && !self.fits(cost_bytes, memory)
        })
    }

    /// A heartbeat came: the target reported what its sequences hold.
    pub fn on_heartbeat(&mut self) {
        self.since_heartbeat = SinceHeartbeat::default();
    }

    /// A running request has its first tokens since its admission.
    pub fn on_progress(&mut self, ticket: Ticket) {
        if let Some(running) = self.running.get_mut(&ticket) {
            running.has_progress = true;
        }
    }

    /// The request at which the target of this epoch ended: the one that was returning, or the only
    /// one that ran, if it has no token since its admission. `None`: any of several, or none.
    pub fn suspect(&self, epoch: Epoch) -> Option<RequestSummary> {
        let of_it = || self.running.values().filter(|running| running.epoch == epoch);
        let returning = of_it().find(|running| running.is_returning());
        let alone = of_it().next().filter(|only| of_it().count() == 1 && !only.has_progress);
        returning.or(alone).map(|running| running.summary)
    }

    /// Summary of a running request.
    pub fn summary(&self, ticket: Ticket) -> Option<RequestSummary> {
        self.running.get(&ticket).map(|running| running.summary)
    }

    /// A running request ends well.
    pub fn on_served(&mut self, ticket: Ticket, served: ServedRequest) {
        let Some(running) = self.running.get(&ticket) else { return };
        let summary = running.summary;
        if let Some(ms) = served.first_ms {
            self.estimate.first_token(summary.context_tokens.into(), ms);
        }
        let tokens = u64::from(summary.continuation_tokens()) + served.tokens;
        let tokens = u32::try_from(tokens).unwrap_or(u32::MAX);
        self.answers.learn(tokens, tokens >= summary.max_tokens);
    }

    /// A request is over, wherever it was. A request that was denied or abandoned before is not
    /// here any more.
    pub fn on_ended(&mut self, ticket: Ticket) {
        match self.running.remove(&ticket) {
            Some(running) => {
                self.reserved_bytes -= running.cost_bytes;
                self.since_heartbeat.ended_bytes += running.cost_bytes;
                self.assert_sum();
            }
            None => self.queue.remove(ticket),
        }
    }

    /// The running requests of this epoch.
    pub fn running(&self, epoch: Epoch) -> impl Iterator<Item = RunningRequest> {
        self.places(epoch).map(|(request, _)| request)
    }

    /// The running requests of this epoch whose permit is held back.
    pub fn held_back(&self, epoch: Epoch) -> impl Iterator<Item = RunningRequest> {
        let held_back = |permit: Option<Permit>| permit.is_some_and(|permit| permit.is_held_back());
        self.places(epoch).filter(move |(_, permit)| held_back(*permit)).map(|(request, _)| request)
    }

    fn places(&self, epoch: Epoch) -> impl Iterator<Item = (RunningRequest, Option<Permit>)> {
        let running = self.running.iter().filter(move |(_, running)| running.epoch == epoch);
        (1..).zip(running).map(|(place, (ticket, running))| {
            let request = RunningRequest { ticket: *ticket, summary: running.summary, place };
            (request, running.permit)
        })
    }

    /// A running request got this route; returns whether it had another, or none. Its first goes to
    /// the target with it.
    pub fn routed(&mut self, ticket: Ticket, permit: Permit) -> bool {
        let Some(running) = self.running.get_mut(&ticket) else { return false };
        let before = running.permit.replace(permit);
        if before.is_some_and(|before| before != permit) {
            running.delivered = Delivered::Due;
        }
        before != Some(permit)
    }

    /// The permits to send to the target: the new ones, and with them, or if `again`, those that it
    /// has missed. From now on they count as delivered.
    pub fn undelivered(&mut self, epoch: Epoch, again: bool) -> Vec<(Ticket, Permit)> {
        let of_it = |running: &Running| running.epoch == epoch;
        if !again
            && !self
                .running
                .values()
                .any(|running| of_it(running) && running.delivered == Delivered::Due)
        {
            return Vec::new();
        }
        let undelivered = self
            .running
            .iter_mut()
            .filter(|(_, running)| of_it(running) && running.delivered != Delivered::Yes);
        let permits = undelivered.filter_map(|(ticket, running)| {
            running.delivered = Delivered::Yes;
            Some((*ticket, running.permit?))
        });
        permits.collect()
    }

    /// The target did not take this request's permit. A newer permit is to be sent anyway. Returns
    /// whether the request still runs.
    pub fn missed(&mut self, ticket: Ticket) -> bool {
        let Some(running) = self.running.get_mut(&ticket) else { return false };
        if running.delivered == Delivered::Yes {
            running.delivered = Delivered::Missed;
        }
        true
    }

    /// The route of a running request.
    #[cfg(test)]
    pub fn permit(&self, ticket: Ticket) -> Option<Permit> {
        self.running.get(&ticket)?.permit
    }

    /// Whether the summary of a running request has a property.
    pub fn any_request(&self, has: impl Fn(&RequestSummary) -> bool) -> bool {
        self.running.values().any(|running| has(&running.summary))
    }

    /// Whether a running request has a permit that is `such`.
    pub fn any_permit(&self, such: impl Fn(&Permit) -> bool) -> bool {
        self.running.values().any(|running| running.permit.as_ref().is_some_and(&such))
    }

    /// Number of running requests that may draft.
    pub fn drafting(&self) -> usize {
        let permits = self.running.values().filter_map(|running| running.permit);
        permits.filter(Permit::may_draft).count()
    }

    /// An epoch of the target is over: its requests hold nothing any more.
    pub fn abandon(&mut self, epoch: Epoch) {
        self.running.retain(|_, running| running.epoch != epoch);
        self.estimate.forget();
        self.since_heartbeat = SinceHeartbeat::default();
        self.reserved_bytes = self.running.values().map(|running| running.cost_bytes).sum();
    }

    /// Takes out the requests that have waited too long.
    pub fn expire(&mut self, now: Millis) -> Vec<(Ticket, Denial)> {
        let over =
            self.queue.take_where(|waiting| waiting.until <= now).into_iter().map(|waiting| {
                let waited_ms = now.since(waiting.since);
                let late = waiting.summary.deadline.is_some_and(|deadline| deadline <= now);
                let denial = if late {
                    Denial::DeadlinePassed { waited_ms }
                } else {
                    Denial::QueueWait { waited_ms }
                };
                (waiting.ticket, denial)
            });
        over.collect()
    }

    /// The waiting requests.
    pub fn waiting(&self) -> Vec<(Ticket, RequestSummary)> {
        self.queue.iter().map(|waiting| (waiting.ticket, waiting.summary)).collect()
    }

    /// Takes out a waiting request.
    pub fn turn_away(&mut self, ticket: Ticket) {
        self.queue.remove(ticket);
    }

    /// When the next request has waited too long.
    pub fn next_deadline(&self) -> Option<Millis> {
        self.queue.iter().map(|waiting| waiting.until).min()
    }

    /// Requests that run.
    pub fn active(&self) -> usize {
        self.running.len()
    }

    /// Requests that wait.
    pub fn queued(&self) -> usize {
        self.queue.len()
    }

    /// Tokens that the waiting requests begin with: prompts and continuations.
    pub fn queued_tokens(&self) -> u64 {
        self.queue.tokens()
    }

    /// Bytes that the running requests were expected to hold when they were admitted.
    pub fn reserved_bytes(&self) -> u64 {
        self.reserved_bytes
    }

    /// Tokens that three of four answers do not exceed.
    pub fn typical_tokens(&self) -> u32 {
        self.answers.typical()
    }
}

#[cfg(test)]
pub(crate) mod tests;
