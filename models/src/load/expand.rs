//! Packed numbers → floats, as MLX computes them. Rows are in one piece: `bits` of each number, the
//! low ones first, in little-endian words; a group's numbers share a scale. Source: MLX 0.32.2,
//! `mlx/ops.cpp` (`affine_dequantize`, `fp_dequantize`).

use super::{QuantFormat, QuantMode};

/// The numbers of E2M1: sign, two bits of exponent, one of mantissa.
const E2M1: [f32; 16] =
    [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0, -0.0, -0.5, -1.0, -1.5, -2.0, -3.0, -4.0, -6.0];

/// E4M3 without infinities; 0x7F and 0xFF are no numbers.
pub(super) fn e4m3(bits: u8) -> f32 {
    let (exponent, mantissa) = (i32::from(bits >> 3 & 15), f32::from(bits & 7));
    let size = match (exponent, bits & 7) {
        (15, 7) => f32::NAN,
        (0, _) => mantissa * (-9f32).exp2(),
        _ => (8.0 + mantissa) * ((exponent - 10) as f32).exp2(),
    };
    if bits & 0x80 == 0 { size } else { -size }
}

/// 2 to the power of `bits` − 127.
fn e8m0(bits: u8) -> f32 {
    (f32::from(bits) - 127.0).exp2()
}

/// One group's scale and bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct GroupScale {
    pub(super) scale: f32,
    pub(super) bias: f32,
}

/// The scale of a group that has one byte.
pub(super) fn byte_scale(mode: QuantMode, bits: u8) -> GroupScale {
    let scale = if mode == QuantMode::Nvfp4 { e4m3(bits) } else { e8m0(bits) };
    GroupScale { scale, bias: 0.0 }
}

/// Writes the numbers of `packed` to `out`, group by group. `scale` returns that of a group,
/// counted over all rows. A group begins at a byte in every format.
pub(super) fn expand(
    format: QuantFormat,
    packed: &[u8],
    scale: impl Fn(usize) -> GroupScale,
    out: &mut [f32],
) {
    let group_bytes = (format.group * format.bits / 8) as usize;
    let groups = packed.chunks_exact(group_bytes).zip(out.chunks_exact_mut(format.group as usize));
    for (at, (bytes, numbers)) in groups.enumerate() {
        let GroupScale { scale, bias } = scale(at);
        let bits = format.bits;
        match format.mode {
            QuantMode::Affine => unpack(bits, bytes, numbers, |code| scale * code as f32 + bias),
            QuantMode::Mxfp8 => unpack(bits, bytes, numbers, |code| e4m3(code as u8) * scale),
            QuantMode::Mxfp4 | QuantMode::Nvfp4 => {
                unpack(bits, bytes, numbers, |code| E2M1[(code & 15) as usize] * scale);
            }
        }
    }
}

fn unpack(bits: i32, bytes: &[u8], numbers: &mut [f32], number: impl Fn(u32) -> f32) {
    let mask = (1u32 << bits) - 1;
    // Bits that were read and not used yet: at most 7 + 8 of them.
    let (mut held, mut count) = (0u32, 0);
    let mut bytes = bytes.iter();
    for out in numbers {
        while count < bits {
            held |= u32::from(bytes.next().copied().unwrap_or(0)) << count;
            count += 8;
        }
        *out = number(held & mask);
        held >>= bits;
        count -= bits;
    }
}
