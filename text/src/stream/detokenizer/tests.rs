//! Streaming equals decoding at once, for a byte-level tokenizer (the demo model's) and a
//! SentencePiece-like one.

use proptest::prelude::*;
use tokenizers::Tokenizer;

use super::*;
use crate::prompt::Tokens;

/// Pushes all ids and checks what must hold at every step.
fn stream(language: &Arc<Language>, ids: &[u32]) -> String {
    let mut detokenizer = Detokenizer::new(Arc::clone(language));
    let mut text = String::new();
    for id in ids {
        text.push_str(&detokenizer.push(*id));
        assert!(detokenizer.bytes.len() <= 3, "a character begins with at most three bytes");
        assert!(detokenizer.window.len() - detokenizer.shown < MAX_HELD);
    }
    text + &detokenizer.finish()
}

fn whole(language: &Language, ids: &[u32]) -> String {
    language.tokens.decode(ids).expect("decodes")
}

/// Configuration with a fixed seed: every run draws equal sequences.
fn seeded(cases: u32) -> ProptestConfig {
    let mut config = ProptestConfig::with_cases(cases);
    config.rng_seed = proptest::test_runner::RngSeed::Fixed(10_000);
    config
}

/// Ids of single bytes: those that cut characters of several bytes apart.
fn byte_pieces(language: &Language) -> Vec<u32> {
    (0..language.tokens.vocabulary_size())
        .filter(|id| language.tokens.bytes(*id).is_some_and(|bytes| bytes.len() == 1))
        .collect()
}

#[test]
fn byte_level_streams_equal_the_whole() {
    let language = Arc::new(crate::samples::language());
    let pieces = byte_pieces(&language);
    assert!(pieces.len() >= 200, "the demo vocabulary has the single bytes");
    let any = 0..language.tokens.vocabulary_size() + 8;
    let spelled = ["🦀", "👩‍👩‍👧‍👦", "日本語", "é", "नम", "ẞ"]
        .map(|text| language.tokens.encode(text, false).expect("encodes"));
    let piece = prop_oneof![
        3 => any.prop_map(|id| vec![id]),
        2 => proptest::sample::select(pieces).prop_map(|id| vec![id]),
        1 => proptest::sample::select(spelled.to_vec()),
    ];
    proptest!(seeded(10_000), |(pieces in proptest::collection::vec(piece, 0..40))| {
        let ids = pieces.concat();
        prop_assert_eq!(stream(&language, &ids), whole(&language, &ids));
    });
}

#[test]
fn special_tokens_are_shown_if_wanted_but_for_those_that_end_the_stream() {
    let language = Arc::new(crate::samples::language());
    let id = |text: &str| language.tokens.id(text).expect("a token of the demo");
    let (start, end) = (id("<|im_start|>"), id("<|im_end|>"));
    let hello = language.tokens.encode("Hello", false).expect("encodes");
    let ids = [&[start][..], &hello, &[start], &hello[..1], &[u32::MAX, end]].concat();
    let read = |special| {
        let mut text = Detokenizer::new(Arc::clone(&language)).with_special(special);
        ids.iter().map(|id| text.push(*id)).collect::<String>() + &text.finish()
    };
    let first = whole(&language, &hello[..1]);
    assert_eq!(read(SpecialTokens::LeftOut), format!("Hello{first}"));
    let marked = format!("<|im_start|>Hello<|im_start|>{first}");
    assert_eq!(read(SpecialTokens::Shown { but: vec![end] }), marked);
    assert_eq!(read(SpecialTokens::Shown { but: vec![] }), marked + "<|im_end|>");
}

#[test]
fn a_shown_special_token_ends_a_character_that_is_not_whole() {
    let language = Arc::new(crate::samples::language());
    let mut text =
        Detokenizer::new(Arc::clone(&language)).with_special(SpecialTokens::Shown { but: vec![] });
    let cut = spelled(&language, "é")[0];
    let mark = language.tokens.id("<|im_start|>").expect("a token of the demo");
    assert_eq!((text.push(cut), text.push(mark)), (String::new(), "\u{FFFD}<|im_start|>".into()));
}

/// The ids that spell `text` byte by byte.
fn spelled(language: &Language, text: &str) -> Vec<u32> {
    let pieces = byte_pieces(language);
    let id = |byte: &u8| {
        pieces.iter().copied().find(|id| language.tokens.bytes(*id) == Some(&[*byte][..]))
    };
    text.as_bytes().iter().map(|byte| id(byte).expect("every byte is a token")).collect()
}

#[test]
fn a_stop_string_split_at_every_place_is_found_and_never_shown() {
    use paceline_vocabulary::generation::{Figures, TokenBatch};

    use crate::stream::{Assembler, AssemblerSettings};

    let language = Arc::new(crate::samples::language());
    for stop in ["END", "🦀", "日本語", "\n\nUser:", "é🦀.", "</tool_call>"] {
        let (before, after) = ("vor 🐢? ", " danach");
        let text = format!("{before}{stop}{after}");
        let bytes = spelled(&language, &text);
        let usual = language.tokens.encode(&text, false).expect("encodes");
        for ids in [&bytes, &usual] {
            for (first, second) in (0..=ids.len())
                .flat_map(|first| (first..=ids.len()).map(move |second| (first, second)))
            {
                let settings = AssemblerSettings {
                    stop: vec!["never".into(), stop.into()],
                    ..Default::default()
                };
                let mut assembler = Assembler::new(settings, Arc::clone(&language));
                let (mut shown, mut token_ids, mut ended) = (String::new(), Vec::new(), None);
                for range in [0..first, first..second, second..ids.len()] {
                    let batch = TokenBatch {
                        first_index: range.start as u32,
                        ids: ids[range].to_vec(),
                        so_far: Some(Figures::default()),
                        ..Default::default()
                    };
                    if let Some(message) =
                        assembler.take(batch, Default::default()).expect("they follow")
                    {
                        shown += &message.text();
                        token_ids.extend(message.token_ids);
                        ended = message.last;
                    }
                    if ended.is_some() {
                        break;
                    }
                }
                assert_eq!(shown, before, "{stop:?} cut at {first} and {second}");
                assert_eq!(ended.expect("it is found").stop, stop);
                let decoded = |ids: &[u32]| whole(&language, ids);
                assert!(
                    decoded(&token_ids).contains(stop)
                        && !decoded(&token_ids[..token_ids.len() - 1]).contains(stop),
                    "{stop:?}"
                );
            }
        }
    }
}

#[test]
fn characters_of_many_bytes_arrive_whole() {
    let language = Arc::new(crate::samples::language());
    let text = "日本語の文 🦀👩‍👩‍👧‍👦 ẞ ﷽ नमस्ते ok";
    let ids = language.tokens.encode(text, false).expect("encodes");
    assert!(ids.len() > text.chars().count(), "the demo vocabulary has to spell them in bytes");
    let mut detokenizer = Detokenizer::new(Arc::clone(&language));
    let pieces: Vec<String> = ids.iter().map(|id| detokenizer.push(*id)).collect();
    assert!(pieces.iter().all(|piece| !piece.contains(REPLACEMENT)), "{pieces:?}");
    assert_eq!(pieces.concat(), text);
    assert_eq!(detokenizer.finish(), "");
}

#[test]
fn an_unfinished_character_is_flushed_at_the_end() {
    let language = Arc::new(crate::samples::language());
    let ids = language.tokens.encode("🦀", false).expect("encodes");
    let cut = &ids[..ids.len() - 1];
    assert_eq!(stream(&language, cut), "\u{FFFD}");
    assert_eq!(
        stream(&language, &[cut, &language.tokens.encode("x", false).expect("encodes")].concat()),
        "\u{FFFD}x"
    );
}

/// Words with "▁" for the space, bytes as `<0x..>`, a leading space stripped: as Llama 2 and Gemma
/// do it.
fn sentencepiece() -> Arc<Language> {
    let mut vocab = serde_json::Map::new();
    let words =
        ["<unk>", "</s>", "▁", "▁Hello", "▁world", "ly", "!", "é", "▁日"].map(str::to_owned);
    for token in words.into_iter().chain((0..=255u8).map(|byte| format!("<0x{byte:02X}>"))) {
        vocab.insert(token, vocab.len().into());
    }
    let json = serde_json::json!({
        "version": "1.0", "truncation": {"direction": "Right", "max_length": 2, "strategy": "LongestFirst", "stride": 0},
        "padding": null, "normalizer": null, "pre_tokenizer": null, "post_processor": null,
        "added_tokens": [{"id": 1, "content": "</s>", "single_word": false, "lstrip": false, "rstrip": false,
            "normalized": false, "special": true}],
        "decoder": {"type": "Sequence", "decoders": [
            {"type": "Replace", "pattern": {"String": "▁"}, "content": " "}, {"type": "ByteFallback"}, {"type": "Fuse"},
            {"type": "Strip", "content": " ", "start": 1, "stop": 0}]},
        "model": {"type": "BPE", "dropout": null, "unk_token": "<unk>", "continuing_subword_prefix": null,
            "end_of_word_suffix": null, "fuse_unk": true, "byte_fallback": true, "vocab": vocab, "merges": []},
    });
    let tokenizer: Tokenizer = json.to_string().parse().expect("a tokenizer");
    let tokens = Tokens::new(tokenizer).expect("usable");
    let sampling = paceline_vocabulary::sampling::SamplingRule::GREEDY;
    Arc::new(Language {
        tokens,
        template: None,
        stop_ids: vec![1],
        sampling,
        images: None,
        answer_tags: Arc::default(),
    })
}

/// The id of a byte's token in [`sentencepiece`].
fn byte_id(byte: u8) -> u32 {
    9 + u32::from(byte)
}

#[test]
fn sentencepiece_streams_equal_the_whole() {
    let language = sentencepiece();
    let words = (1..9).map(|id| vec![id]).collect::<Vec<_>>();
    let spelled = ["é", "日", "🦀", "a"].map(|text| text.bytes().map(byte_id).collect::<Vec<_>>());
    let piece = prop_oneof![4 => proptest::sample::select(words), 2 => proptest::sample::select(spelled.to_vec())];
    proptest!(seeded(10_000), |(pieces in proptest::collection::vec(piece, 0..24))| {
        let ids = pieces.concat();
        prop_assert_eq!(stream(&language, &ids), whole(&language, &ids));
    });
}

#[test]
fn sentencepiece_garbage_is_not_held_for_ever() {
    let language = sentencepiece();
    let mut detokenizer = Detokenizer::new(Arc::clone(&language));
    let pieces: Vec<String> =
        std::iter::repeat_n(byte_id(0xC3), 40).map(|id| detokenizer.push(id)).collect();
    assert!(pieces.concat().chars().count() >= 36, "{pieces:?}");
    assert!(detokenizer.window.len() <= MAX_SILENT + MAX_HELD);
}

#[test]
fn a_prompt_is_never_truncated() {
    let ids = sentencepiece().tokens.encode("!!!!!", false).expect("encodes");
    assert_eq!(ids.len(), 5, "the file's truncation to 2 is off");
}
