//! Frequencies against numbers that transformers computed (`tests/golden/rope.json`).

use std::path::PathBuf;

use serde::Deserialize;

use super::*;

#[derive(Deserialize)]
struct Golden {
    cases: Vec<Case>,
}

#[derive(Deserialize)]
struct Case {
    name: String,
    head_dim: i32,
    config: Value,
    frequencies: Vec<f32>,
    magnitude: f32,
    position: i32,
    cos: Vec<f32>,
    sin: Vec<f32>,
}

/// Reads the rotary keys of a config.json with this content.
fn load(config: &Value, head_dim: i32) -> Result<Rope, LoadError> {
    let dir = tempfile::tempdir().expect("a temporary directory");
    std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
    Rope::load(&ConfigJson::read(dir.path())?, head_dim)
}

#[test]
fn frequencies_equal_those_of_transformers_in_old_and_new_keys() {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/golden/rope.json");
    let text = std::fs::read(path).expect("the golden file is in the repository");
    let golden: Golden = serde_json::from_slice(&text).expect("it has the fields named here");
    for case in &golden.cases {
        let name = &case.name;
        let rope = load(&case.config, case.head_dim).expect("served");
        assert_eq!(rope.frequencies.len(), case.frequencies.len(), "{name}");
        for (found, expected) in rope.frequencies.iter().zip(&case.frequencies) {
            let off = (found - expected).abs() / expected;
            assert!(off < 1e-6, "{name}: {found} for {expected}");
        }
        assert!((rope.magnitude - case.magnitude).abs() < 1e-6, "{name}: {}", rope.magnitude);
        for (i, (cos, sin)) in case.cos.iter().zip(&case.sin).enumerate() {
            let found = rope.rotation(case.position, i);
            let off = (found.0 - cos).abs().max((found.1 - sin).abs());
            assert!(off < 1e-4, "{name}, frequency {i}: {found:?} for {cos}, {sin}");
        }
    }
}

#[test]
fn scalings_that_cannot_be_computed_are_refused_by_name() {
    let refused = |scaling: &str, says: &str| {
        let scaling: Value = serde_json::from_str(scaling).expect("JSON");
        let config = serde_json::json!({ "rope_theta": 1e4, "rope_scaling": scaling });
        let error = load(&config, 16).expect_err(says).to_string();
        assert!(error.contains(says), "{error}");
    };
    refused(
        r#"{"type": "dynamic", "factor": 2.0}"#,
        "expected default, linear, llama3, yarn or proportional, found dynamic",
    );
    refused(
        r#"{"rope_type": "linear"}"#,
        "rope_scaling.factor: expected above 0 for linear, found none",
    );
    refused(
        r#"{"rope_type": "linear", "factor": 0}"#,
        "factor: expected above 0 for linear, found 0",
    );
    let llama3 = |low: f64, high: f64| {
        format!(
            r#"{{"rope_type": "llama3", "factor": 8, "low_freq_factor": {low}, "high_freq_factor": {high},
            "original_max_position_embeddings": 64}}"#
        )
    };
    refused(&llama3(4.0, 4.0), "high_freq_factor: expected above low_freq_factor, 4, found 4");
    refused(&llama3(-1.0, 4.0), "low_freq_factor: expected above 0 for llama3, found -1");
    refused(
        r#"{"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4}"#,
        "original_max_position_embeddings: expected above 0 for llama3, found none",
    );
}

#[test]
fn only_the_first_numbers_of_a_head_turn_if_the_config_says_so() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let read = |parameters: Value| {
        let config = serde_json::json!({ "rope_parameters": parameters }).to_string();
        std::fs::write(dir.path().join("config.json"), config).expect("written");
        Rope::load_partial(&ConfigJson::read(dir.path())?, 32, 0.25)
    };
    let named = serde_json::json!({ "rope_theta": 1e7, "partial_rotary_factor": 0.5 });
    assert_eq!(read(named).expect("served").frequencies.len(), 8);
    let rope = read(serde_json::json!({ "rope_theta": 1e7 })).expect("served");
    let plain = load(&serde_json::json!({ "rope_theta": 1e7 }), 8).expect("served");
    assert_eq!(rope.frequencies, plain.frequencies, "the usual share");
    for share in [0.01, 0.09375, 1.5, -0.25] {
        let refused = read(serde_json::json!({ "partial_rotary_factor": share })).err();
        let error = refused.expect("refused").to_string();
        assert!(error.contains("partial_rotary_factor: expected a share"), "{error}");
    }
}

/// Numbers of an array as float32.
fn numbers(array: &Array) -> Vec<f32> {
    let array = array.as_dtype(Dtype::Float32).and_then(|wide| wide.contiguous()).expect("a copy");
    array.eval().expect("evaluates");
    array.try_as_slice::<f32>().expect("floats").to_vec()
}

/// Heads `[positions, 5, dim]` of numbers between -1 and 1.
fn heads(positions: &[i32], dim: i32, dtype: Dtype) -> Array {
    let count = positions.len() as i32 * 5 * dim;
    let values: Vec<f32> = (0..count).map(|at| (at as f32 * 0.7311).sin()).collect();
    let shape = [positions.len() as i32, 5, dim];
    Array::from_slice(&values, &shape).as_dtype(dtype).expect("a float type")
}

/// Rotary embeddings of whole heads, of a fourth of a head, and with frequencies of Llama 3.1.
fn rotations() -> Vec<(Rope, i32)> {
    let llama3 = serde_json::json!({ "rope_theta": 5e5, "rope_scaling": {
        "rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 4,
        "original_max_position_embeddings": 8192
    } });
    let whole = |config: &Value, dim| (load(config, dim).expect("served"), dim);
    let (quarter, _) = whole(&serde_json::json!({ "rope_theta": 1e7 }), 32);
    vec![whole(&serde_json::json!({ "rope_theta": 1e6 }), 64), (quarter, 128), whole(&llama3, 64)]
}

/// The largest difference of the fused rotation from that by tables, for pairs of numbers that are at
/// most 1.5 away from 0.
fn difference(positions: &[i32], dtype: Dtype) -> f32 {
    crate::device::choose(crate::device::DeviceChoice::Cpu).expect("there is a CPU");
    let mut most = 0f32;
    for (rope, dim) in rotations() {
        let rotation = |row: usize, i| rope.rotation(positions[row], i);
        let half = rope.frequencies.len();
        let tables = RopeTables::new(positions.len(), half, dtype, rotation).expect("made");
        let fused = RopeTables::fused(positions, &rope.frequencies);
        let x = heads(positions, dim, dtype);
        // All heads, some of them, and the last rows.
        let some = x.try_index((.., 1..4, ..)).expect("a view");
        let last = x.try_index(1..).expect("a view");
        let rows = positions.len() as i32 - 1;
        for (x, tables, fused) in [
            (&x, &tables, &fused),
            (&some, &tables, &fused),
            (&last, &tables.last(rows).expect("cut"), &fused.last(rows).expect("cut")),
        ] {
            let [tables, fused] =
                [tables, fused].map(|rotations| rotations.apply(x).expect("rotated"));
            assert_eq!((fused.shape(), fused.dtype()), (tables.shape(), dtype));
            let both = numbers(&tables).into_iter().zip(numbers(&fused));
            most = both.map(|(a, b)| (a - b).abs()).fold(most, f32::max);
        }
    }
    most
}

#[test]
fn the_fused_turn_gives_the_numbers_of_the_tables() {
    // Several rows of a sequence, and rows of others, in any order.
    let off = difference(&[0, 1, 2, 3, 79, 17, 17, 40], Dtype::Float32);
    assert!(off < 1e-5, "{off}");
    for positions in [[0, 1, 79, 17], [4_095, 32_767, 8_191, 20_000]] {
        // A step of the type at 1.
        let off = difference(&positions, Dtype::Bfloat16);
        assert!(off <= 1.0 / 128.0, "{positions:?}: {off}");
        let off = difference(&positions, Dtype::Float16);
        assert!(off <= 1.0 / 512.0, "{positions:?}: {off}");
    }
}

#[test]
fn at_large_positions_float32_needs_the_tables() {
    let off = difference(&[131_000, 131_071], Dtype::Float32);
    assert!(off > 1e-4, "{off}: the tables could be left out");
    assert!(off < 0.008, "{off}: more than rounded frequencies explain");
}

#[test]
fn the_fused_turn_serves_16_bits_on_a_gpu_with_one_position_a_row() {
    let (plain, _) = rotations().remove(0);
    let half = Dtype::Bfloat16;
    assert!(plain.fuses(half, true) && plain.fuses(Dtype::Float16, true));
    assert!(!plain.fuses(half, false) && !plain.fuses(Dtype::Float32, true));
    let yarn = Rope { magnitude: 1.2, ..plain.clone() };
    let on_axes = Rope { axes: Some(vec![0; 32]), ..plain };
    assert!(!yarn.fuses(half, true) && !on_axes.fuses(half, true));
}

#[cfg(any(debug_assertions, feature = "test-graph"))]
#[test]
fn the_fused_turn_is_one_kernel_on_a_gpu() {
    use crate::testing::primitives;

    crate::device::choose(crate::device::DeviceChoice::Cpu).expect("there is a CPU");
    let (rope, dim) = rotations().remove(0);
    let x = heads(&[5, 6, 900], dim, Dtype::Bfloat16);
    x.eval().expect("evaluates");
    let rotated =
        primitives::as_fused(|| RopeTables::fused(&[5, 6, 900], &rope.frequencies).apply(&x));
    let found = primitives::primitives([&rotated.expect("lazy")]).expect("counts");
    let views = primitives::views();
    let kernels: Vec<&str> = found.iter().map(|one| one.name.as_str()).collect();
    let kernels: Vec<&str> = kernels.into_iter().filter(|name| !views.contains(name)).collect();
    assert_eq!(kernels, ["RoPE"]);
}

#[test]
fn sections_of_four_axes_are_sizes_or_shares() {
    let on_axes = |scaling: Value| {
        let config = serde_json::json!({ "rope_scaling": scaling });
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
        let config = ConfigJson::read(dir.path())?;
        let rope = Rope::load_on_four_axes(&config, 16)?;
        Ok::<_, LoadError>((rope.axes.expect("four of them"), rope.frequencies))
    };
    let plain = [0, 0, 1, 1, 2, 2, 3, 3];
    let scaled = |section: Value| serde_json::json!({"type": "xdrope", "alpha": 1000.0, "xdrope_section": section});
    let (axes, frequencies) = on_axes(scaled(serde_json::json!([2, 2, 1, 3]))).expect("sizes");
    assert_eq!(axes, [0, 0, 1, 1, 2, 3, 3, 3]);
    // θ' = 10,000 · 1,000^(16/14), of which the last frequency is θ'^(-14/16).
    let last = (1e4f64 * 1e3f64.powf(16.0 / 14.0)).powf(-14.0 / 16.0);
    assert!((f64::from(frequencies[7]) / last - 1.0).abs() < 1e-6);
    assert_eq!(on_axes(scaled(serde_json::json!([0.25, 0.25, 0.25, 0.25]))).expect("").0, plain);
    assert_eq!(on_axes(serde_json::json!({"mrope_section": [2, 2, 2, 2]})).expect("").0, plain);
    assert_eq!(on_axes(Value::Null).expect("quarters").0, plain);
    // Without `alpha` this is a scaling that follows the length of a sequence.
    let error = on_axes(serde_json::json!({"type": "dynamic"})).expect_err("no alpha").to_string();
    assert!(error.contains("alpha: expected above 0 for dynamic, found none"), "{error}");
    for other in [
        serde_json::json!([2, 2, 2]),
        serde_json::json!([2, 2, 2, 3]),
        serde_json::json!([-2, 4, 4, 2]),
        serde_json::json!([0.3, 0.2, 0.25, 0.25]),
        serde_json::json!([1e300, 0, 0, 0]),
    ] {
        let error = on_axes(scaled(other.clone())).expect_err("no sections").to_string();
        assert!(error.contains("xdrope_section: expected four sizes"), "{other}: {error}");
    }
}

#[test]
fn frequencies_belong_to_axes_by_the_order_of_their_sections() {
    let on_axes = |order: SectionOrder, group: &str, section: Value, usual: [usize; 3]| {
        let config = serde_json::json!({ group: { "type": "mrope", "mrope_section": section } });
        let dir = tempfile::tempdir().expect("a temporary directory");
        std::fs::write(dir.path().join("config.json"), config.to_string()).expect("written");
        let config = ConfigJson::read(dir.path())?;
        let rope = Rope::load(&config, 16)?.on_three_axes(&config, order, usual)?;
        Ok::<_, LoadError>(rope.axes.expect("three of them"))
    };
    let section = || serde_json::json!([2, 3, 3]);
    for group in ["rope_scaling", "rope_parameters"] {
        let axes = on_axes(SectionOrder::OneAfterAnother, group, section(), [8, 0, 0]);
        assert_eq!(axes.expect("eight frequencies"), [0, 0, 1, 1, 1, 2, 2, 2]);
        let axes = on_axes(SectionOrder::Interleaved, group, section(), [8, 0, 0]);
        assert_eq!(axes.expect("eight frequencies"), [0, 1, 2, 0, 1, 2, 0, 1]);
    }
    let usual = on_axes(SectionOrder::OneAfterAnother, "rope_scaling", Value::Null, [4, 2, 2]);
    assert_eq!(usual.expect("the family's own"), [0, 0, 0, 0, 1, 1, 2, 2]);
    let other = serde_json::json!([2, 3, 4]);
    let error = on_axes(SectionOrder::OneAfterAnother, "rope_scaling", other, [4, 2, 2]);
    assert!(error.expect_err("nine of eight").to_string().contains("three sizes of 8 in all"));
}
