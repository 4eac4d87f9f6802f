//! Drafters of one layer that reads, for each position, the token after it and a hidden state. Each
//! draft is one forward of one row. What EAGLE-3 and heads of Qwen3.5 and GLM-OCR share, whatever their
//! layer is: rows to read → layer → output → draft → next row. R rows.
//!
//! ```text
//!  row            token               hidden state                    afterwards
//!  of position i  that of i + 1       the target's, of position i     stays in the store
//!  of a draft     the draft           the layer's own, of the row     dropped after the block
//!                                     before
//! ```
//!
//! The first draft comes from the row of the last context position. Its token is the bonus token. If
//! that row was read in an earlier call without a block, the drafter has kept the row's input and
//! computes it once more.

#[cfg(target_os = "linux")]
use std::sync::Arc;

use mlx_rs::Array;
use mlx_rs::ops::concatenate;

use super::chain::{ChainRows, Chains};
use super::context_rows::{commit_context, lengths};
use super::last_rows::LastRows;
use super::vocabulary::RowsById;
use super::{DraftBatch, DraftFacts, Drafter, Proposal};
#[cfg(target_os = "linux")]
use crate::batch::{Batch, Wants};
use crate::error::{ModelError, Result};
#[cfg(target_os = "linux")]
use crate::families::{HostForward, Pass};
use crate::kv::KvStore;
#[cfg(target_os = "linux")]
use crate::layers::Program;
use crate::layers::{Positions, Rope, RopeTables};
use crate::segment::{QuerySegments, Segment};
#[cfg(target_os = "linux")]
use crate::transfer::in_order;
use crate::vision;

/// Most rows of a pass by a program, in which all rows attend. More rows are the context of a prompt,
/// of which the last one alone does.
#[cfg(target_os = "linux")]
const PASS_ROWS: usize = 32;

/// What the rows of a program are given beside their tokens.
#[cfg(target_os = "linux")]
#[derive(Clone, Copy, Debug)]
pub(super) enum Given {
    /// Hidden states of the target.
    TargetStates,
    /// Hidden rows of the layer itself.
    OwnRows,
}

/// The arithmetic of such a drafter. One set of weights, which remembers no session.
pub(super) trait NextTokenModel {
    /// Facts of the drafter. Ids below its vocabulary have an embedding, and no others are proposed.
    fn facts(&self) -> &DraftFacts;

    /// How the heads of its layer rotate.
    fn rope(&self) -> &Rope;

    /// Hidden states of the target `[R, feature layers · hidden]` → what a context row reads of
    /// them `[R, hidden]`.
    fn features(&self, states: &Array) -> Result<Array>;

    /// Embeddings of `ids` `[R]` → `[R, hidden]`.
    fn embed(&self, ids: &Array) -> Result<Array>;

    /// The ids of which [`Self::scores`] has logits; `None`: all.
    fn proposed(&self) -> Option<&RowsById> {
        None
    }

    /// Everything up to the scores as functions of the processor; `None`: as MLX's graph alone. Rows
    /// of position 0 read their tokens.
    #[cfg(target_os = "linux")]
    fn program(&self, _given: Given) -> Option<&Arc<Program>> {
        None
    }

    /// Whether a row of position 0 reads its token. Otherwise it reads zeros in place of the
    /// embedding.
    fn reads_at_0(&self) -> bool {
        true
    }

    /// `embeddings` and `hidden` `[R, hidden]` → the layer's output `[queries, hidden]`, `None`
    /// without queries.
    fn layer(
        &self,
        embeddings: &Array,
        hidden: &Array,
        rows: &QuerySegments,
        rope: &RopeTables,
        kv: &mut KvStore,
    ) -> Result<Option<Array>>;

    /// Scores from the layer's output `[R, hidden]`.
    fn scores(&self, output: &Array) -> Result<Scores>;
}

/// Logits and hidden rows computed from outputs of the layer.
pub(super) struct Scores {
    /// Logits of the token after the one that was read `[R, ids]`, float32.
    pub(super) logits: Array,
    /// Input of the next row `[R, hidden]`.
    pub(super) hidden: Array,
}

/// Scores, where they were computed.
enum Scored {
    Graph(Scores),
    #[cfg(target_os = "linux")]
    Host(HostForward),
}

impl Scored {
    fn choose(&self, chains: &mut Chains<'_>) -> Result<Option<ChainRows>> {
        match self {
            Self::Graph(scores) => chains.choose(&scores.logits),
            #[cfg(target_os = "linux")]
            Self::Host(made) => chains.choose_on_host(&made.logits),
        }
    }
}

/// A row to read.
#[derive(Clone, Copy)]
struct ContextRow {
    /// The token after the position.
    next_id: u32,
    position: i32,
    /// Index of its row among the hidden states.
    source: i32,
    /// Index of its part.
    part: usize,
}

/// The rows of one forward over the context.
#[derive(Default)]
struct ContextRows {
    places: QuerySegments,
    /// Rows that only write, in the order of the segments.
    written: Vec<ContextRow>,
    /// One for each block that begins.
    queries: Vec<ContextRow>,
    /// Hidden states of rows that are read again; they follow those of the batch.
    again: Vec<Array>,
    /// For each part, whether a draft can be made.
    begins: Vec<bool>,
}

impl ContextRows {
    /// Of each part its context, and of a block without context the last row of its session again,
    /// if it is among `kept`.
    fn new(batch: &DraftBatch, starts: &[i32], kept: &LastRows) -> Result<Self> {
        let mut made = Self::default();
        let mut from = 0;
        for (at, (part, start)) in batch.parts.iter().zip(starts).enumerate() {
            let next_id = part.block.map(|block| block.bonus_id).or(part.next_id);
            let missing = || {
                let what = "expected the token after the context, with which its last position is \
                            read; found none";
                ModelError::Batch(what.into())
            };
            let next_id = next_id.ok_or_else(missing)?;
            let queries = i32::from(part.block.is_some());
            let to = from + part.context;
            let last = kept.of(part.sequence, *start);
            let segment =
                |start, length| Segment { sequence: part.sequence, start, length, drafted: 0 };
            if part.context > 0 {
                made.places.segments.push(segment(*start, part.context));
                let row = |source: i32| ContextRow {
                    next_id: if source + 1 < to { batch.ids[source as usize + 1] } else { next_id },
                    position: part.position + source - from,
                    source,
                    part: at,
                };
                made.written.extend((from..to - queries).map(row));
                made.queries.extend((to - queries..to).map(row));
            } else if let Some(last) = last {
                made.places.segments.push(segment(start - 1, 1));
                let source = batch.ids.len() as i32 + made.again.len() as i32;
                let position = part.position - 1;
                made.queries.push(ContextRow { next_id, position, source, part: at });
                made.again.push(last);
            } else {
                made.begins.push(false);
                continue;
            }
            made.places.queries.push(queries);
            made.begins.push(queries == 1);
            from = to;
        }
        Ok(made)
    }

    /// All rows in the order of the forward.
    fn rows(&self) -> impl Iterator<Item = &ContextRow> {
        self.written.iter().chain(&self.queries)
    }

    /// The rows part by part.
    #[cfg(target_os = "linux")]
    fn by_part(&self) -> Vec<ContextRow> {
        let mut rows: Vec<ContextRow> = self.rows().copied().collect();
        rows.sort_by_key(|row| row.part);
        rows
    }

    /// The hidden states of these rows `[R, features]`, from those of the batch.
    fn hidden(
        &self,
        rows: impl Iterator<Item = ContextRow>,
        states: Option<&Array>,
    ) -> Result<Array> {
        let all: Vec<&Array> = states.into_iter().chain(&self.again).collect();
        let all = match all.as_slice() {
            [one] => (*one).clone(),
            several => concatenate(several, 0)?,
        };
        let order: Vec<i32> = rows.map(|row| row.source).collect();
        if order.iter().copied().eq(0..all.dim(0)) {
            return Ok(all);
        }
        Ok(all.take_axis(Array::from_slice(&order, &[order.len() as i32]), 0)?)
    }
}

/// Positions of rows, each of a part (its index) at an absolute position. Heads that rotate by three
/// positions rotate by those that the target gives to the rows of images and to the text after them.
/// Other heads count rows, whatever is in the rows.
fn row_positions(
    batch: &DraftBatch,
    rows: impl Iterator<Item = (usize, i32)>,
    on_three_axes: bool,
) -> Positions {
    if batch.images.is_empty() || !on_three_axes {
        return Positions::One(rows.map(|(_, position)| position).collect());
    }
    let mut axes = vec![vec![]; 3];
    for (part, position) in rows {
        let images = batch.images_of(batch.parts[part].sequence);
        vision::positions(images, position, 1, &mut axes);
    }
    Positions::Axes(axes)
}

/// A loaded drafter of this form.
pub(super) struct NextToken<M> {
    model: M,
    last_rows: LastRows,
}

impl<M: NextTokenModel> NextToken<M> {
    pub(super) fn new(model: M) -> Self {
        Self { model, last_rows: LastRows::default() }
    }

    fn vocab(&self) -> u32 {
        self.info().vocab.unwrap_or(0) as u32
    }

    /// The rotations of rows, each of a part (its index) at an absolute position.
    fn rotations(
        &self,
        batch: &DraftBatch,
        rows: impl Iterator<Item = (usize, i32)>,
    ) -> Result<RopeTables> {
        let rope = self.model.rope();
        rope.tables(&row_positions(batch, rows, rope.has_three_axes()), self.dtype())
    }

    /// A target may have padding ids that have no embedding here.
    fn known(&self, id: u32) -> u32 {
        if id < self.vocab() { id } else { 0 }
    }

    /// The program for this number of rows, where there is one.
    #[cfg(target_os = "linux")]
    fn program(&self, given: Given, rows: usize, kv: &KvStore) -> Option<&Arc<Program>> {
        self.model.program(given).filter(|_| rows <= PASS_ROWS && kv.takes_passes())
    }

    /// Runs a program: the scores of the last row of each segment, as far as `queries` has 1 for it;
    /// `None` without any. `given`: numbers for each row.
    #[cfg(target_os = "linux")]
    fn pass(
        &self,
        program: &Arc<Program>,
        batch: &Batch,
        queries: &[i32],
        given: &[f32],
        kv: &mut KvStore,
    ) -> Result<Option<Scored>> {
        let ends = batch.segments.iter().scan(0, |end, segment| {
            *end += segment.length;
            Some(*end)
        });
        let wanted = ends.zip(queries).filter(|(_, count)| **count > 0);
        let wanted: Vec<i32> = wanted.map(|(end, _)| end - 1).collect();
        let wants = Wants { logit_rows: wanted.clone(), hidden_states: None, final_hidden: wanted };
        let pass = Pass {
            program,
            batch,
            wants: &wants,
            rotations: vec![self.model.rope().numbers(&batch.positions)?],
            embedded: None,
            additions: vec![],
            images: vec![],
        };
        let made = pass.compute(given, kv)?;
        Ok((!made.logits.is_empty()).then_some(Scored::Host(made)))
    }

    /// Reads the context: the scores of the last row of each block that begins; `None` without such
    /// blocks.
    fn read(
        &self,
        context: &ContextRows,
        batch: &DraftBatch,
        kv: &mut KvStore,
    ) -> Result<Option<Scored>> {
        if context.places.segments.is_empty() {
            return Ok(None);
        }
        // A row that is read again is written again.
        for segment in &context.places.segments {
            kv.commit(segment.sequence, segment.start)?;
        }
        let (model, dtype, states) = (&self.model, self.dtype(), batch.hidden_states.as_ref());
        #[cfg(target_os = "linux")]
        if let Some(program) = self.program(Given::TargetStates, context.rows().count(), kv) {
            let rows = context.by_part();
            let given = context.hidden(rows.iter().copied(), states)?;
            let places = rows.iter().map(|row| (row.part, row.position));
            let rows = Batch {
                ids: rows.iter().map(|row| self.known(row.next_id)).collect(),
                pending: None,
                overrides: vec![],
                segments: context.places.segments.clone(),
                positions: row_positions(batch, places, model.rope().has_three_axes()),
            };
            let given = given.as_dtype(dtype)?;
            return self.pass(program, &rows, &context.places.queries, &in_order(&given)?, kv);
        }
        let states = context.hidden(context.rows().copied(), states)?;
        let hidden = model.features(&states.as_dtype(dtype)?)?;
        let ids: Vec<u32> = context.rows().map(|row| self.known(row.next_id)).collect();
        let rope = self.rotations(batch, context.rows().map(|row| (row.part, row.position)))?;
        let embeddings = model.embed(&Array::from_slice(&ids, &[ids.len() as i32]))?;
        let mut embeddings = embeddings.as_dtype(dtype)?;
        if !model.reads_at_0() && context.rows().any(|row| row.position == 0) {
            let reads: Vec<f32> =
                context.rows().map(|row| f32::from(u8::from(row.position != 0))).collect();
            let reads = Array::from_slice(&reads, &[reads.len() as i32, 1]).as_dtype(dtype)?;
            embeddings = embeddings.multiply(reads)?;
        }
        let output = model.layer(&embeddings, &hidden, &context.places, &rope, kv)?;
        output.map(|output| model.scores(&output).map(Scored::Graph)).transpose()
    }

    /// Reads the newest draft of the blocks that go on, each with the hidden row of `before`, from
    /// which the draft was chosen: their scores.
    fn step(
        &self,
        next: &ChainRows,
        before: Scored,
        batch: &DraftBatch,
        starts: &[i32],
        kv: &mut KvStore,
    ) -> Result<Scored> {
        let (mut positions, mut places) = (vec![], QuerySegments::default());
        for at in &next.parts {
            let part = &batch.parts[*at];
            // The first draft's row follows that of the last context position.
            let after = part.context + next.drafts - 1;
            let start = starts[*at] + after;
            kv.commit(part.sequence, start)?;
            positions.push((*at, part.position + after));
            places.segments.push(Segment { sequence: part.sequence, start, length: 1, drafted: 0 });
            places.queries.push(1);
        }
        let none = || ModelError::Batch("expected rows that are queries".into());
        let hidden = match before {
            Scored::Graph(scores) => next.take(&scores.hidden)?,
            #[cfg(target_os = "linux")]
            Scored::Host(made) => {
                let width = made.final_hidden.len() / made.rows.max(1);
                let row = |row: &i32| &made.final_hidden[*row as usize * width..][..width];
                let given = next.rows.iter().map(row).collect::<Vec<_>>().concat();
                if let Some(program) = self.program(Given::OwnRows, positions.len(), kv) {
                    let on_three_axes = self.model.rope().has_three_axes();
                    let rows = Batch {
                        ids: next.ids.on_host()?,
                        pending: None,
                        overrides: vec![],
                        segments: places.segments,
                        positions: row_positions(batch, positions.into_iter(), on_three_axes),
                    };
                    let scored = self.pass(program, &rows, &places.queries, &given, kv)?;
                    return scored.ok_or_else(none);
                }
                Array::from_slice(&given, &[next.rows.len() as i32, width as i32])
            }
        };
        let rope = self.rotations(batch, positions.into_iter())?;
        let embeddings = self.model.embed(&next.id_array())?.as_dtype(self.dtype())?;
        let output = self.model.layer(&embeddings, &hidden, &places, &rope, kv)?;
        self.model.scores(&output.ok_or_else(none)?).map(Scored::Graph)
    }

    fn draft(
        &self,
        batch: &DraftBatch,
        starts: &[i32],
        kv: &mut KvStore,
    ) -> Result<Option<Proposal>> {
        let context = ContextRows::new(batch, starts, &self.last_rows)?;
        let read = self.read(&context, batch, kv)?;
        let chains = Chains::new(&batch.parts, self.vocab(), |at| context.begins[at]);
        let mut chains = chains.among(self.model.proposed());
        if let Some(mut scored) = read {
            while let Some(next) = scored.choose(&mut chains)? {
                scored = self.step(&next, scored, batch, starts, kv)?;
            }
        }
        let any = batch.parts.iter().any(|part| part.block.is_some());
        if any { Ok(Some(Proposal::Tokens(chains.finish(&[])?))) } else { Ok(None) }
    }
}

impl<M: NextTokenModel> Drafter for NextToken<M> {
    fn facts(&self) -> &DraftFacts {
        self.model.facts()
    }

    fn propose(&self, batch: &DraftBatch, kv: &mut KvStore) -> Result<Option<Proposal>> {
        batch.check(self.info())?;
        let starts = lengths(&batch.parts, kv)?;
        let drafted = self.draft(batch, &starts, kv);
        commit_context(&batch.parts, &starts, &drafted, kv)?;
        let drafted = drafted?;
        self.last_rows.keep(batch, kv)?;
        Ok(drafted)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::draft::DraftPart;
    use crate::segment::SequenceId;
    use crate::vision::{ImageForm, ImagePlacement};

    fn batch() -> DraftBatch {
        let part = |sequence| DraftPart {
            sequence: SequenceId(sequence),
            position: 0,
            context: 12,
            next_id: None,
            block: None,
        };
        let image = ImagePlacement { first: 2, rows: 2, columns: 3, form: ImageForm::Grid };
        DraftBatch {
            parts: vec![part(7), part(8)],
            images: vec![(SequenceId(8), vec![image])],
            ..DraftBatch::default()
        }
    }

    #[test]
    fn heads_on_three_axes_turn_by_the_targets_positions() {
        let rows = || [(0, 9), (1, 1), (1, 6), (1, 8), (1, 9)].into_iter();
        let expected = [vec![9, 1, 2, 5, 6], vec![9, 1, 3, 5, 6], vec![9, 1, 3, 5, 6]];
        assert_eq!(row_positions(&batch(), rows(), true), Positions::Axes(expected.to_vec()));
        let counted = Positions::One(vec![9, 1, 6, 8, 9]);
        assert_eq!(row_positions(&batch(), rows(), false), counted, "heads on one axis count rows");
        let text = DraftBatch { images: vec![], ..batch() };
        assert_eq!(row_positions(&text, rows(), true), counted);
    }
}
