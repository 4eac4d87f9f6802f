//! Targets against transformers, quantized ones against mlx-lm, on tiny random checkpoints, and the
//! sampling contract against an independent implementation. Values and provenance: `golden/`,
//! remade by `make golden`.

mod changed;
mod families;
mod gemma;
mod graphs;
mod hybrid;
mod lanes;
mod model;
mod newest_saves;
mod sampling;

use model::check_model;

#[test]
fn qwen3_tied_float32_single_file() {
    check_model("qwen3-tiny");
}

#[test]
fn qwen3_untied_bfloat16_sharded() {
    check_model("qwen3-tiny-untied");
}

#[test]
fn qwen3_float16() {
    check_model("qwen3-tiny-f16");
}

#[test]
fn qwen3_of_four_bits_with_overrides_and_a_tied_quantized_embedding() {
    check_model("qwen3-tiny-q4");
}

#[test]
fn qwen3_of_eight_bits_with_a_quantized_head() {
    check_model("qwen3-tiny-q8");
}
