//! Tensors of GGUF files: blocks as packed numbers with scales and biases, floats as the checkpoint has
//! them. What llama.cpp's converter did to the order of rows and to norms is undone.
//!
//! ```text
//!                           on a CPU                                     on a GPU
//! Q4_0 Q4_1 Q5_0 Q5_1 Q8_0  groups of 32, factors in float16             the same
//! Q4_K Q5_K                 groups of 32, factors scaled as in the file  factors in float32
//! Q6_K                      groups of 16, factors scaled as in the file  groups of 32, 8 bits
//! ```
//! All are affine, and have the numbers of the file but for Q6_K on a GPU: those are rounded, which the
//! log says.
//!
//! Source of the layouts: ggml's `ggml-quants.c`, held against the Python package gguf in
//! `paceline-checkpoint`.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use half::f16;
use paceline_checkpoint::from_gguf::{RowOrder, StoredForm};
use paceline_checkpoint::gguf::{BlockType, expand};
use safetensors::tensor::Dtype;

use super::arrays::on_threads;
use super::mapped::MappedBytes;
use super::{Precision, QuantFormat, WeightForms};

/// Values that share a scale and a bias.
const GROUP: usize = 32;
/// Bytes of a file that one thread converts at a time.
const PART_BYTES: usize = 1 << 20;

/// Values of a block of the types Q4_K, Q5_K and Q6_K.
const RUN: usize = 256;

/// Numbers of 16 bits of the scaled factors of a row: for each 256 inputs a float16, and a byte for each
/// of their groups. `None` if K-quants have no such groups, or not these inputs.
pub(crate) fn scaled_row(inputs: i32, group: i32) -> Option<i32> {
    let run = RUN as i32;
    let are_whole = matches!(group, 16 | 32) && inputs % run == 0;
    are_whole.then(|| inputs / run * (1 + run / group / 2))
}

/// How scales and biases are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum FactorForm {
    /// A number of this type for each group.
    Each(Dtype),
    /// For 256 inputs each a float16, and a byte for each of their groups.
    Scaled,
}

impl FactorForm {
    /// The type of their numbers in arrays.
    pub(super) fn dtype(self) -> Dtype {
        match self {
            Self::Each(dtype) => dtype,
            Self::Scaled => Dtype::F16,
        }
    }
}

/// The format and the form of factors of the packed numbers that blocks of this type become. `None`:
/// they become floats.
pub(super) fn packing(kind: BlockType, forms: &WeightForms) -> Option<(QuantFormat, FactorForm)> {
    use BlockType::{Q4_0, Q4_1, Q4K, Q5_0, Q5_1, Q5K, Q6K, Q8_0};

    if !forms.keeps_blocks() {
        return None;
    }
    let on_gpu = forms.precision == Precision::AsStored;
    let (bits, group) = match kind {
        Q4_0 | Q4_1 | Q4K => (4, GROUP),
        Q5_0 | Q5_1 | Q5K => (5, GROUP),
        Q8_0 => (8, GROUP),
        Q6K if on_gpu => (8, GROUP),
        Q6K => (6, GROUP / 2),
        _ => return None,
    };
    let factors = match kind {
        Q4K | Q5K | Q6K if on_gpu => FactorForm::Each(Dtype::F32),
        Q4K | Q5K | Q6K => FactorForm::Scaled,
        _ => FactorForm::Each(Dtype::F16),
    };
    Some((QuantFormat::affine(bits, group as i32), factors))
}

/// Where a block of the type Q6_K has its scale.
const SIXTH_SCALE: usize = 208;

/// A group of a block: its numbers, and w = scale · q + bias.
struct BlockGroup {
    numbers: [u8; GROUP],
    scale: f32,
    bias: f32,
    /// The most that a number is away from the file's.
    lost: f32,
}

impl BlockGroup {
    fn new(numbers: [u8; GROUP], scale: f32, bias: f32) -> Self {
        Self { numbers, scale, bias, lost: 0.0 }
    }

    /// Numbers of 8 bits next to these floats.
    fn rounded(floats: &[f32]) -> Self {
        let least = floats.iter().copied().fold(f32::INFINITY, f32::min);
        let most = floats.iter().copied().fold(f32::NEG_INFINITY, f32::max);
        let scale = (most - least) / 255.0;
        let nearest =
            |float: f32| if scale > 0.0 { ((float - least) / scale).round() } else { 0.0 };
        let lost = floats.iter().map(|float| (nearest(*float) * scale + least - float).abs());
        Self {
            numbers: std::array::from_fn(|at| floats.get(at).map_or(0, |one| nearest(*one) as u8)),
            scale,
            bias: least,
            lost: lost.fold(0.0, f32::max),
        }
    }
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
    let jobs = numbers.chunks_exact_mut((columns * 4).max(1)).enumerate().collect();
    on_threads(jobs, |(row, out): (usize, &mut [u8])| {
        let mut floats = vec![0.0; columns];
        // The loader asks for types that can be expanded alone; zeros would show the fault.
        let _ = expand(form.kind, stored.row(row), &mut floats);
        for (out, number) in out.as_chunks_mut().0.iter_mut().zip(floats) {
            *out = number.to_le_bytes();
        }
    });
    MappedBytes::own(numbers)
}

/// Rows of blocks in the checkpoint's order.
#[derive(Clone, Debug)]
pub(super) struct StoredBlocks {
    bytes: MappedBytes,
    form: StoredForm,
    rows: usize,
    pub(super) format: QuantFormat,
    pub(super) factors: FactorForm,
}

impl StoredBlocks {
    /// Blocks that have a [`packing`]. Biases that float16 does not have make the factors floats; `None`
    /// where there is no such form.
    pub(super) fn new(
        bytes: MappedBytes,
        form: StoredForm,
        (format, factors): (QuantFormat, FactorForm),
        rows: usize,
    ) -> Option<Self> {
        let blocks = Self::unread(bytes, form, (format, factors), rows);
        let halves = matches!(factors, FactorForm::Scaled | FactorForm::Each(Dtype::F16));
        match factors {
            _ if !halves || has_half_biases(form.kind, blocks.bytes.as_slice()) => Some(blocks),
            FactorForm::Scaled => None,
            _ => Some(Self { factors: FactorForm::Each(Dtype::F32), ..blocks }),
        }
    }

    /// Blocks that nobody is going to read.
    pub(super) fn unread(
        bytes: MappedBytes,
        form: StoredForm,
        (format, factors): (QuantFormat, FactorForm),
        rows: usize,
    ) -> Self {
        Self { bytes, form, rows, format, factors }
    }

    /// Part `at` of `count` equal parts.
    pub(super) fn part(&self, at: usize, count: usize) -> Self {
        Self { bytes: self.bytes.part(at, count), rows: self.rows / count, ..self.clone() }
    }

    /// Bytes of the file.
    pub(super) fn bytes(&self) -> usize {
        self.bytes.as_slice().len()
    }

    /// What a row becomes in units, and the bytes of the numbers and of the scales or biases of one: of 256
    /// values where factors are scaled, else of a group.
    fn units(&self, row: usize) -> [usize; 3] {
        let Self { form, format, .. } = self;
        let values = row / form.kind.bytes() as usize * form.kind.values() as usize;
        let bytes = |values: usize| values / 8 * format.bits as usize;
        match self.factors {
            FactorForm::Scaled => [values / RUN, bytes(RUN), 2 + RUN / format.group as usize],
            FactorForm::Each(dtype) => [values / GROUP, bytes(GROUP), dtype.bitsize() / 8],
        }
    }

    /// Writes the numbers, scales and biases of these rows. Returns the most that a number is away from
    /// the file's.
    fn write(&self, rows: Range<usize>, [packed, scales, biases]: [&mut [u8]; 3]) -> f32 {
        let Self { bytes, form, rows: count, format, factors } = self;
        let stored = Rows { bytes: bytes.as_slice(), count: *count, order: form.order };
        let [_, packed_bytes, factor_bytes] = self.units(stored.length());
        let outs = packed.chunks_exact_mut(packed_bytes);
        let outs = outs.zip(scales.chunks_exact_mut(factor_bytes));
        let mut outs = outs.zip(biases.chunks_exact_mut(factor_bytes));
        let mut lost = 0.0f32;
        for row in rows {
            let blocks = stored.row(row).chunks_exact(form.kind.bytes() as usize);
            if *factors == FactorForm::Scaled {
                for (block, ((packed, scales), biases)) in blocks.zip(outs.by_ref()) {
                    scaled_block(form.kind, block, packed, [scales, biases]);
                }
                continue;
            }
            each_group(form.kind, blocks, |group| {
                let Some(((packed, scale), bias)) = outs.next() else { return };
                pack(format.bits, &group.numbers, packed);
                write_factor(group.scale, scale);
                write_factor(group.bias, bias);
                lost = lost.max(group.lost);
            });
        }
        lost
    }
}

/// Writes the numbers, scales and biases of all rows of these blocks, on several threads.
pub(super) fn write(all: &[StoredBlocks], outs: [&mut [u8]; 3]) {
    let (mut jobs, mut outs) = (vec![], outs);
    for blocks in all {
        let length = blocks.bytes() / blocks.rows.max(1);
        let [units, packed, factor] = blocks.units(length);
        let some = (PART_BYTES / length.max(1)).max(1);
        for first in (0..blocks.rows).step_by(some) {
            let rows = first..(first + some).min(blocks.rows);
            let lengths = [packed, factor, factor].map(|bytes| rows.len() * units * bytes);
            let mut lengths = lengths.into_iter();
            let own = outs.each_mut().map(|out| {
                let (own, other) = std::mem::take(out).split_at_mut(lengths.next().unwrap_or(0));
                *out = other;
                own
            });
            jobs.push((blocks, rows, own));
        }
    }
    // Bits of numbers above zero are in the order of the numbers.
    let lost = AtomicU32::new(0);
    on_threads(jobs, |(blocks, rows, outs)| {
        lost.fetch_max(blocks.write(rows, outs).to_bits(), Ordering::Relaxed);
    });
    let (largest, first) = (f32::from_bits(lost.into_inner()), all.first());
    if let Some(StoredBlocks { form, format, .. }) = first.filter(|_| largest > 0.0) {
        let kind = form.kind.name();
        tracing::info!(kind, %format, largest, "blocks were rounded, by the largest of these");
    }
}

/// Whether the biases of all blocks are numbers of float16. They are multiples of the scale, exactly,
/// unless they are too large.
fn has_half_biases(kind: BlockType, bytes: &[u8]) -> bool {
    let factor = match kind {
        BlockType::Q4_0 => 8.0,
        BlockType::Q5_0 => 16.0,
        BlockType::Q8_0 => 128.0,
        BlockType::Q6K => 32.0,
        _ => return true,
    };
    let place = if kind == BlockType::Q6K { SIXTH_SCALE } else { 0 };
    let is_large = |block: &[u8]| half(&block[place..]).abs() * factor > f16::MAX.to_f32();
    !bytes.chunks_exact(kind.bytes() as usize).any(is_large)
}

/// Calls `each` with the groups of the blocks of a row, in their order.
fn each_group<'a>(
    kind: BlockType,
    blocks: impl Iterator<Item = &'a [u8]>,
    mut each: impl FnMut(BlockGroup),
) {
    for block in blocks {
        let d = half(block);
        match kind {
            BlockType::Q4_0 => each(BlockGroup::new(halves(&block[2..]), d, -8.0 * d)),
            BlockType::Q4_1 => each(BlockGroup::new(halves(&block[4..]), d, half(&block[2..]))),
            BlockType::Q5_0 => {
                let numbers = with_fifth(halves(&block[6..]), &block[2..6]);
                each(BlockGroup::new(numbers, d, -16.0 * d));
            }
            BlockType::Q5_1 => {
                let numbers = with_fifth(halves(&block[8..]), &block[4..8]);
                each(BlockGroup::new(numbers, d, half(&block[2..])));
            }
            BlockType::Q8_0 => {
                let numbers = std::array::from_fn(|at| block[2 + at] ^ 0x80);
                each(BlockGroup::new(numbers, d, -128.0 * d));
            }
            BlockType::Q6K => {
                let mut floats = [0.0; RUN];
                // The caller asks for types that can be expanded alone.
                let _ = expand(kind, block, &mut floats);
                floats.chunks_exact(GROUP).for_each(|group| each(BlockGroup::rounded(group)));
            }
            _ => {
                let least = half(&block[2..]);
                for group in 0..RUN / GROUP {
                    let [scale, offset] = super_codes(&block[4..16], group).map(f32::from);
                    let numbers = super_numbers(kind, block, group);
                    each(BlockGroup::new(numbers, d * scale, -(least * offset)));
                }
            }
        }
    }
}

/// Writes the numbers and the factors of a block of 256 values: a float16, and a code for each group.
fn scaled_block(kind: BlockType, block: &[u8], packed: &mut [u8], factors: [&mut [u8]; 2]) {
    let [scales, biases] = factors;
    let (float, offset, bits) = match kind {
        BlockType::Q6K => (half(&block[SIXTH_SCALE..]), -32.0 * half(&block[SIXTH_SCALE..]), 6),
        BlockType::Q5K => (half(block), -half(&block[2..]), 5),
        _ => (half(block), -half(&block[2..]), 4),
    };
    write_factor(float, &mut scales[..2]);
    write_factor(offset, &mut biases[..2]);
    if kind == BlockType::Q6K {
        scales[2..].copy_from_slice(&block[192..SIXTH_SCALE]);
        biases[2..].copy_from_slice(&block[192..SIXTH_SCALE]);
    } else {
        for group in 0..RUN / GROUP {
            [scales[2 + group], biases[2 + group]] = super_codes(&block[4..16], group);
        }
    }
    for (group, out) in packed.chunks_exact_mut(GROUP / 8 * bits as usize).enumerate() {
        pack(bits, &super_numbers(kind, block, group), out);
    }
}

/// The numbers of 32 values of a block of 256.
fn super_numbers(kind: BlockType, block: &[u8], group: usize) -> [u8; GROUP] {
    if kind == BlockType::Q6K {
        // 128 values have 64 bytes of lower halves and 32 bytes of upper bits.
        let (half, quarter) = (group / 4, group % 4);
        let low: &[u8; GROUP] = sized(&block[half * 64 + quarter % 2 * GROUP..]);
        let high: &[u8; GROUP] = sized(&block[128 + half * GROUP..]);
        let (shift, upper) = (quarter / 2 * 4, quarter * 2);
        return std::array::from_fn(|at| low[at] >> shift & 15 | (high[at] >> upper & 3) << 4);
    }
    let first = if kind == BlockType::Q5K { 48 } else { 16 };
    let nibbles: &[u8; GROUP] = sized(&block[first + group / 2 * GROUP..]);
    let shift = group % 2 * 4;
    let mut numbers = nibbles.map(|two| two >> shift & 15);
    if kind == BlockType::Q5K {
        let fifths: &[u8; GROUP] = sized(&block[16..]);
        for (number, fifth) in numbers.iter_mut().zip(fifths) {
            *number |= (fifth >> group & 1) << 4;
        }
    }
    numbers
}

/// The first bytes of a block, which is as long as its type says.
fn sized(bytes: &[u8]) -> &[u8; GROUP] {
    bytes.first_chunk().expect("a block has all its numbers")
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
        4 => pack_bits::<4>(numbers, out),
        5 => pack_bits::<5>(numbers, out),
        6 => pack_bits::<6>(numbers, out),
        _ => out.copy_from_slice(numbers),
    }
}

/// Eight numbers are as many bytes as a number has bits.
fn pack_bits<const BITS: usize>(numbers: &[u8; GROUP], out: &mut [u8]) {
    for (eight, out) in numbers.as_chunks::<8>().0.iter().zip(out.as_chunks_mut::<BITS>().0) {
        let all = eight.iter().rev().fold(0u64, |all, one| all << BITS | u64::from(*one));
        out.iter_mut().zip(all.to_le_bytes()).for_each(|(out, byte)| *out = byte);
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
    use paceline_checkpoint::plan::DeviceKind;

    use super::*;

    /// The types that become packed numbers without a loss.
    const PACKED: [BlockType; 8] = [
        BlockType::Q4_0,
        BlockType::Q4_1,
        BlockType::Q5_0,
        BlockType::Q5_1,
        BlockType::Q8_0,
        BlockType::Q4K,
        BlockType::Q5K,
        BlockType::Q6K,
    ];

    fn forms(on_gpu: bool) -> WeightForms {
        let device = DeviceKind { on_gpu, has_kernels: true };
        WeightForms::of_floats(device)
    }

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
            if kind == BlockType::Q6K {
                block[SIXTH_SCALE + 1] = top;
            }
        }
        bytes
    }

    /// The numbers of packed pieces.
    fn numbers(blocks: &StoredBlocks) -> Vec<f32> {
        let (group, bits) = (blocks.format.group as usize, blocks.format.bits as usize);
        let [units, packed, factor] = blocks.units(blocks.bytes() / blocks.rows);
        let lengths = [packed, factor, factor].map(|bytes| blocks.rows * units * bytes);
        let mut outs = lengths.map(|length| vec![0; length]);
        write(std::slice::from_ref(blocks), outs.each_mut().map(|out| out.as_mut_slice()));
        let factors = |bytes: &Vec<u8>| -> Vec<f32> {
            let FactorForm::Each(dtype) = blocks.factors else {
                let runs = bytes.chunks_exact(2 + RUN / group);
                let codes = runs.flat_map(|run| run[2..].iter().map(move |code| (run, *code)));
                return codes.map(|(run, code)| half(run) * f32::from(code as i8)).collect();
            };
            let mut out = vec![0.0; bytes.len() * 8 / dtype.bitsize()];
            paceline_checkpoint::numbers::floats(bytes, dtype, &mut out);
            out
        };
        let [packed, scales, biases] = &outs;
        let (scales, biases) = (factors(scales), factors(biases));
        let number = |at: usize| {
            let bit = |bit: usize| packed[bit / 8] >> (bit % 8) & 1;
            let q = (0..bits).map(|one| u32::from(bit(at * bits + one)) << one).sum::<u32>();
            scales[at / group].mul_add(q as f32, biases[at / group])
        };
        (0..scales.len() * group).map(number).collect()
    }

    fn form(kind: BlockType, order: RowOrder) -> StoredForm {
        StoredForm { kind, order, minus_one: false }
    }

    #[test]
    fn packed_blocks_have_the_numbers_of_the_stored_ones() {
        let tops = |kind| [(kind, 0x2c, false), (kind, 0x7b, false), (kind, 0x2c, true)];
        for (kind, top, on_gpu) in PACKED.into_iter().flat_map(tops) {
            let stored = MappedBytes::own(blocks(kind, 12, top));
            let mut expected = vec![0.0; 12 * kind.values() as usize];
            expand(kind, stored.as_slice(), &mut expected).expect("a type that is served");
            let packing = packing(kind, &forms(on_gpu)).expect("packed numbers");
            let blocks =
                StoredBlocks::new(stored.clone(), form(kind, RowOrder::Stored), packing, 4);
            let large = top == 0x7b;
            if large && kind == BlockType::Q6K {
                assert!(blocks.is_none(), "float16 has no such offset");
                continue;
            }
            let blocks = blocks.expect("packed");
            let found = numbers(&blocks);
            // A scale whose multiple float16 does not have makes the factors float32.
            let has_multiples = matches!(kind, BlockType::Q4_0 | BlockType::Q5_0 | BlockType::Q8_0);
            let floats = FactorForm::Each(Dtype::F32);
            assert!(!(large && has_multiples) || blocks.factors == floats, "{}", kind.name());
            if on_gpu && kind == BlockType::Q6K {
                let far = found.iter().zip(&expected).map(|(found, one)| (found - one).abs());
                let most = expected.iter().fold(0.0f32, |most, one| most.max(one.abs()));
                assert!(
                    far.fold(0.0, f32::max) <= most / 255.0,
                    "half of a step of 2 · most / 255"
                );
                continue;
            }
            assert_eq!(found, expected, "{} {on_gpu}", kind.name());
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
