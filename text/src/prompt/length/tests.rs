use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Value, json};

use super::*;

/// The demo model's tokenizer with a change to its file.
fn tokenizer(change: impl FnOnce(&mut Value)) -> Tokenizer {
    let path = crate::samples::dir().join("tokenizer.json");
    let mut file: Value =
        serde_json::from_slice(&std::fs::read(path).expect("in the repository")).expect("JSON");
    change(&mut file);
    Tokenizer::from_bytes(file.to_string()).expect("a tokenizer")
}

fn composing() -> Tokenizer {
    tokenizer(|file| file["normalizer"] = json!({"type": "NFC"}))
}

/// Texts by which a bound would be shown to be wrong.
fn texts(tokenizer: &Tokenizer) -> Vec<String> {
    let mut all: Vec<String> = [
        " ",
        "\n",
        "\t \n",
        "a",
        "é",
        "e\u{301}",
        "世",
        "и\u{306}",
        "\u{1FBE}\u{308}\u{341}",
        "\u{212A}",
        "🦊",
        "<|im_start|>",
    ]
    .map(|piece| piece.repeat(500))
    .to_vec();
    // The longest tokens of all, each alone and many times.
    let mut ids: Vec<u32> = tokenizer.get_vocab(true).into_values().collect();
    ids.sort_unstable_by_key(|id| {
        std::cmp::Reverse(tokenizer.id_to_token(*id).map_or(0, |token| token.len()))
    });
    all.extend(
        ids.iter().take(40).map(|id| tokenizer.decode(&[*id], false).expect("decodes").repeat(50)),
    );
    all.push("Hangul 각 ᄀ\u{1161}\u{11A8}, Ångström \u{212B}\u{301}, naïve, ".repeat(40));
    all
}

#[test]
fn no_text_becomes_fewer_tokens_than_the_bound_says() {
    for tokenizer in [tokenizer(|_| {}), composing()] {
        let bound = LengthBound::of(&tokenizer).expect("it is byte-level");
        for text in texts(&tokenizer) {
            let tokens =
                tokenizer.encode_fast(text.as_str(), false).expect("encodes").get_ids().len();
            let least = bound.least_tokens(&text);
            let start: String = text.chars().take(20).collect();
            assert!(least <= tokens, "{start:?}: {least} expected at least, found {tokens}");
            assert!(least > 0, "{start:?}");
        }
    }
}

#[test]
fn the_longest_token_is_counted_in_bytes_and_added_ones_count() {
    let bound = LengthBound::of(&tokenizer(|_| {})).expect("it is byte-level");
    // " implementation" and the like have 15 bytes.
    assert_eq!(bound, LengthBound { longest: 15, composes: false });
    assert_eq!(
        (bound.least_tokens(""), bound.least_tokens("a"), bound.least_tokens(&"a".repeat(31))),
        (0, 1, 3)
    );
    let long = tokenizer(|file| {
        let added = json!({"id": 4095, "content": "<|a_marker_of_thirty_five_bytes__|>", "single_word": false, "lstrip": false,
            "rstrip": false, "normalized": true, "special": true});
        file["added_tokens"].as_array_mut().expect("a list").push(added);
    });
    assert_eq!(LengthBound::of(&long).expect("it is byte-level").longest, 35);
}

#[test]
fn a_tokenizer_that_may_drop_text_has_no_length_bound() {
    let none = |what: &str, change: &dyn Fn(&mut Value)| {
        assert_eq!(LengthBound::of(&tokenizer(change)), None, "{what}");
    };
    none("blanks are stripped", &|file| {
        file["normalizer"] = json!({"type": "Strip", "strip_left": true, "strip_right": true});
    });
    none("something is replaced", &|file| {
        file["normalizer"] = json!({"type": "Replace", "pattern": {"String": "  "}, "content": ""});
    });
    none("one of several steps drops text", &|file| {
        file["normalizer"] =
            json!({"type": "Sequence", "normalizers": [{"type": "NFC"}, {"type": "StripAccents"}]});
    });
    none("delimiters are removed", &|file| {
        file["pre_tokenizer"]["pretokenizers"][0]["behavior"] = json!("Removed")
    });
    none("no step makes bytes of characters", &|file| {
        file["pre_tokenizer"]["pretokenizers"].as_array_mut().expect("a list").pop();
    });
    none("no step at all", &|file| file["pre_tokenizer"] = Value::Null);
    none("a token takes the blanks before it with it", &|file| {
        file["added_tokens"][0]["lstrip"] = json!(true)
    });
    none("a token takes the blanks behind it with it", &|file| {
        file["added_tokens"][0]["rstrip"] = json!(true)
    });
    none("a byte has no token", &|file| {
        file["model"]["vocab"].as_object_mut().expect("a map").remove("ÿ");
    });
    none("ends of words have names of their own", &|file| {
        file["model"]["end_of_word_suffix"] = json!("</w>")
    });
}

fn nfc(text: &str) -> String {
    let mut text = NormalizedString::from(text);
    text.nfc();
    text.get().to_owned()
}

fn nfd(text: &str) -> String {
    let mut text = NormalizedString::from(text);
    text.nfd();
    text.get().to_owned()
}

/// Characters that composition may concern: all of the first plane but the ideographs of one length
/// that decompose to nothing, and the blocks of the others that have decompositions.
fn characters() -> impl Iterator<Item = char> {
    let blocks = [
        0..0x3400,
        0x4E00..0x1_3000,
        0x1_6000..0x1_7000,
        0x1_D000..0x1_D800,
        0x1_E000..0x1_F000,
        0x2_F800..0x2_FA20,
    ];
    blocks.into_iter().flatten().filter_map(char::from_u32)
}

/// Every text of one NFC form has one decomposition. So a text is at most as long as the longest
/// ways to write each character of the decomposition, together: a character that decomposes to it
/// alone, or itself. That a character which decomposes to several is no longer than these together
/// is checked as well.
#[test]
fn a_composed_text_is_at_least_a_quarter_as_long_as_before() {
    let decomposed: Vec<(char, String)> = characters()
        .map(|character| (character, nfd(character.encode_utf8(&mut [0; 4]))))
        .collect();
    let mut longest: BTreeMap<char, usize> = BTreeMap::new();
    for (character, parts) in &decomposed {
        if let Some(part) = single_character(parts) {
            let most = longest.entry(part).or_insert(part.len_utf8());
            *most = (*most).max(character.len_utf8());
        }
    }
    let mut worst = (0.0, '\0');
    for (character, parts) in &decomposed {
        let most: usize =
            parts.chars().map(|part| longest.get(&part).copied().unwrap_or(part.len_utf8())).sum();
        assert!(character.len_utf8() <= most, "{character:?}");
        let ratio = most as f64 / character.len_utf8() as f64;
        if ratio > worst.0 && nfc(character.encode_utf8(&mut [0; 4])).starts_with(*character) {
            worst = (ratio, *character);
        }
    }
    assert_eq!(worst, (3.5, '\u{390}'));
    assert!(worst.0 <= MOST_COMPOSED as f64);
}

#[test]
fn a_stable_character_is_never_made_shorter() {
    let mut later: BTreeSet<char> = BTreeSet::new();
    for character in characters() {
        let (parts, composed) =
            (nfd(character.encode_utf8(&mut [0; 4])), nfc(character.encode_utf8(&mut [0; 4])));
        if is_stable(character) {
            assert_eq!(
                single_character(&composed),
                Some(character),
                "{character:?} is another one in NFC"
            );
        }
        if single_character(&composed) != Some(character) {
            continue;
        }
        // What comes behind the first is taken up by what is before it, which does not become
        // shorter by that.
        later.extend(parts.chars().skip(1));
        let ends = parts.char_indices().map(|(at, _)| at).skip(1);
        for begin in ends
            .filter_map(|end| single_character(&nfc(&parts[..end])))
            .filter(|begin| is_stable(*begin))
        {
            assert!(
                begin.len_utf8() <= character.len_utf8(),
                "{begin:?} is longer than {character:?}"
            );
        }
    }
    assert!(later.len() > 60, "{}", later.len());
    assert_eq!(
        later.into_iter().find(|character| is_stable(*character)),
        None,
        "it is taken up by another"
    );
}

#[test]
fn the_byte_alphabet_has_every_byte_once() {
    let bytes: BTreeSet<u8> = (0..=0x143).filter_map(char::from_u32).filter_map(byte_of).collect();
    assert_eq!(bytes.len(), 256);
    assert_eq!(byte_of('Ġ'), Some(b' '));
    assert_eq!(byte_of('Ċ'), Some(b'\n'));
    assert_eq!(byte_of(' '), None);
    assert_eq!(byte_of('世'), None);
}
