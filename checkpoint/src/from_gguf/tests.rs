//! Tiny files of each architecture, and files that are refused.

use serde_json::{Value, json};

use super::*;
use crate::gguf::BlockType;
use crate::samples::SampleGguf;

const ARCHITECTURES: [&str; 6] = ["llama", "qwen2", "qwen3", "qwen3moe", "gemma3", "smollm3"];

fn texts_beside(sample: &SampleGguf, beside: Option<&Value>) -> Result<TextFiles, String> {
    let file = sample.bytes();
    let gguf = Gguf::read(&file).map_err(|error| error.to_string())?;
    TextFiles::of(&gguf, beside).map_err(|error| error.to_string())
}

fn texts(sample: &SampleGguf) -> TextFiles {
    texts_beside(sample, None).expect("served")
}

/// The error of a file that is changed.
fn refused(architecture: &str, change: impl FnOnce(&mut SampleGguf)) -> String {
    let mut sample = SampleGguf::of(architecture);
    change(&mut sample);
    texts_beside(&sample, None).expect_err("refused")
}

fn changed(architecture: &str, change: impl FnOnce(&mut SampleGguf)) -> TextFiles {
    let mut sample = SampleGguf::of(architecture);
    change(&mut sample);
    texts(&sample)
}

fn weights_of(sample: &SampleGguf) -> Vec<GgufWeight> {
    let file = sample.bytes();
    weights(&Gguf::read(&file).expect("a GGUF file")).expect("served")
}

fn weight(weights: &[GgufWeight], name: &str) -> GgufWeight {
    weights.iter().find(|weight| weight.name == name).expect(name).clone()
}

#[test]
fn each_architecture_has_the_keys_of_its_family() {
    for (architecture, expected) in [
        ("llama", json!({ "model_type": "llama", "attention_bias": false, "mlp_bias": false })),
        ("qwen2", json!({ "model_type": "qwen2", "use_sliding_window": false })),
        ("qwen3", json!({ "model_type": "qwen3", "attention_bias": false })),
        (
            "qwen3moe",
            json!({
                "model_type": "qwen3_moe",
                "num_experts": 4,
                "num_experts_per_tok": 2,
                "moe_intermediate_size": 32,
                "norm_topk_prob": true,
                "mlp_only_layers": [],
            }),
        ),
        (
            "gemma3",
            json!({
                "model_type": "gemma3_text",
                "sliding_window": 16,
                "query_pre_attn_scalar": 16,
                "rope_local_base_freq": 10_000.0,
                "hidden_activation": "gelu_pytorch_tanh",
                "layer_types": ["sliding_attention", "sliding_attention"],
            }),
        ),
        ("smollm3", json!({ "model_type": "smollm3", "no_rope_layers": [1, 1] })),
    ] {
        let config = texts(&SampleGguf::of(architecture)).config;
        let common = json!({
            "vocab_size": 6,
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "head_dim": 16,
            "max_position_embeddings": 64,
            "rms_norm_eps": 1e-5,
            "rope_theta": 1e5,
            "rope_scaling": null,
            "tie_word_embeddings": true,
            "eos_token_id": [0, 2],
            "gguf_type": "Q8_0",
        });
        for (key, value) in
            [common, expected].iter().flat_map(|keys| keys.as_object().expect("keys"))
        {
            assert_eq!(&config[key], value, "{architecture}: {key}");
        }
    }
}

#[test]
fn what_the_file_does_not_say_is_assumed_in_a_sentence_or_read_beside_it() {
    let of = |architecture: &str, beside: Value| {
        texts_beside(&SampleGguf::of(architecture), Some(&beside)).expect("served")
    };
    for (architecture, key, given) in [
        ("qwen3moe", "norm_topk_prob", json!(false)),
        ("gemma3", "query_pre_attn_scalar", json!(168)),
        ("smollm3", "no_rope_layers", json!([0, 1])),
    ] {
        let assumed = texts(&SampleGguf::of(architecture));
        assert_eq!(assumed.notes.len(), 1, "{:?}", assumed.notes);
        assert!(assumed.notes[0].contains(&format!("does not say {key}")), "{:?}", assumed.notes);
        let read = of(architecture, json!({ "text_config": { key: given } }));
        assert_eq!((&read.config[key], read.notes.len()), (&given, 0));
        let other = of(architecture, json!({ "hidden_size": 64, key: given }));
        assert_eq!((other.config[key] == given, other.notes.len()), (false, 2));
        assert!(other.notes[0].contains("of another model"), "{:?}", other.notes);
    }
    let mistral = |sample: &mut SampleGguf| sample.set_text("general.name", "Mistral 7B");
    let notes = changed("llama", mistral).notes;
    assert!(notes.len() == 1 && notes[0].contains("window"), "{notes:?}");
    let config = of("llama", json!({ "model_type": "mistral", "sliding_window": 8 })).config;
    assert_eq!((&config["model_type"], &config["sliding_window"]), (&json!("mistral"), &json!(8)));
}

#[test]
fn gemmas_layers_follow_the_pattern_in_the_file() {
    let kinds =
        |change: fn(&mut SampleGguf)| changed("gemma3", change).config["layer_types"].clone();
    let local = "sliding_attention";
    let every_second =
        kinds(|sample| sample.set_count("gemma3.attention.sliding_window_pattern", 2));
    assert_eq!(every_second, json!([local, "full_attention"]));
    let flags = kinds(|sample| {
        let key = "gemma3.attention.sliding_window_pattern".to_owned();
        let items = [&7_u32.to_le_bytes()[..], &2_u64.to_le_bytes(), &[0, 1]].concat();
        sample.pairs.push((key, 9, items));
    });
    assert_eq!(flags, json!(["full_attention", local]));
}

#[test]
fn tensors_have_their_names_on_hugging_face() {
    let qwen2 = weights_of(&SampleGguf::of("qwen2"));
    let bias = weight(&qwen2, "model.layers.1.self_attn.k_proj.bias");
    assert_eq!((bias.shape.as_slice(), bias.form.kind), (&[16][..], BlockType::F32));
    assert_eq!(bias.form.order, RowOrder::Stored);
    let embedding = weight(&qwen2, "model.embed_tokens.weight");
    assert_eq!((embedding.shape.as_slice(), embedding.bytes), (&[6, 32][..], 6 * 34));
    let experts = weights_of(&SampleGguf::of("qwen3moe"));
    let experts = weight(&experts, "model.layers.0.mlp.switch_mlp.up_proj.weight");
    assert_eq!(experts.shape, [4, 32, 32]);
    let gemma = weights_of(&SampleGguf::of("gemma3"));
    let norms: Vec<&GgufWeight> =
        gemma.iter().filter(|weight| weight.name.contains("norm")).collect();
    assert_eq!(norms.len(), 1 + 2 * 6);
    assert!(norms.iter().all(|norm| norm.form.minus_one));
    weight(&gemma, "model.layers.0.pre_feedforward_layernorm.weight");
    assert!(!weight(&gemma, "model.layers.0.mlp.up_proj.weight").form.minus_one);
    let mut untied = SampleGguf::of("qwen3");
    untied.add("output.weight", &[32, 6], 8);
    weight(&weights_of(&untied), "lm_head.weight");
    assert_eq!(texts(&untied).config["tie_word_embeddings"], false);
}

#[test]
fn interleaved_rows_are_those_of_the_two_halves_of_a_head() {
    let mut sample = SampleGguf::of("llama");
    sample.add("blk.0.attn_q.bias", &[32], 0);
    let llama = weights_of(&sample);
    for (name, heads) in [("q_proj.weight", 2), ("k_proj.weight", 1), ("q_proj.bias", 2)] {
        let order = weight(&llama, &format!("model.layers.0.self_attn.{name}")).form.order;
        assert_eq!(order, RowOrder::Interleaved { heads }, "{name}");
    }
    assert_eq!(
        weight(&llama, "model.layers.0.self_attn.v_proj.weight").form.order,
        RowOrder::Stored
    );
    // reshape(heads, D / 2, 2).swapaxes(1, 2)
    let rows = 16;
    let undone: Vec<usize> = (0..2)
        .flat_map(|head| {
            (0..2).flat_map(move |half| (0..4).map(move |at| head * 8 + at * 2 + half))
        })
        .collect();
    let order = RowOrder::Interleaved { heads: 2 };
    let found: Vec<usize> = (0..rows).map(|row| order.source(row, rows)).collect();
    assert_eq!(found, undone);
    assert_eq!(RowOrder::Stored.source(5, rows), 5);
}

/// The divisors of Llama 3.1, by the definition in transformers, in float32.
fn divisors(factor: f32, length: f32, base: f32, half: u32) -> Vec<f32> {
    let divisor = |at: u32| {
        let frequency = 1.0 / base.powf(2.0 * at as f32 / (2 * half) as f32);
        let wave = 2.0 * std::f32::consts::PI / frequency;
        if wave < length / 4.0 {
            1.0
        } else if wave > length {
            factor
        } else {
            let smooth = (length / wave - 1.0) / 3.0;
            1.0 / ((1.0 - smooth) / factor + smooth)
        }
    };
    (0..half).map(divisor).collect()
}

#[test]
fn divisors_of_frequencies_become_the_scaling_that_reproduces_them() {
    let with = |divisors: &[f32]| {
        let mut sample = SampleGguf::of("llama");
        sample.set_count("llama.attention.head_count", 1);
        sample.set_count("llama.attention.key_length", 128);
        sample.tensors.retain(|tensor| !tensor.name.contains("attn_q"));
        sample.add("rope_freqs.weight", &[64], 0);
        let data = divisors.iter().flat_map(|divisor| divisor.to_le_bytes()).collect();
        sample.tensors.last_mut().expect("added").data = data;
        sample
    };
    for (factor, power) in [(8.0, 13), (32.0, 13), (4.0, 12)] {
        let length = 2_f32.powi(power);
        let scaling =
            texts(&with(&divisors(factor, length, 1e5, 64))).config["rope_scaling"].clone();
        let expected = json!({
            "rope_type": "llama3",
            "factor": f64::from(factor),
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 1 << power,
        });
        assert_eq!(scaling, expected);
    }
    assert!(texts(&with(&[1.0; 64])).config["rope_scaling"].is_null());
    let mut other = divisors(8.0, 8_192.0, 1e5, 64);
    other[40] *= 1.01;
    let error = texts_beside(&with(&other), None).expect_err("refused");
    assert!(
        error.contains("rope_freqs.weight") && error.contains("put the config.json"),
        "{error}"
    );
    let unlike = divisors(8.0, 6_000.0, 1e5, 64);
    let given = json!({ "rope_scaling": { "rope_type": "llama3", "factor": 8.0,
        "low_freq_factor": 1.0, "high_freq_factor": 4.0, "original_max_position_embeddings": 6_000 } });
    let config = texts_beside(&with(&unlike), Some(&given)).expect("served").config;
    assert_eq!(config["rope_scaling"], given["rope_scaling"]);
    assert!(texts_beside(&with(&unlike), None).is_err());
}

#[test]
fn scalings_that_the_metadata_names_are_kept() {
    let scaling =
        |change: fn(&mut SampleGguf)| changed("qwen3", change).config["rope_scaling"].clone();
    let yarn = scaling(|sample| {
        sample.set_text("qwen3.rope.scaling.type", "yarn");
        sample.set_float("qwen3.rope.scaling.factor", 4.0);
        sample.set_count("qwen3.rope.scaling.original_context_length", 16);
    });
    let expected =
        json!({ "rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16 });
    assert_eq!(yarn, expected);
    let older = scaling(|sample| sample.set_float("qwen3.rope.scale_linear", 2.0));
    assert_eq!(older, json!({ "rope_type": "linear", "factor": 2.0 }));
    let error = refused("qwen3", |sample| sample.set_text("qwen3.rope.scaling.type", "longrope"));
    assert!(error.contains("longrope") && error.contains("yarn"), "{error}");
}

#[test]
fn control_tokens_are_special_and_those_of_the_user_are_not() {
    let tokens = ["<|endoftext|>", "<|im_end|>", "<|fim_pad|>", "<tool_call>", "[PAD4]", "</s>"];
    let files = changed("qwen2", |sample| {
        sample.set_tokens(&tokens, &[3, 3, 3, 4, 5, 1]);
        sample.set_texts("tokenizer.ggml.merges", &[]);
        sample.set_count("tokenizer.ggml.eos_token_id", 1);
    });
    let added = files.tokenizer["added_tokens"].as_array().expect("a list");
    let special: Vec<_> = added.iter().map(|token| (&token["id"], &token["special"])).collect();
    let of = |id: u32, special: bool| (json!(id), json!(special));
    let expected = [of(0, true), of(1, true), of(2, false), of(3, false)];
    assert_eq!(special, expected.iter().map(|(id, special)| (id, special)).collect::<Vec<_>>());
    assert_eq!(files.tokenizer["model"]["vocab"].as_object().map(|all| all.len()), Some(6));
    assert_eq!(files.tokenizer["normalizer"], json!({ "type": "NFC" }));
    // Qwen's </s> is an ordinary token.
    assert_eq!(files.generation_config["eos_token_id"], json!([0, 1, 2]));
    assert_eq!(files.tokenizer_config["eos_token"], "<|im_end|>");
}

#[test]
fn an_absent_end_is_none_and_begins_are_added_as_the_file_or_its_cuts_say() {
    let files = changed("qwen2", |sample| {
        sample.set_tokens(&["a", "b", "ab", "c", "d", "e"], &[1; 6]);
        sample.unset("tokenizer.ggml.eos_token_id");
        sample.unset("tokenizer.ggml.bos_token_id");
    });
    assert_eq!(files.generation_config["eos_token_id"], json!([]));
    assert_eq!(files.tokenizer_config.get("eos_token"), None);
    assert_eq!(files.tokenizer["post_processor"]["type"], "ByteLevel");
    assert!(
        files.notes.iter().any(|note| note.contains("no token that ends")),
        "{:?}",
        files.notes
    );
    // llama-bpe begins each text, unless the file says otherwise.
    let steps = |change: fn(&mut SampleGguf)| {
        changed("smollm3", change).tokenizer["post_processor"].clone()
    };
    let begins = steps(|_| {});
    assert_eq!(begins["processors"][1]["single"][0]["SpecialToken"]["id"], "<|im_start|>");
    assert_eq!(begins["processors"][1]["special_tokens"]["<|im_start|>"]["ids"], json!([1]));
    let plain = steps(|sample| sample.set_flag("tokenizer.ggml.add_bos_token", false));
    assert_eq!(plain["type"], "ByteLevel");
    let ends = steps(|sample| sample.set_flag("tokenizer.ggml.add_eos_token", true));
    assert_eq!(ends["processors"][1]["single"][2]["SpecialToken"]["id"], "<|im_end|>");
}

#[test]
fn pieces_are_merged_by_their_scores_and_runs_first() {
    let tokens = ["<pad>", "<s>", "</s>", "a", "▁", "▁a", "▁a▁", "  ", "aa", "<0x0A>"];
    let files = changed("gemma3", |sample| {
        sample.set_tokens(&tokens, &[3, 3, 3, 1, 1, 1, 1, 4, 1, 6]);
        sample.set_floats(
            "tokenizer.ggml.scores",
            &[0.0, 0.0, 0.0, -9.0, -8.0, -1.0, -2.0, -1000.0, -0.5, 0.0],
        );
        sample.tensors[0].dimensions[1] = 10;
        sample.tensors[0].data = vec![0; 340];
    });
    let model = &files.tokenizer["model"];
    assert_eq!(model["merges"], json!(["▁ ▁", "a a", "▁ a", "▁a ▁"]));
    assert_eq!((&model["byte_fallback"], &model["vocab"]["▁▁"]), (&json!(true), &json!(7)));
    let added = &files.tokenizer["added_tokens"][3];
    assert_eq!((&added["content"], &added["special"]), (&json!("▁▁"), &json!(false)));
    assert_eq!(files.tokenizer["normalizer"]["type"], "Sequence", "a space comes first");
    assert_eq!(files.tokenizer["decoder"]["decoders"][3]["type"], "Strip");
    assert_eq!(files.tokenizer["post_processor"]["type"], "TemplateProcessing");
    let without = changed("gemma3", |sample| {
        sample.set_flag("tokenizer.ggml.add_space_prefix", false);
    });
    assert_eq!(without.tokenizer["normalizer"]["type"], "Replace");
    assert_eq!(without.tokenizer["decoder"]["decoders"][3], Value::Null);
    let no_ids = changed("gemma3", |sample| {
        sample.unset("tokenizer.ggml.bos_token_id");
        sample.unset("tokenizer.ggml.eos_token_id");
    });
    assert_eq!(no_ids.tokenizer_config["bos_token"], "<|im_start|>", "1 and 2 by custom");
}

#[test]
fn chat_templates_are_one_text_or_several_by_name() {
    let template = |change: fn(&mut SampleGguf)| {
        let files = changed("qwen3", change);
        (files.tokenizer_config.get("chat_template").cloned(), files.notes.len())
    };
    assert_eq!(template(|_| {}), (None, 0));
    let one = template(|sample| sample.set_text("tokenizer.chat_template", "x"));
    assert_eq!(one, (Some(json!("x")), 0));
    let named = |sample: &mut SampleGguf| {
        sample.set_texts("tokenizer.chat_templates", &["tool_use"]);
        sample.set_text("tokenizer.chat_template.tool_use", "y");
    };
    let (two, _) = template(|sample| {
        sample.set_text("tokenizer.chat_template", "x");
        sample.set_texts("tokenizer.chat_templates", &["tool_use"]);
        sample.set_text("tokenizer.chat_template.tool_use", "y");
    });
    let of = |name: &str, template: &str| json!({ "name": name, "template": template });
    assert_eq!(two, Some(json!([of("default", "x"), of("tool_use", "y")])));
    let files = changed("qwen3", named);
    assert_eq!(files.tokenizer_config["chat_template"], "y");
    assert!(files.notes[0].contains("no default chat template"), "{:?}", files.notes);
}

#[test]
fn what_is_not_served_is_refused_by_name_with_what_to_do() {
    let error = refused("llama", |sample| sample.set_text("general.architecture", "bert"));
    assert!(error.contains("\"bert\", which is not served") && error.contains("gemma3"), "{error}");
    let error = refused("qwen3", |sample| sample.set_text("tokenizer.ggml.pre", "new-cuts"));
    assert!(error.contains("\"new-cuts\"") && error.contains("llama-bpe"), "{error}");
    let error = refused("qwen3", |sample| sample.set_text("tokenizer.ggml.model", "t5"));
    assert!(error.contains("\"t5\""), "{error}");
    let error = refused("qwen3", |sample| {
        sample.tensors[0].kind = 39;
        sample.tensors[0].data.truncate(6 * 17);
    });
    assert!(
        error.contains("MXFP4, which is not served") && error.contains("token_embd"),
        "{error}"
    );
    let error =
        refused("qwen3", |sample| sample.tensors[2].name = "blk.0.attn_qkv.weight".to_owned());
    assert!(error.contains("attn_qkv") && error.contains("qwen3 with 2 layers"), "{error}");
    let error = refused("qwen3", |sample| sample.set_texts("tokenizer.ggml.merges", &["a c"]));
    assert!(error.contains("\"a c\""), "{error}");
    let error = refused("qwen3", |sample| {
        sample.set_tokens(&["a", "b", "ab", "a", "d", "e"], &[1; 6]);
    });
    assert!(error.contains("the text \"a\" at 0 and 3"), "{error}");
    let error = refused("qwen3", |sample| sample.set_count("qwen3.attention.value_length", 8));
    assert!(error.contains("expected 16, as many as a key has, found 8"), "{error}");
    let error = refused("llama", |sample| sample.set_count("llama.attention.head_count_kv", 3));
    assert!(error.contains("two halves for each of 3 heads"), "{error}");
    let error = refused("qwen3", |sample| drop(sample.tensors.remove(0)));
    assert!(error.contains("expected token_embd.weight, found none"), "{error}");
    for (kind, words) in [(7, "kinds from 0 to 6"), (-1, "a list of whole numbers")] {
        let error = refused("qwen3", |sample| {
            sample.set_tokens(&["a", "b", "ab", "c", "d", "e"], &[1, 1, 1, 1, 1, kind]);
        });
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn absent_cuts_are_those_of_llama_cpp_with_a_sentence() {
    let files = changed("qwen3", |sample| sample.unset("tokenizer.ggml.pre"));
    assert_eq!(files.notes.len(), 1);
    assert!(files.notes[0].contains("cuts"), "{:?}", files.notes);
    let steps = files.tokenizer["pre_tokenizer"]["pretokenizers"].as_array().map(Vec::len);
    assert_eq!(steps, Some(5));
}

#[test]
fn the_samples_of_all_architectures_are_served() {
    for architecture in ARCHITECTURES {
        let sample = SampleGguf::of(architecture);
        assert_eq!(weights_of(&sample).len(), sample.tensors.len());
        texts(&sample);
    }
}

mod hostile;
mod places;
