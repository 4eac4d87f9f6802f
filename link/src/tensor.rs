//! What a `TensorRef` may say. A peer's numbers are checked here before a byte of shared memory is
//! touched.

use std::ops::Range;

use paceline_proto::internal::v1::{TensorRef, TensorType};

use crate::ring::ALIGN;

/// A tensor's place in the segment, in bytes; inside the half it was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From the segment's start.
    pub offset: usize,
    /// Bytes.
    pub length: usize,
    /// What its numbers are.
    pub kind: TensorType,
}

/// Bytes of one number; `None` for a type this version does not know.
pub fn number_bytes(kind: TensorType) -> Option<u64> {
    match kind {
        TensorType::F32 => Some(4),
        TensorType::F16 | TensorType::Bf16 => Some(2),
        TensorType::Unspecified => None,
    }
}

/// Bytes of a tensor; `None` if there is no such tensor: no rows, no columns, an unknown type, more
/// bytes than can be counted.
pub fn length(rows: u32, columns: u32, kind: TensorType) -> Option<u64> {
    let numbers = u64::from(rows).checked_mul(u64::from(columns)).filter(|numbers| *numbers > 0)?;
    numbers.checked_mul(number_bytes(kind)?)
}

/// Checks a peer's tensor: it must have the number `expected` and lie inside `half` of the segment.
///
/// # Errors
/// What is wrong with it, with expected and found.
pub fn check(tensor: &TensorRef, expected: u64, half: &Range<u64>) -> Result<Place, String> {
    let TensorRef { number, offset, length: bytes, rows, columns, .. } = *tensor;
    if number != expected {
        return Err(format!("expected tensor {expected}, found {number}"));
    }
    let kind = TensorType::try_from(tensor.r#type)
        .map_err(|_| format!("tensor {number} has the unknown type {}", tensor.r#type))?;
    let Some(length) = length(rows, columns, kind) else {
        return Err(format!(
            "tensor {number} has {rows} rows, {columns} columns and type {kind:?}, which is none"
        ));
    };
    if bytes != length {
        return Err(format!(
            "tensor {number} says {bytes} bytes, {rows} rows of {columns} {kind:?} are {length}"
        ));
    }
    if !offset.is_multiple_of(ALIGN) {
        return Err(format!("tensor {number} starts at {offset}, expected a multiple of {ALIGN}"));
    }
    match offset.checked_add(length) {
        Some(end) if offset >= half.start && end <= half.end => {
            let place = |n: u64| {
                usize::try_from(n)
                    .map_err(|_| format!("tensor {number} is beyond this machine's addresses"))
            };
            Ok(Place { offset: place(offset)?, length: place(length)?, kind })
        }
        _ => Err(format!(
            "tensor {number} is {length} bytes at {offset}, its sender's half is {half:?}"
        )),
    }
}

/// Whether every number is finite. `bytes` are little-endian, as on every machine we run on.
pub fn all_finite(bytes: &[u8], kind: TensorType) -> bool {
    // Infinities and NaNs have all bits of the exponent. Without an early end the loop is a few
    // instructions a vector.
    let narrow = |exponent: u16| {
        let count = |bad: u32, c: &[u8]| {
            bad | u32::from(u16::from_le_bytes([c[0], c[1]]) & exponent == exponent)
        };
        bytes.chunks_exact(2).fold(0, count) == 0
    };
    match kind {
        TensorType::F32 => {
            let exponent = 0x7f80_0000;
            let count = |bad: u32, c: &[u8]| {
                bad | u32::from(u32::from_le_bytes([c[0], c[1], c[2], c[3]]) & exponent == exponent)
            };
            bytes.chunks_exact(4).fold(0, count) == 0
        }
        TensorType::F16 => narrow(0x7c00),
        TensorType::Bf16 => narrow(0x7f80),
        TensorType::Unspecified => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn good() -> TensorRef {
        TensorRef {
            number: 7,
            offset: 4096,
            length: 96,
            rows: 3,
            columns: 8,
            r#type: TensorType::F32.into(),
        }
    }

    type Fault = fn(&mut TensorRef);

    #[test]
    fn a_good_tensor_passes_and_each_fault_is_named() {
        let half = 4096..8192;
        let place = Place { offset: 4096, length: 96, kind: TensorType::F32 };
        assert_eq!(check(&good(), 7, &half), Ok(place));
        let faults: [(&str, Fault); 11] = [
            ("expected tensor 7, found 8", |t| t.number = 8),
            ("unknown type 9", |t| t.r#type = 9),
            ("which is none", |t| t.r#type = 0),
            ("which is none", |t| t.rows = 0),
            ("says 95 bytes", |t| t.length = 95),
            ("multiple of 64", |t| t.offset = 4097),
            ("sender's half", |t| t.offset = 4032),
            ("sender's half", |t| t.offset = 8128),
            ("sender's half", |t| t.offset = u64::MAX - 63),
            ("which is none", |t| (t.rows, t.columns) = (u32::MAX, u32::MAX)),
            ("says 96 bytes", |t| (t.rows, t.columns) = (u32::MAX, 1)),
        ];
        for (expected, fault) in faults {
            let mut tensor = good();
            fault(&mut tensor);
            let error = check(&tensor, 7, &half).expect_err(expected);
            assert!(error.contains(expected), "{error}");
        }
    }

    #[test]
    fn what_is_not_finite_is_found_anywhere() {
        for at in 0..9 {
            for value in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
                let mut values =
                    [1.5f32, 0.0, -f32::MAX, f32::MIN_POSITIVE, 1e-42, 3.0, -0.0, 7.0, 9.0];
                let bytes = |values: &[f32]| {
                    values.iter().flat_map(|v| v.to_le_bytes()).collect::<Vec<_>>()
                };
                assert!(all_finite(&bytes(&values), TensorType::F32));
                values[at] = value;
                assert!(!all_finite(&bytes(&values), TensorType::F32));
            }
        }
        for (kind, largest, infinite) in
            [(TensorType::F16, 0x7bffu16, 0x7c00u16), (TensorType::Bf16, 0x7f7f, 0x7f80)]
        {
            for sign in [0, 0x8000] {
                assert!(all_finite(&(largest | sign).to_le_bytes(), kind));
                assert!(!all_finite(&(infinite | sign).to_le_bytes(), kind));
                assert!(!all_finite(&((infinite | sign) + 1).to_le_bytes(), kind));
            }
        }
        assert!(!all_finite(&[], TensorType::Unspecified));
    }

    proptest! {
        /// Whatever is let through lies inside the half; whatever a fair peer says is let through.
        #[test]
        fn nothing_out_of_bounds_passes(
            offset in prop_oneof![0u64..9000, any::<u64>()], length in prop_oneof![0u64..9000, any::<u64>()],
            rows in prop_oneof![0u32..40, any::<u32>()], columns in prop_oneof![0u32..40, any::<u32>()], kind in -1i32..5,
            start in 0u64..100, size in 1u64..100,
        ) {
            let half = start * 64..(start + size) * 64;
            let tensor = TensorRef { number: 1, offset, length, rows, columns, r#type: kind };
            let passed = check(&tensor, 1, &half);
            let real = TensorType::try_from(kind).ok().and_then(|kind| super::length(rows, columns, kind));
            let inside = offset % 64 == 0 && offset >= half.start
                && u128::from(offset) + u128::from(length) <= u128::from(half.end) && real == Some(length);
            prop_assert_eq!(passed.is_ok(), inside, "{:?}", passed);
        }

        #[test]
        fn fair_tensors_pass(start in 0u64..100, rows in 1u32..8, columns in 1u32..16, kind in 1i32..4) {
            let kind = TensorType::try_from(kind).expect("known");
            let bytes = super::length(rows, columns, kind).expect("a tensor");
            let tensor = TensorRef { number: 3, offset: start * 64, length: bytes, rows, columns, r#type: kind.into() };
            prop_assert!(check(&tensor, 3, &(start * 64..start * 64 + bytes)).is_ok());
            prop_assert!(check(&tensor, 3, &(start * 64..start * 64 + bytes - 1)).is_err());
        }
    }
}
