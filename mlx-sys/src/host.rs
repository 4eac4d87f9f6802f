//! Nodes of MLX's graph that a Rust function computes, on the CPU, in float32 (shim/host.cpp).
//! Beside rows of float32 a node may have inputs of other types: quantized weights.
//! MLX's own element-wise operations go one number at a time on x86, and each node costs
//! microseconds: one node for what belongs together, and the vectors the processor has, are several
//! times faster.

use std::ffi::{c_int, c_void};

use crate::{mlx_array, mlx_array_free, mlx_array_new};

/// The rows of an input: its first axis, whatever the others are. A vector is one row.
#[derive(Clone, Copy, Debug)]
pub struct HostRows<'a> {
    data: &'a [f32],
    rows: usize,
    stride: usize,
    length: usize,
}

impl<'a> HostRows<'a> {
    /// Rows of `length` numbers that lie one after another.
    pub fn dense(data: &'a [f32], length: usize) -> Self {
        Self { data, rows: data.len().checked_div(length).unwrap_or(0), stride: length, length }
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.rows
    }

    /// Numbers of a row.
    pub fn length(&self) -> usize {
        self.length
    }

    /// All of them, if they lie one after another.
    pub fn all(&self) -> Option<&'a [f32]> {
        (self.stride == self.length || self.rows <= 1).then_some(self.data)
    }

    /// The numbers from the first row's first to the last row's last.
    pub fn numbers(&self) -> &'a [f32] {
        self.data
    }

    /// Numbers from one row to the next.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// One of them.
    ///
    /// # Panics
    /// `at` is not the index of a row.
    pub fn row(&self, at: usize) -> &'a [f32] {
        assert!(at < self.rows, "expected one of {} rows, found {at}", self.rows);
        &self.data[at * self.stride..][..self.length]
    }
}

/// All numbers of an input that is no rows, in the order of their indices, as they are stored.
#[derive(Clone, Copy, Debug)]
pub enum HostNumbers<'a> {
    /// Floats.
    Float32(&'a [f32]),
    /// IEEE halves as their bits.
    Float16(&'a [u16]),
    /// bfloat16 as their bits.
    Bfloat16(&'a [u16]),
    /// Unsigned integers.
    Uint32(&'a [u32]),
}

/// `struct paceline_rows`.
#[repr(C)]
struct RawRows {
    data: *const f32,
    rows: usize,
    stride: usize,
    length: usize,
}

impl RawRows {
    /// # Safety
    /// The rows are there for as long as the result is used.
    unsafe fn rows<'a>(&self) -> HostRows<'a> {
        let RawRows { data, rows, stride, length } = *self;
        let size = if rows == 0 || length == 0 { 0 } else { (rows - 1) * stride + length };
        // SAFETY: the caller's.
        HostRows { data: unsafe { slice(data, size) }, rows, stride, length }
    }
}

/// `struct paceline_numbers`.
#[repr(C)]
struct RawNumbers {
    data: *const c_void,
    count: usize,
    kind: c_int,
}

impl RawNumbers {
    /// # Safety
    /// The numbers are there for as long as the result is used.
    unsafe fn numbers<'a>(&self) -> HostNumbers<'a> {
        let RawNumbers { data, count, kind } = *self;
        // SAFETY: the caller's; host.cpp aligns the numbers and knows these kinds only.
        unsafe {
            match kind {
                0 => HostNumbers::Float32(slice(data.cast(), count)),
                1 => HostNumbers::Float16(slice(data.cast(), count)),
                2 => HostNumbers::Bfloat16(slice(data.cast(), count)),
                _ => HostNumbers::Uint32(slice(data.cast(), count)),
            }
        }
    }
}

/// `struct paceline_inputs`.
#[repr(C)]
struct RawInputs {
    rows: *const RawRows,
    rows_count: usize,
    numbers: *const RawNumbers,
    numbers_count: usize,
}

/// A slice that may be empty and nowhere.
///
/// # Safety
/// There are as many elements for as long as the result is used.
unsafe fn slice<'a, T>(data: *const T, count: usize) -> &'a [T] {
    // SAFETY: the caller's.
    if count == 0 { &[] } else { unsafe { std::slice::from_raw_parts(data, count) } }
}

/// `struct paceline_output`.
#[repr(C)]
struct RawOutput {
    data: *mut f32,
    size: usize,
}

type Compute = Box<dyn Fn(&[HostRows<'_>], &[HostNumbers<'_>], &mut [&mut [f32]]) + Send + Sync>;

unsafe extern "C" {
    fn paceline_host(
        results: *mut mlx_array,
        outputs: usize,
        axes: *const usize,
        shapes: *const c_int,
        inputs: *const mlx_array,
        count: usize,
        rows_count: usize,
        in_place: usize,
        context: *mut c_void,
        compute: unsafe extern "C" fn(*const c_void, *const RawInputs, *const RawOutput, usize),
        drop: unsafe extern "C" fn(*mut c_void),
    ) -> c_int;
}

/// A panic in here ends the process, as one on an engine's thread does.
unsafe extern "C" fn compute(
    context: *const c_void,
    inputs: *const RawInputs,
    outputs: *const RawOutput,
    count: usize,
) {
    // SAFETY: `context` is what `host_arrays` handed over and not dropped yet; inputs and outputs
    // are as host.cpp describes them, live for the call, and no output is an input or another
    // output.
    unsafe {
        let context: &Compute = &*context.cast();
        let RawInputs { rows, rows_count, numbers, numbers_count } = &*inputs;
        let rows: Vec<_> = slice(*rows, *rows_count).iter().map(|raw| raw.rows()).collect();
        let numbers: Vec<_> =
            slice(*numbers, *numbers_count).iter().map(|raw| raw.numbers()).collect();
        let output = |raw: &RawOutput| match raw.size {
            0 => &mut [][..],
            size => std::slice::from_raw_parts_mut(raw.data, size),
        };
        let mut outputs: Vec<&mut [f32]> = slice(outputs, count).iter().map(output).collect();
        context(&rows, &numbers, &mut outputs);
    }
}

unsafe extern "C" fn drop_context(context: *mut c_void) {
    // SAFETY: made by `host_arrays`, given back once.
    drop(unsafe { Box::<Compute>::from_raw(context.cast()) });
}

/// Where the outputs' memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOutput {
    /// New memory, of any content.
    Fresh,
    /// As many of the first outputs begin as the values of as many first inputs, each in its
    /// input's memory if no other node needs that. The function gets the other inputs only, and the
    /// further outputs are fresh.
    InPlace(usize),
}

impl HostOutput {
    /// How many outputs begin as inputs.
    fn in_place(self) -> usize {
        match self {
            Self::Fresh => 0,
            Self::InPlace(count) => count,
        }
    }
}

/// A lazy array of `shape`, float32, of which `function` fills the rows when it is evaluated.
/// `None`: an input is not float32, the default device is not the CPU, a length is negative, the
/// input of an output in place has another size ([`HostOutput::InPlace`]), or memory is out.
///
/// The function runs on MLX's thread, later and at most once for each evaluation; it must not call
/// MLX, and a panic in it ends the process.
///
/// # Safety
/// `inputs` are arrays. The result is the caller's to free.
pub unsafe fn host_array(
    inputs: &[mlx_array],
    shape: &[c_int],
    output: HostOutput,
    function: impl Fn(&[HostRows<'_>], &mut [f32]) + Send + Sync + 'static,
) -> Option<mlx_array> {
    // SAFETY: the caller's.
    unsafe { host_array_with(inputs, &[], shape, output, move |rows, _, out| function(rows, out)) }
}

/// [`host_array`] with further inputs, of which the function gets all numbers as they are stored.
/// They are copied only if they do not lie in the order of their indices. `None` also if they are
/// neither float32, float16, bfloat16 nor uint32.
///
/// # Safety
/// `inputs` and `numbers` are arrays. The result is the caller's to free.
pub unsafe fn host_array_with(
    inputs: &[mlx_array],
    numbers: &[mlx_array],
    shape: &[c_int],
    output: HostOutput,
    function: impl Fn(&[HostRows<'_>], &[HostNumbers<'_>], &mut [f32]) + Send + Sync + 'static,
) -> Option<mlx_array> {
    // SAFETY: the caller's.
    let made = unsafe {
        host_arrays(inputs, numbers, &[shape], output, move |rows, numbers, outputs| {
            function(rows, numbers, outputs[0]);
        })
    };
    made.and_then(|made| made.into_iter().next())
}

/// Several lazy arrays of `shapes`, float32, that one function fills together when one of them is
/// evaluated. Otherwise as [`host_array_with`].
///
/// # Safety
/// `inputs` and `numbers` are arrays. The results are the caller's to free.
pub unsafe fn host_arrays(
    inputs: &[mlx_array],
    numbers: &[mlx_array],
    shapes: &[&[c_int]],
    output: HostOutput,
    function: impl Fn(&[HostRows<'_>], &[HostNumbers<'_>], &mut [&mut [f32]]) + Send + Sync + 'static,
) -> Option<Vec<mlx_array>> {
    let lengths = shapes.concat();
    if shapes.is_empty() || lengths.iter().any(|length| *length < 0) {
        return None;
    }
    let function: Compute = Box::new(function);
    let context: *mut c_void = Box::into_raw(Box::new(function)).cast();
    let axes: Vec<usize> = shapes.iter().map(|shape| shape.len()).collect();
    let all = [inputs, numbers].concat();
    // SAFETY: as the caller says; the context is taken over in any case.
    unsafe {
        let mut results: Vec<mlx_array> = shapes.iter().map(|_| mlx_array_new()).collect();
        match paceline_host(
            results.as_mut_ptr(),
            results.len(),
            axes.as_ptr(),
            lengths.as_ptr(),
            all.as_ptr(),
            all.len(),
            inputs.len(),
            output.in_place(),
            context,
            compute,
            drop_context,
        ) {
            0 => Some(results),
            _ => {
                results.into_iter().for_each(|result| {
                    mlx_array_free(result);
                });
                None
            }
        }
    }
}
