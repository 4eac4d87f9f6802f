//! The files of a revision that serving needs. The index of shards names some of them.

use paceline_process::checkpoints::ModelName;

use crate::error::PullError;
use crate::files::{CONFIG, INDEX, WEIGHTS, is_weights, shards, small};
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
    let unusable = |problem: String| PullError::Unusable { model: model.clone(), problem };
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
    let Some(index) = files.get(INDEX) else {
        let weights = files.get(WEIGHTS).ok_or_else(|| {
            unusable(format!(
                "has neither {WEIGHTS} nor {INDEX}; choose a repository with weights in safetensors"
            ))
        })?;
        needed.push(weights.clone());
        return Ok(needed);
    };
    if index.size > MAX_INDEX_BYTES {
        return Err(unusable(format!("has an index of {}", bytes(index.size))));
    }
    let names = shards(&read_index(index)?)
        .map_err(|problem| PullError::Answer { what: INDEX.to_owned(), problem })?;
    for name in names {
        let shard = files.get(&name).ok_or_else(|| {
            unusable(format!("has no {name}, which its index names, or no size for it"))
        })?;
        needed.push(shard.clone());
    }
    Ok(needed)
}

/// Bytes of these files.
pub(crate) fn total<'a>(files: impl IntoIterator<Item = &'a RemoteFile>) -> u64 {
    files.into_iter().map(|file| file.size).fold(0, u64::saturating_add)
}

/// Bytes of those of these files that hold weights.
pub(crate) fn weight_bytes(files: &[RemoteFile]) -> u64 {
    total(files.iter().filter(|file| is_weights(&file.name)))
}
