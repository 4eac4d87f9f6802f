//! Rotary position embedding (arXiv 2104.09864), split-half pairing: index i rotates with i + R/2.
//! Frequencies: plain, linearly scaled (arXiv 2306.15595), those of Llama 3.1 (arXiv 2407.21783) and
//! YaRN's (arXiv 2309.00071), in old (`rope_theta` + `rope_scaling`) and new (`rope_parameters`)
//! keys.

use std::f64::consts::PI;

use mlx_rs::ops::indexing::TryIndexOp;
use mlx_rs::{Array, Dtype};
use serde_json::{Map, Value};

use super::rope_tables::{RopeTables, RotationNumbers};
use super::{Positions, host};
use crate::device::on_gpu;
use crate::error::{ModelError, Result};
use crate::load::{CheckpointError, ConfigJson, LoadError};

/// The angles' frequencies of one model.
#[derive(Clone, Debug)]
pub(crate) struct Rope {
    /// `[R/2]`, radians per position.
    frequencies: Vec<f32>,
    /// Factor on cos and sin (YaRN's temperature), else 1.
    magnitude: f32,
    /// By which of a row's positions each frequency rotates `[R/2]`; `None`: there is one.
    axes: Option<Vec<usize>>,
}

/// The order in which frequencies belong to three axes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SectionOrder {
    /// Frequency j rotates by height where j % 3 is 1 and j < 3 · section\[1\], by width where j % 3
    /// is 2 and j < 3 · section\[2\], else by time. Source: Qwen3-VL in transformers,
    /// `recomposition_frequencies`.
    Interleaved,
    /// The first frequencies rotate by time, the next ones by height, the last ones by width. Source:
    /// Qwen2-VL (arXiv 2409.12191) in transformers, `recomposition_frequencies`.
    OneAfterAnother,
}

impl SectionOrder {
    /// The axis of frequency `j`.
    fn axis(self, section: [usize; 3], j: usize) -> usize {
        match self {
            Self::Interleaved if j < 3 * section[j % 3] => j % 3,
            Self::Interleaved => 0,
            Self::OneAfterAnother if j < section[0] => 0,
            // Sections are of as many frequencies as there are, so the sum is small.
            Self::OneAfterAnother => 1 + usize::from(j >= section[0] + section[1]),
        }
    }
}

/// The share of a head that rotates.
const PARTIAL: &str = "partial_rotary_factor";
/// Key of the base of the frequencies.
const THETA: &str = "rope_theta";

/// The rotary keys of a config, from the groups where checkpoints keep them.
struct RotaryKeys<'a> {
    config: &'a ConfigJson,
    keys: Map<String, Value>,
}

impl<'a> RotaryKeys<'a> {
    fn read(config: &'a ConfigJson) -> Result<Self, LoadError> {
        let mut keys: Map<String, Value> = Map::new();
        for group in ["rope_scaling", "rope_parameters"] {
            keys.extend(config.optional::<Map<String, Value>>(group)?.unwrap_or_default());
        }
        keys.retain(|_, value| !value.is_null());
        Ok(Self { config, keys })
    }

    fn wrong(&self, key: &str, what: String) -> LoadError {
        LoadError::from(CheckpointError::Config { key: key.to_owned(), what })
    }

    fn number(&self, key: &str) -> Result<Option<f64>, LoadError> {
        let Some(value) = self.keys.get(key) else { return Ok(None) };
        let wrong = || self.wrong(key, format!("expected a number, found {value}"));
        value.as_f64().map(Some).ok_or_else(wrong)
    }

    /// A number that some checkpoints keep in a group and others at the top.
    fn number_anywhere(&self, key: &str) -> Result<Option<f64>, LoadError> {
        match self.number(key)? {
            Some(number) => Ok(Some(number)),
            None => Ok(self.config.optional(key)?),
        }
    }

    /// The base of the frequencies.
    fn theta(&self) -> Result<f64, LoadError> {
        let theta = self.number_anywhere(THETA)?.unwrap_or(10_000.0);
        if theta > 0.0 && theta.is_finite() {
            return Ok(theta);
        }
        Err(self.wrong(THETA, format!("expected above 0, found {theta}")))
    }

    /// Refuses heads of which only a part rotates.
    fn check_whole_heads(&self) -> Result<(), LoadError> {
        match self.number_anywhere(PARTIAL)? {
            None | Some(1.0) => Ok(()),
            partial => {
                let what = format!("expected 1: all of a head rotates; found {partial:?}");
                Err(self.wrong(PARTIAL, what))
            }
        }
    }

    /// Numbers of a head that rotate; `usual` is their share if no key names one.
    fn rotary_dim(&self, head_dim: i32, usual: f64) -> Result<i32, LoadError> {
        let share = self.number_anywhere(PARTIAL)?.unwrap_or(usual);
        let rotary_dim = f64::from(head_dim) * share;
        if (2.0..=f64::from(head_dim)).contains(&rotary_dim) && rotary_dim as i32 % 2 == 0 {
            return Ok(rotary_dim as i32);
        }
        let what = format!(
            "expected a share of a head of {head_dim} numbers that is an even number of them, at \
             least 2; found {share}"
        );
        Err(self.wrong(PARTIAL, what))
    }

    fn kind(&self) -> &str {
        let kind = self.keys.get("rope_type").or_else(|| self.keys.get("type"));
        kind.and_then(Value::as_str).unwrap_or("default")
    }

    /// A number above 0 that this kind of scaling needs.
    fn needed(&self, key: &str) -> Result<f64, LoadError> {
        match self.number(key)? {
            Some(number) if number > 0.0 && number.is_finite() => Ok(number),
            found => {
                let found = found.map_or("none".into(), |number| number.to_string());
                let what = format!("expected above 0 for {}, found {found}", self.kind());
                Err(self.wrong(&format!("rope_scaling.{key}"), what))
            }
        }
    }

    /// The plain frequencies, all slower by one factor.
    fn linear(&self, plain: &[f64]) -> Result<Vec<f64>, LoadError> {
        let factor = self.needed("factor")?;
        Ok(plain.iter().map(|f| f / factor).collect())
    }

    /// The frequencies of a base that `alpha` stretches, the same for any length of a sequence.
    fn by_alpha(&self, head_dim: i32) -> Result<Vec<f32>, LoadError> {
        let alpha = self.needed("alpha")?;
        let dims = f64::from(head_dim);
        // Of heads of two numbers there is one frequency, which no base changes.
        let base = self.theta()? * alpha.powf(dims / (dims - 2.0).max(1.0));
        let frequency = |i: i32| base.powf(-2.0 * f64::from(i) / dims) as f32;
        Ok((0..head_dim / 2).map(frequency).collect())
    }

    /// Llama 3.1's frequencies: those of short waves as they are, those of long waves slower by a
    /// factor, a mixture in between.
    fn llama3(&self, plain: &[f64]) -> Result<Vec<f64>, LoadError> {
        let [factor, low, high, original] =
            ["factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"]
                .map(|key| self.needed(key));
        let (factor, low, high, original) = (factor?, low?, high?, original?);
        if low >= high {
            let what = format!("expected above low_freq_factor, {low}, found {high}");
            return Err(self.wrong("rope_scaling.high_freq_factor", what));
        }
        // Rotations that a frequency makes within the original context: fewer than `low`: slowed; more
        // than `high`: as it is.
        let share = |f: &f64| {
            let rotations = original * f / (2.0 * PI);
            ((rotations - low) / (high - low)).clamp(0.0, 1.0)
        };
        Ok(plain.iter().map(|f| f * ((1.0 - share(f)) / factor + share(f))).collect())
    }

    /// The first frequencies of a whole head; the others do not rotate. Unlike a head of which a part
    /// rotates, the pairs are those of the whole head. Source: Gemma 4 in transformers.
    fn proportional(&self, plain: Vec<f64>) -> Result<Vec<f64>, LoadError> {
        let share = self.number(PARTIAL)?.unwrap_or(1.0);
        if !(0.0..=1.0).contains(&share) {
            let what = format!("expected a share of a head from 0 to 1, found {share}");
            return Err(self.wrong(PARTIAL, what));
        }
        let rotary_dim = (share * plain.len() as f64) as usize;
        Ok(plain
            .into_iter()
            .enumerate()
            .map(|(i, f)| if i < rotary_dim { f } else { 0.0 })
            .collect())
    }

    /// YaRN's frequencies from the plain ones, and its factor on cos and sin.
    fn yarn(&self, plain: &[f64], head_dim: i32, theta: f64) -> Result<(Vec<f64>, f64), LoadError> {
        let missing = || self.wrong("rope_scaling.factor", "YaRN needs it, found none".into());
        let factor = self.number("factor")?.ok_or_else(missing)?;
        let original = match self.number("original_max_position_embeddings")? {
            Some(original) => original,
            None => f64::from(self.config.size("max_position_embeddings")?),
        };
        let fast = self.number("beta_fast")?.unwrap_or(32.0);
        let slow = self.number("beta_slow")?.unwrap_or(1.0);
        let truncate = self.keys.get("truncate").and_then(Value::as_bool).unwrap_or(true);
        let dims = f64::from(head_dim);
        let at =
            |rotations: f64| dims * (original / (rotations * 2.0 * PI)).ln() / (2.0 * theta.ln());
        let (mut low, mut high) = (at(fast), at(slow));
        if truncate {
            (low, high) = (low.floor(), high.ceil());
        }
        (low, high) = (low.max(0.0), high.min(dims - 1.0));
        if low == high {
            high += 0.001; // as published, against a division by zero
        }
        let ramp = |i: usize| ((i as f64 - low) / (high - low)).clamp(0.0, 1.0);
        let mixed = plain
            .iter()
            .enumerate()
            .map(|(i, f)| f / factor * ramp(i) + f * (1.0 - ramp(i)))
            .collect();
        let temperature = if factor > 1.0 { 0.1 * factor.ln() + 1.0 } else { 1.0 };
        Ok((mixed, self.number("attention_factor")?.unwrap_or(temperature)))
    }

    /// The axis of each of `half` frequencies, of four axes.
    fn four_sections(&self, half: usize) -> Result<Vec<usize>, LoadError> {
        let key = "rope_scaling.xdrope_section";
        let found = self.keys.get("xdrope_section").or_else(|| self.keys.get("mrope_section"));
        let shares: [f64; 4] = match found {
            None => [0.25; 4],
            Some(value) => serde_json::from_value(value.clone()).map_err(|error| {
                self.wrong(key, format!("expected four sizes, found {value}: {error}"))
            })?,
        };
        let is_share = shares.iter().sum::<f64>() <= 1.0;
        let section = shares.map(|share| if is_share { share * half as f64 } else { share });
        let sum: f64 = section.iter().sum();
        if section.iter().any(|size| *size < 0.0 || size.fract() != 0.0) || sum != half as f64 {
            let what = format!(
                "expected four sizes of {half} in all, half of a head's numbers, or shares of 1; \
                 found {shares:?}"
            );
            return Err(self.wrong(key, what));
        }
        // The sizes are those of the frequencies, so that the numbers are small.
        let axes = section.iter().enumerate();
        let axes = axes.flat_map(|(axis, size)| std::iter::repeat_n(axis, *size as usize));
        Ok(axes.collect())
    }
}

impl Rope {
    /// Reads the rotary keys of `config` for heads of `head_dim`.
    pub(crate) fn load(config: &ConfigJson, head_dim: i32) -> Result<Self, LoadError> {
        let keys = RotaryKeys::read(config)?;
        keys.check_whole_heads()?;
        Self::of(&keys, head_dim)
    }

    /// As [`Rope::load`], with a base for a config that names none.
    pub(crate) fn load_from_base(
        config: &ConfigJson,
        head_dim: i32,
        usual: f64,
    ) -> Result<Self, LoadError> {
        let mut keys = RotaryKeys::read(config)?;
        if keys.number_anywhere(THETA)?.is_none() {
            keys.keys.insert(THETA.to_owned(), usual.into());
        }
        keys.check_whole_heads()?;
        Self::of(&keys, head_dim)
    }

    /// The plain rotation from this base, whatever the config says.
    pub(crate) fn plain(config: &ConfigJson, head_dim: i32, base: f64) -> Result<Self, LoadError> {
        let keys = Map::from_iter([(THETA.to_owned(), base.into())]);
        Self::of(&RotaryKeys { config, keys }, head_dim)
    }

    /// Reads the rotary keys of layers of one kind, which are an object in `rope_parameters`.
    ///
    /// # Errors
    /// There is no such object.
    pub(crate) fn load_kind(
        config: &ConfigJson,
        kind: &str,
        head_dim: i32,
    ) -> Result<Self, LoadError> {
        let all: Map<String, Value> = config.required("rope_parameters")?;
        let Some(Value::Object(mut keys)) = all.get(kind).cloned() else {
            let what = format!("expected an object {kind}, found none");
            return Err(config.wrong("rope_parameters", what).into());
        };
        keys.retain(|_, value| !value.is_null());
        Self::of(&RotaryKeys { config, keys }, head_dim)
    }

    /// Reads the rotary keys for heads of which only the first numbers rotate. `usual` is their share
    /// if the config names none.
    pub(crate) fn load_partial(
        config: &ConfigJson,
        head_dim: i32,
        usual: f64,
    ) -> Result<Self, LoadError> {
        let keys = RotaryKeys::read(config)?;
        let rotary_dim = keys.rotary_dim(head_dim, usual)?;
        Self::of(&keys, rotary_dim)
    }

    /// `rotary_dim`: numbers of a head that rotate.
    fn of(keys: &RotaryKeys<'_>, rotary_dim: i32) -> Result<Self, LoadError> {
        let theta = keys.theta()?;
        let plain: Vec<f64> = (0..rotary_dim / 2)
            .map(|i| theta.powf(-2.0 * f64::from(i) / f64::from(rotary_dim)))
            .collect();
        let (frequencies, magnitude) = match keys.kind() {
            // The name that checkpoints with sections have for the plain frequencies.
            "default" | "mrope" => (plain, 1.0),
            "linear" => (keys.linear(&plain)?, 1.0),
            "llama3" => (keys.llama3(&plain)?, 1.0),
            "yarn" => keys.yarn(&plain, rotary_dim, theta)?,
            "proportional" => (keys.proportional(plain)?, 1.0),
            other => {
                let what = format!(
                    "expected default, linear, llama3, yarn or proportional, found {other}"
                );
                return Err(keys.wrong("rope_scaling.rope_type", what));
            }
        };
        Ok(Self {
            frequencies: frequencies.iter().map(|f| *f as f32).collect(),
            magnitude: magnitude as f32,
            axes: None,
        })
    }

    /// The rotary embedding for positions on three axes. `usual` are the sections if the config
    /// names none: how many frequencies rotate by time, height and width.
    ///
    /// # Errors
    /// Sections that are not those of the frequencies, or in another order.
    pub(crate) fn on_three_axes(
        self,
        config: &ConfigJson,
        order: SectionOrder,
        usual: [usize; 3],
    ) -> Result<Self, LoadError> {
        let RotaryKeys { keys, .. } = RotaryKeys::read(config)?;
        let half = self.frequencies.len();
        let key = "rope_parameters.mrope_section";
        let found = keys.get("mrope_section");
        let section: [usize; 3] = match found {
            None => usual,
            Some(value) => serde_json::from_value(value.clone()).map_err(|error| {
                config.wrong(key, format!("expected three sizes, found {value}: {error}"))
            })?,
        };
        if section.iter().fold(0usize, |sum, size| sum.saturating_add(*size)) != half {
            let found = if found.is_some() { "found" } else { "found none, which means" };
            return Err(config.wrong(
                key,
                format!(
                    "expected three sizes of {half} in all, half of a head's numbers that rotate; \
                     {found} {section:?}"
                ),
            ).into());
        }
        let is_interleaved = order == SectionOrder::Interleaved;
        if keys.get("mrope_interleaved").is_some_and(|value| *value != Value::Bool(is_interleaved))
        {
            let what =
                format!("expected {is_interleaved}, as every checkpoint of the family has it");
            return Err(config.wrong("rope_parameters.mrope_interleaved", what).into());
        }
        let axes = (0..half).map(|j| order.axis(section, j)).collect();
        Ok(Self { axes: Some(axes), ..self })
    }

    /// As [`Rope::on_three_axes`] if the config names sections, else by one position: drafters of text
    /// alone name none. Sections are in the `usual` order if the config does not say.
    ///
    /// # Errors
    /// As [`Rope::on_three_axes`].
    pub(crate) fn on_named_axes(
        self,
        config: &ConfigJson,
        usual: SectionOrder,
    ) -> Result<Self, LoadError> {
        let RotaryKeys { keys, .. } = RotaryKeys::read(config)?;
        if !keys.contains_key("mrope_section") {
            return Ok(self);
        }
        let order = match keys.get("mrope_interleaved") {
            Some(Value::Bool(true)) => SectionOrder::Interleaved,
            Some(Value::Bool(false)) => SectionOrder::OneAfterAnother,
            _ => usual,
        };
        self.on_three_axes(config, order, [0; 3])
    }

    /// Whether rows may have three positions.
    pub(crate) fn has_three_axes(&self) -> bool {
        self.axes.is_some()
    }

    /// Reads the rotary keys of HunyuanOCR, whose rows have positions on four axes: the first
    /// frequencies rotate by the first axis, the next ones by the next axis. Sections are numbers of
    /// frequencies, or shares of them. Without sections each axis has a quarter. Source:
    /// `HunYuanVLRotaryEmbedding` of the vendor's code; transformers 5.24 gives a number and its
    /// partner different axes.
    ///
    /// # Errors
    /// Sections that are not those of the frequencies, and frequencies that are not computed.
    pub(crate) fn load_on_four_axes(config: &ConfigJson, head_dim: i32) -> Result<Self, LoadError> {
        let keys = RotaryKeys::read(config)?;
        keys.check_whole_heads()?;
        let rope = match keys.kind() {
            "dynamic" | "xdrope" => {
                Self { frequencies: keys.by_alpha(head_dim)?, magnitude: 1.0, axes: None }
            }
            _ => Self::of(&keys, head_dim)?,
        };
        let axes = keys.four_sections(rope.frequencies.len())?;
        Ok(Self { axes: Some(axes), ..rope })
    }

    /// The rotations of every row of a batch in a model of this type.
    pub(crate) fn tables(&self, positions: &Positions, dtype: Dtype) -> Result<RopeTables> {
        if let Positions::One(positions) = positions
            && self.fuses(dtype, on_gpu())
        {
            return Ok(RopeTables::fused(positions, &self.frequencies));
        }
        self.numbers(positions)?.tables(self.rotary_dim(), dtype)
    }

    /// The numbers of [`Rope::tables`].
    pub(crate) fn numbers(&self, positions: &Positions) -> Result<RotationNumbers> {
        let half = self.frequencies.len();
        match (positions, &self.axes) {
            // All axes equal.
            (Positions::One(positions), _) => {
                let rotation = |row: usize, i| self.rotation(positions[row], i);
                Ok(RotationNumbers::new(positions.len(), half, rotation))
            }
            (Positions::Axes(positions), Some(axes)) => {
                let needed = axes.iter().max().map_or(1, |last| last + 1);
                if positions.len() < needed {
                    let found = positions.len();
                    let what =
                        format!("expected positions on at least {needed} axes, found {found}");
                    return Err(ModelError::Batch(what));
                }
                let rotation = |row: usize, i: usize| self.rotation(positions[axes[i]][row], i);
                Ok(RotationNumbers::new(positions[0].len(), half, rotation))
            }
            (Positions::Axes(_), None) => Err(ModelError::Batch(
                "expected one position a row: this model has no multi-axis positions".into(),
            )),
        }
    }

    /// Numbers of a head that rotate.
    pub(crate) fn rotary_dim(&self) -> usize {
        2 * self.frequencies.len()
    }

    /// Whether MLX's fused rotation serves a model of this type. A model that may have positions on three
    /// axes rotates all of its rows by tables: a row's numbers must not depend on images beside it.
    fn fuses(&self, dtype: Dtype, on_gpu: bool) -> bool {
        let is_plain = self.axes.is_none() && self.magnitude == 1.0;
        on_gpu && is_plain && matches!(dtype, Dtype::Bfloat16 | Dtype::Float16)
    }

    /// The rotations of rows at these positions.
    pub(crate) fn rows(&self, positions: &[i32], dtype: Dtype) -> Result<RopeTables> {
        if self.fuses(dtype, on_gpu()) {
            return Ok(RopeTables::fused(positions, &self.frequencies));
        }
        let rotation = |row: usize, i| self.rotation(positions[row], i);
        let numbers = RotationNumbers::new(positions.len(), self.frequencies.len(), rotation);
        numbers.tables(self.rotary_dim(), dtype)
    }

    fn rotation(&self, position: i32, i: usize) -> (f32, f32) {
        let (sin, cos) = (position as f32 * self.frequencies[i]).sin_cos();
        (cos * self.magnitude, sin * self.magnitude)
    }
}

impl RopeTables {
    /// The first `heads` heads of `x` `[rows, at least that many, R]`, rotated → `[rows, heads, R]`.
    pub(crate) fn apply_to(&self, x: &Array, heads: i32) -> Result<Array> {
        match host::rotate(x, heads, self)? {
            Some(rotated) => Ok(rotated),
            None => Ok(self.apply(&x.try_index((.., ..heads, ..))?)?.as_dtype(x.dtype())?),
        }
    }
}

#[cfg(test)]
mod tests;
