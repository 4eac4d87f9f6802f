//! The drafter's weights and its sessions' keys and values: steps of the core as forwards, bytes of
//! the link as arrays.

use std::collections::HashMap;
use std::path::Path;

use paceline_models::{
    Array, Draft, DraftBatch, DraftInfo, DraftPart, Dtype, KvRows, KvStore, ModelError, Quantize,
    SequenceId, load_draft, transfer,
};
use paceline_proto::internal::v1::TensorType;

use crate::core::{Move, Part, Step};

/// Sessions of the forwards that warm a drafter up, and rows of context of each.
const WARM_SESSIONS: [i32; 2] = [1, 8];
const WARM_ROWS: i32 = 64;

/// Not `Send`: made on the thread that uses it (I8).
pub(crate) struct Model {
    draft: Box<dyn Draft>,
    kv: KvStore,
    /// Contexts of ended sessions, by the core's number.
    kept: HashMap<u64, KvRows>,
    /// Positions of each capacity class, ascending.
    capacities: Vec<i32>,
    kind: TensorType,
}

/// Hidden rows of a step's blocks.
#[derive(Debug)]
pub(crate) struct Proposed {
    /// Session, position of the bonus token, rows, in the order of the rows.
    pub(crate) drafts: Vec<(u64, u32, u32)>,
    /// `[rows, hidden]`.
    pub(crate) bytes: Vec<u8>,
}

impl Model {
    /// Loads the drafter in `dir`; `progress` hears of (bytes read, bytes in all). Errors are for
    /// the supervisor to show.
    pub(crate) fn load(
        dir: &Path,
        quantize: Quantize,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Self, String> {
        let draft = load_draft(dir, quantize, progress).map_err(|error| error.to_string())?;
        let kind = match draft.dtype() {
            Dtype::Float32 => TensorType::F32,
            Dtype::Float16 => TensorType::F16,
            Dtype::Bfloat16 => TensorType::Bf16,
            other => {
                return Err(format!(
                    "expected weights that compute in float32, float16 or bfloat16, found {other:?}"
                ));
            }
        };
        let kv = new_store(draft.as_ref()).map_err(|error| error.to_string())?;
        let capacities = kv.class_bytes().into_iter().map(|(positions, _)| positions).collect();
        Ok(Self { draft, kv, kept: HashMap::new(), capacities, kind })
    }

    pub(crate) fn info(&self) -> &DraftInfo {
        self.draft.info()
    }

    /// What its hidden rows are made of.
    pub(crate) fn kind(&self) -> TensorType {
        self.kind
    }

    /// Bytes of all keys and values.
    pub(crate) fn kv_bytes(&self) -> u64 {
        self.kv.allocated_bytes()
    }

    /// Bytes of one position's keys and values.
    pub(crate) fn row_bytes(&self) -> u64 {
        self.kv.row_bytes()
    }

    /// Does what the core has decided about slots and kept contexts.
    pub(crate) fn perform(&mut self, moves: &[Move]) -> Result<(), ModelError> {
        for one in moves {
            match *one {
                Move::Free { slot } => self.kv.free(SequenceId(slot)),
                Move::Keep { slot, rows, kept } => {
                    let rows = self.kv.copy_out(SequenceId(slot), 0, rows as i32, 1)?;
                    self.kept.extend(rows.into_iter().map(|rows| (kept, rows)));
                }
                Move::Drop { kept } => drop(self.kept.remove(&kept)),
                Move::Recall { kept, slot, rows, room } => {
                    let missing = || ModelError::Batch(format!("context {kept} was not kept"));
                    let from = self.kept.get(&kept).ok_or_else(missing)?;
                    self.kv.open(SequenceId(slot))?;
                    self.kv.copy_in(SequenceId(slot), &[from], rows as i32, room as i32)?;
                }
            }
        }
        Ok(())
    }

    /// Forgets every session and gives their memory back.
    pub(crate) fn clear(&mut self) -> Result<(), ModelError> {
        self.kept.clear();
        self.kv = new_store(self.draft.as_ref())?;
        Ok(())
    }

    /// Drafts once for one session and once for some, from nothing: the first forwards of a process
    /// are several times as slow as those behind them, long enough to be late for a target that
    /// waits.
    ///
    /// # Errors
    /// MLX's own.
    pub(crate) fn warm_up(&mut self) -> Result<(), ModelError> {
        let info = self.draft.info();
        let (hidden, tapped, block) =
            (info.hidden, info.tap_layers.len() as i32 * info.hidden, info.block);
        let context = WARM_ROWS.min(info.context - block);
        if context < 1 {
            return Ok(());
        }
        let width = if self.kind == TensorType::F32 { 4 } else { 2 };
        for sessions in WARM_SESSIONS {
            let mut batch = DraftBatch::default();
            for session in 0..sessions {
                let sequence = SequenceId(session as u64);
                self.kv.open(sequence)?;
                batch.parts.push(DraftPart { sequence, position: 0, context, block });
            }
            let rows = |rows: i32, columns: i32| {
                array(&vec![0; (rows * columns * width) as usize], columns, self.kind)
            };
            batch.taps = rows(sessions * context, tapped)?;
            batch.embeddings = rows(sessions * block, hidden)?;
            if let Some(hidden) = self.draft.forward(&batch, &mut self.kv)? {
                transfer::to_bytes(&hidden.as_dtype(self.draft.dtype())?)?;
            }
            self.clear()?;
        }
        Ok(())
    }

    /// One forward for all parts of a step; `kind` is what the target's rows are made of, `mask`
    /// the mask token's embedding. Hidden rows are computed when this returns; what was only read
    /// is computed by [`Model::settle`].
    pub(crate) fn forward(
        &mut self,
        step: &Step,
        kind: TensorType,
        mask: &[u8],
    ) -> Result<Option<Proposed>, ModelError> {
        // The order in which the store wants them, as it will be once all have room for their new
        // rows.
        let mut parts: Vec<&Part> = step.parts.iter().collect();
        parts.sort_by_cached_key(|part| self.order(part));
        let (mut taps, mut embeddings) = (vec![], vec![]);
        let mut batch = DraftBatch::default();
        for part in &parts {
            let sequence = SequenceId(part.slot);
            if self.kv.length(sequence).is_none() {
                self.kv.open(sequence)?;
            }
            part.taps.iter().for_each(|rows| taps.extend_from_slice(rows.bytes()));
            if let Some(bonus) = &part.bonus {
                embeddings.extend_from_slice(bonus.bytes());
                (1..part.block).for_each(|_| embeddings.extend_from_slice(mask));
            }
            let (position, context, block) =
                (part.position as i32, part.context as i32, part.block as i32);
            batch.parts.push(DraftPart { sequence, position, context, block });
        }
        let info = self.draft.info();
        batch.taps = array(&taps, info.tap_layers.len() as i32 * info.hidden, kind)?;
        batch.embeddings = array(&embeddings, info.hidden, kind)?;
        let Some(hidden) = self.draft.forward(&batch, &mut self.kv)? else { return Ok(None) };
        let bytes = transfer::to_bytes(&hidden.as_dtype(self.draft.dtype())?)?;
        let drafted = parts.iter().filter(|part| part.block > 0);
        let drafts = drafted
            .map(|part| (part.session, part.position + part.context, part.block - 1))
            .collect();
        Ok(Some(Proposed { drafts, bytes }))
    }

    /// Computes what was read and not needed for a draft.
    pub(crate) fn settle(&self) -> Result<(), ModelError> {
        self.kv.evaluate()
    }

    /// Class and slot; behind the others of its class where it will get a new slot.
    fn order(&self, part: &Part) -> (usize, usize) {
        let sequence = SequenceId(part.slot);
        let end = self.kv.length(sequence).unwrap_or(0) + (part.context + part.block) as i32;
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

fn new_store(draft: &dyn Draft) -> Result<KvStore, ModelError> {
    KvStore::new(&draft.kv_layers(), draft.dtype(), draft.info().context)
}

/// Rows of the link as an array; `None` for no rows.
fn array(bytes: &[u8], columns: i32, kind: TensorType) -> Result<Option<Array>, ModelError> {
    let (dtype, width) = match kind {
        TensorType::F32 => (Dtype::Float32, 4),
        TensorType::F16 => (Dtype::Float16, 2),
        TensorType::Bf16 => (Dtype::Bfloat16, 2),
        TensorType::Unspecified => return Err(ModelError::Batch("rows of no type".into())),
    };
    let rows = bytes.len() / (columns as usize * width);
    if rows == 0 {
        Ok(None)
    } else {
        transfer::from_bytes(bytes, &[rows as i32, columns], dtype).map(Some)
    }
}
