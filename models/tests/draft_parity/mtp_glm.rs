//! The layer of GLM-OCR that predicts the token after the next. Its target's checkpoint has it.

use paceline_models::{Quantize, draft, plan_draft};
use serde_json::json;

use crate::chains;
use crate::mtp::{Tensors, changed, drafts_of, says};
use crate::pair::golden;

const NAME: &str = "glm-ocr-tiny";

#[test]
fn the_layer_in_the_targets_checkpoint_follows_the_reference() {
    chains::follow_file("mtp-glm", NAME, NAME);
}

#[test]
fn sessions_of_the_layer_together_are_sessions_alone() {
    chains::sessions_together_are_sessions_alone(NAME, NAME);
}

#[test]
fn how_the_context_of_the_layer_was_cut_does_not_matter() {
    chains::how_the_context_was_cut_does_not_matter(NAME, NAME);
}

#[test]
fn a_session_of_the_layer_may_begin_in_the_middle() {
    chains::a_session_may_begin_in_the_middle(NAME, NAME);
}

#[test]
fn the_layer_is_a_drafter_of_kind_mtp_that_takes_its_targets_ends() {
    let dir = golden(NAME);
    assert_eq!(draft::feature_layers(&dir, "auto", None).expect("read"), [1]);
    let plan = plan_draft(&dir, "mtp", Some(&dir), Quantize::None).expect("a plan");
    let pair = chains::load(NAME, NAME);
    let info = pair.drafter.info();
    assert_eq!((info.kind.as_str(), info.hidden, info.vocab), ("mtp", 32, Some(274)));
    assert!(info.images && plan.info.images);
    assert_eq!(plan.storage.disk_bytes(), info.weight_bytes);
}

/// As mlx-vlm renames what it keeps.
fn to_mlx(all: &mut Tensors) {
    for (name, tensor) in std::mem::take(all) {
        let name = name.replace("model.language_model.", "language_model.model.");
        all.insert(name.replace("lm_head.", "language_model.lm_head."), tensor);
    }
}

#[test]
fn names_of_mlx_and_copies_of_both_ends_change_no_draft() {
    let expected = drafts_of(&golden(NAME), &golden(NAME));
    let renamed = changed(
        NAME,
        |_| {},
        |all| {
            to_mlx(all);
            all.retain(|name, _| !name.contains("visual"));
        },
    );
    assert_eq!(drafts_of(renamed.path(), renamed.path()), expected);
    let bare = changed(
        NAME,
        |_| {},
        |all| {
            all.retain(|name, _| !name.contains(".layers.2.embed_tokens"));
        },
    );
    assert_eq!(drafts_of(&golden(NAME), bare.path()), expected);
}

#[test]
fn a_checkpoint_without_the_layer_or_another_target_is_refused_with_what_to_do() {
    let without = changed(NAME, |_| {}, |all| all.retain(|name, _| !name.contains(".layers.2.")));
    let found = says(without.path(), "mtp", Some(without.path()));
    assert!(found.contains("no layer with eh_proj"), "{found}");
    let other = changed(NAME, |config| config["model_type"] = json!("glm4v"), |_| {});
    let found = says(&golden(NAME), "mtp", Some(other.path()));
    assert!(found.contains("expected a target of glm_ocr for its drafter, found glm4v"), "{found}");
    let broken = changed(
        NAME,
        |_| {},
        |all| {
            all.retain(|name, _| !name.ends_with(".layers.2.hnorm.weight"));
        },
    );
    let found = says(broken.path(), "mtp", Some(broken.path()));
    assert!(found.contains(".layers.2.hnorm.weight is missing"), "{found}");
}
