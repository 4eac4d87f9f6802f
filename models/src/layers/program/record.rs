//! Records a model's operations as a program.

use std::ops::Range;
use std::sync::Mutex;

use super::held::{ExpertWeights, Floats, Product, Quantized, Table, Weight};
use super::run::Scratch;
use super::{Experts, Function, Norm, Place, Program, Rule, Step};
use crate::error::{ModelError, Result};
use crate::layers::embedding::Table as StoredTable;
use crate::layers::experts::{ExpertForm, ExpertLinear};
use crate::layers::linear::WeightForm;
use crate::layers::ops::{HeadRotation, LayerOps, gated_mlp};
use crate::layers::{
    AttentionHeads, DeltaRule, Embedding, ExpertMlp, Gate, Linear, RmsNorm, RotatedHeads,
    SharedExpertMlp,
};
use paceline_cpu::experts::ExpertSizes;

/// Rows that a recorded step makes, by their number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Value(usize);

/// Records steps in the order of the calls.
#[derive(Debug)]
pub(crate) struct Recorder {
    steps: Vec<Step>,
    /// Numbers of a row of each value.
    widths: Vec<usize>,
    /// Layers with keys and values so far.
    growing: Vec<usize>,
    /// Layers with states so far.
    recurrent: usize,
}

/// What comes before and after the layers.
#[derive(Debug)]
pub(crate) struct Tail<'a> {
    pub(crate) embedding: &'a Embedding,
    pub(crate) norm: &'a RmsNorm,
    /// `None`: tied to the embedding.
    pub(crate) head: Option<&'a Linear>,
    /// Factor on the embedded rows.
    pub(crate) embedding_factor: f32,
    /// c of c · tanh(logit / c).
    pub(crate) softcap: Option<f32>,
    /// Whether final hidden states are normed; else they are the last layer's output.
    pub(crate) is_final_normed: bool,
}

impl Recorder {
    /// A recorder, and the value of the embedded rows.
    pub(crate) fn new(hidden: usize) -> (Self, Value) {
        let recorder = Self { steps: vec![], widths: vec![hidden], growing: vec![], recurrent: 0 };
        (recorder, Value(0))
    }

    /// The program that ends with the layers' output `x`.
    ///
    /// # Errors
    /// A weight does not lie in memory as the functions read it.
    pub(crate) fn finish(self, x: Value, tail: &Tail<'_>) -> Result<Program> {
        let Self { mut steps, widths, recurrent, .. } = self;
        let places = share_buffers(&mut steps, widths.len(), x.0);
        let place = |value: usize| Place { buffer: places[value], width: widths[value] };
        let table = table(tail.embedding)?;
        let head = match tail.head {
            Some(head) => product(head)?,
            None => Product::new(vec![as_head(tail.embedding)?], None),
        };
        if table.width() != widths[0] {
            return Err(unsupported(format!(
                "embeddings of {} numbers in a model of {}",
                table.width(),
                widths[0]
            )));
        }
        let program = Program {
            table,
            buffers: places.iter().max().map_or(0, |last| last + 1),
            first: place(0),
            last: place(x.0),
            steps,
            norm: norm(tail.norm)?,
            head,
            embedding_factor: tail.embedding_factor,
            softcap: tail.softcap,
            is_final_normed: tail.is_final_normed,
            recurrent,
            scratch: Mutex::new(Scratch::default()),
        };
        program.collapse();
        Ok(program)
    }

    /// These columns of the numbers that a pass is given for each row.
    pub(crate) fn given(&mut self, columns: Range<usize>) -> Value {
        self.step(Function::Given(columns.start), &[], columns.len())
    }

    /// Rows of all parts side by side.
    pub(crate) fn beside(&mut self, parts: &[Value]) -> Value {
        let width = parts.iter().map(|part| self.width(*part)).sum();
        self.step(Function::Beside, parts, width)
    }

    fn step(&mut self, function: Function, inputs: &[Value], width: usize) -> Value {
        let output = Value(self.widths.len());
        self.widths.push(width);
        let inputs = inputs.iter().map(|value| self.place(*value)).collect();
        self.steps.push(Step { function, inputs, output: self.place(output) });
        output
    }

    /// The place of a value until buffers are shared: a buffer of its own.
    fn place(&self, value: Value) -> Place {
        Place { buffer: value.0, width: self.width(value) }
    }

    fn width(&self, value: Value) -> usize {
        self.widths[value.0]
    }
}

/// Gives each of `values` values a buffer that no other value needs at the same time. Steps name
/// these buffers afterwards. `last` is needed after the last step. Returns each value's buffer.
pub(super) fn share_buffers(steps: &mut [Step], values: usize, last: usize) -> Vec<usize> {
    let mut last_use = vec![0; values];
    for (at, step) in steps.iter().enumerate() {
        step.inputs.iter().chain([&step.output]).for_each(|place| last_use[place.buffer] = at);
    }
    last_use[last] = steps.len();
    let (mut count, mut free) = (1, vec![]);
    let mut buffers: Vec<Option<usize>> = vec![None; values];
    buffers[0] = Some(0);
    for (at, step) in steps.iter_mut().enumerate() {
        let output = step.output.buffer;
        if buffers[output].is_none() {
            buffers[output] = free.pop().or_else(|| {
                count += 1;
                Some(count - 1)
            });
        }
        for place in step.inputs.iter_mut().chain([&mut step.output]) {
            let value = place.buffer;
            place.buffer = buffers[value].unwrap_or_default();
            if last_use[value] == at && !free.contains(&place.buffer) {
                free.push(place.buffer);
            }
        }
    }
    buffers.into_iter().map(Option::unwrap_or_default).collect()
}

fn unsupported(what: String) -> ModelError {
    ModelError::Batch(format!("no functions of the processor for {what}"))
}

fn norm(norm: &RmsNorm) -> Result<Norm> {
    Ok(Norm { weight: Floats::new(&norm.weight)?, eps: norm.eps })
}

fn weight(form: &WeightForm) -> Result<Weight> {
    match form {
        WeightForm::Transposed(transposed) => {
            let numbers = Floats::new(&transposed.transpose()?)?;
            Ok(Weight::Floats { numbers, outputs: transposed.dim(1) as usize })
        }
        WeightForm::Quantized(matrix) => {
            let parts = matrix.affine_parts();
            let parts =
                parts.ok_or_else(|| unsupported(format!("weights of {}", matrix.format)))?;
            Ok(Weight::Quantized(Quantized::new(&parts)?))
        }
    }
}

fn product(linear: &Linear) -> Result<Product> {
    let parts = linear.parts.iter().map(weight).collect::<Result<_>>()?;
    Ok(Product::new(parts, linear.bias.as_ref().map(Floats::new).transpose()?))
}

fn expert_weights(linear: &ExpertLinear) -> Result<Vec<ExpertWeights>> {
    let weights = |form: &ExpertForm| -> Result<ExpertWeights> {
        match form {
            ExpertForm::Transposed(transposed) => {
                let stored = transposed.swap_axes(-1, -2)?;
                let sizes = [stored.dim(0), stored.dim(1), stored.dim(2)].map(|n| n as usize);
                let [experts, outputs, inputs] = sizes;
                let sizes = ExpertSizes { experts, outputs, inputs };
                Ok(ExpertWeights::Floats { numbers: Floats::new(&stored)?, sizes })
            }
            ExpertForm::Quantized(matrix) => {
                let parts = matrix.affine_parts();
                let parts =
                    parts.ok_or_else(|| unsupported(format!("experts of {}", matrix.format)))?;
                let held = Quantized::new(&parts)?;
                let [experts, outputs] =
                    [parts.packed.dim(0), parts.packed.dim(1)].map(|n| n as usize);
                let sizes = ExpertSizes { experts, outputs, inputs: held.matrix().inputs() };
                Ok(ExpertWeights::Quantized { held, sizes })
            }
        }
    };
    linear.parts.iter().map(weights).collect()
}

fn table(embedding: &Embedding) -> Result<Table> {
    match &embedding.table {
        StoredTable::Float { rows, .. } => {
            Ok(Table::Floats { numbers: Floats::new(rows)?, width: rows.dim(1) as usize })
        }
        StoredTable::Quantized { rows, .. } => {
            let parts = rows.affine_parts();
            let parts =
                parts.ok_or_else(|| unsupported(format!("embeddings of {}", rows.format)))?;
            Ok(Table::Quantized(Quantized::new(&parts)?))
        }
    }
}

fn as_head(embedding: &Embedding) -> Result<Weight> {
    match table(embedding)? {
        Table::Floats { numbers, width } => {
            let outputs = numbers.numbers().len() / width.max(1);
            Ok(Weight::Floats { numbers, outputs })
        }
        Table::Quantized(held) => Ok(Weight::Quantized(held)),
    }
}

impl LayerOps for Recorder {
    type Rows = Value;

    fn embedded(&mut self, table_of: &Embedding) -> Result<Value> {
        let rows = table(table_of)?;
        let width = rows.width();
        Ok(self.step(Function::Embedded(rows), &[], width))
    }

    fn norm(&mut self, by: &RmsNorm, x: &Value) -> Result<Value> {
        let width = self.width(*x);
        Ok(self.step(Function::Norm(norm(by)?), &[*x], width))
    }

    fn product(&mut self, linear: &Linear, x: &Value) -> Result<Value> {
        let product = product(linear)?;
        let width = product.outputs();
        Ok(self.step(Function::Product(product), &[*x], width))
    }

    fn add(&mut self, x: &Value, y: &Value) -> Result<Value> {
        let width = self.width(*x);
        Ok(self.step(Function::Add, &[*x, *y], width))
    }

    fn scale(&mut self, x: &Value, factor: f32) -> Result<Value> {
        let width = self.width(*x);
        Ok(self.step(Function::Scale(factor), &[*x], width))
    }

    fn gated(&mut self, both: &Value, gate: Gate) -> Result<Value> {
        let width = self.width(*both) / 2;
        Ok(self.step(Function::Gated(gate), &[*both], width))
    }

    fn gated_by(&mut self, x: &Value, gate: Gate, all: &Value, column: i32) -> Result<Value> {
        let (width, column) = (self.width(*x), column as usize);
        Ok(self.step(Function::GatedBy { gate, column }, &[*x, *all], width))
    }

    fn heads(&mut self, x: &Value, _: i32) -> Result<Value> {
        Ok(*x)
    }

    fn joined_heads(&mut self, heads: &Value) -> Result<Value> {
        Ok(*heads)
    }

    fn rotate(
        &mut self,
        rotation: &HeadRotation,
        rope: usize,
        x: &Value,
        dim: i32,
    ) -> Result<Value> {
        let (heads, norm) = match rotation {
            HeadRotation::Normed(by) => {
                let norm = Norm { weight: Floats::new(&by.weight)?, eps: by.eps };
                (by.heads.clone(), Some(norm))
            }
            HeadRotation::ThenNormed(by) => {
                let rotated = self.rotate(&HeadRotation::Plain(by.count()), rope, x, dim)?;
                let norm = Norm { weight: Floats::new(&by.weight)?, eps: by.eps };
                let (width, dim) = (self.width(rotated), dim as usize);
                return Ok(self.step(Function::NormRotated { norm, dim }, &[rotated], width));
            }
            HeadRotation::Plain(heads) => (RotatedHeads::First(*heads), None),
        };
        let dim = dim as usize;
        let width = heads.count() as usize * dim;
        Ok(self.step(Function::Rotate { heads, norm, dim, rope }, &[*x], width))
    }

    fn norm_heads(&mut self, by: &RmsNorm, heads: &Range<i32>, x: &Value) -> Result<Value> {
        let (norm, first) = (norm(by)?, heads.start as usize);
        let width = heads.len() * norm.weight.numbers().len();
        Ok(self.step(Function::NormHeads { norm, first }, &[*x], width))
    }

    fn attend(
        &mut self,
        layer: usize,
        heads: &AttentionHeads,
        rotated: &Value,
        projected: &Value,
    ) -> Result<Value> {
        let width = heads.queries.len() * heads.dim as usize;
        self.growing.push(layer);
        let attend = Function::Attend { layer: self.growing.len() - 1, heads: heads.clone() };
        Ok(self.step(attend, &[*rotated, *projected], width))
    }

    fn attend_shared(
        &mut self,
        of: usize,
        heads: &AttentionHeads,
        rotated: &Value,
    ) -> Result<Value> {
        let layer = self.growing.iter().position(|layer| *layer == of);
        let layer = layer
            .ok_or_else(|| unsupported(format!("keys and values of layer {of}, which has none")))?;
        let width = heads.queries.len() * heads.dim as usize;
        Ok(self.step(Function::Attend { layer, heads: heads.clone() }, &[*rotated], width))
    }

    fn gate_heads(&mut self, x: &Value, gates: &Value, dim: i32) -> Result<Value> {
        let width = self.width(*x);
        Ok(self.step(Function::GateHeads { dim: dim as usize }, &[*x, *gates], width))
    }

    fn recur(&mut self, _: usize, rule: &DeltaRule, x: &Value) -> Result<Value> {
        let recorded = Rule {
            sizes: rule.sizes,
            convolution: Floats::new(&rule.convolution)?,
            rates: Floats::new(&rule.rates)?,
            dt_bias: Floats::new(&rule.dt_bias)?,
            beta: rule.beta as usize,
            decay: rule.decay as usize,
        };
        let (layer, width) = (self.recurrent, rule.sizes.values());
        self.recurrent += 1;
        Ok(self.step(Function::Recur { layer, rule: recorded }, &[*x], width))
    }

    fn norm_gated(&mut self, by: &RmsNorm, x: &Value, gates: &Value, column: i32) -> Result<Value> {
        let (width, column) = (self.width(*x), column as usize);
        let function = Function::NormGated { norm: norm(by)?, column };
        Ok(self.step(function, &[*x, *gates], width))
    }

    fn experts(&mut self, mlp: &ExpertMlp, routed: &Value, x: &Value) -> Result<Value> {
        let sizes = mlp.sizes;
        let experts = Experts {
            router: product(&mlp.router)?,
            gate_up: expert_weights(&mlp.gate_up)?,
            down: expert_weights(&mlp.down)?,
            experts: sizes.n_experts as usize,
            chosen: sizes.chosen as usize,
            intermediate: sizes.intermediate as usize,
            renormalized: sizes.renormalized,
            gate: mlp.gate,
            factors: mlp.factors.as_ref().map(Floats::new).transpose()?,
        };
        let width = self.width(*x);
        Ok(self.step(Function::Experts(Box::new(experts)), &[*routed, *x], width))
    }

    fn shared_experts(&mut self, mlp: &SharedExpertMlp, x: &Value) -> Result<Value> {
        let routed = self.experts(&mlp.routed, x, x)?;
        let shared = gated_mlp(self, &mlp.shared, x)?;
        let gate = self.product(&mlp.shared_gate, x)?;
        let width = self.width(*x);
        Ok(self.step(Function::AddShared, &[routed, shared, gate], width))
    }

    fn end_layer(&mut self, layer: usize, x: Value) -> Result<Value> {
        let output = self.place(x);
        self.steps.push(Step { function: Function::EndLayer(layer), inputs: vec![], output });
        Ok(x)
    }
}
