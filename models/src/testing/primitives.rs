//! A count of the primitives that an evaluation would run. A primitive is a node of MLX's graph: a
//! kernel or a few of a GPU, or a view that launches nothing.

use std::collections::{BTreeMap, HashSet};

use mlx_rs::Array;

pub use mlx_sys::{ArrayForm, Primitive, as_fused, evaluations};

use crate::error::{ModelError, Result};

/// The primitives that an evaluation of `roots` would run, each once, in no order.
///
/// # Errors
/// Memory is out.
pub fn primitives<'a>(roots: impl IntoIterator<Item = &'a Array>) -> Result<Vec<Primitive>> {
    let roots: Vec<_> = roots.into_iter().map(Array::as_ptr).collect();
    // SAFETY: these are arrays, and MLX belongs to this thread (I8).
    let found = unsafe { mlx_sys::graph_primitives(&roots) };
    found.ok_or_else(|| ModelError::Batch("expected memory for a list of primitives".into()))
}

/// How many primitives an evaluation of `roots` would run.
///
/// # Errors
/// Memory is out.
pub fn count<'a>(roots: impl IntoIterator<Item = &'a Array>) -> Result<usize> {
    Ok(primitives(roots)?.len())
}

/// Primitives by their names.
pub fn by_name(primitives: &[Primitive]) -> BTreeMap<&str, usize> {
    let mut counts = BTreeMap::new();
    for primitive in primitives {
        *counts.entry(primitive.name.as_str()).or_default() += 1;
    }
    counts
}

/// Names of the primitives that launch nothing on a GPU if what they read lies in one piece. Source:
/// those whose `eval_gpu` shares its input's buffer (mlx, `backend/gpu/primitives.cpp`).
pub fn views() -> HashSet<&'static str> {
    let views = ["Broadcast", "BroadcastAxes", "ExpandDims", "Flatten", "Reshape", "Slice"];
    let more = ["Split", "Squeeze", "StopGradient", "Transpose", "Unflatten", "View"];
    views.into_iter().chain(more).collect()
}

#[cfg(test)]
mod tests {
    use mlx_rs::fast;
    use mlx_rs::transforms::{async_eval, eval};

    use super::*;

    fn rows() -> Array {
        Array::from_slice(&[1.0f32, 2.0, 3.0, 4.0], &[2, 2])
    }

    #[test]
    fn each_primitive_counts_once_and_none_after_its_evaluation() {
        let x = rows();
        let sum = x.add(&x).expect("adds");
        let both = sum.multiply(&sum).expect("multiplies");
        let found = primitives([&both, &sum]).expect("counts");
        assert_eq!(by_name(&found), BTreeMap::from([("Add", 1), ("Multiply", 1)]));
        let product = found.iter().find(|one| one.name == "Multiply").expect("listed");
        assert_eq!(product.inputs, vec![product.outputs[0].clone(); 2]);
        assert_eq!(product.outputs[0].shape, [2, 2]);
        eval([&sum]).expect("evaluates");
        assert_eq!(count([&both]).expect("counts"), 1, "the sum is there");
        eval([&both]).expect("evaluates");
        assert_eq!(count([&both, &x]).expect("counts"), 0);
    }

    #[test]
    fn a_primitive_with_several_outputs_is_one() {
        let parts = rows().split_equal(2, 1).expect("splits");
        assert_eq!(parts.len(), 2);
        assert_eq!(count(&parts).expect("counts"), 1);
    }

    #[test]
    fn evaluations_count_only_where_something_is_to_run() {
        let before = evaluations();
        let x = rows();
        eval([&x]).expect("is there");
        x.eval().expect("is there");
        assert_eq!(evaluations(), before, "numbers of the host are no work");
        let (sum, product) = (x.add(&x).expect("adds"), x.multiply(&x).expect("multiplies"));
        eval([&sum, &product]).expect("evaluates");
        sum.eval().expect("is there");
        assert_eq!(evaluations(), before + 1);
        let next = sum.add(&product).expect("adds");
        async_eval([&next]).expect("begins");
        next.eval().expect("is under way");
        assert_eq!(evaluations(), before + 2);
    }

    #[test]
    fn a_norm_is_one_primitive_in_a_graph_that_is_counted() {
        let (x, weight) = (rows(), Array::from_slice(&[1.0f32, 1.0], &[2]));
        let norm = || fast::rms_norm(&x, Some(&weight), 1e-6).expect("norms");
        let apart = norm();
        assert!(count([&apart]).expect("counts") > 5, "MLX's CPU takes it apart");
        let one = as_fused(norm);
        let found = primitives([&one]).expect("counts");
        assert_eq!(by_name(&found), BTreeMap::from([("RMSNorm", 1)]));
        assert_eq!((one.shape(), one.dtype()), (apart.shape(), apart.dtype()));
        let error = eval([&one]).expect_err("it cannot be computed").to_string();
        assert!(error.contains("counted and not evaluated"), "{error}");
        eval([&norm()]).expect("the count is over");
    }
}
