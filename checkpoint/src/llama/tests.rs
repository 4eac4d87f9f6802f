//! Conversion of the tiny file, of damaged ones, and of ones that are refused.

use safetensors::SafeTensors;
use serde_json::Value;

use super::{Checkpoint, TEXTS};
use crate::gguf::Gguf;
use crate::samples::SampleGguf;

/// The weights and the other files that a GGUF file becomes.
fn converted(file: &[u8]) -> Result<(Vec<u8>, Vec<Value>), String> {
    let gguf = Gguf::read(file).map_err(|error| error.to_string())?;
    let checkpoint = Checkpoint::of(&gguf).map_err(|error| error.to_string())?;
    let mut weights = vec![];
    checkpoint.write_weights(&mut weights).expect("memory");
    let texts = checkpoint.texts().map(|(_, text)| serde_json::from_str(&text).expect("JSON"));
    Ok((weights, texts.collect()))
}

fn refused(change: impl FnOnce(&mut SampleGguf)) -> String {
    let mut sample = SampleGguf::llama();
    change(&mut sample);
    converted(&sample.bytes()).expect_err("refused")
}

/// A float16 as float32. No sample is subnormal.
fn half(bytes: &[u8]) -> f32 {
    let bits = u32::from(u16::from_le_bytes([bytes[0], bytes[1]]));
    let magnitude = if bits & 0x7FFF == 0 { 0 } else { ((bits & 0x7FFF) << 13) + (112 << 23) };
    f32::from_bits((bits & 0x8000) << 16 | magnitude)
}

/// The values of a tensor of the GGUF file, by the definition of its blocks.
fn values(sample: &SampleGguf, name: &str) -> Vec<f32> {
    let tensor = sample.tensors.iter().find(|tensor| tensor.name == name).expect("there");
    let q4_1 = |block: &[u8]| -> Vec<f32> {
        let (scale, offset) = (half(block), half(&block[2..]));
        let low = block[4..].iter().map(|byte| byte & 15);
        let quants = low.chain(block[4..].iter().map(|byte| byte >> 4));
        quants.map(|quant| f32::from(quant) * scale + offset).collect()
    };
    let q8_0 = |block: &[u8]| -> Vec<f32> {
        block[2..].iter().map(|byte| f32::from(*byte as i8) * half(block)).collect()
    };
    match tensor.kind {
        3 => tensor.data.chunks(20).flat_map(q4_1).collect(),
        _ => tensor.data.chunks(34).flat_map(q8_0).collect(),
    }
}

/// The values of a module of the checkpoint, by MLX's definition of affine groups.
fn unpacked(weights: &SafeTensors<'_>, module: &str, bits: u32) -> Vec<f32> {
    let data =
        |part: &str| weights.tensor(&format!("{module}.{part}")).expect("there").data().to_vec();
    let (packed, scales, biases) = (data("weight"), data("scales"), data("biases"));
    let words = packed.chunks(4).map(|word| u32::from_le_bytes(word.try_into().expect("4 bytes")));
    let quants = words
        .flat_map(|word| (0..32 / bits).map(move |at| word >> (at * bits) & ((1 << bits) - 1)));
    let value = |(at, quant): (usize, u32)| {
        let group = at / 32 * 2;
        quant as f32 * half(&scales[group..]) + half(&biases[group..])
    };
    quants.enumerate().map(value).collect()
}

#[test]
fn each_weight_stays_the_same_number() {
    let sample = SampleGguf::llama();
    let (weights, _) = converted(&sample.bytes()).expect("converted");
    let weights = SafeTensors::deserialize(&weights).expect("safetensors");
    assert_eq!(weights.len(), 3 * 8 + 3);
    let layer = |gguf: &str, mlx: &str| {
        let found = unpacked(&weights, &format!("model.layers.0.{mlx}"), 4);
        (values(&sample, &format!("blk.0.{gguf}.weight")), found)
    };
    for (gguf, mlx) in [
        ("attn_v", "self_attn.v_proj"),
        ("attn_output", "self_attn.o_proj"),
        ("ffn_gate", "mlp.gate_proj"),
        ("ffn_up", "mlp.up_proj"),
        ("ffn_down", "mlp.down_proj"),
    ] {
        let (expected, found) = layer(gguf, mlx);
        assert_eq!(expected, found, "{gguf}");
    }
    for (gguf, mlx, heads) in [("attn_q", "self_attn.q_proj", 2), ("attn_k", "self_attn.k_proj", 1)]
    {
        let (expected, found) = layer(gguf, mlx);
        let expected: Vec<&[f32]> = expected.chunks(32).collect();
        let rows: Vec<&[f32]> = found.chunks(32).collect();
        // llama.cpp has the rows of a head as 0, 8, 1, 9, ...
        let half = 16 / 2;
        assert_eq!(rows.len(), heads * 16);
        for (row, found) in rows.iter().enumerate() {
            let (head, within) = (row / 16, row % 16);
            let source = head * 16 + within / half + within % half * 2;
            assert_eq!(*found, expected[source], "{gguf}, row {row}");
        }
    }
    let embedding = unpacked(&weights, "model.embed_tokens", 8);
    assert_eq!(embedding, values(&sample, "token_embd.weight"));
    let norm = weights.tensor("model.norm.weight").expect("there");
    assert_eq!((norm.shape(), norm.data().len()), (&[32][..], 128));
}

#[test]
fn the_other_files_have_the_models_facts() {
    let (_, texts) = converted(&SampleGguf::llama().bytes()).expect("converted");
    let [config, tokenizer, tokenizer_config, generation] = texts.as_slice() else {
        panic!("{} files", texts.len());
    };
    assert_eq!(TEXTS.len(), texts.len());
    assert_eq!(config["head_dim"], 16);
    assert_eq!(config["rms_norm_eps"], 1e-5);
    assert_eq!(config["quantization"]["model.embed_tokens"]["bits"], 8);
    assert_eq!(tokenizer["added_tokens"].as_array().map(Vec::len), Some(3));
    assert_eq!(tokenizer["added_tokens"][2]["content"], "<|im_end|>");
    assert_eq!(tokenizer["model"]["vocab"]["ab"], 5);
    assert_eq!(tokenizer["model"]["merges"][0], "a b");
    assert_eq!(tokenizer_config["eos_token"], "<|im_end|>");
    assert_eq!(tokenizer_config["chat_template"], "{{ messages }}");
    assert_eq!(generation["eos_token_id"][0], 2);
}

#[test]
fn a_file_of_version_2_is_read_alike() {
    let mut sample = SampleGguf::llama();
    let third = converted(&sample.bytes()).expect("converted");
    sample.version = 2;
    assert_eq!(converted(&sample.bytes()), Ok(third));
    sample.version = 4;
    let error = converted(&sample.bytes()).expect_err("refused");
    assert_eq!(error, "version of GGUF: expected 2 or 3, little-endian, found 4");
}

#[test]
fn another_architecture_tokenizer_or_type_is_refused_by_name() {
    let error = refused(|sample| sample.set_text("general.architecture", "qwen3"));
    assert_eq!(error, "metadata \"general.architecture\": expected \"llama\", found \"qwen3\"");
    let error = refused(|sample| sample.set_text("tokenizer.ggml.pre", "qwen2"));
    assert_eq!(error, "metadata \"tokenizer.ggml.pre\": expected \"smollm\", found \"qwen2\"");
    let error = refused(|sample| {
        sample.tensors[1].kind = 2;
        sample.tensors[1].data.truncate(32 * 18);
    });
    assert_eq!(error, "tensor \"blk.0.attn_q.weight\": expected the type Q4_1, found Q4_0");
    let error = refused(|sample| sample.tensors[1].kind = 40);
    assert!(
        error.contains("expected one of the types F32, F16, BF16, Q4_0")
            && error.ends_with("found type 40"),
        "{error}"
    );
    let error = refused(|sample| sample.tensors[1].name = "blk.0.attn_q.bias".to_owned());
    assert!(error.contains("\"blk.0.attn_q.bias\""), "{error}");
}

#[test]
fn what_is_missing_or_there_twice_is_named() {
    let error = refused(|sample| sample.pairs.retain(|(key, ..)| key != "llama.block_count"));
    assert_eq!(
        error,
        "metadata \"llama.block_count\": expected a whole number of at least 0, found nothing"
    );
    let error = refused(|sample| sample.pairs.push(sample.pairs[0].clone()));
    assert_eq!(error, "metadata \"general.architecture\": expected one value, found two");
    let error = refused(|sample| drop(sample.tensors.pop()));
    assert_eq!(error, "tensors: expected 11 for 1 layers, found 10");
    let error = refused(|sample| sample.tensors.push(sample.tensors[0].clone()));
    assert_eq!(error, "tensor \"token_embd.weight\": expected one tensor of this name, found two");
    for name in ["blk.1.attn_q.weight", "blk.00.attn_q.weight", "blk.0.attn_q", "lm_head.weight"] {
        let error = refused(|sample| sample.tensors[1].name = name.to_owned());
        assert!(error.contains("of 1 layers with a tied head") && error.contains(name), "{error}");
    }
}

#[test]
fn tensors_begin_at_multiples_of_the_alignment() {
    let aligned = |to: u32| {
        let mut sample = SampleGguf::llama();
        let key = "general.alignment".to_owned();
        sample.pairs.push((key, 4, to.to_le_bytes().to_vec()));
        // The data begins later, and is as long as before.
        converted(&[sample.bytes(), vec![0; 512]].concat()).expect_err("refused")
    };
    let error = aligned(3);
    assert_eq!(error, "metadata \"general.alignment\": expected a power of two, found 3");
    let error = aligned(0);
    assert_eq!(error, "metadata \"general.alignment\": expected a power of two, found 0");
    let error = aligned(512);
    assert!(error.contains("expected an offset that is a multiple of 512"), "{error}");
}

#[test]
fn numbers_beyond_the_file_are_refused_before_they_size_memory() {
    let header = |tensors: u64, pairs: u64| {
        let counts = [tensors.to_le_bytes(), pairs.to_le_bytes()].concat();
        [b"GGUF".as_slice(), &3_u32.to_le_bytes(), &counts].concat()
    };
    let array = |kind: u32| {
        let key = [&1_u64.to_le_bytes()[..], b"a", &9_u32.to_le_bytes()].concat();
        [header(0, 1), key, kind.to_le_bytes().to_vec(), u64::MAX.to_le_bytes().to_vec()].concat()
    };
    let cases = [
        (b"PK".to_vec(), "byte 0: expected 4 more bytes, found 2"),
        (b"GGML\x03\0\0\0".to_vec(), "begin of the file: expected \"GGUF\", found \"GGML\""),
        (header(0, 0), "\"general.architecture\": expected a text, found nothing"),
        (
            header(u64::MAX, 0),
            "number of tensors: expected at most 65536, found 18446744073709551615",
        ),
        (header(0, u64::MAX), "number of pairs: expected at most 65536, found"),
        (header(1, 0), "byte 24: expected 8 more bytes, found 0: the file is cut off"),
        (header(0, 1), "byte 24: expected 8 more bytes, found 0: the file is cut off"),
        (
            [header(0, 1), u64::MAX.to_le_bytes().to_vec()].concat(),
            "byte 32: expected 18446744073709551615 more",
        ),
        (array(4), "byte 49: expected 18446744073709551615 more bytes"),
        (array(8), "byte 49: expected 8 more bytes"),
        (array(9), "metadata \"a\": expected an array of numbers or texts, found type 9 in it"),
    ];
    for (content, expected) in cases {
        let error = converted(&content).expect_err("refused");
        assert!(error.contains(expected), "{error}");
    }
    let error = refused(|sample| sample.tensors[1].dimensions = vec![32, 1 << 60]);
    assert!(error.contains("blk.0.attn_q.weight"), "{error}");
    let error = refused(|sample| sample.tensors[1].dimensions = vec![32, 1 << 40]);
    assert!(error.starts_with("data: expected ") && error.contains("cut off"), "{error}");
    let error = refused(|sample| {
        let heads = sample.pairs.iter_mut().find(|(key, ..)| key == "llama.attention.head_count");
        heads.expect("there").2 = 3_u32.to_le_bytes().to_vec();
    });
    assert!(error.contains("rows of two halves for each of 3 heads, found 32"), "{error}");
    let error = refused(|sample| sample.tensors[8].dimensions = vec![0]);
    assert!(error.contains("rows of a multiple of 1 values for F32"), "{error}");
}

#[test]
fn a_scale_whose_bias_has_no_float16_is_refused() {
    for (scale, bias) in [
        (0x0000_u16, Some(0x8000_u16)),
        (0x8000, Some(0x0000)),
        // The smallest subnormal 2^-24, the largest, and the smallest normal number 2^-14.
        (0x0001, Some(0x8080)),
        (0x03FF, Some(0x9FFE)),
        (0x0400, Some(0xA000)),
        (0x3C00, Some(0xD800)),
        (0x5FFF, Some(0xFBFF)),
        (0x6000, None),
        (0x7C00, None),
        (0x7E00, None),
    ] {
        assert_eq!(super::weights::bias(&scale.to_le_bytes()), bias, "{scale:#x}");
    }
    let error = refused(|sample| sample.tensors[0].data[..2].copy_from_slice(&[0, 0x60]));
    assert!(error.contains("token_embd.weight") && error.contains("128-fold"), "{error}");
}

#[test]
fn a_file_that_is_cut_off_anywhere_is_refused() {
    let file = SampleGguf::llama().bytes();
    for end in 0..file.len() {
        assert!(converted(&file[..end]).is_err(), "{end} of {} bytes", file.len());
    }
}

#[test]
fn a_changed_byte_gives_an_error_or_a_checkpoint_that_can_be_read() {
    let file = SampleGguf::llama().bytes();
    for at in 0..file.len() {
        for change in [0x01, 0x80, 0xFF] {
            let mut damaged = file.clone();
            damaged[at] ^= change;
            if let Ok((weights, _)) = converted(&damaged) {
                SafeTensors::deserialize(&weights).expect("safetensors");
            }
        }
    }
}
