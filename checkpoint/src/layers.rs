//! What the layers of a text model remember of a sequence, in numbers.

/// Most rows that a convolution mixes. Published checkpoints have 4.
pub const MOST_TAPS: usize = 8;

/// Keys and values of a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KvHeads {
    /// Number of heads.
    pub n_kv: i32,
    /// Elements of a key or a value of one head.
    pub head_dim: i32,
    /// Most positions a row attends to, its own included; `None`: all.
    pub window: Option<i32>,
}

/// Sizes of a layer that computes by the gated delta rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RecurrentSizes {
    /// Heads of queries and of keys.
    pub key_heads: usize,
    /// Heads of values: a multiple of `key_heads`. Neighbouring ones share a key head.
    pub value_heads: usize,
    /// Elements of a query or a key of one head.
    pub key_dim: usize,
    /// Elements of a value of one head.
    pub value_dim: usize,
    /// Rows that the convolution mixes: a row itself and those before it. 2 to [`MOST_TAPS`].
    pub taps: usize,
}

impl RecurrentSizes {
    /// Numbers of all keys of a row; queries have as many.
    pub fn keys(&self) -> usize {
        self.key_heads * self.key_dim
    }

    /// Numbers of all values of a row.
    pub fn values(&self) -> usize {
        self.value_heads * self.value_dim
    }

    /// Numbers of a row that the convolution mixes: queries, keys and values, in this order.
    pub fn channels(&self) -> usize {
        2 * self.keys() + self.values()
    }

    /// Numbers of the states of all value heads, `[value_heads, key_dim, value_dim]`.
    pub fn matrices(&self) -> usize {
        self.value_heads * self.key_dim * self.value_dim
    }

    /// Numbers that a sequence holds: its states, then the last rows of the convolution's input
    /// `[taps - 1, channels]`, the oldest first.
    pub fn slot(&self) -> usize {
        self.matrices() + (self.taps - 1) * self.channels()
    }

    /// Numbers of a row of a tape: normed keys, differences `[values]`, decays `[value_heads]`, and
    /// the row of the convolution's input.
    pub fn tape(&self) -> usize {
        self.keys() + self.values() + self.value_heads + self.channels()
    }
}
