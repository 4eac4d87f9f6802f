//! What MLX is asked to compute: the primitives of a graph that is not evaluated yet
//! (shim/graph.cpp), and the number of evaluations of this process. For tests and reports that hold
//! a graph to a bound.

use std::ffi::{CStr, c_char, c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};

use crate::bindings::{self, mlx_array, mlx_dtype, mlx_vector_array};

/// Form of an array: its element type as mlx-c numbers it, and its lengths.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArrayForm {
    /// `mlx_dtype__MLX_…`.
    pub dtype: mlx_dtype,
    /// Lengths of the axes.
    pub shape: Vec<i32>,
}

/// A node of the graph.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Primitive {
    /// Its name in MLX, such as `QuantizedMatmul`.
    pub name: String,
    /// What it computes.
    pub outputs: Vec<ArrayForm>,
    /// What it reads.
    pub inputs: Vec<ArrayForm>,
}

/// `struct paceline_array_shape`.
#[repr(C)]
struct RawShape {
    lengths: *const c_int,
    axes: usize,
    dtype: c_int,
}

/// `struct paceline_primitive`.
#[repr(C)]
struct RawPrimitive {
    name: *const c_char,
    outputs: *const RawShape,
    outputs_count: usize,
    inputs: *const RawShape,
    inputs_count: usize,
}

unsafe extern "C" {
    fn paceline_graph(
        roots: *const mlx_array,
        count: usize,
        context: *mut c_void,
        visit: unsafe extern "C" fn(*mut c_void, *const RawPrimitive),
    ) -> c_int;
    fn paceline_is_unscheduled(array: mlx_array) -> c_int;
    fn paceline_any_unscheduled(arrays: mlx_vector_array) -> c_int;
}

/// # Safety
/// There are as many shapes, each with its lengths, for the call.
unsafe fn forms(shapes: *const RawShape, count: usize) -> Vec<ArrayForm> {
    let form = |at| {
        // SAFETY: the caller's. An array of no axes may have no lengths at all.
        unsafe {
            let RawShape { lengths, axes, dtype } = &*shapes.add(at);
            let shape = match axes {
                0 => vec![],
                axes => std::slice::from_raw_parts(*lengths, *axes).to_vec(),
            };
            ArrayForm { dtype: *dtype as mlx_dtype, shape }
        }
    };
    (0..count).map(form).collect()
}

unsafe extern "C" fn visit(context: *mut c_void, primitive: *const RawPrimitive) {
    // SAFETY: `context` is the list of `graph_primitives`; the primitive is as graph.cpp describes
    // it, for the call.
    unsafe {
        let all: &mut Vec<Primitive> = &mut *context.cast();
        let RawPrimitive { name, outputs, outputs_count, inputs, inputs_count } = &*primitive;
        all.push(Primitive {
            name: CStr::from_ptr(*name).to_string_lossy().into_owned(),
            outputs: forms(*outputs, *outputs_count),
            inputs: forms(*inputs, *inputs_count),
        });
    }
}

/// The primitives that an evaluation of `roots` would run, each once, in no order. A primitive with
/// several outputs is one. `None` if memory is out.
///
/// # Safety
/// `roots` are arrays, and no other thread evaluates them meanwhile.
pub unsafe fn graph_primitives(roots: &[mlx_array]) -> Option<Vec<Primitive>> {
    let mut all: Vec<Primitive> = vec![];
    // SAFETY: the caller's; the list outlives the call.
    let failed = unsafe {
        paceline_graph(roots.as_ptr(), roots.len(), std::ptr::from_mut(&mut all).cast(), visit)
    };
    (failed == 0).then_some(all)
}

/// Calls of [`mlx_eval`], [`mlx_async_eval`] and [`mlx_array_eval`] that had something to run.
static EVALUATIONS: AtomicU64 = AtomicU64::new(0);

/// How often this process gave MLX a graph to evaluate, since it began. Arrays that are there or
/// under way already do not count.
pub fn evaluations() -> u64 {
    EVALUATIONS.load(Ordering::Relaxed)
}

fn count(has_work: c_int) {
    if has_work != 0 {
        EVALUATIONS.fetch_add(1, Ordering::Relaxed);
    }
}

/// mlx-c's function, counted in [`evaluations`].
///
/// # Safety
/// As mlx-c's.
pub unsafe fn mlx_eval(outputs: mlx_vector_array) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        count(paceline_any_unscheduled(outputs));
        bindings::mlx_eval(outputs)
    }
}

/// mlx-c's function, counted in [`evaluations`].
///
/// # Safety
/// As mlx-c's.
pub unsafe fn mlx_async_eval(outputs: mlx_vector_array) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        count(paceline_any_unscheduled(outputs));
        bindings::mlx_async_eval(outputs)
    }
}

/// mlx-c's function, counted in [`evaluations`].
///
/// # Safety
/// As mlx-c's.
pub unsafe fn mlx_array_eval(arr: mlx_array) -> c_int {
    // SAFETY: the caller's.
    unsafe {
        count(paceline_is_unscheduled(arr));
        bindings::mlx_array_eval(arr)
    }
}
