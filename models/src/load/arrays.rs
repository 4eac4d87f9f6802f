//! Bytes of mapped files → arrays, each number copied once. On the CPU of Linux an array's numbers
//! are written where they stay, by a node of the graph, so that loading needs no other memory.
//! Elsewhere they pass through one more buffer if they are converted or joined.

use std::sync::{Mutex, PoisonError};

use half::bf16;
use mlx_rs::ops::broadcast_to;
use mlx_rs::{Array, Dtype as MlxDtype};
#[cfg(target_os = "linux")]
use mlx_sys::HostOutput;
use paceline_checkpoint::numbers::floats;
use safetensors::tensor::Dtype;

use super::LoadError;
use super::expand::{GroupScale, byte_scale, expand};
use super::mapped::MappedBytes;
use super::{QuantFormat, QuantMode};

/// MLX's type for a stored one, of those that are read.
pub(super) fn mlx_dtype(dtype: Dtype) -> Option<MlxDtype> {
    match dtype {
        Dtype::F32 => Some(MlxDtype::Float32),
        Dtype::F16 => Some(MlxDtype::Float16),
        Dtype::BF16 => Some(MlxDtype::Bfloat16),
        Dtype::U32 => Some(MlxDtype::Uint32),
        Dtype::U8 => Some(MlxDtype::Uint8),
        _ => None,
    }
}

/// The pieces one after another as they are stored.
pub(super) fn stored(
    pieces: Vec<MappedBytes>,
    dtype: Dtype,
    shape: &[i32],
) -> Result<Array, LoadError> {
    let bytes: usize = pieces.iter().map(|piece| piece.as_slice().len()).sum();
    let item = dtype.bitsize() / 8;
    assert_eq!(bytes, count(shape) * item, "shapes were checked against the header");
    if let [piece] = pieces.as_slice()
        && !fills()
        && piece.as_slice().as_ptr().addr().is_multiple_of(item)
    {
        let as_mlx = mlx_dtype(dtype).expect("its type was checked");
        // SAFETY: there are as many bytes as the shape needs, aligned for the type; they are
        // copied.
        return Ok(unsafe {
            Array::from_raw_data(piece.as_slice().as_ptr().cast(), shape, as_mlx)
        });
    }
    let [array] = written([(dtype, shape)], move |[out]| copy(&pieces, out))?;
    Ok(array)
}

/// Evaluated arrays of these types and shapes, whose bytes `function` writes all together.
pub(super) fn written<const N: usize>(
    parts: [(Dtype, &[i32]); N],
    function: impl Fn([&mut [u8]; N]) + Send + Sync + 'static,
) -> Result<[Array; N], LoadError> {
    let lengths = parts.map(|(dtype, shape)| count(shape) * (dtype.bitsize() / 8));
    let as_mlx = parts.map(|(dtype, _)| mlx_dtype(dtype).expect("its type was checked"));
    #[cfg(target_os = "linux")]
    if fills() && lengths.iter().all(|bytes| bytes.is_multiple_of(4)) {
        let too_large = || LoadError::TooLarge { bytes: lengths.iter().sum() };
        let words = lengths.map(|bytes| i32::try_from(bytes / 4));
        let words = words.into_iter().collect::<Result<Vec<i32>, _>>().map_err(|_| too_large())?;
        let shapes: Vec<&[i32]> = words.iter().map(std::slice::from_ref).collect();
        let fill = move |_: &[mlx_sys::HostRows<'_>],
                         _: &[mlx_sys::HostNumbers<'_>],
                         outs: &mut [&mut [f32]]| {
            outs.iter_mut().for_each(|out| paceline_cpu::huge_pages::advise(out));
            if let Some(outs) = outs.first_chunk_mut::<N>() {
                function(outs.each_mut().map(|out| bytes_of(out)));
            }
        };
        // SAFETY: there are no inputs, and the results have no other owner.
        let made = unsafe { mlx_sys::host_arrays(&[], &[], &shapes, HostOutput::Fresh, fill) };
        let mut made = made.ok_or_else(too_large)?.into_iter();
        let mut arrays = Vec::with_capacity(N);
        for ((_, shape), dtype) in parts.into_iter().zip(as_mlx) {
            // SAFETY: the handle is nobody else's.
            let words = unsafe { Array::from_ptr(made.next().expect("as many as shapes")) };
            arrays.push(words.view_dtype(dtype)?.reshape(shape)?);
        }
        mlx_rs::transforms::eval(&arrays)?;
        return Ok(arrays.try_into().expect("as many as shapes"));
    }
    // Words are aligned for every type here.
    let mut words = lengths.map(|bytes| vec![0.0f32; bytes.div_ceil(4)]);
    let mut bytes = lengths.into_iter();
    function(words.each_mut().map(|words| &mut bytes_of(words)[..bytes.next().unwrap_or(0)]));
    let mut parts = parts.into_iter().zip(as_mlx);
    Ok(words.map(|words| {
        let ((_, shape), dtype) = parts.next().expect("as many as shapes");
        // SAFETY: there are as many bytes as the shape needs, aligned for the type; they are copied.
        unsafe { Array::from_raw_data(words.as_ptr().cast(), shape, dtype) }
    }))
}

/// The bytes of numbers.
fn bytes_of(numbers: &mut [f32]) -> &mut [u8] {
    // SAFETY: a float is four bytes of any value, and the borrow goes on.
    unsafe {
        std::slice::from_raw_parts_mut(numbers.as_mut_ptr().cast(), size_of_val::<[f32]>(numbers))
    }
}

/// Threads that write an array. A load reads one tensor after another, and most of its time the system
/// clears pages.
const MOST_THREADS: usize = 8;
/// Bytes that one thread writes at a time.
const PART_BYTES: usize = 2 << 20;

/// Calls `each` with all jobs, on several threads.
pub(super) fn on_threads<J: Send>(jobs: Vec<J>, each: impl Fn(J) + Sync) {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    let threads = threads.min(jobs.len());
    if threads <= 1 {
        return jobs.into_iter().for_each(each);
    }
    let jobs = Mutex::new(jobs.into_iter());
    let work = || {
        while let Some(job) = { jobs.lock().unwrap_or_else(PoisonError::into_inner).next() } {
            each(job);
        }
    };
    std::thread::scope(|scope| {
        (1..threads).for_each(|_| drop(scope.spawn(work)));
        work();
    });
}

/// Copies the pieces one after another.
fn copy(pieces: &[MappedBytes], out: &mut [u8]) {
    let (mut jobs, mut rest) = (vec![], out);
    for part in pieces.iter().flat_map(|piece| piece.as_slice().chunks(PART_BYTES)) {
        let (own, other) = rest.split_at_mut(part.len());
        rest = other;
        jobs.push((part, own));
    }
    on_threads(jobs, |(part, out)| out.copy_from_slice(part));
}

/// The pieces one after another as float32. `pieces` are floats.
pub(super) fn widened(
    pieces: Vec<(MappedBytes, Dtype)>,
    shape: &[i32],
) -> Result<Array, LoadError> {
    filled(shape, move |out| {
        let (mut jobs, mut rest) = (vec![], out);
        for (piece, dtype) in &pieces {
            for part in piece.as_slice().chunks(PART_BYTES) {
                let (own, other) = rest.split_at_mut(part.len() / (dtype.bitsize() / 8));
                rest = other;
                jobs.push((part, *dtype, own));
            }
        }
        on_threads(jobs, |(part, dtype, out)| floats(part, dtype, out));
    })
}

/// Zeros of `shape` that take the memory of one number.
pub(super) fn blank(dtype: MlxDtype, shape: &[i32]) -> Result<Array, LoadError> {
    let zeros = broadcast_to(Array::from_f32(0.0).as_dtype(dtype)?, shape)?;
    zeros.eval()?;
    Ok(zeros)
}

/// A quantized weight's bytes, whose parts are cut at the same rows.
#[derive(Clone, Debug)]
pub(super) struct PackedPieces {
    pub(super) packed: MappedBytes,
    pub(super) scales: MappedBytes,
    pub(super) scales_dtype: Dtype,
    pub(super) biases: Option<MappedBytes>,
}

impl PackedPieces {
    /// How many they are.
    pub(super) fn bytes(&self) -> usize {
        let parts = [Some(&self.packed), Some(&self.scales), self.biases.as_ref()];
        parts.into_iter().flatten().map(|part| part.as_slice().len()).sum()
    }
}

/// The pieces' numbers one after another as float32.
pub(super) fn expanded(
    pieces: Vec<PackedPieces>,
    format: QuantFormat,
    shape: &[i32],
) -> Result<Array, LoadError> {
    filled(shape, move |out| {
        let mut rest = out;
        for PackedPieces { packed, scales, scales_dtype, biases } in &pieces {
            let length = packed.as_slice().len() * 8 / format.bits as usize;
            let (own, other) = rest.split_at_mut(length);
            let (scales, dtype) = (scales.as_slice(), *scales_dtype);
            let biases = biases.as_ref().map_or(&[][..], MappedBytes::as_slice);
            let scale = |at| match format.mode {
                QuantMode::Affine => {
                    GroupScale { scale: float(scales, dtype, at), bias: float(biases, dtype, at) }
                }
                mode => byte_scale(mode, scales[at]),
            };
            expand(format, packed.as_slice(), scale, own);
            rest = other;
        }
    })
}

/// Numbers of mxfp4 as affine ones: packed numbers, scales and biases. w = s · q - 12 · s, where 2 · w
/// is a whole number from -12 to 12 and s half of the group's scale: exactly, up to scales of 2^125.
pub(super) fn affine_mxfp4(pieces: &[PackedPieces], [words, groups]: [&[i32]; 2]) -> [Array; 3] {
    const NUMBERS: [u32; 16] = [12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0];
    let mut packed = Vec::with_capacity(count(words));
    let (mut scales, mut biases) = (Vec::with_capacity(count(groups)), vec![]);
    for piece in pieces {
        for group in piece.packed.as_slice().chunks_exact(16) {
            let mut bits = [0u32; 5];
            for at in 0..32 {
                let code = group[at / 2] >> (at % 2 * 4) & 15;
                let number = u64::from(NUMBERS[code as usize]) << (at * 5 % 32);
                bits[at * 5 / 32] |= number as u32;
                if number >> 32 > 0 {
                    bits[at * 5 / 32 + 1] |= (number >> 32) as u32;
                }
            }
            packed.extend(bits);
        }
        for byte in piece.scales.as_slice() {
            let half = byte_scale(QuantMode::Mxfp4, *byte).scale / 2.0;
            scales.push(bf16::from_f32(half));
            biases.push(bf16::from_f32(-12.0 * half));
        }
    }
    // The shapes of all pieces were compared with the format when they were opened.
    [
        Array::from_slice(&packed, words),
        Array::from_slice(&scales, groups),
        Array::from_slice(&biases, groups),
    ]
}

fn count(shape: &[i32]) -> usize {
    shape.iter().map(|length| *length as usize).product()
}

/// Number `at` of stored floats; 0 where there is none.
fn float(bytes: &[u8], dtype: Dtype, at: usize) -> f32 {
    let mut out = [0.0];
    let size = dtype.bitsize() / 8;
    floats(bytes.get(at * size..(at + 1) * size).unwrap_or(&[]), dtype, &mut out);
    out[0]
}

/// Whether [`filled`] writes into the array's own memory.
fn fills() -> bool {
    cfg!(target_os = "linux") && !crate::device::on_gpu()
}

/// An evaluated array of `shape`, float32, whose numbers `function` writes.
fn filled(
    shape: &[i32],
    function: impl Fn(&mut [f32]) + Send + Sync + 'static,
) -> Result<Array, LoadError> {
    #[cfg(target_os = "linux")]
    if fills() {
        let fill = move |_: &[mlx_sys::HostRows<'_>], out: &mut [f32]| {
            paceline_cpu::huge_pages::advise(out);
            function(out);
        };
        // SAFETY: there are no inputs, and the result has no other owner.
        let made = unsafe {
            mlx_sys::host_array(&[], shape, HostOutput::Fresh, fill)
                .map(|handle| Array::from_ptr(handle))
        };
        let array = made.ok_or(LoadError::TooLarge { bytes: 4 * count(shape) })?;
        array.eval()?;
        return Ok(array);
    }
    let mut numbers = vec![0.0; count(shape)];
    function(&mut numbers);
    Ok(Array::from_slice(&numbers, shape))
}
