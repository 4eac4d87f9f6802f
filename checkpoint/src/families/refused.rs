//! Families that are asked for and not served, with the reason: it is in the error that names the
//! checkpoint's `model_type`. `docs/models.md` has the longer text.

/// `model_type` and why it is not served.
const REFUSED: [(&str, &str); 7] = [
    (
        "ernie4_5_moe_vl",
        "its experts are two sets, chosen by the kind of a token, and its tokenizer has no tokenizer.json",
    ),
    ("falcon_ocr", "its heads turn each by angles of their own and attend to sinks"),
    ("gemma3n", "gemma4's E2B and E4B take its place"),
    ("glm4v_moe", "the router of its experts is not built"),
    ("mllama", "its layers of cross-attention are not built"),
    (
        "moondream3",
        "the Business Source License restricts services with its weights, and no reference computes its crops exactly",
    ),
    ("qwen3_omni_moe", "it hears and speaks, and its parts for that are not built"),
];

/// Why a family that is asked for is not served.
pub(super) fn reason(model_type: &str) -> Option<&'static str> {
    // Hugging Face's configs and transformers' folders write the first one's words in another order.
    let name = if model_type == "ernie4_5_vl_moe" { "ernie4_5_moe_vl" } else { model_type };
    REFUSED.iter().find(|(refused, _)| *refused == name).map(|(_, reason)| *reason)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ConfigJson;
    use crate::families::Family;

    #[test]
    fn a_family_that_is_not_served_is_refused_with_its_reason() {
        for (model_type, reason) in REFUSED {
            let config = serde_json::json!({ "model_type": model_type });
            let config = ConfigJson::changed(config, &serde_json::json!({}));
            let error = Family::of(&config).expect_err("not served").to_string();
            for words in [model_type, reason, "qwen3_vl", "docs/models.md"] {
                assert!(error.contains(words), "{words:?} is not in {error:?}");
            }
        }
        assert_eq!(reason("ernie4_5_vl_moe"), reason("ernie4_5_moe_vl"));
        assert_eq!(reason("llama"), None);
    }
}
