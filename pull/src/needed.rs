//! The files of a revision that serving needs. The index of shards names some of them. Of several GGUF
//! files the model's name chooses one.

use paceline_checkpoint::ModelName;
use paceline_checkpoint::files::{CONFIG, INDEX, MissingWeights, WEIGHTS, WeightFiles};
use paceline_checkpoint::from_gguf::GgufModel;

use crate::error::PullError;
use crate::files::{is_gguf, is_safe, is_weights, shards, small};
use crate::hub::{RemoteFile, Revision};
use crate::plan::MAX_CONFIG_BYTES;
use crate::progress::bytes;

/// Most bytes of an index of shards: those of the largest models have some 10 MiB.
pub(crate) const MAX_INDEX_BYTES: u64 = 64 << 20;
/// Most bytes of the other small files together: tokenizers have some 20 MiB.
const MAX_SMALL_BYTES: u64 = 512 << 20;

/// The files of this revision that serving needs. `read_index` gets the index of shards, if there is
/// one.
///
/// # Errors
/// The model has no weights in safetensors or no configuration, and no GGUF file that is chosen, or it is
/// too large; an error of `read_index`.
pub(crate) fn needed(
    model: &ModelName,
    revision: &Revision,
    read_index: impl FnOnce(&RemoteFile) -> Result<Vec<u8>, PullError>,
) -> Result<Vec<RemoteFile>, PullError> {
    let files = &revision.files;
    let unusable = |problem: String| PullError::Unusable(format!("{model} {problem}"));
    let is_shard = |name: &String| name.starts_with("model") && name.ends_with(".safetensors");
    let has_weights = files.contains_key(INDEX) || files.keys().any(is_shard);
    let models = if has_weights && model.choice().is_none() { vec![] } else { models(revision) };
    if model.choice().is_some() || !models.is_empty() {
        return Ok(gguf(model, revision, &models).map_err(unusable)?.cloned().collect());
    }
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

/// The models of a revision in the format GGUF, at the top and in its folders.
fn models(revision: &Revision) -> Vec<GgufModel> {
    let is_near = |name: &str| name.split('/').count() <= 2 && is_safe(name);
    let files = revision.files.values().filter(|file| is_near(&file.name));
    GgufModel::among(files.map(|file| (file.name.clone(), Some(file.size))))
}

/// The files of one of these models, the first part first, and the configuration beside it.
fn gguf<'a>(
    model: &ModelName,
    revision: &'a Revision,
    models: &[GgufModel],
) -> Result<impl Iterator<Item = &'a RemoteFile> + use<'a>, String> {
    let (list, place) = (GgufModel::list(models, bytes), model.without_choice());
    let chosen = match model.choice() {
        Some(choice) => GgufModel::chosen(models, choice),
        None => models.iter().collect(),
    };
    let example = || models.first().map_or("", |first| first.choice(models));
    let one = match (chosen.as_slice(), model.choice()) {
        ([one], _) => one,
        (_, _) if list.is_empty() => return Err("has no GGUF file to choose".to_owned()),
        ([], _) => {
            return Err(format!(
                "is no GGUF file of the repository; it has {list}; choose one, as `paceline pull {place}:{}`",
                example()
            ));
        }
        (several, Some(_)) => {
            return Err(format!(
                "means {} of the GGUF files of the repository; it has {list}; write the whole name of one, as `paceline pull {place}:{}`",
                several.len(),
                several[0].file()
            ));
        }
        (several, None) => {
            return Err(format!(
                "has {} GGUF files: {list}; choose one, as `paceline pull {place}:{}`",
                several.len(),
                example()
            ));
        }
    };
    if one.bytes.is_none() {
        let missing = one.parts.iter().find(|part| !revision.files.contains_key(*part));
        let missing = missing.map_or("a part", String::as_str);
        return Err(format!("is not whole: the repository has no {missing}, which belongs to it"));
    }
    let parts: Vec<&RemoteFile> =
        one.parts.iter().filter_map(|part| revision.files.get(part)).collect();
    let config = revision.files.get(CONFIG).filter(|file| file.size <= MAX_CONFIG_BYTES);
    Ok(parts.into_iter().chain(config))
}

/// The file that stands for the model among needed ones, if it is in the format GGUF: of a split one the
/// first part.
pub(crate) fn first_gguf(needed: &[RemoteFile]) -> Option<&RemoteFile> {
    needed.iter().find(|file| is_gguf(&file.name))
}

/// Why the files of weights cannot be used.
fn problem(missing: &MissingWeights) -> String {
    let first = missing.names.first().map_or(WEIGHTS, String::as_str);
    match missing.named_by.as_deref() {
        None => format!(
            "has neither {WEIGHTS} nor {INDEX}; choose a repository with weights in safetensors or GGUF"
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
        weights_of("org/name", there)
    }

    fn weights_of(model: &str, there: &[&str]) -> Result<Vec<String>, String> {
        let file = |name: &&str| RemoteFile {
            name: (*name).to_owned(),
            size: 5,
            digest: Expected::Unknown,
        };
        let files = there.iter().chain([&CONFIG]).map(|name| ((*name).to_owned(), file(name)));
        let revision = Revision { commit: "c0".into(), files: files.collect() };
        let model = model.parse().expect("a name");
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
        let error = weights(&["model.bin"]).expect_err("none is there");
        assert!(error.contains("choose a repository with weights in safetensors"), "{error}");
        assert_eq!(weights(&["model.gguf"]), Ok(vec!["model.gguf".to_owned()]));
        assert_eq!(weights(&["model.gguf", WEIGHTS]), Ok(vec![WEIGHTS.to_owned()]));
    }

    #[test]
    fn a_name_chooses_among_several_gguf_files() {
        let split = ["Q8_0/m-Q8_0-00001-of-00002.gguf", "Q8_0/m-Q8_0-00002-of-00002.gguf"];
        let all =
            [split[0], split[1], "m-Q4_K_M.gguf", "mmproj-m.gguf", "a/b/m-Q5_0.gguf", WEIGHTS];
        let chosen =
            |choice: &str, there: &[&str]| weights_of(&format!("org/name:{choice}"), there);
        assert_eq!(chosen("q4_k_m", &all), Ok(vec![all[2].to_owned()]));
        assert_eq!(chosen("m-Q4_K_M.gguf", &all), Ok(vec![all[2].to_owned()]));
        assert_eq!(chosen("Q8_0", &all), Ok(split.map(str::to_owned).to_vec()));
        let list = "it has Q8_0/m-Q8_0-00001-of-00002.gguf (10 bytes), m-Q4_K_M.gguf (5 bytes)";
        for (found, words) in [
            (
                weights(&all[..3]),
                vec!["org/name has 2 GGUF files", &list[7..], "`paceline pull org/name:Q8_0`"],
            ),
            (chosen("Q5_0", &all), vec!["org/name:Q5_0 is no GGUF file of the repository", list]),
            (
                chosen("m", &all),
                vec![
                    "org/name:m means 2 of the GGUF files",
                    "pull org/name:m-Q8_0-00001-of-00002.gguf`",
                ],
            ),
            (
                chosen("Q8_0", &all[1..]),
                vec!["is not whole: the repository has no Q8_0/m-Q8_0-00001"],
            ),
            (chosen("Q8_0", &[WEIGHTS]), vec!["org/name:Q8_0 has no GGUF file to choose"]),
        ] {
            let error = found.expect_err("refused");
            words.iter().for_each(|word| assert!(error.contains(word), "{word:?} in {error}"));
        }
    }
}
