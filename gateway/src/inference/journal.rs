//! The journal of a request: what is needed to submit the request again when the stream below it
//! breaks. It has the request as it was submitted, and each sample keeps the ids that it has sent.
//!
//! A random number of the target depends on the seed, the sample and the position alone. A request
//! that is submitted again with its ids as a continuation therefore goes on with the tokens that it
//! would have had (I1).
//!
//! All journals together have a bound ([`MAX_BYTES`]). A request whose journal finds no room runs
//! without one: if its stream breaks, it ends with REPLAY_LOST.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use paceline_protocols::inference::error::{InferenceError, Result};
use paceline_vocabulary::Reason;
use paceline_vocabulary::generation::{Generation, TextForm};

use super::labels::resumed_id;
use crate::images::StoredImages;

/// Bytes of all journals: 16 million ids.
const MAX_BYTES: u64 = 64 << 20;
/// Bytes of a token id.
const ID_BYTES: u64 = size_of::<u32>() as u64;

/// The bytes of all journals.
#[derive(Debug)]
pub struct JournalSpace {
    held: AtomicU64,
    most: u64,
}

impl Default for JournalSpace {
    fn default() -> Self {
        Self::new(MAX_BYTES)
    }
}

impl JournalSpace {
    /// Space for this number of bytes.
    pub fn new(most: u64) -> Self {
        Self { held: AtomicU64::new(0), most }
    }

    fn take(&self, bytes: u64) -> bool {
        let more = |held: u64| held.checked_add(bytes).filter(|sum| *sum <= self.most);
        self.held.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }
}

/// Bytes of one journal. They are given back when this is dropped.
#[derive(Debug)]
struct Hold {
    space: Arc<JournalSpace>,
    bytes: u64,
}

impl Hold {
    fn new(space: &Arc<JournalSpace>, bytes: u64) -> Option<Self> {
        space.take(bytes).then(|| Self { space: Arc::clone(space), bytes })
    }

    fn grow(&mut self, bytes: u64) -> bool {
        let grows = self.space.take(bytes);
        self.bytes += if grows { bytes } else { 0 };
        grows
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        self.space.held.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The journal of one request.
#[derive(Debug)]
pub struct Journal {
    /// The request without its continuation. `None` once it was submitted for the only sample of a
    /// request without room.
    generation: Option<Generation>,
    /// `None`: the journal found no room.
    hold: Option<Hold>,
    samples: usize,
}

impl Journal {
    /// The journal of a request with this number of samples.
    pub fn new(space: &Arc<JournalSpace>, generation: Generation, samples: usize) -> Self {
        let hold = Hold::new(space, bytes_of(&generation));
        Self { generation: Some(generation), hold, samples }
    }

    /// Whether a sample can be submitted again.
    pub(super) fn is_complete(&self) -> bool {
        self.hold.is_some()
    }

    /// Notes ids that a sample sends. False: there is no room for them, and the journal is dropped.
    pub fn record(&mut self, sent: &mut Vec<u32>, ids: &[u32]) -> bool {
        let Some(hold) = &mut self.hold else { return false };
        if !hold.grow(ids.len() as u64 * ID_BYTES) {
            tracing::info!("no room for the request's journal; it cannot be resumed");
            self.hold = None;
            return false;
        }
        sent.extend_from_slice(ids);
        true
    }

    /// The message that is submitted for sample `at`, which has `sent` these ids. `resumed` counts
    /// its earlier submissions that began to run.
    ///
    /// # Errors
    /// The files of the images cannot be linked.
    pub(super) fn submission(
        &mut self,
        at: usize,
        sent: &[u32],
        resumed: u32,
        images: Option<&mut StoredImages>,
    ) -> Result<Generation> {
        let gone = || InferenceError::bug("the only sample of a request was submitted twice");
        if self.samples == 1 && self.hold.is_none() {
            return self.generation.take().ok_or_else(gone);
        }
        let whole = self.generation.as_ref().ok_or_else(gone)?;
        let mut generation = Generation {
            // Upstream an id is the id of one sequence.
            request_id: resumed_id(&whole.request_id, (self.samples > 1).then_some(at), resumed),
            sample_index: u32::try_from(at).unwrap_or(u32::MAX),
            continuation_ids: sent.to_vec(),
            ..whole.clone()
        };
        // The reader of an image removes its file.
        if let Some(images) = images {
            generation.images = images.link_again()?;
        }
        Ok(generation)
    }
}

/// The end of a request that cannot be submitted again.
pub(super) fn replay_lost() -> InferenceError {
    let message = "a process of the service ended while it worked on the request, and the request is too \
                   long to be kept for another try beside the others; try again";
    InferenceError::new(Reason::ReplayLost, message)
}

/// Bytes of a request, without the fields of constant size.
fn bytes_of(generation: &Generation) -> u64 {
    let ids = generation.prompt_ids.len()
        + generation.stop_token_ids.len()
        + generation.ignored_token_ids.len()
        + 2 * generation.logit_bias.len();
    let grammar = generation.grammar.as_ref().map_or(0, |grammar| {
        let parts = grammar.parts.iter().map(|part| match &part.content {
            TextForm::JsonSchema(text) | TextForm::Regex(text) | TextForm::Lark(text) => text.len(),
            TextForm::JsonObject => 0,
        });
        grammar.frame.len() + parts.sum::<usize>()
    });
    ids as u64 * ID_BYTES + grammar as u64 + size_of::<Generation>() as u64
}

#[cfg(test)]
mod tests {
    use paceline_system::clock::monotonic_ns;

    use super::*;

    fn journal(space: &Arc<JournalSpace>, prompt: usize) -> Journal {
        let generation = Generation {
            request_id: "r".into(),
            prompt_ids: vec![7; prompt],
            ..Generation::default()
        };
        Journal::new(space, generation, 1)
    }

    fn held(space: &JournalSpace) -> u64 {
        space.held.load(Ordering::Relaxed)
    }

    #[test]
    fn a_request_is_submitted_again_with_the_ids_that_it_sent() {
        let space = Arc::new(JournalSpace::default());
        let mut journal = journal(&space, 3);
        let first = journal.submission(0, &[], 0, None).expect("there");
        assert_eq!((first.request_id.as_str(), first.continuation_ids), ("r", vec![]));
        let mut sent = vec![];
        assert!(journal.record(&mut sent, &[1, 2]) && journal.record(&mut sent, &[3]));
        let again = journal.submission(0, &sent, 1, None).expect("kept");
        assert_eq!((again.request_id.as_str(), again.continuation_ids), ("r-r1", vec![1, 2, 3]));
        assert_eq!(again.prompt_ids, [7; 3]);
        let empty = bytes_of(&Generation::default());
        assert_eq!(held(&space), empty + 6 * ID_BYTES);
        drop(journal);
        assert_eq!(held(&space), 0);
    }

    #[test]
    fn a_journal_without_room_is_dropped_and_its_request_runs_on() {
        let empty = bytes_of(&Generation::default());
        let space = Arc::new(JournalSpace::new(2 * empty + 8 * ID_BYTES));
        let mut grows = journal(&space, 2);
        let mut sent = vec![];
        assert!(grows.record(&mut sent, &[1; 4]));
        let mut none = journal(&space, 3);
        assert!(grows.is_complete() && !none.is_complete());
        assert!(none.submission(0, &[], 0, None).is_ok(), "its only submission");
        assert_eq!(none.submission(0, &[], 1, None).expect_err("gone").kind, Reason::Bug);
        // The next id but one would be over the bound.
        let other = journal(&space, 1);
        assert!(other.is_complete() && grows.record(&mut sent, &[2]));
        assert!(!grows.record(&mut sent, &[3]) && !grows.is_complete());
        assert_eq!(sent, [1, 1, 1, 1, 2]);
        drop((grows, none, other));
        assert_eq!(held(&space), 0, "dropped journals hold nothing");
    }

    #[test]
    fn a_token_costs_less_than_two_microseconds() {
        const TOKENS: u64 = 500_000;
        let space = Arc::new(JournalSpace::default());
        let (mut journal, mut sent) = (journal(&space, 3), vec![]);
        let begun = monotonic_ns();
        for id in 0..TOKENS {
            assert!(journal.record(&mut sent, &[id as u32]));
        }
        // About 20 ns. The goal is a loose bound for a busy machine.
        let each = (monotonic_ns() - begun) as u64 / TOKENS;
        assert!(each < 2_000, "{each} ns for each token");
    }
}
