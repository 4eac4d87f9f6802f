//! Memory of a model's layers: the forms of their keys, values and states.

use paceline_blas::RecurrentSizes;

/// Memory of a layer for a sequence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LayerKv {
    /// A key and a value for each position.
    Growing(GrowingKv),
    /// The last rows of a convolution's input, and a state for each value head. Both are of one
    /// size, however long the sequence is, and kept in float32.
    Recurrent(RecurrentSizes),
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
    /// means all. A mask only: a slot keeps all positions. The rows of a window are a small part
    /// of what a sequence holds in the models built so far, and one commit rule then serves every
    /// layer.
    pub window: Option<i32>,
}

impl LayerKv {
    /// Keys and values, if it remembers these.
    pub fn growing(&self) -> Option<&GrowingKv> {
        match self {
            Self::Growing(growing) => Some(growing),
            Self::Recurrent(_) => None,
        }
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
    pub(super) recurrent: Vec<RecurrentSizes>,
}

impl LayerKinds {
    pub(super) fn of(layers: &[LayerKv]) -> Self {
        let (mut growing, mut recurrent) = (vec![], vec![]);
        let place = |layer: &LayerKv| match layer {
            LayerKv::Growing(kv) => {
                growing.push(*kv);
                LayerPlace::Growing(growing.len() - 1)
            }
            LayerKv::Recurrent(sizes) => {
                recurrent.push(*sizes);
                LayerPlace::Recurrent(recurrent.len() - 1)
            }
        };
        Self { places: layers.iter().map(place).collect(), growing, recurrent }
    }
}
