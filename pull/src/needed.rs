//! The files of a revision that serving needs. The index of shards names some of them.

use paceline_checkpoint::ModelName;
use paceline_checkpoint::files::{CONFIG, INDEX, MissingWeights, WEIGHTS, WeightFiles};

use crate::error::PullError;
use crate::files::{is_weights, shards, small};
use crate::hub::{RemoteFile, Revision};
use crate::progress::bytes;

/// Most bytes of an index of shards: those of the largest models have some 10 MiB.
pub(crate) const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Most bytes of the other small files together: tokenizers have some 20 MiB.
const MAX_SMALL_BYTES: u64 = 512 << 20;

/// The files of this revision that serving needs. `read_index` gets the index of shards, if there is
/// one.
///
/// # Errors
/// The model has no weights in safetensors or no configuration, or is too large; an error of
/// `read_index`.
pub(crate) fn needed(
    model: &ModelName,
    revision: &Revision,
    read_index: impl FnOnce(&RemoteFile) -> Result<Vec<u8>, PullError>,
) -> Result<Vec<RemoteFile>, PullError> {
    let files = &revision.files;
    let unusable = |problem: String| PullError::Unusable(format!("{model} {problem}"));
    let small = small(files.keys().map(String::as_str));
    let mut needed: Vec<RemoteFile> =
        small.iter().filter_map(|name| files.get(name)).cloned().collect();
    if !files.contains_key(CONFIG) {
        return Err(unusable(format!("has no {CONFIG}, so it is no model that can be served")));
    }
    let too_large = total(&needed);
    if too_large > MAX_SMALL_BYTES {
        let found = bytes(too_large);
        return Err(unusable(format!(
            "has {found} of configuration and tokenizer, expected at most {}",
            bytes(MAX_SMALL_BYTES)
        )));
    }
    let shards = match files.get(INDEX) {
        None => None,
        Some(index) if index.size > MAX_INDEX_BYTES => {
            return Err(unusable(format!("has an index of {}", bytes(index.size))));
        }
        Some(index) => {
            Some(shards(&read_index(index)?).map_err(|problem| PullError::answer(INDEX, problem))?)
        }
    };
    let listed = || files.keys().filter(|name| !name.contains('/')).cloned().collect();
    let chosen = WeightFiles::choose(shards, |name| files.contains_key(name), listed);
    let chosen = chosen.map_err(|missing| unusable(problem(&missing)))?;
    needed.extend(chosen.names.iter().filter_map(|name| files.get(name)).cloned());
    Ok(needed)
}

/// Why the files of weights cannot be used.
fn problem(missing: &MissingWeights) -> String {
    let first = missing.names.first().map_or(WEIGHTS, String::as_str);
    match missing.named_by.as_deref() {
        None => format!(
            "has neither {WEIGHTS} nor {INDEX}; choose a repository with weights in safetensors"
        ),
        Some(INDEX) => format!("has no {first}, which its index names, or no size for it"),
        Some(shard) => format!("has no {first}, which the name of {shard} counts"),
    }
}

/// Bytes of these files.
pub(crate) fn total<'a>(files: impl IntoIterator<Item = &'a RemoteFile>) -> u64 {
    files.into_iter().map(|file| file.size).fold(0, u64::saturating_add)
}

/// Bytes of those of these files that hold weights.
pub(crate) fn weight_bytes(files: &[RemoteFile]) -> u64 {
    total(files.iter().filter(|file| is_weights(&file.name)))
}

#[cfg(test)]
mod tests {
    use crate::digest::Expected;

    use super::*;

    const INDEX_TEXT: &[u8] = br#"{"weight_map": {"a": "model-1-of-2.safetensors"}}"#;

    /// Names of the needed files with weights among these files and a configuration.
    fn weights(there: &[&str]) -> Result<Vec<String>, String> {
        let file = |name: &&str| RemoteFile {
            name: (*name).to_owned(),
            size: 5,
            digest: Expected::Unknown,
        };
        let files = there.iter().chain([&CONFIG]).map(|name| ((*name).to_owned(), file(name)));
        let revision = Revision { commit: "c0".into(), files: files.collect() };
        let model = "org/name".parse().expect("a name");
        let needed = needed(&model, &revision, |_| Ok(INDEX_TEXT.to_vec()));
        let needed = needed.map_err(|error| error.to_string())?.into_iter();
        Ok(needed.map(|file| file.name).filter(|name| is_weights(name)).collect())
    }

    #[test]
    fn the_weights_are_those_that_the_target_reads() {
        let [first, second] = ["model-1-of-2.safetensors", "model-2-of-2.safetensors"];
        assert_eq!(weights(&[INDEX, first, second, WEIGHTS]), Ok(vec![first.to_owned()]));
        assert_eq!(weights(&[INDEX, WEIGHTS]), Ok(vec![WEIGHTS.to_owned()]));
        let both = vec![first.to_owned(), second.to_owned()];
        assert_eq!(weights(&[first, second, "consolidated.safetensors"]), Ok(both));
        let error = weights(&[first]).expect_err("one is missing");
        assert!(error.contains(second), "{error}");
        let error = weights(&[INDEX, second]).expect_err("one is missing");
        assert!(error.contains(first) && error.contains("index"), "{error}");
        let error = weights(&["model.gguf"]).expect_err("none is there");
        assert!(error.contains("choose a repository with weights in safetensors"), "{error}");
    }
}
