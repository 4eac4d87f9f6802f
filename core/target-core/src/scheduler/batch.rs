//! Which prompts a step prefills, and how many rows of each.
//!
//! The algorithm: the prompt with the fewest rows to its next result goes first, so that a short
//! prompt does not wait for a long one. A prompt that got no row in [`MAX_SKIPPED_STEPS`] steps
//! goes before all others, so no prompt starves. All chunks of a step together take at most
//! `target.prompt_chunk_ms` (250) by the measured cost of rows (`prices`), and half of that beside
//! decoding sequences. So a step,
//! and with it a cancellation, is short, and the gaps between a stream's tokens are bounded.
//!
//! A prompt that waits for the rows of another one (`prefix_waits`) is left out. The other one
//! counts as no longer than the rows that both share.
//!
//! The first chunk of a process has one row, because no step time is known. The next ones grow at
//! most fourfold by what was measured: the supervisor treats a step as hung that is longer than
//! `hang_s` and ten times the p99 of its phase.
//!
//! If states of recurrent layers are kept for the prefix cache, a chunk ends at each of their places
//! ([`crate::SnapshotPlaces`]): a state is that of the last row alone.
//!
//! A prompt is prefilled up to the first image without features. If the rows of an image attend to
//! one another, no chunk ends inside an image: an image that is longer than a chunk makes a chunk
//! of its own length.

use super::{Scheduler, Step, StepPart};
use crate::image::uncut;
use crate::{Phase, Sequence, SequenceKey};

/// Longest time of the prompt rows of a step, in microseconds, unless an operator sets another one.
/// A cancellation is noticed within it.
pub(super) const CHUNK_US: f64 = 250_000.0;
/// Share of that time beside decoding sequences, whose next token waits for the step.
const SHARE_BESIDE: f64 = 0.5;
/// Least rows of a chunk once the cost of a row is known; chunks are multiples of it, so that few
/// different shapes occur. Before that chunks are smaller: [`super::prices`].
const MIN_CHUNK: usize = 32;
/// Most rows of a chunk, which bounds the memory of a step.
const MAX_CHUNK: usize = 1024;
/// Steps without a row after which a prompt goes before all others.
const MAX_SKIPPED_STEPS: u32 = 4;

/// Place of a prompt in the order of a step. The derived order compares the fields from the top.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PromptOrder {
    /// Skipped prompts go first, oldest first.
    was_not_skipped: bool,
    rows_to_result: usize,
    key: SequenceKey,
}

impl Scheduler {
    /// Longest time of the prompt rows of a step. `decodes`: sequences decode beside them.
    pub(super) fn longest_chunk_us(&self, decodes: bool) -> f64 {
        self.chunk_us * if decodes { SHARE_BESIDE } else { 1.0 }
    }

    /// Adds prompt rows to a step. `decodes`: sequences decode in this step.
    pub(super) fn add_prompts(&mut self, decodes: bool, step: &mut Step) {
        let mut order: Vec<PromptOrder> = self
            .sequences
            .iter()
            .filter(|(key, one)| {
                self.is_prefilling(**key, one) && self.prefill_limit(one) > one.committed
            })
            .map(|(key, one)| match one.skipped_steps >= MAX_SKIPPED_STEPS {
                true => PromptOrder { was_not_skipped: false, rows_to_result: 0, key: *key },
                false => PromptOrder {
                    was_not_skipped: true,
                    rows_to_result: self.rows_to_result(*key, one),
                    key: *key,
                },
            })
            .collect();
        order.sort_unstable();
        let (mut left_us, mut added) = (self.longest_chunk_us(decodes), 0);
        for PromptOrder { key, .. } in order {
            let Some(sequence) = self.sequences.get(&key) else { continue };
            let rows = match self.prefix_waits.contains_key(&key) {
                true => 0,
                false => {
                    let left = self.rows_in(left_us, sequence.committed, added);
                    self.chunk(sequence, left, added == 0)
                }
            };
            let Some(sequence) = self.sequences.get_mut(&key) else { continue };
            if rows == 0 {
                sequence.skipped_steps += 1;
                step.skipped.push((key, sequence.skipped_steps));
                continue;
            }
            sequence.skipped_steps = 0;
            left_us -= self.price.us(sequence.committed, rows);
            added += rows;
            let (start, chooses) = (sequence.committed, rows == sequence.pending_rows());
            step.parts.push(StepPart { key, start, rows, chooses, prefill: true, drafted: 0 });
        }
    }

    /// Rows of a prompt from `start` on that take `us` microseconds, in a step with `added` prompt
    /// rows so far.
    fn rows_in(&self, us: f64, start: usize, added: usize) -> usize {
        let fits = self.price.rows(start, us.max(0.0)).unwrap_or(0);
        // The first prompt of a step always gets rows.
        fits.clamp(
            self.price.least_rows(MIN_CHUNK).saturating_sub(added),
            MAX_CHUNK.saturating_sub(added),
        )
    }

    /// Whether a sequence prefills, or could.
    pub(super) fn is_prefilling(&self, key: SequenceKey, one: &Sequence) -> bool {
        matches!(one.phase, Phase::Waiting | Phase::Prefilling) && self.ledger.holds(key)
    }

    /// Place up to which a sequence can be prefilled: the first image without features, or the end.
    pub(super) fn prefill_limit(&self, one: &Sequence) -> usize {
        let missing = one.unread_images().find(|(_, image)| !self.tower.has(&image.key));
        // If a part of an image is prefilled already, its features were there once and are needed
        // again for the rest.
        missing.map_or(one.ids.len(), |(_, image)| image.first.max(one.committed))
    }

    /// Rows of a prompt for which `left` rows are left. `alone`: it is the first prompt of its
    /// step.
    fn chunk(&self, one: &Sequence, left: usize, alone: bool) -> usize {
        let (start, ready) = (one.committed, self.prefill_limit(one) - one.committed);
        let left = left.min(self.most_rows);
        // While chunks grow to the least size they need not be multiples of it.
        let grows = left < MIN_CHUNK && self.price.least_rows(MIN_CHUNK) < MIN_CHUNK;
        let rows =
            if ready <= left || grows { ready.min(left) } else { left / MIN_CHUNK * MIN_CHUNK };
        let to_snapshot = one.snapshots.map_or(usize::MAX, |places| places.next(start) - start);
        let rows = rows.min(to_snapshot);
        if !self.tower.info().whole {
            return rows;
        }
        match uncut(&one.images, start + rows) - start {
            0 if rows > 0 && alone => {
                one.unread_images().next().map_or(rows, |(_, image)| image.end() - start)
            }
            whole => whole,
        }
    }

    /// Rows until the prompt's own first token, or until another prompt gets the rows that it waits
    /// for.
    fn rows_to_result(&self, key: SequenceKey, one: &Sequence) -> usize {
        let awaited =
            self.prefix_waits.values().filter(|wait| wait.leader == key).map(|wait| wait.rows);
        awaited.map(|rows| rows.saturating_sub(one.committed)).fold(one.pending_rows(), usize::min)
    }

    /// A step took `took_us`: measures the cost of prompt rows.
    pub(super) fn measure(&mut self, parts: &[StepPart], took_us: u64) {
        self.price.measure(parts, took_us as f64);
    }
}
