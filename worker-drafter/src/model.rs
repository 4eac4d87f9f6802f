//! The drafter's weights and the keys and values of its sessions. Steps of the core become
//! forwards, and bytes of the link become arrays.

use std::collections::HashMap;
use std::path::Path;

use paceline_drafter_core::{DraftBlock, PIECE_ROWS, SessionWork, Step, StoreCommand};
use paceline_models::sample::noise::NoiseKey;
use paceline_models::vision::{ImageForm, ImagePlacement};
use paceline_models::{
    Array, BlockRequest, DraftBatch, DraftInfo, DraftOptions, DraftPart, Drafter, Dtype,
    KeptStates, KvRows, KvStore, ModelError, Proposal, SequenceId, TokenDraft, device, load_draft,
    transfer,
};
use paceline_vocabulary::TensorType;
use paceline_vocabulary::link::{DraftShape, DraftTokens, ImageSpan};
use paceline_vocabulary::report::MemoryUse;

use crate::error::StartError;
use crate::proposer::{Proposed, Proposer};

/// Sessions of the forwards that warm a drafter up, and rows of context of all of them.
const WARM_SESSIONS: [i32; 2] = [1, 8];
const WARM_ROWS: i32 = 64;

/// A retained context.
struct RetainedRows {
    /// `None`: the drafter keeps no row of these positions.
    rows: Option<KvRows>,
    /// Images of its sequence.
    images: Vec<ImagePlacement>,
    /// Windows before its end, if layers keep these alone.
    end: Option<KeptStates>,
}

/// The drafter's model. Not `Send`: made on the thread that uses it (I8).
pub(crate) struct Model {
    draft: Box<dyn Drafter>,
    kv: KvStore,
    /// Images of the sessions that have some, by slot.
    images: HashMap<u64, Vec<ImagePlacement>>,
    /// Retained contexts, by the core's number.
    retained: HashMap<u64, RetainedRows>,
    /// Positions of each capacity class, ascending.
    capacities: Vec<i32>,
    element: TensorType,
}

impl Model {
    /// Loads the drafter in `dir`, of the configured kind; `target` is the directory of its target.
    /// `progress` is called with (bytes read, bytes in all).
    pub(crate) fn load(
        dir: &Path,
        kind: &str,
        target: Option<&Path>,
        options: DraftOptions,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, StartError> {
        let failed = |cause| StartError::Load { dir: dir.to_path_buf(), cause };
        let draft = load_draft(dir, kind, target, options, progress).map_err(failed)?;
        let element = element_of(draft.dtype())?;
        let kv = new_store(draft.as_ref()).map_err(StartError::WarmUp)?;
        let capacities = kv.class_bytes().into_iter().map(|(positions, _)| positions).collect();
        let (images, retained) = (HashMap::new(), HashMap::new());
        Ok(Self { draft, kv, images, retained, capacities, element })
    }

    pub(crate) fn info(&self) -> &DraftInfo {
        self.draft.info()
    }

    /// Element type of its hidden rows.
    pub(crate) fn element(&self) -> TensorType {
        self.element
    }

    /// Drafts for one session and for several, from zeros: a short block, then a whole one. The first
    /// forwards of a process are several times as slow as later ones: too slow for a target that
    /// waits. Calls `progress` after each block.
    ///
    /// # Errors
    /// MLX's own.
    pub(crate) fn warm_up(&mut self, progress: &mut dyn FnMut()) -> Result<(), ModelError> {
        let info = self.draft.info();
        let (hidden, features, reads_ids) = (info.hidden, info.feature_width(), info.token_ids);
        // A drafter that takes no embeddings drafts token by token: its third draft is no slower
        // than its second.
        let longest = if info.embeddings { info.block } else { info.block.min(3) };
        let width = self.element.bytes() as i32;
        for (sessions, block) in WARM_SESSIONS.into_iter().flat_map(|n| [(n, 2), (n, longest)]) {
            let info = self.draft.info();
            let context = (WARM_ROWS / sessions).min(info.context - info.block);
            if context < 1 {
                return Ok(());
            }
            let embedded = info.embedding_rows(block);
            let mut batch = DraftBatch::default();
            for session in 0..sessions {
                let sequence = SequenceId(session as u64);
                self.kv.open(sequence)?;
                let block = BlockRequest::greedy(block, 0);
                let next_id = block.as_ref().map(|block| block.bonus_id);
                batch.parts.push(DraftPart { sequence, position: 0, context, next_id, block });
            }
            let rows = |rows: i32, columns: i32| {
                array(&vec![0; (rows * columns * width) as usize], columns, self.element)
            };
            batch.hidden_states = rows(sessions * context, features)?;
            if reads_ids {
                batch.ids = vec![0; (sessions * context) as usize];
            }
            batch.embeddings = rows(sessions * embedded, hidden)?;
            if let Some(Proposal::Hidden(rows)) = self.draft.propose(&batch, &mut self.kv)? {
                transfer::to_bytes(&rows.as_dtype(self.draft.dtype())?)?;
            }
            self.clear()?;
            progress();
        }
        Ok(())
    }

    /// Appends the embeddings of a block's rows: the bonus token's, and the mask token's if the
    /// drafter names one.
    fn embed(&self, block: &DraftBlock, mask: &[u8], embeddings: &mut Vec<u8>) {
        let Some(bonus) = &block.bonus else { return };
        embeddings.extend_from_slice(bonus.bytes());
        let rows = self.draft.info().embedding_rows(block.rows as i32);
        (1..rows).for_each(|_| embeddings.extend_from_slice(mask));
    }

    /// Copies what the store has of the first `positions` of a slot.
    fn retain(&self, slot: u64, positions: i32) -> Result<RetainedRows, ModelError> {
        let (session, images) = (SequenceId(slot), self.images.get(&slot).cloned());
        let images = images.unwrap_or_default();
        let rows = self.draft.rows_of(&images, positions);
        if rows == 0 {
            return Ok(RetainedRows { rows: None, images, end: None });
        }
        let mut pieces = self.kv.copy_out(session, 0, rows, 1)?;
        let copied = pieces.pop();
        let copied =
            copied.ok_or_else(|| ModelError::Batch("expected a copy, found none".into()))?;
        let keeps_ends = self.kv.kept_bytes() > 0;
        let end = keeps_ends.then(|| self.kv.keep_states(session, rows)).transpose()?;
        Ok(RetainedRows { rows: Some(copied), images, end })
    }

    /// Begins a slot with what was retained of the first `positions` of a context, with room for
    /// `capacity` rows.
    fn restore(
        &mut self,
        context: u64,
        slot: u64,
        positions: i32,
        capacity: i32,
    ) -> Result<(), ModelError> {
        let missing = || ModelError::Batch(format!("context {context} was not retained"));
        let from = self.retained.get(&context).ok_or_else(missing)?;
        self.kv.open(SequenceId(slot))?;
        let rows = self.draft.rows_of(&from.images, positions);
        match &from.rows {
            Some(kept) if rows > 0 => {
                let end = from.end.as_ref();
                self.kv.copy_in(SequenceId(slot), &[kept], end, rows, capacity)
            }
            _ => Ok(()),
        }
    }

    /// Class and slot of a session; after the others of its class if it will get a new slot.
    fn order(&self, work: &SessionWork) -> (usize, usize) {
        let sequence = SequenceId(work.slot);
        let rows = (work.context + work.block_rows()) as i32;
        let end = self.kv.length(sequence).unwrap_or(0) + rows;
        let (class, slot) = self.kv.order(sequence);
        let needed = self
            .capacities
            .iter()
            .position(|capacity| *capacity >= end)
            .unwrap_or(self.capacities.len());
        if class >= needed && class < self.capacities.len() {
            (class, slot)
        } else {
            (needed, usize::MAX)
        }
    }
}

impl Proposer for Model {
    fn row_bytes(&self) -> u64 {
        self.kv.row_bytes()
    }

    fn end_bytes(&self) -> u64 {
        self.kv.kept_bytes()
    }

    fn store_bytes(&self) -> u64 {
        self.kv.allocated_bytes()
    }

    fn memory(&self) -> MemoryUse {
        let (active_bytes, cache_bytes) = device::memory();
        let (limit_bytes, recommended_bytes) =
            (device::memory_limit(), device::recommended_memory());
        MemoryUse { active_bytes, cache_bytes, limit_bytes, recommended_bytes }
    }

    fn perform(&mut self, commands: &[StoreCommand]) -> Result<(), ModelError> {
        for one in commands {
            match *one {
                StoreCommand::Free { slot } => {
                    self.images.remove(&slot);
                    self.kv.free(SequenceId(slot));
                }
                StoreCommand::Retain { slot, rows, context } => {
                    self.retained.insert(context, self.retain(slot, rows as i32)?);
                }
                StoreCommand::Evict { context } => drop(self.retained.remove(&context)),
                StoreCommand::Restore { context, slot, rows, capacity } => {
                    self.restore(context, slot, rows as i32, capacity as i32)?;
                }
            }
        }
        Ok(())
    }

    fn propose(
        &mut self,
        step: &mut Step,
        element: TensorType,
        mask: &[u8],
    ) -> Result<Option<Proposed>, ModelError> {
        // In the order of the store, as it will be after all sessions have room for their new rows.
        let mut sessions: Vec<&SessionWork> = step.sessions.iter().collect();
        sessions.sort_by_cached_key(|work| self.order(work));
        let (mut hidden, mut embeddings) = (vec![], vec![]);
        let mut batch = DraftBatch::default();
        for work in &sessions {
            let sequence = SequenceId(work.slot);
            if self.kv.length(sequence).is_none() {
                self.kv.open(sequence)?;
            }
            work.hidden.iter().for_each(|rows| hidden.extend_from_slice(rows.bytes()));
            if let Some(block) = &work.block {
                self.embed(block, mask, &mut embeddings);
            }
            let (position, context) = (work.position as i32, work.context as i32);
            let block = work.block.as_ref().map(block_request);
            let next_id = work.block.as_ref().map(|block| block.bonus_id).or(work.next_id);
            batch.ids.extend(&work.ids);
            if !work.images.is_empty() {
                let images: Vec<ImagePlacement> = work.images.iter().map(placement).collect();
                self.images.entry(work.slot).or_insert_with(|| images.clone());
                batch.images.push((sequence, images));
            }
            batch.parts.push(DraftPart { sequence, position, context, next_id, block });
        }
        let info = self.draft.info();
        batch.hidden_states = array(&hidden, info.feature_width(), element)?;
        batch.embeddings = array(&embeddings, info.hidden, element)?;
        let proposal = self.draft.propose(&batch, &mut self.kv)?;
        let drafted = sessions.into_iter().filter(|work| work.block.is_some());
        Ok(match proposal {
            None => None,
            Some(Proposal::Hidden(rows)) => {
                let bytes = transfer::to_bytes(&rows.as_dtype(self.draft.dtype())?)?;
                let shapes = drafted.map(|work| DraftShape {
                    session: work.session,
                    position: work.end(),
                    rows: work.block_rows() - 1,
                });
                Some(Proposed::Hidden { shapes: shapes.collect(), bytes })
            }
            Some(Proposal::Tokens(drafts)) => {
                let tokens = drafted.zip(drafts).map(|(work, draft)| token_draft(work, draft));
                Some(Proposed::Tokens(tokens.collect()))
            }
        })
    }

    fn settle(&self) -> Result<(), ModelError> {
        self.kv.evaluate()
    }

    fn clear(&mut self) -> Result<(), ModelError> {
        self.retained.clear();
        self.images.clear();
        self.kv = new_store(self.draft.as_ref())?;
        Ok(())
    }

    fn drop_cache(&self) {
        device::drop_cache();
    }
}

/// A store whose sessions keep the window alone of layers that have one. A step adds a piece of
/// context and a block to a session.
fn new_store(draft: &dyn Drafter) -> Result<KvStore, ModelError> {
    let (layers, info) = (draft.kv_layers(), draft.info());
    let most_rows = PIECE_ROWS as i32 + info.block;
    KvStore::with_most_rows(&layers, draft.dtype(), info.context, most_rows)
}

fn block_request(block: &DraftBlock) -> BlockRequest {
    BlockRequest {
        rows: block.rows as i32,
        bonus_id: block.bonus_id,
        sampling: block.sampling.rule,
        noise: NoiseKey { seed: block.sampling.seed, sample: block.sampling.sample_index },
        least_survival: block.least_survival,
    }
}

fn placement(image: &ImageSpan) -> ImagePlacement {
    let ImageSpan { first, rows, columns } = *image;
    let form = ImageForm::Grid;
    ImagePlacement { first: first as i32, rows: rows as i32, columns: columns as i32, form }
}

fn token_draft(work: &SessionWork, draft: TokenDraft) -> DraftTokens {
    let TokenDraft { ids, logprobs } = draft;
    DraftTokens { session: work.session, position: work.end(), ids, logprobs, drafts_from: 0 }
}

fn element_of(dtype: Dtype) -> Result<TensorType, StartError> {
    match dtype {
        Dtype::Float32 => Ok(TensorType::F32),
        Dtype::Float16 => Ok(TensorType::F16),
        Dtype::Bfloat16 => Ok(TensorType::Bf16),
        other => Err(StartError::Dtype(other)),
    }
}

/// Rows of the link as an array; `None` for no rows.
fn array(bytes: &[u8], columns: i32, element: TensorType) -> Result<Option<Array>, ModelError> {
    let dtype = match element {
        TensorType::F32 => Dtype::Float32,
        TensorType::F16 => Dtype::Float16,
        TensorType::Bf16 => Dtype::Bfloat16,
    };
    let rows = bytes.len().checked_div(columns as usize * element.bytes()).unwrap_or(0);
    if rows == 0 {
        return Ok(None);
    }
    transfer::from_bytes(bytes, &[rows as i32, columns], dtype).map(Some)
}
