//! Memory of a model's layers: the forms of their keys, values and states.

use paceline_checkpoint::kv_sizes::kept_positions;
use paceline_checkpoint::{KvHeads, RecurrentSizes};

use crate::error::{ModelError, Result};

/// Memory of a layer for a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKv {
    /// A key and a value for each position.
    Growing(GrowingKv),
    /// The last rows of a convolution's input, and a state for each value head. Both are of one
    /// size, however long the sequence is, and kept in float32.
    Recurrent(RecurrentSizes),
    /// None of its own: it attends to the keys and values of an earlier layer.
    Shared(usize),
}

/// Keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct GrowingKv {
    /// Number of KV heads.
    pub n_kv: i32,
    /// Size of a key.
    pub key_dim: i32,
    /// Size of a value.
    pub value_dim: i32,
    /// Most positions a row attends to: itself and those before it (0 ≤ q − k < window). `None`
    /// means all. A slot keeps these and as many as a pass may write ([`super::KvStore`]).
    pub window: Option<i32>,
}

impl LayerKv {
    /// Keys and values, if it remembers these.
    pub fn growing(&self) -> Option<&GrowingKv> {
        match self {
            Self::Growing(growing) => Some(growing),
            Self::Recurrent(_) | Self::Shared(_) => None,
        }
    }
}

impl GrowingKv {
    /// Numbers of a key and a value of one position.
    pub(super) fn row_numbers(&self) -> u64 {
        (self.n_kv * (self.key_dim + self.value_dim)) as u64
    }
}

impl From<KvHeads> for GrowingKv {
    fn from(heads: KvHeads) -> Self {
        let KvHeads { n_kv, head_dim, window } = heads;
        Self { n_kv, key_dim: head_dim, value_dim: head_dim, window }
    }
}

impl From<GrowingKv> for LayerKv {
    fn from(growing: GrowingKv) -> Self {
        Self::Growing(growing)
    }
}

/// Where a store keeps what a layer remembers: its number among the layers of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum LayerPlace {
    Growing(usize),
    Recurrent(usize),
}

/// The layers of a model by kind.
#[derive(Debug)]
pub(super) struct LayerKinds {
    pub(super) places: Vec<LayerPlace>,
    pub(super) growing: Vec<GrowingKv>,
    /// For each of `growing` the most positions that a slot keeps of it; `None` is all.
    pub(super) rings: Vec<Option<i32>>,
    pub(super) recurrent: Vec<RecurrentSizes>,
}

impl LayerKinds {
    /// The layers of a store for sequences of up to `max_positions`, to which a pass adds
    /// `most_rows` each at most.
    ///
    /// # Errors
    /// A layer shares with one that is not before it, or that has no keys and values; a window of
    /// no positions.
    pub(super) fn of(layers: &[LayerKv], max_positions: i32, most_rows: i32) -> Result<Self> {
        let (mut growing, mut recurrent) = (vec![], vec![]);
        let mut places: Vec<LayerPlace> = Vec::with_capacity(layers.len());
        for layer in layers {
            places.push(match layer {
                LayerKv::Growing(kv) => {
                    growing.push(*kv);
                    LayerPlace::Growing(growing.len() - 1)
                }
                LayerKv::Recurrent(sizes) => {
                    recurrent.push(*sizes);
                    LayerPlace::Recurrent(recurrent.len() - 1)
                }
                LayerKv::Shared(of) => match places.get(*of) {
                    Some(place @ LayerPlace::Growing(_)) => *place,
                    _ => {
                        return Err(ModelError::Batch(format!(
                            "layer {}: expected an earlier layer with keys and values to share, \
                             found layer {of}",
                            places.len()
                        )));
                    }
                },
            });
        }
        if growing.iter().any(|layer| layer.window.is_some_and(|window| window < 1)) {
            return Err(ModelError::Batch("expected windows of at least one position".into()));
        }
        let ring = |layer: &GrowingKv| kept_positions(layer.window, most_rows, max_positions);
        Ok(Self { places, rings: growing.iter().map(ring).collect(), growing, recurrent })
    }
}
