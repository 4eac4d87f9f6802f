//! One generation's life: Waiting → Prefilling → Decoding → Finished.

use paceline_process::Millis;

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
    /// When it must be over.
    pub deadline: Option<Millis>,
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
    Finished(Ended),
}

/// Why nothing more will be chosen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
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
#[derive(Clone, Debug)]
pub struct Sequence {
    /// Prompt, continuation, chosen tokens.
    pub ids: Vec<u32>,
    /// How many of `ids` are prompt.
    pub prompt_len: usize,
    /// Rows in the KV store.
    pub committed: usize,
    /// Where it stands.
    pub phase: Phase,
    max_tokens: u32,
    stop_ids: Vec<u32>,
    deadline: Option<Millis>,
}

impl Sequence {
    /// A sequence that waits for its first step.
    pub fn new(request: Request) -> Self {
        let Request { mut prompt, continuation, max_tokens, stop_ids, deadline } = request;
        let prompt_len = prompt.len();
        prompt.extend(continuation);
        Self { ids: prompt, prompt_len, committed: 0, phase: Phase::Waiting, max_tokens, stop_ids, deadline }
    }

    /// Rows not in the KV store yet; 1 while decoding.
    pub fn pending_rows(&self) -> usize {
        self.ids.len() - self.committed
    }

    /// Tokens behind the prompt.
    pub fn generated(&self) -> u32 {
        (self.ids.len() - self.prompt_len) as u32
    }

    /// Whether its deadline has passed.
    pub fn is_late(&self, now: Millis) -> bool {
        self.deadline.is_some_and(|deadline| now >= deadline)
    }

    /// `rows` more rows are in the store.
    pub fn commit(&mut self, rows: usize) {
        self.committed += rows;
        if !matches!(self.phase, Phase::Finished(_)) {
            self.phase = if self.pending_rows() <= 1 && self.generated() > 0 { Phase::Decoding } else { Phase::Prefilling };
        }
    }

    /// The target chose `token`.
    pub fn push(&mut self, token: u32) {
        self.ids.push(token);
        self.phase = if self.stop_ids.contains(&token) {
            Phase::Finished(Ended::Well(Finish::Stop))
        } else if self.generated() >= self.max_tokens {
            Phase::Finished(Ended::Well(Finish::Length))
        } else {
            Phase::Decoding
        };
    }
}
