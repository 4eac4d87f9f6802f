//! Quantization settings of config.json: a format for all modules, and other formats, or none, by
//! module path. Paths are MLX's names. Source: mlx-lm 0.32.2, `mlx_lm/utils.py` (`load_model`), and
//! the checks of MLX 0.32.2, `mlx/ops.cpp`.

use std::collections::BTreeMap;
use std::ffi::CStr;
use std::fmt;

use serde_json::{Map, Value};

use crate::{CheckpointError, ConfigJson};

/// How the numbers of a group are computed from its packed bits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum QuantMode {
    /// scale · q + bias; scale and bias are floats.
    Affine,
    /// E2M1 numbers by a power of two (OCP microscaling).
    Mxfp4,
    /// E4M3 numbers by a power of two.
    Mxfp8,
    /// E2M1 numbers by an E4M3 scale.
    Nvfp4,
}

impl QuantMode {
    const ALL: [Self; 4] = [Self::Affine, Self::Mxfp4, Self::Mxfp8, Self::Nvfp4];

    /// MLX's name.
    pub fn name(self) -> &'static CStr {
        match self {
            Self::Affine => c"affine",
            Self::Mxfp4 => c"mxfp4",
            Self::Mxfp8 => c"mxfp8",
            Self::Nvfp4 => c"nvfp4",
        }
    }

    /// The format that MLX assumes if a setting names no bits and no group. For modes other than
    /// affine it is the only one.
    fn usual(self) -> QuantFormat {
        let (bits, group) = match self {
            Self::Affine => (4, 64),
            Self::Mxfp4 => (4, 32),
            Self::Mxfp8 => (8, 32),
            Self::Nvfp4 => (4, 16),
        };
        QuantFormat { mode: self, bits, group }
    }
}

/// The format of a quantized weight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct QuantFormat {
    /// How numbers are computed.
    pub mode: QuantMode,
    /// Bits of a number.
    pub bits: i32,
    /// Inputs that share a scale.
    pub group: i32,
}

impl QuantFormat {
    /// Affine numbers that are exactly those of mxfp4, for products of integers.
    pub const AFFINE_MXFP4: Self = Self::affine(5, 32);

    /// Whether the project has kernels of the CPU that multiply by weights of this format, rows being
    /// floats or integers.
    pub fn has_kernel(self) -> bool {
        self.mode == QuantMode::Affine
            && [32, 64, 128].contains(&self.group)
            && [2, 3, 4, 5, 6, 8].contains(&self.bits)
    }

    /// scale · q + bias.
    pub const fn affine(bits: i32, group: i32) -> Self {
        Self { mode: QuantMode::Affine, bits, group }
    }

    /// Words of 32 bits that hold `input` numbers.
    pub fn words(self, input: i32) -> i32 {
        (i64::from(input) * i64::from(self.bits) / 32) as i32
    }
}

impl fmt::Display for QuantFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mode = self.mode.name().to_string_lossy();
        write!(f, "{mode}, {} bits, groups of {}", self.bits, self.group)
    }
}

/// The settings of one checkpoint.
#[derive(Clone, Debug, Default)]
pub struct Quantization {
    default: Option<QuantFormat>,
    /// `None`: not quantized.
    overrides: BTreeMap<String, Option<QuantFormat>>,
}

/// Where the settings may stand. The second repeats the first; mlx-lm reads it only without it.
const KEYS: [&str; 2] = ["quantization", "quantization_config"];

impl Quantization {
    /// Reads the settings. Without any, no module is quantized.
    ///
    /// # Errors
    /// Settings of another program, or ones that MLX has no format for.
    pub fn read(config: &ConfigJson) -> Result<Self, CheckpointError> {
        for key in KEYS {
            if let Some(settings) = config.optional::<Value>(key)? {
                let wrong = |at: &str, what: String| config.wrong(&format!("{key}{at}"), what);
                let Value::Object(settings) = &settings else {
                    return Err(wrong("", format!("expected an object, found {settings}")));
                };
                return Self::of(settings, &wrong);
            }
        }
        Ok(Self::default())
    }

    fn of(
        settings: &Map<String, Value>,
        wrong: &dyn Fn(&str, String) -> CheckpointError,
    ) -> Result<Self, CheckpointError> {
        if let Some(method) = settings.get("quant_method").filter(|method| !method.is_null()) {
            let what = format!(
                "{method} is not served; use a checkpoint that mlx-lm converted, or one in \
                 float32, float16 or bfloat16"
            );
            return Err(wrong(".quant_method", what));
        }
        let default = format(settings, &|at, what| wrong(&format!(".{at}"), what))?;
        let mut overrides = BTreeMap::new();
        for (path, value) in settings {
            let format = match value {
                _ if FORMAT_KEYS.contains(&path.as_str()) => continue,
                Value::Null => continue,
                Value::Bool(true) => Some(default),
                Value::Bool(false) => None,
                Value::Object(object) => {
                    let wrong = |at: &str, what| wrong(&format!(".{path}.{at}"), what);
                    if let Some(key) =
                        object.keys().find(|key| !FORMAT_KEYS.contains(&key.as_str()))
                    {
                        let what = format!("expected one of {}", FORMAT_KEYS.join(", "));
                        return Err(wrong(key, what));
                    }
                    Some(format(object, &wrong)?)
                }
                other => {
                    let what = format!(
                        "expected {}, or a module's path with an object, true or false; found \
                         {other}",
                        FORMAT_KEYS.join(", ")
                    );
                    return Err(wrong(&format!(".{path}"), what));
                }
            };
            overrides.insert(path.clone(), format);
        }
        Ok(Self { default: Some(default), overrides })
    }

    /// The format of modules that are not named; `None`: floats.
    pub fn usual(&self) -> Option<QuantFormat> {
        self.default
    }

    /// The format of the module at `path`, if the settings say that it is quantized.
    pub fn format(&self, path: &str) -> Option<QuantFormat> {
        self.overrides.get(path).copied().unwrap_or(self.default)
    }
}

const FORMAT_KEYS: [&str; 3] = ["bits", "group_size", "mode"];

/// The format of an object with [`FORMAT_KEYS`]. What is missing is as MLX assumes, not as in the
/// object around it.
fn format(
    object: &Map<String, Value>,
    wrong: &dyn Fn(&str, String) -> CheckpointError,
) -> Result<QuantFormat, CheckpointError> {
    let given = |key: &str| object.get(key).filter(|value| !value.is_null());
    let mode = match given("mode") {
        None => QuantMode::Affine,
        Some(name) => {
            let named = |mode: &QuantMode| {
                name.as_str().is_some_and(|name| mode.name().to_bytes() == name.as_bytes())
            };
            QuantMode::ALL.into_iter().find(named).ok_or_else(|| {
                let what = format!("expected affine, mxfp4, mxfp8 or nvfp4, found {name}");
                wrong("mode", what)
            })?
        }
    };
    let usual = mode.usual();
    let (bits, groups): (&[i32], &[i32]) = match mode {
        QuantMode::Affine => (&[2, 3, 4, 5, 6, 8], &[32, 64, 128]),
        _ => (std::slice::from_ref(&usual.bits), std::slice::from_ref(&usual.group)),
    };
    let number = |key: &str, usual: i32, known: &[i32]| match given(key) {
        None => Ok(usual),
        Some(value) => {
            let found = value.as_i64().and_then(|value| i32::try_from(value).ok());
            found.filter(|found| known.contains(found)).ok_or_else(|| {
                let mode = mode.name().to_string_lossy();
                wrong(key, format!("expected one of {known:?} for {mode}, found {value}"))
            })
        }
    };
    Ok(QuantFormat {
        mode,
        bits: number("bits", usual.bits, bits)?,
        group: number("group_size", usual.group, groups)?,
    })
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    fn read(json: &str) -> Result<Quantization, String> {
        let config = ConfigJson::parse(Path::new("config.json"), json.as_bytes());
        Quantization::read(&config.expect("an object")).map_err(|error| error.to_string())
    }

    #[test]
    fn a_default_holds_for_every_path_but_those_named() {
        let found = read(
            r#"{"quantization": {"group_size": 32, "bits": 3, "mode": "affine",
                "a.b": {"group_size": 64, "bits": 8}, "c": false, "d": true, "e": {"mode": "mxfp8"},
                "f": {"mode": null}, "g": null}, "quantization_config": {"quant_method": "gptq"}}"#,
        )
        .expect("read");
        assert_eq!(found.format("x"), Some(QuantFormat::affine(3, 32)));
        assert_eq!(found.format("a.b"), Some(QuantFormat::affine(8, 64)));
        assert_eq!(found.format("c"), None);
        assert_eq!(found.format("d"), found.format("x"));
        assert_eq!(found.format("e"), Some(QuantMode::Mxfp8.usual()));
        assert_eq!(found.format("f"), Some(QuantFormat::affine(4, 64)), "MLX's own default");
        assert_eq!(found.format("g"), found.format("x"));
        assert_eq!(read("{}").expect("read").format("x"), None);
        let repeated = r#"{"quantization_config": {"group_size": 128, "bits": 6}}"#;
        assert_eq!(read(repeated).expect("read").format("x"), Some(QuantFormat::affine(6, 128)));
    }

    #[test]
    fn settings_without_a_format_are_refused_by_name() {
        for (settings, expected) in [
            (r#"4"#, "quantization: expected an object, found 4"),
            (r#"{"bits": 7}"#, "quantization.bits: expected one of [2, 3, 4, 5, 6, 8]"),
            (r#"{"bits": 4294967300}"#, "quantization.bits"),
            (r#"{"bits": "4"}"#, "quantization.bits"),
            (r#"{"group_size": 16}"#, "quantization.group_size: expected one of [32, 64, 128]"),
            (r#"{"mode": "mxfp4", "group_size": 64}"#, "expected one of [32] for mxfp4, found 64"),
            (r#"{"mode": "nf4"}"#, "expected affine, mxfp4, mxfp8 or nvfp4, found \"nf4\""),
            (r#"{"mode": 3}"#, "quantization.mode"),
            (r#"{"a.b": {"bits": 9}}"#, "quantization.a.b.bits"),
            (r#"{"a.b": {"scale": 9}}"#, "quantization.a.b.scale: expected one of bits"),
            (r#"{"linear_class": "x"}"#, "quantization.linear_class: expected bits, group_size"),
        ] {
            let error = read(&format!(r#"{{"quantization": {settings}}}"#)).expect_err(settings);
            assert!(error.contains(expected), "{settings}: {error}");
        }
    }

    #[test]
    fn formats_of_other_programs_are_refused_by_name() {
        for method in ["gptq", "awq", "fp8", "bitsandbytes"] {
            let settings =
                format!(r#"{{"quantization_config": {{"quant_method": "{method}", "bits": 4}}}}"#);
            let error = read(&settings).expect_err(method);
            assert!(
                error.contains(&format!("quant_method: \"{method}\" is not served")),
                "{error}"
            );
            assert!(error.contains("mlx-lm converted"), "{error}");
        }
    }
}
