//! One generation's life: Waiting → Prefilling → Decoding → Finished. While it decodes it may have
//! a draft: asked for, then there, then verified in one step. A lane is changed between two steps
//! and at no other moment.

use std::sync::Arc;

use paceline_vocabulary::{Millis, Permit, RouteReason};

use super::Image;
use super::image::uncut;

/// A sequence's number in the engine; counts up, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceKey(pub u64);

/// What the scheduler needs to know of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens of the stream that the client has already.
    pub continuation: Vec<u32>,
    /// Tokens behind the prompt, continuation included.
    pub max_tokens: u32,
    /// Generation ends behind one of these.
    pub stop_ids: Vec<u32>,
    /// Ids that end the model's answers and that the client has it go on behind.
    pub ignored_ids: Vec<u32>,
    /// When it must be over.
    pub deadline: Option<Millis>,
    /// The supervisor's route.
    pub permit: Permit,
    /// Label of its traffic class; empty is "default".
    pub class: String,
    /// Cache scope: what one request leaves behind, pages and what its prompt taught, is for
    /// requests of the same scope.
    pub cache_scope: String,
    /// Pictures in the prompt, in the order of their places.
    pub images: Arc<[Image]>,
}

/// The draft of a decoding sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// None: the next step is plain.
    #[default]
    None,
    /// On its way; waited for until then.
    Asked {
        /// When the next step is plain all the same.
        until: Millis,
    },
    /// There: the next step verifies it.
    Ready {
        /// Drafted tokens.
        drafted: usize,
    },
}

/// What speculation did for one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Blocks verified.
    pub cycles: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Of them, equal to the target's choice.
    pub accepted: u64,
}

/// Where a sequence stands.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No row read yet.
    Waiting,
    /// Some rows of prompt and continuation read.
    Prefilling,
    /// One row a step.
    Decoding,
    /// Nothing more will be chosen.
    Finished(EndReason),
}

/// Why nothing more will be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It went well.
    Well(Finish),
    /// Its deadline passed.
    DeadlinePassed,
    /// The client or an operator cancelled, or the engine stops.
    Cancelled,
}

/// How a stream that went well ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Finish {
    /// A stop id was chosen.
    Stop,
    /// `max_tokens` are there.
    Length,
}

/// A request in the engine.
#[derive(Clone, Debug, PartialEq)]
pub struct Sequence {
    /// Prompt, continuation, chosen tokens.
    pub ids: Vec<u32>,
    /// How many of `ids` are prompt.
    pub prompt_len: usize,
    /// Rows in the KV store.
    pub committed: usize,
    /// Of them the first ones, which were found in the prefix cache.
    pub cached: usize,
    /// Where it stands.
    pub phase: Phase,
    /// Its route.
    pub permit: Permit,
    /// Its draft.
    pub draft: Draft,
    /// What drafts did for it.
    pub counts: DraftCounts,
    /// Hidden states of its rows are kept for a drafter, if there is one or will be.
    pub retains_hidden: bool,
    /// Steps in a row in which its prompt could have been read on and was not.
    pub passed: u32,
    /// How often it gave its memory up.
    pub preemptions: u32,
    /// Pictures in its prompt, in the order of their places.
    pub images: Arc<[Image]>,
    /// One of the ids that would have ended it was chosen: what follows is another text.
    pub past_end: bool,
    max_tokens: u32,
    stop_ids: Vec<u32>,
    ignored_ids: Vec<u32>,
    deadline: Option<Millis>,
}

impl Sequence {
    /// A sequence that waits for its first step.
    pub fn new(request: Request) -> Self {
        let Request {
            mut prompt,
            continuation,
            max_tokens,
            stop_ids,
            ignored_ids,
            deadline,
            permit,
            images,
            ..
        } = request;
        let (prompt_len, past_end) =
            (prompt.len(), continuation.iter().any(|id| ignored_ids.contains(id)));
        prompt.extend(continuation);
        let (draft, counts) = (Draft::None, DraftCounts::default());
        Self {
            ids: prompt,
            prompt_len,
            committed: 0,
            cached: 0,
            phase: Phase::Waiting,
            permit,
            draft,
            counts,
            retains_hidden: true,
            passed: 0,
            preemptions: 0,
            images,
            past_end,
            max_tokens,
            stop_ids,
            ignored_ids,
            deadline,
        }
    }

    /// Whether its hidden states are kept: a drafter may read them now, or once it is there.
    pub fn keeps_hidden_states(&self) -> bool {
        use RouteReason::{DrafterAbsent, DrafterIncompatible, DrafterLoading, DrafterSuspect};
        let drafter_may_come = matches!(
            self.permit.reason,
            DrafterAbsent | DrafterLoading | DrafterSuspect | DrafterIncompatible
        );
        self.retains_hidden && (self.permit.may_draft() || drafter_may_come)
    }

    /// How long a draft may be; 0 where none may be made. A verified block gives one token more
    /// than were drafted, so the last token is never worth one.
    pub fn draft_most(&self) -> usize {
        if !self.permit.may_draft() || !self.retains_hidden {
            return 0;
        }
        self.permit.max_draft.min(self.left().saturating_sub(1)) as usize
    }

    /// Tokens that may still come.
    pub fn left(&self) -> u32 {
        self.max_tokens.saturating_sub(self.generated())
    }

    /// Positions it may come to have.
    pub fn most_positions(&self) -> usize {
        self.prompt_len + self.max_tokens as usize
    }

    /// Its rows are gone; its tokens stay, and it is read again from them.
    pub fn preempt(&mut self) {
        (self.committed, self.cached, self.phase, self.draft) = (0, 0, Phase::Waiting, Draft::None);
        self.preemptions += 1;
    }

    /// Rows not in the KV store yet; 1 while decoding.
    pub fn pending_rows(&self) -> usize {
        self.ids.len() - self.committed
    }

    /// Pictures of which not all rows are read, and their numbers.
    pub fn unread_images(&self) -> impl Iterator<Item = (usize, &Image)> {
        self.images.iter().enumerate().filter(|(_, image)| image.end() > self.committed)
    }

    /// The most of its first pages, at most `pages` of `page` rows, that do not end inside a
    /// picture.
    pub fn uncut_pages(&self, pages: usize, page: usize) -> usize {
        let whole = uncut(&self.images, pages * page) / page;
        if whole == pages { pages } else { self.uncut_pages(whole, page) }
    }

    /// Tokens behind the prompt.
    pub fn generated(&self) -> u32 {
        (self.ids.len() - self.prompt_len) as u32
    }

    /// Whether its deadline has passed.
    pub fn is_late(&self, now: Millis) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// Its first rows are in the store without having been read.
    pub fn found(&mut self, rows: usize) {
        (self.committed, self.cached, self.phase) = (rows, rows, Phase::Prefilling);
    }

    /// `rows` more rows are in the store.
    pub fn commit(&mut self, rows: usize) {
        self.committed += rows;
        if !matches!(self.phase, Phase::Finished(_)) {
            self.phase = if self.pending_rows() <= 1 && self.generated() > 0 {
                Phase::Decoding
            } else {
                Phase::Prefilling
            };
        }
    }

    /// A block of `drafted` tokens was verified, and `chosen` tokens came of it.
    pub fn verified(&mut self, drafted: usize, chosen: usize) {
        self.counts.cycles += 1;
        self.counts.drafted += drafted as u64;
        self.counts.accepted += chosen.saturating_sub(1) as u64;
        self.draft = Draft::None;
    }

    /// The target chose `token`.
    pub fn push(&mut self, token: u32) {
        self.ids.push(token);
        self.past_end |= self.ignored_ids.contains(&token);
        self.phase = if self.stop_ids.contains(&token) {
            Phase::Finished(EndReason::Well(Finish::Stop))
        } else if self.generated() >= self.max_tokens {
            Phase::Finished(EndReason::Well(Finish::Length))
        } else {
            Phase::Decoding
        };
    }
}
