//! Copies rows out of the store and in again. The owner of the store keeps the copies. They outlive
//! their sequence.
//!
//! A piece is one array, all layers one after another: so it is one handle to keep, one buffer
//! that is free the moment the piece is dropped, and pieces of equal size are joined by a single
//! primitive on their way back. Per layer and kind there is one cut, however many pieces are taken
//! or given.

use mlx_rs::Array;
use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{concatenate, zeros};

use super::{GrowingKv, KeptStates, KvStore, SequenceEntry, SlotAddress};
use crate::error::{ModelError, Result};
use crate::segment::SequenceId;

/// Copies of neighbouring rows of a sequence, keys and values of the layers that keep all
/// positions. Nothing in it refers to the store.
#[derive(Debug)]
pub struct KvRows {
    /// `[1, numbers]`: layer by layer keys `[n_kv, rows, key_dim]`, then values, each flat.
    pub(super) numbers: Array,
    rows: i32,
}

impl KvRows {
    /// How many.
    pub fn len(&self) -> i32 {
        self.rows
    }

    /// Whether there are none; no store gives out such.
    pub fn is_empty(&self) -> bool {
        self.rows == 0
    }

    /// Bytes they take.
    pub fn bytes(&self) -> u64 {
        self.numbers.nbytes() as u64
    }
}

impl KvStore {
    /// Bytes of one row over all layers that keep all positions.
    pub fn row_bytes(&self) -> u64 {
        let width = self.classes.first().map_or(0, |class| class.number_bytes());
        let layers = self.layers.growing.iter().zip(&self.layers.rings);
        let whole = layers.filter(|(_, ring)| ring.is_none());
        whole.map(|(layer, _)| layer.row_numbers()).sum::<u64>() * width
    }

    /// Copies `pieces` pieces of `rows` rows each out of a sequence, from row `start` on. Computed
    /// when this returns; for the moment it takes twice their bytes. Recurrent layers have no rows,
    /// and layers with windows only the last ones: see [`KvStore::keep_states`].
    ///
    /// # Errors
    /// The sequence has committed fewer rows than that; MLX's own.
    pub fn copy_out(
        &self,
        sequence: SequenceId,
        start: i32,
        rows: i32,
        pieces: i32,
    ) -> Result<Vec<KvRows>> {
        let end = pieces
            .checked_mul(rows)
            .and_then(|all| all.checked_add(start))
            .filter(|_| start >= 0 && rows > 0 && pieces > 0);
        let entry = self.sequences.get(&sequence);
        let found =
            entry.and_then(|entry| Some((entry.slot?, end.filter(|end| *end <= entry.length)?)));
        let Some((slot, end)) = found else {
            let (name, length) = (sequence.0, entry.map_or(0, |entry| entry.length));
            let what = format!(
                "sequence {name}: expected {pieces} times {rows} rows from {start} on, found {length} rows"
            );
            return Err(ModelError::Batch(what));
        };
        if self.row_bytes() == 0 {
            // All layers keep their last positions alone.
            let none = || Ok(KvRows { numbers: zeros::<f32>(&[1, 0])?, rows });
            return (0..pieces).map(|_| none()).collect();
        }
        #[cfg(target_os = "linux")]
        if self.by_nodes() {
            let [first, length, count] = [start, rows, pieces].map(|size| size as usize);
            let pieces = self.cut_pieces(slot, first, length, count)?;
            return Ok(pieces.into_iter().map(|numbers| KvRows { numbers, rows }).collect());
        }
        let mut parts = Vec::with_capacity(2 * self.layers.growing.len());
        for layer in (0..self.layers.growing.len()).filter(|at| self.layers.rings[*at].is_none()) {
            let (keys, values) =
                self.classes[slot.class].view(layer, slot.index..slot.index + 1, start..end)?;
            for array in [keys, values] {
                let (heads, dim) = (array.dim(1), array.dim(3));
                let by_piece =
                    array.reshape(&[heads, pieces, rows, dim])?.transpose_axes(&[1, 0, 2, 3])?;
                parts.push(by_piece.reshape(&[pieces, heads * rows * dim])?);
            }
        }
        let all = concatenate(&parts, 1)?;
        // A row of `all` would keep the whole of it alive, so each becomes an array of its own.
        let own =
            |piece| -> Result<Array> { Ok(all.try_index((piece..piece + 1, ..))?.contiguous()?) };
        let pieces = (0..pieces).map(own).collect::<Result<Vec<_>>>()?;
        mlx_rs::transforms::eval(&pieces)?;
        Ok(pieces.into_iter().map(|numbers| KvRows { numbers, rows }).collect())
    }

    /// Gives a sequence that has no rows yet the first `length` rows of `pieces`, which hold as
    /// many rows each, one after another, and commits them. A model with recurrent layers or
    /// windows needs `states` of exactly these rows. The sequence gets a slot for at least `room`
    /// positions at once, so that what it will soon read does not move it again.
    ///
    /// # Errors
    /// An unknown sequence or one that has rows, fewer rows than `length`, pieces or states of
    /// another store's model or of other rows, more than the longest class holds; MLX's own.
    pub fn copy_in(
        &mut self,
        sequence: SequenceId,
        pieces: &[&KvRows],
        states: Option<&KeptStates>,
        length: i32,
        room: i32,
    ) -> Result<()> {
        self.check_states(states, length)?;
        self.changes();
        let bad = |what: String| ModelError::Batch(format!("sequence {}: {what}", sequence.0));
        let Some(SequenceEntry { slot, length: 0, .. }) = self.sequences.get(&sequence).copied()
        else {
            return Err(bad("expected a known sequence without rows to copy into".into()));
        };
        let rows = self.rows_of_pieces(pieces, length).map_err(bad)?;
        if let Some(SlotAddress { class, index }) = slot {
            self.classes[class].give_back(index);
            self.sequences.insert(sequence, SequenceEntry::default());
        }
        let class = self.class_for(length.max(room))?;
        let index = self.take_slot(class, sequence)?;
        self.place_sequence(sequence, SlotAddress { class, index });
        self.place(SlotAddress { class, index }, pieces, rows, length)?;
        if let Some(states) = states {
            self.restore_states(sequence, SlotAddress { class, index }, states)?;
        }
        self.commit(sequence, length)
    }

    /// Writes the first `length` rows of pieces of `rows` rows into a slot.
    fn place(
        &mut self,
        slot: SlotAddress,
        pieces: &[&KvRows],
        rows: i32,
        length: i32,
    ) -> Result<()> {
        if self.row_bytes() == 0 {
            return Ok(());
        }
        #[cfg(target_os = "linux")]
        if self.by_nodes() {
            return self.place_pieces(slot, pieces, rows as usize, length as usize);
        }
        let SlotAddress { class, index } = slot;
        let all = match pieces {
            [one] => one.numbers.clone(),
            _ => concatenate(&pieces.iter().map(|piece| &piece.numbers).collect::<Vec<_>>(), 0)?,
        };
        let (count, mut from) = (pieces.len() as i32, 0);
        let mut next = |heads: i32, dim: i32| -> Result<Array> {
            let columns = from..from + heads * rows * dim;
            from = columns.end;
            let part = all.try_index((.., columns))?.reshape(&[count, heads, rows, dim])?;
            let joined =
                part.transpose_axes(&[1, 0, 2, 3])?.reshape(&[1, heads, count * rows, dim])?;
            Ok(if length < count * rows {
                joined.try_index((.., .., ..length, ..))?
            } else {
                joined
            })
        };
        let layers = self.layers.growing.iter().zip(&self.layers.rings).enumerate();
        for (layer, (GrowingKv { n_kv, key_dim, value_dim, .. }, _)) in
            layers.filter(|(_, (_, ring))| ring.is_none())
        {
            let (keys, values) = (next(*n_kv, *key_dim)?, next(*n_kv, *value_dim)?);
            self.classes[class].overwrite(layer, index, 0, &keys, &values)?;
        }
        Ok(())
    }

    /// Rows of each of `pieces`. They must be equal, of this store's model, and hold `length` rows
    /// together.
    fn rows_of_pieces(&self, pieces: &[&KvRows], length: i32) -> Result<i32, String> {
        let (rows, count) = (pieces.first().map_or(0, |piece| piece.rows), pieces.len() as i32);
        let row_bytes = self.row_bytes();
        let equal =
            |piece: &&KvRows| piece.rows == rows && piece.bytes() == rows as u64 * row_bytes;
        if pieces.iter().all(equal) && (1..=rows * count).contains(&length) {
            return Ok(rows);
        }
        let expected = format!("expected {length} rows in equal pieces of {row_bytes} bytes a row");
        Err(format!("{expected}, found {count} pieces of {rows} rows"))
    }
}
