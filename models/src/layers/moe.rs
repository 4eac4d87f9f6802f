//! Mixture of experts (arXiv 1701.06538): a router sends each row through a few of many gated
//! blocks and adds what they return, weighted.

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::ops::{argsort_axis, sigmoid, softmax_axis};
use mlx_rs::{Array, Dtype};

use super::mlp::gated;
use super::{ExpertLinear, Gate, GatedMlp, Linear, SortedPairs, computes};
use crate::error::Result;
use crate::load::{LoadError, Weights};

/// Sizes of a block of experts, and how their shares are computed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ExpertSizes {
    /// Width of the rows.
    pub(crate) hidden: i32,
    /// Width inside an expert.
    pub(crate) intermediate: i32,
    pub(crate) n_experts: i32,
    /// Experts that a row goes through.
    pub(crate) chosen: i32,
    /// Whether the shares of a row's experts are divided by their sum.
    pub(crate) renormalized: bool,
}

/// Pairs of a row and a chosen expert from which on MLX gets them in the order of the experts. mlx-lm
/// sorts from the same number on.
const SORTED_PAIRS: i32 = 64;

/// Experts behind a router, as in Qwen3 and Gemma 4.
#[derive(Debug)]
pub(crate) struct ExpertMlp {
    pub(super) router: Linear,
    pub(super) gate_up: ExpertLinear,
    pub(super) down: ExpertLinear,
    pub(super) sizes: ExpertSizes,
    pub(super) gate: Gate,
    /// Factor on the shares of each expert `[experts]`, float32.
    pub(super) factors: Option<Array>,
}

/// Names of a checkpoint's router and experts.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ExpertNames<'a> {
    /// The router's module.
    pub(crate) router: &'a str,
    /// The block of [`ExpertLinear::load`].
    pub(crate) block: &'a str,
}

impl ExpertMlp {
    /// Reads the router `{name}.gate` and the experts of the block `name` in either layout of
    /// [`ExpertLinear::load`].
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        sizes: ExpertSizes,
    ) -> Result<Self, LoadError> {
        let router = format!("{name}.gate");
        Self::load_named(weights, ExpertNames { router: &router, block: name }, sizes)
    }

    /// As [`ExpertMlp::load`], by these names.
    pub(crate) fn load_named(
        weights: &mut Weights,
        names: ExpertNames<'_>,
        sizes: ExpertSizes,
    ) -> Result<Self, LoadError> {
        let ExpertSizes { hidden, intermediate, n_experts, .. } = sizes;
        let ExpertNames { router, block } = names;
        let inner = [("gate_proj", intermediate), ("up_proj", intermediate)];
        let outer = [("down_proj", hidden)];
        Ok(Self {
            router: Linear::load(weights, router, n_experts, hidden, false)?,
            gate_up: ExpertLinear::load(weights, block, &inner, n_experts, hidden)?,
            down: ExpertLinear::load(weights, block, &outer, n_experts, intermediate)?,
            sizes,
            gate: Gate::Silu,
            factors: None,
        })
    }

    /// The experts with another activation, and with a factor on the shares of each, `[experts]`,
    /// float32.
    pub(crate) fn with(self, gate: Gate, factors: Array) -> Self {
        Self { gate, factors: Some(factors), ..self }
    }

    /// `x` `[rows, hidden]` → the same shape. The router chooses by `routed` `[rows, hidden]`. A
    /// row's result does not depend on the rows beside it.
    pub(crate) fn forward(&self, routed: &Array, x: &Array) -> Result<Array> {
        let ExpertSizes { chosen, renormalized, .. } = self.sizes;
        let mut routes = route(&self.router.forward(routed)?, chosen, renormalized)?;
        if let Some(factors) = &self.factors {
            routes.shares = routes.shares.multiply(factors.take_axis(&routes.experts, 0)?)?;
        }
        // Nodes of our own sort by themselves.
        let out = match x.dim(0) * chosen >= SORTED_PAIRS && !computes(&[x]) {
            true => self.by_expert(x, &routes.experts)?,
            false => self.by_row(x, &routes.experts)?,
        };
        let shares = routes.shares.as_dtype(out.dtype())?.expand_dims(2)?;
        Ok(out.multiply(shares)?.sum_axis(1, false)?)
    }

    /// What each of a row's experts makes of it, pairs in the order of the rows. `x` `[rows, hidden]`,
    /// `experts` `[rows, k]` → `[rows, k, hidden]`.
    fn by_row(&self, x: &Array, experts: &Array) -> Result<Array> {
        let ExpertSizes { intermediate, chosen, .. } = self.sizes;
        let both = self.gate_up.forward(x, experts)?;
        let inner = gated(&both.reshape(&[-1, 2 * intermediate])?, self.gate)?;
        let inner = inner.reshape(&[x.dim(0), chosen, intermediate])?;
        self.down.forward(&inner, experts)
    }

    /// As [`Self::by_row`], pairs in the order of the experts.
    fn by_expert(&self, x: &Array, experts: &Array) -> Result<Array> {
        #[cfg(test)]
        tests::SORTED.with(|sorted| sorted.set(sorted.get() + 1));
        let pairs = SortedPairs::of(experts)?;
        let both = self.gate_up.forward_sorted(&pairs.gather(x)?, &pairs)?;
        let out = self.down.forward_sorted(&gated(&both, self.gate)?, &pairs)?;
        pairs.put_back(&out, x.dim(0))
    }
}

/// Experts behind a router, and one more that every row goes through, as in Qwen3.5. A gate says
/// how much each row takes of it.
#[derive(Debug)]
pub(crate) struct SharedExpertMlp {
    pub(super) routed: ExpertMlp,
    pub(super) shared: GatedMlp,
    pub(super) shared_gate: Linear,
}

impl SharedExpertMlp {
    /// Reads what [`ExpertMlp::load`] does, the block `{name}.shared_expert`, `shared` wide, and
    /// `{name}.shared_expert_gate`.
    pub(crate) fn load(
        weights: &mut Weights,
        name: &str,
        sizes: ExpertSizes,
        shared: i32,
    ) -> Result<Self, LoadError> {
        let (block, hidden) = (format!("{name}.shared_expert"), sizes.hidden);
        Ok(Self {
            routed: ExpertMlp::load(weights, name, sizes)?,
            shared: GatedMlp::load(weights, &block, hidden, shared, false)?,
            shared_gate: Linear::load(weights, &format!("{block}_gate"), 1, hidden, false)?,
        })
    }

    /// `x` `[rows, hidden]` → the same shape. A row's result does not depend on the rows beside it.
    pub(crate) fn forward(&self, x: &Array) -> Result<Array> {
        let share = sigmoid(self.shared_gate.forward(x)?)?;
        let shared = self.shared.forward(x)?.multiply(share)?;
        Ok(self.routed.forward(x, x)?.add(shared)?)
    }
}

/// Where rows go.
struct Routes {
    /// `[rows, k]`, uint32: the most probable first, the lower number among equals.
    experts: Array,
    /// `[rows, k]`, float32.
    shares: Array,
}

/// The `k` most probable experts of each row, from the router's `logits` `[rows, experts]`.
fn route(logits: &Array, k: i32, renormalized: bool) -> Result<Routes> {
    let probabilities = softmax_axis(logits.as_dtype(Dtype::Float32)?, -1, true)?;
    // MLX sorts stably on every device, so equal ones stay in order.
    let experts = argsort_axis(probabilities.negative()?, -1)?.try_index((.., ..k))?;
    let shares = probabilities.take_along_axis(&experts, -1)?;
    let shares = match renormalized {
        true => shares.divide(shares.sum_axis(-1, true)?)?,
        false => shares,
    };
    Ok(Routes { experts, shares })
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;

    use super::*;
    use crate::device::{DeviceChoice, choose};
    use crate::layers::experts::ExpertForm;
    use crate::load::{QuantizedMatrix, StoredMatrix};

    thread_local! {
        /// Blocks of experts that got their pairs sorted.
        pub(super) static SORTED: Cell<usize> = const { Cell::new(0) };
    }

    const HIDDEN: i32 = 64;
    const EXPERTS: i32 = 12;

    /// Numbers of `dtype` between -1 and 1.
    fn wave(shape: &[i32], step: f32, dtype: Dtype) -> Array {
        let count = shape.iter().product::<i32>();
        let values: Vec<f32> = (0..count).map(|at| (at as f32 * step).sin()).collect();
        Array::from_slice(&values, shape).as_dtype(dtype).expect("a float type")
    }

    fn quantized(out: i32, input: i32, dtype: Dtype) -> ExpertLinear {
        let weight = wave(&[EXPERTS, out, input], 0.7113, dtype);
        let packed = QuantizedMatrix::pack(&weight, 4).expect("packs");
        ExpertLinear { parts: vec![ExpertForm::Quantized(packed)] }
    }

    /// A block whose products MLX computes on every device, because it is in 16 bits.
    fn block(dtype: Dtype) -> ExpertMlp {
        let sizes = ExpertSizes {
            hidden: HIDDEN,
            intermediate: 64,
            n_experts: EXPERTS,
            chosen: 3,
            renormalized: true,
        };
        let router = StoredMatrix::Float(wave(&[EXPERTS, HIDDEN], 0.317, dtype));
        ExpertMlp {
            router: Linear::of(router).expect("a view"),
            gate_up: quantized(2 * sizes.intermediate, HIDDEN, dtype),
            down: quantized(HIDDEN, sizes.intermediate, dtype),
            sizes,
            gate: Gate::Silu,
            factors: None,
        }
    }

    fn bits(array: &Array) -> Vec<u32> {
        let wide = array.as_dtype(Dtype::Float32).expect("a float type");
        numbers(&wide).iter().map(|number| number.to_bits()).collect()
    }

    #[test]
    fn pairs_in_the_order_of_the_experts_give_the_same_bits() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        for dtype in [Dtype::Bfloat16, Dtype::Float16] {
            let block = block(dtype);
            for rows in [1, 2, 22, 50] {
                let x = wave(&[rows, HIDDEN], 0.1931, dtype);
                let logits = block.router.forward(&x).expect("a product");
                let experts = route(&logits, 3, true).expect("routes").experts;
                let by_row = block.by_row(&x, &experts).expect("products");
                let by_expert = block.by_expert(&x, &experts).expect("products");
                assert_eq!(by_expert.shape(), &[rows, 3, HIDDEN]);
                assert_eq!(bits(&by_row), bits(&by_expert), "{rows} rows of {dtype:?}");
            }
        }
    }

    #[test]
    fn pairs_are_sorted_from_the_number_on_from_which_it_pays() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let block = block(Dtype::Bfloat16);
        // Three experts a row.
        for (rows, sorted) in [(1, 0), (21, 0), (22, 1), (512, 1)] {
            SORTED.with(|count| count.set(0));
            let x = wave(&[rows, HIDDEN], 0.1931, Dtype::Bfloat16);
            block.forward(&x, &x).expect("built");
            assert_eq!(SORTED.with(Cell::get), sorted, "{rows} rows");
        }
    }

    fn numbers(array: &Array) -> Vec<f32> {
        let array = array.contiguous().expect("a copy");
        array.eval().expect("evaluates");
        array.try_as_slice::<f32>().expect("floats").to_vec()
    }

    fn experts(routes: &Routes) -> Vec<u32> {
        let array = routes.experts.contiguous().expect("a copy");
        array.eval().expect("evaluates");
        array.try_as_slice::<u32>().expect("numbers of experts").to_vec()
    }

    #[test]
    fn the_best_experts_are_chosen_and_the_lower_number_among_equals() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let logits = [
            [0.0, 3.0, 1.0, 2.0, -1.0],
            [1.0, 0.0, 1.0, 1.0, 1.0],
            [-2.0, -2.0, -2.0, -2.0, -2.0],
            [0.5, 7.0, 0.5, 0.5, 7.0],
        ];
        let logits = Array::from_slice(&logits.concat(), &[4, 5]);
        let routes = route(&logits, 3, false).expect("routes");
        assert_eq!(experts(&routes), [1, 3, 2, 0, 2, 3, 0, 1, 2, 1, 4, 0]);
        let shares = numbers(&routes.shares);
        // The softmax is over all experts.
        let all: f32 = [0.0f32, 3.0, 1.0, 2.0, -1.0].iter().map(|logit| logit.exp()).sum();
        for (share, logit) in shares.iter().zip([3.0f32, 2.0, 1.0]) {
            assert!((share - logit.exp() / all).abs() < 1e-6, "{shares:?}");
        }
        assert!(shares[6..9].iter().all(|share| (share - 0.2).abs() < 1e-6), "{shares:?}");
        let renormalized = numbers(&route(&logits, 3, true).expect("routes").shares);
        for row in renormalized.chunks(3) {
            assert!((row.iter().sum::<f32>() - 1.0).abs() < 1e-6, "{row:?}");
        }
    }

    #[test]
    fn rows_are_routed_alone_as_beside_others() {
        choose(DeviceChoice::Cpu).expect("there is a CPU");
        let values: Vec<f32> = (0..33 * 24).map(|at| (at as f32 * 0.37).sin()).collect();
        let logits = Array::from_slice(&values, &[33, 24]);
        let together = route(&logits, 4, true).expect("routes");
        let (all_experts, all_shares) = (experts(&together), numbers(&together.shares));
        for row in 0..33 {
            let one = logits.try_index((row..row + 1, ..)).expect("a row");
            let alone = route(&one, 4, true).expect("routes");
            let at = row as usize * 4;
            assert_eq!(experts(&alone), all_experts[at..at + 4], "row {row}");
            let bits = |shares: &[f32]| shares.iter().map(|x| x.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&numbers(&alone.shares)), bits(&all_shares[at..at + 4]), "row {row}");
        }
    }
}
