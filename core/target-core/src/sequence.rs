//! The life of one generation: Waiting → Prefilling → Decoding → Finished. A preempted one is
//! Waiting again. While it decodes it may have a draft: requested, then ready, then verified in one
//! step. A lane changes between two steps and at no other moment.

use std::sync::Arc;

use paceline_vocabulary::{Millis, Permit, RouteReason};

use super::image::uncut;
use super::{Image, SnapshotPlaces};

/// A sequence's number in the engine; counts up, never reused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SequenceKey(pub u64);

/// The part of a request that the scheduler uses.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Request {
    /// The prompt.
    pub prompt: Vec<u32>,
    /// Tokens of the stream that the client has already.
    pub continuation: Vec<u32>,
    /// Most tokens after the prompt, continuation included.
    pub max_tokens: u32,
    /// Generation ends after one of these.
    pub stop_ids: Vec<u32>,
    /// Ids that end the model's answers, and that the client ignores.
    pub ignored_ids: Vec<u32>,
    /// Time at which it is ended.
    pub deadline: Option<Millis>,
    /// The supervisor's route.
    pub permit: Permit,
    /// Label of its traffic class; empty is "default".
    pub class: String,
    /// Cache scope. Pages of one request serve requests of the same scope alone.
    pub cache_scope: String,
    /// Images in the prompt, in the order of their places.
    pub images: Arc<[Image]>,
    /// Place in the prompt at which its last turn begins, if that is known.
    pub last_turn: Option<usize>,
}

/// The draft of a decoding sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Draft {
    /// None: the next step is plain.
    #[default]
    None,
    /// Requested; waited for until then.
    Asked {
        /// From then on the sequence steps plainly.
        until: Millis,
    },
    /// It arrived: the next step verifies it.
    Ready {
        /// Drafted tokens.
        drafted: usize,
    },
}

/// Counts of the drafts of one sequence.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftCounts {
    /// Blocks verified.
    pub cycles: u64,
    /// Tokens drafted.
    pub drafted: u64,
    /// Drafted tokens that equal the target's choice.
    pub accepted: u64,
}

/// The phase of a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// No row is computed yet.
    Waiting,
    /// Some rows of prompt and continuation are computed.
    Prefilling,
    /// One row a step.
    Decoding,
    /// No more tokens will be chosen.
    Finished(EndReason),
}

/// Why a sequence ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum EndReason {
    /// It is complete.
    Completed(Finish),
    /// The deadline of the request passed.
    DeadlinePassed,
    /// The client or an operator cancelled, or the engine stops.
    Cancelled,
}

/// How a complete stream ended.
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
    /// Number of `ids` that are prompt.
    pub prompt_len: usize,
    /// Rows in the KV store.
    pub committed: usize,
    /// The first of these rows, which came from the prefix cache.
    pub cached: usize,
    /// Phase of the sequence.
    pub phase: Phase,
    /// Route of the sequence.
    pub permit: Permit,
    /// Draft of the sequence.
    pub draft: Draft,
    /// Counts of the sequence's drafts.
    pub counts: DraftCounts,
    /// It has memory for hidden states, which a drafter uses now or later.
    pub retains_hidden: bool,
    /// Steps in a row in which its prompt could have been prefilled and was not.
    pub skipped_steps: u32,
    /// How often it was preempted.
    pub preemptions: u32,
    /// Images in its prompt, in the order of their places.
    pub images: Arc<[Image]>,
    /// Where its states are kept; `None` if none are.
    pub snapshots: Option<SnapshotPlaces>,
    /// An ignored id was chosen: the text after it is another one.
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
            skipped_steps: 0,
            preemptions: 0,
            images,
            snapshots: None,
            past_end,
            max_tokens,
            stop_ids,
            ignored_ids,
            deadline,
        }
    }

    /// Sets that states are kept at the places of a prompt with this last turn.
    pub fn with_snapshots(self, last_turn: Option<usize>) -> Self {
        let snapshots = Some(SnapshotPlaces::of(self.prompt_len, last_turn));
        Self { snapshots, ..self }
    }

    /// Whether its hidden states are kept: a drafter uses them now, or may be attached later.
    pub fn keeps_hidden_states(&self) -> bool {
        use RouteReason::{DrafterAbsent, DrafterIncompatible, DrafterLoading, DrafterSuspect};
        let drafter_may_come = matches!(
            self.permit.reason,
            DrafterAbsent | DrafterLoading | DrafterSuspect | DrafterIncompatible
        );
        self.retains_hidden && (self.permit.may_draft() || drafter_may_come)
    }

    /// Longest draft in tokens; 0 if none is allowed. A verified block gives one token more than
    /// was drafted, so the last token is never drafted.
    pub fn draft_most(&self) -> usize {
        if !self.permit.may_draft() || !self.retains_hidden {
            return 0;
        }
        self.permit.max_draft.min(self.left().saturating_sub(1)) as usize
    }

    /// Tokens that it may still get.
    pub fn left(&self) -> u32 {
        self.max_tokens.saturating_sub(self.generated())
    }

    /// Most positions that it may have.
    pub fn most_positions(&self) -> usize {
        self.prompt_len + self.max_tokens as usize
    }

    /// It lost its rows. They are recomputed from its tokens.
    pub fn preempt(&mut self) {
        (self.committed, self.cached, self.phase, self.draft) = (0, 0, Phase::Waiting, Draft::None);
        self.preemptions += 1;
    }

    /// Rows not in the KV store yet; 1 while decoding.
    pub fn pending_rows(&self) -> usize {
        self.ids.len() - self.committed
    }

    /// Images that are not prefilled to their end, and their numbers.
    pub fn unread_images(&self) -> impl Iterator<Item = (usize, &Image)> {
        self.images.iter().enumerate().filter(|(_, image)| image.end() > self.committed)
    }

    /// The largest number of its first pages, at most `pages` of `page` rows, whose end is not
    /// inside an image.
    pub fn uncut_pages(&self, pages: usize, page: usize) -> usize {
        let whole = uncut(&self.images, pages * page) / page;
        if whole == pages { pages } else { self.uncut_pages(whole, page) }
    }

    /// Tokens after the prompt.
    pub fn generated(&self) -> u32 {
        (self.ids.len() - self.prompt_len) as u32
    }

    /// Whether its deadline has passed.
    pub fn is_late(&self, now: Millis) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// The first `rows` rows came from the prefix cache.
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
        debug_assert!(
            !matches!(self.phase, Phase::Finished(_)),
            "expected no token after the end, found {token} after {:?}",
            self.phase
        );
        self.ids.push(token);
        self.past_end |= self.ignored_ids.contains(&token);
        self.phase = if self.stop_ids.contains(&token) {
            Phase::Finished(EndReason::Completed(Finish::Stop))
        } else if self.generated() >= self.max_tokens {
            Phase::Finished(EndReason::Completed(Finish::Length))
        } else {
            Phase::Decoding
        };
    }
}
