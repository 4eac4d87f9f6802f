//! Tensors of GGUF files: blocks as packed numbers with scales and biases, floats as the checkpoint has
//! them. What llama.cpp's converter did to the order of rows and to norms is undone.
//!
//! ```text
//! Q4_0 Q4_1 Q5_0 Q5_1 Q8_0    affine groups of 32, factors in float16: the same numbers
//! Q4_K Q5_K                   affine groups of 32, factors in float32: the same numbers
//! Q6_K                        float32
//! ```
//! Source of the layouts: ggml's `ggml-quants.c`, held against the Python package gguf in
//! `paceline-checkpoint`.

use half::f16;
use paceline_checkpoint::from_gguf::{RowOrder, StoredForm};
use paceline_checkpoint::gguf::{BlockType, expand};
use safetensors::tensor::Dtype;

use super::QuantFormat;
use super::arrays::PackedPieces;
use super::mapped::MappedBytes;

/// Values that share a scale and a bias.
const GROUP: usize = 32;
/// Threads that convert a tensor. A load reads one tensor after another.
const MOST_THREADS: usize = 8;

/// The format of packed numbers that blocks of this type become. `None`: they become floats.
pub(super) fn format(kind: BlockType) -> Option<QuantFormat> {
    let bits = match kind {
        BlockType::Q4_0 | BlockType::Q4_1 | BlockType::Q4K => 4,
        BlockType::Q5_0 | BlockType::Q5_1 | BlockType::Q5K => 5,
        BlockType::Q8_0 => 8,
        _ => return None,
    };
    Some(QuantFormat::affine(bits, GROUP as i32))
}

/// The type of the scales and biases of blocks of this type, unless they are larger than it has.
pub(super) fn factors(kind: BlockType) -> Dtype {
    if matches!(kind, BlockType::Q4K | BlockType::Q5K) { Dtype::F32 } else { Dtype::F16 }
}

/// A group of a block: its numbers, and w = scale · q + bias.
struct BlockGroup {
    numbers: [u8; GROUP],
    scale: f32,
    bias: f32,
}

/// The rows of a tensor in the checkpoint's order, each as it is stored.
struct Rows<'a> {
    bytes: &'a [u8],
    count: usize,
    order: RowOrder,
}

impl<'a> Rows<'a> {
    fn length(&self) -> usize {
        self.bytes.len() / self.count.max(1)
    }

    fn row(&self, at: usize) -> &'a [u8] {
        let length = self.length();
        &self.bytes[self.order.source(at, self.count) * length..][..length]
    }
}

/// Floats as the checkpoint has them, and their type. `rows` is the first length of the tensor.
pub(super) fn floats(
    bytes: MappedBytes,
    dtype: Dtype,
    form: StoredForm,
    rows: usize,
) -> (MappedBytes, Dtype) {
    if form.order == RowOrder::Stored && !form.minus_one {
        return (bytes, dtype);
    }
    let stored = Rows { bytes: bytes.as_slice(), count: rows, order: form.order };
    let ordered: Vec<u8> = (0..rows).flat_map(|row| stored.row(row)).copied().collect();
    if !form.minus_one {
        return (MappedBytes::own(ordered), dtype);
    }
    let mut numbers = vec![0.0; ordered.len() * 8 / dtype.bitsize()];
    paceline_checkpoint::numbers::floats(&ordered, dtype, &mut numbers);
    let less = numbers.into_iter().flat_map(|number| (number - 1.0).to_le_bytes());
    (MappedBytes::own(less.collect()), Dtype::F32)
}

/// The numbers of a matrix as float32, in the checkpoint's order.
pub(super) fn expanded(bytes: &MappedBytes, form: StoredForm, rows: usize) -> MappedBytes {
    let stored = Rows { bytes: bytes.as_slice(), count: rows, order: form.order };
    let columns = stored.length() / form.kind.bytes() as usize * form.kind.values() as usize;
    let mut numbers = vec![0u8; rows * columns * 4];
    in_parts(&mut numbers, columns * 4, |row, out| {
        let mut floats = vec![0.0; columns];
        // The loader asks for types that can be expanded alone; zeros would show the fault.
        let _ = expand(form.kind, stored.row(row), &mut floats);
        for (out, number) in out.as_chunks_mut().0.iter_mut().zip(floats) {
            *out = number.to_le_bytes();
        }
    });
    MappedBytes::own(numbers)
}

/// The packed numbers, scales and biases of a matrix of blocks that have a [`format`].
pub(super) fn packed(
    bytes: &MappedBytes,
    form: StoredForm,
    format: QuantFormat,
    rows: usize,
) -> PackedPieces {
    let stored = Rows { bytes: bytes.as_slice(), count: rows, order: form.order };
    let mut scales_dtype = factors(form.kind);
    if scales_dtype == Dtype::F16 && !has_half_biases(form.kind, stored.bytes) {
        scales_dtype = Dtype::F32;
    }
    let width = scales_dtype.bitsize() / 8;
    let groups = stored.length() / form.kind.bytes() as usize * form.kind.values() as usize / GROUP;
    let group_bytes = format.bits as usize * GROUP / 8;
    let lengths = [groups * group_bytes, groups * width, groups * width];
    let [mut packed, mut scales, mut biases] = lengths.map(|length| vec![0u8; rows * length]);
    let part = rows_of_a_thread(rows);
    std::thread::scope(|scope| {
        let [numbers, factors, _] = lengths.map(|length| (part * length).max(1));
        let parts = packed.chunks_mut(numbers).zip(scales.chunks_mut(factors));
        for (at, ((packed, scales), biases)) in parts.zip(biases.chunks_mut(factors)).enumerate() {
            let stored = &stored;
            scope.spawn(move || {
                let outs = packed.chunks_exact_mut(group_bytes).zip(scales.chunks_exact_mut(width));
                let mut outs = outs.zip(biases.chunks_exact_mut(width));
                for row in (at * part..rows).take(part) {
                    each_group(form.kind, stored.row(row), |group| {
                        let Some(((packed, scale), bias)) = outs.next() else { return };
                        pack(format.bits, &group.numbers, packed);
                        write_factor(group.scale, scale);
                        write_factor(group.bias, bias);
                    });
                }
            });
        }
    });
    PackedPieces {
        packed: MappedBytes::own(packed),
        scales: MappedBytes::own(scales),
        scales_dtype,
        biases: Some(MappedBytes::own(biases)),
    }
}

/// Whether the biases of all blocks are numbers of float16. They are multiples of the scale, exactly,
/// unless they are too large.
fn has_half_biases(kind: BlockType, bytes: &[u8]) -> bool {
    let factor = match kind {
        BlockType::Q4_0 => 8.0,
        BlockType::Q5_0 => 16.0,
        BlockType::Q8_0 => 128.0,
        _ => return true,
    };
    let is_large = |block: &[u8]| half(block).abs() * factor > f16::MAX.to_f32();
    !bytes.chunks_exact(kind.bytes() as usize).any(is_large)
}

/// How many rows each of the threads gets that convert a tensor.
fn rows_of_a_thread(rows: usize) -> usize {
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(MOST_THREADS);
    rows.div_ceil(threads).max(1)
}

/// Calls `each` with the rows of `out`, which are `length` bytes each, on several threads.
fn in_parts(out: &mut [u8], length: usize, each: impl Fn(usize, &mut [u8]) + Sync) {
    if length == 0 {
        return;
    }
    let part = rows_of_a_thread(out.len() / length);
    std::thread::scope(|scope| {
        for (at, rows) in out.chunks_mut(part * length).enumerate() {
            let each = &each;
            scope.spawn(move || {
                for (row, out) in rows.chunks_exact_mut(length).enumerate() {
                    each(at * part + row, out);
                }
            });
        }
    });
}

/// Calls `each` with the groups of a row, in their order.
fn each_group(kind: BlockType, row: &[u8], mut each: impl FnMut(BlockGroup)) {
    for block in row.chunks_exact(kind.bytes() as usize) {
        let d = half(block);
        match kind {
            BlockType::Q4_0 => {
                each(BlockGroup { numbers: halves(&block[2..]), scale: d, bias: -8.0 * d });
            }
            BlockType::Q4_1 => {
                let bias = half(&block[2..]);
                each(BlockGroup { numbers: halves(&block[4..]), scale: d, bias });
            }
            BlockType::Q5_0 => {
                let numbers = with_fifth(halves(&block[6..]), &block[2..6]);
                each(BlockGroup { numbers, scale: d, bias: -16.0 * d });
            }
            BlockType::Q5_1 => {
                let numbers = with_fifth(halves(&block[8..]), &block[4..8]);
                each(BlockGroup { numbers, scale: d, bias: half(&block[2..]) });
            }
            BlockType::Q8_0 => {
                let numbers = std::array::from_fn(|at| block[2 + at] ^ 0x80);
                each(BlockGroup { numbers, scale: d, bias: -128.0 * d });
            }
            _ => super_block(kind, block, &mut each),
        }
    }
}

/// The groups of a block of 256 values: Q4_K, or Q5_K, which has a fifth bit of each value in front.
fn super_block(kind: BlockType, block: &[u8], each: &mut impl FnMut(BlockGroup)) {
    let (d, least, codes) = (half(block), half(&block[2..]), &block[4..16]);
    let (fifths, numbers) = match kind {
        BlockType::Q5K => (Some(&block[16..48]), &block[48..]),
        _ => (None, &block[16..]),
    };
    for group in 0..8 {
        let [scale, offset] = super_codes(codes, group);
        let nibbles = &numbers[group / 2 * GROUP..][..GROUP];
        let shift = group % 2 * 4;
        let numbers = std::array::from_fn(|at| {
            let fifth = fifths.map_or(0, |fifths| fifths[at] >> group & 1);
            nibbles[at] >> shift & 15 | fifth << 4
        });
        each(BlockGroup {
            numbers,
            scale: d * f32::from(scale),
            bias: -(least * f32::from(offset)),
        });
    }
}

/// The codes of a group's scale and offset, six bits each, of the twelve bytes of all eight groups.
fn super_codes(codes: &[u8], group: usize) -> [u8; 2] {
    if group < 4 {
        return [codes[group] & 63, codes[group + 4] & 63];
    }
    let low = codes[group + 4];
    [low & 15 | codes[group - 4] >> 6 << 4, low >> 4 | codes[group] >> 6 << 4]
}

fn half(bytes: &[u8]) -> f32 {
    f16::from_le_bytes([bytes[0], bytes[1]]).to_f32()
}

/// The values of 16 bytes: the lower halves, then the upper ones.
fn halves(bytes: &[u8]) -> [u8; GROUP] {
    std::array::from_fn(|at| if at < 16 { bytes[at] & 15 } else { bytes[at - 16] >> 4 })
}

/// The values with a fifth bit each, which four bytes have.
fn with_fifth(mut numbers: [u8; GROUP], bits: &[u8]) -> [u8; GROUP] {
    for (at, number) in numbers.iter_mut().enumerate() {
        *number |= (bits[at / 8] >> (at % 8) & 1) << 4;
    }
    numbers
}

/// Writes the lowest bits of the numbers one after another, the first number in the lowest bits.
fn pack(bits: i32, numbers: &[u8; GROUP], out: &mut [u8]) {
    match bits {
        8 => return out.copy_from_slice(numbers),
        4 => {
            let pairs = numbers.as_chunks::<2>().0;
            out.iter_mut().zip(pairs).for_each(|(out, [low, high])| *out = low | high << 4);
            return;
        }
        _ => {}
    }
    let (mut held, mut count, mut out) = (0u32, 0, out.iter_mut());
    for number in numbers {
        held |= u32::from(*number) << count;
        count += bits;
        while count >= 8 {
            if let Some(out) = out.next() {
                *out = held as u8;
            }
            (held, count) = (held >> 8, count - 8);
        }
    }
}

/// Writes a factor in the type that has as many bytes. Of float16 the caller has exact ones alone.
fn write_factor(factor: f32, out: &mut [u8]) {
    match out.len() {
        2 => out.copy_from_slice(&f16::from_f32(factor).to_le_bytes()),
        _ => out.copy_from_slice(&factor.to_le_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The types that become packed numbers.
    const PACKED: [BlockType; 7] = [
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q4K,
        BlockType::Q5K,
    ];

    /// Blocks of seeded bytes. Their first two floats are small: `top` is the upper byte.
    fn blocks(kind: BlockType, count: usize, top: u8) -> Vec<u8> {
        let mut state = 7u32;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let mut bytes: Vec<u8> = (0..count * kind.bytes() as usize).map(|_| byte()).collect();
        for block in bytes.chunks_exact_mut(kind.bytes() as usize) {
            (block[1], block[3]) = (top, top);
        }
        bytes
    }

    /// The numbers of packed pieces.
    fn numbers(pieces: &PackedPieces, format: QuantFormat) -> Vec<f32> {
        let factors = |bytes: &MappedBytes| -> Vec<f32> {
            let mut out = vec![0.0; bytes.as_slice().len() * 8 / pieces.scales_dtype.bitsize()];
            paceline_checkpoint::numbers::floats(bytes.as_slice(), pieces.scales_dtype, &mut out);
            out
        };
        let biases = factors(pieces.biases.as_ref().expect("affine"));
        let scales = factors(&pieces.scales);
        let bits = format.bits as usize;
        let number = |at: usize| {
            let bit = |bit: usize| pieces.packed.as_slice()[bit / 8] >> (bit % 8) & 1;
            let q = (0..bits).map(|one| u32::from(bit(at * bits + one)) << one).sum::<u32>();
            scales[at / GROUP] * q as f32 + biases[at / GROUP]
        };
        (0..scales.len() * GROUP).map(number).collect()
    }

    fn form(kind: BlockType, order: RowOrder) -> StoredForm {
        StoredForm { kind, order, minus_one: false }
    }

    #[test]
    fn packed_blocks_have_the_numbers_of_the_stored_ones() {
        for (kind, top) in PACKED.into_iter().flat_map(|kind| [(kind, 0x2c), (kind, 0x7b)]) {
            let stored = MappedBytes::own(blocks(kind, 12, top));
            let mut expected = vec![0.0; 12 * kind.values() as usize];
            expand(kind, stored.as_slice(), &mut expected).expect("a type that is served");
            let format = format(kind).expect("packed numbers");
            let pieces = packed(&stored, form(kind, RowOrder::Stored), format, 4);
            let bits = |all: &[f32]| all.iter().map(|one| one.to_bits()).collect::<Vec<_>>();
            assert_eq!(bits(&numbers(&pieces, format)), bits(&expected), "{}", kind.name());
            // A scale whose multiple float16 does not have makes the factors float32.
            let large = top == 0x7b && matches!(kind, BlockType::Q4_0 | BlockType::Q8_0);
            assert!(!large || pieces.scales_dtype == Dtype::F32, "{}", kind.name());
        }
    }

    #[test]
    fn rows_come_in_the_checkpoints_order_and_norms_are_less_one() {
        let kind = BlockType::Q6K;
        let stored = MappedBytes::own(blocks(kind, 8, 0x2c));
        let floats = |order| {
            let bytes = expanded(&stored, form(kind, order), 8);
            bytes.as_slice().as_chunks::<4>().0.iter().map(|one| f32::from_le_bytes(*one)).collect()
        };
        let plain: Vec<f32> = floats(RowOrder::Stored);
        let turned: Vec<f32> = floats(RowOrder::Interleaved { heads: 2 });
        let row = |all: &[f32], at: usize| all[at * 256..][..256].to_vec();
        for (at, source) in [0, 2, 1, 3, 4, 6, 5, 7].into_iter().enumerate() {
            assert_eq!(row(&turned, at), row(&plain, source), "row {at}");
        }
        let norm: Vec<u8> = [1.5f32, -0.25].iter().flat_map(|one| one.to_le_bytes()).collect();
        let less = StoredForm { minus_one: true, ..form(BlockType::F32, RowOrder::Stored) };
        let (bytes, dtype) = super::floats(MappedBytes::own(norm), Dtype::F32, less, 2);
        let expected: Vec<u8> = [0.5f32, -1.25].iter().flat_map(|one| one.to_le_bytes()).collect();
        assert_eq!((bytes.as_slice(), dtype), (&expected[..], Dtype::F32));
    }
}
