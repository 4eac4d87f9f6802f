//! What the simulated target does with memory: a sequence holds the class of what it has so far and grows from class to
//! class; where all together would hold more than there is, the youngest hold nothing and wait.

use paceline_proto::v1::{Lane, RouteReason};

use super::{BUDGET, Fate, Machine, Request};
use crate::core::Event;
use crate::core::admission::{Ask, Ticket};
use crate::core::routing::Served;

/// Until the first token, and between two.
const FIRST_MS: u64 = 20;
const TOKEN_MS: u64 = 5;

/// How long an answer of so many tokens takes.
pub(super) fn time_ms(tokens: u32) -> u64 {
    FIRST_MS + u64::from(tokens) * TOKEN_MS
}

impl Machine {
    /// Half of all callers get what they asked for as the most; the answers of the others end by themselves.
    pub(super) fn draw_answer(&mut self, ask: &Ask) -> u32 {
        let most = u64::from(ask.max_tokens);
        if self.dice.roll(2) == 0 { most as u32 } else { 1 + self.dice.roll(most) as u32 }
    }

    /// Who holds how much at this moment, the oldest first.
    fn holders(&self) -> impl Iterator<Item = (Ticket, u64)> {
        let mut free = BUDGET;
        let running = self.requests.iter().filter_map(|(ticket, request)| Some((*ticket, self.needs(request)?)));
        running.map_while(move |(ticket, bytes)| {
            free = free.checked_sub(bytes)?;
            Some((ticket, bytes))
        })
    }

    /// What a running request needs for what it has so far.
    fn needs(&self, request: &Request) -> Option<u64> {
        let Fate::Running { since, .. } = request.fate else { return None };
        let tokens = (self.now.saturating_sub(since + FIRST_MS) / TOKEN_MS).min(request.answer.into());
        self.capacity.cost_of(&request.ask, u64::from(request.ask.context_tokens) + tokens.max(1))
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
        let served = Served { lane: Lane::Plain, reason: RouteReason::Forced, tokens: request.answer.into(), first_ms: None };
        Some(Event::Served { ticket, served })
    }
}
