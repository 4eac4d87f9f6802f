//! Which files of a revision serving needs. Names of files are data of a stranger: a name must lead
//! to a place inside the model's folder.

use std::collections::BTreeSet;
use std::path::{Component, Path};

use paceline_checkpoint::ShardIndex;
use paceline_checkpoint::files::{INDEX, TEXT_FILES};

/// Further files that are fetched if a model has them: templates, and the index.
const FURTHER: [&str; 3] =
    ["chat_template.jinja", "additional_chat_templates/tool_use.jinja", INDEX];

fn is_small(name: &str) -> bool {
    TEXT_FILES.contains(&name) || FURTHER.contains(&name)
}

/// Whether a file has weights. Every other file that serving needs is in the lists of small ones.
pub(crate) fn is_weights(name: &str) -> bool {
    !is_small(name)
}

/// Whether a file is in the format GGUF, by its name.
pub(crate) fn is_gguf(name: &str) -> bool {
    name.len() > ".gguf".len() && name.to_ascii_lowercase().ends_with(".gguf")
}

/// Longest name of a revision.
const LONGEST_REVISION: usize = 200;
/// Longest part of a file's name: common file systems allow 255 bytes, and `.part` is added.
const LONGEST_PART: usize = 240;

/// Checks the name of a branch, tag or commit.
pub(crate) fn revision(text: &str) -> Result<String, String> {
    let allowed =
        |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.' | b'/' | b'+');
    let well = !text.is_empty()
        && text.len() <= LONGEST_REVISION
        && text.bytes().all(allowed)
        && text.split('/').all(|part| !part.is_empty() && !part.starts_with('.'))
        && !text.contains("..");
    match well {
        true => Ok(text.to_owned()),
        false => Err(format!("expected the name of a branch, a tag or a commit, found {text:?}")),
    }
}

/// Whether a name leads to a file inside the folder it is relative to, and not to one of our own
/// (those begin with a dot).
pub(crate) fn is_safe(name: &str) -> bool {
    let plain = |part: Component<'_>| match part {
        Component::Normal(part) => {
            let bytes = part.as_encoded_bytes();
            bytes.len() <= LONGEST_PART && !bytes.starts_with(b".")
        }
        _ => false,
    };
    let odd = |character: char| character.is_control() || character == '\\' || character == ':';
    // `components` skips empty parts and inner dots, so the name is also compared with its parts.
    !name.is_empty()
        && !name.chars().any(odd)
        && name.split('/').all(|part| !matches!(part, "" | "." | ".."))
        && Path::new(name).components().all(plain)
}

/// The small files among those that a revision has.
pub(crate) fn small<'a>(there: impl Iterator<Item = &'a str>) -> Vec<String> {
    there.filter(|name| is_small(name)).map(str::to_owned).collect()
}

/// The shards that an index names.
///
/// # Errors
/// It is no index, or a shard's name must not be used.
pub(crate) fn shards(index: &[u8]) -> Result<BTreeSet<String>, String> {
    let index: ShardIndex = serde_json::from_slice(index)
        .map_err(|error| format!("expected a JSON object with weight_map, found: {error}"))?;
    let shards = index.shards();
    match shards.iter().find(|shard| !(is_safe(shard) && shard.ends_with(".safetensors"))) {
        Some(shard) => Err(format!("expected names of safetensors files, found {shard:?}")),
        None if shards.is_empty() => Err("expected at least one shard, found none".to_owned()),
        None => Ok(shards),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_lead_elsewhere_are_refused() {
        for name in ["a", "model-00001-of-00002.safetensors", "mtp/weights.safetensors", "ü"] {
            assert!(is_safe(name), "{name}");
        }
        let long = "x".repeat(241);
        for name in [
            "",
            "/etc/passwd",
            "../x",
            "a/../b",
            "a/..",
            "./a",
            "a/./b",
            "a//b",
            "a/",
            ".part",
            "a/.b",
            "a\\b",
            "C:x",
            "a\nb",
            "a\0b",
            &long,
        ] {
            assert!(!is_safe(name), "{name:?}");
        }
    }

    #[test]
    fn only_what_serving_needs_is_chosen() {
        let there = [
            "README.md",
            "additional_chat_templates/tool_use.jinja",
            "chat_template.jinja",
            "config.json",
            "consolidated.safetensors",
            "mtp/config.json",
            "model.safetensors",
            "model.safetensors.index.json",
            "pytorch_model.bin",
            "tokenizer.json",
            "x.gguf",
            "x.pth",
        ];
        let expected = [
            "additional_chat_templates/tool_use.jinja",
            "chat_template.jinja",
            "config.json",
            "model.safetensors.index.json",
            "tokenizer.json",
        ];
        assert_eq!(small(there.into_iter()), expected);
    }

    #[test]
    fn an_index_names_safetensors_files_inside_the_folder() {
        let index =
            |shard: &str| shards(format!(r#"{{"weight_map":{{"a":{shard:?}}}}}"#).as_bytes());
        assert!(index("m-1.safetensors").is_ok_and(|shards| shards.len() == 1));
        assert!(index("mtp/m.safetensors").is_ok());
        for shard in ["../m.safetensors", "/m.safetensors", "m.bin", ".m.safetensors"] {
            assert!(index(shard).is_err_and(|error| error.contains(shard)), "{shard}");
        }
        assert!(shards(b"[]").is_err() && shards(br#"{"weight_map":{}}"#).is_err());
    }

    #[test]
    fn a_revision_is_a_branch_a_tag_or_a_commit() {
        for text in ["main", "refs/pr/1", "v1.0-rc+1", "0123abc"] {
            assert!(revision(text).is_ok(), "{text}");
        }
        for text in ["", "..", "a..b", "a b", "a//b", "/a", ".a", "a?b", "a%2f", &"a".repeat(201)] {
            assert!(revision(text).is_err(), "{text}");
        }
    }
}
