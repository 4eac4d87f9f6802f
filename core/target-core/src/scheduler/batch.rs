//! Which prompts a step reads, and how much of them.
//!
//! All chunks of a step together take at most about 250 ms by the measured cost of rows (`prices`),
//! half of that while others decode: a step, and with it a cancellation, is never long, and a
//! stream's tokens come with bounded gaps. Inside that the shortest rest comes first, so that a
//! short prompt does not wait for a long one to be read; one that got no row in `PATIENCE` steps
//! comes before all that did not wait so long. So nobody starves: a prompt is read on at the latest
//! `PATIENCE` steps, and as many as there are prompts that wait as long, after it was last. A
//! prompt that waits for what another one reads (`prefix_waits`) is left out meanwhile; the other one
//! counts as no longer than what they have in common.
//!
//! The first chunk of a process, of which no step time is known, has one row, and the next ones
//! grow by what was measured and at most fourfold: the supervisor takes a step for hung that is
//! longer than `hang_s` and ten times the p99 of its phase.
//!
//! A prompt is read up to the first picture whose features are not there yet. Where the rows of a
//! picture see one another no chunk ends inside one: a picture that is longer than a chunk makes a
//! chunk of its own length then.

use super::{Scheduler, Step, StepPart};
use crate::image::uncut;
use crate::{Phase, Sequence, SequenceKey};

/// A step with prompt rows should not take longer, and not where others wait for their next token.
pub(super) const CHUNK_US: f64 = 250_000.0;
pub(super) const BESIDE_US: f64 = 125_000.0;
/// Bounds of a chunk's rows, once the price of a row is known. Before that chunks are smaller:
/// [`super::price`].
const MIN_CHUNK: usize = 32;
const MAX_CHUNK: usize = 1024;
/// Steps without a row after which a prompt is not passed over any more.
const PATIENCE: u32 = 4;

impl Scheduler {
    /// Adds prompt rows to a step; `decodes`: beside sequences that decode.
    pub(super) fn fill(&mut self, decodes: bool, step: &mut Step) {
        let mut reading: Vec<(bool, usize, SequenceKey)> = self
            .sequences
            .iter()
            .filter(|(key, one)| {
                self.is_reading(**key, one) && self.prefill_limit(one) > one.committed
            })
            .map(|(key, one)| match one.passed >= PATIENCE {
                true => (false, 0, *key),
                false => (true, self.soonest(*key, one), *key),
            })
            .collect();
        reading.sort_unstable();
        let (mut left_us, mut read) = (if decodes { BESIDE_US } else { CHUNK_US }, 0);
        for (_, _, key) in reading {
            let Some(sequence) = self.sequences.get(&key) else { continue };
            let rows = match self.prefix_waits.contains_key(&key) {
                true => 0,
                false => {
                    self.chunk(sequence, self.rows_in(left_us, sequence.committed, read), read == 0)
                }
            };
            let Some(sequence) = self.sequences.get_mut(&key) else { continue };
            if rows == 0 {
                sequence.passed += 1;
                step.passed.push((key, sequence.passed));
                continue;
            }
            sequence.passed = 0;
            (left_us, read) = (left_us - self.price.us(sequence.committed, rows), read + rows);
            let (start, chooses) = (sequence.committed, rows == sequence.pending_rows());
            step.parts.push(StepPart { key, start, rows, chooses, prefill: true, drafted: 0 });
        }
    }

    /// Rows of a prompt from `start` on for which there are so many microseconds in a step that
    /// reads `read` rows already.
    fn rows_in(&self, us: f64, start: usize, read: usize) -> usize {
        let fits = self.price.rows(start, us.max(0.0)).unwrap_or(0);
        // The first of a step are never none.
        fits.clamp(
            self.price.least_rows(MIN_CHUNK).saturating_sub(read),
            MAX_CHUNK.saturating_sub(read),
        )
    }

    /// Whether a sequence reads its prompt, or could.
    pub(super) fn is_reading(&self, key: SequenceKey, one: &Sequence) -> bool {
        matches!(one.phase, Phase::Waiting | Phase::Prefilling) && self.ledger.holds(key)
    }

    /// Place up to which a sequence's rows can be read: the first picture that no features are
    /// there for, or all of it.
    pub(super) fn prefill_limit(&self, one: &Sequence) -> usize {
        let unseen = one.unread_images().find(|(_, image)| !self.tower.has(&image.key));
        // One of which the first rows are read already has been seen once, and is needed again for
        // the others.
        unseen.map_or(one.ids.len(), |(_, image)| image.first.max(one.committed))
    }

    /// Rows of a prompt that fit where `left` do; `alone`: it is the first prompt of its step.
    fn chunk(&self, one: &Sequence, left: usize, alone: bool) -> usize {
        let (start, ready) = (one.committed, self.prefill_limit(one) - one.committed);
        // Multiples of 32 keep the number of different shapes small; while chunks grow to that size
        // they have any.
        let grows = left < MIN_CHUNK && self.price.least_rows(MIN_CHUNK) < MIN_CHUNK;
        let rows =
            if ready <= left || grows { ready.min(left) } else { left / MIN_CHUNK * MIN_CHUNK };
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

    /// Rows until somebody has what he waits for: the prompt's own first token, or one that follows
    /// it.
    fn soonest(&self, key: SequenceKey, one: &Sequence) -> usize {
        let awaited = self
            .prefix_waits
            .values()
            .filter(|follows| follows.leader == key)
            .map(|follows| follows.rows);
        awaited.map(|rows| rows.saturating_sub(one.committed)).fold(one.pending_rows(), usize::min)
    }

    /// A step took so long: what a prompt row costs.
    pub(super) fn measure(&mut self, parts: &[StepPart], took_us: u64) {
        self.price.measure(parts, took_us as f64);
    }
}
