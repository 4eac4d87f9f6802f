//! The models among GGUF files: one file, or all parts of a split one. A file's name, or a part of it
//! such as `Q4_K_M`, chooses one of them.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::gguf::{MAX_PARTS, PartName, stem};

/// Begin of the names of files with a vision tower, which belong to a model and are none.
const TOWER: &str = "mmproj";

/// Signs between the words of a file's name. `_` is a part of a word, as in `Q4_K_M`.
const BETWEEN: [char; 2] = ['-', '.'];

/// A model among the files of a directory or of a repository.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct GgufModel {
    /// Name of its file, of a split one of the first part. A file in a folder has the folder before it.
    pub name: String,
    /// Names of all parts, in their order.
    pub parts: Vec<String>,
    /// Bytes of all parts; `None` if one of them is missing.
    pub bytes: Option<u64>,
}

impl GgufModel {
    /// The models among these files, by name. Each file has its bytes; `None`: it cannot be read.
    pub fn among(files: impl IntoIterator<Item = (String, Option<u64>)>) -> Vec<Self> {
        let files: BTreeMap<String, Option<u64>> = files.into_iter().collect();
        let mut models: BTreeMap<String, Self> = BTreeMap::new();
        for path in files.keys() {
            let (folder, file) = match path.rsplit_once('/') {
                Some((folder, file)) => (format!("{folder}/"), file),
                None => (String::new(), path.as_str()),
            };
            if stem(file).is_none() || file.starts_with(TOWER) {
                continue;
            }
            let part = PartName::of(file).filter(|part| (1..=MAX_PARTS).contains(&part.count));
            let parts = match part {
                Some(part) => (1..=part.count)
                    .map(|number| format!("{folder}{}", part.with_number(number)))
                    .collect(),
                None => vec![path.clone()],
            };
            let Some(name) = parts.first().cloned() else { continue };
            let mut bytes = parts.iter().map(|part| *files.get(part)?);
            let bytes = bytes.try_fold(0_u64, |sum, bytes| Some(sum.saturating_add(bytes?)));
            models.insert(name.clone(), Self { name, parts, bytes });
        }
        models.into_values().collect()
    }

    /// The models in a directory and in its folders, without the folders in these.
    pub fn in_directory(dir: &Path) -> Vec<Self> {
        let bytes = |path: &Path| {
            fs::metadata(path).ok().filter(fs::Metadata::is_file).map(|meta| meta.len())
        };
        let mut files = vec![];
        for (name, path) in entries(dir) {
            if path.is_dir() && !name.starts_with('.') {
                let inner = entries(&path).into_iter();
                files.extend(inner.map(|(file, path)| (format!("{name}/{file}"), bytes(&path))));
            } else {
                files.push((name, bytes(&path)));
            }
        }
        Self::among(files)
    }

    /// Those of these models that the name of a file means, or the words at a place in it: `Q4_K_M`.
    /// Capital letters do not matter.
    pub fn chosen<'a>(models: &'a [Self], choice: &str) -> Vec<&'a Self> {
        models.iter().filter(|model| model.is_meant(choice)).collect()
    }

    fn is_meant(&self, choice: &str) -> bool {
        let (choice, file) = (choice.to_ascii_lowercase(), self.file().to_ascii_lowercase());
        if stem(&choice).is_some() {
            return file == choice || self.name.to_ascii_lowercase() == choice;
        }
        let name = model_name(&file);
        !choice.is_empty()
            && name.match_indices(&choice).any(|(at, _)| {
                let (before, after) = (&name[..at], &name[at + choice.len()..]);
                (before.is_empty() || before.ends_with(BETWEEN))
                    && (after.is_empty() || after.starts_with(BETWEEN))
            })
    }

    /// Name of its first file without the folder.
    pub fn file(&self) -> &str {
        self.name.rsplit('/').next().unwrap_or(&self.name)
    }

    /// A short text that chooses this one among these models: the last word of its name, else the name of
    /// its file.
    pub fn choice<'a>(&'a self, models: &[Self]) -> &'a str {
        let name = model_name(self.file());
        let last = name.rsplit(BETWEEN).next().unwrap_or(name);
        match last != name && Self::chosen(models, last).len() == 1 {
            true => last,
            false => self.file(),
        }
    }

    /// The models with their sizes, in words.
    pub fn list(models: &[Self], size: impl Fn(u64) -> String) -> String {
        let words = models.iter().map(|model| {
            let size = model.bytes.map_or_else(|| "a part is missing".to_owned(), &size);
            format!("{} ({size})", model.name)
        });
        words.collect::<Vec<_>>().join(", ")
    }
}

/// The name of the model in a file of this name: without the ending and the number of the part.
pub(crate) fn model_name(file: &str) -> &str {
    PartName::of(file).map(|part| part.name).or_else(|| stem(file)).unwrap_or(file)
}

/// The entries of a directory.
fn entries(dir: &Path) -> Vec<(String, PathBuf)> {
    let entries = fs::read_dir(dir).into_iter().flatten().flatten();
    let named =
        entries.filter_map(|entry| Some((entry.file_name().into_string().ok()?, entry.path())));
    named.collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn models(names: &[&str]) -> Vec<GgufModel> {
        GgufModel::among(names.iter().map(|name| ((*name).to_owned(), Some(5))))
    }

    fn chosen(models: &[GgufModel], choice: &str) -> Vec<String> {
        GgufModel::chosen(models, choice).into_iter().map(|model| model.name.clone()).collect()
    }

    #[test]
    fn the_parts_of_a_split_model_are_one() {
        let all = [
            "Q8_0/m-Q8_0-00001-of-00002.gguf",
            "Q8_0/m-Q8_0-00002-of-00002.gguf",
            "README.md",
            "m-Q4_K_M.gguf",
            "mmproj-m-f16.gguf",
            "n-00001-of-00002.gguf",
        ];
        let found = models(&all);
        let facts: Vec<_> = found.iter().map(|model| (&*model.name, model.bytes)).collect();
        let expected = [
            ("Q8_0/m-Q8_0-00001-of-00002.gguf", Some(10)),
            ("m-Q4_K_M.gguf", Some(5)),
            ("n-00001-of-00002.gguf", None),
        ];
        assert_eq!(facts, expected);
        assert_eq!(found[0].parts, all[..2]);
        let list = GgufModel::list(&found[1..], |bytes| format!("{bytes} B"));
        assert_eq!(list, "m-Q4_K_M.gguf (5 B), n-00001-of-00002.gguf (a part is missing)");
        // No memory is taken for the parts that a name alone claims.
        assert_eq!(models(&["x-00001-of-99999.gguf"])[0].parts.len(), 1);
    }

    #[test]
    fn whole_words_of_a_name_choose() {
        let all =
            ["m-Q4_K.gguf", "m-Q4_K_M.gguf", "m-UD-Q4_K_XL.gguf", "m.q4_0.gguf", "m-q4_0_4_4.gguf"];
        let all = models(&all);
        for (choice, expected) in [
            ("Q4_K_M", vec!["m-Q4_K_M.gguf"]),
            ("q4_k", vec!["m-Q4_K.gguf"]),
            ("UD-Q4_K_XL", vec!["m-UD-Q4_K_XL.gguf"]),
            ("Q4_0", vec!["m.q4_0.gguf"]),
            ("M-q4_k.gguf", vec!["m-Q4_K.gguf"]),
            ("4_K", vec![]),
            ("", vec![]),
            ("m.gguf", vec![]),
        ] {
            assert_eq!(chosen(&all, choice), expected, "{choice}");
        }
        assert_eq!(chosen(&all, "m").len(), 5);
        let parts = models(&["m-Q8_0-00001-of-00002.gguf", "m-Q8_0-00002-of-00002.gguf"]);
        assert_eq!(chosen(&parts, "Q8_0").len(), 1);
    }

    #[test]
    fn the_shortest_choice_is_a_word_that_no_other_model_has() {
        let choices = |names: &[&str]| -> Vec<String> {
            let all = models(names);
            all.iter().map(|model| model.choice(&all).to_owned()).collect()
        };
        assert_eq!(choices(&["m-Q4_K_M.gguf", "m-Q8_0.gguf"]), ["Q4_K_M", "Q8_0"]);
        assert_eq!(choices(&["m-Q8_0.gguf", "n-Q8_0.gguf"]), ["m-Q8_0.gguf", "n-Q8_0.gguf"]);
        assert_eq!(choices(&["m.gguf"]), ["m.gguf"]);
    }
}
