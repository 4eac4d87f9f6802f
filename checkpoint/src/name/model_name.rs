//! Names of models on a hub.

use std::fmt;

/// Most bytes of a part of a hub's name, as on huggingface.co.
const LONGEST_PART: usize = 96;
/// Most bytes of the name of a GGUF file: file systems allow 255.
const LONGEST_CHOICE: usize = 240;

/// Name of a model on a hub: `org/name`, or `org/name/folder` for a model that lies in a folder of the
/// repository `org/name`, as some drafters do. `org/name:CHOICE` is one of its GGUF files.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct ModelName {
    org: String,
    name: String,
    subfolder: Option<String>,
    choice: Option<String>,
}

/// A text that is no name of a model on a hub.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "expected ORG/NAME, ORG/NAME:FILE.gguf or ORG/NAME/FOLDER as on a hub (letters, digits, \"-\", \"_\" and \".\"), or a name that `paceline models --known` lists, found {0:?}"
)]
pub struct NameError(String);

impl ModelName {
    /// The model of that organisation.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The folder of the repository that has the model, if it is not at the top.
    pub fn subfolder(&self) -> Option<&str> {
        self.subfolder.as_deref()
    }

    /// The text that chooses one of several GGUF files: the name of a file, or a part of it as `Q4_K_M`.
    pub fn choice(&self) -> Option<&str> {
        self.choice.as_deref()
    }

    /// The name without the choice of a file.
    pub fn without_choice(&self) -> Self {
        Self { choice: None, ..self.clone() }
    }

    /// The repository that has the model.
    pub fn repository(&self) -> Self {
        Self { subfolder: None, ..self.without_choice() }
    }

    /// Name of its folder in the cache: `org--name` or `org--name--folder`. No part of a name has two
    /// hyphens in a row, so two models never share a folder, but for the GGUF files of one repository.
    pub fn folder(&self) -> String {
        self.without_choice().to_string().replace('/', "--")
    }

    /// The model whose folder has this name.
    pub fn of_folder(folder: &str) -> Option<Self> {
        Self::on_hub(&folder.replace("--", "/")).ok()
    }

    /// Reads a name as a hub has it.
    ///
    /// # Errors
    /// The text is no such name, even if it is the short name of a known model.
    pub fn on_hub(text: &str) -> Result<Self, NameError> {
        let (place, choice) = match text.split_once(':') {
            Some((place, choice)) if is_choice(choice) => (place, Some(choice.to_owned())),
            Some(_) => return Err(NameError(text.to_owned())),
            None => (text, None),
        };
        let parts: Vec<&str> = place.split('/').collect();
        let (org, name, subfolder) = match parts.as_slice() {
            [org, name] => (*org, *name, None),
            [org, name, folder] => (*org, *name, Some(*folder)),
            _ => return Err(NameError(text.to_owned())),
        };
        if ![Some(org), Some(name), subfolder].into_iter().flatten().all(is_part) {
            return Err(NameError(text.to_owned()));
        }
        let subfolder = subfolder.map(str::to_owned);
        Ok(Self { org: org.to_owned(), name: name.to_owned(), subfolder, choice })
    }
}

impl fmt::Display for ModelName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}/{}", self.org, self.name)?;
        self.subfolder.as_ref().map_or(Ok(()), |folder| write!(f, "/{folder}"))?;
        self.choice.as_ref().map_or(Ok(()), |choice| write!(f, ":{choice}"))
    }
}

/// Whether this may be the name of a file without its folder, or a part of one.
fn is_choice(text: &str) -> bool {
    let is_plain = |one: char| !one.is_control() && !matches!(one, '/' | '\\' | ':');
    !text.is_empty()
        && text.len() <= LONGEST_CHOICE
        && !text.starts_with('.')
        && text.chars().all(is_plain)
}

/// Whether a hub accepts this as a part of a name. Such a part is also the name of one directory.
fn is_part(part: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let ends_well = |byte: Option<&u8>| byte.is_some_and(|byte| !matches!(byte, b'-' | b'.'));
    let bytes = part.as_bytes();
    bytes.len() <= LONGEST_PART
        && bytes.iter().all(|byte| allowed(*byte))
        && ends_well(bytes.first())
        && ends_well(bytes.last())
        && !part.contains("--")
        && !part.contains("..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_hubs_name_has_two_parts_of_letters_digits_and_single_separators() {
        for text in [
            "Qwen/Qwen3-8B",
            "a/b",
            "mlx-community/Qwen3.5-4B_q4",
            "0/_x",
            "a/b/dflash",
            "a/b/v1.0",
        ] {
            let name = ModelName::on_hub(text).expect(text);
            assert_eq!(name.to_string(), text);
            assert_eq!(ModelName::of_folder(&name.folder()), Some(name));
        }
        let long = format!("a/{}", "x".repeat(97));
        for text in [
            "", "a", "a/", "/b", "a/b/c/d", "a/b/", "a/b/..", "a//c", "../b", "a/..", "a/.",
            "a/.b", "-a/b", "a/b-", "a/b--c", "a/b..c", "a b/c", "a/b\0", "a/b\n", "a/ü", "~/b",
            &long,
        ] {
            assert!(ModelName::on_hub(text).is_err(), "{text:?}");
        }
        for folder in ["ab", "qwen3-4b", "a--b--c--d", "--b", "a--", "a----b", "models--a", ".tmp"]
        {
            let known = ModelName::of_folder(folder).map(|name| name.to_string());
            assert_eq!(known, (folder == "models--a").then(|| "models/a".to_owned()), "{folder}");
        }
        let inner = ModelName::on_hub("a/b/c").expect("a name");
        assert_eq!((inner.folder().as_str(), inner.subfolder()), ("a--b--c", Some("c")));
        assert_eq!(inner.repository().to_string(), "a/b");
    }

    #[test]
    fn a_choice_of_a_file_is_a_part_of_the_name_and_not_of_the_folder() {
        for text in ["a/b:Q4_K_M", "a/b/c:q.gguf", "a/b:with space (1).gguf"] {
            let name = ModelName::on_hub(text).expect(text);
            assert_eq!(name.to_string(), text);
            assert_eq!(Some(name.without_choice()), ModelName::of_folder(&name.folder()));
            assert_eq!(name.repository().to_string(), "a/b");
            assert_eq!(name.choice(), text.split_once(':').map(|(_, choice)| choice));
        }
        for text in ["a/b:", "a/b:c/d", "a/b:.q", "a/b:c:d", "a:b/c", "a/b:c\n", "a/b:.."] {
            assert!(ModelName::on_hub(text).is_err(), "{text:?}");
        }
    }
}
