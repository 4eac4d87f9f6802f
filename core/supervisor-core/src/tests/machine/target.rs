//! Memory of the simulated target. A sequence holds the class of its present length and grows from
//! class to class. If all together would hold more than there is, the youngest hold nothing and
//! wait. Also the permits and policies that reach the target.

use super::{BUDGET, Fate, Happening, Machine, Request};
use crate::tests::testing::*;

/// Until the first token, and between two.
const FIRST_MS: u64 = 20;
const TOKEN_MS: u64 = 5;
/// The shell's timeout of a request to the target, and its pause before a policy is sent again.
const ANSWER_MS: u64 = 2_000;
const POLICY_AGAIN_MS: u64 = 1_000;

/// Time of an answer of `tokens` tokens.
pub(super) fn time_ms(tokens: u32) -> u64 {
    FIRST_MS + u64::from(tokens) * TOKEN_MS
}

impl Machine {
    /// Half of all callers get what they asked for as the most; the answers of the others end by
    /// themselves.
    pub(super) fn draw_answer(&mut self, summary: &RequestSummary) -> u32 {
        let most = u64::from(summary.max_tokens);
        if self.random.below(2) == 0 { most as u32 } else { 1 + self.random.below(most) as u32 }
    }

    /// The bytes that each request holds at this moment, the oldest first.
    fn holders(&self) -> impl Iterator<Item = (Ticket, u64)> {
        let mut free = BUDGET;
        let running = self
            .requests
            .iter()
            .filter_map(|(ticket, request)| Some((*ticket, self.needs(request)?)));
        running.map_while(move |(ticket, bytes)| {
            free = free.checked_sub(bytes)?;
            Some((ticket, bytes))
        })
    }

    /// Bytes that a running request needs for its present length.
    fn needs(&self, request: &Request) -> Option<u64> {
        let Fate::Running { since, .. } = request.fate else { return None };
        let tokens =
            (self.now.saturating_sub(since + FIRST_MS) / TOKEN_MS).min(request.answer.into());
        self.capacity
            .cost_of(&request.summary, u64::from(request.summary.context_tokens) + tokens.max(1))
    }

    pub(super) fn held_bytes(&self) -> u64 {
        self.holders().map(|(_, bytes)| bytes).sum()
    }

    pub(super) fn holds(&self, ticket: Ticket) -> bool {
        self.holders().any(|(holder, _)| holder == ticket)
    }

    /// How a request that is over was served, if it ended well.
    pub(super) fn served(&self, ticket: Ticket) -> Option<Event> {
        let request = self.requests.get(&ticket).filter(|request| request.served)?;
        let served = served_plainly(request.answer.into());
        Some(Event::Served { ticket, served })
    }

    /// Whether a request reaches this epoch of the target.
    fn is_reached(&mut self, epoch: Epoch) -> bool {
        let awake =
            |process: &super::Process| process.epoch == epoch && !process.frozen && !process.hung;
        self.processes.get(&WorkerId::Target).is_some_and(awake) && !self.is_lost()
    }

    /// Now and then a request or its answer is lost, in bad times every second one. From then on
    /// the next has its time.
    fn is_lost(&mut self) -> bool {
        let lost =
            self.random.below(if self.faults.unreached_until > self.now { 2 } else { 20 }) == 0;
        if lost {
            self.delivered.behind_since = None;
        }
        lost
    }

    /// A request is there.
    pub(super) fn arrive(&mut self, ticket: Ticket, permit: Permit) {
        if let Some(request) = self
            .requests
            .get_mut(&ticket)
            .filter(|request| matches!(request.fate, Fate::Running { .. }))
        {
            request.permit = Some(permit);
        }
    }

    /// An order for other permits is there, or is lost, or its answer is.
    pub(super) fn take_permits(&mut self, term: u64, epoch: Epoch, changes: Vec<(Ticket, Permit)>) {
        if self.absent || term != self.term {
            return;
        }
        let mut missed: Vec<Ticket> = changes.iter().map(|(ticket, _)| *ticket).collect();
        let mut answered = false;
        if self.is_reached(epoch) {
            let mut unknown = Vec::new();
            for (ticket, permit) in changes {
                match self.requests.get_mut(&ticket).and_then(|request| request.permit.as_mut()) {
                    Some(known) => *known = permit,
                    None => unknown.push(ticket),
                }
            }
            self.tally(!unknown.is_empty(), "permits are faster than requests");
            answered = !self.is_lost();
            if answered {
                missed = unknown;
            }
        }
        self.tally(!answered, "permits are lost");
        self.post(
            if answered { 0 } else { ANSWER_MS },
            Happening::Message(Event::Repermitted { epoch, missed }),
        );
    }

    /// So is a policy; it is sent again until it is there, or there is a newer one.
    pub(super) fn take_policy(&mut self, term: u64, epoch: Epoch, policy: u64) {
        if self.absent
            || term != self.term
            || !self.alive(WorkerId::Target, epoch)
            || policy != self.delivered.newest
        {
            return;
        }
        if self.is_reached(epoch) {
            self.delivered.policy = Some((term, policy));
            if !self.is_lost() {
                return;
            }
        }
        self.tally(true, "a policy is lost");
        self.post(ANSWER_MS + POLICY_AGAIN_MS, Happening::Policy(term, epoch, policy));
    }
}
