//! Rules for a `TensorRef`. A peer's numbers are checked here before a byte of shared memory is
//! read.

use std::ops::Range;

use paceline_vocabulary::TensorType;
use paceline_vocabulary::tensor::TensorRef;

use crate::ring::ALIGN;

/// A tensor's place in the segment, in bytes; inside the half it was checked against.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Place {
    /// From the segment's start.
    pub offset: usize,
    /// Bytes.
    pub length: usize,
    /// Element type.
    pub element: TensorType,
}

/// A tensor that link.proto does not allow.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TensorError {
    /// Tensors are numbered without a gap.
    #[error("expected tensor {expected}, found {found}")]
    Number {
        /// The next one.
        expected: u64,
        /// The peer's.
        found: u64,
    },
    /// No rows, no columns, or more bytes than can be counted.
    #[error(
        "tensor {number} has {rows} rows, {columns} columns and type {element:?}, which is none"
    )]
    Shape {
        /// The tensor.
        number: u64,
        /// Rows of the tensor.
        rows: u32,
        /// Columns of the tensor.
        columns: u32,
        /// Element type of the tensor.
        element: TensorType,
    },
    /// A length that is not that of the shape.
    #[error(
        "tensor {number} has {found} bytes, {rows} rows of {columns} {element:?} are {expected}"
    )]
    Length {
        /// The tensor.
        number: u64,
        /// Bytes of its shape.
        expected: u64,
        /// Bytes by the peer's count.
        found: u64,
        /// Rows of the tensor.
        rows: u32,
        /// Columns of the tensor.
        columns: u32,
        /// Element type of the tensor.
        element: TensorType,
    },
    /// A start between the multiples of [`ALIGN`].
    #[error("tensor {number} starts at {offset}, expected a multiple of {ALIGN}")]
    Alignment {
        /// The tensor.
        number: u64,
        /// Start of the tensor.
        offset: u64,
    },
    /// A place outside its sender's half, or beyond this machine's addresses.
    #[error("tensor {number} is {length} bytes at {offset}, its sender's half is {half:?}")]
    Range {
        /// The tensor.
        number: u64,
        /// Start of the tensor.
        offset: u64,
        /// Bytes of the tensor.
        length: u64,
        /// Where it may lie.
        half: Range<u64>,
    },
    /// An infinity or NaN.
    #[error("tensor {number} holds numbers that are not finite")]
    NotFinite {
        /// The tensor.
        number: u64,
    },
}

/// Bytes of a tensor; `None` if there is no such tensor: no rows, no columns, or more bytes than
/// can be counted.
pub fn length(rows: u32, columns: u32, element: TensorType) -> Option<u64> {
    let numbers = u64::from(rows).checked_mul(u64::from(columns)).filter(|numbers| *numbers > 0)?;
    numbers.checked_mul(element.bytes() as u64)
}

/// Checks a peer's tensor: it must have the number `expected` and lie inside `half` of the segment.
///
/// # Errors
/// The rule that it breaks, with expected and found.
pub fn check(tensor: &TensorRef, expected: u64, half: &Range<u64>) -> Result<Place, TensorError> {
    let TensorRef { number, offset, length: found, rows, columns, element } = *tensor;
    if number != expected {
        return Err(TensorError::Number { expected, found: number });
    }
    let Some(length) = length(rows, columns, element) else {
        return Err(TensorError::Shape { number, rows, columns, element });
    };
    if found != length {
        let expected = length;
        return Err(TensorError::Length { number, expected, found, rows, columns, element });
    }
    if !offset.is_multiple_of(ALIGN) {
        return Err(TensorError::Alignment { number, offset });
    }
    let inside =
        offset.checked_add(length).is_some_and(|end| offset >= half.start && end <= half.end);
    match (usize::try_from(offset), usize::try_from(length)) {
        (Ok(offset), Ok(length)) if inside => Ok(Place { offset, length, element }),
        _ => Err(TensorError::Range { number, offset, length, half: half.clone() }),
    }
}

/// Whether every number is finite. `bytes` are little-endian, as on every machine we run on.
pub fn all_finite(bytes: &[u8], element: TensorType) -> bool {
    // Infinities and NaNs have all bits of the exponent. Without an early end the loop is a few
    // instructions a vector.
    let narrow = |exponent: u16| {
        let count = |bad: u32, c: &[u8]| {
            bad | u32::from(u16::from_le_bytes([c[0], c[1]]) & exponent == exponent)
        };
        bytes.chunks_exact(2).fold(0, count) == 0
    };
    match element {
        TensorType::F32 => {
            let exponent = 0x7f80_0000;
            let count = |bad: u32, c: &[u8]| {
                bad | u32::from(u32::from_le_bytes([c[0], c[1], c[2], c[3]]) & exponent == exponent)
            };
            bytes.chunks_exact(4).fold(0, count) == 0
        }
        TensorType::F16 => narrow(0x7c00),
        TensorType::Bf16 => narrow(0x7f80),
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
            element: TensorType::F32,
        }
    }

    type Fault = fn(&mut TensorRef);

    fn element() -> impl Strategy<Value = TensorType> {
        prop::sample::select(vec![TensorType::F32, TensorType::F16, TensorType::Bf16])
    }

    #[test]
    fn a_fair_tensor_passes_and_each_fault_has_its_error() {
        let half = 4096..8192;
        let place = Place { offset: 4096, length: 96, element: TensorType::F32 };
        assert_eq!(check(&good(), 7, &half), Ok(place));
        let faults: [(&str, Fault); 9] = [
            ("expected tensor 7, found 8", |t| t.number = 8),
            ("which is none", |t| t.rows = 0),
            ("has 95 bytes", |t| t.length = 95),
            ("multiple of 64", |t| t.offset = 4097),
            ("sender's half", |t| t.offset = 4032),
            ("sender's half", |t| t.offset = 8128),
            ("sender's half", |t| t.offset = u64::MAX - 63),
            ("which is none", |t| (t.rows, t.columns) = (u32::MAX, u32::MAX)),
            ("has 96 bytes", |t| (t.rows, t.columns) = (u32::MAX, 1)),
        ];
        for (expected, fault) in faults {
            let mut tensor = good();
            fault(&mut tensor);
            let error = check(&tensor, 7, &half).expect_err(expected);
            assert!(error.to_string().contains(expected), "{error}");
        }
    }

    #[test]
    fn a_number_that_is_not_finite_is_found_at_every_place() {
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
    }

    proptest! {
        /// Every tensor that passes lies inside the half.
        #[test]
        fn nothing_out_of_bounds_passes(
            offset in prop_oneof![0u64..9000, any::<u64>()], length in prop_oneof![0u64..9000, any::<u64>()],
            rows in prop_oneof![0u32..40, any::<u32>()], columns in prop_oneof![0u32..40, any::<u32>()], element in element(),
            start in 0u64..100, size in 1u64..100,
        ) {
            let half = start * 64..(start + size) * 64;
            let tensor = TensorRef { number: 1, offset, length, rows, columns, element };
            let passed = check(&tensor, 1, &half);
            let real = super::length(rows, columns, element);
            let inside = offset % 64 == 0 && offset >= half.start
                && u128::from(offset) + u128::from(length) <= u128::from(half.end) && real == Some(length);
            prop_assert_eq!(passed.is_ok(), inside, "{:?}", passed);
        }

        /// Every tensor of a fair peer passes.
        #[test]
        fn fair_tensors_pass(start in 0u64..100, rows in 1u32..8, columns in 1u32..16, element in element()) {
            let bytes = super::length(rows, columns, element).expect("a tensor");
            let tensor = TensorRef { number: 3, offset: start * 64, length: bytes, rows, columns, element };
            prop_assert!(check(&tensor, 3, &(start * 64..start * 64 + bytes)).is_ok());
            prop_assert!(check(&tensor, 3, &(start * 64..start * 64 + bytes - 1)).is_err());
        }
    }
}
