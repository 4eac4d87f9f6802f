//! The scaling of rotations. Llama 3.1's is a tensor with the divisor of each frequency. Its parameters
//! are those of the published models, with the factor and the original length that reproduce it.

use serde_json::{Value, json};

use super::architecture::Architecture;
use super::notes::Notes;
use super::weights::ROPE_FACTORS;
use crate::error::{FormatError, shown};
use crate::gguf::{self, BlockType, Gguf, Metadata, expand};

/// Frequencies below the first number of waves in the original length are divided by the factor, those
/// above the second one are kept. Published Llamas all have these.
const LOW_AND_HIGH: [f64; 2] = [1.0, 4.0];
/// Original lengths that are tried, as powers of 2. Published Llamas all have 8,192.
const LENGTHS: std::ops::RangeInclusive<u32> = 9..=20;
/// Largest relative difference of a divisor that is the same: programs round powers of float32
/// differently.
const SAME: f64 = 1e-5;

/// The `rope_scaling` of config.json; null if there is none.
pub(super) fn scaling(
    gguf: &Gguf<'_>,
    architecture: &Architecture<'_>,
    head_dim: u64,
    notes: &Notes<'_>,
) -> Result<Value, FormatError> {
    let stated = stated(architecture)?;
    let Some(tensor) = gguf.tensors.iter().find(|tensor| tensor.name == ROPE_FACTORS) else {
        return Ok(stated);
    };
    let half = head_dim / 2;
    let is_usable = tensor.kind == BlockType::F32 && tensor.dimensions == [half];
    if !is_usable || tensor.data.is_empty() || !stated.is_null() {
        let found = format!("{} of dimensions {:?}", tensor.kind.name(), tensor.dimensions);
        return Err(tensor.error(format!("{half} numbers of F32, and no other scaling"), found));
    }
    let mut divisors = vec![1.0; half as usize];
    expand(tensor.kind, &tensor.data, &mut divisors)?;
    if divisors.iter().all(|divisor| *divisor == 1.0) {
        return Ok(Value::Null);
    }
    let base = base(architecture)?;
    let is_same = |scaling: &Value| Llama3::of(scaling).is_some_and(|it| it.gives(base, &divisors));
    if let Some(given) = notes.given("rope_scaling").filter(|given| is_same(given)) {
        return Ok(given.clone());
    }
    let factor = f64::from(divisors.iter().copied().fold(1.0, f32::max));
    let [low, high] = LOW_AND_HIGH;
    let candidate = |power: u32| {
        json!({
            "rope_type": "llama3",
            "factor": factor,
            "low_freq_factor": low,
            "high_freq_factor": high,
            "original_max_position_embeddings": 1_u64 << power,
        })
    };
    LENGTHS.map(candidate).find(is_same).ok_or_else(|| {
        let expected = format!("the scaling of a Llama 3.1 with the factors {low} and {high}");
        let found = "other divisors; put the config.json of the original model beside the file";
        tensor.error(expected, found)
    })
}

/// The base of the frequencies.
pub(super) fn base(architecture: &Architecture<'_>) -> Result<f64, FormatError> {
    Ok(architecture.optional("rope.freq_base", Metadata::float)?.unwrap_or(10_000.0))
}

/// The scaling that the metadata has.
fn stated(architecture: &Architecture<'_>) -> Result<Value, FormatError> {
    const TYPE: &str = "rope.scaling.type";
    let number = |name: &str| architecture.optional(name, Metadata::float);
    let kind = architecture.optional(TYPE, Metadata::text)?.unwrap_or("none");
    // Files of the first versions have a factor alone.
    let older = number("rope.scale_linear")?.filter(|factor| *factor != 1.0);
    let factor = number("rope.scaling.factor")?.or(older);
    match (kind, factor) {
        ("none", None) => Ok(Value::Null),
        ("linear" | "none", Some(factor)) => Ok(json!({ "rope_type": "linear", "factor": factor })),
        ("yarn", Some(factor)) => Ok(json!({
            "rope_type": "yarn",
            "factor": factor,
            "original_max_position_embeddings":
                architecture.count("rope.scaling.original_context_length")?,
        })),
        (kind, _) => {
            let expected = "none, linear or yarn, the last two with a factor";
            Err(gguf::error(&architecture.key(TYPE), expected, shown(kind)))
        }
    }
}

/// Parameters of Llama 3.1's scaling.
#[derive(Clone, Copy, Debug)]
struct Llama3 {
    factor: f64,
    low: f64,
    high: f64,
    length: f64,
}

impl Llama3 {
    fn of(scaling: &Value) -> Option<Self> {
        let number = |key: &str| scaling.get(key).and_then(Value::as_f64);
        Some(Self {
            factor: number("factor")?,
            low: number("low_freq_factor")?,
            high: number("high_freq_factor")?,
            length: number("original_max_position_embeddings")?,
        })
    }

    /// Whether frequencies of this base are divided by these numbers. Source: transformers,
    /// modeling_rope_utils.py.
    fn gives(self, base: f64, divisors: &[f32]) -> bool {
        let width = 2.0 * divisors.len() as f64;
        divisors.iter().enumerate().all(|(at, divisor)| {
            let waves = self.length * base.powf(-(2.0 * at as f64) / width) / std::f64::consts::TAU;
            let smooth = ((waves - self.low) / (self.high - self.low)).clamp(0.0, 1.0);
            let expected = 1.0 / ((1.0 - smooth) / self.factor + smooth);
            (f64::from(*divisor) / expected - 1.0).abs() <= SAME
        })
    }
}
