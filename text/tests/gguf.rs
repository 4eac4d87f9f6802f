//! Tokenizers that are made of GGUF files, as the crate `tokenizers` reads them.

use paceline_checkpoint::from_gguf::TextFiles;
use paceline_checkpoint::gguf::Gguf;
use paceline_checkpoint::samples::SampleGguf;
use tokenizers::Tokenizer;

/// The letters that stand for bytes, by the bytes. Source: openai/gpt-2, encoder.py.
fn letters() -> Vec<String> {
    let mut others = 0x100_u32..;
    let letter = |byte: u8| match byte {
        b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF => Some(char::from(byte)),
        _ => others.next().and_then(char::from_u32),
    };
    (0..=u8::MAX).map(letter).map(|letter| letter.expect("a letter").to_string()).collect()
}

/// The file of a model whose first tokens are the bytes, and then these, all of them merged of two.
fn byte_level(pre: &str, merges: &[&str]) -> SampleGguf {
    let mut sample = SampleGguf::of("llama");
    let mut tokens = letters();
    tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
    tokens.extend(["<|begin|>", "<|end|>"].map(str::to_owned));
    let mut kinds = vec![1; tokens.len()];
    kinds[tokens.len() - 2..].fill(3);
    let texts: Vec<&str> = tokens.iter().map(String::as_str).collect();
    sample.set_tokens(&texts, &kinds);
    sample.set_texts("tokenizer.ggml.merges", merges);
    sample.set_text("tokenizer.ggml.pre", pre);
    sample.set_count("tokenizer.ggml.bos_token_id", tokens.len() as u32 - 2);
    sample.set_count("tokenizer.ggml.eos_token_id", tokens.len() as u32 - 1);
    resized(sample, tokens.len())
}

/// The file with an embedding of this many rows.
fn resized(mut sample: SampleGguf, rows: usize) -> SampleGguf {
    sample.tensors[0].dimensions[1] = rows as u64;
    sample.tensors[0].data = vec![0; rows * 34];
    sample
}

fn tokenizer(sample: &SampleGguf) -> Tokenizer {
    let file = sample.bytes();
    let gguf = Gguf::read(&file).expect("a GGUF file");
    let files = TextFiles::of(&gguf, None).expect("served");
    Tokenizer::from_bytes(files.tokenizer.to_string()).expect("a tokenizer")
}

fn tokens(tokenizer: &Tokenizer, text: &str) -> Vec<String> {
    tokenizer.encode(text, true).expect("encoded").get_tokens().to_vec()
}

/// The names of cuts that are known, by the error that lists them.
fn known_cuts() -> Vec<String> {
    let file = byte_level("nobody's", &[]).bytes();
    let gguf = Gguf::read(&file).expect("a GGUF file");
    let error = TextFiles::of(&gguf, None).expect_err("refused").to_string();
    let (_, list) = error.split_once("one of ").expect("a list");
    let (list, _) = list.split_once(", found").expect("the end of it");
    list.split(", ").map(str::to_owned).collect()
}

#[test]
fn the_cuts_of_all_names_are_read_and_lose_no_text() {
    let names = known_cuts();
    assert!(names.len() >= 17, "{names:?}");
    for name in names {
        let tokenizer = tokenizer(&byte_level(&name, &["a b"]));
        for text in ["ab don't", "12345's  x\r\n\n y", "日本語 ñ\u{301} 😀", "\t  a_b(1.5)…\n"]
        {
            let encoding = tokenizer.encode(text, false).expect("encoded");
            let back = tokenizer.decode(encoding.get_ids(), false).expect("decoded");
            assert_eq!(back, text, "{name}");
        }
    }
}

#[test]
fn digits_are_cut_as_the_publisher_cuts_them() {
    // Merged wherever the cuts let the digits be in one word.
    let of = |pre: &str| {
        let tokenizer = tokenizer(&byte_level(pre, &["1 2", "12 3", "123 4"]));
        let found = tokenizer.encode("1234", false).expect("encoded");
        found.get_tokens().join(" ")
    };
    assert_eq!(of("gpt-2"), "1234");
    for pre in ["qwen2", "qwen35", "smollm", "tekken", "deepseek-llm", "deepseek-coder"] {
        assert_eq!(of(pre), "1 2 3 4", "{pre}");
    }
    for pre in ["llama-bpe", "smaug-bpe", "gpt-4o", "deepseek-v3", "default"] {
        assert_eq!(of(pre), "123 4", "{pre}");
    }
}

#[test]
fn qwen_composes_and_llama_3_begins_and_takes_whole_words() {
    let qwen = tokenizer(&byte_level("qwen2", &["Ã ©"]));
    assert_eq!(qwen.encode("e\u{301}", true).expect("encoded").get_tokens(), ["Ã©"]);
    let llama = byte_level("llama-bpe", &["b c", "a b", "ab c"]);
    assert_eq!(tokens(&tokenizer(&llama), "abc"), ["<|begin|>", "abc"]);
    let smaug = byte_level("smaug-bpe", &["b c", "a b", "ab c"]);
    assert_eq!(tokens(&tokenizer(&smaug), "abc"), ["a", "bc"], "as the merges say");
    assert_eq!(tokens(&tokenizer(&smaug), "a<|end|>").len(), 2);
}

/// A file of pieces as SentencePiece makes them.
fn pieces(has_prefix: Option<bool>) -> SampleGguf {
    let mut sample = SampleGguf::of("gemma3");
    let bytes: Vec<String> = (0..=u8::MAX).map(|byte| format!("<0x{byte:02X}>")).collect();
    let own = [("<unk>", 2, 0.0), ("<s>", 3, 0.0), ("</s>", 3, 0.0), ("  ", 4, -1e3)];
    let text = [
        ("▁", 1, -5.0),
        ("a", 1, -6.0),
        ("b", 1, -7.0),
        ("▁a", 1, -2.0),
        ("ab", 1, -1.0),
        ("▁ab", 1, -3.0),
    ];
    let bytes = bytes.iter().map(|byte| (byte.as_str(), 6, 0.0));
    let all: Vec<(&str, i32, f32)> = own.into_iter().chain(text).chain(bytes).collect();
    let texts: Vec<&str> = all.iter().map(|one| one.0).collect();
    let kinds: Vec<i32> = all.iter().map(|one| one.1).collect();
    let scores: Vec<f32> = all.iter().map(|one| one.2).collect();
    sample.set_tokens(&texts, &kinds);
    sample.set_floats("tokenizer.ggml.scores", &scores);
    if let Some(has_prefix) = has_prefix {
        sample.set_flag("tokenizer.ggml.add_space_prefix", has_prefix);
    }
    resized(sample, texts.len())
}

#[test]
fn pieces_are_merged_by_score_and_other_characters_are_bytes() {
    let with_prefix = tokenizer(&pieces(None));
    assert_eq!(tokens(&with_prefix, "ab"), ["<s>", "▁ab"]);
    assert_eq!(tokens(&with_prefix, "aé"), ["<s>", "▁a", "<0xC3>", "<0xA9>"]);
    let without = tokenizer(&pieces(Some(false)));
    for text in ["ab ab", "  a é\n", "a   b "] {
        for tokenizer in [&with_prefix, &without] {
            let encoding = tokenizer.encode(text, false).expect("encoded");
            let back = tokenizer.decode(encoding.get_ids(), false).expect("decoded");
            assert_eq!(back, text);
        }
    }
    assert_eq!(tokens(&without, "ab ab"), ["<s>", "ab", "▁ab"]);
    assert_eq!(tokens(&without, "a   b"), ["<s>", "a", "▁▁", "▁", "b"]);
    assert_eq!(tokens(&without, "a\n</s>"), ["<s>", "a", "<0x0A>", "</s>"]);
}
