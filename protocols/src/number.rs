//! Whole numbers of requests. A body's number is checked while the body is decoded, so no code can
//! size anything by a number that was not checked. The range is part of the field's type and of the
//! field's schema. A test of `docs/openapi.json` refuses a number of a request without a range.

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use paceline_text::json::key_twice;
use serde::de::{Deserialize, Deserializer, Error, MapAccess, Unexpected, Visitor};
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::{ObjectBuilder, Schema, Type};
use utoipa::{PartialSchema, ToSchema};

use crate::inference::bounds::MAX_SAMPLES;
use crate::inference::params::{MAX_BIAS, MAX_BIASES, MAX_LOGPROBS};

/// A whole number from `MIN` to `MAX`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Whole<const MIN: u32, const MAX: u32>(u32);

/// How many answers a request has.
pub type Samples = Whole<1, MAX_SAMPLES>;
/// How many alternatives of a token are reported.
pub type TopLogprobs = Whole<0, MAX_LOGPROBS>;
/// Most tokens of an answer. A number above the room in the context is served with what has room.
pub type MaxTokens = Whole<1, { u32::MAX }>;
/// As [`MaxTokens`], or as many as have room.
pub type MaxTokensOrNone = OrNone<1>;
/// How many of the most probable tokens are chosen from, or all.
pub type TopK = OrNone<0>;
/// A count without a bound of its own: it is compared and sizes nothing.
pub type Count = Whole<0, { u32::MAX }>;
/// The id of a token. The model's vocabulary bounds it.
pub type TokenId = Whole<0, { u32::MAX }>;
/// The number 1, of a field that has no other served value.
pub type One = Whole<1, 1>;

impl<const MIN: u32, const MAX: u32> Default for Whole<MIN, MAX> {
    /// The smallest of them.
    fn default() -> Self {
        Self(MIN)
    }
}

impl<const MIN: u32, const MAX: u32> Whole<MIN, MAX> {
    /// The number, which is in the range.
    pub fn get(self) -> u32 {
        self.0
    }

    /// The number if it is in the range.
    fn new(number: i128) -> Option<Self> {
        let number = u32::try_from(number).ok()?;
        (MIN..=MAX).contains(&number).then_some(Self(number))
    }
}

impl<'de, const MIN: u32, const MAX: u32> Deserialize<'de> for Whole<MIN, MAX> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let expected = format!("a whole number from {MIN} to {MAX}");
        deserializer.deserialize_any(Reader { expected, made: |number| Self::new(number) })
    }
}

/// Reads a whole number, and makes of it a value of a type that has some of them.
struct Reader<T> {
    /// The numbers of the type, for an error.
    expected: String,
    made: fn(i128) -> Option<T>,
}

impl<T> Visitor<'_> for Reader<T> {
    type Value = T;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.expected)
    }

    fn visit_u64<E: Error>(self, number: u64) -> Result<T, E> {
        let refused = || E::invalid_value(Unexpected::Unsigned(number), &self);
        (self.made)(number.into()).ok_or_else(refused)
    }

    fn visit_i64<E: Error>(self, number: i64) -> Result<T, E> {
        let refused = || E::invalid_value(Unexpected::Signed(number), &self);
        (self.made)(number.into()).ok_or_else(refused)
    }

    /// `16.0` is a whole number (JSON Schema); some clients keep all numbers as floats. Above 2^53 a
    /// float does not hold each whole number, and the one that the client means is unknown.
    fn visit_f64<E: Error>(self, number: f64) -> Result<T, E> {
        const EXACT: f64 = (1u64 << 53) as f64;
        let is_whole = number.fract() == 0.0 && number.abs() <= EXACT;
        let refused = || E::invalid_value(Unexpected::Float(number), &self);
        is_whole.then_some(number as i128).and_then(self.made).ok_or_else(refused)
    }
}

impl<const MIN: u32, const MAX: u32> PartialSchema for Whole<MIN, MAX> {
    fn schema() -> RefOr<Schema> {
        let range = ObjectBuilder::new().minimum(Some(MIN)).maximum(Some(MAX));
        range.schema_type(Type::Integer).into()
    }
}

impl<const MIN: u32, const MAX: u32> ToSchema for Whole<MIN, MAX> {
    fn name() -> Cow<'static, str> {
        format!("Whole_{MIN}_{MAX}").into()
    }
}

/// A whole number from `MIN`, or none: -1, as clients of llama.cpp and vLLM write it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OrNone<const MIN: u32>(Option<Whole<MIN, { u32::MAX }>>);

impl<const MIN: u32> OrNone<MIN> {
    /// The number; `None` for -1.
    pub fn get(self) -> Option<u32> {
        self.0.map(Whole::get)
    }
}

impl<'de, const MIN: u32> Deserialize<'de> for OrNone<MIN> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let made = |number: i128| match number == i128::from(NONE) {
            true => Some(Self(None)),
            false => Some(Self(Some(Whole::new(number)?))),
        };
        let expected = format!("a whole number from {MIN} to {}, or -1 for none", u32::MAX);
        deserializer.deserialize_any(Reader { expected, made })
    }
}

impl<const MIN: u32> PartialSchema for OrNone<MIN> {
    fn schema() -> RefOr<Schema> {
        let range = ObjectBuilder::new().minimum(Some(NONE)).maximum(Some(u32::MAX));
        range.schema_type(Type::Integer).into()
    }
}

impl<const MIN: u32> ToSchema for OrNone<MIN> {
    fn name() -> Cow<'static, str> {
        format!("OrNone_{MIN}").into()
    }
}

impl TopK {
    /// The number; 0 for all tokens.
    pub fn or_all(self) -> u32 {
        self.get().unwrap_or(0)
    }
}

/// The number that stands for none.
pub const NONE: i64 = -1;

/// A seed, or none. The protocol's is a signed number; ours has the same 64 bits. For -1 the service
/// draws a seed, as for a request without one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seed(pub Option<u64>);

impl<'de> Deserialize<'de> for Seed {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let made = |number: i128| match i64::try_from(number) {
            Ok(NONE) => Some(Self(None)),
            Ok(seed) => Some(Self(Some(seed.cast_unsigned()))),
            Err(_) => Some(Self(Some(u64::try_from(number).ok()?))),
        };
        deserializer.deserialize_any(Reader { expected: "an integer of 64 bits".to_owned(), made })
    }
}

impl PartialSchema for Seed {
    fn schema() -> RefOr<Schema> {
        let range = ObjectBuilder::new().minimum(Some(i64::MIN)).maximum(Some(u64::MAX));
        range.schema_type(Type::Integer).into()
    }
}

impl ToSchema for Seed {}

/// Numbers added to logits, by the text of a token's id, as it came. A token that comes twice is
/// refused: which of the two numbers the client means is unknown.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Biases(pub Vec<(String, f32)>);

impl<'de> Deserialize<'de> for Biases {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Forms;

        impl<'de> Visitor<'de> for Forms {
            type Value = Biases;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object of numbers by token id")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut object: A) -> Result<Biases, A::Error> {
                let (mut biases, mut seen) = (Vec::new(), HashSet::new());
                while let Some((token, bias)) = object.next_entry::<String, f32>()? {
                    if !seen.insert(token.clone()) {
                        return Err(A::Error::custom(key_twice(&token)));
                    }
                    biases.push((token, bias));
                }
                Ok(Biases(biases))
            }
        }

        deserializer.deserialize_map(Forms)
    }
}

impl PartialSchema for Biases {
    fn schema() -> RefOr<Schema> {
        let bias = ObjectBuilder::new().schema_type(Type::Number);
        let bias = bias.minimum(Some(-MAX_BIAS)).maximum(Some(MAX_BIAS));
        let biases = ObjectBuilder::new().additional_properties(Some(bias));
        biases.max_properties(Some(MAX_BIASES)).into()
    }
}

impl ToSchema for Biases {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_out_of_its_range_is_refused_while_it_is_read() {
        let samples = |text| serde_json::from_str::<Samples>(text).map(Samples::get).ok();
        assert_eq!(["1", "16"].map(samples), [Some(1), Some(16)]);
        assert_eq!(["1.0", "1.6e1"].map(samples), [Some(1), Some(16)]);
        for other in
            ["0", "17", "-1", "4294967295", "4294967297", "1.5", "1e9", "-0", "\"1\"", "null"]
        {
            assert_eq!(samples(other), None, "{other}");
        }
        let error = serde_json::from_str::<Samples>("4294967295").expect_err("many").to_string();
        assert!(error.contains("a whole number from 1 to 16"), "{error}");
    }

    #[test]
    fn a_seed_keeps_its_bits_and_minus_one_is_none() {
        let read = |text| serde_json::from_str::<Seed>(text).map(|seed| seed.0).ok();
        assert_eq!(["-1", "-1.0"].map(read), [Some(None), Some(None)]);
        let seed = |text| read(text).flatten();
        assert_eq!(seed("-2"), Some(u64::MAX - 1));
        assert_eq!(seed("18446744073709551615"), Some(u64::MAX));
        assert_eq!((seed("16.0"), seed("-2.0")), (Some(16), Some(u64::MAX - 1)));
        assert_eq!((seed("1.5"), seed("1e300")), (None, None));
    }

    #[test]
    fn a_number_or_none_takes_minus_one_and_its_range() {
        let number = |text| serde_json::from_str::<OrNone<1>>(text).map(OrNone::get).ok();
        assert_eq!(["-1", "-1.0"].map(number), [Some(None), Some(None)]);
        assert_eq!(["1", "2.0"].map(number), [Some(Some(1)), Some(Some(2))]);
        assert_eq!(number("4294967295"), Some(Some(u32::MAX)));
        let others =
            ["0", "-2", "-0", "4294967296", "1.5", "-1.5", "1e300", "-1e300", "\"1\"", "null"];
        for other in others {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn a_token_that_has_two_biases_is_refused() {
        let biases = |text| serde_json::from_str::<Biases>(text).map(|biases| biases.0);
        let expected = vec![("5".to_owned(), 1.0), ("1".to_owned(), -1.0)];
        assert_eq!(biases(r#"{"5": 1, "1": -1}"#).expect("each once"), expected);
        let error = biases(r#"{"1": 5, "\u0031": 5}"#).expect_err("twice").to_string();
        assert!(error.contains("the key \"1\" twice"), "{error}");
    }
}
