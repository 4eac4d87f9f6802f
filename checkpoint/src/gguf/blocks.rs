//! Types of tensors: how many values and bytes a block has, and which numbers its values are. Each
//! decoder gives the bits that the Python package gguf 0.19.0 gives.

use half::{bf16, f16};

use crate::error::FormatError;

/// A type of tensors: a row is a sequence of blocks of some values each.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BlockType {
    /// Floating-point numbers of 32 bits.
    F32,
    /// Floating-point numbers of 16 bits.
    F16,
    /// The upper 16 bits of floating-point numbers of 32 bits.
    Bf16,
    /// 32 values of 4 bits with a scale.
    Q4_0,
    /// 32 values of 4 bits with a scale and an offset.
    Q4_1,
    /// 32 values of 5 bits with a scale.
    Q5_0,
    /// 32 values of 5 bits with a scale and an offset.
    Q5_1,
    /// 32 values of 8 bits with a scale.
    Q8_0,
    /// 256 values of 2 bits in groups of 16.
    Q2K,
    /// 256 values of 3 bits in groups of 16.
    Q3K,
    /// 256 values of 4 bits in groups of 32, each with a scale and an offset of 6 bits.
    Q4K,
    /// 256 values of 5 bits in groups of 32, each with a scale and an offset of 6 bits.
    Q5K,
    /// 256 values of 6 bits in groups of 16, each with a scale of 8 bits.
    Q6K,
    /// 32 values of 4 bits, which a table maps to numbers.
    Iq4Nl,
    /// 32 floating-point numbers of 4 bits with an exponent.
    Mxfp4,
}

/// Writes the values of stored blocks.
type DecodeBlocks = fn(&[u8], &mut [f32]);

impl BlockType {
    /// The types that the reader knows. Not all of them can be decoded.
    pub const ALL: [Self; 15] = [
        Self::F32,
        Self::F16,
        Self::Bf16,
        Self::Q4_0,
        Self::Q4_1,
        Self::Q5_0,
        Self::Q5_1,
        Self::Q8_0,
        Self::Q2K,
        Self::Q3K,
        Self::Q4K,
        Self::Q5K,
        Self::Q6K,
        Self::Iq4Nl,
        Self::Mxfp4,
    ];

    /// Number in the file, name in ggml, values of a block, and bytes of a block.
    const fn facts(self) -> (u32, &'static str, u64, u64) {
        match self {
            Self::F32 => (0, "F32", 1, 4),
            Self::F16 => (1, "F16", 1, 2),
            Self::Q4_0 => (2, "Q4_0", 32, 18),
            Self::Q4_1 => (3, "Q4_1", 32, 20),
            Self::Q5_0 => (6, "Q5_0", 32, 22),
            Self::Q5_1 => (7, "Q5_1", 32, 24),
            Self::Q8_0 => (8, "Q8_0", 32, 34),
            Self::Q2K => (10, "Q2_K", 256, 84),
            Self::Q3K => (11, "Q3_K", 256, 110),
            Self::Q4K => (12, "Q4_K", 256, 144),
            Self::Q5K => (13, "Q5_K", 256, 176),
            Self::Q6K => (14, "Q6_K", 256, 210),
            Self::Iq4Nl => (20, "IQ4_NL", 32, 18),
            Self::Bf16 => (30, "BF16", 1, 2),
            Self::Mxfp4 => (39, "MXFP4", 32, 17),
        }
    }

    /// Number of the type in the file.
    pub(super) const fn id(self) -> u32 {
        self.facts().0
    }

    /// Name of the type in ggml.
    pub const fn name(self) -> &'static str {
        self.facts().1
    }

    /// Values of a block.
    pub const fn values(self) -> u64 {
        self.facts().2
    }

    /// Bytes of a block.
    pub const fn bytes(self) -> u64 {
        self.facts().3
    }

    /// Whether a block is more than one floating-point number.
    pub const fn is_quantized(self) -> bool {
        self.values() > 1
    }

    fn decoder(self) -> Option<DecodeBlocks> {
        Some(match self {
            Self::F32 => |bytes, out| each(bytes, out, f32::from_le_bytes),
            Self::F16 => |bytes, out| each(bytes, out, |two| f16::from_le_bytes(two).to_f32()),
            Self::Bf16 => |bytes, out| each(bytes, out, |two| bf16::from_le_bytes(two).to_f32()),
            Self::Q4_0 => |bytes, out| each_block(bytes, out, q4_0),
            Self::Q4_1 => |bytes, out| each_block(bytes, out, q4_1),
            Self::Q5_0 => |bytes, out| each_block(bytes, out, q5_0),
            Self::Q5_1 => |bytes, out| each_block(bytes, out, q5_1),
            Self::Q8_0 => |bytes, out| each_block(bytes, out, q8_0),
            Self::Q4K => |bytes, out| each_block(bytes, out, q4_k),
            Self::Q5K => |bytes, out| each_block(bytes, out, q5_k),
            Self::Q6K => |bytes, out| each_block(bytes, out, q6_k),
            Self::Q2K | Self::Q3K | Self::Iq4Nl | Self::Mxfp4 => return None,
        })
    }

    /// Refuses a type without a decoder. `what` has tensors of this type.
    ///
    /// # Errors
    /// The type has none.
    pub(crate) fn check_served(self, what: &str) -> Result<(), FormatError> {
        match self.decoder() {
            Some(_) => Ok(()),
            None => Err(self.refused(what)),
        }
    }

    fn refused(self, what: &str) -> FormatError {
        let served = Self::ALL.into_iter().filter(|kind| kind.decoder().is_some());
        let served: Vec<_> = served.map(Self::name).collect();
        let found = format!(
            "{}, which is not served; use a file of the model in another quantization, such as \
             Q4_K_M or Q8_0",
            self.name()
        );
        FormatError::new(what, format!("one of the types {}", served.join(", ")), found)
    }
}

/// Values of stored blocks as float32: as many whole blocks as both sides have.
///
/// # Errors
/// The type has no decoder.
pub fn expand(kind: BlockType, bytes: &[u8], out: &mut [f32]) -> Result<(), FormatError> {
    let decode = kind.decoder().ok_or_else(|| kind.refused("tensor"))?;
    decode(bytes, out);
    Ok(())
}

fn each<const N: usize>(bytes: &[u8], out: &mut [f32], value: impl Fn([u8; N]) -> f32) {
    for (out, number) in out.iter_mut().zip(bytes.as_chunks().0) {
        *out = value(*number);
    }
}

fn each_block<const N: usize, const VALUES: usize>(
    bytes: &[u8],
    out: &mut [f32],
    decode: fn(&[u8; N], &mut [f32; VALUES]),
) {
    for (out, block) in out.as_chunks_mut().0.iter_mut().zip(bytes.as_chunks().0) {
        decode(block, out);
    }
}

/// The float16 that begins at byte `at` of a block.
fn half(block: &[u8], at: usize) -> f32 {
    f16::from_le_bytes([block[at], block[at + 1]]).to_f32()
}

/// The 32 values of a block: byte `j` of `packed` has value `j` in its lower half and `j + 16` in its
/// upper one. Bit `j` of `fifth` is the fifth bit of value `j`.
fn halves(packed: &[u8], fifth: u32, out: &mut [f32; 32], value: impl Fn(u32) -> f32) {
    for (at, byte) in packed.iter().enumerate() {
        let bit = |at: usize| (fifth >> at & 1) << 4;
        out[at] = value(u32::from(byte & 15) | bit(at));
        out[at + 16] = value(u32::from(byte >> 4) | bit(at + 16));
    }
}

/// The bits of a block of 5 bits a value from byte `at` on.
fn fifth_bits(block: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([block[at], block[at + 1], block[at + 2], block[at + 3]])
}

fn q4_0(block: &[u8; 18], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    halves(&block[2..], 0, out, |quant| (quant as f32 - 8.0) * scale);
}

fn q4_1(block: &[u8; 20], out: &mut [f32; 32]) {
    let (scale, offset) = (half(block, 0), half(block, 2));
    halves(&block[4..], 0, out, |quant| quant as f32 * scale + offset);
}

fn q5_0(block: &[u8; 22], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    halves(&block[6..], fifth_bits(block, 2), out, |quant| (quant as f32 - 16.0) * scale);
}

fn q5_1(block: &[u8; 24], out: &mut [f32; 32]) {
    let (scale, offset) = (half(block, 0), half(block, 2));
    halves(&block[8..], fifth_bits(block, 4), out, |quant| quant as f32 * scale + offset);
}

fn q8_0(block: &[u8; 34], out: &mut [f32; 32]) {
    let scale = half(block, 0);
    for (out, quant) in out.iter_mut().zip(&block[2..]) {
        *out = f32::from(*quant as i8) * scale;
    }
}

/// Scale and offset of group `at` of eight, of 6 bits each in 12 bytes: the first four of both in
/// whole bytes, whose upper two bits belong to the last four.
fn scale_and_offset(packed: &[u8], at: usize) -> (f32, f32) {
    let (scale, offset) = match at.checked_sub(4) {
        None => (packed[at] & 63, packed[at + 4] & 63),
        Some(early) => (
            packed[at + 4] & 15 | packed[early] >> 6 << 4,
            packed[at + 4] >> 4 | packed[at] >> 6 << 4,
        ),
    };
    (f32::from(scale), f32::from(offset))
}

/// The 256 values of a block: 32 bytes of `packed` have a group of 32 values in their lower halves and
/// the next one in their upper ones. `fifth(l)` has the fifth bit of value `l` of each group.
fn groups(block: &[u8], packed: &[u8], fifth: impl Fn(usize) -> u8, out: &mut [f32; 256]) {
    let (scale, offset) = (half(block, 0), half(block, 2));
    for (group, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        let (own_scale, own_offset) = scale_and_offset(&block[4..16], group);
        let (scale, offset) = (scale * own_scale, offset * own_offset);
        let bytes = &packed[group / 2 * 32..][..32];
        for (at, (out, byte)) in out.iter_mut().zip(bytes).enumerate() {
            let low = if group % 2 == 0 { byte & 15 } else { byte >> 4 };
            *out = f32::from(low | (fifth(at) >> group & 1) << 4) * scale - offset;
        }
    }
}

fn q4_k(block: &[u8; 144], out: &mut [f32; 256]) {
    groups(block, &block[16..], |_| 0, out);
}

fn q5_k(block: &[u8; 176], out: &mut [f32; 256]) {
    groups(block, &block[48..], |at| block[16 + at], out);
}

fn q6_k(block: &[u8; 210], out: &mut [f32; 256]) {
    let scale = half(block, 208);
    for (part, out) in out.as_chunks_mut::<32>().0.iter_mut().enumerate() {
        // Each half of the block has four parts of 32 values.
        let (of_half, quarter) = (part / 4, part % 4);
        let low = &block[of_half * 64 + quarter % 2 * 32..][..32];
        let high = &block[128 + of_half * 32..][..32];
        let scales = &block[192 + part * 2..][..2];
        for (at, out) in out.iter_mut().enumerate() {
            let low = if quarter < 2 { low[at] & 15 } else { low[at] >> 4 };
            let quant = i32::from(low | (high[at] >> (2 * quarter) & 3) << 4) - 32;
            *out = quant as f32 * (scale * f32::from(scales[at / 16] as i8));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The values of one block. Its scales and offsets are those of `halves`.
    fn values(kind: BlockType, floats: &[(usize, f32)], bytes: &[(usize, u8)]) -> Vec<f32> {
        let mut block = vec![0; kind.bytes() as usize];
        for (at, float) in floats {
            block[*at..][..2].copy_from_slice(&f16::from_f32(*float).to_le_bytes());
        }
        for (at, byte) in bytes {
            block[*at] = *byte;
        }
        let mut out = vec![f32::NAN; kind.values() as usize];
        expand(kind, &block, &mut out).expect("decoded");
        out
    }

    #[test]
    fn floats_are_their_numbers() {
        let mut out = [0.0; 2];
        expand(BlockType::F32, &1.5_f32.to_le_bytes(), &mut out).expect("decoded");
        assert_eq!(out, [1.5, 0.0], "one number is there");
        expand(BlockType::F16, &[0x00, 0x3C, 0x01, 0x00], &mut out).expect("decoded");
        assert_eq!(out, [1.0, 2_f32.powi(-24)]);
        expand(BlockType::Bf16, &[0x80, 0x3F, 0x20, 0xC0], &mut out).expect("decoded");
        assert_eq!(out, [1.0, -2.5]);
    }

    #[test]
    fn a_byte_has_value_j_below_and_j_and_16_above() {
        let q4_0 = values(BlockType::Q4_0, &[(0, 0.5)], &[(2, 0xF0), (17, 0x0A)]);
        assert_eq!([q4_0[0], q4_0[16], q4_0[15], q4_0[31], q4_0[1]], [-4.0, 3.5, 1.0, -4.0, -4.0]);
        let q4_1 = values(BlockType::Q4_1, &[(0, 0.5), (2, -1.0)], &[(4, 0xF2)]);
        assert_eq!([q4_1[0], q4_1[16], q4_1[31]], [0.0, 6.5, -1.0]);
        // The fifth bits of the values 1 and 31.
        let fifth = [(3, 0), (2, 0b10), (5, 0x80)];
        let q5_0 = values(BlockType::Q5_0, &[(0, 2.0)], &[&fifth[..], &[(7, 0x03)]].concat());
        assert_eq!([q5_0[1], q5_0[17], q5_0[31], q5_0[0]], [6.0, -32.0, 0.0, -32.0]);
        let fifth = [(4, 0b10), (7, 0x80)];
        let q5_1 = values(BlockType::Q5_1, &[(0, 2.0), (2, 1.0)], &fifth);
        assert_eq!([q5_1[1], q5_1[31], q5_1[0]], [33.0, 33.0, 1.0]);
        let q8_0 = values(BlockType::Q8_0, &[(0, 0.25)], &[(2, 0x80), (33, 4)]);
        assert_eq!([q8_0[0], q8_0[31], q8_0[1]], [-32.0, 1.0, 0.0]);
    }

    #[test]
    fn groups_of_32_have_a_scale_and_an_offset_of_6_bits() {
        // Group 1: scale 3, offset 2. Group 6: scale 5 + 16, offset 7 + 32.
        let scales = [(5, 3), (9, 2), (4 + 10, 0x75), (4 + 2, 0x40), (4 + 6, 0x80)];
        let floats = [(0, 0.5), (2, 0.25)];
        let value = [(16, 0x90), (16 + 96, 0x0B)];
        let found = values(BlockType::Q4K, &floats, &[&scales[..], &value].concat());
        assert_eq!([found[32], found[33]], [9.0 * 1.5 - 0.5, -0.5]);
        assert_eq!([found[192], found[193]], [11.0 * 10.5 - 9.75, -9.75]);
        assert_eq!(found[0], 0.0);
        let value = [(48, 0x90), (16, 0b0100_0010), (48 + 96, 0x0B)];
        let found = values(BlockType::Q5K, &floats, &[&scales[..], &value].concat());
        assert_eq!([found[32], found[33]], [25.0 * 1.5 - 0.5, -0.5]);
        assert_eq!([found[192], found[193]], [27.0 * 10.5 - 9.75, -9.75]);
    }

    #[test]
    fn groups_of_16_have_a_signed_scale() {
        // Part 6 of the second half: its low bits are the upper halves of bytes 64 to 95.
        let bytes = [(64 + 17, 0xC0), (128 + 32 + 17, 0b0010_0000), (192 + 13, 0xFE)];
        let found = values(BlockType::Q6K, &[(208, 0.5)], &bytes);
        // (12 + 2 * 16 - 32) * 0.5 * -2
        assert_eq!([found[192 + 17], found[192 + 18]], [-12.0, 32.0]);
        assert_eq!(found[0], 0.0);
    }

    #[test]
    fn a_type_without_a_decoder_is_refused_with_what_to_do() {
        for kind in [BlockType::Q2K, BlockType::Q3K, BlockType::Iq4Nl, BlockType::Mxfp4] {
            let error = expand(kind, &[], &mut []).expect_err("refused").to_string();
            assert!(error.contains(kind.name()) && error.contains("Q4_K_M"), "{error}");
        }
    }
}
