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
            let found = rope.turn(case.position, i);
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
        "expected default, linear, llama3 or yarn, found dynamic",
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
