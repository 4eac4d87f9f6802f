//! A model's forward on the CPU as a program: functions of the crate `cpu`, recorded once when the
//! model is loaded, which run one after another in one node of MLX's graph. Between two products
//! nothing is allocated, scheduled or released.
//!
//! ```text
//!  a layer's operations ─record─▶ Program ─run, one node a step─▶ keys and values, states, hidden states, logits
//! ```
//!
//! The rows of a program lie in buffers that are kept from step to step. Two values share a buffer
//! if no step needs both.

mod held;
mod record;
mod run;
#[cfg(test)]
mod tests;

use std::ops::Range;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};

use paceline_checkpoint::RecurrentSizes;
use paceline_cpu::{SlotRows, huge_pages};

use super::{AttentionHeads, Gate, RotatedHeads, RowPlaces, VisibleKeys};
use crate::device::SCRATCH_BYTES;
use held::{ExpertWeights, Floats, Product, Table};
use run::Scratch;

pub(crate) use record::{Recorder, Tail, Value};
pub(crate) use run::{PassInputs, PassRotation};

/// A norm's weight.
#[derive(Debug)]
struct Norm {
    weight: Floats,
    eps: f32,
}

/// What a step computes of its inputs. Buffers hold rows of a fixed width.
#[derive(Debug)]
enum Function {
    Norm(Norm),
    /// Rows of a table of its own by the ids of the pass.
    Embedded(Table),
    /// Numbers that the pass is given for each row, from this column on.
    Given(usize),
    /// Rows of all inputs side by side.
    Beside,
    Product(Product),
    Add,
    Scale(f32),
    Gated(Gate),
    /// Inputs: rows, and rows that multiply them from a column on.
    GatedBy {
        gate: Gate,
        column: usize,
    },
    /// `rope`: the number of the model's rotation.
    Rotate {
        heads: RotatedHeads,
        norm: Option<Norm>,
        dim: usize,
        rope: usize,
    },
    /// All heads of `dim` numbers, with a weight for each head or one for all.
    NormRotated {
        norm: Norm,
        dim: usize,
    },
    /// Heads from the first one on, as long as the norm's weight.
    NormHeads {
        norm: Norm,
        first: usize,
    },
    /// The heads and their layer among those with keys and values. Inputs: rotated, projected;
    /// without the second one the keys and values are there already.
    Attend {
        layer: usize,
        heads: AttentionHeads,
    },
    GateHeads {
        dim: usize,
    },
    /// The layer among those with states.
    Recur {
        layer: usize,
        rule: Rule,
    },
    /// Inputs: rows, and rows with the gates from a column on.
    NormGated {
        norm: Norm,
        column: usize,
    },
    /// Inputs: rows of the router, rows of the experts.
    Experts(Box<Experts>),
    /// Inputs: what the routed experts gave, what the shared one gave, its gate.
    AddShared,
    /// The output of a layer, which stays where it is.
    EndLayer(usize),
}

/// The gated delta rule of a layer.
#[derive(Debug)]
struct Rule {
    sizes: RecurrentSizes,
    convolution: Floats,
    rates: Floats,
    dt_bias: Floats,
    beta: usize,
    decay: usize,
}

/// A layer of experts behind a router.
#[derive(Debug)]
struct Experts {
    router: Product,
    gate_up: Vec<ExpertWeights>,
    down: Vec<ExpertWeights>,
    experts: usize,
    chosen: usize,
    intermediate: usize,
    renormalized: bool,
    gate: Gate,
    /// Factors on the shares of the experts.
    factors: Option<Floats>,
}

/// Where rows lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Place {
    buffer: usize,
    /// Numbers of a row. Rows lie one after another.
    width: usize,
}

/// One function, the rows that it reads, and those that it writes.
#[derive(Debug)]
struct Step {
    function: Function,
    inputs: Vec<Place>,
    output: Place,
}

impl Step {
    /// The weights of its products as bytes.
    fn bytes(&self) -> Vec<&[u8]> {
        match &self.function {
            Function::Product(product) => product.bytes().collect(),
            Function::Experts(experts) => {
                let parts = experts.gate_up.iter().chain(&experts.down);
                parts.flat_map(ExpertWeights::bytes).collect()
            }
            _ => vec![],
        }
    }
}

/// The steps of a whole forward.
#[derive(Debug)]
pub(crate) struct Program {
    table: Table,
    steps: Vec<Step>,
    /// Number of buffers.
    buffers: usize,
    /// The embedded rows.
    first: Place,
    /// The last layer's output.
    last: Place,
    norm: Norm,
    head: Product,
    /// Factor on the rows of the table.
    embedding_factor: f32,
    /// c of c · tanh(logit / c).
    softcap: Option<f32>,
    /// Whether final hidden states are normed.
    is_final_normed: bool,
    /// Number of recurrent layers.
    recurrent: usize,
    scratch: Mutex<Scratch>,
}

/// Neighbouring query rows whose slots are of one class.
#[derive(Clone, Debug)]
pub(crate) struct PassReads {
    /// The class among those of the pass.
    pub(crate) class: usize,
    pub(crate) rows: Range<usize>,
    pub(crate) keys: VisibleKeys,
}

/// Where the rows of a pass are written.
#[derive(Clone, Debug)]
pub(crate) struct PassWrites {
    /// Positions that a slot of the class keeps, for each layer with keys and values.
    pub(crate) kept: Arc<[usize]>,
    pub(crate) places: RowPlaces,
}

/// Where the rows of a pass are written and read, and which states they advance.
///
/// The memory of a pass is a list: for each class, for each layer with keys and values, its keys and
/// its values; then for each recurrent layer the states of each slot.
#[derive(Clone, Debug)]
pub(crate) struct PassPlaces {
    /// For each class of the pass.
    pub(crate) writes: Vec<PassWrites>,
    /// For each layer with keys and values.
    pub(crate) reads: Vec<Arc<[PassReads]>>,
    /// KV heads, numbers of a key and of a value, for each layer with keys and values.
    pub(crate) heads: Vec<[usize; 3]>,
    pub(crate) slots: Arc<[SlotRows]>,
    /// Rows that the pass writes on a tape.
    pub(crate) tape_rows: usize,
}

impl PassPlaces {
    /// The place of a layer's keys in the memory; its values follow.
    fn keys(&self, class: usize, layer: usize) -> usize {
        2 * (class * self.reads.len() + layer)
    }

    /// The places of a recurrent layer's states in the memory, one for each slot.
    fn states(&self, layer: usize) -> Range<usize> {
        let (first, count) = (2 * self.writes.len() * self.reads.len(), self.slots.len());
        first + layer * count..first + (layer + 1) * count
    }
}

impl Drop for Program {
    fn drop(&mut self) {
        let scratch = self.scratch.get_mut().unwrap_or_else(PoisonError::into_inner);
        SCRATCH_BYTES.fetch_sub(scratch.counted(), Ordering::Relaxed);
    }
}

impl Program {
    /// Moves the weights of products into huge pages.
    fn collapse(&self) {
        huge_pages::collapse(self.steps.iter().flat_map(Step::bytes).chain(self.head.bytes()));
    }

    /// Numbers of a row of hidden states.
    pub(crate) fn hidden(&self) -> usize {
        self.first.width
    }

    /// Numbers of a row of logits.
    pub(crate) fn vocab(&self) -> usize {
        self.head.outputs()
    }
}
