//! Whatever ids a model chooses, the pieces of text together are the text of all ids, and none ends
//! inside a character.
#![no_main]

use std::path::Path;
use std::sync::{Arc, LazyLock};

use libfuzzer_sys::fuzz_target;
use paceline_text::prompt::Language;
use paceline_text::stream::Detokenizer;

static LANGUAGE: LazyLock<Arc<Language>> = LazyLock::new(|| {
    let demo = Path::new(env!("CARGO_MANIFEST_DIR")).join("../demo/target");
    Arc::new(Language::read(&demo).expect("it is in the repository"))
});

fuzz_target!(|bytes: &[u8]| {
    let ids: Vec<u32> = bytes
        .chunks_exact(2)
        .map(|pair| u32::from(u16::from_le_bytes([pair[0], pair[1]])) % 5000)
        .collect();
    let mut detokenizer = Detokenizer::new(Arc::clone(&LANGUAGE));
    let mut text: String = ids.iter().map(|id| detokenizer.push(*id)).collect();
    text += &detokenizer.finish();
    let tokens = &LANGUAGE.tokens;
    let all: Vec<u8> = ids
        .iter()
        .filter(|id| !tokens.is_skipped(**id))
        .flat_map(|id| tokens.bytes(*id).unwrap_or_default())
        .copied()
        .collect();
    assert_eq!(text, String::from_utf8_lossy(&all));
});
