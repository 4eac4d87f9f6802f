//! Nodes of MLX's graph that a Rust function computes, on the CPU, in float32 (shim/host.cpp).
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

    /// One of them.
    ///
    /// # Panics
    /// There are not so many.
    pub fn row(&self, at: usize) -> &'a [f32] {
        assert!(at < self.rows, "expected one of {} rows, found {at}", self.rows);
        &self.data[at * self.stride..][..self.length]
    }
}

/// `struct paceline_rows`.
#[repr(C)]
struct RawRows {
    data: *const f32,
    rows: usize,
    stride: usize,
    length: usize,
}

type Compute = Box<dyn Fn(&[HostRows<'_>], &mut [f32]) + Send + Sync>;

unsafe extern "C" {
    fn paceline_host(
        result: *mut mlx_array,
        inputs: *const mlx_array,
        count: usize,
        shape: *const c_int,
        axes: usize,
        in_place: bool,
        context: *mut c_void,
        compute: unsafe extern "C" fn(*const c_void, *const RawRows, usize, *mut f32, usize),
        drop: unsafe extern "C" fn(*mut c_void),
    ) -> c_int;
}

/// A panic in here ends the process, as one on an engine's thread does.
unsafe extern "C" fn compute(
    context: *const c_void,
    inputs: *const RawRows,
    count: usize,
    output: *mut f32,
    size: usize,
) {
    // SAFETY: `context` is what `array` handed over and not dropped yet; inputs and output are as
    // host.cpp describes them, live for the call, and no input is the output.
    unsafe {
        let context: &Compute = &*context.cast();
        let raw = if count == 0 { &[] } else { std::slice::from_raw_parts(inputs, count) };
        let rows: Vec<HostRows<'_>> = raw
            .iter()
            .map(|&RawRows { data, rows, stride, length }| {
                let size = if rows == 0 || length == 0 { 0 } else { (rows - 1) * stride + length };
                let data = if size == 0 { &[] } else { std::slice::from_raw_parts(data, size) };
                HostRows { data, rows, stride, length }
            })
            .collect();
        let output = if size == 0 { &mut [] } else { std::slice::from_raw_parts_mut(output, size) };
        context(&rows, output);
    }
}

unsafe extern "C" fn drop_context(context: *mut c_void) {
    // SAFETY: made by `array`, given back once.
    drop(unsafe { Box::<Compute>::from_raw(context.cast()) });
}

/// Where the output's memory comes from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HostOutput {
    /// New memory, of any content.
    Fresh,
    /// It begins as the first input's values, in its memory where no other node needs it; the
    /// function sees the other inputs only.
    First,
}

/// A lazy array of `shape`, float32, of which `function` fills the rows when it is evaluated.
/// `None`: an input is not float32, the default device is not the CPU, a length is negative, the
/// first input has another size ([`HostOutput::First`]), or memory is out.
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
    if shape.iter().any(|length| *length < 0) {
        return None;
    }
    let function: Compute = Box::new(function);
    let context: *mut c_void = Box::into_raw(Box::new(function)).cast();
    // SAFETY: as the caller says; the context is taken over in any case.
    unsafe {
        let mut result = mlx_array_new();
        let in_place = output == HostOutput::First;
        let (inputs, count) = (inputs.as_ptr(), inputs.len());
        match paceline_host(
            &mut result,
            inputs,
            count,
            shape.as_ptr(),
            shape.len(),
            in_place,
            context,
            compute,
            drop_context,
        ) {
            0 => Some(result),
            _ => {
                mlx_array_free(result);
                None
            }
        }
    }
}
